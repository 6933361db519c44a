"""Planning experiments as configurations say them: what reaches the experiment, what is refused, and runs that stop."""

import json
import os
import runpy
import signal
import sys
from pathlib import Path

import gin
import numpy as np
import pytest
import torch

from packtrain import config
from packtrain.acting.planner_policy import PlannerPolicy, Planning
from packtrain.algorithms.expert_iteration import ExpertIteration
from packtrain.algorithms.gradient import GradientLearner
from packtrain.algorithms.world_model import validation
from packtrain.cli import main
from packtrain.cli.train import RUNTIMES
from packtrain.envs.environment import Environment
from packtrain.errors import ConfigError
from packtrain.memory.episodes import Episodes
from packtrain.metrics.reading import read_metrics
from packtrain.networks.prediction import ConvNet, EnsemblePrediction, Prediction
from packtrain.planning.deterministic_mcts import DeterministicMCTSAgent
from packtrain.planning.random_agent import RandomAgent
from packtrain.planning.shooting import ShootingAgent
from packtrain.planning.traces import Traces
from packtrain.runtime import checkpoint
from packtrain.runtime.experiment import Collect, Evaluation, LearnerUse, Repeat, Run, Streams, Update
from packtrain.runtime.training import Training

CLOCKED = ("wall_s", "steps_per_second", "actor_busy", "learner_busy", "rss_mb")
HANOI = """
include 'planning/base.gin'
n_envs = 3
n_epochs = 4
Runner.env_class = @Hanoi
Hanoi.disks = 2
Hanoi.max_steps = 8
"""
MCTS = """
Runner.agent_class = @DeterministicMCTSAgent
DeterministicMCTSAgent.n_passes = 2
DeterministicMCTSAgent.top_level_epsilon = 0.4
Runner.trainer_class = @SupervisedTrainer
SupervisedTrainer.n_steps_per_epoch = 5
SupervisedTrainer.batch_size = 8
SupervisedTrainer.sampling_hierarchy = ('solved',)
SupervisedTrainer.priority_exponent = 0.5
Prediction.torso = @Mlp()
Mlp.hidden_sizes = (8,)
Runner.n_precollect_epochs = 1
Runner.callback_classes = (@EvaluationCallback, @TraceCallback)
EvaluationCallback.eval_period = 1
EvaluationCallback.n_envs = 2
"""


@pytest.fixture(autouse=True)
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def build(text, *bindings):
    """The experiment of a configuration, as `packtrain train` builds it."""
    path = Path("given.gin")
    path.write_text(text)
    experiment = config.build(config.load([path], list(bindings), {}))
    gin.clear_config()  # what tests build to compare with has defaults again
    config._state = None
    return experiment


def write(text, name="given.gin"):
    Path(name).write_text(text)
    return name


# -- what reaches the experiment


def test_without_anything_it_is_random_episodes_of_cartpole():
    experiment = build("Runner.n_epochs = 3")
    assert experiment.streams == Streams(Environment("CartPole"), 16, 1, True, None)
    assert experiment.policy == Planning(RandomAgent(), Prediction())
    assert experiment.schedule == (Repeat((Collect(None, 1),), 3),)
    assert not experiment.memories and not experiment.learners
    assert experiment.run.total_steps is None and experiment.epochs == 3 and experiment.by_epochs
    assert not experiment.evaluation.every and not experiment.evaluation.every_epochs


