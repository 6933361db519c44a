"""Evaluations of planners that have verified something: they know what the run knows, and teach nobody."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from packtrain import trees
from packtrain.cli import main
from packtrain.metrics.reading import read_metrics
from packtrain.planning.best_first import BestFirstSearchAgent
from packtrain.planning.learned import LearnedModel
from packtrain.runtime import checkpoint
from packtrain.runtime.evaluation import Evaluator
from packtrain.runtime.experiment import Evaluation, Planning
from packtrain.runtime.parts import evaluated_policy, make_policy

# The shortest solution has 3 steps, and that is all there is: only who knows the way gets there.
KNOWING = """
include 'tbv/bfs_hanoi_tbv.gin'
disks = 2
n_envs = 4
episode_time_limit = 14
n_precollect_epochs = 0
n_epochs = 2
n_model_precollect_episodes = 40
n_model_pretrain_epochs = 0
members = 2
mask_size = 2
model_hidden_sizes = (8,)
model_batch_size = 16
model_n_steps_per_epoch = 1
verified_edges = 'run'
noise_quantile = 0.9
Runner.callback_classes = (@ExplorationCallback, @EvaluationCallback)
EvaluationCallback.eval_period = 5
EvaluationCallback.n_envs = 3
EvaluationCallback.episode_time_limit = 3
"""


@pytest.fixture(autouse=True)
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("given.gin").write_text(KNOWING)


def train(output, *more):
    return main(["train", "given.gin", "--output_dir", output, *more])


def evaluated(run):
    return [row["solved"] for row in read_metrics(Path(run)) if row["kind"] == "eval"]


def known(run):
    state = checkpoint.load_newest(Path(run) / "checkpoints")[1]
    return state["actor"]["seats"][0]["verified"]["edges"]


def test_an_evaluation_knows_what_the_run_has_verified(capsys):
    """Its own, and `packtrain eval`'s of the newest and of the best checkpoint; without that, it finds no way in time.

    Mutations: an evaluator that begins with nothing; a best checkpoint without what was verified.
    """
    assert train("run") == 0
    assert evaluated("run")[-1] == 1.0
    capsys.readouterr()
    for which in ("latest", "best"):
        assert main(["eval", "run", "--num_episodes", "3", "--json", "--checkpoint", which]) == 0
        assert json.loads(capsys.readouterr().out)["solved"] == 1.0
    assert train("control", "--verified_edges", "graph") == 0
    assert evaluated("control")[-1] < 1.0, "the network alone does not know the way"
    capsys.readouterr()
    assert main(["eval", "control", "--num_episodes", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["solved"] < 1.0


@pytest.mark.parametrize("changed", [None, {"top_level_epsilon": 0.0}])
def test_whoever_evaluates_does_not_verify(changed):
    """Mutation: an agent of the evaluation's own as it is given."""
    agent = BestFirstSearchAgent(
        bonus_quantile_threshold=0.9,
        top_level_heuristic="solved_then_auxiliary_then_bonus",
        expand_heuristic="bonus",
        top_level_epsilon=0.02,
    )
    given = None if changed is None else replace(agent, **changed)
    acting = evaluated_policy(Planning(agent, model=LearnedModel()), Evaluation(agent=given))
    policy = make_policy(acting, torch.nn.ModuleDict(), torch.device("cpu"), 0, True, 1)
    assert policy.agent.bonus_quantile_threshold is None
    assert policy.agent.top_level_epsilon == (0.02 if changed is None else 0.0)


def test_an_evaluation_teaches_nobody(monkeypatch):
    """What it sees is known neither to the run nor to the next evaluation, which begins with what the run knows then.

    Mutations: share the memory instead of copying it; keep it from one evaluation to the next.
    """
    begin, tick, seen = Evaluator.begin, Evaluator.tick, []

    def watched(self, snapshot=None):
        begin(self, snapshot)
        mine, theirs = (
            self._seat.snapshot()["verified"]["edges"],
            (snapshot or {}).get("verified", {"edges": {}})["edges"],
        )
        pairs = zip(trees.flatten(mine), trees.flatten(theirs), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs)
        seen.append([len(mine.get("action", ())), None])

    def counted(self):
        result = tick(self)
        seen[-1][1] = len(self._seat.snapshot()["verified"]["edges"]["action"])
        return result

    few = ("--n_model_precollect_episodes", "4", "--n_epochs", "3")
    monkeypatch.setattr(Evaluator, "begin", watched)
    monkeypatch.setattr(Evaluator, "tick", counted)
    curious = "EvaluationCallback.episode_time_limit = 14\nEvaluationCallback.agent_kwargs = {'top_level_epsilon': 1.0}"
    Path("given.gin").write_text(KNOWING.replace("EvaluationCallback.episode_time_limit = 3", curious))
    assert train("often", *few, "--config", "EvaluationCallback.eval_period = 1") == 0
    assert len(seen) == 3 and any(after > before for before, after in seen), "some evaluation saw something new"
    often = known("often")
    assert train("never", *few, "--config", "EvaluationCallback.eval_period = 100") == 0
    assert all(np.array_equal(often[name], leaf) for name, leaf in known("never").items())


def test_evaluations_do_not_depend_on_those_before():
    """Two epochs and one more are three. Mutation: keep what one has seen for the next."""
    few = ("--n_model_precollect_episodes", "4", "--config", "EvaluationCallback.eval_period = 1")
    assert train("straight", *few, "--n_epochs", "3") == 0
    for epochs in ("2", "3"):
        assert train("resumed", *few, "--n_epochs", epochs) == 0
    timeless = lambda run: [{**row, "wall_s": 0} for row in read_metrics(Path(run)) if row["kind"] == "eval"]  # noqa: E731
    assert timeless("resumed") == timeless("straight")


def test_the_best_checkpoint_can_be_gone_on_from():
    """It is the newest one if a crash comes before the next. Mutation: leave out the memory, to save room."""
    assert train("run", "--n_epochs", "0") == 0
    folder = Path("run/checkpoints")
    best = checkpoint.load(folder / str(checkpoint.best(folder)["step"]))
    assert {"actor", "memories", "exploration"} <= set(best)
    assert best["memories"]["model"]["episodes"] > 0
