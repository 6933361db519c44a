"""Parameters of the graph searches that change from epoch to epoch."""

import numpy as np
import pytest

from packtrain.cli import main
from packtrain.envs.hanoi import Hanoi
from packtrain.errors import ConfigError
from packtrain.metrics.reading import read_metrics
from packtrain.planning.best_first import BestFirstSearchAgent
from packtrain.planning.deterministic_mcts import DeterministicMCTSAgent
from packtrain.planning.model import CoreModel
from packtrain.planning.planner import Roots
from packtrain.planning.schedules import LinearAnnealing, scheduled_values
from packtrain.testing.path_hash import settle

COLUMNS = np.arange(3)


def plan(planner, core, rng):
    states = core.initial(len(COLUMNS), rng)
    return settle(planner.plan(Roots(COLUMNS, states, core.observe(states))), None)


@pytest.mark.parametrize(
    "agent, extra",
    [
        (
            DeterministicMCTSAgent(use_value_network=False, parameter_schedules={"n_passes": LinearAnnealing(9, 3, 3)}),
            "n",
        ),
        (
            BestFirstSearchAgent(use_value=False, parameter_schedules={"n_nodes_per_step": LinearAnnealing(9, 3, 3)}),
            "e",
        ),
    ],
)
def test_the_budget_of_a_search_is_that_of_the_epoch(agent, extra):
    """Mutation: the planner keeps the configured agent."""
    core, rng = Hanoi(5), np.random.default_rng(0)
    planner = agent.build(CoreModel(core), len(COLUMNS), 0)
    for epoch, budget in [(0, 9), (1, 7), (3, 3), (5, 3)]:
        planner.begin(COLUMNS, epoch)
        extras = plan(planner, core, rng).extras
        found = extras["visits"].sum(axis=1) if extra == "n" else extras["expansions"]
        # The first pass expands the root, so no edge of the root is visited in it.
        assert found.tolist() == [budget - (extra == "n")] * len(COLUMNS)


@pytest.mark.parametrize("kind", [DeterministicMCTSAgent, BestFirstSearchAgent])
def test_random_actions_become_rarer_with_the_epochs(kind):
    name = "use_value_network" if kind is DeterministicMCTSAgent else "use_value"
    agent = kind(**{name: False}, parameter_schedules={"top_level_epsilon": LinearAnnealing(1.0, 0.0, 2)})
    core, rng = Hanoi(5), np.random.default_rng(0)
    planner = agent.build(CoreModel(core), len(COLUMNS), 0)
    for epoch, expected in [(0, True), (2, False)]:
        planner.begin(COLUMNS, epoch)
        assert (plan(planner, core, rng).extras["random_action"] == expected).all()


@pytest.mark.parametrize("kind", [DeterministicMCTSAgent, BestFirstSearchAgent])
def test_a_parameter_that_arrays_depend_on_cannot_be_scheduled(kind):
    with pytest.raises(ConfigError, match="'gamma', which is fixed for a run; these may change: n_"):
        kind(parameter_schedules={"gamma": LinearAnnealing(1.0, 0.5, 2)})
    with pytest.raises(ConfigError, match="has no parameter 'gama' \\(did you mean"):
        kind(parameter_schedules={"gama": LinearAnnealing(1.0, 0.5, 2)})
    with pytest.raises(ConfigError, match="set it to the value of the first epoch"):
        kind(parameter_schedules={"bonus_quantile_threshold": LinearAnnealing(1.0, 0.5, 2)})


@pytest.mark.parametrize("kind", [DeterministicMCTSAgent, BestFirstSearchAgent])
def test_an_agent_for_evaluations_does_not_verify_later_either(kind):
    line = LinearAnnealing(0.9, 0.5, 2)
    schedules = {"bonus_quantile_threshold": line, "rejection_probability": line}
    trusting = kind(bonus_quantile_threshold=0.9, parameter_schedules=schedules).trusting()
    assert trusting.bonus_quantile_threshold is None
    assert list(trusting.parameter_schedules) == ["rejection_probability"]


def test_scheduled_values_are_reported_by_their_names():
    agent = DeterministicMCTSAgent(parameter_schedules={"n_passes": LinearAnnealing(9, 4, 2)})
    assert scheduled_values(agent, 1) == {"n_passes": 6.0}  # whole numbers are rounded
    assert scheduled_values(DeterministicMCTSAgent(), 1) == {}


def test_metrics_have_the_values_of_scheduled_parameters(tmp_path):
    bindings = [
        "BestFirstSearchAgent.parameter_schedules = {'n_nodes_per_step': @LinearAnnealing()}",
        *("LinearAnnealing.max_value = 6", "LinearAnnealing.min_value = 2", "LinearAnnealing.n_epochs = 2"),
    ]
    argv = ["train", "planning/bfs_hanoi", "--disks", "3", "--n_envs", "2", "--n_epochs", "3"]
    argv += [part for binding in bindings for part in ("--config", binding)]
    assert main([*argv, "--output_dir", str(tmp_path / "run")]) == 0
    rows = [row for row in read_metrics(tmp_path / "run") if row["kind"] == "planning"]
    assert [row["agent_param/n_nodes_per_step"] for row in rows] == [6.0, 4.0, 2.0]
