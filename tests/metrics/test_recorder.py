"""Rows at step counts, and where they go."""

import json

import numpy as np
import pytest
import torch

from packtrain.envs.stream import Finished
from packtrain.metrics import console as consoles
from packtrain.metrics.console import PlainConsole, amount, duration, line
from packtrain.metrics.recorder import Recorder
from packtrain.metrics.writers import JsonlWriter
from packtrain.runtime import checkpoint


def test_rows_are_due_at_multiples_and_hold_means():
    recorder = Recorder(100)
    recorder.update({"loss": torch.tensor(1.0), "rate": 0.5}, torch.tensor([1, 3]))
    assert not recorder.due(99) and recorder.due(130)
    recorder.update({"loss": torch.tensor(2.0), "rate": 0.25}, torch.tensor([4, 4]))
    finished = Finished(
        {"train": np.array([2.0, 4.0]), "true": np.array([1.0, 3.0])},
        np.array([5, 7]),
        np.array([1.0, 0]),
        np.arange(2),
        np.empty(0),
    )
    recorder.episodes(finished)
    row = recorder.row(130)
    assert row["loss"] == 1.5 and row["rate"] == 0.375
    assert row["policy_lag_mean"] == 3 and row["policy_lag_max"] == 4
    assert row["episode_return"] == 3 and row["episode_return/true"] == 2 and row["episode_length"] == 6
    assert row["solved"] == 0.5 and row["episodes"] == 2
    assert not row.keys() & {"lives", "life_return"}  # an environment without lives has none to tell of
    recorder.update({"loss": torch.tensor(9.0)}, None)
    assert not recorder.due(199) and recorder.due(200)
    row = recorder.row(200)
    assert row["loss"] == 9 and row["episode_return"] is None and row["episodes"] == 0


def lives(*life_returns, games=()):
    """What finished in one step: lives, and the games some of them were the last of."""
    count = len(games)
    returns = {"train": np.array(games, np.float64)}
    return Finished(returns, np.full(count, 9), np.full(count, np.nan), np.arange(count), np.array(life_returns))


def test_lives_are_counted_apart_from_games():
    """Mutations: a lost life as an episode; a mean over games; lives that are still there in the next row."""
    recorder = Recorder(100)
    recorder.update({"loss": 1.0}, None)
    recorder.episodes(lives(2.0, 3.0))
    recorder.episodes(lives(4.0, games=[9.0]))
    row = recorder.row(100)
    assert row["lives"] == 3 and row["life_return"] == 3.0
    assert row["episodes"] == 1 and row["episode_return"] == 9.0 and row["episode_length"] == 9
    assert "solved" not in row
    recorder.update({"loss": 1.0}, None)
    recorder.episodes(lives(5.0))
    row = recorder.row(200)
    assert row["lives"] == 1 and row["life_return"] == 5.0
    assert row["episodes"] == 0 and row["episode_return"] is None and row["episode_length"] is None
    recorder.update({"loss": 1.0}, None)
    assert not recorder.row(300).keys() & {"lives", "life_return"}


def test_state_goes_on_exactly():
    """Mutation: a sum or a count left out of the state."""
    a = Recorder(100)
    a.update({"loss": torch.tensor(0.1), "rate": 0.1}, torch.tensor([1]))
    a.episodes(lives(2.0, 6.0, games=[11.0]))
    b = Recorder(100)
    b.load_state_dict(a.state_dict(), 50)
    for recorder in (a, b):
        recorder.update({"loss": torch.tensor(0.2), "rate": 0.2}, torch.tensor([2]))
        recorder.episodes(lives(1.0, games=[5.0]))
    row = a.row(100)
    assert row == b.row(100)
    assert row["lives"] == 3 and row["life_return"] == 3.0 and row["episode_return"] == 8.0


def test_a_state_from_before_lives_were_counted_is_read():
    a = Recorder(100)
    a.update({"loss": 1.0}, None)
    state = {name: value for name, value in a.state_dict().items() if "li" not in name}
    assert state.keys() == a.state_dict().keys() - {"lives", "life_return_sum"}
    b = Recorder(100)
    b.load_state_dict(state, 50)
    assert b.row(100) == a.row(100)


