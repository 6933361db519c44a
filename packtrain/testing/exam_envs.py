"""Environments of `packtrain exam` that test one ability each. Importing this module registers them.

The other abilities of the exam use `packtrain.testing.abilities` and the built-in worlds. Every docstring gives the
return of random actions and that of the best policy; tests/testing/test_exam_envs.py verifies these numbers.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs import options
from packtrain.envs.functional import register
from packtrain.trees import Tree


class Glimpses:
    """Ability: act under partial observability. A hidden side is seen through noise, and has to be named at the end.

    Each of the first `glimpses` observations shows the side correctly with probability `accuracy`. The action after
    the last one answers: 1 if it names the side, else −1; earlier actions give 0. Observations are float32 [3]: the
    shown side one-hot, then a flag that is 1 with the last glimpse.

    With the defaults, 9 glimpses of accuracy 0.7, random actions score 0, an answer from the last glimpse alone 0.4,
    and the majority of all glimpses, the best policy, 0.8024.

    Args:
      glimpses: number of observations before the answer, an odd number.
      accuracy: probability that a glimpse shows the true side, from 0.5 to 1.
    """

    def __init__(self, glimpses: int = 9, accuracy: float = 0.7):
        self.glimpses = options.whole_number("Glimpses", "glimpses", glimpses, least=1)
        self.accuracy = options.fraction("Glimpses", "accuracy", accuracy)
        self.max_steps: int | None = None
        self.observation_space: gym.Space = gym.spaces.Box(0, 1, (3,), np.float32)
        self.action_space: gym.Space = gym.spaces.Discrete(2)

    @property
    def best_return(self) -> float:
        """Return of the majority vote; an even number of glimpses loses ties half of the time."""
        n, p = self.glimpses, max(self.accuracy, 1 - self.accuracy)
        chances = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
        right = sum(chance for k, chance in enumerate(chances) if 2 * k > n)
        tie = chances[n // 2] if n % 2 == 0 else 0.0
        return 2 * (right + tie / 2) - 1

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return random sides, each with its first glimpse."""
        side = rng.integers(2, size=n)
        return {"side": side, "shown": self._glimpse(side, rng), "step": np.zeros(n, np.int64)}

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Show the next glimpse, or compare the answer with the side."""
        side, step = states["side"], states["step"]
        verdict = np.where(actions == side, np.float32(1), np.float32(-1))
        last = self.glimpses - 1
        rewards = np.where(step == last, verdict, np.float32(0))
        return {"side": side.copy(), "shown": self._glimpse(side, rng), "step": step + 1}, rewards, step >= last, {}

    def observe(self, states: Tree) -> Tree:
        """Return (side 0 shown, side 1 shown, last glimpse)."""
        observations = np.empty((len(states["step"]), 3), np.float32)
        observations[:, :2] = states["shown"][:, None] == np.arange(2)
        observations[:, 2] = states["step"] == self.glimpses - 1
        return observations

    def _glimpse(self, side: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return np.where(rng.random(len(side)) < self.accuracy, side, 1 - side)


class Annuity:
    """Ability: value states beyond a time limit. Trained in short episodes, examined in long ones.

    Action 0 pays 1 and goes on; action 1 pays `cash` and terminates. Episodes are truncated after `length` steps, and
    the constant observation does not show the time. With discount 0.9 an unlimited annuity is worth 10, more than the
    cash of 7. An agent that takes the truncation for a termination values an annuity of length 5 at 3.57 by one-step
    bootstrapping (V = 1 + 0.9 · 4/5 · V), and takes the cash.

    With length 40, as in the exam's evaluations, random actions score 8, taking the cash 7, and the best policy 40.

    Args:
      length: steps until truncation, 1 or more.
      cash: reward of action 1.
    """

    def __init__(self, length: int = 5, cash: float = 7.0):
        self.max_steps: int | None = options.whole_number("Annuity", "length", length, least=1)
        self.cash = options.number("Annuity", "cash", cash)
        self.observation_space: gym.Space = gym.spaces.Box(0, 1, (1,), np.float32)
        self.action_space: gym.Space = gym.spaces.Discrete(2)

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return whether the cash has been taken: False, bool [N]."""
        return np.zeros(n, bool)

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Pay 1, or the cash; nothing after the end."""
        taken = states | (np.asarray(actions) == 1)
        rewards = np.where(states, 0.0, np.where(taken, self.cash, 1.0)).astype(np.float32)
        return taken, rewards, taken, {}

    def observe(self, states: Tree) -> Tree:
        """Return ones, float32 [N, 1]."""
        return np.ones((len(states), 1), np.float32)


class Reach:
    """Ability: continuous control. A point on a line has to be brought to 0 and kept there.

    The point starts uniformly in [−1, 1]. An action in [−1, 1] moves it by up to `stride`; the reward of a step is
    minus the distance to 0 after it. The point stays within [−2, 2]. Episodes are truncated after `steps` steps.
    Observations are float32 [1].

    The best policy moves towards 0 as fast as it can, and then exactly onto it. With the defaults it scores −0.4375,
    and uniformly random actions −5.56.

    Args:
      steps: of an episode, 1 or more.
      stride: largest move of a step.
    """

    def __init__(self, steps: int = 10, stride: float = 0.25):
        self.max_steps: int | None = options.whole_number("Reach", "steps", steps, least=1)
        self.stride = options.number("Reach", "stride", stride)
        self.observation_space: gym.Space = gym.spaces.Box(-2, 2, (1,), np.float32)
        self.action_space: gym.Space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return points, uniform in [−1, 1]: float32 [N, 1]."""
        return rng.uniform(-1, 1, size=(n, 1)).astype(np.float32)

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Move the points."""
        moved = states + np.float32(self.stride) * np.clip(np.asarray(actions, np.float32), -1, 1)
        moved = np.clip(moved, np.float32(-2), np.float32(2))
        return moved, -np.abs(moved[:, 0]), np.zeros(len(moved), bool), {}

    def observe(self, states: Tree) -> Tree:
        """Return the position."""
        return states.copy()


register("packtrain/Glimpses-v0", "packtrain.testing.exam_envs:Glimpses")
register("packtrain/Annuity-v0", "packtrain.testing.exam_envs:Annuity")
register("packtrain/Reach-v0", "packtrain.testing.exam_envs:Reach")
