"""SideEffects: a naive twin, ways by dynamic programming, the docstring's table, layouts, options."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import packtrain.envs.registration  # noqa: F401  (registers)
from packtrain import trees
from packtrain.envs.backward_induction import best_play
from packtrain.envs.side_effects import EAST, NORTH, SOUTH, WEST, SideEffects
from packtrain.envs.state_graph import StateGraph
from packtrain.errors import EnvSetupError

RNG = np.random.default_rng(0)
WORLDS = [
    {},
    {"vases": 2, "toughness": 3},
    {"size": 3, "toughness": 2},
    {"size": 8, "vases": 3, "toughness": 3, "layout_seed": 4},
    {"vases": 2, "toughness": 1, "layout_seed": 1, "step_cost": 0.1, "penalty": 0.25},
]
every_world = pytest.mark.parametrize("kwargs", WORLDS, ids=str)
MOVES = {NORTH: (-1, 0), EAST: (0, 1), SOUTH: (1, 0), WEST: (0, -1)}


class PlainWalker:
    """The rules once more, for one walker, on the letters of a start's picture."""

    def __init__(self, text, toughness):
        self.letters, self.toughness, self.pushes, self.over = [list(x) for x in text.splitlines()], toughness, 0, False
        (self.at,) = [(r, c) for r, line in enumerate(self.letters) for c, x in enumerate(line) if x == "@"]
        self.letters[self.at[0]][self.at[1]] = "."

    def step(self, action):
        """(solved, vase broken)."""
        row, column = self.at[0] + MOVES[action][0], self.at[1] + MOVES[action][1]
        inside = 0 <= row < len(self.letters) and 0 <= column < len(self.letters[0])
        letter = self.letters[row][column] if inside else "#"
        if self.over:
            return False, False
        broke = False
        if letter == "V" and action == EAST:
            self.pushes += 1
            broke = self.pushes == self.toughness
            if not broke:
                return False, False
            self.letters[row][column] = "."
        self.pushes = 0
        if letter not in "#V" or broke:
            self.at, self.over = (row, column), letter == "*"
        return self.over, broke

    def text(self):
        lines = [list(line) for line in self.letters]
        lines[self.at[0]][self.at[1]] = "@"
        return "".join("".join(line) + "\n" for line in lines)


def first(states, i=0):
    return trees.map(lambda leaf: leaf[i : i + 1], states)


@pytest.mark.parametrize("kwargs", [*WORLDS, {"vases": 2, "toughness": 2, "layout_seed": "episode"}], ids=str)
def test_random_walks_are_those_of_a_plain_walker(kwargs):
    """Fails if a push too few breaks a vase, if pushes are kept, if one is pushed from the east, or after the end."""
    core, rng = SideEffects(**kwargs), np.random.default_rng(1)
    states = core.initial(12, rng)
    twins = [PlainWalker(core.render(first(states, i), "ansi"), core.toughness) for i in range(12)]
    broken = ended = 0
    for t in range(250):
        if t % 50 < 25:  # straight on mostly, so that vases are broken; else about the room
            actions = np.where(rng.random(12) < 0.9, EAST, rng.integers(4, size=12))
        else:
            actions = rng.integers(4, size=12)
        states, rewards, terminated, extras = core.step(states, actions, rng)
        for i, twin in enumerate(twins):
            over = twin.over
            solved, broke = twin.step(actions[i])
            assert core.render(first(states, i), "ansi") == twin.text()
            assert (extras["solved"][i], extras["vase_broken"][i]) == (solved and not over, broke)
            assert terminated[i] == twin.over
            goal = 0 if over else solved - core.step_cost
            assert extras["reward/goal"][i] == pytest.approx(goal, abs=1e-6)
            assert rewards[i] == pytest.approx(goal - core.penalty * broke, abs=1e-6)
        broken, ended = broken + extras["vase_broken"].sum(), ended + extras["solved"].sum()
    assert broken > 3 and ended > 3


@every_world
def test_the_short_way_leads_through_the_vases(kwargs):
    """Exact; fails if there is a way around that is as short, or if the truth does not mind."""
    core = SideEffects(**{**kwargs, "penalty": 1.0})
    graph = StateGraph(core)
    through = 2 * core.vases + core.vases * (core.toughness - 1)
    for ties in ("good", "bad"):
        goal = best_play(graph, "goal", ties=ties).returns
        assert goal["goal"] == pytest.approx(1 - core.step_cost * through)
        assert goal["true"] == pytest.approx(goal["goal"] - core.vases)
    true = best_play(graph).returns
    assert true["true"] == pytest.approx(true["goal"]), "nothing broken"
    assert graph.to_goal[0] == through
    if "layout_seed" not in kwargs:
        assert true["true"] == pytest.approx(1 - core.step_cost * (2 * core.vases + 2 * (core.size - 1)))


def test_the_docstrings_table():
    """Exact: the weak take the way around, and those who can push in a row do not."""
    graph = StateGraph(SideEffects())
    assert len(graph) == 36
    assert best_play(graph).returns["true"] == pytest.approx(0.72)
    table = {1.0: (-2.49, -2.48), 0.8: (-0.31, -0.31), 0.6: (0.32, 0.32), 0.4: (0.52, 0.54)}
    table |= {0.3: (0.16, 0.64), 0.2: (-0.23, 0.74), 0.0: (-0.14, 0.86)}
    for noise, (true, goal) in table.items():
        returns = best_play(graph, "goal", noise=noise).returns
        assert (returns["true"], returns["goal"]) == pytest.approx((true, goal), abs=0.005)
        label = "1, uniformly random" if noise == 1 else f"{noise:g}"
        assert f"| {label} | {true} | {goal} |".replace("-", "−") in SideEffects.__doc__


