"""A table of real transitions as a model for planners: no network, and an optimistic default for untried actions.

With `default = "solved"` an untried action is predicted to end the episode solved, with reward 1 (optimism in the face
of uncertainty, R-max: Brafman and Tennenholtz 2002). A planner that looks for rewards then walks to the nearest untried
action; what really happens replaces the prediction. With "stays" an untried action is predicted to change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import gymnasium as gym
import numpy as np

from packtrain.config import configurable
from packtrain.envs.functional import Core
from packtrain.errors import ConfigError, EnvSetupError
from packtrain.hashing import observation_keys, state_action_keys
from packtrain.networks.world_model import Predicts
from packtrain.planning.learned.transition_table import TransitionTable
from packtrain.planning.model import Asking, Stepped
from packtrain.planning.nodes import NO_NODE
from packtrain.trees import Tree

Default = Literal["solved", "stays"]


@configurable
@dataclass(frozen=True)
class TabularModel:
    """Settings of a table as a model. It needs no trainer: every real step is stored at once."""

    default: Default = "solved"  # prediction for an untried action
    members: ClassVar[int] = 0  # networks
    verified_edges: ClassVar[str] = "run"  # all environments use a transition, in all later episodes

    def __post_init__(self) -> None:
        if self.default not in get_args(Default):
            choices = ", ".join(map(repr, get_args(Default)))
            raise ConfigError(f"TabularModel.default = {self.default!r} is not one of {choices}")

    def build(
        self, core: Core, seed: int, predicts: Predicts = "changes", runs: int = 1, columns: int = 0
    ) -> TableModel:
        """Return the model, without transitions; EnvSetupError unless observations are arrays and actions discrete.

        Args:
          core: the environment that is modelled; only its spaces are used.
          seed: changes nothing.
          predicts: changes nothing.
          runs: number of runs that share the model, each with transitions of its own.
          columns: number of environments of all runs together; not needed for one run.
        """
        if not isinstance(core.observation_space, gym.spaces.Box) or not isinstance(
            core.action_space, gym.spaces.Discrete
        ):
            raise EnvSetupError(
                f"TabularModel needs arrays as observations and discrete actions, not {core.observation_space} and "
                f"{core.action_space}"
            )
        return TableModel(self.default, core.action_space, runs, columns)


class TableModel:
    """Known transitions of the environments of one run or of several, and the default for others."""

    deterministic = True  # between real steps
    gives_bonus = clears_bonus = True  # the bonus of an untried action is 1, that of others 0

    def __init__(self, default: Default, action_space: gym.Space[Any], runs: int = 1, columns: int = 0):
        self.action_space: gym.Space[Any] = action_space
        self.runs = runs
        self.verified = TransitionTable()
        self._each = columns // runs if runs > 1 else 0  # environments of a run
        self._solved = default == "solved"

    def use(self, version: int) -> None:
        """Do nothing: there are no weights."""

    def begin(self, columns: np.ndarray, epoch: int) -> None:
        """Do nothing: the table is the same in every episode."""

    def roots(self, columns: np.ndarray, obs: np.ndarray) -> Tree:
        """Return the model's states for the observations of environments."""
        obs = np.asarray(obs, np.float32)
        return {"obs": obs, "key": observation_keys(obs), "run": self.run_of(columns)}

    def run_of(self, columns: np.ndarray) -> np.ndarray:
        """Return the run that environments [R] belong to, [R]."""
        return columns // self._each if self._each else np.zeros(len(columns), np.int64)

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> Asking[Stepped]:
        """Return the real transition of each state and action if it is known, else the default."""
        return self._stepped(states, np.asarray(actions))
        yield  # makes this a generator, although it sends no requests

    def guess(self, states: Tree, actions: Any) -> Asking[Stepped]:
        """Return the same as `step`."""
        return self._stepped(states, np.asarray(actions))
        yield

    def _stepped(self, states: Tree, actions: np.ndarray) -> Stepped:
        keys = state_action_keys(states["key"], actions, states["run"])
        known = self.verified.find(keys)
        untried = known == NO_NODE
        obs, rewards, terminated = (
            states["obs"].copy(),
            (untried & self._solved).astype(np.float32),
            untried & self._solved,
        )
        after_keys = np.where(terminated, keys, states["key"])  # an imagined end is a state of its own
        sure = np.flatnonzero(~untried)
        if len(sure):
            real = self.verified.take(known[sure])
            obs[sure], rewards[sure], terminated[sure] = real.after, real.reward, real.terminated
            after_keys[sure] = observation_keys(real.after)
        after = {"obs": obs, "key": after_keys, "run": states["run"]}
        return Stepped(after, rewards, terminated, terminated & (rewards > 0), untried.astype(np.float32))

    def observe(self, states: Tree) -> Tree:
        """Return the observations, with their runs if there are several."""
        return states["obs"] if self.runs == 1 else {"inputs": states["obs"], "run": states["run"]}

    def keys(self, states: Tree) -> np.ndarray:
        """Return digests of the observations, or of state and action for the end that an untried action leads to."""
        keys: np.ndarray = states["key"]
        return keys

    def legal(self, states: Tree) -> np.ndarray | None:
        """Return None: the table has no legal actions."""
        return None
