"""What is counted of a run's exploration: against a plain walk over its episodes."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from packtrain.cli import main
from packtrain.envs.cartpole import CartPole
from packtrain.envs.functional_vector_env import FunctionalVectorEnv
from packtrain.envs.hanoi import Hanoi
from packtrain.envs.state_graph import StateGraph
from packtrain.envs.stream import Stream
from packtrain.errors import ConfigError, EnvSetupError
from packtrain.metrics.reading import read_metrics
from packtrain.runtime import checkpoint
from packtrain.runtime.explorer import ExplorationCallback, Explorer
from packtrain.runtime.training import Training

CLOCKED = ("wall_s", "steps_per_second", "actor_busy", "learner_busy", "rss_mb")
SMALL = """
include 'tbv/bfs_hanoi_tbv.gin'
disks = 3
n_envs = 2
episode_time_limit = 14
n_precollect_epochs = 1
n_epochs = 2
n_model_precollect_episodes = 4
n_model_pretrain_epochs = 1
members = 2
mask_size = 2
model_hidden_sizes = (8,)
model_batch_size = 16
model_n_steps_per_epoch = 2
quantile_rank = 0.5
picture_every = 4
"""


def stream_of(core, size, together=True, limit=9):
    return Stream(FunctionalVectorEnv(core, size, 3, "raise", "test", together, limit), size)


class Walk:
    """The same counts, one column and one step at a time, by dictionaries of states."""

    def __init__(self, core):
        graph = StateGraph(core)
        self.distance = {tuple(s): int(d) for s, d in zip(graph.states, graph.to_goal, strict=True)}
        self.depth = {tuple(s): int(d) for s, d in zip(graph.states, graph.from_start, strict=True)}
        self.history, self.epoch, self.last = [], [], {}
        self.pairs_history, self.pairs_epoch = [], []

    def see(self, states, first, acted, actions):
        for column, state in enumerate(map(tuple, states.tolist())):
            if first[column] or acted[column]:
                self.epoch.append(state)
            if acted[column]:
                self.pairs_epoch.append(self.last[column])
            self.last[column] = (state, int(actions[column]))

    def row(self):
        self.history += self.epoch
        self.pairs_history += self.pairs_epoch
        row = {"graph/size": 27, "env/visited_share": len(set(self.history)) / 27}
        periods = {"history": (self.history, self.pairs_history), "epoch": (self.epoch, self.pairs_epoch)}
        for period, (states, pairs) in periods.items():
            row[f"exploration/total_experienced_states_in_{period}"] = len(set(states))
            row[f"exploration/total_experienced_transitions_in_{period}"] = len(set(pairs))
            row[f"graph/min_distance_to_goal_in_{period}"] = min(self.distance[s] for s in states)
            row[f"graph/max_distance_from_start_in_{period}"] = max(self.depth[s] for s in states)
        self.epoch, self.pairs_epoch = [], []
        return row


@pytest.mark.parametrize("together", [True, False])
def test_counts_are_those_of_a_plain_walk(together, tmp_path):
    """Random moves on Hanoi with three disks, episodes that end by the clock and by solving.

    Mutations: count the rows in which a column waits, or the action that a reset dropped; begin no epoch after a row.
    """
    core, rng = Hanoi(3), np.random.default_rng(5)
    stream = stream_of(core, 4, together, 40)
    explorer, walk = Explorer(ExplorationCallback(), [stream], tmp_path), Walk(core)
    row = stream.start()
    for turn in range(300):
        if turn:
            row = stream.recv()
        stream.send(rng.integers(6, size=4))
        acted = stream.acted if turn else np.zeros(4, bool)
        explorer.look(0, stream, stream.steps, False, {})
        walk.see(stream.columns.states, np.asarray(row.first), acted, stream.sent)
        if turn % 50 == 49:
            assert explorer.row() == walk.row()
    assert explorer.planned.visits.sum() == len(walk.history)
    assert explorer.planned.transitions.sum() == len(walk.pairs_history) == stream.steps
    assert min(walk.distance[state] for state in walk.history) == 0, "the test needs an episode that ends solved"


def test_random_play_has_books_of_its_own(tmp_path):
    """Mutation: count random steps as the planner's, which makes it look as if it had come far."""
    core, rng = Hanoi(3), np.random.default_rng(5)
    stream = stream_of(core, 4)
    explorer, walks = Explorer(ExplorationCallback(), [stream], tmp_path), [Walk(core), Walk(core)]
    row, random = stream.start(), True
    for turn in range(80):
        if turn:
            row = stream.recv()
        stream.send(rng.integers(6, size=4))
        if np.asarray(row.first).all():
            random = turn < 40
        explorer.look(0, stream, stream.steps, random, {})
        walks[random].see(stream.columns.states, np.asarray(row.first), stream.acted, stream.sent)
    row = explorer.row()
    planned, at_random = walks[False].row(), walks[True].row()
    assert {name: row[name] for name in planned} == planned
    renamed = {f"random_episodes/{name.partition('/')[2]}": value for name, value in at_random.items()}
    assert {name: row[name] for name in renamed} == renamed and set(row) == {*planned, *renamed}


def test_marks_are_put_where_the_step_began(tmp_path):
    """Mutation: put them where it led."""
    stream = stream_of(Hanoi(2), 1)
    explorer = Explorer(ExplorationCallback(), [stream], tmp_path)
    stream.start()
    stream.send(np.array([0]))  # the smaller disk to peg 1
    explorer.look(0, stream, 0, False, {})
    stream.recv()
    stream.send(np.array([0]))
    explorer.look(0, stream, 1, False, {"wrong": np.array([True]), "verified": np.array([False])})
    marks = explorer.snapshot()["marks"]
    assert marks["wrong"].tolist() == [1] + [0] * 8 and not marks["verified"].any() and not marks["false_loop"].any()


