"""Chance and optimum of every ability of `packtrain exam`, by simulation or exactly."""

import numpy as np
import pytest

from packtrain.envs.backward_induction import best_play
from packtrain.envs.counterfeit import Counterfeit
from packtrain.envs.deep_sea import DeepSea
from packtrain.envs.hanoi import Hanoi
from packtrain.envs.state_graph import StateGraph
from packtrain.errors import EnvSetupError
from packtrain.studies.exam_card import ABILITIES
from packtrain.testing.abilities import DelayedReward, Memory, StochasticPolicy
from packtrain.testing.exam_envs import Annuity, Glimpses, Reach

N = 20_000


def play(core, policy, n=N):
    """Mean return of n episodes of a core, cut at its time limit; policy(observations so far, rng) → actions."""
    rng = np.random.default_rng(0)
    states, total, alive = core.initial(n, rng), np.zeros(n), np.ones(n, bool)
    seen = [core.observe(states)]
    for _ in range(core.max_steps or 100):
        states, rewards, terminated, _ = core.step(states, policy(seen, rng), rng)
        total += np.where(alive, rewards, 0)
        alive &= ~terminated
        seen.append(core.observe(states))
        if not alive.any():
            break
    return float(total.mean())


def uniform(core):
    if hasattr(core.action_space, "n"):
        return lambda seen, rng: rng.integers(core.action_space.n, size=len(seen[0]))
    return lambda seen, rng: rng.uniform(-1, 1, size=(len(seen[0]), 1))


def towards_zero(seen, rng):
    return np.clip(-seen[-1] / 0.25, -1, 1)


def first_cue(seen, rng):
    return seen[0][:, 1].astype(int)


def first_of_four(seen, rng):
    return seen[0][:, :4].argmax(axis=1)


def majority(seen, rng):
    return (sum(one[:, 1] - one[:, 0] for one in seen) > 0).astype(int)


def three_in_four(seen, rng):
    return (rng.random(len(seen[0])) >= 0.758).astype(int)


CASES = {
    "memory": (Memory(delay=3), first_cue),
    "credit": (DelayedReward(delay=10), first_of_four),
    "stochasticity": (StochasticPolicy(), three_in_four),
    "truncation": (Annuity(length=40), lambda seen, rng: np.zeros(len(seen[0]), int)),
    "control": (Reach(), towards_zero),
    "partial": (Glimpses(), majority),
}


@pytest.mark.parametrize("name", CASES)
def test_chance_and_optimum_by_simulation(name):
    """Mutation: another constant in the table, or another reward in the environment."""
    core, best = CASES[name]
    ability = ABILITIES[name]
    width = ability.optimum - ability.chance
    assert play(core, uniform(core)) == pytest.approx(ability.chance, abs=0.02 * width)
    assert play(core, best) == pytest.approx(ability.optimum, abs=0.02 * width)


def test_proxy_trap_is_exact_and_the_proxys_optimum_lies_below_chance():
    graph = StateGraph(Counterfeit(length=8, code_length=1, max_steps=20))
    ability = ABILITIES["proxy"]
    assert best_play(graph, noise=1.0).returns["true"] == pytest.approx(ability.chance, abs=1e-3)
    assert best_play(graph).returns["true"] == ability.optimum
    assert best_play(graph, "coins", discount=0.95).returns == {"true": -19.0, "coins": 38.0, "earned": 0.0}


def test_exploration_and_towers_are_exact():
    sea = StateGraph(DeepSea(size=8, mapping_seed=42))
    assert best_play(sea, steps=8, noise=1.0).returns["true"] == pytest.approx(
        ABILITIES["exploration"].chance, abs=1e-4
    )
    assert best_play(sea, steps=8).returns["true"] == pytest.approx(ABILITIES["exploration"].optimum)
    for name, disks, steps in (("depth", 4, 60), ("loop", 5, 150)):
        tower = StateGraph(Hanoi(disks=disks))
        assert best_play(tower, steps=steps, noise=1.0).returns["true"] == pytest.approx(
            ABILITIES[name].chance, abs=1e-3
        )
        assert best_play(tower, steps=steps).returns["true"] == pytest.approx(ABILITIES[name].optimum)


def test_the_last_glimpse_alone_scores_less_than_the_majority():
    assert play(Glimpses(), lambda seen, rng: seen[-1][:, 1].astype(int)) == pytest.approx(0.4, abs=0.03)
    assert Glimpses().best_return == pytest.approx(0.8024, abs=1e-4)
    assert Glimpses(glimpses=1).best_return == pytest.approx(0.4)
    assert Glimpses(glimpses=2).best_return == pytest.approx(0.4)  # a second glimpse that breaks no tie


def test_glimpses_are_independent_and_the_flag_marks_the_last():
    rng, core = np.random.default_rng(0), Glimpses(glimpses=3)
    states = core.initial(N, rng)
    shown = []
    for step in range(3):
        observed = core.observe(states)
        assert (observed[:, 2] == (step == 2)).all()
        shown.append(observed[:, 1] == states["side"])
        states, rewards, terminated, _ = core.step(states, np.zeros(N, int), rng)
        assert terminated.all() == (step == 2)
    assert [share.mean() for share in shown] == pytest.approx([0.7] * 3, abs=0.02)
    assert (shown[0] & shown[1]).mean() == pytest.approx(0.49, abs=0.02)


def test_annuity_pays_once_and_its_observation_hides_time():
    core, rng = Annuity(length=5), np.random.default_rng(0)
    states, rewards, terminated, _ = core.step(core.initial(3, rng), np.array([0, 1, 1]), rng)
    assert rewards.tolist() == [1, 7, 7] and terminated.tolist() == [False, True, True]
    assert core.step(states, np.array([0, 1, 0]), rng)[1].tolist() == [1, 0, 0]
    assert (core.observe(states) == 1).all()


@pytest.mark.parametrize(("gone_on", "expected"), [(1.0, 10.0), (0.8, 3.5714)])
def test_annuity_values_on_either_side_of_the_cash(gone_on, expected):
    """An annuity is worth more than the cash of 7, and less where a truncation counts as a termination."""
    value = 0.0
    for _ in range(300):
        value = 1 + 0.9 * gone_on * value
    assert value == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("core", "wrong"),
    [(Glimpses, {"glimpses": 0}), (Glimpses, {"accuracy": 2}), (Annuity, {"length": 0}), (Reach, {"steps": 0})],
)
def test_wrong_options_are_refused(core, wrong):
    with pytest.raises(EnvSetupError, match=next(iter(wrong))):
        core(**wrong)