def test_every_parameter_reaches_the_experiment():
    """Mutation: any argument of `Runner`, of a trainer or of a callback that is taken and not handed on."""
    experiment = build(
        """
        Runner.env_class = @Sokoban
        Sokoban.height = 6
        Sokoban.width = 7
        Sokoban.num_boxes = 1
        Runner.env_kwargs = {'step_reward': 0.0, 'width': 8}
        Runner.agent_class = @DeterministicMCTSAgent
        DeterministicMCTSAgent.n_passes = 7
        Runner.network_class = @Prediction
        Prediction.torso = @ConvNet()
        Prediction.zero_heads = True
        ConvNet.d_conv = 5
        Runner.n_envs = 9
        Runner.episode_time_limit = 33
        Runner.batch_stepper_class = @LocalBatchStepper
        Runner.trainer_class = @SupervisedTrainer
        SupervisedTrainer.targets = {'value': 'discounted_return'}
        SupervisedTrainer.batch_size = 12
        SupervisedTrainer.n_steps_per_epoch = 13
        SupervisedTrainer.replay_buffer_capacity = 1400
        SupervisedTrainer.sampling_hierarchy = ('solved', 'truncated')
        SupervisedTrainer.discount = 0.5
        SupervisedTrainer.priority_exponent = 0.6
        ExpertIteration.learning_rate = 0.25
        ExpertIteration.weight_decay = 0.125
        Runner.n_epochs = 11
        Runner.n_precollect_epochs = 2
        Runner.callback_classes = (@EvaluationCallback, @TraceCallback)
        EvaluationCallback.n_envs = 4
        EvaluationCallback.eval_period = 5
        EvaluationCallback.episode_time_limit = 44
        EvaluationCallback.agent_kwargs = {'n_passes': 70}
        EvaluationCallback.env_kwargs = {'num_boxes': 2}
        TraceCallback.sample_rate = 0.5
        TraceCallback.max_model_steps = 17
        TraceCallback.max_files = 18
        Runner.total_steps = 12345
        Run.checkpoint_secs = 6.0
        Experiment.seed = 19
        """
    )
    streams = experiment.streams
    assert (streams.num_actors, streams.groups, streams.together, streams.episode_time_limit) == (9, 1, True, 33)
    kwargs = streams.environment.kwargs
    assert streams.environment.id == "Sokoban" and (kwargs["height"], kwargs["width"], kwargs["num_boxes"]) == (6, 8, 1)
    assert kwargs["step_reward"] == 0.0
    assert experiment.policy == Planning(
        DeterministicMCTSAgent(n_passes=7),
        Prediction(ConvNet(d_conv=5), zero_heads=True),
        traces=Traces(0.5, 17, 18),
    )
    learner = ExpertIteration(targets={"value": "discounted_return"}, learning_rate=0.25, weight_decay=0.125)
    assert experiment.learners == {"agent": LearnerUse(learner, "episodes")}
    memory = Episodes(1400, 12, ("solved", "truncated"), (), discount=0.5, priority_exponent=0.6)
    assert experiment.memories == {"episodes": memory}
    collect = Collect(("episodes",), 1)
    assert experiment.schedule == (Repeat((collect,), 2), Repeat((collect, Update("agent", 13)), 11))
    own = Environment("Sokoban", {**kwargs, "num_boxes": 2})
    agent = DeterministicMCTSAgent(n_passes=70)
    assert experiment.evaluation == Evaluation(0, 5, 4, environment=own, episode_time_limit=44, agent=agent)
    assert experiment.run == Run(total_steps=12345, checkpoint_secs=6.0) and experiment.seed == 19


SCOPED = """
Runner.callback_classes = (@EvaluationCallback, @greedy/EvaluationCallback, @other/EvaluationCallback)
EvaluationCallback.eval_period = 2
EvaluationCallback.n_envs = 1
EvaluationCallback.episode_time_limit = 5
greedy/EvaluationCallback.eval_period = 3
greedy/EvaluationCallback.n_envs = 2
greedy/EvaluationCallback.agent_kwargs = {'top_level_epsilon': 0.0}
other/EvaluationCallback.env_kwargs = {'reward_for_invalid_action': -0.5}
"""


def test_several_evaluations_keep_their_own_settings():
    """What a scope does not set is what is set without one. Mutation: the last callback wins."""
    agent = "Runner.agent_class = @DeterministicMCTSAgent\nDeterministicMCTSAgent.top_level_epsilon = 0.4\n"
    experiment = build(HANOI + agent + SCOPED)
    found = experiment.evaluations
    assert list(found) == ["", "greedy", "other"] and found[""] == experiment.evaluation
    periods = {name: (one.every_epochs, one.num_episodes, one.episode_time_limit) for name, one in found.items()}
    assert periods == {"": (2, 1, 5), "greedy": (3, 2, 5), "other": (2, 1, 5)}
    assert found["greedy"].agent.top_level_epsilon == 0.0 and found[""].agent is found["other"].agent is None
    assert (
        found["other"].environment.kwargs["reward_for_invalid_action"] == -0.5 and found["greedy"].environment is None
    )


def test_several_evaluations_have_rows_of_their_own_and_resume():
    """The first one decides the best checkpoint. Mutations: one period for all; rows under one name."""
    agent = "Runner.agent_class = @DeterministicMCTSAgent\nDeterministicMCTSAgent.n_passes = 2\n"
    path = write(HANOI + agent + SCOPED)

    def found(run):
        kept = [row for row in read_metrics(Path(run)) if row["kind"].startswith("eval")]
        return [{name: value for name, value in row.items() if name != "wall_s"} for row in kept]

    assert main(["train", path, "--output_dir", "straight", "--n_epochs", "6"]) == 0
    epochs = {}
    for row in found("straight"):
        epochs.setdefault(row["kind"], []).append((row["epoch"], row["episodes"]))
    assert epochs == {
        "eval": [(2, 1), (4, 1), (6, 1)],
        "eval/greedy": [(3, 2), (6, 2)],
        "eval/other": [(2, 1), (4, 1), (6, 1)],
    }
    best = checkpoint.best(Path("straight/checkpoints"))["score"]
    assert best == max(row["return_mean"] for row in found("straight") if row["kind"] == "eval")
    for epochs in ("3", "6"):
        assert main(["train", path, "--output_dir", "resumed", "--n_epochs", epochs]) == 0
    extra = [row for row in found("resumed") if row not in found("straight")]
    assert all(row["epoch"] == 3 for row in extra), "the end of the first part is evaluated too"
    assert [row for row in found("straight") if row not in found("resumed")] == []
    assert main(["eval", "resumed", "--num_episodes", "1"]) == 0


