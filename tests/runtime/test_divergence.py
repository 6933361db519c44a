"""Updates that are not finite: the batch is kept, and the run stops or leaves the update out."""

import functools
import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from packtrain.algorithms.batched_updates import ReplayLearner
from packtrain.cli import main
from packtrain.errors import DivergedError
from packtrain.interfaces import UpdateResult
from packtrain.metrics.reading import read_metrics
from packtrain.runtime import checkpoint, divergence
from packtrain.runtime.divergence import Divergence


class Batch(NamedTuple):
    obs: torch.Tensor
    more: dict


class Scripted:
    """A learner whose losses are given, and whose weight counts the updates that were applied."""

    def __init__(self, losses):
        self.losses, self.updates, self.steps = list(losses), 0, 0
        self.weight = torch.zeros(1)

    def draw(self, memory, count):
        return Batch(torch.full((2, 3), self.losses[0]), {"keys": np.arange(4), "name": "none"})

    def apply(self, works):
        loss = self.losses.pop(0)
        self.updates, self.steps = self.updates + 1, self.steps + 8
        self.weight += loss
        metrics = {"total_loss": torch.tensor(loss), "grad_norm": 1.0, "score": math.nan}
        return [UpdateResult(metrics, steps=8, keys=torch.arange(2), priorities=torch.full((2,), loss))]

    def state_dict(self):
        return {"weight": self.weight, "updates": self.updates, "steps": self.steps}

    def load_state_dict(self, state):
        self.weight, self.updates, self.steps = state["weight"], state["updates"], state["steps"]


class Memory:
    def __init__(self):
        self.priorities = []

    def update_priorities(self, keys, priorities):
        self.priorities += priorities.tolist()


def test_stop_writes_the_batch_and_names_it(tmp_path):
    """Mutation: the loss is not looked at; a metric that may be NaN is taken for a loss."""
    guard, learner, memory = Divergence("stop", tmp_path / "diverged"), Scripted([1.0, math.inf]), Memory()
    assert guard.learn("values", learner, memory, 1).metrics["total_loss"] == 1
    with pytest.raises(DivergedError, match=r"update 2 of learner 'values'.*total_loss = inf.*values-2.safetensors"):
        guard.learn("values", learner, memory, 1)
    found = load_file(tmp_path / "diverged/values-2.safetensors")
    assert set(found) == {"batch/obs", "batch/more/keys"} and torch.isinf(found["batch/obs"]).all()
    about = json.loads((tmp_path / "diverged/values-2.json").read_text())
    assert about["not_finite"] == {"total_loss": "inf"} and about["left_out"] == []
    assert memory.priorities == [1.0, 1.0], "no priority of such an update reaches the memory"


def test_skip_restores_the_learner_and_its_counters_go_on(tmp_path):
    """Mutations: the state is not copied; the counters are restored too, so the same update is due again."""
    guard, learner, memory = Divergence("skip", tmp_path), Scripted([1.0, math.nan, 2.0]), Memory()
    results = [guard.learn("values", learner, memory, 1) for _ in range(3)]
    assert learner.weight == 3 and learner.updates == 3 and learner.steps == 24 and guard.skipped == 1
    assert results[1].metrics == {} and results[1].steps == 8 and memory.priorities == [1, 1, 2, 2]


def test_skip_ends_after_many_in_a_row_and_few_batches_are_written(tmp_path, monkeypatch):
    guard, learner = Divergence("skip", tmp_path), Scripted([math.nan] * 100)
    with pytest.raises(DivergedError, match="21 times in a row"):
        for _ in range(100):
            guard.learn("values", learner, Memory(), 1)
    assert len(list(tmp_path.glob("*.safetensors"))) == divergence.MOST_DUMPS


def test_what_is_written_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(divergence, "MOST_BYTES", 30)
    with pytest.raises(DivergedError):
        Divergence("stop", tmp_path).learn("a", Scripted([math.nan]), Memory(), 1)
    assert set(load_file(tmp_path / "a-1.safetensors")) == {"batch/obs"}
    assert json.loads((tmp_path / "a-1.json").read_text())["left_out"] == ["batch/more/keys"]


def broken(loss, every=1):
    """The loss of IMPALA with NaN in every so many calls."""
    calls = iter(range(10**9))

    @functools.wraps(loss)
    def wrapper(*arguments, **more):
        total, metrics = loss(*arguments, **more)
        bad = next(calls) % every == every - 1
        total = total * math.nan if bad else total
        return total, {**metrics, "total_loss": total.detach()}

    return wrapper


