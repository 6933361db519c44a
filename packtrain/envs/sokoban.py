"""Sokoban: push every box onto a goal. Boxes cannot be pulled, so one wrong push may make a board unsolvable."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs import options
from packtrain.envs.sokoban_levels import SYMBOLS, Level, generate_level, parse_levels, read_levels
from packtrain.errors import EnvSetupError
from packtrain.trees import Tree

UP, DOWN, LEFT, RIGHT = range(4)
PIXELS_PER_CELL = 16
COLOURS = np.array(  # in the order of the planes
    [(90, 80, 75), (235, 230, 220), (240, 150, 150), (80, 160, 80), (185, 120, 60), (60, 110, 220), (130, 90, 200)],
    np.uint8,
)
PLANES = np.eye(len(SYMBOLS), dtype=np.float32)
BOARD_OPTIONS = {  # options of generated boards with their defaults; they do not apply to given levels
    "height": 10,
    "width": 10,
    "num_boxes": 4,
    "min_pushes": 1,
    "max_pushes": None,
    "boards": 1000,
    "board_seed": 0,
}


class Sokoban:
    """A player in a store room: actions 0 up, 1 down, 2 left, 3 right.

    The player moves if the next cell is free, and pushes if it holds a box with a free cell behind; otherwise nothing
    moves. Observations are one-hot planes float32 [height, width, 7]: wall, floor, goal, box on goal, box, player,
    player on goal.

    The reward of a step is `step_reward` + `box_reward` · (boxes that came onto a goal − boxes that left one), plus
    `solved_reward` when every box stands on a goal: then the board is solved and the episode terminates.
    Steps on a solved board change nothing and have reward 0. extras["solved"] is present in every step, so that a
    truncated episode counts as not solved.

    Boards are random (`sokoban_levels.generate_level`) or read from `levels`. A start samples one of them with the
    generator of its environment, so environments with different seeds play different boards.

    Args:
      height: rows of generated boards, including the outer wall.
      width: columns of generated boards, including the outer wall.
      num_boxes: boxes (and goals) on generated boards.
      min_pushes: minimum number of pushes on generated boards (exact on small boards, see `generate_level`).
      max_pushes: maximum number of pushes; None for no limit.
      boards: number of boards. Board i is generated from `board_seed` and i when it is first used, then kept.
        None for a new board, generated with the environment's generator, in every episode.
      board_seed: 0 or more; for example, another seed for evaluation on unseen boards.
      levels: instead of generated boards, an XSB file, XSB text (of more than one line) or `Level`s; boards smaller
        than
        the largest one are padded with wall.
      step_reward: reward for every step.
      box_reward: reward for each box that comes onto a goal, and its negative for each that leaves one.
      solved_reward: reward for solving the board.
      action_noise: probability that a uniformly random action replaces the given one.
      max_steps: steps until truncation, 1 or more; None for no time limit.
    """

    changing = ("boxes", "player")  # leaves that distinguish states within an episode

    def __init__(
        self,
        height: int = 10,
        width: int = 10,
        num_boxes: int = 4,
        min_pushes: int = 1,
        max_pushes: int | None = None,
        boards: int | None = 1000,
        board_seed: int = 0,
        levels: str | os.PathLike | Sequence[Level] | None = None,
        step_reward: float = -0.1,
        box_reward: float = 1.0,
        solved_reward: float = 10.0,
        action_noise: float = 0.0,
        max_steps: int | None = 200,
    ):
        name = "Sokoban"
        self.height = options.whole_number(name, "height", height, least=3)
        self.width = options.whole_number(name, "width", width, least=3)
        self.num_boxes = options.whole_number(name, "num_boxes", num_boxes, least=1)
        self.min_pushes = options.whole_number(name, "min_pushes", min_pushes, least=1)
        self.max_pushes = max_pushes
        if max_pushes is not None:
            self.max_pushes = options.whole_number(name, "max_pushes", max_pushes, least=self.min_pushes)
        self.boards = None if boards is None else options.whole_number(name, "boards", boards, least=1)
        self.board_seed = options.whole_number(name, "board_seed", board_seed, least=0)
        self.step_reward = options.number("Sokoban", "step_reward", step_reward)
        self.box_reward = options.number("Sokoban", "box_reward", box_reward)
        self.solved_reward = options.number("Sokoban", "solved_reward", solved_reward)
        self.action_noise = options.fraction(name, "action_noise", action_noise)
        self.stochastic = self.action_noise > 0
        self.max_steps = None if max_steps is None else options.whole_number(name, "max_steps", max_steps, least=1)
        self._known: dict[int, Level] = {}  # boards generated so far
        self._starts: dict[int, Tree] = {}  # start states of boards used so far
        if levels is not None:
            for option, default in BOARD_OPTIONS.items():
                if getattr(self, option) != default:
                    raise EnvSetupError(
                        f"Sokoban({option}=...) applies to generated boards and cannot be combined with levels=..."
                    )
            self._take(_load(levels))
        self.observation_space: gym.Space = gym.spaces.Box(0, 1, (self.height, self.width, len(SYMBOLS)), np.float32)
        self.action_space: gym.Space = gym.spaces.Discrete(4)
        self.action_names = ("up", "down", "left", "right")
        self._offsets = np.array([-self.width, self.width, -1, 1], np.int32)

    def _take(self, levels: Sequence[Level]) -> None:
        """Use these levels only."""
        for number, level in enumerate(levels, start=1):
            if level.solved:
                raise EnvSetupError(
                    f"level {number} ({level.title or 'no title'}) of the Sokoban levels is already solved"
                )
        self._known = dict(enumerate(levels))
        self.boards = len(levels)
        self.height = max(level.height for level in levels)
        self.width = max(level.width for level in levels)

    def level(self, index: int) -> Level:
        """Return board `index`; its `pushes` is the length of its solution, if known."""
        if self.boards is None or not 0 <= index < self.boards:
            raise EnvSetupError(f"there is no Sokoban board {index}: boards={self.boards}")
        if index not in self._known:
            self._known[index] = self._generate(np.random.default_rng([self.board_seed, index]))
        return self._known[index]

    def _generate(self, rng: np.random.Generator) -> Level:
        return generate_level(rng, self.height, self.width, self.num_boxes, self.min_pushes, self.max_pushes)

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return random boards: walls, goals, boxes uint8 [N, height, width], player's cell [N]."""
        if self.boards is None:
            return self.states([self._generate(rng) for _ in range(n)])
        drawn = rng.integers(self.boards, size=n).tolist()
        for index in {index for index in drawn if index not in self._starts}:
            self._starts[index] = self.level(index).planes(self.height, self.width)
        return self._stack([self._starts[index] for index in drawn])

    def states(self, levels: Sequence[Level]) -> Tree:
        """Return the start states of given levels, none larger than the board."""
        return self._stack([level.planes(self.height, self.width) for level in levels])

    def _stack(self, starts: Sequence[Tree]) -> Tree:
        shapes = {leaf: (self.height, self.width) for leaf in ("walls", "goals", "boxes")} | {"player": ()}
        stacked = {}
        for leaf, shape in shapes.items():
            stacked[leaf] = np.empty((len(starts), *shape), np.int32 if leaf == "player" else np.uint8)
            for n, start in enumerate(starts):
                stacked[leaf][n] = start[leaf]
        return stacked

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Move, push or stay; extras["solved"] is true where the board becomes solved in this step."""
        n = len(states["player"])
        actions = np.asarray(actions)
        if self.action_noise:
            # Two numbers per state, so that a batch uses the same random numbers as single states.
            draws = rng.random((n, 2))
            actions = np.where(draws[:, 0] < self.action_noise, (4 * draws[:, 1]).astype(np.int64), actions)
        cells = self.height * self.width
        walls, goals = states["walls"].reshape(n, cells), states["goals"].reshape(n, cells)  # [N, H, W] → [N, H * W]
        boxes = states["boxes"].reshape(n, cells).copy()
        every = np.arange(n)
        unmatched = np.count_nonzero(boxes > goals, axis=1)
        offset = self._offsets[actions]
        ahead = states["player"] + offset
        behind = np.clip(ahead + offset, 0, cells - 1)  # outside the board only if there is a wall ahead
        box_ahead = boxes[every, ahead] == 1
        blocked = (walls[every, behind] | boxes[every, behind]) == 1
        under_way = unmatched > 0
        moves = under_way & (walls[every, ahead] == 0) & ~(box_ahead & blocked)
        (pushes,) = np.nonzero(moves & box_ahead)
        boxes[pushes, ahead[pushes]] = 0
        boxes[pushes, behind[pushes]] = 1
        gained = np.zeros(n, np.int64)
        gained[pushes] = goals[pushes, behind[pushes]].astype(np.int64) - goals[pushes, ahead[pushes]]
        solved = under_way & (gained == unmatched)
        rewards = self.step_reward + self.box_reward * gained + self.solved_reward * solved
        states = {
            "walls": states["walls"].copy(),
            "goals": states["goals"].copy(),
            "boxes": boxes.reshape(states["boxes"].shape),  # [N, H * W] → [N, H, W]
            "player": np.where(moves, ahead, states["player"]),
        }
        return states, np.where(under_way, rewards, 0).astype(np.float32), solved | ~under_way, {"solved": solved}

    def observe(self, states: Tree) -> Tree:
        """Return one-hot planes, float32 [N, height, width, 7]."""
        return PLANES.take(_codes(states), axis=0)  # several times as fast as PLANES[...]

    def states_of(self, observations: Any) -> Tree:
        """Return the states of observations, or of a model's planes, of which each cell's largest counts."""
        codes = np.asarray(observations).argmax(axis=-1)
        players = (codes >= 5).reshape(len(codes), -1)  # [N, H, W] → [N, H * W]
        return {
            "walls": (codes == 0).astype(np.uint8),
            "goals": np.isin(codes, (2, 3, 6)).astype(np.uint8),
            "boxes": np.isin(codes, (3, 4)).astype(np.uint8),
            "player": players.argmax(axis=1).astype(np.int32),
        }

    def render(self, states: Tree, mode: str) -> Any:
        """Render state 0 as XSB text or as an image."""
        options.one_of("Sokoban", "render_mode", mode, ("rgb_array", "ansi"))
        codes = _codes({leaf: array[:1] for leaf, array in states.items()})[0]
        if mode == "ansi":
            return "".join("".join(SYMBOLS[code] for code in row) + "\n" for row in codes)
        return COLOURS[codes].repeat(PIXELS_PER_CELL, axis=0).repeat(PIXELS_PER_CELL, axis=1)


def _codes(states: Tree) -> np.ndarray:
    """Return the plane that each cell belongs to, [N, height, width]."""
    goals = states["goals"]
    codes = np.where(states["walls"], 0, np.where(states["boxes"], 4 - goals, 1 + goals))
    codes.reshape(len(codes), -1)[np.arange(len(codes)), states["player"]] += 4  # floor → player, goal → player on goal
    return codes


def _load(levels: str | os.PathLike | Sequence[Level]) -> Sequence[Level]:
    """Return levels from a file, from a text, or as given."""
    if isinstance(levels, str) and "\n" in levels:
        return parse_levels(levels)
    if isinstance(levels, str | os.PathLike):
        return read_levels(levels)
    if not levels or not all(isinstance(level, Level) for level in levels):
        raise EnvSetupError(
            f"Sokoban(levels={levels!r}): levels must be an XSB file, XSB text or a list of Level objects"
        )
    return tuple(levels)
