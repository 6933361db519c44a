"""On-policy training: unrolls pass through a queue from actors to a learner, and each is used once."""

from __future__ import annotations

from packtrain.runtime.experiment import Collect, Repeat, Update
from packtrain.runtime.loops import Act, Learn, Loop, Tidy
from packtrain.runtime.training import Training


def run(training: Training, tidy: Tidy) -> Loop:
    """Yield actor steps until the queue holds a batch, then an update, until all steps have been used."""
    tidy()
    for stage in training.experiment.schedule:
        if not isinstance(stage, Repeat):
            yield from _stage(training, stage, tidy)
            continue
        while training.goes_on:
            for inner in stage.stages:
                yield from _stage(training, inner, tidy)


def _stage(training: Training, stage: Collect | Update | Repeat, tidy: Tidy) -> Loop:
    if isinstance(stage, Collect):
        (name,) = stage.memories
        memory = training.learning.memories[name]
        while not memory.ready() and training.stop is None:
            yield Act()
    elif isinstance(stage, Update):
        for _ in range(stage.count):
            if training.stop is None:
                yield Learn(stage.learner, 1)
                tidy()