@pytest.mark.slow
def test_a_run_that_diverges_stops_at_that_update_and_keeps_its_last_checkpoint(tmp_path, monkeypatch, capsys):
    """Mutation: the run goes on until weights that are not finite refuse to be saved."""
    monkeypatch.chdir(tmp_path)
    small = "--num_actors 4 --batch_size 4 --unroll_length 5 --hidden_size 16 --eval_every 0 --runtime serial".split()
    argv = ["train", "impala/catch", "--output_dir", "run", *small]
    assert main([*argv, "--total_steps", "400"]) == 0
    before = checkpoint.steps(tmp_path / "run/checkpoints")
    from packtrain.algorithms import impala

    monkeypatch.setattr(impala, "loss", broken(impala.loss))
    assert main([*argv, "--total_steps", "4000"]) == 3
    assert "is not finite" in capsys.readouterr().err
    assert checkpoint.steps(tmp_path / "run/checkpoints") == before
    assert len(list((tmp_path / "run/diverged").glob("*.safetensors"))) == 1
    monkeypatch.setattr(impala, "loss", broken(impala.loss.__wrapped__, every=7))
    assert main([*argv, "--total_steps", "4000", "--config", "Run.on_diverged = 'skip'"]) == 0
    assert [row for row in read_metrics(tmp_path / "run") if row["kind"] == "train"][-1]["updates_skipped"] > 5


def poisoned(monkeypatch, seed, at):
    """Put NaN into the rewards of one seed's batch, which is for two updates."""
    draw, made = ReplayLearner.draw, [0, 0, 0]

    def draws(self, memory, count):
        batch = draw(self, memory, count)
        made[self._run] += 1
        if self._run == seed and made[seed] == at:
            batch["reward"].fill_(math.nan)
        return batch

    monkeypatch.setattr(ReplayLearner, "draw", draws)
    return made


def three_seeds(folder, *more):
    small = "--num_actors 2 --warm_up 50 --batch_size 8 --hidden_size 8 --num_layers 1 --eval_every 0 --log_every 100"
    argv = ["train", "ddpg/pendulum", *small.split(), "--runtime", "serial", "--total_steps", "200"]
    return main([*argv, "--num_seeds", "3", "--output_dir", folder, *more])


def final(folder, seed):
    """The last checkpoint of a seed, flat; without times."""
    state = checkpoint.load_newest(Path(folder) / f"seed_{seed}/checkpoints")[1]
    return {name: state[name] for name in ("weights", "learners")}


def assert_equal(left, right):
    torch.testing.assert_close(left, right, rtol=0.0, atol=0.0)


@pytest.mark.slow
def test_an_update_of_one_of_several_seeds_is_skipped_and_the_others_do_not_change(tmp_path, monkeypatch):
    """Mutations: the learner of another seed is restored; the step count of Adam, which all share, goes back."""
    monkeypatch.chdir(tmp_path)
    assert three_seeds("sound") == 0
    made = poisoned(monkeypatch, seed=1, at=20)
    assert three_seeds("skip", "--config", "Run.on_diverged = 'skip'") == 0
    assert min(made) > 30
    for seed in (0, 2):
        assert_equal(final("skip", seed), final("sound", seed))
    last = read_metrics(tmp_path / "skip/seed_1")[-1]
    assert last["updates_skipped"] == 2 and math.isfinite(last["critic_loss"])
    assert final("skip", 1)["learners"]["value"]["updates"] == final("sound", 1)["learners"]["value"]["updates"]
    assert len(list((tmp_path / "skip/seed_1/diverged").glob("*.safetensors"))) == 1


@pytest.mark.slow
def test_a_seed_whose_update_is_not_finite_is_left_out_at_that_update(tmp_path, monkeypatch, capsys):
    """Mutation: joined seeds are checked at checkpoints alone."""
    monkeypatch.chdir(tmp_path)
    assert three_seeds("sound") == 0
    made = poisoned(monkeypatch, seed=1, at=20)
    assert three_seeds("stop") == 3
    assert "update 40 of learner 'value' is not finite" in capsys.readouterr().err
    for seed, sound in ((0, 0), (2, 2)):
        assert_equal(final("stop", seed), final("sound", sound))
    assert made[1] > made[2] == 20, "the third seed takes the second one's place"
    assert len(list((tmp_path / "stop/seed_1/diverged").glob("*.safetensors"))) == 1
