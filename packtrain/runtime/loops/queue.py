"""On-policy training: unrolls pass through a queue from actors to a learner, and each is used once."""

from __future__ import annotations

from packtrain.runtime.experiment import Collect, Experiment, Repeat, Update
from packtrain.runtime.learning import LearningSide
from packtrain.runtime.loops import Act, Learn, Loop, Tidy
from packtrain.runtime.progress import Progress


def run(experiment: Experiment, progress: Progress, learning: LearningSide, tidy: Tidy) -> Loop:
    """Yield actor steps until the queue holds a batch, then an update, until all steps have been used."""
    tidy()
    for stage in experiment.schedule:
        if not isinstance(stage, Repeat):
            yield from _stage(stage, progress, learning, tidy)
            continue
        while progress.goes_on:
            for inner in stage.stages:
                yield from _stage(inner, progress, learning, tidy)


def _stage(stage: Collect | Update | Repeat, progress: Progress, learning: LearningSide, tidy: Tidy) -> Loop:
    if isinstance(stage, Collect):
        (name,) = stage.memories
        memory = learning.memories[name]
        while not memory.ready() and progress.stop is None:
            yield Act()
    elif isinstance(stage, Update):
        for _ in range(stage.count):
            if progress.stop is None:
                yield Learn(stage.learner, 1)
                tidy()