def test_two_evaluations_of_one_name_are_refused():
    text = HANOI + "Runner.callback_classes = (@EvaluationCallback, @EvaluationCallback)"
    with pytest.raises(ConfigError, match="two EvaluationCallbacks without a scope; give each its own scope"):
        build(text)


def test_the_value_ensemble_of_mcts_is_twenty_networks_with_batches_of_their_own():
    """As published. Mutations: twenty heads on one torso; one batch of 32 for all."""
    experiment = build("include 'tbv/mcts_hanoi.gin'")
    assert experiment.policy.network == EnsemblePrediction(20, (50, 50))
    assert experiment.memories["episodes"].batch_size == 20 * 32
    network = experiment.policy.build_network(experiment.probe())["agent"]
    assert [tuple(w.shape) for name, w in network.named_parameters() if name.endswith("weight")] == [
        (20, 12, 50),
        (20, 50, 50),
        (20, 50, 1),
    ]


def test_the_shipped_mcts_configuration_learns_both_ensembles():
    """Its model and its value networks are ensembles of other sizes. Mutation: the model's size binds the other's."""
    small = ["--n_envs", "2", "--n_epochs", "1", "--n_precollect_epochs", "0", "--episode_time_limit", "5"]
    small += ["--n_model_precollect_episodes", "2", "--n_model_pretrain_epochs", "1", "--model_hidden_sizes", "(8,)"]
    small += ["--model_batch_size", "8", "--model_n_steps_per_epoch", "1", "--n_steps_per_epoch", "2"]
    assert main(["train", "tbv/mcts_hanoi_tbv", "--num_seeds", "2", "--output_dir", "run", *small]) == 0
    (row,) = [row for row in rows("run/seed_1") if "train/value_loss" in row]
    assert np.isfinite(row["train/value_loss"]) and "model_fine_tune/total_loss" in row


