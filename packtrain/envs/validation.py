"""Validation of values from environments: detection and handling of bad ones.

A value is bad if it is NaN or infinite, if an observation is outside its space, or if a reward is so large that its
square overflows float32. There are three ways to handle it: `raise` stops the run with one line, `drop` ends that
episode one step earlier (as a truncation, at the last good observation), `clip` clips the value. All are counted.
Values in a planner's search are handled in the same way, but there is no episode to end: see `foresee` and `show`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from packtrain import trees
from packtrain.errors import EnvError, EnvSetupError
from packtrain.trees import Tree

Answer = Literal["raise", "drop", "clip"]
REWARD_LIMIT = 1e18  # its square still fits float32
_GOES_ON = "Environment.on_bad_value = 'drop' or 'clip' would go on"


def space_leaves(space: gym.Space) -> Tree:
    """Return Dict and Tuple spaces as a tree of leaf spaces; EnvSetupError for kinds that cannot be stored."""
    if isinstance(space, gym.spaces.Dict):
        return {key: space_leaves(inner) for key, inner in sorted(space.spaces.items())}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(space_leaves(inner) for inner in space.spaces)
    known = (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)
    if not isinstance(space, known):
        raise EnvSetupError(
            f"a {type(space).__name__} space cannot be stored as arrays; "
            "Box, Discrete, MultiDiscrete, MultiBinary and Dict or Tuple of these can"
        )
    if isinstance(space, gym.spaces.Box) and 0 in space.shape:
        raise EnvSetupError(f"a Box space of shape {space.shape} has no elements")
    return space


def check_structure(obs: Any, space: gym.Space) -> str | None:
    """Return what is wrong with the dtype, shape or structure of one observation; None if nothing is."""
    if isinstance(space, gym.spaces.Dict):
        if not isinstance(obs, dict) or set(obs) != set(space.spaces):
            return f"keys {sorted(obs) if isinstance(obs, dict) else type(obs).__name__}, space says {list(space)}"
        wrong = [(key, check_structure(obs[key], inner)) for key, inner in space.spaces.items()]
        return next((f"{key}: {text}" for key, text in wrong if text), None)
    if isinstance(space, gym.spaces.Tuple):
        if not isinstance(obs, tuple) or len(obs) != len(space.spaces):
            return f"{type(obs).__name__}, space says a tuple of {len(space.spaces)}"
        parts = [check_structure(one, inner) for one, inner in zip(obs, space.spaces, strict=True)]
        return next((f"{index}: {text}" for index, text in enumerate(parts) if text), None)
    dtype = getattr(obs, "dtype", None)
    if isinstance(space, gym.spaces.Discrete):  # most environments return plain ints
        return None if isinstance(obs, (int, np.integer)) else f"dtype {dtype or type(obs).__name__}, space says int"
    if dtype != space.dtype:
        return f"dtype {dtype or type(obs).__name__}, space says {space.dtype}"
    if obs.shape != space.shape:
        return f"shape {obs.shape}, space says {space.shape}"
    return None


def check_batch(obs: Any, space: gym.Space, size: int) -> str | None:
    """Return what is wrong with the dtype, shape or structure of a batch of `size` observations; None if nothing is."""
    if isinstance(space, gym.spaces.Dict):
        if not isinstance(obs, dict) or set(obs) != set(space.spaces):
            return f"keys {sorted(obs) if isinstance(obs, dict) else type(obs).__name__}, space says {list(space)}"
        wrong = [(key, check_batch(obs[key], inner, size)) for key, inner in space.spaces.items()]
        return next((f"{key}: {text}" for key, text in wrong if text), None)
    if isinstance(space, gym.spaces.Tuple):
        if not isinstance(obs, tuple) or len(obs) != len(space.spaces):
            return f"{type(obs).__name__}, space says a tuple of {len(space.spaces)}"
        parts = [check_batch(one, inner, size) for one, inner in zip(obs, space.spaces, strict=True)]
        return next((f"{index}: {text}" for index, text in enumerate(parts) if text), None)
    if not isinstance(obs, np.ndarray):
        return f"type {type(obs).__name__}, space says an array of {space.dtype}"
    whole = isinstance(space, gym.spaces.Discrete) and np.issubdtype(obs.dtype, np.integer)
    if obs.dtype != space.dtype and not whole:
        return f"dtype {obs.dtype}, space says {space.dtype}"
    assert space.shape is not None
    if obs.shape != (size, *space.shape):
        return f"shape {obs.shape}, space says {(size, *space.shape)}"
    return None


def batch_of_one(obs: Any, space: gym.Space) -> Tree:
    """Return one observation as arrays [1, ...] in plain dicts and tuples, whatever mapping the environment uses."""
    if isinstance(space, gym.spaces.Dict):
        return {key: batch_of_one(obs[key], inner) for key, inner in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(batch_of_one(one, inner) for one, inner in zip(obs, space.spaces, strict=True))
    return np.asarray(obs)[None]


class Boundary:
    """Validates each batch of outcomes."""

    def __init__(self, space: gym.Space, answer: Answer, describe: Callable[[int], str]):
        """Create the validation of one group of environments.

        Args:
          space: observation space of one environment.
          answer: handling of a bad value.
          describe: index → "environment 3 (CartPole-v1, seed 1017) at its step 48213".
        """
        self._leaves = trees.flatten(space_leaves(space))
        self._bounds = [_bounds(leaf) for leaf in self._leaves]
        self._limits = [_limits(*bounds) for bounds in self._bounds]
        self._answer = answer
        self._describe = describe
        self._last_good: list[np.ndarray] | None = None
        self.dropped = 0  # number of episodes
        self.clipped = 0  # number of rows
        self.replaced = 0  # number of environments that failed and were made again
        self.unforeseen = 0  # number of search steps that were left out

    def cross(
        self, obs: Tree, rewards: dict[str, np.ndarray], terminated: np.ndarray, truncated: np.ndarray
    ) -> tuple[Tree, dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """Return the outcome with bad values handled; `raise` raises EnvError with environment, field and step."""
        leaves = trees.flatten(obs)
        bad: np.ndarray | None = None
        for leaf, (low, high) in zip(leaves, self._bounds, strict=True):
            if low is None:
                continue
            with np.errstate(invalid="ignore"):
                inside = (leaf >= low) & (leaf <= high)  # NaN is never inside
            if not inside.all():
                wrong = ~inside.reshape(len(leaf), -1).all(axis=1)
                self._refuse(wrong, "an observation with " + _name(leaf[wrong]) + " that is outside its space")
                bad = wrong if bad is None else bad | wrong
        for channel, reward in rewards.items():
            inside = np.abs(reward) <= REWARD_LIMIT
            if not inside.all():
                wrong = ~inside
                self._refuse(
                    wrong, f"a reward of {reward[wrong][0]}" + f" in channel {channel!r}" * (channel != "train")
                )
                bad = wrong if bad is None else bad | wrong
        if bad is not None:
            if self._answer == "clip":
                self.clipped += int(bad.sum())
                obs = trees.pack(obs, [_clip(x, *b) for x, b in zip(leaves, self._bounds, strict=True)])
                rewards = {name: np.clip(np.nan_to_num(r), -REWARD_LIMIT, REWARD_LIMIT) for name, r in rewards.items()}
            else:
                self.dropped += int(bad.sum())
                good = self._last_good or [np.zeros_like(leaf) for leaf in leaves]
                obs = trees.pack(obs, [_where(bad, g, x) for g, x in zip(good, leaves, strict=True)])
                rewards = {name: np.where(bad, 0, reward).astype(np.float32) for name, reward in rewards.items()}
                terminated, truncated = terminated & ~bad, truncated | bad
            leaves = trees.flatten(obs)
        if self._answer == "drop":
            self._last_good = [np.array(leaf) for leaf in leaves]
        return obs, rewards, terminated, truncated

    def foresee(
        self,
        before: Tree,
        after: Tree,
        rewards: np.ndarray,
        terminated: np.ndarray,
        extras: dict[str, Any],
        where: Callable[[], str],
    ) -> tuple[Tree, np.ndarray, np.ndarray, dict[str, Any]]:
        """Return N steps of a planner's search with bad rewards handled; `raise` raises EnvError.

        A search has no episode to end, so with `drop` an action with a bad reward keeps the state, with reward 0.

        Args:
          before: [N, ...] the states that were stepped.
          after: [N, ...] the next states.
          rewards: [N] float32.
          terminated: [N] bool.
          extras: from the core; "solved" is handled too.
          where: names the environment and its step.
        """
        # One product checks all: it is NaN or infinite if any reward is, and large rewards are checked exactly.
        with np.errstate(over="ignore"):
            if np.dot(rewards, rewards) < REWARD_LIMIT:
                return after, rewards, terminated, extras
        bad = ~(np.abs(rewards) <= REWARD_LIMIT)
        if not bad.any():
            return after, rewards, terminated, extras
        if self._answer == "raise":
            raise EnvError(f"{where()} returned a reward of {rewards[bad][0]}; {_GOES_ON}")
        if self._answer == "clip":
            self.clipped += int(bad.sum())
            return after, np.clip(np.nan_to_num(rewards), -REWARD_LIMIT, REWARD_LIMIT), terminated, extras
        self.unforeseen += int(bad.sum())
        after = trees.map(lambda old, new: _where(bad, old, new), before, after)
        if "solved" in extras:
            extras = {**extras, "solved": extras["solved"] & ~bad}
        return after, np.where(bad, np.float32(0), rewards), terminated & ~bad, extras

    def show(self, obs: Tree, where: Callable[[], str]) -> Tree:
        """Return observations [N, ...] of a planner's search; bad ones are clipped unless bad values `raise`."""
        leaves, bad = [obs] if type(obs) is np.ndarray else trees.flatten(obs), None
        for leaf, (low, high), limits in zip(leaves, self._bounds, self._limits, strict=True):
            if low is None or (limits is not None and _within(leaf, *limits)):
                continue
            with np.errstate(invalid="ignore"):
                inside = (leaf >= low) & (leaf <= high)  # NaN is never inside
            if not inside.all():
                wrong = ~inside.reshape(len(leaf), -1).all(axis=1)
                if self._answer == "raise":
                    what = f"an observation with {_name(leaf[wrong])} that is outside its space"
                    raise EnvError(f"{where()} returned {what}; {_GOES_ON}")
                bad = wrong if bad is None else bad | wrong
        if bad is None:
            return obs
        self.clipped += int(bad.sum())
        return trees.pack(obs, [_clip(leaf, *bounds) for leaf, bounds in zip(leaves, self._bounds, strict=True)])

    def _refuse(self, wrong: np.ndarray, what: str) -> None:
        if self._answer == "raise":
            raise EnvError(f"{self._describe(int(np.nonzero(wrong)[0][0]))} returned {what}; {_GOES_ON}")