def test_a_snapshot_goes_on(tmp_path):
    """Mutation: forget the current epoch's counts, or how many rows were written."""
    core, rng = Hanoi(3), np.random.default_rng(1)
    stream = stream_of(core, 4)
    explorer = Explorer(ExplorationCallback(picture_every=2), [stream], tmp_path)
    for turn in range(30):
        _ = stream.recv() if turn else stream.start()
        stream.send(rng.integers(6, size=4))
        explorer.look(0, stream, stream.steps, turn < 10, {"wrong": rng.random(4) < 0.5} if turn else {})
        if turn == 20:
            explorer.row()
    copy = Explorer(ExplorationCallback(picture_every=2), [stream], tmp_path / "copy")
    copy.restore(explorer.snapshot())
    assert copy.row() == explorer.row()
    assert (tmp_path / "visits-2.png").read_bytes() == (tmp_path / "copy/visits-2.png").read_bytes()
    assert (tmp_path / "visits-2.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


class NotOurs:
    """VectorEnv without a core."""

    action_space = Hanoi(2).action_space
    reward_channels = ("train",)


def test_worlds_that_cannot_be_listed_are_refused(tmp_path):
    for core, most, message in ((CartPole(), 10**6, "start"), (Hanoi(4), 80, "more than 80 states")):
        with pytest.raises(EnvSetupError, match=message):
            Explorer(ExplorationCallback(most_states=most), [stream_of(core, 1)], tmp_path)
    with pytest.raises(ConfigError, match="a built-in environment whose states can be enumerated"):
        Explorer(ExplorationCallback(), [Stream(NotOurs(), 1)], tmp_path)
    for name, value in (("picture_every", -1), ("most_states", 0)):
        with pytest.raises(ConfigError, match=f"ExplorationCallback.{name} = {value} must be at least"):
            ExplorationCallback(**{name: value})


# -- in runs


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("given.gin").write_text(SMALL)


def train(output, *more):
    return main(["train", "given.gin", "--output_dir", output, *more])


def rows(run, kind="train"):
    found = [{k: v for k, v in row.items() if k not in CLOCKED} for row in read_metrics(Path(run))]
    return [row for row in found if row["kind"] == kind]


def test_an_epoch_that_was_broken_off_counts_for_nothing(in_tmp, monkeypatch):
    """SIGTERM within the planner's second epoch: counts, steps and pictures are those of a run that was not stopped.

    Mutations: save the counts as they are; save the random steps, or when it was solved, as they are.
    """
    assert train("straight") == 0
    act, played = Training.act, []

    def interrupted(self):
        act(self)
        played.append(self.progress.epoch)
        if played.count(4) == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "act", interrupted)
        assert train("stopped") == 128 + signal.SIGTERM
    books = [checkpoint.load_newest(Path(run) / "checkpoints")[1] for run in ("straight", "stopped")]
    assert books[1]["exploration"]["planned"]["visits"].sum() == 0, "what is counted in the epoch begins anew"
    assert books[1]["run"]["env_steps"] < books[0]["run"]["env_steps"]
    assert train("stopped") == 0
    assert rows("stopped") == rows("straight")
    for name in ("visits-4.png", "visits.png"):
        assert (Path("stopped/pictures") / name).read_bytes() == (Path("straight/pictures") / name).read_bytes()
    last = rows("straight")[-1]
    assert last["env_steps"] - last["env_steps_without_random"] == 4 * 14 or last["random_episodes/size"] == 27
    assert (
        last["exploration/total_experienced_states_in_history"] >= last["exploration/total_experienced_states_in_epoch"]
    )


def test_until_solved_ends_a_run_of_its_own(in_tmp, capsys):
    """Asked again it is finished; with more to do it goes on. Mutation: what is solved at random ends it."""
    more = ("--disks", "2", "--until_solved", "true", "--n_epochs", "30")
    assert train("run", *more) == 0
    found = rows("run", "planning")
    assert found[-1]["episode/solved_rate"] > 0 and found[-1]["epoch"] < 34
    assert not any(row["episode/solved_rate"] for row in found[3:-1])
    last = rows("run")[-1]
    random_steps = last["env_steps"] - last["env_steps_without_random"]
    assert random_steps > 0
    assert random_steps < last["first_solved_step"] <= last["env_steps"], "the random data is counted"
    assert last["first_solved_step_without_random"] == last["first_solved_step"] - random_steps
    capsys.readouterr()
    assert train("run", *more) == 0
    assert "run is finished: solved at step" in capsys.readouterr().out
    assert train("run", "--disks", "2", "--n_epochs", str(found[-1]["epoch"])) == 0
    assert len(rows("run")) > len(found)


def test_without_pillow_a_run_goes_on_and_says_so_once(tmp_path, monkeypatch, caplog):
    """Mutation: an error out of `draw`, which would end the run at its first picture."""
    monkeypatch.setitem(sys.modules, "PIL", None)
    stream = stream_of(Hanoi(3), 4)
    explorer = Explorer(ExplorationCallback(picture_every=1), [stream], tmp_path / "pictures")
    stream.start()
    explorer.look(0, stream, stream.steps, False, {})
    explorer.row()
    explorer.draw()
    assert [record.message for record in caplog.records] == [
        "a picture needs the package 'pillow'; try: pip install 'packtrain[plot]'; the run goes on without that picture"
    ]
    assert not list((tmp_path / "pictures").iterdir())