def test_a_run_with_another_value_network_is_refused_with_one_line(capsys):
    """A folder of version 0.1 has twenty heads on one network. As it is configured, it goes on."""
    heads = HANOI + MCTS + "DeterministicMCTSAgent.ensemble_size = 4\n"
    apart = "Runner.network_class = @EnsemblePrediction\nEnsemblePrediction.members = 4\n"
    torso = "Prediction.torso = @Mlp()\nMlp.hidden_sizes = (8,)\n"
    assert torso in heads
    assert main(["train", write(heads), "--output_dir", "run", "--n_epochs", "1"]) == 0
    capsys.readouterr()
    assert main(["train", write(heads.replace(torso, apart)), "--output_dir", "run", "--n_epochs", "2"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "run was made with another configuration" in line
    assert main(["train", write(heads), "--output_dir", "run", "--n_epochs", "2"]) == 0


def test_the_td_trainer_learns_n_step_returns():
    experiment = build(
        """
        Runner.n_epochs = 1
        Runner.agent_class = @DeterministicMCTSAgent
        Runner.trainer_class = @TDTrainer
        TDTrainer.temporal_diff_n = 3
        TDTrainer.gamma = 0.75
        TDTrainer.batch_size = 5
        TDTrainer.n_steps_per_epoch = 6
        TDTrainer.replay_buffer_capacity = 700
        TDTrainer.sampling_hierarchy = ('solved',)
        TDTrainer.priority_exponent = 0.25
        """
    )
    memory = Episodes(700, 5, ("solved",), (), discount=0.75, n_step=3, priority_exponent=0.25)
    assert experiment.memories == {"episodes": memory}
    assert experiment.learners["agent"].learner == ExpertIteration(targets={"value": "n_step"})
    assert experiment.schedule[-1].stages[-1] == Update("agent", 6)


def test_what_the_search_says_is_kept_where_it_is_learned():
    experiment = build(
        """
        Runner.n_epochs = 1
        Runner.trainer_class = @SupervisedTrainer
        SupervisedTrainer.targets = {'value': 'value', 'logits': 'action_histogram', 'other': 'solved'}
        """
    )
    assert experiment.memories["episodes"].extras == ("value", "action_histogram")


@pytest.mark.parametrize(
    "spelling",
    [
        "Runner.batch_stepper_class = @packtrain.batch_steppers.LocalBatchStepper",
        "Runner.agent_class = @packtrain.agents.RandomAgent",
        "Runner.trainer_class = @packtrain.trainers.DummyTrainer",
        "Runner.env_class = @packtrain.envs.CartPole",
    ],
)
def test_names_may_be_spelled_out(spelling):
    assert build("Runner.n_epochs = 1", spelling) == build("Runner.n_epochs = 1")


def test_a_spelled_out_agent_takes_its_parameters():
    text = "Runner.n_epochs = 1\nRunner.agent_class = @packtrain.agents.ShootingAgent\n"
    assert build(text, "ShootingAgent.n_rollouts = 3").policy.agent == ShootingAgent(n_rollouts=3)
    assert build(text, "packtrain.agents.ShootingAgent.n_rollouts = 4").policy.agent == ShootingAgent(n_rollouts=4)


def test_batch_steppers_select_the_runtime(tmp_path):
    """Mutation: the name of the parameter's configurable is not looked up."""
    (tmp_path / "a.gin").write_text("Runner.n_epochs = 1\n")
    for name, runtime in (("RayBatchStepper", "cluster"), ("LocalBatchStepper", "local"), ("", "local")):
        config.load([tmp_path / "a.gin"], [f"Runner.batch_stepper_class = @{name}"] if name else [], {})
        assert RUNTIMES[config.bound_name("Runner.batch_stepper_class")] == runtime


# -- what is refused

TRAINED = "Runner.n_epochs = 1\nRunner.agent_class = @DeterministicMCTSAgent\nRunner.trainer_class = @{}\n"
CALLED = "Runner.n_epochs = 1\nRunner.callback_classes = (@{},)\n"


@pytest.mark.parametrize(
    "text, binding, message",
    [
        ("", "Runner.n_envs = 0", "Runner.n_envs = 0 must be at least 1"),
        ("", "Runner.n_envs = 2.5", "Runner.n_envs = 2.5 is not a whole number"),
        ("", "Runner.episode_time_limit = 0", "Runner.episode_time_limit = 0 must be at least 1"),
        ("", "Runner.n_epochs = -1", "Runner.n_epochs = -1 must be at least 0"),
        ("", "Runner.n_precollect_epochs = -1", "Runner.n_precollect_epochs = -1 must be at least 0"),
        ("", "Runner.total_steps = 0", "Runner.total_steps = 0 must be at least 1"),
        ("", "Runner.n_model_pretrain_epochs = 2", "no Runner.model_class"),
        ("", "Runner.n_env = 1", "Runner has no parameter 'n_env'"),
        ("", "Runner.agent_class = @ShotingAgent", "nothing is called 'ShotingAgent'"),
        ("", "ShootingAgent.n_rollouts = 3", "ShootingAgent.n_rollouts is set but not used"),
        (
            "",
            "Runner.callback_classes = (@RandomAgent,)",
            "is not EvaluationCallback, TraceCallback, ",
        ),
        (TRAINED.format("SupervisedTrainer"), "SupervisedTrainer.batch_size = 0", "SupervisedTrainer.batch_size = 0"),
        (
            TRAINED.format("SupervisedTrainer"),
            "SupervisedTrainer.n_steps_per_epoch = 0",
            "SupervisedTrainer.n_steps_per_epoch = 0 must be at least 1",
        ),
        (
            TRAINED.format("SupervisedTrainer"),
            "SupervisedTrainer.replay_buffer_capacity = 0",
            "SupervisedTrainer.replay_buffer_capacity = 0 must be at least 1",
        ),
        (
            TRAINED.format("SupervisedTrainer"),
            "SupervisedTrainer.discount = 1.5",
            "SupervisedTrainer.discount = 1.5 must lie in [0, 1]",
        ),
        (
            TRAINED.format("SupervisedTrainer"),
            "SupervisedTrainer.sampling_hierarchy = ('sloved',)",
            "episodes have no 'sloved'; they have solved, terminated, truncated",
        ),
        (
            TRAINED.format("TDTrainer"),
            "TDTrainer.temporal_diff_n = 0",
            "TDTrainer.temporal_diff_n = 0 must be at least 1",
        ),
        (TRAINED.format("TDTrainer"), "TDTrainer.gamma = -0.5", "TDTrainer.gamma = -0.5 must lie in [0, 1]"),
        (TRAINED.format("TDTrainer"), "TDTrainer.head = 'quality'", "TDTrainer.head = 'quality' must be 'value'"),
        (
            TRAINED.format("SupervisedTrainer"),
            "SupervisedTrainer.targets = {'value': 'n_step'}",
            "use TDTrainer for n-step returns",
        ),
        (
            CALLED.format("EvaluationCallback"),
            "EvaluationCallback.eval_period = 0",
            "EvaluationCallback.eval_period = 0 must be at least 1",
        ),
        (
            CALLED.format("EvaluationCallback"),
            "EvaluationCallback.n_envs = 0",
            "EvaluationCallback.n_envs = 0 must be at least 1",
        ),
        (
            CALLED.format("EvaluationCallback"),
            "EvaluationCallback.agent_kwargs = {'epsilon': 0.0}",
            "EvaluationCallback.agent_kwargs = {'epsilon': 0.0} does not fit RandomAgent",
        ),
        (
            CALLED.format("TraceCallback"),
            "TraceCallback.sample_rate = 2.0",
            "TraceCallback.sample_rate = 2.0 must lie in [0, 1]",
        ),
        (
            CALLED.format("TraceCallback"),
            "TraceCallback.max_files = 0",
            "TraceCallback.max_files = 0 must be at least 1",
        ),
    ],
)
def test_values_that_cannot_be_meant_are_refused(text, binding, message):
    """In the words of the parameter that was set. Mutation: those of what is built from it."""
    with pytest.raises(ConfigError) as caught:
        build(text or "Runner.n_envs = 2", binding)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "bindings, message",
    [
        (["Hanoi.disks = 0"], "Hanoi"),
        (
            ["SupervisedTrainer.targets = {'quality': 'value'}"],
            "names head 'quality', which the planner does not use; it uses value",
        ),
        (
            ["SupervisedTrainer.targets = {'value': 'valeu'}"],
            "'valeu' is a training target, and the planner does not report it",
        ),
        (["SupervisedTrainer.targets = {'value': 'qualities'}"], "its target 'qualities' has 6"),
        (
            ["ExpertIteration.network = 'model'"],
            "ExpertIteration.network = 'model' is not one of the planner's networks ['agent']",
        ),
        (["Runner.env_class = @PointMass"], "is set but not used"),
        (["DeterministicMCTSAgent.n_passes = 0"], "DeterministicMCTSAgent.n_passes = 0 must be at least 1"),
    ],
)
def test_a_command_that_cannot_work_says_one_line(capsys, bindings, message):
    flags = [flag for binding in bindings for flag in ("--config", binding)]
    assert main(["train", write(HANOI + MCTS), "--output_dir", "run", *flags]) == 2
    printed = capsys.readouterr().err.strip()
    assert message in printed and printed.startswith("packtrain: error: ") and len(printed.splitlines()) == 1


# -- runs


def rows(run):
    return [{k: v for k, v in row.items() if k not in CLOCKED} for row in read_metrics(Path(run))]


def saved(run):
    """The newest checkpoint, to the last byte."""
    folder = Path(run) / "checkpoints"
    newest = folder / str(checkpoint.steps(folder)[-1])
    files = {path.name: path.read_bytes() for path in sorted(newest.glob("*.safetensors"))}
    assert "actor.safetensors" in files
    return files


def traced(run):
    return {path.name: path.read_text() for path in sorted((Path(run) / "traces").glob("*"))}


def train(output, *more, text=HANOI + MCTS):
    return main(["train", write(text), "--output_dir", output, *more])


def test_the_reference_command_works_as_it_is_typed(capfd, monkeypatch):
    """`python3 -m packtrain.runner …`, Alpacka's own with our name. The file says 16 environments; the bindings win."""
    given = Path(config.__file__).parent / "configs/planning/shooting_random_cartpole.gin"
    argv = [
        f"--config_file={given}",
        "--config=Runner.episode_time_limit=50",
        "--config=Runner.n_envs=8",
        "--output_dir=./out",
    ]
    monkeypatch.setattr(sys, "argv", ["packtrain.runner", *argv])
    with pytest.raises(SystemExit) as left:
        runpy.run_module("packtrain.runner", run_name="__main__")
    assert left.value.code == 0
    assert capfd.readouterr().out.strip().splitlines()[-1].startswith("finished 400 steps")
    (row,) = [row for row in rows("out") if row["kind"] == "planning"]
    assert row["episode/count"] == 8 and row["episode/return_mean"] == 50.0, "shooting keeps the pole up"
    assert row["epoch"] == 1 and row["agent/simulation_steps_mean"] > 0
    assert "n_envs=8" in Path("out/config.gin").read_text().replace(" ", "")


def test_sokoban_with_temporal_differences_has_the_published_discount():
    """0.98 in the search and in its targets; the other Sokoban configurations have 0.99."""
    for name, discount in (("deterministic_mcts_td_sokoban", 0.98), ("mcts_sokoban_8x8", 0.99), ("mcts_sokoban", 0.99)):
        experiment = build(f"include 'planning/{name}.gin'")
        memory = experiment.memories["episodes"]
        assert experiment.policy.agent.gamma == memory.discount == discount, name


def test_a_run_learns_evaluates_and_writes_searches(capfd):
    """And its config.gin says all of it: the same run again, and an evaluation."""
    assert train("run") == 0
    found = rows("run")
    planning = [row for row in found if row["kind"] == "planning"]
    assert [row["epoch"] for row in planning] == [1, 2, 3, 4, 5], "one of them before learning"
    assert "train/total_loss" not in planning[0] and all("train/total_loss" in row for row in planning[1:])
    assert all(row["episode/count"] == 3 and 0 <= row["episode/solved_rate"] <= 1 for row in planning)
    assert [row["step"] for row in planning] == sorted(row["step"] for row in planning)
    evaluations = [row for row in found if row["kind"] == "eval"]
    assert len(evaluations) == 5 and all(row["episodes"] == 2 for row in evaluations)
    losses = [row["total_loss"] for row in found if row["kind"] == "train" and "total_loss" in row]
    assert len(losses) == 4 and len(set(losses)) == 4
    assert traced("run") and all(json.loads(text)["version"] == 2 for text in traced("run").values())
    assert main(["train", "run/config.gin", "--output_dir", "again"]) == 0
    assert rows("again") == found and saved("again") == saved("run") and traced("again") == traced("run")
    assert main(["train", "run/config.gin", "--output_dir", "run"]) == 0
    assert "run is finished: 5 of 5 epochs" in capfd.readouterr().out
    assert main(["eval", "run", "--num_episodes", "3", "--json"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert result["episodes"] == 3 and result["env"] == "Hanoi"
    assert main(["eval", "run", "--num_episodes", "3", "--json", "--checkpoint", "best"]) == 0


def test_seeds_matter():
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert train(name, "--seed", str(seed)) == 0
    assert saved("a") == saved("b") and rows("a") == rows("b")
    assert saved("a")["weights.safetensors"] != saved("c")["weights.safetensors"]
    assert [row["step"] for row in rows("a")] != [row["step"] for row in rows("c")]


CARTPOLE = """
include 'planning/base.gin'
n_envs = 3
n_epochs = 4
episode_time_limit = 12
Runner.env_class = @CartPole
"""
OTHERS = {
    "mcts": HANOI + MCTS,
    "stochastic": HANOI
    + """
Runner.agent_class = @StochasticMCTSAgent
StochasticMCTSAgent.n_passes = 3
StochasticMCTSAgent.sampling_temperature = 0.5
StochasticMCTSAgent.new_leaf_rater = @QualityNetworkNewLeafRater()
QualityNetworkNewLeafRater.use_policy = True
Runner.trainer_class = @SupervisedTrainer
SupervisedTrainer.targets = {'quality': 'qualities', 'logits': 'action_histogram_smooth'}
SupervisedTrainer.n_steps_per_epoch = 4
SupervisedTrainer.batch_size = 8
""",
    "policy": CARTPOLE
    + """
Runner.agent_class = @SoftmaxAgent
SoftmaxAgent.with_critic = True
Runner.trainer_class = @TDTrainer
TDTrainer.temporal_diff_n = 2
TDTrainer.gamma = 0.9
TDTrainer.n_steps_per_epoch = 4
TDTrainer.batch_size = 8
Runner.callback_classes = (@EvaluationCallback,)
EvaluationCallback.eval_period = 1
EvaluationCallback.n_envs = 4
EvaluationCallback.episode_time_limit = 60
""",
    "verifying": HANOI
    + """
Runner.agent_class = @DeterministicMCTSAgent
DeterministicMCTSAgent.n_passes = 2
DeterministicMCTSAgent.bonus_quantile_threshold = 0.5
Runner.trainer_class = @SupervisedTrainer
SupervisedTrainer.n_steps_per_epoch = 3
SupervisedTrainer.batch_size = 8
Runner.model_class = @LearnedModel
LearnedModel.members = 3
LearnedModel.mask_size = 2
Runner.model_trainer_class = @WorldModelTrainer
WorldModelTrainer.members = 3
WorldModelTrainer.batch_size = 8
WorldModelTrainer.n_steps_per_epoch = 4
WorldModel.ensemble = @EnsembleMlp()
EnsembleMlp.members = 3
EnsembleMlp.hidden_sizes = (8,)
Runner.n_model_precollect_episodes = 4
Runner.n_model_pretrain_epochs = 2
Runner.fine_tune_on_agent_data = True
""",
    "shooting": CARTPOLE
    + """
Runner.agent_class = @ShootingAgent
ShootingAgent.n_rollouts = 4
ShootingAgent.rollout_time_limit = 5
""",
}


@pytest.mark.parametrize("name", OTHERS)
def test_two_epochs_and_two_more_are_four(name):
    """To the last byte of weights, moments, memories and generators, and in every row.

    Mutations: leaving the memory, its generator, the planner's count of decisions or the priorities out of a
    checkpoint; an evaluation that depends on those before it.
    """
    assert train("straight", text=OTHERS[name]) == 0
    for epochs in ("2", "4"):
        assert train("resumed", "--n_epochs", epochs, text=OTHERS[name]) == 0
    assert rows("resumed") == rows("straight")
    assert saved("resumed") == saved("straight")
    assert traced("resumed") == traced("straight")


@pytest.mark.parametrize("name", ["mcts", "policy"])
@pytest.mark.parametrize("epoch", [0, 2])
def test_a_run_stopped_within_an_epoch_loses_that_epoch_alone(monkeypatch, capfd, name, epoch):
    """SIGTERM while episodes are played; then the same command goes on, and ends as if nothing had happened.

    Mutations: saving where the environments stand instead of where the epoch began; keeping half an epoch.
    """
    assert train("straight", text=OTHERS[name]) == 0
    act, seen = Training.act, []

    def interrupted(self):
        act(self)
        seen.append(self.progress.epoch)
        if seen.count(epoch) == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "act", interrupted)
        assert train("stopped", text=OTHERS[name]) == 128 + signal.SIGTERM
    assert seen.count(epoch) == 3 and max(seen) == epoch
    assert "stopped by SIGTERM" in capfd.readouterr().out
    planning = [row["epoch"] for row in rows("stopped") if row["kind"] == "planning"]
    assert planning == list(range(1, epoch + 1)), "what was finished stays"
    assert train("stopped", text=OTHERS[name]) == 0
    assert rows("stopped") == rows("straight")
    assert saved("stopped") == saved("straight")


@pytest.mark.parametrize("name, at", [("mcts", 2), ("mcts", 5), ("policy", 2), ("verifying", 2), ("verifying", 13)])
def test_a_run_stopped_between_two_updates_goes_on_as_if_it_had_not_been(name, at, monkeypatch, capfd):
    """SIGTERM while a network learns, in a stage or at the end of one: the updates left are made by who goes on.

    Mutations: all updates of an epoch before the run stops; the updates made so far once more; an epoch's row without
    what was known of it before.
    """
    assert train("straight", text=OTHERS[name]) == 0
    update, made = Training.learn, []

    def interrupted(self, learner, count=1):
        updated = update(self, learner, count)
        made.append(self.progress.epoch)
        if len(made) == at:
            os.kill(os.getpid(), signal.SIGTERM)
        return updated

    with monkeypatch.context() as patch:
        patch.setattr(Training, "learn", interrupted)
        assert train("stopped", text=OTHERS[name]) == 128 + signal.SIGTERM
    assert len(made) == at, "no update more"
    assert train("stopped", text=OTHERS[name]) == 0
    assert rows("stopped") == rows("straight")
    assert saved("stopped") == saved("straight")


def test_a_model_is_learned_before_it_is_searched_in():
    """Two rounds of random episodes for four, pre-training, then epochs in which both networks learn.

    Mutation: let random episodes into the value network's memory; they have no search to learn from.
    """
    experiment = build(OTHERS["verifying"])
    model, agent = Update("model", 4), Update("agent", 3)
    assert experiment.schedule == (
        Repeat((Collect("model", 1, "random"),), 2),
        Repeat((model,), 2),
        Repeat((Collect(("episodes", "model"), 1), agent, model), 4),
    )
    assert train("run", text=OTHERS["verifying"]) == 0
    planning = [row for row in rows("run") if row["kind"] == "planning"]
    assert [row["episode/count"] for row in planning] == [3, 3, 0, 0, 3, 3, 3, 3]
    assert ["model_pretrain/total_loss" in row for row in planning] == [False] * 2 + [True] * 2 + [False] * 4
    assert ["model_fine_tune/total_loss" in row for row in planning] == [False] * 4 + [True] * 4
    assert ["train/total_loss" in row for row in planning] == [False] * 4 + [True] * 4
    assert all(0 <= row["agent/verified_mean"] <= 1 for row in planning[4:])


def test_random_data_and_pre_training_are_no_epochs_of_schedules_and_evaluations(monkeypatch):
    """A schedule over two epochs begins with the first planned epoch, and so does the count towards an evaluation.

    Mutations: count epochs in which only the model learns; evaluate after such an epoch.
    """
    seen, begin = [], PlannerPolicy.begin_epoch

    def watched(self, epoch, total, version=None):
        begin(self, epoch, total, version)
        if version is None:  # not in an evaluation
            seen.append((total, epoch))

    monkeypatch.setattr(PlannerPolicy, "begin_epoch", watched)
    more = ("Runner.callback_classes = (@EvaluationCallback,)", "EvaluationCallback.eval_period = 2")
    path = write("\n".join([OTHERS["verifying"], *more, "EvaluationCallback.n_envs = 1"]))
    assert main(["train", path, "--output_dir", "run", "--n_precollect_epochs", "1"]) == 0
    # two rounds of random data, two epochs of pre-training, one that only collects, four that learn
    assert seen == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 1), (7, 2), (8, 3)]
    found = [row["epoch"] for row in read_metrics(Path("run")) if row["kind"] == "eval"]
    assert found == [6, 8, 9], "after two and four planned epochs, and at the end"


