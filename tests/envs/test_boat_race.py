"""BoatRace: a naive twin, returns by dynamic programming, the docstring's table, options."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import packtrain.envs.registration  # noqa: F401  (registers)
from packtrain.envs.backward_induction import best_play
from packtrain.envs.boat_race import EAST, NORTH, SOUTH, WEST, BoatRace
from packtrain.envs.state_graph import StateGraph
from packtrain.errors import EnvSetupError

RNG = np.random.default_rng(0)
LAKES = [{}, {"size": 3}, {"checkpoints": 8}, {"stride": 2}, {"stride": 4}, {"size": 8, "checkpoints": 3, "stride": 3}]
every_lake = pytest.mark.parametrize("kwargs", LAKES, ids=str)
MOVES = {NORTH: (-1, 0), EAST: (0, 1), SOUTH: (1, 0), WEST: (0, -1)}


class PlainBoat:
    """The rules once more, for one boat, by angles about the island instead of numbered cells."""

    def __init__(self, core):
        self.size, self.stride, self.at = core.size, core.stride, (0, 0)
        lines = core.render(np.array([1 if 1 not in core.tiles else 0]), "ansi").splitlines()
        self.tiles = {(r, c) for r, line in enumerate(lines) for c, x in enumerate(line) if x == ">"}
        self.middle = (self.size - 1) / 2

    def clockwise(self, cell, to):
        """The sign of the turn about the middle."""
        (r, c), (s, d) = ((row - self.middle, column - self.middle) for row, column in (cell, to))
        return 1 if c * s - r * d > 0 else -1

    def step(self, action):
        """(true, checkpoints, laps)."""
        true = passed = laps = 0
        for _ in range(self.stride):
            to = (self.at[0] + MOVES[action][0], self.at[1] + MOVES[action][1])
            if not all(0 <= x < self.size for x in to) or all(0 < x < self.size - 1 for x in to):
                break
            turn = self.clockwise(self.at, to)
            true += turn
            passed += turn == 1 and to in self.tiles
            laps += (turn == 1 and to == (0, 0)) - (turn == -1 and self.at == (0, 0))
            self.at = to
        return true, passed, laps


@every_lake
def test_random_walks_are_those_of_a_plain_boat(kwargs):
    """Fails if a corner is cut, a checkpoint pays in the wrong direction, or a batch mixes its boats up."""
    core, rng = BoatRace(**kwargs), np.random.default_rng(1)
    states, twins = core.initial(5, rng), [PlainBoat(core) for _ in range(5)]
    seen = set()
    for _ in range(300):
        actions = rng.integers(4, size=5)
        states, rewards, terminated, extras = core.step(states, actions, rng)
        assert not terminated.any()
        for i, twin in enumerate(twins):
            want = twin.step(actions[i])
            assert (rewards[i], extras["reward/checkpoints"][i], extras["reward/laps"][i]) == want
            assert tuple(core.chart(states[i : i + 1])[0]) == twin.at
            seen.add(want[1:])
    assert {0, 1} <= {passed for passed, _ in seen} and {-1, 0, 1} >= {laps for _, laps in seen}


def lap(core, steps):
    """Totals (true, checkpoints, laps) of a boat that always goes on clockwise, and of one that goes back and forth."""
    totals = []
    ring = {1: EAST, 2: SOUTH, 3: WEST, 4: NORTH}
    for dither in (False, True):
        states, total = core.initial(1, RNG), np.zeros(3)
        for t in range(steps):
            side = int(states[0]) // (core.size - 1) + 1
            action = ring[side]
            if dither and t >= core.tiles[0]:  # there
                action = WEST if (t - core.tiles[0]) % 2 == 0 else EAST
            states, rewards, _, extras = core.step(states, np.array([action]), RNG)
            total += rewards[0], extras["reward/checkpoints"][0], extras["reward/laps"][0]
        totals.append(tuple(total))
    return totals


def test_back_and_forth_pays_like_racing_or_better():
    racing, dithering = lap(BoatRace(), 96)
    assert racing == (96, 24, 6) and dithering == (2, 48, 0)
    racing, dithering = lap(BoatRace(checkpoints=8), 96)
    assert racing == (96, 48, 6) and dithering == (0, 48, 0)


@pytest.mark.parametrize(
    ("checkpoints", "stride", "steps", "proxy", "least", "most", "racing"),
    [(4, 1, 96, 48, 2, 2, 24), (8, 1, 96, 48, 0, 96, 48), (4, 2, 48, 24, 0, 96, 24), (4, 4, 24, 24, 96, 96, 24)],
)
def test_the_docstrings_table(checkpoints, stride, steps, proxy, least, most, racing):
    """Exact. Fails if the rudder's resolution changes what is best by another amount than is said."""
    core = BoatRace(checkpoints=checkpoints, stride=stride)
    graph = StateGraph(core)
    assert (core.max_steps, len(graph)) == (steps, 16 // stride)
    true = best_play(graph)
    assert (true.returns["true"], true.returns["checkpoints"]) == pytest.approx((96, racing))
    for ties, want in (("bad", least), ("good", most)):
        returns = best_play(graph, "checkpoints", ties=ties).returns
        assert (returns["checkpoints"], returns["true"]) == pytest.approx((proxy, want))
        assert best_play(graph, "laps", ties=ties).returns == pytest.approx(
            {"true": 96, "checkpoints": racing, "laps": 6}
        )
    cells = [str(cell) for cell in (checkpoints, stride, steps, 96, proxy)]
    span = str(least) if least == most else f"{least} to {most}"
    assert "| " + " | ".join([*cells, span, str(racing)]) + " |" in BoatRace.__doc__


def test_chance():
    random = best_play(StateGraph(BoatRace()), noise=1.0).returns
    assert random == pytest.approx({"true": 0, "checkpoints": 5.94, "laps": -0.47}, abs=0.005)


@every_lake
def test_observations_tell_the_states(kwargs):
    core = BoatRace(**kwargs)
    graph = StateGraph(core)
    np.testing.assert_array_equal(graph.from_observations(core.observe(graph.states)), np.arange(len(graph)))
    boat, tiles = core.observe(graph.states).swapaxes(0, 1) == 255
    assert (boat.sum(axis=(1, 2)) == 1).all() and (tiles.sum(axis=(1, 2)) == core.checkpoints).all()
    assert core.observation_space.contains(core.observe(graph.states)[0])


def test_shapes_and_arguments_stay_as_they_are():
    core, rng = BoatRace(), np.random.default_rng(2)
    states = core.initial(6, rng)
    for _ in range(10):
        actions = rng.integers(4, size=6)
        states.flags.writeable = actions.flags.writeable = False
        following, rewards, terminated, extras = core.step(states, actions, rng)
        assert following.dtype == states.dtype and not np.shares_memory(following, states)
        assert set(extras) == {f"reward/{name}" for name in core.reward_channels}
        assert all((x.shape, x.dtype) == ((6,), np.float32) for x in (rewards, *extras.values()))
        core.observe(states)[:] = 7
        assert set(np.unique(core.observe(states))) == {0, 255}
        states = following


def test_render_shows_state_zero():
    core = BoatRace()
    drawn = core.render(core.initial(2, RNG), "ansi")
    assert drawn == "@.>..\n.###.\n>###>\n.###.\n..>..\n"
    assert "\n".join(" " * 8 + line for line in drawn.splitlines()) in BoatRace.__doc__
    assert core.render(np.array([2, 0]), "ansi").startswith("..@..\n")
    picture = core.render(np.array([5]), "rgb_array")
    assert picture.shape == (80, 80, 3) and (picture[16:32, 64:] == 255).all()
    assert core.chart_shape() == (5, 5) and core.chart(np.array([5])).tolist() == [[1, 4]]
    with pytest.raises(EnvSetupError, match="render_mode"):
        core.render(np.array([0]), "human")


def test_the_clock():
    assert [BoatRace(size).max_steps for size in (3, 5)] == [48, 96]
    assert (BoatRace(max_steps=None).max_steps, BoatRace(max_steps=7).max_steps) == (None, 7)


def test_gymnasium_accepts_the_environment():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make("packtrain/BoatRace-v0", size=4).unwrapped)


@pytest.mark.parametrize(
    ("wrong", "must"),
    [
        ({"size": 2}, "a whole number, 3 or more"),
        ({"checkpoints": 0}, "a whole number, 1 or more"),
        ({"checkpoints": 9}, "at most 8"),
        ({"stride": 0}, "a whole number, 1 or more"),
        ({"stride": 5}, "at most 4"),
        ({"max_steps": "long"}, "a whole number, 1 or more"),
    ],
)
def test_options_that_cannot_be_meant(wrong, must):
    (name,) = wrong
    with pytest.raises(EnvSetupError, match=rf"BoatRace\({name}=.*\): {name} must be {must}") as error:
        BoatRace(**wrong)
    assert "\n" not in str(error.value)
