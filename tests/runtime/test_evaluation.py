"""Evaluations: planners know what the run has verified; other policies play greedily and sampled."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from packtrain import knobs, trees
from packtrain.acting.planner_policy import Planning
from packtrain.cli import main
from packtrain.envs.functional_vector_env import FunctionalVectorEnv
from packtrain.envs.stream import Episode, Stream
from packtrain.interfaces import ActingPlace
from packtrain.metrics.reading import read_metrics
from packtrain.planning.best_first import BestFirstSearchAgent
from packtrain.planning.learned import LearnedModel
from packtrain.runtime import checkpoint
from packtrain.runtime import evaluation as evaluation_module
from packtrain.runtime.evaluation import Evaluator, Limits, open_evaluator, summary
from packtrain.runtime.preparation import prepare
from packtrain.testing.scripted import ScriptedPolicy
from packtrain.testing.sleepy import Sleepy

# The shortest solution has 3 steps, and the limit is 3: only a perfect policy solves it.
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


def test_an_evaluation_uses_the_transitions_that_the_run_has_verified(capsys):
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
def test_evaluations_do_not_verify(changed):
    """Mutation: an agent of the evaluation's own as it is given."""
    agent = BestFirstSearchAgent(
        bonus_quantile_threshold=0.9,
        top_level_heuristic="solved_then_auxiliary_then_bonus",
        expand_heuristic="bonus",
        top_level_epsilon=0.02,
    )
    given = None if changed is None else replace(agent, **changed)
    acting = Planning(agent, model=LearnedModel()).for_evaluation(given)
    place = ActingPlace(torch.device("cpu"), 0, 1, greedy=True)
    policy = acting.build_policy(torch.nn.ModuleDict(), place)
    assert policy.agent.bonus_quantile_threshold is None
    assert policy.agent.top_level_epsilon == (0.02 if changed is None else 0.0)


def test_an_evaluation_does_not_change_the_training_state(monkeypatch):
    """Its transitions go neither to the run nor to the next evaluation, which begins with the run's own.

    Mutations: share the memory instead of copying it; keep it from one evaluation to the next.
    """
    begin, tick, seen = Evaluator.begin, Evaluator.tick, []

    def watched(self, snapshot=None):
        begin(self, snapshot)
        mine, theirs = (
            self._actor_state.snapshot()["verified"]["edges"],
            (snapshot or {}).get("verified", {"edges": {}})["edges"],
        )
        pairs = zip(trees.flatten(mine), trees.flatten(theirs), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs)
        seen.append([len(mine.get("action", ())), None])

    def counted(self):
        result = tick(self)
        seen[-1][1] = len(self._actor_state.snapshot()["verified"]["edges"]["action"])
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


# Greedy and sampled


KINDS = ("greedy", "sampled")


def catch(output, *more):
    small = [
        "--total_steps",
        "600",
        "--num_actors",
        "8",
        "--batch_size",
        "8",
        "--unroll_length",
        "5",
        "--runtime",
        "serial",
    ]
    every = ["--eval_every", "200", "--eval_episodes", "12", "--log_every", "200"]
    return main(["train", "impala/catch", "--output_dir", output, *small, *every, *more])


def evaluations(run):
    return [{**row, "wall_s": 0} for row in read_metrics(Path(run)) if row["kind"] == "eval"]


@pytest.mark.parametrize(("best", "more"), [("greedy", []), ("sampled", ["--eval_best", "sampled"])])
def test_rows_report_both_kinds_and_one_of_them_decides_which_checkpoint_is_best(best, more):
    """Mutations: one kind twice; the other kind under the plain names; `best` by the other kind."""
    assert catch("run", *more) == 0
    rows = evaluations("run")
    assert len(rows) >= 3
    for row in rows:
        assert row["episodes_greedy"] == row["episodes_sampled"] == row["episodes"] == 12
        for name in ("mean", "std", "ci95"):
            assert row[f"return_{name}"] == row[f"return_{best}_{name}"]
    assert any(row["return_greedy_mean"] != row["return_sampled_mean"] for row in rows)
    entry = checkpoint.best(Path("run/checkpoints"))
    assert entry["kind"] == best
    assert entry["score"] == max(row[f"return_{best}_mean"] for row in rows)


