"""Training by epochs: every environment plays whole episodes, then learners make a fixed number of updates."""

from __future__ import annotations

from collections.abc import Generator

from packtrain.metrics.planning import planning_row
from packtrain.runtime.experiment import Collect, Repeat, Update
from packtrain.runtime.loops import Act, Learn, Loop, Tidy
from packtrain.runtime.training import Training, schedule_epoch

VALIDATION_STEPS = 8192  # maximum number of steps validated, once per epoch


def run(training: Training, tidy: Tidy) -> Loop:
    """Yield actor steps and updates, epoch after epoch; checkpoints are written between epochs or between updates."""
    tidy()
    for index, stage in enumerate(training.experiment.schedule):
        assert isinstance(stage, Repeat)
        while training.goes_on and repeats_left(training, index):
            _begin(training)
            resumed_at = 0 if training.epoch_updates is None else training.epoch_updates[0]
            for place, inner in enumerate(stage.stages):
                if place < resumed_at:
                    continue  # made before the run was stopped
                if isinstance(inner, Update):
                    if not (yield from _update(training, place, inner)):
                        return
                elif not (yield from _play(training, inner)):
                    return  # interrupted episodes do not count, and are played again after a resume
            _end(training, index)
            tidy()


def _update(training: Training, place: int, stage: Update) -> Generator[Act | Learn, None, bool]:
    """Make the updates of the stage at this place of the epoch; return False if the run should stop first."""
    if training.epoch_updates is None or training.epoch_updates[0] != place:
        training.epoch_updates = place, 0
    while (made := training.epoch_updates[1]) < stage.count:
        if training.stop is not None:
            return False
        yield Learn(stage.learner, 1)
        training.epoch_updates = place, made + 1
    training.epoch_updates = None
    return True


def _play(training: Training, stage: Collect) -> Generator[Act | Learn, None, bool]:
    """Let every environment play `stage.rounds` episodes; return False if the run should stop first."""
    for _ in range(stage.rounds or 1):
        training.acting.begin_round(stage)
        while not training.acting.round_is_over():
            if training.stop is not None:
                return False
            yield Act()
    return True


def repeats_left(training: Training, index: int) -> bool:
    """Return whether a stage of the schedule should be repeated."""
    stage = training.experiment.schedule[index]
    assert isinstance(stage, Repeat)
    return stage.times is None or training.counters.repeats[index] < stage.times


def _begin(training: Training) -> None:
    """Copy the state before the epoch: until the epoch is over, checkpoints contain this copy."""
    acting = training.acting
    acting.begin_epoch(schedule_epoch(training.experiment, training.counters.repeats), training.epoch)
    actor = acting.snapshot() if acting.savable else None
    training.safe_point = (training.step, actor, training.acting_state())


def _end(training: Training, index: int) -> None:
    """Count the epoch, clear and renew what the stage names, and write the epoch's rows."""
    counters, learning = training.counters, training.learning
    counters.repeats[index] += 1
    counters.step = counters.env_steps
    learned = _drain_updates(training)
    stage = training.experiment.schedule[index]
    assert isinstance(stage, Repeat)
    if not repeats_left(training, index):
        if stage.forget:
            for inner in stage.stages:
                if isinstance(inner, Update):
                    learning.memory_of(inner.learner).clear()
        for name in stage.renew:
            learning.renew(name, training.epoch)
    training.safe_point = None
    groups = training.acting.epoch_row()
    played = training.step > counters.random_steps  # whether the planner has played
    row = planning_row(training.epoch, list(training.log.episodes), learned, groups.pop("agent", {}), played)
    row |= {f"{group}/{name}": value for group, found in groups.items() for name, value in found.items()}
    if "episode/solved_rate" in row and not counters.acts_randomly:
        rolling = counters.rolling.add(training.epoch, row["episode/solved_rate"])
        row |= {f"episode_rolling/{name}": value for name, value in rolling.items()}
    training.log.record_episodes()
    training.write_train_row(next(iter(learned.values()), {}))
    training.log.write("planning", row, training.step)


def _drain_updates(training: Training) -> dict[str, dict[str, float]]:
    """Return the mean metrics of the epoch's updates by learner, with validation metrics."""
    learned = training.log.drain_epoch_updates()
    for name, averages in learned.items():
        memory = training.learning.memory_of(name)
        averages |= memory.report()
        held_out = memory.view("held_out", most=VALIDATION_STEPS)
        found = None if held_out is None else training.learning.learners[name].validate(held_out)
        averages |= {f"validation_{metric}": float(value) for metric, value in (found or {}).items()}
    return learned
