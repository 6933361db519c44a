"""Exact returns of optimal and of limited policies in small environments, for every reward, by backward induction.

A policy is optimal for one reward; its returns in the other rewards show how far the rewards agree. A `discount` below
1 makes the policy short-sighted, and `noise` replaces some of its actions; it is optimal under these limits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from packtrain.envs import options
from packtrain.envs.state_graph import StateGraph
from packtrain.errors import EnvSetupError

TRUE = "true"  # the core's own reward, as in `rewards.py`
TIE = 1e-9  # values closer than this are equal


class Play(NamedTuple):
    """A policy for an episode of T steps in an environment of N states, and its returns."""

    returns: dict[str, float]  # channel → expected undiscounted return from the start
    actions: np.ndarray  # [T, N] the chosen action in each state at each time


def best_play(
    graph: StateGraph,
    channel: str = TRUE,
    steps: int | None = None,
    *,
    discount: float = 1.0,
    noise: float = 0.0,
    ties: str = "good",
) -> Play:
    """Return the policy that maximises one reward, and its return in each.

    With k steps to go, Q(s, a) = r(s, a) + discount · V(s'), and

        V(s) = (1 − noise) · max_a Q(s, a) + noise · mean_a Q(s, a)

    so `noise` is the probability that a uniformly random action replaces the chosen one; the policy takes it into
    account. Noise 1 is the uniformly random policy for every channel. Returns are undiscounted.

    Args:
      graph: of the core; its own reward is the channel "true".
      channel: the reward that is maximised.
      steps: of an episode; None for the core's `max_steps`.
      discount: of the policy, 0 to 1.
      noise: 0 to 1.
      ties: among actions that are equally good, "good" takes the one with the largest return in "true", "bad" the
        smallest.
    """
    steps = graph.core.max_steps if steps is None else steps
    if steps is None:
        raise EnvSetupError(
            f"best_play: {type(graph.core).__name__} has no time limit, so the argument steps is required"
        )
    steps = options.whole_number("best_play", "steps", steps, least=0)
    discount = options.fraction("best_play", "discount", discount)
    noise = options.fraction("best_play", "noise", noise)
    sign = 1 if options.one_of("best_play", "ties", ties, ("good", "bad")) == "good" else -1
    rewards = step_rewards(graph)
    options.one_of("best_play", "channel", channel, rewards)

    rows = np.arange(len(graph))
    value = np.zeros(len(graph))  # discounted, of the maximised channel
    expected = {name: np.zeros(len(graph)) for name in rewards}  # undiscounted, of each channel
    actions = np.zeros((steps, len(graph)), np.int64)

    def played(qualities: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return [N, A] values under the chosen actions, noise included, [N]."""
        return (1 - noise) * qualities[rows, chosen] + noise * qualities.mean(axis=1)

    for time in reversed(range(steps)):
        wanted = rewards[channel] + discount * value[graph.edges]  # [N, A]
        got = {name: reward + expected[name][graph.edges] for name, reward in rewards.items()}
        best = wanted >= wanted.max(axis=1, keepdims=True) - TIE
        chosen = np.where(best, sign * got[TRUE], -np.inf).argmax(axis=1)
        actions[time] = chosen
        value = played(wanted, chosen)
        expected = {name: played(qualities, chosen) for name, qualities in got.items()}
    return Play({name: float(values[0]) for name, values in expected.items()}, actions)


def step_rewards(graph: StateGraph) -> dict[str, np.ndarray]:
    """Return the reward of each action in each state, {channel: [N, A] float64}; "true" first."""
    core, (count, width) = graph.core, graph.edges.shape
    names = [name for name in getattr(core, "reward_channels", ()) if name != TRUE]
    found = {name: np.zeros((count, width)) for name in (TRUE, *names)}
    start = int(getattr(core.action_space, "start", 0))
    for action in range(width):
        _, reward, _, extras = core.step(graph.states, np.full(count, start + action), np.random.default_rng(0))
        found[TRUE][:, action] = reward
        for name in names:
            found[name][:, action] = extras[f"reward/{name}"]
    for values in found.values():
        values[graph.terminated] = 0
    return found