def test_a_model_is_measured_on_what_it_has_not_learned_from():
    """Once an epoch in which it learns, with the weights after it, on the episodes that are held out by then.

    Mutations: measure on a batch of what is learned from; before the updates; after the memory was emptied.
    """
    more = "WorldModelTrainer.validation_share = 0.5\nRunner.clear_model_replay_after_pretrain = True\n"
    more += "WorldModelLearning.learning_rate = 0.02\n"  # to make a difference within an epoch
    text = OTHERS["verifying"].replace("n_epochs = 4", "n_epochs = 0") + more
    assert build(text).memories["model"] == Episodes(500_000, 24, ("solved",), validation_share=0.5)
    assert train("run", text=text.replace("after_pretrain = True", "after_pretrain = False")) == 0
    planning = [row for row in rows("run") if row["kind"] == "planning"]
    found = [{n: v for n, v in row.items() if "/validation_" in n} for row in planning]
    assert not found[0] and not found[1] and found[2] != found[3]
    (_, state), experiment = checkpoint.load_newest(Path("run/checkpoints")), build(text)
    memory = experiment.memories["model"].build([3], 0, torch.device("cpu"))
    memory.restore(state["memories"]["model"])
    network = experiment.policy.build_network(experiment.probe())
    network.load_state_dict(state["weights"]["model"])
    held_out = memory.view("held_out").trajectory
    assert 0 < held_out.reward.numel() <= 3 * 8 and len(memory) == 6 * 8 - held_out.reward.numel()
    want = {f"model_pretrain/validation_{n}": float(v) for n, v in validation(network["model"], held_out).items()}
    assert found[3] == pytest.approx(want) and 0 <= want["model_pretrain/validation_perfect_next_observation"] <= 1
    assert train("cleared", text=text) == 0
    assert [row for row in rows("cleared") if row["kind"] == "planning"][3] == planning[3]
    with pytest.raises(ConfigError, match=r"WorldModelTrainer.validation_share = 0.75 must lie in \[0, 0.5\]"):
        build(text, "WorldModelTrainer.validation_share = 0.75")


