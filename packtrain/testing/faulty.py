"""An environment that breaks on purpose, for tests of what a run survives. Importing this module registers it."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs.gymnasium_state import exact_saving
from packtrain.envs.options import fraction, one_of, whole_number
from packtrain.errors import EnvSetupError

OBSERVATION_FAULTS = ("nan_obs", "inf_obs", "wrong_dtype", "wrong_shape", "out_of_space")
REWARD_FAULTS = {"nan_reward": float("nan"), "inf_reward": float("inf"), "huge_reward": 1e30}
PROCESS_FAULTS = ("raise", "hang", "spin", "exit", "segfault", "sys_exit", "interrupt", "chdir")
FAULTS = (*OBSERVATION_FAULTS, *REWARD_FAULTS, "none_info", *PROCESS_FAULTS, "random_raise")


class Faulty(gym.Env):
    """A counting task that does one wrong thing at one step, and is sound before and after.

    Sound rows: observations are float32 [3], (step of the episode, steps left, 1); the reward is the step of the
    episode; after `length` steps the episode terminates; actions do not matter. `at_step` is counted over the whole
    life of the instance, so a fault happens once in each: a rebuilt environment counts from 0 and fails again.

    | fault | what happens at `at_step` |
    | --- | --- |
    | None | nothing |
    | nan_obs, inf_obs | the first entry of the observation is NaN or +infinity |
    | wrong_dtype, wrong_shape | the observation is int64, or has 4 entries |
    | out_of_space | the first entry of the observation is −1, below the space |
    | nan_reward, inf_reward, huge_reward | the reward is NaN, +infinity or 1e30 |
    | none_info | info is None |
    | raise | a RuntimeError |
    | hang, spin | never returns: asleep in small sleeps, or busy |
    | exit, segfault | the process ends with status 1, or by SIGSEGV |
    | sys_exit, interrupt | `sys.exit(0)`, or a KeyboardInterrupt |
    | chdir | the current folder is another from then on |
    | random_raise | `at_step` is ignored: every step raises with `probability`, drawn from the seeded generator |

    Args:
      fault: one of the table.
      at_step: the step of the fault, 1 for the first; 0 for the first reset (not with a fault of the reward).
      length: steps of an episode, 1 or more.
      probability: of random_raise, for each step.
      render_mode: accepted as None only.
    """

    metadata = {"render_modes": []}

    def __init__(
        self,
        fault: str | None = None,
        at_step: int = 10,
        length: int = 20,
        probability: float = 0.01,
        render_mode: None = None,
    ):
        self.fault = one_of("Faulty", "fault", fault, (None, *FAULTS))
        self.at_step = whole_number("Faulty", "at_step", at_step, least=0)
        self.length = whole_number("Faulty", "length", length, least=1)
        self.probability = fraction("Faulty", "probability", probability)
        self.render_mode = one_of("Faulty", "render_mode", render_mode, (None,))
        if self.at_step == 0 and fault in REWARD_FAULTS:
            raise EnvSetupError(f"Faulty(fault={fault!r}, at_step=0): a reset has no reward, at_step must be 1 or more")
        self.observation_space = gym.spaces.Box(0, 1e9, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._step = 0  # step of the episode
        self._life = 0  # steps over all episodes
        self._resets = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, Any]:
        """Return step 0 of the next episode."""
        super().reset(seed=seed)
        self._step, self._resets = 0, self._resets + 1
        return self._answer(now=self.at_step == 0 and self._resets == 1)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        """Count one step, or fail."""
        self._step, self._life = self._step + 1, self._life + 1
        now = self._life == self.at_step
        if self.fault == "random_raise" and self.np_random.random() < self.probability:
            raise RuntimeError(f"Faulty raised at random at step {self._life}")
        observation, info = self._answer(now)
        reward = REWARD_FAULTS.get(self.fault, self._step) if now and self.fault else self._step
        return observation, float(reward), self._step >= self.length, False, info

    def _answer(self, now: bool) -> tuple[Any, Any]:
        """Return observation and info; if `now` is set, with the fault, if it is one of these or of the process."""
        observation = np.array([self._step, self.length - self._step, 1], np.float32)
        if not now:
            return observation, {}
        match self.fault:
            case "nan_obs":
                observation[0] = np.nan
            case "inf_obs":
                observation[0] = np.inf
            case "out_of_space":
                observation[0] = -1
            case "wrong_dtype":
                observation = observation.astype(np.int64)
            case "wrong_shape":
                observation = np.append(observation, observation[:1])
            case "none_info":
                return observation, None
            case "raise":
                raise RuntimeError(f"Faulty raised at step {self._life}, as configured")
            case "hang":
                while True:
                    time.sleep(0.05)
            case "spin":
                while True:
                    pass
            case "exit":
                os._exit(1)
            case "sys_exit":
                sys.exit(0)
            case "interrupt":
                raise KeyboardInterrupt
            case "chdir":
                os.chdir("/")
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
        return observation, {}


CALL_FAULTS = ("raise", "hang", "exit", "segfault", "nothing_back", "wrong_shape")


class Flaky(gym.Env):
    """Another environment that fails at random: each step with the same probability, and never else.

    | fault | what happens instead of a step |
    | --- | --- |
    | raise | a RuntimeError |
    | hang | sleeps for ever |
    | exit, segfault | the process ends with status 1, or by SIGSEGV |
    | nothing_back | the step returns None in place of its five results |
    | wrong_shape | the observation has one entry too many |

    Args:
      env: id of the environment, which is made without its wrappers.
      fault: one of the table.
      probability: of a fault, for each step; drawn from a generator seeded by `reset(seed=...)`.
      sound_steps: steps at the beginning of an instance's life without a fault.
      saves_generator: whether snapshots contain that generator. Without it a planner, which restores a state and steps
        again, does not meet the same fault again.
      render_mode: accepted as None only.
    """

    metadata = {"render_modes": []}

    def __init__(
        self,
        env: str = "CartPole-v1",
        fault: str = "raise",
        probability: float = 0.001,
        sound_steps: int = 0,
        saves_generator: bool = True,
        render_mode: None = None,
    ):
        self.fault = one_of("Flaky", "fault", fault, CALL_FAULTS)
        self.probability = fraction("Flaky", "probability", probability)
        self.sound_steps = whole_number("Flaky", "sound_steps", sound_steps, least=0)
        self.saves_generator = one_of("Flaky", "saves_generator", saves_generator, (False, True))
        self.render_mode = one_of("Flaky", "render_mode", render_mode, (None,))
        self._env = gym.make(env).unwrapped
        saving = exact_saving(self._env)
        if saving is None:
            raise EnvSetupError(f"Flaky(env={env!r}): it cannot be saved")
        self._saving = saving
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space
        self._faults = np.random.default_rng()
        self._life = 0  # steps of this instance

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Reset the environment; a seed determines its faults too."""
        if seed is not None:
            self._faults = np.random.default_rng([seed, 1])
        return self._env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Step the environment, or fail."""
        self._life += 1
        if self._life <= self.sound_steps or self._faults.random() >= self.probability:
            return self._env.step(action)
        match self.fault:
            case "raise":
                raise RuntimeError(f"Flaky failed at step {self._life} of its life")
            case "hang":
                time.sleep(1e6)
            case "exit":
                os._exit(1)
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "wrong_shape":
                observation, *rest = self._env.step(action)
                return np.append(observation, observation[:1]), *rest
        return None

    def snapshot(self) -> dict[str, Any]:
        """Return the state of the environment, and that of the faults if it is to be saved."""
        state = {"env": self._saving.snapshot()}
        faults = {"faults": self._faults.bit_generator.state, "life": self._life}
        return state | faults if self.saves_generator else state

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Restore what was saved."""
        self._saving.restore(snapshot["env"])
        if self.saves_generator:
            self._faults.bit_generator.state, self._life = snapshot["faults"], int(snapshot["life"])


for _name, _env, _steps in (("FlakyCartPole", "CartPole-v1", 500), ("FlakyPendulum", "Pendulum-v1", 200)):
    if f"packtrain/{_name}-v0" not in gym.registry:
        gym.register(
            f"packtrain/{_name}-v0",
            entry_point="packtrain.testing.faulty:Flaky",
            kwargs={"env": _env},
            max_episode_steps=_steps,
            disable_env_checker=True,
        )
if "packtrain/Faulty-v0" not in gym.registry:
    gym.register("packtrain/Faulty-v0", entry_point="packtrain.testing.faulty:Faulty", disable_env_checker=True)
