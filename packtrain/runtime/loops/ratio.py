"""Off-policy training from a replay memory: the number of updates follows the number of steps by a ratio."""

from __future__ import annotations

from packtrain.runtime.experiment import Collect, Repeat, Update
from packtrain.runtime.loops import Act, Learn, Loop, Tidy
from packtrain.runtime.training import Training


def run(training: Training, tidy: Tidy, *, catch_up: bool = True) -> Loop:
    """Yield what is due next, computed from counters alone, so that a resumed run yields the same.

    Args:
      training: the run.
      tidy: updates counters, evaluates and saves when that is due.
      catch_up: make all updates that are due before the next actor step. Otherwise each learner makes at most
        `max_updates` before `tidy` and the next check of the counters, because the actor acts at the same time.
    """
    tidy()
    for stage in training.experiment.schedule:
        if isinstance(stage, Collect):
            training.acting.begin_stage(stage)
            while training.goes_on and training.step < (stage.steps or 0):
                yield Act()
                tidy()
        elif isinstance(stage, Update):
            learner = training.learning.learners[stage.learner]
            while training.stop is None and (left := stage.count - learner.updates) > 0:
                yield Learn(stage.learner, min(left, learner.max_updates))
                tidy()
        else:
            yield from _repeat(training, stage, tidy, catch_up)


def _repeat(training: Training, stage: Repeat, tidy: Tidy, catch_up: bool) -> Loop:
    updates = [inner for inner in stage.stages if isinstance(inner, Update)]
    for inner in stage.stages:
        if isinstance(inner, Collect):
            training.acting.begin_stage(inner)
    while training.stop is None:
        learned = behind = False
        for update in updates:
            bound = training.experiment.learners[update.learner].ratio is not None
            while training.stop is None and (left := due(training, update.learner)) > 0:
                yield Learn(update.learner, min(left, training.learning.learners[update.learner].max_updates))
                learned, behind = True, behind or bound
                if not (bound and catch_up):  # without a ratio: max_updates per pass
                    break
        if training.stop is not None:
            return
        tidy()
        if training.finished and (catch_up or not behind):
            return
        if catch_up or not learned:
            yield Act()


def due(training: Training, name: str) -> int:
    """Return the number of updates that a learner may make before more steps are needed."""
    experiment, learner = training.experiment, training.learning.learners[name]
    if not training.learning.memory_of(name).ready():
        return 0
    ratio = experiment.learners[name].ratio
    if ratio is None:
        return learner.max_updates
    # Rounded to steps of all environments: resets are not steps, so seeds that learn together differ by a few steps.
    environments = experiment.streams.num_actors
    acted = max(0, min(training.acted, experiment.total_steps) - experiment.warm_up) // environments * environments
    return int(ratio * acted) + experiment.pretraining(name) - learner.updates


def acting_is_ahead(training: Training) -> bool:
    """Return whether acting should wait: a learner is behind by more than its slack, or all steps have been made."""
    if training.acted < training.experiment.warm_up:
        return False  # pre-training follows the warm-up
    if training.acted >= training.experiment.total_steps:
        return True
    uses = training.experiment.learners.items()
    return any(use.slack is not None and due(training, name) > use.slack for name, use in uses)