def test_a_changed_search_is_another_run(capsys):
    """What may change on resume is the length, not the planner. Mutation: leaving the planner out of the identity."""
    assert train("run", "--n_epochs", "1") == 0
    assert train("run", "--config", "DeterministicMCTSAgent.n_passes = 3") == 2
    assert "DeterministicMCTSAgent.n_passes: 2 → 3" in capsys.readouterr().err
    assert train("run", "--config", "EvaluationCallback.n_envs = 3") == 0


def test_an_agent_is_reset_by_its_schedule():
    """Other weights, an empty memory, a pause without learning. Mutations: the memory kept; the weights kept."""
    reset = OTHERS["mcts"] + "\nRunner.agent_reset_schedule = (2,)\nRunner.n_precollect_epochs = 1\n"
    stages = build(reset.replace("n_epochs = 4", "n_epochs = 6", 1)).schedule[-3:]
    assert [stage.times for stage in stages] == [2, 1, 3] and stages[0].renew == ("agent",)
    assert [stage.learns for stage in stages] == [True, False, True]
    assert train("reset", "--n_epochs", "4", text=reset) == 0
    _, state = checkpoint.load_newest(Path("reset/checkpoints"))
    kept = sum(int(np.sum(bucket["ring"]["is_step"])) for bucket in state["memories"]["episodes"]["buckets"])
    steps = [row["env_steps"] for row in rows("reset") if row["kind"] == "train"]
    assert kept == steps[-1] - steps[2] < steps[-1]  # one epoch collects, two learn, then it is reset
    assert state["run"]["repeats"] == [1, 2, 1, 1]


