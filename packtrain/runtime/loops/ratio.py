"""Off-policy training from a replay memory: the number of updates follows the number of steps by a ratio."""

from __future__ import annotations

from dataclasses import dataclass

from packtrain.runtime.acting import Acting
from packtrain.runtime.experiment import Collect, Experiment, Repeat, Update
from packtrain.runtime.learning import LearningSide
from packtrain.runtime.loops import Act, Learn, Loop, Tidy
from packtrain.runtime.progress import Progress


@dataclass(frozen=True)
class Ratio:
    """How many updates are due: a function of counters alone, so that a resumed run makes the same updates."""

    experiment: Experiment
    progress: Progress
    learning: LearningSide

    def due(self, name: str) -> int:
        """Return the number of updates that a learner may make before more steps are needed."""
        experiment, learner = self.experiment, self.learning.learners[name]
        if not self.learning.memory_of(name).ready():
            return 0
        ratio = experiment.learners[name].ratio
        if ratio is None:
            return learner.max_updates
        # Rounded to steps of all environments: resets are not steps, so seeds that learn together differ by a few.
        environments = experiment.streams.num_actors
        acted = min(self.progress.acted, experiment.total_steps) - experiment.warm_up
        acted = max(0, acted) // environments * environments
        return int(ratio * acted) + experiment.pretraining(name) - learner.updates

    def acting_is_ahead(self) -> bool:
        """Return whether acting should wait: for the next stage, for a learner beyond its slack, or at the end."""
        experiment, progress, acted = self.experiment, self.progress, self.progress.acted
        if acted >= experiment.total_steps:
            return True
        if progress.collect_until is not None:
            return acted >= progress.collect_until  # pre-training follows the warm-up
        uses = experiment.learners.items()
        return any(use.slack is not None and self.due(name) > use.slack for name, use in uses)


def run(ratio: Ratio, acting: Acting, tidy: Tidy, *, catch_up: bool = True) -> Loop:
    """Yield what is due next.

    Args:
      ratio: decides how many updates are due.
      acting: acts by the policy that a stage names.
      tidy: updates counters, evaluates and saves when that is due.
      catch_up: make all updates that are due before the next actor step. Otherwise each learner makes at most
        `max_updates` before `tidy` and the next check of the counters, because the actor acts at the same time.
    """
    progress, learners = ratio.progress, ratio.learning.learners
    tidy()
    for stage in ratio.experiment.schedule:
        if isinstance(stage, Collect):
            with ratio.learning.event(f"stage {stage.policy}"):
                acting.begin_stage(stage)
            progress.collect_until = stage.steps or 0
            while progress.goes_on and progress.step < (stage.steps or 0):
                yield Act()
                tidy()
        elif isinstance(stage, Update):
            learner = learners[stage.learner]
            while progress.stop is None and (left := stage.count - learner.updates) > 0:
                yield Learn(stage.learner, min(left, learner.max_updates))
                tidy()
        else:
            for inner in stage.stages:
                if isinstance(inner, Collect):
                    with ratio.learning.event(f"stage {inner.policy}"):
                        acting.begin_stage(inner)
            progress.collect_until = None
            yield from _repeat(ratio, stage, tidy, catch_up)


def _repeat(ratio: Ratio, stage: Repeat, tidy: Tidy, catch_up: bool) -> Loop:
    progress, learners = ratio.progress, ratio.learning.learners
    names = [inner.learner for inner in stage.stages if isinstance(inner, Update)]
    while progress.stop is None:
        learned = behind = False
        for name in names:
            bound = ratio.experiment.learners[name].ratio is not None
            while progress.stop is None and (left := ratio.due(name)) > 0:
                yield Learn(name, min(left, learners[name].max_updates))
                learned, behind = True, behind or bound
                if not (bound and catch_up):  # without a ratio: max_updates per pass
                    break
        if progress.stop is not None:
            return
        tidy()
        if progress.finished and (catch_up or not behind):
            return
        if catch_up or not learned:
            yield Act()