def test_eval_plays_both_kinds_or_the_one_that_is_asked_for(capsys):
    assert catch("run", "--eval_best", "sampled") == 0

    def played(*flags):
        capsys.readouterr()
        assert main(["eval", "run", "--num_episodes", "20", "--json", *flags]) == 0
        return json.loads(capsys.readouterr().out)

    both, alone = played(), {kind: played(f"--{kind}") for kind in KINDS}
    assert both["greedy"] is False and both["return_mean"] == both["return_sampled_mean"]
    for kind in KINDS:
        assert alone[kind]["greedy"] == (kind == "greedy")
        assert alone[kind]["return_mean"] == both[f"return_{kind}_mean"], "the same seeds, whoever plays first"
        assert f"return_{kind}_mean" not in alone[kind]
    assert both["episodes_greedy"] == both["episodes_sampled"] == 20 == len(both["returns"])
    assert both["returns"] == alone["sampled"]["returns"]
    assert main(["eval", "run", "--num_episodes", "20"]) == 0
    assert "(20 of each; above sampled)" in capsys.readouterr().out
    assert main(["eval", "run", "--greedy", "--sampled"]) == 2


def test_a_policy_that_must_act_at_random_is_worth_less_greedily(capsys):
    """Untrained, it acts about half and half. Mutation: samples from a distribution that has been made greedy."""
    argv = ["train", "abilities/stochastic_policy", "--total_steps", "100", "--output_dir", "run"]
    assert main([*argv, "--runtime", "serial"]) == 0
    capsys.readouterr()
    assert main(["eval", "run", "--num_episodes", "32", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["return_greedy_mean"] == -1
    assert result["return_mean"] == result["return_sampled_mean"] > -0.5


def test_sampled_evaluations_do_not_depend_on_those_before():
    """Mutation: noise that goes on from one evaluation to the next."""
    _, experiment, spec = prepare([knobs.find_config("impala/point_mass")[0]], [], {}, None, trust_config=True)
    evaluator, _ = open_evaluator(
        experiment, spec, torch.device("cpu"), 0, replace(experiment.evaluation, num_episodes=4)
    )
    results = []
    for _ in range(2):
        evaluator.begin()
        while evaluator.active:
            result = evaluator.tick()
        results.append(result)
    evaluator.close()
    assert results[0] == results[1]
    assert results[0]["return_sampled_mean"] != results[0]["return_greedy_mean"]


def test_another_kind_of_best_resets_the_best_score():
    """Mutation: the score of one kind compared with that of the other."""
    assert catch("run", "--total_steps", "200") == 0
    checkpoint.mark_best(Path("run/checkpoints"), checkpoint.best(Path("run/checkpoints"))["step"], 99.0)
    assert catch("run", "--total_steps", "400") == 0
    assert checkpoint.best(Path("run/checkpoints"))["score"] == 99.0
    assert catch("run", "--total_steps", "600", "--eval_best", "sampled") == 0
    entry = checkpoint.best(Path("run/checkpoints"))
    assert entry["kind"] == "sampled" and entry["score"] <= 1 and entry["step"] > 400
    assert "the best checkpoint is that of a greedy evaluation" in Path("run/log.txt").read_text()


def test_a_policy_without_a_distribution_plays_one_kind(capsys):
    small = ["--total_steps", "40", "--eval_every", "20", "--eval_episodes", "2", "--runtime", "serial"]
    assert main(["train", "dqn/catch", "--output_dir", "run", *small]) == 0
    assert all("return_mean" in row and "return_greedy_mean" not in row for row in evaluations("run"))
    capsys.readouterr()
    argv = ["train", "dqn/catch", "--output_dir", "other", *small, "--config", "Evaluation.best = 'sampled'"]
    assert main(argv) == 2
    assert "Evaluation.best = 'sampled' needs a policy that outputs a distribution" in capsys.readouterr().err
    assert not Path("other").exists()


@pytest.mark.parametrize(("count", "t"), [(2, 12.7062), (4, 3.1824), (10, 2.2622), (100, 1.9842)])
def test_the_interval_of_an_evaluation_is_students(count, t):
    returns = np.random.default_rng(0).normal(size=count)
    result = summary([Episode({"train": float(value)}, 3, math.nan, 0) for value in returns])
    assert result["return_ci95"] == pytest.approx(t * returns.std(ddof=1) / math.sqrt(count), rel=1e-4)


# -- episodes without an end


class Uneven(Sleepy):
    """Episodes of 4 steps in the first column, and without an end in the others."""

    def step(self, states, actions, rng):
        after, rewards, _, extras = super().step(states, actions, rng)
        ended = after >= 4
        ended[1:] = False
        return after, rewards, ended, extras


def play(core, episodes, size=2, **limits):
    """The result of an evaluation, and after how many ticks it was there."""
    stream = Stream(FunctionalVectorEnv(core, size, 0, "raise", "test"), size)
    evaluator = Evaluator(stream, {"greedy": ScriptedPolicy(core.action_space)}, episodes, Limits(**limits))
    evaluator.begin()
    for tick in range(1, 1000):
        if (result := evaluator.tick()) is not None:
            return result, tick, evaluator
    raise AssertionError("the evaluation has no end")


def test_an_episode_without_end_is_cut_off_and_counted():
    """Mutation: waiting for it."""
    result, ticks, evaluator = play(Sleepy(length=0), 2, max_steps=30)
    assert ticks == 30 and not evaluator.active
    assert (result["episodes"], result["episodes_truncated"]) == (2, 2)
    assert result["return_mean"] == result["length_mean"] == 30


def test_a_column_that_is_cut_off_plays_no_more_and_the_others_play_their_share():
    """Mutations: counting an episode twice, once cut off and once when it ends; waiting for the whole share."""
    result, _, evaluator = play(Uneven(), 6, max_steps=30)
    assert [[episode.length for episode in column] for column in evaluator.episodes] == [[4, 4, 4], [30]]
    assert (result["episodes"], result["episodes_truncated"]) == (4, 1)
    result, *_ = play(Sleepy(length=4), 6, max_steps=4)
    assert (result["episodes"], result["episodes_truncated"]) == (6, 0), "an end at the limit is an end"


def test_an_evaluation_ends_at_its_deadline_with_what_it_has(monkeypatch):
    clock = [0.0]

    class Clock:
        def __init__(self, longest_gap):
            self.begun = clock[0]

        def look(self):
            clock[0] += 1.0
            return clock[0] - self.begun

    monkeypatch.setattr(evaluation_module, "RunningTime", Clock)
    result, ticks, evaluator = play(Uneven(), 6, deadline_secs=7)
    assert ticks == 8
    assert [[episode.length for episode in column] for column in evaluator.episodes] == [[4, 3], [8]]
    assert (result["episodes"], result["episodes_truncated"]) == (3, 2)


def test_an_evaluation_says_how_far_it_is():
    stream = Stream(FunctionalVectorEnv(Sleepy(length=4), 2, 0, "raise", "test"), 2)
    evaluator = Evaluator(stream, {"greedy": ScriptedPolicy(stream.columns.action_space)}, 4)
    evaluator.begin()
    for _ in range(7):
        evaluator.tick()
    assert evaluator.progress() == "evaluating: 2 of 4 episodes; the longest unfinished: 2 steps"


ENDLESS = """
import packtrain.testing.sleepy
include 'impala/gym.gin'
env = 'packtrain/Sleepy-v0'
Environment.kwargs = {'length': 0}
Evaluation.max_steps = 50
total_steps = 400
num_actors = 2
batch_size = 2
unroll_length = 5
hidden_size = 8
eval_every = 200
eval_episodes = 2
"""


@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_a_run_whose_episodes_never_end_is_evaluated_and_finishes(runtime, capsys):
    """At step 0, under way and at the end. Mutation: an evaluation that waits for an end."""
    Path("endless.gin").write_text(ENDLESS)
    assert main(["train", "endless.gin", "--output_dir", "run", "--runtime", runtime]) == 0
    evaluations = [row for row in read_metrics(Path("run")) if row["kind"] == "eval"]
    assert len(evaluations) >= 2 and evaluations[0]["step"] == 0
    assert {(row["episodes"], row["episodes_truncated"], row["length_mean"]) for row in evaluations} == {(2, 2, 50)}
    assert "2 episodes, 2 cut off" in capsys.readouterr().out
    assert "cut off by Evaluation.max_steps" in Path("run/log.txt").read_text()
    assert main(["eval", "run", "--num_episodes", "2"]) == 0
    assert "2 episodes of 50.0 steps, 2 cut off" in capsys.readouterr().out


def test_a_run_saves_before_its_last_evaluation_is_over(monkeypatch):
    """Local: the learner waits for the actor, which plays it. Mutation: saving after it, which a kill comes before."""
    from packtrain.runtime.checkpoint_writer import Saving
    from packtrain.runtime.evaluation_scheduler import Evaluations

    seen, tick, write = [], Evaluations.tick, Saving.write

    def ticked(self):
        if self.under_way is not None:
            last = self.under_way.step >= 400
            if not last or "save" in seen:  # the last one goes on until it is saved beside
                self._current.player._evaluator._limits._max_steps = 1
            seen.extend(["last"] * last)
        tick(self)

    def written(self, state, *more):
        seen.append("save")
        write(self, state, *more)

    monkeypatch.setattr(Evaluations, "tick", ticked)
    monkeypatch.setattr(Saving, "write", written)
    Path("endless.gin").write_text(ENDLESS)
    more = ["--eval_every", "1000000", "--config", "Evaluation.max_steps = 10000000"]
    more += ["--config", "Evaluation.deadline_secs = 20"]
    assert main(["train", "endless.gin", "--output_dir", "run", *more]) == 0
    assert [row["length_mean"] < 1e6 for row in read_metrics(Path("run")) if row["kind"] == "eval"] == [True, True]
    assert "last" in seen[seen.index("save") :], "it is saved while the evaluation plays"


def test_a_long_evaluation_is_saved_beside_in_the_serial_runtime(monkeypatch):
    """Mutation: saving only between two updates."""
    from packtrain.runtime.checkpoint_writer import Saving

    saves, write = [], Saving.write
    monkeypatch.setattr(Saving, "due", property(lambda self: len(saves) < 3))

    def written(self, state, *more):
        saves.append(state["run"]["step"])
        write(self, state, *more)

    monkeypatch.setattr(Saving, "write", written)
    Path("endless.gin").write_text(ENDLESS)
    assert main(["train", "endless.gin", "--output_dir", "run", "--runtime", "serial", "--eval_every", "1000"]) == 0
    assert saves[:3] == [0, 0, 0], "in the ticks of the first evaluation"


@pytest.mark.parametrize("name", ["max_steps", "deadline_secs"])
def test_limits_of_evaluations_may_change_on_resume(name, capsys):
    """They are no part of what makes the run this run."""
    Path("endless.gin").write_text(ENDLESS)
    assert main(["train", "endless.gin", "--output_dir", "run", "--total_steps", "100"]) == 0
    more = ["--config", f"Evaluation.{name} = 40", "--total_steps", "200"]
    assert main(["train", "endless.gin", "--output_dir", "run", *more]) == 0
    assert main(["train", "endless.gin", "--output_dir", "run", "--config", f"Evaluation.{name} = 0"]) == 2
    assert f"Evaluation.{name} = 0" in capsys.readouterr().err
