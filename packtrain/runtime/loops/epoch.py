"""Training by epochs: every environment plays whole episodes, then learners make a fixed number of updates."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from packtrain.metrics.planning import planning_row
from packtrain.runtime.acting import Acting
from packtrain.runtime.experiment import Collect, Experiment, Repeat, Update
from packtrain.runtime.learning import LearningSide
from packtrain.runtime.loops import Act, Learn, Loop, Tidy
from packtrain.runtime.progress import Progress, schedule_epoch
from packtrain.runtime.run_state import counted_state
from packtrain.runtime.train_rows import TrainRows

VALIDATION_STEPS = 8192  # maximum number of steps validated, once per epoch


def run(
    experiment: Experiment, progress: Progress, acting: Acting, learning: LearningSide, rows: TrainRows, tidy: Tidy
) -> Loop:
    """Yield actor steps and updates, epoch after epoch; checkpoints are written between epochs or between updates."""
    epochs = _Epochs(experiment, progress, acting, learning, rows)
    tidy()
    for index, stage in enumerate(experiment.schedule):
        assert isinstance(stage, Repeat)
        while progress.goes_on and repeats_left(stage, progress.repeats[index]):
            epochs.begin()
            resumed_at = 0 if progress.epoch_updates is None else progress.epoch_updates[0]
            for place, inner in enumerate(stage.stages):
                if place < resumed_at:
                    continue  # made before the run was stopped
                if isinstance(inner, Update):
                    if not (yield from epochs.update(place, inner)):
                        return
                elif not (yield from epochs.play(inner)):
                    return  # interrupted episodes do not count, and are played again after a resume
            epochs.end(index, stage)
            tidy()


def repeats_left(stage: Repeat, made: int) -> bool:
    """Return whether a stage of the schedule should be repeated."""
    return stage.times is None or made < stage.times


@dataclass(frozen=True)
class _Epochs:
    """The parts of an epoch, in the order of their methods; `update` and `play` return False if the run should stop."""

    experiment: Experiment
    progress: Progress
    acting: Acting
    learning: LearningSide
    rows: TrainRows

    def begin(self) -> None:
        """Copy the state before the epoch: until the epoch is over, checkpoints contain this copy."""
        progress, acting = self.progress, self.acting
        acting.begin_epoch(schedule_epoch(self.experiment, progress.repeats), progress.epoch)
        actor = acting.snapshot() if acting.savable else None
        progress.safe_point = (progress.step, actor, counted_state(progress, acting))

    def update(self, place: int, stage: Update) -> Generator[Act | Learn, None, bool]:
        """Make the updates of the stage at this place of the epoch."""
        progress = self.progress
        if progress.epoch_updates is None or progress.epoch_updates[0] != place:
            progress.epoch_updates = place, 0
        while (made := progress.epoch_updates[1]) < stage.count:
            if progress.stop is not None:
                return False
            yield Learn(stage.learner, 1)
            progress.epoch_updates = place, made + 1
        progress.epoch_updates = None
        return True

    def play(self, stage: Collect) -> Generator[Act | Learn, None, bool]:
        """Let every environment play `stage.rounds` episodes."""
        for _ in range(stage.rounds or 1):
            self.acting.begin_round(stage)
            while not self.acting.round_is_over():
                if self.progress.stop is not None:
                    return False
                yield Act()
        return True

    def end(self, index: int, stage: Repeat) -> None:
        """Count the epoch, clear and renew what the stage names, and write the epoch's rows."""
        progress, learning = self.progress, self.learning
        progress.repeats[index] += 1
        progress.step = progress.env_steps
        learned = self._learned()
        if not repeats_left(stage, progress.repeats[index]):
            used = [inner.learner for inner in stage.stages if isinstance(inner, Update)]
            for name in used if stage.forget else ():
                learning.memory_of(name).clear()
            for name in stage.renew:
                learning.renew(name, progress.epoch)
        progress.safe_point = None
        self._write_rows(learned)

    def _learned(self) -> dict[str, dict[str, float]]:
        """Return the mean metrics of the epoch's updates by learner, with validation metrics."""
        learned = self.rows.log.drain_epoch_updates()
        for name, averages in learned.items():
            memory = self.learning.memory_of(name)
            averages |= memory.report()
            held_out = memory.view("held_out", most=VALIDATION_STEPS)
            found = None if held_out is None else self.learning.learners[name].validate(held_out)
            averages |= {f"validation_{metric}": float(value) for metric, value in (found or {}).items()}
        return learned

    def _write_rows(self, learned: dict[str, dict[str, float]]) -> None:
        """Write the training row and the planning row of the epoch that has ended."""
        progress, log = self.progress, self.rows.log
        groups = self.acting.epoch_row()
        played = progress.step > progress.random_steps  # whether the planner has played
        row = planning_row(progress.epoch, list(log.episodes), learned, groups.pop("agent", {}), played)
        row |= {f"{group}/{name}": value for group, found in groups.items() for name, value in found.items()}
        if "episode/solved_rate" in row and not progress.acts_randomly:
            rolling = progress.rolling.add(progress.epoch, row["episode/solved_rate"])
            row |= {f"episode_rolling/{name}": value for name, value in rolling.items()}
        log.record_episodes()
        self.rows.write(next(iter(learned.values()), {}))
        log.write("planning", row, progress.step)
