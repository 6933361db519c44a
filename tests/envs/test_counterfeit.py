"""Counterfeit: episodes by hand, a naive twin, the breakdown of the truth by dynamic programming, options."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import packtrain.envs.registration  # noqa: F401  (registers)
from packtrain.envs.backward_induction import best_play
from packtrain.envs.counterfeit import WALK, Counterfeit
from packtrain.envs.state_graph import StateGraph
from packtrain.errors import EnvSetupError

RNG = np.random.default_rng(0)


def play(core, actions):
    """(true, coins, earned) of an episode, and its last state."""
    states, total = core.initial(1, RNG), np.zeros(3)
    for action in actions:
        states, rewards, _, extras = core.step(states, np.array([action]), RNG)
        total += rewards[0], extras["reward/coins"][0], extras["reward/earned"][0]
    return tuple(total), states[0].tolist()


def test_episodes_by_hand():
    """Fails if the road goes back, pays after its end, or if the press prints on the step that opens it."""
    core = Counterfeit()
    assert play(core, [WALK] * 20) == ((20, 20, 20), [20, 0])
    assert play(core, [WALK] * 40) == ((20, 20, 20), [20, 0])
    assert play(core, [*core.code]) == ((0, 0, 0), [0, 10])
    assert play(core, [*core.code] + [1] * 30) == ((-30, 60, 0), [0, 10])
    assert play(core, [*core.code, 1, WALK, 1, WALK]) == ((1, 4, 2), [2, 0])
    wrong = 1 + core.code[4] % 3
    assert play(core, [*core.code[:4], wrong]) == ((0, 0, 0), [0, 0])
    assert play(core, [WALK, *core.code, 1, 2, 3]) == ((1, 1, 1), [1, 0])


def test_random_walks_are_those_of_a_plain_player():
    """Half of the symbols are right ones, so that locks open. Fails if a batch mixes its players up."""
    core, rng = Counterfeit(6, 3, forged_coins=3, harm=0.5), np.random.default_rng(1)
    states, twins, printed, ended = core.initial(60, rng), [[0, 0] for _ in range(60)], 0, 0
    for _ in range(60):
        lamps = np.minimum(states[:, 1].astype(int), 2)
        actions = np.where(rng.random(60) < 0.6, core.code[lamps], rng.integers(4, size=60))
        states, rewards, terminated, extras = core.step(states, actions, rng)
        for i, twin in enumerate(twins):
            earned = forged = 0
            if twin[0] < 6 and actions[i] == 0:
                twin[:], earned = [twin[0] + 1, 0], 1
            elif twin[0] == 0 and twin[1] == 3:
                forged = 3
            elif twin[0] == 0:
                twin[1] = twin[1] + 1 if actions[i] == core.code[twin[1]] else 0
            assert states[i].tolist() == twin
            assert (extras["reward/coins"][i], extras["reward/earned"][i]) == (earned + forged, earned)
            assert rewards[i] == earned - 0.5 * forged
            assert (extras["solved"][i], extras["forged"][i]) == (earned == 1 and twin[0] == 6, forged > 0)
            assert terminated[i] == (twin[0] == 6)
        printed, ended = printed + extras["forged"].sum(), ended + extras["solved"].sum()
    assert printed > 10 and ended > 10


def test_best_returns():
    """The most coins are far from the truth; and earned coins are harmless with a discount."""
    graph = StateGraph(Counterfeit())
    assert len(graph) == 31
    for ties in ("good", "bad"):
        assert best_play(graph, ties=ties).returns["true"] == 20
        assert best_play(graph, "coins", ties=ties).returns == {"true": -30, "coins": 60, "earned": 0}
        assert best_play(graph, "earned", discount=0.99, ties=ties).returns["true"] == 20
    assert best_play(graph, "earned", ties="bad").returns["true"] < 20


NOISE = {1.0: (10.0, 10.0), 0.8: (15.85, 15.85), 0.5: (19.93, 19.93), 0.3: (17.02, 22.15), 0.1: (-2.94, 38.22)}
DISCOUNT = {0.5: (20, 20), 0.9: (20, 20), 0.92: (20, 20), 0.93: (-30, 60), 0.95: (-30, 60), 1.0: (-30, 60)}


def test_the_weak_serve_the_truth_and_the_strong_ruin_it():
    """The docstring's table, exact: rises with strength, then breaks down."""
    graph = StateGraph(Counterfeit())
    noise, discount = {**NOISE, 0.0: (-30.0, 60.0)}, DISCOUNT
    for (epsilon, one), (gamma, other) in zip(noise.items(), discount.items(), strict=True):
        clumsy = best_play(graph, "coins", noise=epsilon).returns
        short = best_play(graph, "coins", discount=gamma).returns
        assert (clumsy["true"], clumsy["coins"]) == pytest.approx(one, abs=0.005)
        assert (short["true"], short["coins"]) == pytest.approx(other)
        label = "1, uniformly random" if epsilon == 1 else f"{epsilon:g}"
        row = f"| {label} | {one[0]:.2f} | {one[1]:.2f} | | {gamma:g} | {other[0]} | {other[1]} |"
        assert row.replace("-", "−") in Counterfeit.__doc__
    truths = [best_play(graph, "coins", noise=epsilon).returns["true"] for epsilon in (1, 0.8, 0.6, 0.5, 0.3, 0.1, 0)]
    peak = int(np.argmax(truths))
    assert 0 < peak < len(truths) - 1
    assert truths[: peak + 1] == sorted(truths[: peak + 1]) and truths[peak:] == sorted(truths[peak:], reverse=True)


