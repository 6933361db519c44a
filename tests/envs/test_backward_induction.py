"""Backward induction against every plan enumerated, and against simulated play."""

from itertools import product

import gymnasium as gym
import numpy as np
import pytest

from packtrain.envs.backward_induction import best_play, step_rewards
from packtrain.envs.boat_race import BoatRace
from packtrain.envs.counterfeit import Counterfeit
from packtrain.envs.side_effects import SideEffects
from packtrain.envs.state_graph import StateGraph
from packtrain.errors import EnvSetupError


class Junction:
    """Three states in a ring, two actions, two rewards that are drawn; the last state of `ends` is final."""

    observation_space = gym.spaces.Discrete(3)
    action_space = gym.spaces.Discrete(2)
    reward_channels = ("other",)

    def __init__(self, seed, max_steps=4):
        rng = np.random.default_rng(seed)
        self.max_steps = max_steps
        self.pay = rng.integers(-2, 3, size=(2, 4, 2)).astype(np.float32)  # small whole numbers: ties are met
        self.pay[:, 3] = 0
        self.to = np.array([[1, 2], [2, 3], [0, 1], [3, 3]])

    def initial(self, n, rng):
        return np.zeros((n, 1), np.uint8)

    def step(self, states, actions, rng):
        place = states[:, 0]
        to = self.to[place, actions]
        return (
            to[:, None].astype(np.uint8),
            self.pay[0, place, actions],
            to == 3,
            {"reward/other": self.pay[1, place, actions]},
        )

    def observe(self, states):
        return states[:, 0].astype(np.int64)


def enumerate_sequences(core, discount):
    """(discounted other, true, other) of all action sequences."""
    for sequence in product(range(2), repeat=core.max_steps):
        states, totals = core.initial(1, None), np.zeros(3)
        for t, action in enumerate(sequence):
            states, true, _, extras = core.step(states, np.array([action]), None)
            other = extras["reward/other"][0]
            totals += discount**t * other, true[0], other
        yield tuple(totals)


@pytest.mark.parametrize("discount", [1.0, 0.5])
@pytest.mark.parametrize("seed", range(8))
def test_best_is_the_best_of_all_sequences(seed, discount):
    """Fails if the discount leaks into the returns, or if ties are not looked for the other reward."""
    core = Junction(seed)
    sequences = list(enumerate_sequences(core, discount))
    most = max(sequences)[0]
    best = [(true, other) for discounted, true, other in sequences if discounted > most - 1e-9]
    graph = StateGraph(core)
    good = best_play(graph, "other", discount=discount).returns
    bad = best_play(graph, "other", discount=discount, ties="bad").returns
    assert good["true"] == pytest.approx(max(best)[0]) and bad["true"] == pytest.approx(min(best)[0])
    assert {round(good["other"], 6), round(bad["other"], 6)} <= {round(float(other), 6) for _, other in best}


@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_noise_by_every_tremble(noise):
    """The expectation over all 2^T combinations of intended and random actions, written out."""
    core = Junction(3, max_steps=3)
    play = best_play(StateGraph(core), "other", noise=noise)
    place_of = StateGraph(core).states[:, 0]
    number = {int(place): i for i, place in enumerate(place_of)}
    total = np.zeros(2)

    def walk(states, t, chance):
        if t == 3:
            return
        intended = play.actions[t, number[int(states[0, 0])]]
        for action in range(2):
            share = chance * ((1 - noise) * (action == intended) + noise / 2)
            following, true, _, extras = core.step(states, np.array([action]), None)
            total[:] += share * np.array([true[0], extras["reward/other"][0]])
            walk(following, t + 1, share)

    walk(core.initial(1, None), 0, 1.0)
    assert (play.returns["true"], play.returns["other"]) == pytest.approx(tuple(total))


@pytest.mark.parametrize(
    ("core", "channel"), [(BoatRace(), "checkpoints"), (SideEffects(), "goal"), (Counterfeit(), "coins")]
)
def test_simulated_play_gets_what_is_said(core, channel):
    """Fails if actions are those of another time, or if noise is not what replaces them. Four standard errors."""
    graph, rng, count, noise = StateGraph(core), np.random.default_rng(0), 2000, 0.3
    play = best_play(graph, channel, noise=noise)
    states, totals, over = core.initial(count, rng), np.zeros((2, count)), np.zeros(count, bool)
    for t in range(core.max_steps):
        actions = play.actions[t, graph.find(states)]
        actions = np.where(rng.random(count) < noise, rng.integers(core.action_space.n, size=count), actions)
        states, true, ended, extras = core.step(states, actions, rng)
        totals += np.where(over, 0, np.stack((true, extras[f"reward/{channel}"])))
        over |= ended
    for values, name in zip(totals, ("true", channel), strict=True):
        error = values.std() / np.sqrt(count)
        assert values.mean() == pytest.approx(play.returns[name], abs=4 * error)


def test_step_rewards_have_all_channels_and_nothing_after_the_end():
    graph = StateGraph(Counterfeit(length=3, code_length=2))
    rewards = step_rewards(graph)
    assert list(rewards) == ["true", "coins", "earned"]
    assert all(table.shape == (len(graph), 4) and not table[graph.terminated].any() for table in rewards.values())
    assert rewards["coins"].max() == 2 and rewards["true"].min() == -1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"channel": "gold"}, "channel must be one of 'true', 'coins', 'earned'"),
        ({"steps": -1}, "steps must be a whole number"),
        ({"noise": 2}, "noise must be a number from 0 to 1"),
        ({"discount": -0.1}, "discount must be a number from 0 to 1"),
        ({"ties": "ugly"}, "ties must be one of"),
    ],
)
def test_arguments_that_cannot_be_meant(wrong, message):
    with pytest.raises(EnvSetupError, match=message) as error:
        best_play(StateGraph(Counterfeit(2, 1)), **wrong)
    assert "\n" not in str(error.value)


def test_a_world_without_a_clock_needs_a_number_of_steps():
    graph = StateGraph(BoatRace(max_steps=None))
    with pytest.raises(EnvSetupError, match="BoatRace has no time limit"):
        best_play(graph)
    assert best_play(graph, steps=7).returns["true"] == 7
