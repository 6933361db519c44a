"""BitFlipper: every state and action against the rule, distances and waiting times by brute force, options."""

import numpy as np
import pytest

from packtrain.envs.bit_flipper import BitFlipper
from packtrain.errors import EnvSetupError

RNG = np.random.default_rng(0)


def every_state(bits):
    """[2^bits, bits]: the number of a state is the sum of 2^i over its bits that are on."""
    return (np.arange(2**bits)[:, None] >> np.arange(bits) & 1).astype(np.uint8)


def successors(bits):
    """Numbers of the states that follow, [2^bits, bits]."""
    core, states = BitFlipper(bits), every_state(bits)
    columns = [core.step(states, np.full(len(states), action), RNG)[0] for action in range(bits)]
    return np.stack(columns, axis=1) @ (1 << np.arange(bits))


def distances(bits):
    """{number of a reachable state: steps from the start}, by breadth-first search."""
    table, found, layer = successors(bits), {0: 0}, [0]
    while layer:
        layer = sorted({state for state in table[layer].ravel().tolist() if state not in found})
        found |= dict.fromkeys(layer, max(found.values()) + 1)
    return found


def test_every_state_and_action_follows_the_rule():
    """The rule written out bit by bit; fails if "lower" is read as "higher", or if turning off has a condition."""
    core, states = BitFlipper(4), every_state(4)
    legal = core.legal(states)
    for action in range(4):
        following, rewards, terminated, extras = core.step(states, np.full(16, action), RNG)
        for i, before in enumerate(states.tolist()):
            allowed = before[action] == 1 or all(before[:action])
            after = before.copy()
            if allowed and not all(before):
                after[action] = 1 - after[action]
            finished = all(after) and not all(before)
            assert legal[i, action] == allowed
            assert following[i].tolist() == after
            assert (rewards[i], terminated[i], extras["solved"][i]) == (finished, all(after), finished)
            assert extras["invalid_action"][i] == (not allowed)


def test_an_episode_by_hand():
    core = BitFlipper(3)
    states = core.initial(1, RNG)
    for action, bits, reward, invalid in (
        (1, [0, 0, 0], 0, True),
        (0, [1, 0, 0], 0, False),
        (2, [1, 0, 0], 0, True),
        (1, [1, 1, 0], 0, False),
        (0, [0, 1, 0], 0, False),  # off, although a higher bit is on
        (2, [0, 1, 0], 0, True),
        (0, [1, 1, 0], 0, False),
        (2, [1, 1, 1], 1, False),
        (0, [1, 1, 1], 0, False),  # solved: it rests
    ):
        states, rewards, terminated, extras = core.step(states, np.array([action]), RNG)
        assert states.tolist() == core.observe(states).tolist() == [bits]
        assert (rewards[0], extras["invalid_action"][0]) == (reward, invalid)
        assert terminated[0] == (bits == [1, 1, 1])


@pytest.mark.parametrize("bits", [1, 2, 3, 5, 8])
def test_reachable_states_and_the_shortest_way(bits):
    found = distances(bits)
    assert len(found) == 2 ** (bits - 1) + 1
    assert found[2**bits - 1] == bits


def test_random_actions_need_exponentially_many_steps():
    """The docstring's waiting times, from the linear equations of a uniformly random walk."""
    waits = []
    for bits in range(1, 9):
        table = successors(bits)[:-1]  # without the goal
        walk = np.zeros((len(table), len(table) + 1))
        for column in table.T:
            walk[np.arange(len(table)), column] += 1 / bits
        waits.append(np.linalg.solve(np.eye(len(table)) - walk[:, :-1], np.ones(len(table)))[0])
    assert waits[3] == pytest.approx(96) and waits[7] == pytest.approx(128_576)
    assert all(later > 3 * earlier for earlier, later in zip(waits, waits[1:], strict=False))


def test_render_shows_state_zero():
    core, states = BitFlipper(3), np.array([[1, 0, 1], [1, 1, 1]], np.uint8)
    assert core.render(states, "ansi") == "101\n"
    picture = core.render(states, "rgb_array")
    assert picture.shape == (16, 48, 3) and picture.dtype == np.uint8
    assert (picture[:, :16] == 255).all() and (picture[:, 16:32] == 60).all() and (picture[:, 32:] == 255).all()
    with pytest.raises(EnvSetupError, match="render_mode"):
        core.render(states, "human")


@pytest.mark.parametrize("wrong", [{"bits": 0}, {"bits": 1.5}, {"bits": True}, {"max_steps": 0}])
def test_options_that_cannot_be_meant(wrong):
    (name,) = wrong
    with pytest.raises(EnvSetupError, match=rf"BitFlipper\({name}=.*\): {name} must be a whole number") as error:
        BitFlipper(**wrong)
    assert "\n" not in str(error.value)
    assert BitFlipper(max_steps=None).max_steps is None
