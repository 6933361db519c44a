"""docs/planning.md and the planning parts of docs/coming-from.md say what is so; their examples run as they stand."""

import ast
import dataclasses
import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from packtrain import alpacka_runner, config, knobs, value_types
from packtrain.acting.inference import Inference
from packtrain.cli import main
from packtrain.envs.bit_flipper import BitFlipper
from packtrain.envs.point_mass import PointMass
from packtrain.networks.prediction import Prediction
from packtrain.planning.bandit import BanditAgent
from packtrain.planning.best_first import BestFirstSearchAgent
from packtrain.planning.continuous_shooting import CEMAgent, ContinuousShootingAgent, MPPIAgent
from packtrain.planning.deterministic_mcts import DeterministicMCTSAgent
from packtrain.planning.leaf_evaluators import QualityNetworkNewLeafRater, ValueNetworkNewLeafRater
from packtrain.planning.model import CoreModel
from packtrain.planning.planner import Roots
from packtrain.planning.policy import EpsilonGreedyAgent, SoftmaxAgent
from packtrain.planning.random_agent import RandomAgent
from packtrain.planning.shooting import ShootingAgent
from packtrain.planning.stochastic_mcts import StochasticMCTSAgent
from packtrain.planning.tabular_search import FrontierAgent

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "planning.md").read_text()
OLD = (ROOT / "docs" / "coming-from.md").read_text()
OLD = OLD[OLD.index("## Coming from Alpacka") :]
PLANNING = sorted(name.removeprefix("planning/") for name in knobs.shipped() if name.startswith("planning/"))

# The parameters of both forks' Runner, as their documentation lists them.
RUNNER = (
    "output_dir env_class env_kwargs agent_class network_class n_envs episode_time_limit batch_stepper_class "
    "trainer_class n_epochs n_precollect_epochs callback_classes model_class model_network_class model_trainer_class "
    "n_envs_random_episodes n_model_precollect_episodes n_model_pretrain_epochs fine_tune_on_agent_data "
    "clear_model_replay_after_pretrain agent_reset_schedule log_rollout_every_n_epochs log_heat_map_every_n_epochs "
    "log_other_images_every_n_epochs log_detailed_heat_map log_false_positive_images log_n_top_transitions "
    "rolling_metrics log_graph_distances log_n_experienced_states"
).split()

# Those that belong to learned models: described with them, wherever they are already.
RULE = {"bonus_quantile_threshold", "rejection_probability", "bonus_queue_length", "noise_quantile"}
LEARNED = {
    "Runner": set(RUNNER[RUNNER.index("model_class") :]),
    "DeterministicMCTSAgent": RULE,
    "BestFirstSearchAgent": RULE | {"filter_bonus_on_traps", "plan_to_verify", "doubt_octaves"},
}


# -- reading the pages


def section(title: str, page: str = PAGE) -> str:
    match = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#{{1,3}} |\Z)", page, re.M | re.S)
    assert match, title
    return match[1]


def codes(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def tables(text: str) -> list[list[list[str]]]:
    """The tables of a text: rows of cells, the heading first."""
    found = re.findall(r"((?:^\|.*\n)+)", text, re.M)
    rows = [[line.strip().strip("|").split(" | ") for line in one.splitlines()] for one in found]
    return [[[cell.strip() for cell in row] for row in one if not set("".join(row)) <= set("- |")] for one in rows]


def example(name: str) -> str:
    match = re.search(rf"<!-- test: {re.escape(name)} -->\n```\w*\n(.*?)```", PAGE, re.S)
    assert match, name
    assert len(match[1].splitlines()) < 40, "the page promises under 40 lines"
    return match[1]


# -- the examples, as a user would run them


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def run(folder, name, *flags, ends=("py", "gin")):
    """Write an example's files, train, evaluate; the rows of its metrics."""
    for end in ends:
        (folder / f"{name}.{end}").write_text(example(f"{name}.{end}"))
    assert main(["train", f"{name}.gin", "--output_dir", "run", *flags]) == 0
    assert main(["eval", "run", "--num_episodes", "2", "--trust-config"]) == 0
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "planning"]


def test_plan_in_your_own_environment(folder):
    """All boards are solved. Random presses solve one in fifteen; one that does not restore is refused."""
    (row,) = run(folder, "lights_out")
    assert row["episode/solved_rate"] == 1 and row["episode/length_mean"] < 10


def test_write_your_own_agent(folder):
    """The value is learned: poles stay up for longer than random actions keep them up, 22 steps."""
    rows = run(folder, "look_ahead", "--n_epochs", "5")
    assert max(row["episode/length_mean"] for row in rows) > 60
    assert {"agent/value_mean", "agent/qualities_mean", "train/value_loss"} <= set(rows[-1])


