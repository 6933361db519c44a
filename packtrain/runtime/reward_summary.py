"""Summary of a run's rewards before it begins: which one is trained on, and what clipping leaves of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packtrain.envs.river_raid import Signal, distinguishable

if TYPE_CHECKING:
    from packtrain.runtime.experiment import Experiment


def say_rewards(experiment: Experiment) -> list[str]:
    """Return lines for the user; none if the environment's own reward is trained on and nothing is notable."""
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
    """Return advice for a learner that cannot distinguish two rewards."""
    if getattr(experiment.learners[name].learner, "reward_clipping", None) == "symlog":
        return "a larger --reward_scale or a stronger penalty can"
    return "--reward_clipping symlog can"


def signals(experiment: Experiment) -> dict[str, Signal]:
    """Return what each learner receives of a reward whose possible values are known, by the learner's name."""
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
