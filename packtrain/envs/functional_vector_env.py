"""B states of a functional core as a vector environment: one call of the core steps all."""

from __future__ import annotations

import numpy as np

from packtrain import trees
from packtrain.envs.checked_core import CheckedCore
from packtrain.envs.functional import Core
from packtrain.envs.picture import PICTURES_PER_SECOND, drawn
from packtrain.envs.validation import Answer, Boundary
from packtrain.envs.vector_env import Outcome
from packtrain.errors import EnvSetupError
from packtrain.trees import Tree


class FunctionalVectorEnv:
    """B states of a functional core, stepped as arrays.

    With `together`, an environment whose episode is over waits until all are, and all begin the next one together.
    """

    overlaps = False
    rows_last = False  # a core may return its own arrays
    times_itself = False

    def __init__(
        self,
        core: Core,
        size: int,
        seed: int,
        answer: Answer,
        name: str,
        together: bool = False,
        time_limit: int | None = None,
    ):
        self._core = CheckedCore(core, answer, lambda: self._describe(0))
        self._replaces = hasattr(core, "replaced")  # a Gymnasium environment, which can be made again
        self._max_steps = core.max_steps if time_limit is None else time_limit
        self.savable: bool = getattr(core, "savable", True)
        self._together = together
        self.observation_space, self.action_space = core.observation_space, core.action_space
        self.reward_channels = ("train", *getattr(core, "reward_channels", ()))
        self.starting = False
        self._size, self._seed, self._name = size, seed, name
        self._rng = np.random.default_rng(seed)
        self._states: Tree = None
        self._elapsed = np.zeros(size, np.int64)
        self._steps = np.zeros(size, np.int64)
        self._ended = np.zeros(size, bool)
        self._actions: Tree = None
        self.boundary = Boundary(core.observation_space, answer, self._describe)
        self.core = CheckedCore(core, answer, self._describe_search, self.boundary)  # the core for a planner's search

    @property
    def busy_since(self) -> float | None:
        """Return when the current call of the core began, by this vector environment or by a planner's search."""
        return self._core.busy_since or self.core.busy_since

    def _describe_search(self) -> str:
        where = f"environment group of {self._name}, group seed {self._seed}, at its step {self._steps.max()}"
        return f"a planner's search ({where})"

    def _describe(self, column: int) -> str:
        return f"environment {column} ({self._name}, group seed {self._seed}) at its step {self._steps[column]}"

    def reset(self) -> Outcome:
        """Return the first rows; a second reset starts again from the seed."""
        self._rng = np.random.default_rng(self._seed)
        self.starting = True
        self._states = self._core.initial(self._size, self._rng)
        self._elapsed[:] = 0
        self._ended = np.zeros(self._size, bool)
        no = np.zeros(self._size, bool)
        rewards = {channel: np.zeros(self._size, np.float32) for channel in self.reward_channels}
        obs, rewards, *_ = self.boundary.cross(self._core.observe(self._states), rewards, no, no)
        self.starting = False
        return Outcome(obs, ~no, rewards, no, no, None)

    def send(self, actions: Tree) -> None:
        """Store the actions; `recv` computes the step."""
        self._actions = actions

    def recv(self) -> Outcome:
        """Step every state; those that ended are replaced by start states instead."""
        waiting = self._ended if self._together and not self._ended.all() else None
        first = self._ended if waiting is None else np.zeros(self._size, bool)
        resets = bool(first.any())
        if resets:  # ended states are never stepped
            fresh = self._core.initial(int(first.sum()), self._rng)
            self._states = trees.map(lambda old, new: _replace(old, first, new), self._states, fresh)
        self._steps += 1  # incremented here, so that errors name this step
        states, reward, terminated, extras = self._core.step(self._states, self._actions, self._rng)
        self._elapsed += 1
        rewards = {"train": reward}
        for channel in self.reward_channels[1:]:
            rewards[channel] = extras[f"reward/{channel}"]
        if self._max_steps is None:
            truncated = np.zeros(self._size, bool)
        else:
            truncated = (self._elapsed >= self._max_steps) & ~terminated
        if resets:
            states = trees.map(lambda old, new: _replace(new, first, old[first]), self._states, states)
            rewards = {name: np.where(first, np.float32(0), value) for name, value in rewards.items()}
            terminated, truncated = terminated & ~first, truncated & ~first
            self._elapsed[first] = 0
            self._steps[first] -= 1
        if waiting is not None and waiting.any():
            states = trees.map(lambda old, new: _replace(new, waiting, old[waiting]), self._states, states)
            rewards = {name: np.where(waiting, np.float32(0), value) for name, value in rewards.items()}
            terminated, truncated = terminated & ~waiting, truncated & ~waiting
            self._elapsed[waiting] -= 1
            self._steps[waiting] -= 1
        self._states = states
        obs, rewards, terminated, truncated = self.boundary.cross(
            self._core.observe(states), rewards, terminated, truncated
        )
        if self._replaces:
            self.boundary.replaced = self._core.replaced
        self._ended = terminated | truncated if waiting is None else terminated | truncated | waiting
        return Outcome(obs, first, rewards, terminated, truncated, extras.get("solved"), waiting=waiting, info=extras)

    @property
    def states(self) -> Tree:
        """Return the current states, from which a planner searches. They must not be modified."""
        return self._states

    @property
    def all_ended(self) -> bool:
        """Return whether all episodes are over."""
        return self._states is None or bool(self._ended.all())

    def snapshot(self) -> Tree | None:
        """Return states, step counters and the generator; None if the core's states cannot be saved."""
        if not self.savable:
            return None
        return {
            "states": trees.map(np.copy, self._states),
            "elapsed": self._elapsed.copy(),
            "steps": self._steps.copy(),
            "ended": self._ended.copy(),
            "rng": self._rng.bit_generator.state,
        }

    def restore(self, snapshot: Tree) -> None:
        """Restore a snapshot."""
        self._states = trees.map(np.copy, snapshot["states"])
        self._elapsed, self._steps = snapshot["elapsed"].copy(), snapshot["steps"].copy()
        self._ended = snapshot["ended"].copy()
        self._rng.bit_generator.state = snapshot["rng"]

    def describe_busy(self) -> str:
        """Return a description of the group for errors; during a search, of the search."""
        return self._describe_search() if self.core.busy_since is not None else self._describe(0)

    def picture(self, column: int) -> np.ndarray:
        """Return the core's image."""
        render = getattr(self._core, "render", None)
        if render is None:
            raise EnvSetupError(f"{self._name!r} cannot be drawn: its core has no method render(states, mode)")
        one = trees.map(lambda leaf: leaf[column : column + 1], self._states)
        return drawn(self._name, lambda: render(one, "rgb_array"))

    def pictures_per_second(self) -> float:
        """Return the core's frame rate."""
        return float(getattr(self._core, "pictures_per_second", PICTURES_PER_SECOND))

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


def _replace(array: np.ndarray, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    array = array.copy()
    array[rows] = values
    return array
