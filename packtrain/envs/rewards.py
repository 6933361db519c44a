"""Several rewards for the same steps: the true reward, the one to train on, and others that are only reported.

An environment has one reward and may report others as channels. `Rewards` adds channels computed by functions of a
step, and selects the one to train on. The environment's own reward is the channel "true", unless it reports one of that
name. All channels appear in metrics, evaluations and reports; learners receive "train" alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from packtrain import trees
from packtrain.config import configurable
from packtrain.envs.functional import Core
from packtrain.envs.vector_env import Outcome, VectorEnv
from packtrain.errors import ConfigError, EnvError, EnvSetupError
from packtrain.trees import Tree

TRUE = "true"
RESERVED = ("train",)


class Step(NamedTuple):
    """One step of B environments, as input of a reward function; NumPy arrays."""

    before: Tree  # [B, ...] the observation acted on
    action: Tree  # [B, ...] as the environment received it
    after: Tree  # [B, ...]
    reward: np.ndarray  # [B] the environment's own
    terminated: np.ndarray  # [B] bool
    begins: np.ndarray  # [B] bool, first step of an episode
    info: dict[str, Any]  # {name: [B, ...]} further information from the environment


RewardFunction = Callable[[Step], np.ndarray]  # [B]


@configurable
@dataclass(frozen=True)
class Rewards:
    """The reward to train on, and additional rewards."""

    train: str = TRUE  # a channel: "true", one that the environment reports, or one of `functions`
    functions: dict[str, Any] = field(default_factory=dict)  # name → function of a Step
    line: str = ""  # printed when a run begins

    def __post_init__(self) -> None:
        for name, function in self.functions.items():
            if name in RESERVED or "/" in name:
                raise ConfigError(f"Rewards.functions has {name!r}, which is not a valid channel name")
            if not callable(function):
                raise ConfigError(f"Rewards.functions[{name!r}] = {function!r} is not a function of a step")

    def channels(self, given: tuple[str, ...]) -> tuple[str, ...]:
        """Return the channels of an environment, "train" first; EnvSetupError if the training channel does not exist.

        Args:
          given: channels of the environment, "train" first.
        """
        found = tuple(dict.fromkeys([TRUE, *given[1:], *self.functions]))
        if self.train not in found:
            raise EnvSetupError(f"Rewards.train = {self.train!r} is not a reward of this environment: {sorted(found)}")
        return ("train", *found)

    def judge(self, given: dict[str, np.ndarray], step: Step, first: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Return all channels of a step, {channel: [B] float32}.

        Args:
          given: rewards of the environment, its own under "train".
          step: input of the reward functions.
          first: [B] rows after a reset, for which rewards of functions are ignored.
        """
        rewards = {TRUE: given["train"], **{name: values for name, values in given.items() if name != "train"}}
        for name, function in self.functions.items():
            values = np.asarray(function(step), np.float32)
            if values.shape != given["train"].shape:
                raise EnvError(
                    f"Rewards.functions[{name!r}] returned an array of shape {values.shape} for {len(given['train'])} "
                    "steps"
                )
            bad = ~np.isfinite(values) if first is None else ~np.isfinite(values) & ~first
            if bad.any():
                raise EnvError(f"Rewards.functions[{name!r}] returned {values[bad][0]} as a reward")
            rewards[name] = values
        return {"train": rewards[self.train], **rewards}


class RewardedVectorEnv:
    """Vector environment with additional rewards."""

    def __init__(self, columns: VectorEnv, rewards: Rewards):
        self._columns, self._rewards = columns, rewards
        self.reward_channels = rewards.channels(columns.reward_channels)
        self._before: Tree = None
        self._sent: Tree = None
        self._begins = np.zeros(0, bool)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._columns, name)

    def reset(self) -> Outcome:
        """Return the first rows."""
        return self._judged(self._columns.reset())

    def send(self, actions: Tree) -> None:
        """Start one step."""
        self._sent = actions
        self._columns.send(actions)

    def recv(self) -> Outcome:
        """Wait for that step and return its outcome."""
        return self._judged(self._columns.recv())

    def _judged(self, outcome: Outcome) -> Outcome:
        ignored = outcome.first if outcome.dropped is None else outcome.first | outcome.dropped
        if ignored.all():
            rewards = {channel: np.zeros(len(outcome.first), np.float32) for channel in self.reward_channels}
        else:
            step = Step(
                self._before,
                self._sent,
                outcome.obs,
                outcome.rewards["train"],
                outcome.terminated,
                self._begins,
                outcome.info,
            )
            rewards = self._rewards.judge(outcome.rewards, step, ignored)
            rewards = {name: np.where(ignored, np.float32(0), values) for name, values in rewards.items()}
        # Gymnasium's vector environments overwrite their observations.
        self._before = outcome.obs if self._columns.rows_last else trees.map(np.copy, outcome.obs)
        self._begins = outcome.first
        return outcome._replace(rewards=rewards)

    def snapshot(self) -> Tree | None:
        """Return the environments' snapshot, and the observations that the next step's rewards need."""
        inner = self._columns.snapshot()
        return None if inner is None else {"columns": inner, "before": self._before, "begins": self._begins.copy()}

    def restore(self, snapshot: Tree) -> None:
        """Restore a snapshot."""
        self._columns.restore(snapshot["columns"])
        self._before, self._begins = snapshot["before"], snapshot["begins"]


class RewardedCore:
    """A functional core with additional rewards: a planner's search gets the same rewards as acting."""

    def __init__(self, core: Core, rewards: Rewards):
        self._core, self._rewards = core, rewards
        given = ("train", *getattr(core, "reward_channels", ()))
        self.reward_channels = rewards.channels(given)[1:]
        self._given = given[1:]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Make the core's step; extras hold every channel as "reward/NAME"."""
        after, reward, terminated, extras = self._core.step(states, actions, rng)
        given = {"train": np.asarray(reward, np.float32)}
        given |= {name: np.asarray(extras[f"reward/{name}"], np.float32) for name in self._given}
        if self._rewards.functions:
            shown = (self._core.observe(states), actions, self._core.observe(after))
            begins = np.zeros(len(given["train"]), bool)  # states do not contain this information
            step = Step(*shown, given["train"], np.asarray(terminated), begins, {**extras, "states": states})
        else:
            step = Step(None, actions, None, given["train"], np.asarray(terminated), np.zeros(0, bool), extras)
        rewards = self._rewards.judge(given, step)
        channels = {f"reward/{name}": values for name, values in rewards.items() if name != "train"}
        return after, rewards["train"], terminated, {**extras, **channels}
