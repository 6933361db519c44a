"""E6: episodes of one step and of a million, and environments and learners of very different speed."""

import time
from pathlib import Path

import pytest

from packtrain.cli import main
from packtrain.memory.unroll import UnrollQueue
from packtrain.metrics.reading import read_metrics
from packtrain.runtime import checkpoint, learning
from packtrain.testing import tiny_runs

FAULTY = "packtrain.testing.faulty:packtrain/Faulty-v0"
SLEEPING = "packtrain.testing.sleeping_gym:packtrain/Sleeping-v0"


def train(family, env, kwargs, total, *more):
    argv = tiny_runs.argv(family, "--runtime", "local", "--eval_every", "0", *more, env=env, total=total)
    assert main([*argv, "--output_dir", "run", "--config", f"Environment.kwargs = {kwargs}"]) == 0
    return [row for row in read_metrics(Path("run")) if row["kind"] == "train"]


@pytest.fixture(autouse=True)
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 10**6])
@pytest.mark.parametrize("family", ["impala", "r2d2"])
def test_e6_episodes_of_one_step_and_of_a_million(family, length):
    """Every episode of one step is counted, with its return of 1; one of a million steps never ends, and its unfinished
    return fills no memory. Mutation: a learner that waits for the end of an episode."""
    rows = train(family, FAULTY, {"length": length}, 600)
    episodes = sum(row["episodes"] for row in rows)
    if length == 1:
        assert rows[-1]["env_steps"] - 8 <= episodes <= rows[-1]["env_steps"]
        assert {row["episode_return"] for row in rows if row["episodes"]} == {1.0}
    else:
        assert episodes == 0 and rows[-1]["step"] >= 600


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["environment", "learner"])
def test_e6_one_side_may_be_a_thousand_times_slower(monkeypatch, slow):
    """The ratio of updates to steps is met within 1 % (here: within one step of all environments), and the learner is
    never further behind than its slack. Mutation: acting does not wait for the learner."""
    if slow == "learner":
        draw = learning.LearningSide.learn

        def sleeps(self, name, count):
            time.sleep(0.02)  # steps take about 20 µs
            return draw(self, name, count)

        monkeypatch.setattr(learning.LearningSide, "learn", sleeps)
    secs = 0.005 if slow == "environment" else 0.0
    rows = train("r2d2", SLEEPING, {"secs": secs, "length": 20}, 800, "--slack", "4")
    state = checkpoint.load_newest(Path("run/checkpoints"))[1]
    (updates,) = (learner["updates"] for learner in state["learners"].values())
    wanted = 0.05 * (rows[-1]["step"] - 200)
    assert abs(updates - wanted) <= max(0.01 * wanted, 0.05 * 4 + 1)
    for row in rows:
        assert 0.05 * (row["step"] - 200) - row["updates/values"] <= 4 + 0.05 * 8 + 1, "behind by more than the slack"


@pytest.mark.slow
def test_e6_queues_stay_bounded_while_the_learner_is_slow(monkeypatch):
    """Mutation: the actor does not wait for room."""
    lengths, sample = [], UnrollQueue.sample

    def slowly(self, *args, **more):
        time.sleep(0.02)
        lengths.append(len(self))
        return sample(self, *args, **more)

    monkeypatch.setattr(UnrollQueue, "sample", slowly)
    train("impala", FAULTY, {"length": 5}, 800)
    assert len(lengths) >= 20 and max(lengths) <= 8 + 4, "2 · num_actors and the unrolls that ended together"
