"""Environments that test one ability each and are learnt in seconds. Importing this module registers them.

Every docstring gives the tested ability, the return of random actions and that of the best policy;
tests/testing/test_abilities.py verifies these numbers by simulation. Steps after a termination have reward 0 if the
reward has to be learned (Bandit, DelayedReward, Memory, StochasticPolicy), and stay terminated in all environments.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs import options
from packtrain.envs.functional import register
from packtrain.trees import Tree

ENDINGS = ("termination", "truncation")
LARGEST_EPISODE_ID = 2**53 - 1  # exact in float64; two equal random ids in a test are practically impossible


class Bandit:
    """Ability: find the best action. Four arms, one pull per episode, constant observation.

    Rewards are 1 with probability 0.1, 0.2, 0.3 and 0.9 for the arms 0 to 3, else 0. Random actions score 0.375, the
    best policy (arm 3) 0.9.
    """

    means = np.array([0.1, 0.2, 0.3, 0.9])

    def __init__(self) -> None:
        self.max_steps: int | None = None
        self.observation_space: gym.Space = gym.spaces.Box(0, 1, (1,), np.float32)
        self.action_space: gym.Space = gym.spaces.Discrete(len(self.means))

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return whether the arm has been pulled: False, bool [N]."""
        return np.zeros(n, bool)

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Pull, and terminate."""
        pays = (rng.random(len(states)) < self.means[actions]) & ~states
        return np.ones_like(states), pays.astype(np.float32), np.ones_like(states), {}

    def observe(self, states: Tree) -> Tree:
        """Return ones, float32 [N, 1]."""
        return np.ones((len(states), 1), np.float32)


class DelayedReward:
    """Ability: assign credit over time. The first action determines a reward that comes `delay` steps later.

    The first observation shows one of four cues one-hot; the reward at the end is 1 if the first action was the cue's
    number, else 0. An episode has delay + 1 steps; later actions do not matter and later observations show only the
    time. Observations are float32 [5]: the cue, then the elapsed fraction of the episode.

    Random actions score 0.25, the best policy 1. A learner that uses only immediate rewards stays at 0.25.

    Args:
      delay: steps between the first action and its reward, 0 or more.
    """

    cues = 4

    def __init__(self, delay: int = 10):
        self.delay = options.whole_number("DelayedReward", "delay", delay, least=0)
        self.max_steps: int | None = None
        self.observation_space: gym.Space = gym.spaces.Box(0, 1, (self.cues + 1,), np.float32)
        self.action_space: gym.Space = gym.spaces.Discrete(self.cues)

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return random cues."""
        return {"cue": rng.integers(self.cues, size=n), "right": np.zeros(n, bool), "step": np.zeros(n, np.int64)}

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Store whether the first action is correct, wait, and pay the reward."""
        cue, step = states["cue"], states["step"]
        right = np.where(step == 0, actions == cue, states["right"])
        rewards = (right & (step == self.delay)).astype(np.float32)
        return {"cue": cue.copy(), "right": right, "step": step + 1}, rewards, step >= self.delay, {}

    def observe(self, states: Tree) -> Tree:
        """Return the cue before the first step, and the elapsed time."""
        step = states["step"]
        observations = np.empty((len(step), self.cues + 1), np.float32)
        observations[:, :-1] = (states["cue"][:, None] == np.arange(self.cues)) & (step == 0)[:, None]
        observations[:, -1] = np.minimum(step / (self.delay + 1), 1)
        return observations


class Memory:
    """Ability: remember. A binary cue is shown once, and `delay` steps later the action has to equal it.

    Observations are float32 [3]: the cue one-hot in the first observation only, then a flag that is 1 in the
    observation of the final step. The final action gives +1 if it is the cue, else −1; all others give 0. An
    episode has delay + 1 steps.

    Random actions score 0 and so does every policy without memory; the best policy scores 1.

    Args:
      delay: steps between the cue and the final action, 1 or more.
    """

    def __init__(self, delay: int = 5):
        self.delay = options.whole_number("Memory", "delay", delay, least=1)
        self.max_steps: int | None = None
        self.observation_space: gym.Space = gym.spaces.Box(0, 1, (3,), np.float32)
        self.action_space: gym.Space = gym.spaces.Discrete(2)

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return random cues."""
        return {"cue": rng.integers(2, size=n), "step": np.zeros(n, np.int64)}

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Wait, then compare the final action with the cue."""
        cue, step = states["cue"], states["step"]
        verdict = np.where(actions == cue, np.float32(1), np.float32(-1))
        rewards = np.where(step == self.delay, verdict, np.float32(0))
        return {"cue": cue.copy(), "step": step + 1}, rewards, step >= self.delay, {}

    def observe(self, states: Tree) -> Tree:
        """Return (cue is 0, cue is 1, final step)."""
        cue, step = states["cue"], states["step"]
        observations = np.empty((len(step), 3), np.float32)
        observations[:, :2] = (cue[:, None] == np.arange(2)) & (step == 0)[:, None]
        observations[:, 2] = step == self.delay
        return observations


class StochasticPolicy:
    """Ability: keep a policy stochastic. With a constant observation, action 0 must have a given frequency.

        reward = max(−1, 1 − 4 · |f − target|) at the last step, f = share of action 0 in the episode; 0 before

    With the default options a memoryless policy that takes action 0 with probability p scores −0.0015 for p = 0.5
    (chance), 0.6965 for p = 0.75 and 0.6977 at best, for p = 0.758. The deterministic ones score 0 (always action 0)
    and −1 (always action 1). A policy with memory can count, and reaches 1.

    Args:
      steps: of an episode, 1 or more.
      target: required frequency of action 0, from 0 to 1.
    """

    def __init__(self, steps: int = 20, target: float = 0.75):
        self.steps = options.whole_number("StochasticPolicy", "steps", steps, least=1)
        self.target = options.fraction("StochasticPolicy", "target", target)
        self.max_steps: int | None = None
        self.observation_space: gym.Space = gym.spaces.Box(0, 1, (1,), np.float32)
        self.action_space: gym.Space = gym.spaces.Discrete(2)

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return counts of 0."""
        return {"zeros": np.zeros(n, np.int64), "step": np.zeros(n, np.int64)}

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Count, and pay the reward at the end."""
        zeros, step = states["zeros"] + (actions == 0), states["step"] + 1
        score = np.maximum(-1, 1 - 4 * np.abs(zeros / self.steps - self.target))
        rewards = np.where(step == self.steps, score, 0).astype(np.float32)
        return {"zeros": zeros, "step": step}, rewards, step >= self.steps, {}

    def observe(self, states: Tree) -> Tree:
        """Return ones, float32 [N, 1]."""
        return np.ones((len(states["step"]), 1), np.float32)


class Truncation:
    """Ability: distinguish truncation from termination. Constant observation, every reward is 1, actions do not matter.

    Every policy scores `length`; the tested quantity is the value. After a truncation the value bootstraps: with
    discount 0.9 it is 1 / (1 − 0.9) = 10. `ends_as="termination"` is the negative control: the same observations,
    rewards and lengths, but the core itself terminates. Then the value is less than 10 (for length 10, 5.26 by
    one-step bootstrapping, V = 1 + 0.9 · 9/10 · V, and 4.14 by Monte Carlo, the mean of the discounted sums to go).

    Args:
      ends_as: "truncation" or "termination".
      length: steps of an episode, 1 or more.
    """

    def __init__(self, ends_as: str = "truncation", length: int = 10):
        self.ends_as = options.one_of("Truncation", "ends_as", ends_as, ENDINGS)
        self.length = options.whole_number("Truncation", "length", length, least=1)
        self.max_steps = self.length if ends_as == "truncation" else None
        self.observation_space: gym.Space = gym.spaces.Box(0, 1, (1,), np.float32)
        self.action_space: gym.Space = gym.spaces.Discrete(2)

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return the steps taken so far, int64 [N]; counted for a termination only: cores do not count time."""
        return np.zeros(n, np.int64)

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Return a reward of 1 for every action."""
        rewards = np.ones(len(states), np.float32)
        if self.ends_as == "truncation":
            return states.copy(), rewards, np.zeros(len(states), bool), {}
        return states + 1, rewards, states + 1 >= self.length, {}

    def observe(self, states: Tree) -> Tree:
        """Return ones, float32 [N, 1]: the count is not observed."""
        return np.ones((len(states), 1), np.float32)


class Counting:
    """An environment for tests of data flow: every row contains the number of its episode and of its step.

    Observations are int64 [2]: a random id of the episode, then the steps taken so far (0 after a reset). The reward is
    the number of its step, 1 for the first: reward[t] is the step in obs[t+1]. Actions do not matter. Every policy
    scores 1 + … + length: 15 by default.

    With `tree=True` the observation is a Dict of several leaves, and actions are MultiDiscrete([2, 3]):
      "count": int64 [2], as above;
      "last_action": int64 [2], the last action, zeros at the start;
      "parts": (float32 [3] with the step in each entry, uint8 [1, 2, 2] with the step modulo 256 in each entry).

    Args:
      length: steps of an episode, 1 or more.
      ends_as: "termination" by the core, or "truncation" by the time limit.
      tree: whether observations are a Dict and actions MultiDiscrete.
    """

    def __init__(self, length: int = 5, ends_as: str = "termination", tree: bool = False):
        self.length = options.whole_number("Counting", "length", length, least=1)
        self.ends_as = options.one_of("Counting", "ends_as", ends_as, ENDINGS)
        self.tree = options.one_of("Counting", "tree", tree, (False, True))
        self.max_steps = self.length if ends_as == "truncation" else None
        high = np.array([LARGEST_EPISODE_ID, np.iinfo(np.int64).max])
        count = gym.spaces.Box(np.zeros_like(high), high, dtype=np.int64)
        self.observation_space: gym.Space = count
        self.action_space: gym.Space = gym.spaces.Discrete(2)
        if tree:
            self.action_space = gym.spaces.MultiDiscrete([2, 3])
            parts = gym.spaces.Box(0, self.length, (3,), np.float32), gym.spaces.Box(0, 255, (1, 2, 2), np.uint8)
            self.observation_space = gym.spaces.Dict(
                count=count, last_action=gym.spaces.Box(0, 2, (2,), np.int64), parts=gym.spaces.Tuple(parts)
            )

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return new ids and step 0."""
        states = {"episode": rng.integers(LARGEST_EPISODE_ID, size=n, endpoint=True), "step": np.zeros(n, np.int64)}
        if self.tree:
            states["last_action"] = np.zeros((n, 2), np.int64)
        return states

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Count the step."""
        step = states["step"] + 1
        ended = step >= self.length if self.ends_as == "termination" else np.zeros(len(step), bool)
        states = {"episode": states["episode"].copy(), "step": step}
        if self.tree:
            states["last_action"] = np.array(actions, np.int64)
        return states, step.astype(np.float32), ended, {}

    def observe(self, states: Tree) -> Tree:
        """Return the count, or with `tree` the count and further leaves with the same content."""
        step = states["step"]
        count = np.stack((states["episode"], step), axis=1)  # two [N] → [N, 2]
        if not self.tree:
            return count
        floats = np.repeat(step[:, None].astype(np.float32), 3, axis=1)  # [N] → [N, 3]
        pixels = np.repeat((step % 256).astype(np.uint8), 4).reshape(-1, 1, 2, 2)  # [N] → [N, 1, 2, 2]
        return {"count": count, "last_action": states["last_action"].copy(), "parts": (floats, pixels)}


register("packtrain/Bandit-v0", "packtrain.testing.abilities:Bandit")
register("packtrain/DelayedReward-v0", "packtrain.testing.abilities:DelayedReward")
register("packtrain/Memory-v0", "packtrain.testing.abilities:Memory")
register("packtrain/StochasticPolicy-v0", "packtrain.testing.abilities:StochasticPolicy")
register("packtrain/Truncation-v0", "packtrain.testing.abilities:Truncation")
register("packtrain/Counting-v0", "packtrain.testing.abilities:Counting")
