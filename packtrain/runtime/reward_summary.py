"""What a run says of its rewards before it begins: which one it learns from, and what clipping leaves of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packtrain.envs.river_raid import Signal, distinguishable

if TYPE_CHECKING:
    from packtrain.runtime.experiment import Experiment


def say_rewards(experiment: Experiment) -> list[str]:
    """Lines for the user; none if the environment's own reward is learned from and nothing is said of it."""
    rewards = experiment.streams.environment.rewards
    if rewards is None or not rewards.line:
        return []
    lines = [f"reward: {rewards.line}"]
    for name, signal in signals(experiment).items():
        lines.append(f"reward: {name} sees {signal.line}")
        if signal.collapses is not None:
            lines.append(f"reward: {name} cannot tell this from {signal.collapses}; {_remedy(experiment, name)}")
    return lines


def _remedy(experiment: Experiment, name: str) -> str:
    """What to try where a learner cannot tell two rewards apart."""
    if getattr(experiment.learners[name].learner, "reward_clipping", None) == "symlog":
        return "a larger --reward_scale or a stronger penalty can"
    return "--reward_clipping symlog can"


def signals(experiment: Experiment) -> dict[str, Signal]:
    """What each learner sees of a reward that knows what it can pay, by the learner's name."""
    rewards = experiment.streams.environment.rewards
    proxy = None if rewards is None else rewards.functions.get(rewards.train)
    if proxy is None or not hasattr(proxy, "values"):
        return {}
    learners = {name: use.learner for name, use in experiment.learners.items()}
    return {
        name: distinguishable(proxy.values(), learner.reward_clipping, getattr(learner, "reward_scale", 1.0))
        for name, learner in learners.items()
        if hasattr(learner, "reward_clipping")
    }
