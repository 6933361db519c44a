"""A model that hashes the action path: reproducible rewards, terminations, values and priors that look random.

Golden trees are computed with it: it depends on no environment, network or random generator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np

from packtrain.hashing import mix
from packtrain.planning.model import Asking, Stepped
from packtrain.trees import Tree
from packtrain.types import Request

Result = TypeVar("Result")

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_REWARD, _END, _VALUE, _QUALITY, _LOGITS, _LEGAL = range(1, 7)  # purposes of random numbers, which are independent


class PathHash:
    """An infinite tree with `actions` branches per node, except where a hash decides that a path ends.

    A state is {"path": uint64 [N], a hash of the start and the actions since, "ended": bool [N]}. Rewards are
    uniform in [−1, 1), float32. A state that has ended does not change, with reward 0. Observations are the paths.

    Args:
      actions: branches of each state.
      end_share: probability that a step ends the episode; an end counts as solved if its reward is above 0.
      states: None for a tree, in which no two paths meet; a number for a graph with as many states, including loops.
      outcomes: 1 for a deterministic model; otherwise the number of equally likely outcomes of each step, chosen by
        `rng`.
      legal_share: probability that an action is legal; action 0 always is. 1: the model has no legal actions mask.
    """

    def __init__(
        self,
        actions: int = 3,
        end_share: float = 0.1,
        states: int | None = None,
        outcomes: int = 1,
        legal_share: float = 1.0,
    ):
        self.actions, self.end_share, self.states = actions, end_share, states
        self.outcomes, self.legal_share = outcomes, legal_share
        self.deterministic = outcomes == 1
        self.action_space: gym.Space = gym.spaces.Discrete(actions)

    def initial(self, seeds: np.ndarray) -> Tree:
        """Return the start state for each seed [N]; equal seeds give equal states."""
        paths = self._place(mix(np.asarray(seeds).astype(np.uint64) + _GOLDEN))
        return {"path": paths, "ended": np.zeros(len(paths), bool)}

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> Asking[Stepped]:
        """Extend paths by one action."""
        paths, ended = states["path"], states["ended"]
        words = mix(paths * np.uint64(3) + (actions.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
        if self.outcomes > 1:
            words = mix(words + rng.integers(self.outcomes, size=len(words)).astype(np.uint64) * _GOLDEN)
        rewards = np.where(ended, 0.0, 2 * _uniform(words, _REWARD) - 1).astype(np.float32)
        ends = (_uniform(words, _END) < self.end_share) & ~ended
        after = np.where(ended, paths, self._place(words))
        return Stepped({"path": after, "ended": ended | ends}, rewards, ended | ends, ends & (rewards > 0))
        yield  # makes this a generator, although it sends no requests

    def observe(self, states: Tree) -> Tree:
        """Return the paths, uint64 [N]."""
        return states["path"]

    def keys(self, states: Tree) -> np.ndarray:
        """Return hashes of path and end flag."""
        return mix(states["path"] * np.uint64(2) + states["ended"].astype(np.uint64))

    def legal(self, states: Tree) -> np.ndarray | None:
        """Return which actions are legal, bool [N, A]; None if `legal_share` is 1."""
        if self.legal_share >= 1:
            return None
        allowed = _uniform(_wide(states["path"], self.actions), _LEGAL) < self.legal_share
        allowed[:, 0] = True
        return allowed

    def answer(self, request: Request) -> dict[str, np.ndarray]:
        """Return a network's answer that depends on the observation only, float32.

        "value" [M, 1] and "quality" [M, A] are uniform in [−1, 1), "logits" [M, A] in [−2, 2).
        """
        wide = _wide(request.inputs, self.actions)
        return {
            "value": (2 * _uniform(request.inputs, _VALUE) - 1).astype(np.float32)[:, None],
            "quality": (2 * _uniform(wide, _QUALITY) - 1).astype(np.float32),
            "logits": (4 * _uniform(wide, _LOGITS) - 2).astype(np.float32),
        }

    def _place(self, words: np.ndarray) -> np.ndarray:
        return words if self.states is None else words % np.uint64(self.states)


def settle(asking: Asking[Result], answer: Callable[[Request], dict[str, np.ndarray]]) -> Result:
    """Run a computation to its end, with each of its requests answered by `answer`."""
    try:
        request = next(asking)
        while True:
            request = asking.send(answer(request))
    except StopIteration as stop:
        return stop.value


def _wide(words: np.ndarray, actions: int) -> np.ndarray:
    """Return a word for each action: [N] → [N, A]."""
    return mix(words[:, None] * np.uint64(5) + np.arange(1, actions + 1, dtype=np.uint64) * _GOLDEN)


def _uniform(words: np.ndarray, purpose: int) -> np.ndarray:
    """Return numbers in [0, 1), float64, different ones for each purpose."""
    return (mix(words + np.full(1, purpose, np.uint64) * _GOLDEN) >> np.uint64(11)) * 2.0**-53
