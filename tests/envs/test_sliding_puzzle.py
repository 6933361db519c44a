"""SlidingPuzzle: the whole state space by brute force, starts that can be solved, moves by hand, options."""

import functools
import math

import numpy as np
import pytest

from packtrain.envs.sliding_puzzle import SlidingPuzzle
from packtrain.errors import EnvSetupError

UP, DOWN, LEFT, RIGHT = range(4)
RNG = np.random.default_rng(0)
# Boards of the 8-puzzle by distance from the goal with the blank in a corner (OEIS A089473, third row).
EIGHT_PUZZLE = [1, 2, 4, 8, 16, 20, 39, 62, 116, 152, 286, 396, 748, 1024, 1893, 2512, 4485, 5638, 9529, 10878, 16993]
EIGHT_PUZZLE += [17110, 23952, 20224, 24047, 15578, 14560, 6274, 3910, 760, 221, 2]


def numbers_of(states):
    """Boards as integers, one each."""
    cells = states.shape[1]
    return states @ cells ** np.arange(cells)


@functools.cache
def layers(size):
    """Sorted numbers of the boards at distance 0, 1, … from the goal, by steps of the core.

    A solved board rests, so the search begins at the boards one move away. Moves can be undone, hence those that
    follow a layer are the layer before it and the one after.
    """
    core = SlidingPuzzle(size, scramble=1)
    found = [numbers_of(core.goal[None])]
    states = np.unique(core.initial(100, RNG), axis=0)
    while len(states):
        found.append(np.sort(numbers_of(states)))
        actions = np.tile(np.arange(4), len(states))
        following, *_ = core.step(states.repeat(4, axis=0), actions, RNG)
        numbers, where = np.unique(numbers_of(following), return_index=True)
        states = following[where[~np.isin(numbers, [*found[-1], *found[-2]])]]
    return found


def distances(size, states):
    """Moves from the goal, [N]; −1 for boards that cannot be solved."""
    numbers = numbers_of(states)
    result = np.full(len(states), -1)
    for distance, layer in enumerate(layers(size)):
        result[np.isin(numbers, layer)] = distance
    return result


def test_eight_puzzle_has_181440_boards_and_none_farther_than_31():
    """Fails if a move wraps around an edge, or exchanges other cells than the blank and its neighbour."""
    sizes = [len(layer) for layer in layers(3)]
    assert sizes == EIGHT_PUZZLE
    assert sum(sizes) == 181_440 == math.factorial(9) // 2
    assert len(sizes) - 1 == 31


def test_two_by_two_is_a_ring_of_twelve():
    assert [len(layer) for layer in layers(2)] == [1, 2, 2, 2, 2, 2, 1]


@pytest.mark.parametrize("size", [2, 3])
def test_starts_can_be_solved_and_are_not(size):
    """Fails without the exchange that makes a board solvable, or without the second draw for solved ones."""
    states = SlidingPuzzle(size).initial(3000, np.random.default_rng(1))
    assert distances(size, states).min() >= 1


def test_starts_are_uniform_over_what_can_be_solved():
    """2 × 2: eleven boards, 1000 times each (standard deviation 30); fails if the parity keeps some out."""
    states = SlidingPuzzle(2).initial(11_000, np.random.default_rng(2))
    _, counts = np.unique(numbers_of(states), return_counts=True)
    assert len(counts) == 11
    assert abs(counts - 1000).max() < 150
    mean = distances(3, SlidingPuzzle().initial(3000, np.random.default_rng(3))).mean()
    assert mean == pytest.approx(np.average(np.arange(32), weights=EIGHT_PUZZLE), abs=0.3)  # standard error 0.06


def test_blank_starts_everywhere_on_larger_boards():
    """4 × 4 by the rule of the 15-puzzle in its usual words: fails if the blank's row is counted wrongly."""
    states = SlidingPuzzle(4).initial(400, np.random.default_rng(4))
    assert (np.sort(states, axis=1) == np.arange(16)).all()
    blank = np.argmin(states, axis=1)
    assert len(set(blank.tolist())) == 16
    for board, cell in zip(states.tolist(), blank.tolist(), strict=True):
        tiles = [tile for tile in board if tile]
        inversions = sum(tiles[j] > tiles[i] for i in range(15) for j in range(i))
        row_from_below = 4 - cell // 4  # 1 for the last row
        assert inversions % 2 != row_from_below % 2


@pytest.mark.parametrize("scramble", [1, 2, 5, 12])
def test_scrambled_starts_are_that_many_moves_away_or_less(scramble):
    """Fails if an illegal move is counted (parity), or if a solved board is handed out."""
    found = distances(3, SlidingPuzzle(3, scramble).initial(2000, np.random.default_rng(5)))
    assert found.min() >= 1 and found.max() <= scramble
    assert (found % 2 == scramble % 2).all()
    assert found.max() == scramble or scramble > 5


def test_scrambling_chooses_uniformly_among_legal_moves():
    """After two moves that do not return: 2 ways out of the corner, 2 from there; four boards, equally often."""
    states = SlidingPuzzle(3, scramble=2).initial(8000, np.random.default_rng(6))
    _, counts = np.unique(numbers_of(states), return_counts=True)
    assert len(counts) == 4
    assert abs(counts - 2000).max() < 200  # standard deviation 39