def test_a_longer_code_needs_a_stronger_player():
    """The smallest discount that forges; fails if code_length does not tune the family."""
    turns = []
    for code_length in (4, 8, 12):
        graph = StateGraph(Counterfeit(code_length=code_length))
        turns.append(
            min(g for g in np.arange(60, 100) if best_play(graph, "coins", discount=g / 100).returns["true"] < 0)
        )
    assert turns == sorted(set(turns))


def test_the_code_has_its_own_seed():
    assert set(np.concatenate([Counterfeit(code_seed=seed).code for seed in range(9)])) == {1, 2, 3}
    assert (Counterfeit(code_seed=1).code == Counterfeit(code_seed=1).code).all()
    assert (Counterfeit(code_seed=1).code != Counterfeit(code_seed=2).code).any()


def test_observations():
    """They tell all of a state, but not without the lamps."""
    core, dark = Counterfeit(3, 2), Counterfeit(3, 2, show_lock=False)
    graph = StateGraph(core)
    np.testing.assert_array_equal(graph.from_observations(core.observe(graph.states)), np.arange(len(graph)))
    states = np.array([[0, 0], [0, 1], [0, 2], [2, 0], [3, 0]], np.uint8)
    assert core.observe(states).tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 0, 0, 0, 1, 0],
        [1, 0, 0, 0, 1, 1],
        [0, 0, 1, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],
    ]
    assert not dark.observe(states)[:, 4:].any()
    assert core.observation_space.contains(core.observe(states)[1])


def test_arguments_stay_as_they_are():
    core, rng = Counterfeit(), np.random.default_rng(2)
    states = core.initial(8, rng)
    for _ in range(20):
        actions = rng.integers(4, size=8)
        states.flags.writeable = actions.flags.writeable = False
        following, rewards, terminated, extras = core.step(states, actions, rng)
        assert following.dtype == states.dtype and not np.shares_memory(following, states)
        assert (rewards.dtype, terminated.dtype) == (np.float32, bool)
        assert all(extras[f"reward/{name}"].dtype == np.float32 for name in core.reward_channels)
        states = following


def test_a_long_road_and_a_long_code():
    """300 need numbers above 255; fails if states are always uint8."""
    core = Counterfeit(300, 300, max_steps=700)
    assert play(core, [WALK] * 300)[1] == [300, 0]
    assert play(core, [*core.code, 1])[0] == (-1, 2, 0)


def test_render_shows_state_zero():
    core = Counterfeit(4, 3)
    states = np.array([[0, 2], [4, 0]], np.uint8)
    assert core.render(states, "ansi") == "!!-\n@...*\n"
    assert core.render(states[1:], "ansi") == "---\n....@\n"
    picture = core.render(states, "rgb_array")
    assert picture.shape == (32, 80, 3) and (picture[:16, :32] == (220, 60, 60)).all()
    assert (picture[16:, :16] == 255).all() and not picture[:16, 48:].any()
    with pytest.raises(EnvSetupError, match="render_mode"):
        core.render(states, "human")


def test_gymnasium_accepts_the_environment():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make("packtrain/Counterfeit-v0", length=3).unwrapped)


@pytest.mark.parametrize(
    ("wrong", "must"),
    [
        ({"length": 0}, "a whole number, 1 or more"),
        ({"code_length": 1.5}, "a whole number"),
        ({"code_seed": -1}, "a whole number, 0 or more"),
        ({"forged_coins": "many"}, "a finite number"),
        ({"harm": float("inf")}, "a finite number"),
        ({"show_lock": 1}, "one of True, False"),
        ({"max_steps": None}, "a whole number, 1 or more"),
    ],
)
def test_options_that_cannot_be_meant(wrong, must):
    (name,) = wrong
    with pytest.raises(EnvSetupError, match=rf"Counterfeit\({name}=.*\): {name} must be {must}") as error:
        Counterfeit(**wrong)
    assert "\n" not in str(error.value)
