"""A wrapper that validates a Gymnasium environment, names it in errors, and replaces it if it fails."""

from __future__ import annotations

import contextlib
import copy
import time
import traceback
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs.exits import ctrl_c_raises
from packtrain.envs.failures import Failures
from packtrain.envs.user_code import cast_floats, place_of
from packtrain.envs.validation import Answer, Boundary, batch_of_one, check_structure
from packtrain.errors import EnvError
from packtrain.trees import Tree

RESET_TRIES = 10  # number of consecutive resets that may be dropped
DROPPED = "packtrain/dropped"  # info key under which a guard reports how many episodes it cut
FAILED = "packtrain/failed"  # info key: the environment failed in this step


class Guard(gym.Wrapper):
    """Wraps one Gymnasium environment: checks structure, names environment, seed and step, replaces one that fails.

    A step that fails ends the episode as a truncation with reward 0 and the last good observation. The environment is
    made again in the reset that follows.
    """

    def __init__(
        self,
        env: gym.Env,
        label: str,
        answer: Answer,
        make: Callable[[], gym.Env] | None = None,
        failures: Failures | None = None,
    ):
        """Wrap an environment; nothing is called yet.

        Args:
          env: the environment.
          label: names it in errors.
          answer: handling of bad values.
          make: makes a replacement; None: a failure is an error.
          failures: of this environment so far; None: there are none, and none are allowed.
        """
        super().__init__(env)
        self._label, self._answer, self._make = label, answer, make
        self.failures = failures or Failures(0, 0)
        self._broken = False  # the environment failed, and the next reset replaces it
        self._steps = 0
        self._good: Any = None
        self._keeps_good = answer == "drop" or self.failures.allowed > 0
        self.busy_since: float | None = None  # time.monotonic() at the beginning of the current call
        # A dropped episode must end in this environment too, so with `drop` single values are checked here.
        self._boundary = Boundary(env.observation_space, "drop", lambda _: label) if answer == "drop" else None
        self._channels = reward_channels(env)[1:]

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Reset and check the observation; a failed environment is replaced first.

        With `drop`, an episode whose first observation is bad is skipped.
        """
        if seed is not None:
            self.failures.seed = seed
        while True:
            try:
                if not self._broken:
                    return self._reset(seed, options)
                self._replace()
                return self._reset(self.failures.seed, options)
            except BaseException as error:
                self._note("reset", error)

    def _reset(self, seed: int | None, options: dict | None) -> tuple[Any, dict]:
        for dropped in range(RESET_TRIES):
            self.busy_since = time.monotonic()
            obs, info = self.env.reset(seed=seed, options=options)
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
            self.busy_since = None
            obs = cast_floats(obs, self.observation_space, self._label)
            if wrong := check_structure(obs, self.observation_space):
                if self._answer == "drop":
                    return self._good, 0.0, False, True, {DROPPED: 1}
                castable = isinstance(obs, np.ndarray) and obs.shape == self.observation_space.shape
                if self._answer == "raise" or not castable:
                    raise EnvError(f"{self._where()} returned an observation of {wrong}")
                obs = obs.astype(self.observation_space.dtype)
        except BaseException as error:
            self._note("step", error)
            return self._good, 0.0, False, True, {DROPPED: 1, FAILED: True}
        channels = {name: info.get(f"reward/{name}", 0.0) for name in self._channels}
        if self._boundary is not None and self._is_bad(obs, {"train": reward, **channels}):
            return self._good, 0.0, False, True, {DROPPED: 1}
        self._remember(obs)
        return obs, reward, bool(terminated), bool(truncated), info

    @property
    def broken(self) -> bool:
        """Return whether the environment has failed, so that the next reset replaces it."""
        return self._broken

    def snapshot(self) -> Tree:
        """Return the step counter, the failures, and the last good observation if it is kept."""
        state = {"steps": self._steps, "good": copy.deepcopy(self._good)}
        return {**state, "broken": self._broken, "failures": self.failures.snapshot()}

    def restore(self, snapshot: Tree) -> None:
        """Continue from a snapshot, after the wrapped environment has been restored unless it was broken."""
        self._steps, self._good = int(snapshot["steps"]), snapshot["good"]
        self._broken = bool(snapshot.get("broken", False))
        if "failures" in snapshot:  # earlier versions have none
            self.failures.restore(snapshot["failures"])

    def _note(self, call: str, error: BaseException) -> None:
        """Count a failure; raise it if the environment must not be replaced, or if it is the user's Ctrl-C."""
        user = isinstance(error, KeyboardInterrupt) and ctrl_c_raises()
        replaceable = self._make is not None and self.failures.allowed > 0
        if user or not (replaceable or isinstance(error, Exception)):
            raise error  # `exits_are_faults` names the environment that is busy
        self.busy_since = None
        what = f"{type(error).__name__}: {error}{place_of(error)}"
        message = str(error) if isinstance(error, EnvError) else f"{self._where()} raised in {call}: {what}"
        if not replaceable:
            raise EnvError(message) from error
        try:
            self.failures.note(message, "".join(traceback.format_exception(error)), self._steps)
        except EnvError as last:
            raise last from error
        self._broken = True

    def _replace(self) -> None:
        """Close the failed environment and make a new one, after the delay."""
        assert self._make is not None
        time.sleep(self.failures.delay)
        with contextlib.suppress(Exception):
            self.env.close()
        self._steps = 0
        self.env = self._make()  # has a deadline of its own
        self._broken = False

    def _remember(self, obs: Any) -> None:
        """Store a copy of the last good observation, since an environment may overwrite its own."""
        if self._keeps_good:
            self._good = obs.copy() if type(obs) is np.ndarray else copy.deepcopy(obs)

    def _is_bad(self, obs: Any, rewards: dict[str, float]) -> bool:
        assert self._boundary is not None
        no = np.zeros(1, bool)
        one = batch_of_one(obs, self.observation_space)
        *_, truncated = self._boundary.cross(one, {name: np.array([value]) for name, value in rewards.items()}, no, no)
        return bool(truncated[0])

    def _where(self) -> str:
        return f"{self.failures.name(self._label)} at its step {self._steps}"


def reward_channels(env: gym.Env) -> tuple[str, ...]:
    """Return the training channel first, then those that an environment or its core declares as "reward/NAME"."""
    source = getattr(env.unwrapped, "core", env.unwrapped)
    while isinstance(env, gym.Wrapper):
        if "reward_channels" in vars(env):  # a wrapper may report some, too
            source = env
            break
        env = env.env
    return ("train", *getattr(source, "reward_channels", ()))