def _bounds(space: gym.Space) -> tuple[Any, Any]:
    """Return (low, high) bounds of an array of this space, or (None, None) if its dtype implies them."""
    if isinstance(space, gym.spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, gym.spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    if isinstance(space, gym.spaces.MultiBinary):
        return 0, 1
    assert isinstance(space, gym.spaces.Box)
    if np.issubdtype(space.dtype, np.integer):
        limits = np.iinfo(space.dtype)
        full = (space.low == limits.min).all() and (space.high == limits.max).all()
        return (None, None) if full else (space.low, space.high)
    # Infinite bounds still exclude infinity, and values that overflow a network's float32.
    largest = min(np.finfo(space.dtype).max, np.finfo(np.float32).max)
    return np.maximum(space.low, -largest), np.minimum(space.high, largest)


def _limits(low: Any, high: Any) -> tuple[float, float] | None:
    """Return the bounds as two numbers if they are equal for all entries, otherwise None."""
    if low is None or np.ptp(low) > 0 or np.ptp(high) > 0:
        return None
    return np.max(low).item(), np.min(high).item()


def _within(leaf: np.ndarray, low: float, high: float) -> bool:
    """Return whether all entries lie within the bounds; minimum and maximum of values with a NaN are NaN."""
    return np.minimum.reduce(leaf, axis=None) >= low and np.maximum.reduce(leaf, axis=None) <= high


def _clip(leaf: np.ndarray, low: Any, high: Any) -> np.ndarray:
    if low is None:
        return leaf
    if np.issubdtype(leaf.dtype, np.floating):
        leaf = np.nan_to_num(leaf, nan=0.0, posinf=None, neginf=None)
    return np.clip(leaf, low, high).astype(leaf.dtype)


def _where(column: np.ndarray, yes: np.ndarray, no: np.ndarray) -> np.ndarray:
    return np.where(column.reshape(-1, *[1] * (no.ndim - 1)), yes, no)


def _name(values: np.ndarray) -> str:
    if np.issubdtype(values.dtype, np.floating):
        if np.isnan(values).any():
            return "NaN"
        if np.isinf(values).any():
            return "infinity"
    return "a value"
