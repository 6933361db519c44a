"""A functional core that fails on purpose, in a chosen call. Importing this module registers it."""

from __future__ import annotations

import math
import time
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs.functional import register
from packtrain.envs.options import one_of, whole_number

PAUSE_SECS = 0.01
CALLS = ("make", "initial", "step", "observe", "legal")
FAULTS = (
    "hang",
    "raise",
    "nan_reward",
    "reward_shape",
    "end_dtype",
    "nan_obs",
    "float64_obs",
    "obs_shape",
    "no_extras",
)


class Sleepy:
    """Counts the steps of N states, and does one wrong thing in one call.

    States are int64 [N], the steps so far; observations float32 [N, 2], (steps, 1); each step pays 1, and an episode
    terminates after `length` steps.

    | fault | what happens in call number `at` of the kind `call`, the first is 1 |
    | --- | --- |
    | None | nothing |
    | hang, raise | it sleeps for an hour; it raises a RuntimeError |
    | nan_reward | the first reward is NaN |
    | reward_shape, end_dtype | rewards have shape [1]; ends are int64 |
    | nan_obs, float64_obs, obs_shape | the first observation is NaN; they are float64; they have 3 entries |
    | no_extras | extras are None, which is no fault |

    Args:
      fault: one of the table.
      call: make, initial, step, observe or legal.
      at: number of the call.
      rows: only calls with this many states count; 0: all. A search and the columns differ in theirs.
      length: steps of an episode; 0: it never ends.
      pause: seconds that each step takes.
    """

    max_steps = None
    observation_space = gym.spaces.Box(0, 1e9, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(
        self,
        fault: str | None = None,
        call: str = "step",
        at: int = 1,
        rows: int = 0,
        length: int = 20,
        pause: float = 0.0,
    ):
        self._fault = one_of("Sleepy", "fault", fault, (None, *FAULTS))
        self._call = one_of("Sleepy", "call", call, CALLS)
        self._at = whole_number("Sleepy", "at", at, least=1)
        self._rows = whole_number("Sleepy", "rows", rows, least=0)
        self._length = whole_number("Sleepy", "length", length, least=0)
        self._pause, self._calls = pause, 0
        self._is_due("make", 0)

    def initial(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Return N states at step 0."""
        self._is_due("initial", n)
        return np.zeros(n, np.int64)

    def step(self, states: np.ndarray, actions: Any, rng: np.random.Generator) -> tuple[Any, Any, Any, Any]:
        """Count one step."""
        # several short sleeps: a stop signal in between does not cancel the rest
        for _ in range(math.ceil(self._pause / PAUSE_SECS)):
            time.sleep(min(self._pause, PAUSE_SECS))
        fault = self._is_due("step", len(states))
        after, rewards = states + 1, np.ones(len(states), np.float32)
        ended = after >= self._length if self._length else np.zeros(len(states), bool)
        if fault == "nan_reward":
            rewards[0] = np.nan
        if fault == "reward_shape":
            rewards = rewards[:1]
        return after, rewards, ended.astype(np.int64) if fault == "end_dtype" else ended, {} if not fault else None

    def observe(self, states: np.ndarray) -> np.ndarray:
        """Return the steps so far, and 1."""
        fault = self._is_due("observe", len(states))
        obs = np.stack([states, np.ones_like(states)], axis=1).astype(np.float32)
        if fault == "nan_obs":
            obs[0] = np.nan
        if fault == "obs_shape":
            obs = np.concatenate([obs, obs[:, :1]], axis=1)
        return obs.astype(np.float64) if fault == "float64_obs" else obs

    def legal(self, states: np.ndarray) -> np.ndarray:
        """Return all actions as legal."""
        self._is_due("legal", len(states))
        return np.ones((len(states), 2), bool)

    def _is_due(self, call: str, rows: int) -> str | None:
        """Return the fault of the answer in this call; faults of the call itself are raised here."""
        if self._fault is None or call != self._call or (self._rows and rows != self._rows):
            return None
        self._calls += 1
        if self._calls != self._at:
            return None
        if self._fault == "raise":
            raise RuntimeError(f"Sleepy raised in {call}, as configured")
        if self._fault == "hang":
            end = time.monotonic() + 3600
            while time.monotonic() < end:
                time.sleep(0.05)
        return self._fault


register("packtrain/Sleepy-v0", "packtrain.testing.sleepy:Sleepy")