def test_a_learner_that_is_reset_has_other_weights_and_no_momentum():
    """Only its own parameters change. Mutation: the optimiser's state kept."""
    network = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 1), "b": torch.nn.Linear(2, 1)})
    optimiser = torch.optim.Adam(network["a"].parameters(), 0.1)
    learner = GradientLearner(network, lambda *_: None, optimiser, lambda _: 0.1, 1.0)
    network["a"](torch.ones(1, 2)).sum().backward()
    optimiser.step()
    other = {name: leaf.clone() for name, leaf in network["b"].state_dict().items()}
    fresh = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 1), "b": torch.nn.Linear(2, 1)}).state_dict()
    learner.reset(fresh)
    assert torch.equal(network["a"].weight, fresh["a.weight"])
    assert all(torch.equal(network["b"].state_dict()[name], leaf) for name, leaf in other.items())
    assert all(not leaf.any() for moments in optimiser.state.values() for leaf in moments.values())


def test_a_schedule_of_resets_that_cannot_be_is_refused():
    text = OTHERS["mcts"] + "\nRunner.agent_reset_schedule = {}\n"
    for resets in ("(0,)", "(3, 3)", "(4,)"):
        with pytest.raises(ConfigError, match="agent_reset_schedule"):
            build(text.format(resets))
    with pytest.raises(ConfigError, match="no learner to reset"):
        build("Runner.agent_reset_schedule = (1,)\nRunner.n_epochs = 4")