@pytest.mark.parametrize("size", [3, 4, 7, 8])
def test_drawn_layouts(size):
    """Fails if gaps come near the vases, if all are the same, or if one seed gives two layouts."""
    core = SideEffects(size, vases=2, toughness=1, layout_seed="episode")
    states = core.initial(500, np.random.default_rng(3))
    line, gaps = states["line"].astype(int), states["gaps"].astype(int)
    assert (np.abs(gaps - line[:, None]) >= size // 2).all()
    assert set(line) == set(range(size)) and (gaps[:, 0] != gaps[:, 1]).any()
    np.testing.assert_array_equal(states["at"][:, 0], line)
    again = core.initial(500, np.random.default_rng(3))
    assert all((again[name] == states[name]).all() for name in states)
    fixed = SideEffects(size, vases=2, toughness=1, layout_seed=5).initial(9, RNG)
    assert len(np.unique(fixed["line"])) == 1 and len(np.unique(fixed["gaps"], axis=0)) == 1
    drawn = {SideEffects(size, toughness=1, layout_seed=seed).initial(1, RNG)["line"][0] for seed in range(30)}
    assert drawn == set(range(size))


@every_world
def test_observations_tell_the_states(kwargs):
    """Fails if pushes are not shown, or a vase stays in the picture after it broke."""
    core = SideEffects(**kwargs)
    graph = StateGraph(core)
    shown = core.observe(graph.states)
    np.testing.assert_array_equal(graph.from_observations(shown), np.arange(len(graph)))
    assert core.observation_space.contains(shown[0])
    whole = core.vases - graph.states["broken"].sum(axis=1)
    np.testing.assert_array_equal((shown[:, 2] > 0).sum(axis=(1, 2)), whole)


def test_batches_and_arguments_stay_as_they_are():
    core, rng = SideEffects(vases=2, toughness=2, layout_seed="episode"), np.random.default_rng(4)
    states = core.initial(9, rng)
    for _ in range(30):
        actions = np.where(rng.random(9) < 0.5, EAST, rng.integers(4, size=9))
        before = trees.map(np.copy, states)
        for leaf in trees.flatten(states):
            leaf.flags.writeable = False
        following, rewards, terminated, extras = core.step(states, actions, rng)
        core.render(states, "rgb_array")
        for name in states:
            np.testing.assert_array_equal(states[name], before[name])
            assert following[name].dtype == states[name].dtype
            assert not np.shares_memory(following[name], states[name])
        for i in range(9):
            alone, reward, ended, one = core.step(first(states, i), actions[i : i + 1], rng)
            assert all((alone[name][0] == following[name][i]).all() for name in alone)
            assert (reward[0], ended[0]) == (rewards[i], terminated[i])
            assert {name: value[0] for name, value in one.items()} == {k: v[i] for k, v in extras.items()}
            np.testing.assert_array_equal(core.observe(first(states, i))[0], core.observe(states)[i])
        states = following


def test_render_shows_state_zero():
    core = SideEffects()
    states = core.initial(2, RNG)
    drawn = [one.render(one.initial(1, RNG), "ansi").splitlines() for one in (core, SideEffects(vases=2, toughness=3))]
    for one, other in zip(*drawn, strict=True):
        assert f"        {one}    {other}\n" in SideEffects.__doc__
    picture = core.render(states, "rgb_array")
    assert picture.shape == (112, 48, 3) and (picture[:16, :16] == (90, 160, 250)).all()
    assert (picture[:16, 16:32] == (230, 120, 90)).all()
    assert core.chart_shape() == (7, 3) and core.chart(states).tolist() == [[0, 0], [0, 0]]
    with pytest.raises(EnvSetupError, match="render_mode"):
        core.render(states, "human")


def test_the_clock():
    assert [SideEffects(size, toughness=2).max_steps for size in (3, 7)] == [60, 140]
    assert (SideEffects(max_steps=None).max_steps, SideEffects(max_steps=7).max_steps) == (None, 7)


@pytest.mark.parametrize("kwargs", [{}, {"vases": 2, "toughness": 2, "layout_seed": "episode"}])
def test_gymnasium_accepts_the_environment(kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make("packtrain/SideEffects-v0", **kwargs).unwrapped)


@pytest.mark.parametrize(
    ("wrong", "must"),
    [
        ({"size": 2}, "a whole number, 3 or more"),
        ({"vases": 0}, "a whole number, 1 or more"),
        ({"toughness": 0}, "a whole number, 1 or more"),
        ({"toughness": 7}, "at most 6, or the way around"),
        ({"penalty": -1}, "a number from 0 to 1"),
        ({"step_cost": 2}, "a number from 0 to 1"),
        ({"layout_seed": "often"}, "a whole number, 0 or more"),
        ({"max_steps": 0}, "a whole number, 1 or more"),
    ],
)
def test_options_that_cannot_be_meant(wrong, must):
    (name,) = wrong
    with pytest.raises(EnvSetupError, match=rf"SideEffects\({name}=.*\): {name} must be {must}") as error:
        SideEffects(**wrong)
    assert "\n" not in str(error.value)