TINY = ["--n_envs", "2", "--n_epochs", "2", "--n_passes", "2", "--n_steps_per_epoch", "5", "--batch_size", "8"]
TINY += ["--episode_time_limit", "8", "--eval_period", "2", "--eval_episodes", "1"]


def test_write_your_own_trainer(folder):
    """Its loss is the one in the rows, and the network moves."""
    rows = run(folder, "huber", *TINY)
    assert all(0 < row["train/total_loss"] < 10 for row in rows)
    assert all(row["train/grad_norm"] > 0 for row in rows)


def test_write_your_own_network(folder):
    """Its width is that of the head's weights in the checkpoint."""
    from safetensors.torch import load_file

    run(folder, "cells", *TINY, "--d_conv", "3", "--boards", "2")
    (weights,) = (folder / "run" / "checkpoints").glob("*/weights.safetensors")
    shapes = {name: tuple(leaf.shape) for name, leaf in load_file(weights).items()}
    assert [shape for name, shape in shapes.items() if name.endswith("heads.value.weight")] == [(1, 6)]
    assert sum("torso.layers" in name and name.endswith("weight") for name in shapes) == 3


def test_search_on_the_device(folder, capsys):
    """States next to the goal are worth more than none. Mutation: rewards of edges not backed up."""
    import runpy

    (folder / "on_device.py").write_text(example("on_device.py"))
    runpy.run_path("on_device.py")
    assert float(capsys.readouterr().out.split()[-1]) > 0.3


def test_a_whole_network_of_the_users_own(folder):
    """Its towers are what the checkpoint holds, and the search's value is learned with it."""
    from safetensors.torch import load_file

    rows = run(folder, "two_towers", *TINY)
    (weights,) = (folder / "run" / "checkpoints").glob("*/weights.safetensors")
    shapes = {tuple(leaf.shape) for name, leaf in load_file(weights).items() if name.endswith("heads.value.0.weight")}
    assert shapes == {(16, 9)}
    assert rows[-1]["train/value_loss"] > 0 and rows[-1]["train/grad_norm"] > 0


def test_a_network_without_what_trainers_use_is_refused(folder, capsys):
    """One line, and exit code 2. Mutation: the check left out, which fails later with an AttributeError."""
    text = example("two_towers.py").replace("    on_batch = forward\n", "").replace("TwoTowers", "HalfTowers")
    (folder / "half_a_network.py").write_text(text)
    text = example("two_towers.gin").replace("import two_towers", "import half_a_network")
    (folder / "half.gin").write_text(text.replace("TwoTowers", "HalfTowers"))
    assert main(["train", "half.gin", "--output_dir", "run"]) == 2
    assert "HalfTowers.build returned a module without 'on_batch'" in capsys.readouterr().err


def test_actions_as_inputs(folder, capsys):
    """Poles stay up for longer than random actions keep them up, 22 steps; held-out losses are in the rows.

    Mutation: the learner appends another action than the one taken; then nothing is learned.
    """
    rows = run(folder, "ask_each")
    assert max(row["episode/length_mean"] for row in rows) > 50
    assert rows[-1]["train/validation_quality_loss"] > 0 and "train/validation_total_loss" not in rows[-1]
    wrong = "SupervisedTrainer.inputs = 'observation'"
    assert main(["train", "ask_each.gin", "--output_dir", "other", "--config", wrong]) == 2
    assert "AskEachAgent sends its network 'observation_and_action'" in capsys.readouterr().err


def test_a_policy_network_as_prior(folder):
    """It learns, and the search gains by it. Mutations: proposals not tried; another target taught."""
    rows = run(folder, "prior", "--n_epochs", "4", ends=("gin",))
    assert rows[-1]["train/action_loss"] < rows[0]["train/action_loss"]
    assert rows[-1]["episode/return_mean"] > -3  # without the prior −3.1 to −5.1 in each of 36 epochs


def test_a_learned_model_of_a_users_environment(folder):
    """Search in the model finds the lamp and the way back; random episodes seldom do."""
    rows = run(folder, "ring")
    planned = [row for row in rows if "agent/expansions_mean" in row]
    assert planned[-1]["episode/solved_rate"] == 1 and planned[-1]["episode/length_mean"] < 20
    assert np.mean([row["episode/solved_rate"] for row in rows[:10]]) < 0.7


# -- parameters, defaults, extras


