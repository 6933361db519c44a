"""Runs that are resumed with another number of environments, and with another acting mode at the same time."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from packtrain import knobs
from packtrain.errors import CheckpointError
from packtrain.runtime import checkpoint, open_run, train_command
from packtrain.runtime.local_acting import open_streams
from packtrain.runtime.messages import Remote
from packtrain.runtime.regrouping import Layout, leave_environments, saved_envs, saved_layout

PLAN = {"n_epochs": 2, "n_steps_per_epoch": 5, "batch_size": 8, "episode_time_limit": 15, "eval_period": 1}
CASES = {  # the first run, and what the second one has in place of it
    "impala/catch": (
        {"total_steps": 600, "eval_every": 0, "log_every": 100, "batch_size": 2, "unroll_length": 5},
        {"total_steps": 1200},
        "num_actors",
    ),
    "r2d2/catch": ({"total_steps": 1500, "warm_up": 400, "eval_every": 0}, {"total_steps": 2200}, "num_actors"),
    "steve/steve_pendulum": (
        {
            "total_steps": 420,
            "warm_up": 200,
            "pretrain": 5,
            "eval_every": 0,
            "hidden_size": 16,
            "model_hidden_size": 16,
        },
        {"total_steps": 560},
        "num_actors",
    ),
    "planning/mcts_hanoi": (PLAN, {"n_epochs": 4}, "n_envs"),
}


def train(name, folder, workers=0, **values):
    """Train, in the local runtime if there are several workers; none: a thread acts."""
    path, _ = knobs.find_config(name)
    remote, runtime = Remote("process", workers) if workers else None, "local" if workers > 1 else "serial"
    request = open_run.TrainRequest([path], [], values, Path(folder), 3, None, runtime, remote)
    return train_command.train(request)


def state_of(folder):
    return checkpoint.load_newest(Path(folder) / "checkpoints")[1]


def rows_of(folder):
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def stored(memory):
    """What a memory has ever been given, and what it holds."""
    if "buckets" in memory:
        return memory["episodes"], sum(int(np.sum(bucket["ring"]["is_step"])) for bucket in memory["buckets"])
    if "items" in memory:
        return int(memory["count"]), int((memory["made"] - memory["gone"]).sum())
    return int(memory["count"]), int(memory["count"])


@pytest.mark.slow
@pytest.mark.parametrize("envs, workers", [((6, 2), (0, 1)), ((3, 8), (2, 0)), ((4, 4), (0, 2))])
@pytest.mark.parametrize("name", CASES)
def test_a_run_is_resumed_with_other_environments_or_workers(tmp_path, capsys, name, envs, workers):
    """Mutations: num_actors in the identity; a replay that begins empty; step counts from zero; the first episodes of
    the run played again."""
    first, more, knob = CASES[name]
    before, after = envs
    assert train(name, tmp_path, workers[0], **{**first, knob: before}) == 0
    saved, rows = state_of(tmp_path), rows_of(tmp_path)
    capsys.readouterr()
    assert train(name, tmp_path, workers[1], **{**first, **more, knob: after}) == 0
    line = f"num_actors: {before} -> {after}; the environments begin new episodes\n"
    assert (line in capsys.readouterr().out) == (before != after)
    state, every = state_of(tmp_path), rows_of(tmp_path)
    assert every[: len(rows)] == rows and len(every) > len(rows)
    steps = [row["step"] for row in every if row["kind"] == "train"]
    assert steps == sorted(set(steps))
    env_steps = [row["env_steps"] for row in every if row["kind"] == "train"]
    assert env_steps == sorted(env_steps)
    assert saved_envs(state) == after and sum(state["run"]["groups"]) == after
    assert learned(state) > learned(saved)
    for memory, was in saved.get("memories", {}).items():
        if name != "impala/catch":
            (given, held), (given_before, held_before) = stored(state["memories"][memory]), stored(was)
            assert given > given_before and held > held_before * 0.95
    assert train(name, tmp_path, workers[1], **{**first, **more, knob: after}) == 0
    assert "is finished" in capsys.readouterr().out


def learned(state):
    return sum(int(leaf) for learner in state["learners"].values() for leaf in counts(learner))


def counts(tree):
    return [value for name, value in tree.items() if name == "updates"]


@pytest.mark.slow
def test_exploration_rates_follow_the_new_indices(tmp_path):
    """Mutation: ε of the old environments kept."""
    values = {"warm_up": 400, "eval_every": 0, "log_every": 100}
    for name, envs, steps in (("one", 4, 600), ("one", 9, 900), ("other", 9, 600)):
        assert train("r2d2/catch", tmp_path / name, total_steps=steps, num_actors=envs, **values) == 0
    rates = {name: rows_of(tmp_path / name)[-1]["epsilon"] for name in ("one", "other")}
    assert rates["one"] == rates["other"] != rows_of(tmp_path / "one")[0]["epsilon"]


def test_new_episodes_have_seeds_of_their_own(tmp_path, monkeypatch):
    """Those of environments that go on do not matter. Mutation: seeds as at the start of the run."""
    seeds, made = [], []

    def opened(experiment, spec, again, *rest):
        seeds.append(again)
        return open_streams(experiment, spec, again, *rest)

    monkeypatch.setattr("packtrain.runtime.local_acting.open_streams", opened)
    values = {"eval_every": 0, "unroll_length": 5, "batch_size": 4}
    for envs, steps in ((4, 100), (4, 200), (5, 300)):
        assert train("impala/catch", tmp_path, num_actors=envs, total_steps=steps, **values) == 0
        made.append(state_of(tmp_path)["run"]["env_steps"])
    assert seeds == [(), (), (made[1],)]


def test_old_run_folders_with_the_number_in_their_identity_go_on(tmp_path, capsys):
    """Mutation: `difference` compares keys that only the earlier version had."""
    values = {"eval_every": 0, "unroll_length": 5, "batch_size": 4}
    assert train("impala/catch", tmp_path, num_actors=4, total_steps=100, **values) == 0
    step, state = checkpoint.load_newest(tmp_path / "checkpoints")
    assert not any("num_actors" in name or "groups" in name for name in state["run"]["identity"])
    state["run"]["identity"] |= {"Streams.num_actors": "4", "Streams.groups": "None"}
    del state["run"]["groups"]
    checkpoint.save(tmp_path / "checkpoints", step + 1, state)
    assert train("impala/catch", tmp_path, num_actors=6, total_steps=200, **values) == 0
    assert "num_actors: 4 -> 6" in capsys.readouterr().out
    with pytest.raises(CheckpointError, match="unroll_length"):
        train("impala/catch", tmp_path, num_actors=6, total_steps=300, **{**values, "unroll_length": 6})


def test_the_log_says_how_much_was_kept(tmp_path):
    values = {"warm_up": 400, "eval_every": 0}
    assert train("r2d2/catch", tmp_path, total_steps=800, num_actors=4, **values) == 0
    assert train("r2d2/catch", tmp_path, total_steps=900, num_actors=3, **values) == 0
    text = (tmp_path / "log.txt").read_text()
    said = re.search(
        r"the replay of 4 environments goes on with 3: ([\d,]+) of \1 sequences kept, ([\d,]+) of \2 steps", text
    )
    assert said and 700 <= int(said[2].replace(",", "")) <= 800


def test_what_outlives_episodes_goes_to_the_environments_by_index():
    """Mutations: groups in place of environments; environments that go on taken for others."""
    seats = [{"seat": number} for number in range(3)]
    workers = [
        {"streams": [{"lengths": np.zeros(2)}], "seats": seats[:1]},
        {"streams": [{"lengths": np.zeros(1)}, {"lengths": np.zeros(1)}], "seats": seats[1:]},
    ]
    state = {"actor": {"workers": workers}, "run": {"groups": [2, 1, 1]}}
    assert saved_layout(state) == Layout(2, (2, 1, 1)) and saved_envs(state) == 4
    leave_environments(state, Layout(2, (2, 1, 1)))
    assert "actor" in state
    leave_environments(state, Layout(1, (3, 3)))
    left = state["left"]
    assert "actor" not in state and left["seats"] == seats and left["sizes"] == [2, 1, 1] and left["whole"]
    assert [group["envs"].tolist() for group in left["groups"]] == [[0, 1, 2], [3, 0, 1]]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("groups, left", [([2, 2], False), ([4], True), (None, False), ([], False)])
def test_environments_that_cannot_be_saved_leave_their_lasting_state(groups, left):
    """Mutation: [], the groups of a converted run, as a divisor."""
    state = {"seats": [{"own": 1}], "run": {} if groups is None else {"groups": groups}}
    leave_environments(state, Layout(1, (2, 2)))
    assert ("left" in state) == left and ("seats" in state) != left
