"""The content of a run's checkpoint: collected from its components, and returned to them after a resume."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from packtrain.accelerate.side_stream import settle_gpu
from packtrain.runtime.acting import Acting
from packtrain.runtime.progress import Progress
from packtrain.runtime.regrouping import leave_environments

if TYPE_CHECKING:
    from packtrain.runtime.training import Training

log = logging.getLogger("packtrain")


def counted_state(progress: Progress, acting: Acting) -> dict[str, Any]:
    """Return the counters of environment steps and of visited states."""
    return progress.acting_state() | acting.exploration_state()


def collect(training: Training, with_actor: bool) -> dict[str, Any]:
    """Return all state that a resume needs, as a tree of tensors, arrays and JSON values; acting must be paused.

    Args:
      training: the run.
      with_actor: include environments and policy, if they can be saved; else a resume begins new episodes.
    """
    settle_gpu()
    state, progress = training.learning.state(), training.progress
    # Unfinished episodes are played again after a resume; an epoch's updates continue at the same place.
    safe_point = progress.safe_point if progress.epoch_updates is None else None
    step, actor, counted = safe_point or (progress.step, None, counted_state(progress, training.acting))
    if with_actor and safe_point is None:
        actor = training.acting.snapshot()
    if with_actor and actor is not None:
        state["actor"] = actor
    elif lasting := training.acting.lasting_state():
        state["seats"] = lasting
    if memories := training.learning.memory_states(with_episodes="actor" in state):
        state["memories"] = memories
    settle_gpu()
    state["run"] = {
        "step": step,
        "repeats": list(progress.repeats),
        "groups": list(training.acting.group_sizes),
        **({"lives": list(lives)} if any(lives := training.acting.lives) else {}),
        "wall_s": training.log.wall_s(),
        "metrics_bytes": training.log.bytes,
        **training.evaluations.snapshot(),
        "env_steps": step if safe_point else training.acting.settled_steps,
        "identity": training.setup.configuration.identity(),
        "values": dict(training.setup.configuration.values),
        **{name: value for name, value in counted.items() if name != "exploration"},
    }
    if training.learning.alarm is not None:
        state["alarm"] = training.learning.alarm.state_dict()
        state["run"]["audit_stopped"] = training.learning.alarm.ended
    state["recorder"] = training.log.recorder.state_dict()
    if "exploration" in counted:
        state["exploration"] = counted["exploration"]
    if progress.epoch_updates is not None:
        place, made = progress.epoch_updates
        episodes = [finished._asdict() for finished in training.log.episodes]
        state["epoch"] = {"updating": place, "updates": made, "learned": training.log.epoch_updates()}
        state["epoch"] |= {"episodes": episodes, **training.acting.epoch_state()}
    return state


def restore(training: Training, step: int, state: dict[str, Any]) -> int:
    """Load a checkpoint into a run; return how many bytes of metrics.jsonl belong to it.

    Args:
      training: the run, just built.
      step: of the checkpoint.
      state: from `collect`.
    """
    leave_environments(state, training.acting.layout)
    training.learning.restore(state, same_episodes="actor" in state)
    exact = training.acting.restore(state)
    run = state["run"]
    training.progress.restore(run)
    training.evaluations.restore(run)
    if training.learning.alarm is not None and "alarm" in state:
        training.learning.alarm.load_state_dict(state["alarm"])
        training.progress.ended_by_alarm = training.learning.alarm.ended
    training.log.restore(state["recorder"], training.progress.step, run["wall_s"])
    if "epoch" in state and (exact or "left" in state):
        epoch = state["epoch"]
        training.progress.epoch_updates = epoch["updating"], epoch["updates"]
        training.log.restore_epoch(epoch["learned"], epoch["episodes"])
        training.acting.load_epoch_state(epoch)
    log.info("resumed at step %d%s", step, "" if exact else "; the environments begin new episodes")
    return int(run["metrics_bytes"])