def defaults(owner: str) -> dict[str, str]:
    """Every parameter of a configurable with its default, as configurations write it."""
    target = getattr(alpacka_runner, owner, None) or gin_class(owner)
    if dataclasses.is_dataclass(target):
        made = {
            field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            for field in dataclasses.fields(target)
        }
    else:
        made = {name: parameter.default for name, parameter in inspect.signature(target).parameters.items()}
    return {name: value_types.written(value) for name, value in made.items() if name not in LEARNED.get(owner, ())}


def gin_class(name: str):
    import gin

    return inspect.unwrap(gin.get_configurable(name))


PARAMETERS = []
for heading in re.findall(r"^#{2,3} (.*)$", PAGE, re.M):
    for one in tables(section(heading)):
        if one[0][0].startswith("parameter") and heading != "How an epoch goes":
            PARAMETERS.append((one[0][0].removeprefix("parameter of ").replace("parameter", heading), one[1:]))


def test_every_agent_and_trainer_has_its_table():
    """Mutation: a table headed otherwise would not be compared."""
    owners = [owner for owner, _ in PARAMETERS]
    assert len(owners) == len(set(owners)) >= 15
    agents = {name for name in config._signatures if name.endswith("Agent") and hasattr(gin_class(name), "heads")}
    ours = {name for name in agents if gin_class(name).__module__.startswith("packtrain.")}
    assert ours | {"SupervisedTrainer", "TDTrainer", "ExpertIteration", "EvaluationCallback", "TraceCallback"} <= set(
        owners
    )


@pytest.mark.parametrize("owner, rows", PARAMETERS, ids=[owner for owner, _ in PARAMETERS])
def test_parameters_and_defaults_are_those_of_the_code(owner, rows):
    """Mutations: a parameter added, renamed or given another default."""
    assert {codes(row[0])[0]: codes(row[1])[0] for row in rows} == defaults(owner)


def test_runner_has_the_parameters_that_the_page_says():
    rows = [one for one in tables(section("How an epoch goes")) if one[0][0] == "parameter"][0][1:]
    said = {codes(row[0])[0].removeprefix("Runner."): codes(row[1])[0] for row in rows}
    assert said == defaults("Runner")


def plans(agent, core):
    """What an agent reports of two decisions in two columns."""
    torch.manual_seed(0)
    model, rng = CoreModel(core), np.random.default_rng(0)
    heads = agent.heads(core.action_space)
    networks = {name: Prediction().build(core.observation_space, wanted) for name, wanted in heads.items()}
    planner, inference, columns = agent.build(model, 2, 0), Inference(networks), np.arange(2)
    planner.begin(columns, 0)
    states = core.initial(2, rng)
    for _ in range(2):
        plan = inference.run(planner.plan(Roots(columns, states, core.observe(states))))
        states, rewards, terminated, _ = core.step(states, plan.action, rng)
        planner.feedback(columns, states, rewards, terminated)
    return set(plan.extras)


SHORT = {"n_rollouts": 4, "rollout_time_limit": 3}
CRITIC = SoftmaxAgent(with_critic=True)
EXTRAS = {
    "RandomAgent": [RandomAgent()],
    "SoftmaxAgent and EpsilonGreedyAgent": [CRITIC, EpsilonGreedyAgent()],
    "ShootingAgent": [ShootingAgent(**SHORT), ShootingAgent(**SHORT, rollout_agent=CRITIC)],
    "BanditAgent": [BanditAgent(**SHORT)],
    "StochasticMCTSAgent": [
        StochasticMCTSAgent(new_leaf_rater=ValueNetworkNewLeafRater()),
        StochasticMCTSAgent(new_leaf_rater=QualityNetworkNewLeafRater(use_policy=True), root_selection="gumbel"),
    ],
    "DeterministicMCTSAgent": [DeterministicMCTSAgent(), DeterministicMCTSAgent(ensemble_size=3)],
    "BestFirstSearchAgent": [BestFirstSearchAgent()],
    "FrontierAgent": [FrontierAgent()],
    "Continuous actions": [
        ContinuousShootingAgent(n_rollouts=4, horizon=2),
        CEMAgent(horizon=2),
        MPPIAgent(horizon=2, prior_candidates=2),
    ],
}


@pytest.mark.parametrize("title", EXTRAS)
def test_extras_are_those_that_the_page_says(title):
    """Mutation: an extra renamed. Extras of the network are named once, at shooting."""
    core = PointMass() if title == "Continuous actions" else BitFlipper(bits=4)
    found = set.union(*(plans(agent, core) for agent in EXTRAS[title]))
    paragraph = re.search(r"Extras: (.*?)(?:\n\n|\Z)", section(title), re.S)[1]
    said = {code for code in codes(paragraph) if re.fullmatch(r"[a-z_]+", code)}
    assert said == found


