"""Checked functional cores: each call is timed for the watchdog, and its results are validated.

Vector environments use one that checks structure; their validation checks values. Planners use one that checks both.
Faults of a core are `EnvError`s that name the environment, its seed and its step, with the core's own traceback.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain import trees
from packtrain.envs.functional import Core
from packtrain.envs.validation import Answer, Boundary, check_batch, space_leaves
from packtrain.errors import EnvError
from packtrain.trees import Tree

log = logging.getLogger("packtrain")
_FLOAT, _BOOL = np.dtype(np.float32), np.dtype(bool)


class CheckedCore:
    """A core whose calls are timed, and whose results are checked for structure.

    Rewards must be numbers [N], termination flags bool [N], and observations arrays [N, ...] of their space. An
    observation of another dtype is an error if bad values `raise`; otherwise it is cast with a warning.
    """

    def __init__(self, core: Core, answer: Answer, describe: Callable[[], str], boundary: Boundary | None = None):
        """Wrap a core; nothing is called yet.

        Args:
          core: the dynamics.
          answer: handling of bad values.
          describe: names the environment and its step, "environment 0 (Catch, group seed 7) at its step 12".
          boundary: validates the values of a search; None: the caller does.
        """
        self._boundary = boundary
        self._core, self._answer, self._describe = core, answer, describe
        self._since: float | None = None
        self._channels = tuple(getattr(core, "reward_channels", ()))
        space = core.observation_space
        self._leaves = space_leaves(space)
        # Of an observation that is a single array.
        self._dtype: Any = space.dtype if isinstance(space, gym.spaces.Box) else None
        self._shape = space.shape or ()
        self._warned = False
        if hasattr(core, "legal"):
            self.legal = self._legal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    @property
    def unwrapped(self) -> Core:
        """Return the core itself."""
        return self._core

    @property
    def busy_since(self) -> float | None:
        """Return `time.monotonic()` at the beginning of the current call.

        A core that steps states one after the other has its own `busy_since`, the time when it began the latest state.
        """
        since = self._since
        return since if since is None else max(since, getattr(self._core, "busy_since", None) or since)

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return N start states."""
        self._since = time.monotonic()
        try:
            states = self._core.initial(n, rng)
        except Exception as error:
            raise self._broken("initial", error) from error
        self._since = None
        self._check_states(states, n)
        return states

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Make one step of N states: rewards and other channels are float32 [N], terminations and "solved" bool [N]."""
        self._since = time.monotonic()
        try:
            after, rewards, terminated, extras = self._core.step(states, actions, rng)
        except Exception as error:
            raise self._broken("step", error) from error
        self._since = None
        n = _rows(actions)
        # Searches call this very often: the usual types are recognised by identity, only others are checked in detail.
        shape = (n,)
        if type(rewards) is not np.ndarray or rewards.dtype is not _FLOAT or rewards.shape != shape:
            rewards = self._numbers("rewards", rewards, n)
        if type(terminated) is not np.ndarray or terminated.dtype is not _BOOL or terminated.shape != shape:
            terminated = self._flags("terminated", terminated, n)
        if type(extras) is not dict or self._channels or not _is_flags(extras.get("solved"), shape):
            extras = self._checked_extras(extras, n)
        if type(after) is not np.ndarray or after.shape[:1] != shape:
            self._check_states(after, n)
        if self._boundary is not None:
            return self._boundary.foresee(states, after, rewards, terminated, extras, self._describe)
        return after, rewards, terminated, extras

    def observe(self, states: Tree) -> Tree:
        """Return observations [N, ...]."""
        self._since = time.monotonic()
        try:
            obs = self._core.observe(states)
        except Exception as error:
            raise self._broken("observe", error) from error
        self._since = None
        n = _rows(states)
        if type(obs) is not np.ndarray or obs.dtype != self._dtype or obs.shape != (n, *self._shape):
            wrong = check_batch(obs, self._core.observation_space, n)
            obs = obs if wrong is None else self._cast(obs, n, wrong)
        return obs if self._boundary is None else self._boundary.show(obs, self._describe)

    def _legal(self, states: Tree) -> np.ndarray:
        """Return which actions are legal, bool [N, A]."""
        self._since = time.monotonic()
        try:
            legal = self._core.legal(states)  # type: ignore[attr-defined]
        except Exception as error:
            raise self._broken("legal", error) from error
        self._since = None
        return legal

    def _check_states(self, states: Tree, n: int) -> None:
        if not _all_have_rows(states, n):
            rows = sorted({np.shape(leaf)[:1] for leaf in trees.flatten(states)})
            raise self._fault(
                f"states with {', '.join(str(one[0]) if one else 'no' for one in rows)} rows instead of {n}"
            )

    def _numbers(self, what: str, values: Any, n: int) -> np.ndarray:
        array = self._vector(what, values, n)
        if array.dtype.kind not in "fiub":
            raise self._fault(f"{what} of dtype {array.dtype}, which must be numbers")
        return array.astype(np.float32)

    def _flags(self, what: str, values: Any, n: int) -> np.ndarray:
        array = self._vector(what, values, n)
        if array.dtype != bool:
            raise self._fault(f"{what} of dtype {array.dtype}, which must be bool")
        return array

    def _vector(self, what: str, values: Any, n: int) -> np.ndarray:
        array = np.asarray(values)
        if array.shape != (n,):
            raise self._fault(f"{what} of shape {array.shape}, which must be {(n,)}")
        return array

    def _checked_extras(self, extras: Any, n: int) -> dict[str, Any]:
        extras = {} if extras is None else extras
        if not isinstance(extras, dict):
            raise self._fault(f"extras of type {type(extras).__name__}, which must be a dict")
        changed = {}
        if extras.get("solved") is not None:
            changed["solved"] = self._vector("extras['solved']", extras["solved"], n).astype(bool)
        for channel in self._channels:
            name = f"reward/{channel}"
            if name not in extras:
                raise self._fault(f"no extras[{name!r}], which its reward_channels promise")
            changed[name] = self._numbers(f"extras[{name!r}]", extras[name], n)
        return {**extras, **changed}

    def _cast(self, obs: Tree, n: int, wrong: str) -> Tree:
        try:
            cast = trees.map(lambda space, leaf: np.asarray(leaf).astype(space.dtype), self._leaves, obs)
        except (TypeError, ValueError):  # another structure, or not numeric
            cast = None
        if self._answer == "raise" or cast is None or check_batch(cast, self._core.observation_space, n):
            raise self._fault(f"an observation of {wrong}")
        if not self._warned:
            self._warned = True
            log.warning("%s returned an observation of %s: it is cast from now on", self._describe(), wrong)
        return cast

    def _fault(self, what: str) -> EnvError:
        return EnvError(f"{self._describe()} returned {what}")

    def _broken(self, call: str, error: Exception) -> EnvError:
        self._since = None
        if isinstance(error, EnvError):  # raised inside the core, which does not know the environment's name
            return EnvError(f"{self._describe()}: {error}")
        return EnvError(f"{self._describe()} raised in {call}: {type(error).__name__}: {error}")


def _is_flags(values: Any, shape: tuple[int]) -> bool:
    """Return whether these are bools of this shape, or None."""
    return values is None or (type(values) is np.ndarray and values.dtype is _BOOL and values.shape == shape)


def _rows(tree: Tree) -> int:
    """Return the number of rows of a tree of arrays: that of its first leaf."""
    while type(tree) is not np.ndarray:
        tree = next(iter(tree.values())) if isinstance(tree, dict) else tree[0]
    return len(tree)


def _all_have_rows(tree: Tree, n: int) -> bool:
    """Return whether every leaf of a tree is an array of n rows."""
    if type(tree) is np.ndarray:
        return tree.ndim > 0 and len(tree) == n
    if isinstance(tree, dict):
        return all([_all_have_rows(leaf, n) for leaf in tree.values()])
    if isinstance(tree, tuple | list):
        return all([_all_have_rows(leaf, n) for leaf in tree])
    return isinstance(tree, np.ndarray) and tree.ndim > 0 and len(tree) == n
