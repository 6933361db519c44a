"""BinPacking: items arrive one by one, and each is put into a bag at once. Later items are unknown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs import options
from packtrain.errors import EnvSetupError
from packtrain.trees import Tree

PIXELS_PER_CELL = 8
BAG_COLOUR, ITEM_COLOUR = (90, 160, 250), (250, 200, 60)
MOST_SHOWN = 40  # bags of one level in an image


class BinPacking:
    """Put each item into an open bag with enough room, or into a new one, with little waste.

    Action a puts the item into a bag filled to level a; action 0 opens a new bag. If no bag has that level, or the
    item does not fit, a new bag is opened instead and extras["invalid_action"] is true. The reward is minus the
    added waste, in units of `reward_scale`: −(bag_capacity − item) for a new bag, + item for an old one. A full
    bag is removed. The next item is sampled from `probabilities`.

    Without `time_in_observation`, episodes are truncated after `time_horizon` items, and states do not depend on time.
    With `time_in_observation` the remaining time is part of the state, and the episode terminates when it is used up;
    later steps change nothing and have reward 0.

    States are [N, bag_capacity + 1], the number of bags at each level from 0 (always none), then the item's size; with
    `time_in_observation` the number of remaining items, this one included, at the end. Observations are the same as
    float32: numbers of bags · bin_observation_scale, the size as it is, the time left as a fraction of `time_horizon`.

    Args:
      bag_capacity: 2 or more.
      item_sizes: whole numbers from 1 to bag_capacity, no two equal.
      probabilities: of the sizes; they sum to 1.
      time_horizon: items in an episode, 1 or more; None for no time limit.
      reward_scale: every reward is multiplied by it.
      bin_observation_scale: numbers of bags in observations are multiplied by it; above 0.
      time_in_observation: whether observations include the time left.
    """

    stochastic = True  # the items

    def __init__(
        self,
        bag_capacity: int = 9,
        item_sizes: Sequence[int] = (2, 3),
        probabilities: Sequence[float] = (0.8, 0.2),
        time_horizon: int | None = 1000,
        reward_scale: float = 1.0,
        bin_observation_scale: float = 1.0,
        time_in_observation: bool = False,
    ):
        name = "BinPacking"
        self.bag_capacity = options.whole_number(name, "bag_capacity", bag_capacity, least=2)
        for option, value in (("item_sizes", item_sizes), ("probabilities", probabilities)):
            if not isinstance(value, list | tuple):
                raise EnvSetupError(f"{name}({option}={value!r}): {option} must be a tuple of numbers")
        self.item_sizes = tuple(options.whole_number(name, "item_sizes", size, least=1) for size in item_sizes)
        self.probabilities = tuple(options.fraction(name, "probabilities", share) for share in probabilities)
        self.time_horizon = time_horizon
        if time_horizon is not None:
            self.time_horizon = options.whole_number(name, "time_horizon", time_horizon, least=1)
        self.reward_scale = options.number(name, "reward_scale", reward_scale)
        self.bin_observation_scale = options.number(name, "bin_observation_scale", bin_observation_scale)
        self.time_in_observation = options.one_of(name, "time_in_observation", time_in_observation, (False, True))
        self._check()
        self.max_steps: int | None = None if self.time_in_observation else self.time_horizon
        self._sizes = np.array(self.item_sizes)
        self._thresholds = np.cumsum(self.probabilities)
        # Rounding: the last possible size takes the rest.
        self._thresholds[self._thresholds > self._thresholds[-1] - 1e-9] = np.inf
        most = np.inf if self.time_horizon is None else self.time_horizon
        high = np.full(self.bag_capacity + 1 + self.time_in_observation, most * self.bin_observation_scale, np.float32)
        high[self.bag_capacity] = max(self.item_sizes)
        if self.time_in_observation:
            high[-1] = 1
        self.observation_space: gym.Space = gym.spaces.Box(np.zeros_like(high), high, dtype=np.float32)
        self.action_space: gym.Space = gym.spaces.Discrete(self.bag_capacity)

    def _check(self) -> None:
        """Raise an EnvSetupError for options that do not fit together."""
        if not self.item_sizes or len(set(self.item_sizes)) < len(self.item_sizes):
            raise EnvSetupError(
                f"BinPacking(item_sizes={self.item_sizes}): item_sizes must be one or more, all different"
            )
        if max(self.item_sizes) > self.bag_capacity:
            problem = f"an item of {max(self.item_sizes)} does not fit into a bag of {self.bag_capacity}"
            raise EnvSetupError(f"BinPacking(item_sizes={self.item_sizes}): {problem}")
        if len(self.probabilities) != len(self.item_sizes) or not math.isclose(
            sum(self.probabilities), 1, abs_tol=1e-6
        ):
            problem = f"probabilities must be {len(self.item_sizes)}, one for each item size, and sum to 1"
            raise EnvSetupError(f"BinPacking(probabilities={self.probabilities}): {problem}")
        if self.bin_observation_scale <= 0:
            problem = "bin_observation_scale must be above 0"
            raise EnvSetupError(f"BinPacking(bin_observation_scale={self.bin_observation_scale}): {problem}")
        if self.time_in_observation and self.time_horizon is None:
            raise EnvSetupError("BinPacking(time_in_observation=True) needs a time_horizon")

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return states without bags and with a first item."""
        states = np.zeros((n, self.bag_capacity + 1 + self.time_in_observation), np.uint32)
        states[:, self.bag_capacity] = self._items(n, rng)
        if self.time_in_observation:
            states[:, -1] = self.time_horizon
        return states

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Put one item into a bag; extras["invalid_action"] is true where a new bag replaced the chosen one."""
        rows, items = np.arange(len(states)), states[:, self.bag_capacity].astype(np.int64)
        under_way = items > 0
        legal = self.legal(states)[rows, actions]
        level = np.where(legal, actions, 0)  # level of the chosen bag; 0 is a new one
        filled = level + items
        old, open_still = under_way & (level > 0), under_way & (filled < self.bag_capacity)
        states = states.copy()
        states[rows[old], level[old]] -= 1
        states[rows[open_still], filled[open_still]] += 1
        following = self._items(len(states), rng)
        if self.time_in_observation:
            states[:, -1] -= under_way
            following[states[:, -1] == 0] = 0
        states[:, self.bag_capacity] = following
        rewards = np.where(under_way, np.where(level > 0, items, items - self.bag_capacity), 0) * self.reward_scale
        return states, rewards.astype(np.float32), following == 0, {"invalid_action": ~legal & under_way}

    def legal(self, states: Tree) -> np.ndarray:
        """Return which levels have a bag with room for the item, and always a new bag: bool [N, A]."""
        levels = np.arange(self.bag_capacity)
        room = levels + states[:, self.bag_capacity, None] <= self.bag_capacity
        legal = (states[:, : self.bag_capacity] > 0) & room
        legal[:, 0] = True
        return legal

    def observe(self, states: Tree) -> Tree:
        """Return bags at each level, the item and optionally the time left: float32 [N, …]."""
        observations = states.astype(np.float32)
        observations[:, : self.bag_capacity] *= self.bin_observation_scale
        if self.time_in_observation:
            observations[:, -1] /= self.time_horizon
        return observations

    def render(self, states: Tree, mode: str) -> Any:
        """Render state 0 as text or as an image: a bar for the item, then one for the bags of each level."""
        options.one_of("BinPacking", "render_mode", mode, ("rgb_array", "ansi"))
        item, bags = int(states[0, self.bag_capacity]), states[0, 1 : self.bag_capacity].astype(np.int64)
        if mode == "ansi":
            lines = [
                f"{level:>4} of {self.bag_capacity}: {count}" for level, count in enumerate(bags, start=1) if count
            ]
            return "\n".join([f"item {item}", *lines]) + "\n"
        bars = np.concatenate(([item], np.minimum(bags, MOST_SHOWN)))
        lit = np.arange(MOST_SHOWN) < bars[:, None]  # [levels, MOST_SHOWN]
        colours = np.full((len(bars), 1, 3), BAG_COLOUR, np.uint8)
        colours[0] = ITEM_COLOUR
        return (lit[:, :, None] * colours).repeat(PIXELS_PER_CELL, axis=0).repeat(PIXELS_PER_CELL, axis=1)

    def _items(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return self._sizes[np.searchsorted(self._thresholds, rng.random(n), side="right")]