@pytest.mark.parametrize(
    ("board", "action", "following", "reward", "invalid"),
    [
        ([1, 2, 3, 4, 0, 5, 7, 8, 6], UP, [1, 0, 3, 4, 2, 5, 7, 8, 6], 0, False),
        ([1, 2, 3, 4, 0, 5, 7, 8, 6], DOWN, [1, 2, 3, 4, 8, 5, 7, 0, 6], 0, False),
        ([1, 2, 3, 4, 0, 5, 7, 8, 6], LEFT, [1, 2, 3, 0, 4, 5, 7, 8, 6], 0, False),
        ([1, 2, 3, 4, 0, 5, 7, 8, 6], RIGHT, [1, 2, 3, 4, 5, 0, 7, 8, 6], 0, False),
        ([1, 2, 3, 4, 5, 0, 7, 8, 6], RIGHT, [1, 2, 3, 4, 5, 0, 7, 8, 6], 0, True),  # no way round the edge
        ([1, 2, 3, 0, 4, 5, 7, 8, 6], LEFT, [1, 2, 3, 0, 4, 5, 7, 8, 6], 0, True),
        ([1, 0, 3, 4, 2, 5, 7, 8, 6], UP, [1, 0, 3, 4, 2, 5, 7, 8, 6], 0, True),
        ([1, 2, 3, 4, 8, 5, 7, 0, 6], DOWN, [1, 2, 3, 4, 8, 5, 7, 0, 6], 0, True),
        ([1, 2, 3, 4, 5, 0, 7, 8, 6], DOWN, [1, 2, 3, 4, 5, 6, 7, 8, 0], 1, False),
        ([1, 2, 3, 4, 5, 6, 7, 8, 0], UP, [1, 2, 3, 4, 5, 6, 7, 8, 0], 0, False),  # a solved board rests
        ([1, 2, 3, 4, 5, 6, 7, 8, 0], DOWN, [1, 2, 3, 4, 5, 6, 7, 8, 0], 0, False),
    ],
)
def test_moves_by_hand(board, action, following, reward, invalid):
    core = SlidingPuzzle()
    states, rewards, terminated, extras = core.step(np.array([board], np.uint8), np.array([action]), RNG)
    assert states.tolist() == [following]
    assert rewards[0] == extras["solved"][0] == reward
    assert terminated[0] == (following == [1, 2, 3, 4, 5, 6, 7, 8, 0])
    assert extras["invalid_action"][0] == invalid


def test_legal_moves_by_the_cell_of_the_blank():
    boards = np.array([np.roll(np.arange(9), cell) for cell in range(9)], np.uint8)  # the blank in every cell
    assert SlidingPuzzle().legal(boards).sum(axis=1).tolist() == [2, 3, 2, 3, 4, 3, 2, 3, 2]
    assert SlidingPuzzle().legal(boards)[0].tolist() == [False, True, False, True]


def test_observation_is_one_hot_cell_after_cell():
    observation = SlidingPuzzle(2).observe(np.array([[3, 1, 0, 2]], np.uint8))
    assert observation.reshape(4, 4).tolist() == [[0, 0, 0, 1], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0]]


def test_large_boards_keep_their_tiles_apart():
    """17 × 17 needs numbers above 255; fails if states are always uint8."""
    states = SlidingPuzzle(17, scramble=3).initial(2, RNG)
    assert (np.sort(states, axis=1) == np.arange(289)).all()


def test_render_shows_state_zero():
    core, states = SlidingPuzzle(), np.array([[1, 2, 3, 4, 0, 5, 7, 8, 6], np.arange(9)], np.uint8)
    assert core.render(states, "ansi") == "1 2 3\n4 . 5\n7 8 6\n"
    larger = SlidingPuzzle(4)
    lines = [" 1  2  3  4", " 5  6  7  8", " 9 10 11 12", "13 14 15  ."]
    assert larger.render(larger.goal[None], "ansi") == "\n".join(lines) + "\n"
    picture = core.render(states, "rgb_array")
    assert picture.shape == (48, 48, 3) and picture.dtype == np.uint8
    assert not picture[16:32, 16:32].any()
    colours = {tuple(picture[16 * row, 16 * column]) for row in range(3) for column in range(3)}
    assert len(colours) == 9, "every tile has its own"
    with pytest.raises(EnvSetupError, match="render_mode"):
        core.render(states, "human")


@pytest.mark.parametrize("wrong", [{"size": 1}, {"size": 3.0}, {"scramble": 0}, {"scramble": "9"}, {"max_steps": 0}])
def test_options_that_cannot_be_meant(wrong):
    (name,) = wrong
    with pytest.raises(EnvSetupError, match=rf"SlidingPuzzle\({name}=.*\): {name} must be a whole number") as error:
        SlidingPuzzle(**wrong)
    assert "\n" not in str(error.value)
    assert SlidingPuzzle(max_steps=None).max_steps is None
