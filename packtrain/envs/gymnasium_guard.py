"""A wrapper that validates a Gymnasium environment, and names environment, seed and step in errors."""

from __future__ import annotations

import copy
import time
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs.user_code import cast_floats, place_of
from packtrain.envs.validation import Answer, Boundary, batch_of_one, check_structure
from packtrain.errors import EnvError
from packtrain.trees import Tree

RESET_TRIES = 10  # number of consecutive resets that may be dropped
DROPPED = "packtrain/dropped"  # info key under which a guard reports how many episodes it cut


class Guard(gym.Wrapper):
    """Wraps one Gymnasium environment: checks structure, and names environment, seed and step in errors."""

    def __init__(self, env: gym.Env, label: str, answer: Answer):
        super().__init__(env)
        self._label, self._answer = label, answer
        self._steps = 0
        self._good: Any = None
        self.busy_since: float | None = None  # time.monotonic() at the beginning of the current call
        # A dropped episode must end in this environment too, so with `drop` single values are checked here.
        self._boundary = Boundary(env.observation_space, "drop", lambda _: label) if answer == "drop" else None
        self._channels = reward_channels(env)[1:]

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Reset and check the observation. With `drop`, an episode whose first observation is bad is skipped."""
        for dropped in range(RESET_TRIES):
            self.busy_since = time.monotonic()
            try:
                obs, info = self.env.reset(seed=seed, options=options)
            except Exception as error:
                raise self._broken("reset", error) from error
            self.busy_since = None
            obs = cast_floats(obs, self.observation_space, self._label)
            if wrong := check_structure(obs, self.observation_space):
                raise EnvError(f"{self._where()} returned an observation of {wrong} from reset")
            if self._boundary is None or not self._is_bad(obs, {}):
                self._remember(obs)
                return obs, {**(info or {}), DROPPED: dropped}
            seed = None  # the same seed would give the same observation
        raise EnvError(f"{self._where()} returned a bad observation from {RESET_TRIES} resets in a row")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Step and check the result."""
        self._steps += 1
        self.busy_since = time.monotonic()
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
            reward, info = float(reward), info or {}
        except Exception as error:
            raise self._broken("step", error) from error
        self.busy_since = None
        obs = cast_floats(obs, self.observation_space, self._label)
        if wrong := check_structure(obs, self.observation_space):
            if self._answer == "drop":
                return self._good, 0.0, False, True, {DROPPED: 1}
            castable = isinstance(obs, np.ndarray) and obs.shape == self.observation_space.shape
            if self._answer == "raise" or not castable:
                raise EnvError(f"{self._where()} returned an observation of {wrong}")
            obs = obs.astype(self.observation_space.dtype)
        channels = {name: info.get(f"reward/{name}", 0.0) for name in self._channels}
        if self._boundary is not None and self._is_bad(obs, {"train": reward, **channels}):
            return self._good, 0.0, False, True, {DROPPED: 1}
        self._remember(obs)
        return obs, reward, bool(terminated), bool(truncated), info

    def snapshot(self) -> Tree:
        """Return the step counter, and the last good observation if it is kept."""
        return {"steps": self._steps, "good": copy.deepcopy(self._good)}

    def restore(self, snapshot: Tree) -> None:
        """Continue from a snapshot, after the wrapped environment has been restored."""
        self._steps, self._good = int(snapshot["steps"]), snapshot["good"]

    def _remember(self, obs: Any) -> None:
        """Store a copy of the last good observation for `drop`, since an environment may overwrite its own."""
        if self._answer == "drop":
            self._good = copy.deepcopy(obs)

    def _is_bad(self, obs: Any, rewards: dict[str, float]) -> bool:
        assert self._boundary is not None
        no = np.zeros(1, bool)
        one = batch_of_one(obs, self.observation_space)
        *_, truncated = self._boundary.cross(one, {name: np.array([value]) for name, value in rewards.items()}, no, no)
        return bool(truncated[0])

    def _where(self) -> str:
        return f"{self._label} at its step {self._steps}"

    def _broken(self, call: str, error: Exception) -> EnvError:
        self.busy_since = None
        return EnvError(f"{self._where()} raised in {call}: {type(error).__name__}: {error}{place_of(error)}")


def reward_channels(env: gym.Env) -> tuple[str, ...]:
    """Return the training channel first, then those that an environment or its core declares as "reward/NAME"."""
    source = getattr(env.unwrapped, "core", env.unwrapped)
    while isinstance(env, gym.Wrapper):
        if "reward_channels" in vars(env):  # a wrapper may report some, too
            source = env
            break
        env = env.env
    return ("train", *getattr(source, "reward_channels", ()))