def test_a_changed_interval_counts_from_where_the_run_is():
    a = Recorder(100)
    b = Recorder(30)
    b.load_state_dict(a.state_dict(), 50)
    b.update({}, None)
    assert not b.due(59) and b.due(60)


def test_rows_past_the_checkpoint_are_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = JsonlWriter(path, 0)
    writer.write({"step": 1})
    keep = writer.bytes
    writer.write({"step": 2})
    writer.close()
    path.write_bytes(path.read_bytes() + b'{"step": 3')
    writer = JsonlWriter(path, keep)
    writer.write({"step": 9, "x": float("nan")})
    writer.close()
    assert [json.loads(text) for text in path.read_text().splitlines()] == [{"step": 1}, {"step": 9, "x": None}]


@pytest.mark.parametrize(
    "value, text", [(None, "–"), (0.4821, "0.482"), (12345.0, "12.3K"), (2_000_000, "2M"), (7, "7")]
)
def test_amounts(value, text):
    assert amount(value) == text


def test_durations():
    assert (duration(63), duration(3723)) == ("1:03", "1:02:03")


def test_lines():
    row = {"step": 1000, "wall_s": 5, "kind": "eval", "return_mean": 0.5, "return_std": 0.1, "episodes": 4}
    assert line(row, 2000).endswith("evaluation: return 0.5, standard deviation 0.1 over 4 episodes")
    both = {**row, "return_greedy_mean": 0.5, "return_sampled_mean": 0.75}
    assert line(both, 2000).endswith("over 4 episodes, greedy 0.5, sampled 0.75")


def test_metrics_of_a_checkpoint_go_to_where_the_learner_is():
    """A resumed run on a GPU has some on the CPU, some there. Mutation: stacked as they are, which torch refuses."""

    class Elsewhere(torch.Tensor):
        def to(self, device):
            assert device == torch.device("cpu")
            return torch.tensor(5.0)

    recorder = Recorder(100)
    recorder.update({"loss": torch.tensor(1.0).as_subclass(Elsewhere)}, None)
    recorder.update({"loss": torch.tensor(3.0)}, None)
    assert recorder.row(100)["loss"] == 4.0


def test_a_tensor_that_several_updates_report_can_be_saved(tmp_path):
    """Mutation: the state holds the tensor itself, twice."""
    recorder, found = Recorder(10), torch.tensor(3.0)
    for loss in (1.0, 2.0):
        recorder.update({"loss": torch.tensor(loss), "found": found}, None)
    checkpoint.save(tmp_path, 1, {"recorder": recorder.state_dict()})
    again = Recorder(10)
    again.load_state_dict(checkpoint.load(tmp_path / "1")["recorder"], 0)
    assert again.row(10)["found"] == 3 and again.row(20)["episodes"] == 0


def test_silence_is_broken_by_a_line_of_what_is_going_on(monkeypatch, capsys):
    """Mutations: a line at every turn; none after a long silence; rows that do not count as lines."""
    now = [100.0]
    monkeypatch.setattr(consoles.time, "monotonic", lambda: now[0])
    console = PlainConsole("run", 5000)
    asked = []

    def doing():
        asked.append(now[0])
        return "training the model beforehand: 3 of 9 updates"

    for now[0] in (101.0, 129.0, 131.0, 132.0, 150.0):
        console.pulse(700, 75.0, doing)
    assert capsys.readouterr().out == "step       700 of 5,000  1:15  training the model beforehand: 3 of 9 updates\n"
    console.show({"kind": "train", "step": 800, "wall_s": 80.0})
    for now[0] in (170.0, 179.0, 181.0):
        console.pulse(800, 90.0, doing)
    assert asked == [131.0, 181.0]


def test_a_line_has_no_lag_where_there_is_none():
    row = {"kind": "train", "step": 8, "wall_s": 1.0, "episode_return": 2.0}
    assert "lag" not in line(row, 10) and line({**row, "policy_lag_mean": 0.5}, 10).endswith("  lag 0.5")
    evaluated = {"kind": "eval", "step": 8, "wall_s": 1.0, "return_mean": 2.0, "return_std": 0.0, "episodes": 1}
    assert line(evaluated, 10).endswith("over 1 episode")