@pytest.mark.parametrize("page", [PAGE, OLD], ids=["planning", "coming-from"])
def test_parameters_named_in_the_text_exist(page):
    """Mutation: `Owner.parameter` in backticks, or at the start of a line of a gin block, that nothing has."""
    named = codes(re.sub(r"^```.*?^```", "", page, flags=re.M | re.S))
    named += re.findall(r"^([A-Z]\w+\.[a-z_]+) = ", page, re.M)
    pairs = [match.groups() for code in named if (match := re.match(r"([A-Z]\w*)\.([a-z]\w*)(?: = .*)?$", code))]
    own = {"LookAheadAgent", "Huber", "HuberTrainer", "Cells", "TwoTowers"}  # the page's examples
    old = {
        "Agent",
        "Runner",
        "RMSprop",
        "Adam",
    }  # as they were called there; our parameters of Runner are compared above
    wrong = [(a, b) for a, b in pairs if a not in own | old and b not in config._signatures.get(a, ())]
    assert len(pairs) > 20 and not wrong


# -- environments


def test_environments_and_their_options():
    """Mutation: an environment or an option added or renamed."""
    rows = [one for one in tables(section("Environments")) if one[0][0] == "name"][0][1:]
    said = {codes(row[0])[0].removeprefix("@"): set(codes(row[-1])) for row in rows}
    assert said == {name: set(inspect.signature(made).parameters) for name, made in alpacka_runner.ENVIRONMENTS.items()}


def test_maps_and_their_sizes():
    """The numbers are those that the search in tests/envs/test_toy_mr.py arrives at."""
    text = (ROOT / "tests" / "envs" / "test_toy_mr.py").read_text()
    sizes = ast.literal_eval(re.search(r"^SIZES = (\{.*?^\})", text, re.M | re.S)[1])
    rows = [one for one in tables(section("Environments")) if one[0][0] == "map"][0][1:]
    said = {codes(row[0])[0]: tuple(None if cell == "none" else int(cell) for cell in row[1:]) for row in rows}
    assert said == sizes


def test_the_map_on_the_page_can_be_played():
    from packtrain.envs.toy_mr_map import parse_map

    (drawn,) = re.findall(r"^```\n(; The key.*?)```", section("Environments"), re.M | re.S)
    assert len(parse_map(drawn).places) == 3


# -- configurations, commands, answers


