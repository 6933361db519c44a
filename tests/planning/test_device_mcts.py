"""MCTS with trees on the device against the CPU's arrays: visit counts, qualities and choices, on CPU tensors."""

import numpy as np
import pytest
import torch

from packtrain import trees
from packtrain.envs.bit_flipper import BitFlipper
from packtrain.envs.hanoi import Hanoi
from packtrain.envs.sokoban import Sokoban
from packtrain.errors import ConfigError, EnvSetupError
from packtrain.planning.device_mcts import DeviceMCTS, search
from packtrain.planning.device_models import HostModel, TableModel
from packtrain.planning.leaf_evaluators import QualityNetworkNewLeafRater
from packtrain.planning.model import CoreModel
from packtrain.planning.planner import Roots
from packtrain.planning.stochastic_mcts import StochasticMCTSAgent
from packtrain.testing.path_hash import settle

PASSES = 40


def random_network(width, actions, seed=0):
    """Two random heads over flat observations, without equal outputs: in torch, and as answers to requests."""
    rng = np.random.default_rng(seed)
    heads = {name: rng.normal(size=(width, actions)) for name in ("quality", "logits")}
    heads["quality"] *= 0.3

    def evaluate(obs):
        flat = obs.double().flatten(1)
        return tuple(torch.sin(3 * (flat @ torch.tensor(weight))) for weight in heads.values())

    def answer(request):
        found = evaluate(torch.as_tensor(np.asarray(request.inputs)))
        return {name: head.numpy() for name, head in zip(heads, found, strict=True)}

    return evaluate, answer


def on_the_cpu(core, states, answer, use_policy, rescale, weight=1.0):
    """The first decision of the CPU's planner."""
    model = CoreModel(core)
    agent = StochasticMCTSAgent(
        n_passes=PASSES,
        discount=0.9,
        exploration_weight=weight,
        new_leaf_rater=QualityNetworkNewLeafRater(use_policy),
        rescale_qualities=rescale != "no",
        rescale_over=rescale if rescale != "no" else "node",
    )
    count = len(core.observe(states))
    planner = agent.build(model, count, 0)
    planner.begin(np.arange(count), 0)
    plan = settle(planner.plan(Roots(np.arange(count), states, core.observe(states))), answer)
    return plan


def check(found, plan):
    """Visit counts are equal; numbers up to float32 of the extras."""
    smooth = found.visits / found.visits.sum(1, keepdim=True)
    np.testing.assert_allclose(smooth.numpy(), plan.extras["action_histogram_smooth"], rtol=1e-6)
    np.testing.assert_allclose(found.qualities.numpy(), plan.extras["qualities"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.value.numpy(), plan.extras["value"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.priors.numpy(), plan.extras["priors"], rtol=1e-4)
    np.testing.assert_allclose(found.depth.numpy(), plan.extras["depth_mean"], rtol=1e-6)
    most = np.sort(plan.extras["action_histogram_smooth"], axis=1)
    clear = most[:, -1] > most[:, -2]
    np.testing.assert_array_equal(found.action.numpy()[clear], plan.action[clear])


@pytest.mark.parametrize("rescale", ["no", "node", "tree"])
@pytest.mark.parametrize("use_policy", [True, False])
def test_visits_are_those_of_the_cpu_arrays(use_policy, rescale):
    """From every state of a small Hanoi, ends near and far; the model is a table of states.

    Illegal moves are never tried. Mutations: the root has a visit too few; an end that leads on; q without the
    reward; the discount at the wrong edge; the range of qualities widened by what is beyond an end.
    """
    core = Hanoi(3, max_steps=None)
    model = TableModel(core)
    roots = np.flatnonzero(~model.graph.terminated)
    states = trees.pick(model.graph.states, roots)
    evaluate, answer = random_network(core.observation_space.shape[0], 6)
    rated = evaluate if use_policy else lambda obs: (evaluate(obs)[0], None)
    settings = DeviceMCTS(PASSES, 0.9, 1.0, rescale, torch.float64)
    found = search(settings, model, rated, torch.as_tensor(roots))
    plan = on_the_cpu(core, states, answer, use_policy, rescale)
    check(found, plan)
    legal = core.legal(states)
    np.testing.assert_array_equal(found.visits.sum(1).numpy(), legal.sum(1) + PASSES - 1)
    assert (found.visits.numpy()[~legal] == 0).all() and (~legal).any() and len(roots) > 20


def test_any_core_is_stepped_on_the_host():
    """Boards of Sokoban; actions differ among boards, so rows do not mix."""
    core = Sokoban(6, 6, 2, boards=16)
    states = core.initial(12, np.random.default_rng(0))
    evaluate, answer = random_network(6 * 6 * 7, 4)
    model = HostModel(core)
    settings = DeviceMCTS(PASSES, 0.9, 2.0, precision=torch.float64)
    found = search(settings, model, evaluate, model.to_device(states))
    check(found, on_the_cpu(core, states, answer, True, "no", weight=2.0))
    assert len(set(found.action.tolist())) > 1


def test_ties_are_broken_at_random_and_by_the_generator():
    """Two legal moves with equal qualities and priors, chosen equally often. Mutation: the first of equal scores."""
    model = TableModel(Hanoi(3, max_steps=None))
    flat = lambda obs: (torch.zeros(len(obs), 6), None)  # noqa: E731
    roots = torch.zeros(300, dtype=torch.int64)
    one, two, other = (
        search(DeviceMCTS(2), model, flat, roots, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert one.action.tolist() == two.action.tolist() != other.action.tolist()
    counts = np.bincount(one.action.numpy(), minlength=6)
    assert sorted(counts)[:4] == [0] * 4 and 100 < sorted(counts)[4] <= 150


def test_more_passes_find_the_goal():
    """Four bits, reward only at the end, and a network that says nothing. One pass finds nothing: the control."""
    model = TableModel(BitFlipper(bits=4))
    flat = lambda obs: (torch.zeros(len(obs), 4), None)  # noqa: E731
    start = torch.zeros(1, dtype=torch.int64)
    few, many = (search(DeviceMCTS(passes), model, flat, start).value.item() for passes in (1, 600))
    assert few == 0 and many > 0


def test_what_is_refused():
    with pytest.raises(ConfigError, match="rescale_qualities = 'all' is not one of"):
        DeviceMCTS(rescale_qualities="all")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="n_passes"):
        DeviceMCTS(n_passes=0)
    with pytest.raises(EnvSetupError, match="is stochastic"):
        HostModel(Sokoban(6, 6, 1, action_noise=0.5))
