"""Tower of Hanoi: a sparse reward at the end of a long solution of known length, and moves that change nothing."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs import options
from packtrain.envs.categorical_factors import Factor
from packtrain.errors import EnvSetupError
from packtrain.trees import Tree

PIXELS_PER_CHARACTER = 8
COLOURS = {" ": (0, 0, 0), "|": (110, 110, 110), "=": (90, 160, 250), "-": (200, 200, 200)}


class Hanoi:
    """Disks of different size on pegs: bring all of them from the first peg to the last.

    An action names an ordered pair of pegs, in the order (0, 1), (0, 2), … (1, 0), (1, 2), …: the topmost disk of the
    first peg goes to the second. A move from an empty peg, or onto a smaller disk, is illegal: the state stays the
    same, extras["invalid_action"] is true and the reward is `reward_for_invalid_action`. When the last disk arrives the
    episode terminates, solved, with `reward_for_solved`. Every other reward is 0. Steps in a solved state change
    nothing and have reward 0.

    States are [N, disks], the peg of each disk, disk 0 the smallest. There are pegs^disks of them, and with three
    pegs the shortest solution has 2^disks − 1 moves and 3^(disks + 1) − 3 of the 6 · 3^disks pairs of state and
    action are legal: half of all actions are self-loops. Observations are one-hot, float32 [disks · pegs], disk after
    disk.

    Args:
      disks: 1 or more.
      pegs: 3 or more.
      reward_for_solved: reward of the move that solves the task.
      reward_for_invalid_action: reward of an illegal move.
      max_steps: steps until truncation, 1 or more; None for no time limit.
    """

    chart_mark = 2  # pixels per state on its chart, downward and rightward

    def __init__(
        self,
        disks: int = 7,
        pegs: int = 3,
        reward_for_solved: float = 1.0,
        reward_for_invalid_action: float = 0.0,
        max_steps: int | None = 1000,
    ):
        self.disks = options.whole_number("Hanoi", "disks", disks, least=1)
        self.pegs = options.whole_number("Hanoi", "pegs", pegs, least=3)
        self.reward_for_solved = options.number("Hanoi", "reward_for_solved", reward_for_solved)
        self.reward_for_invalid_action = options.number("Hanoi", "reward_for_invalid_action", reward_for_invalid_action)
        self.max_steps = None if max_steps is None else options.whole_number("Hanoi", "max_steps", max_steps, least=1)
        self.moves = tuple(itertools.permutations(range(self.pegs), 2))  # (from, to) of each action
        self.action_names = tuple(f"{a + 1}→{b + 1}" for a, b in self.moves)
        self._from, self._to = np.array(self.moves).T  # [A], [A]
        self._dtype = np.min_scalar_type(self.pegs - 1)
        self.observation_space: gym.Space = gym.spaces.Box(0, 1, (self.disks * self.pegs,), np.float32)
        self.action_space: gym.Space = gym.spaces.Discrete(len(self.moves))
        self.factors = tuple(Factor.one_hot(disk * self.pegs, self.pegs) for disk in range(self.disks))

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return states with all disks on peg 0: [N, disks]."""
        return np.zeros((n, self.disks), self._dtype)

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Make one move each; extras["solved"] is true where this step solved, "invalid_action" where illegal."""
        rows, ended, tops = np.arange(len(states)), self._solved(states), self._tops(states)
        disk, end = tops[rows, self._from[actions]], self._to[actions]
        legal = disk < tops[rows, end]
        moved, invalid = legal & ~ended, ~legal & ~ended
        states = states.copy()
        states[rows[moved], disk[moved]] = end[moved]
        terminated = self._solved(states)
        solved = terminated & ~ended
        rewards = np.where(solved, self.reward_for_solved, np.where(invalid, self.reward_for_invalid_action, 0.0))
        return states, rewards.astype(np.float32), terminated, {"solved": solved, "invalid_action": invalid}

    def legal(self, states: Tree) -> np.ndarray:
        """Return which moves are legal, bool [N, A]; also in a solved state, although it does not change."""
        tops = self._tops(states)
        return tops[:, self._from] < tops[:, self._to]

    def observe(self, states: Tree) -> Tree:
        """Return the peg of each disk, one-hot: float32 [N, disks · pegs]."""
        one_hot = states[:, :, None] == np.arange(self.pegs, dtype=self._dtype)
        return one_hot.astype(np.float32).reshape(len(states), -1)  # [N, disks, pegs] → [N, disks · pegs]

    def render(self, states: Tree, mode: str) -> Any:
        """Render the tower of state 0 as text or as an image of that text."""
        options.one_of("Hanoi", "render_mode", mode, ("rgb_array", "ansi"))
        width = 2 * self.disks + 1  # of the largest disk
        text = np.full((self.disks + 1, self.pegs * (width + 1) - 1), " ")
        text[:, self.disks :: width + 1] = "|"
        text[-1] = "-"
        for peg in range(self.pegs):
            middle = peg * (width + 1) + self.disks
            for above, disk in enumerate(np.flatnonzero(states[0] == peg)[::-1]):  # the largest is at the bottom
                text[self.disks - 1 - above, middle - disk - 1 : middle + disk + 2] = "="
        if mode == "ansi":
            return "".join("".join(line).rstrip() + "\n" for line in text)
        picture = np.zeros((*text.shape, 3), np.uint8)
        for character, colour in COLOURS.items():
            picture[text == character] = colour
        return picture.repeat(PIXELS_PER_CHARACTER, axis=0).repeat(PIXELS_PER_CHARACTER, axis=1)

    def chart_shape(self) -> tuple[int, int]:
        """Return the rows and columns of the chart: for three pegs, a triangle whose sides have 2^disks states."""
        if self.pegs != 3:
            raise EnvSetupError(f"Hanoi(pegs={self.pegs}): only the states of 3 pegs can be drawn on a chart")
        side = 2 ** (self.disks + 1)
        return side, side

    def chart(self, states: Tree) -> np.ndarray:
        """Return positions on the state graph as a Sierpinski triangle, [N, 2] rows and columns; a move is 2 pixels.

        The start is in the lower left corner, the goal in the lower right one, and the shortest solution is the base.
        The peg of the largest disk decides in which third of the triangle a state is. The thirds of pegs p and q touch
        where all smaller disks lie on the other peg r, so inside the third of p the corners of q and r are exchanged.
        """
        rows, _ = self.chart_shape()
        corners = np.tile(np.arange(3), (len(states), 1))  # [N, 3] corner of each peg in this third
        every = np.arange(len(states))
        up, right = np.zeros(len(states), np.int64), np.zeros(len(states), np.int64)
        for disk in reversed(range(self.disks)):  # the largest first
            peg = states[:, disk].astype(np.int64)
            corner = corners[every, peg]
            up += (corner == 1) << disk
            right += (corner == 2) << disk
            other, third = (peg + 1) % 3, (peg + 2) % 3
            corners[every, other], corners[every, third] = corners[every, third], corners[every, other]
        return np.stack((rows - 2 - 2 * up, up + 2 * right), axis=1)

    def _tops(self, states: np.ndarray) -> np.ndarray:
        """Return the topmost, that is smallest, disk of each peg, [N, pegs]; `disks` if it is empty."""
        rows, tops = np.arange(len(states)), np.full((len(states), self.pegs), self.disks)
        for disk in reversed(range(self.disks)):  # smaller disks overwrite larger ones
            tops[rows, states[:, disk]] = disk
        return tops

    def _solved(self, states: np.ndarray) -> np.ndarray:
        return (states == self.pegs - 1).all(axis=1)