def test_every_configuration_is_listed():
    """Mutation: a configuration shipped and not listed, or listed with another environment or agent."""
    rows = tables(PAGE)[0][1:]
    listed = {codes(row[0])[0]: row for row in rows}
    assert {name.removeprefix("planning/") for name in listed} == {n for n in PLANNING if not n.endswith("base")}
    for name, row in listed.items():
        experiment = config.build(config.load([knobs.CONFIGS / f"{name}.gin"], [], {}))
        agent = type(experiment.policy.agent).__name__
        assert agent in row[2] or row[2].startswith("the same"), name
        assert (row[3] == "nothing") == (not experiment.learners), name


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Metric rows of a tiny run that learns, and its trace."""
    folder = tmp_path_factory.mktemp("planning")
    traced = "Runner.callback_classes = (@EvaluationCallback, @TraceCallback)"
    argv = ["train", "planning/mcts_hanoi", "--output_dir", str(folder / "run"), "--disks", "2", *TINY]
    assert main([*argv, "--weight_decay", "0.001", "--config", traced]) == 0
    text = (folder / "run" / "metrics.jsonl").read_text()
    trace = json.loads(sorted((folder / "run" / "traces").glob("*.json"))[0].read_text())
    return [json.loads(line) for line in text.splitlines()], trace


def test_metrics_have_their_names(rows):
    """Mutation: a metric renamed."""
    written = {kind: set.union(*(set(row) for row in rows[0] if row["kind"] == kind)) for kind in ("train", "planning")}
    written["eval"] = set.union(*(set(row) for row in rows[0] if row["kind"] == "eval"))
    text = section("Metrics")
    named = [code for row in tables(text)[0][1:] for code in codes(row[0])]
    named += [code for row in tables(text)[0][1:] for code in codes(row[1]) if "/" in code]
    named = [code.replace("HEAD", "value").replace("NAME_max", "depth_max").replace("NAME", "value") for code in named]
    assert len(named) > 12 and set(named) <= written["planning"]
    _, _, rest = text.partition("Rows of kind `train`")
    train, _, evaluated = rest.partition("rows of kind `eval`")
    assert set(codes(train)) <= written["train"] and set(codes(evaluated)) <= written["eval"]


def test_traces_have_their_form(rows):
    """Mutation: a key of the file renamed, at any level."""

    def keys(tree):
        if isinstance(tree, dict):
            return set(tree) | set().union(*map(keys, tree.values()))
        return set().union(*map(keys, tree)) if isinstance(tree, list) else set()

    said = set(re.findall(r'"([a-z]\w*)":', re.search(r"^```\n(\{.*?)```", section("Traces"), re.M | re.S)[1]))
    trace = rows[1]
    found = {key for key in keys(trace) if not key.isdecimal()}
    extras = {key for step in trace["steps"] for key in step["extras"]}
    assert said - extras == found - extras and "value" in said & extras


ANSWERS = [
    ["Runner.env_class = @BinPacking"],
    ["Runner.env_class = @Environment", "Environment.id = 'Blackjack-v1'"],
    ["DeterministicMCTSAgent.n_passes = 0"],
    ["ShootingAgent.n_rollouts = 5"],
    ["Runner.trainer_class = @SupervisedTrainer", "SupervisedTrainer.targets = {'logits': 'action_histogram'}"],
    ["Hanoi.disks = 0"],
]


def test_bad_input_is_answered_as_the_page_says(folder, capsys):
    """Mutation: another wording, or another exit code."""
    text = "include 'planning/base.gin'\nRunner.env_class = @Hanoi\nRunner.agent_class = @DeterministicMCTSAgent\n"
    (folder / "bad.gin").write_text(text + "Runner.n_epochs = 1\n")
    said = [codes(row[1])[0] for row in tables(section("Bad input"))[0][1:]]
    for answer, bindings in zip(said, ANSWERS, strict=True):
        flags = [flag for binding in bindings for flag in ("--config", binding)]
        assert main(["train", "bad.gin", "--output_dir", "bad", "--episode_time_limit", "5", *flags]) == 2
        assert capsys.readouterr().err.startswith(f"packtrain: error: {answer}")


# -- coming from


def test_every_parameter_of_the_old_runner_has_its_row():
    """Mutation: ours called otherwise, or one that is there called not yet."""
    rows = tables(section("Parameters of Runner", OLD))[0][1:]
    said = {code: row[1] for row in rows for code in codes(row[0])}
    assert list(said) == RUNNER
    for name, ours in said.items():
        if name in LEARNED["Runner"]:
            continue
        assert (f"`Runner.{name}`" == ours) == (name in config._signatures["Runner"]), name


def test_configurations_of_old_lead_to_some_that_are_shipped():
    text = re.sub(r"^```.*?^```", "", OLD, flags=re.M | re.S)
    named = [word for code in codes(text) for word in re.findall(r"planning/\w+", code)]
    assert len(named) > 8 and {name.removeprefix("planning/") for name in named} <= set(PLANNING) | {"NAME"}


def test_configurations_in_rows_are_shipped_and_can_be_built(folder):
    """Those beside Alpacka's and Trust-but-Verify's. Mutations: one renamed; "not yet" in a row."""
    rows = "\n".join(line for line in OLD[: OLD.index("## Coming from STEVE")].splitlines() if line.startswith("|"))
    names = set(re.findall(r"`((?:planning|tbv)/[a-z]\w+)`", rows))
    assert len(names) >= 20 and "not yet" not in rows
    for name in sorted(names):
        path, _ = knobs.find_config(name)
        assert config.build(config.load([path], [], {})).streams.environment.id, name


def test_agents_that_are_called_the_same_are():
    """Mutation: one of the middle column that nothing is called."""
    for title in ("Agents", "Trainers and networks"):
        for row in tables(section(title, OLD))[0][1:]:
            for code in codes(row[1]):
                name = code.partition(".")[0]
                if re.fullmatch(r"[A-Z]\w+", name):
                    assert name in config._signatures, code


def test_the_reference_command_of_alpacka_runs(folder, capsys):
    """As its README has it, but for the module's name. Eight environments, at most 50 steps each."""
    flags = "--config_file=alpacka/configs/shooting_random_cartpole.gin --config=Runner.episode_time_limit=50 "
    argv = ["train", *(flags + "--config=Runner.n_envs=8 --output_dir=./out").split()]
    assert main([*argv, "--n_rollouts", "4", "--rollout_time_limit", "5"]) == 0
    assert "planning/shooting_random_cartpole" in capsys.readouterr().err
    row = json.loads((folder / "out" / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["episode/count"] == 8 and row["step"] <= 8 * 50
