"""The serial runtime: one thread, a fixed order, the same numbers every time, across a resume too."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import NamedTuple

from packtrain.algorithms.launches import ROOM
from packtrain.errors import EnvError
from packtrain.runtime.experiment import Collect, Repeat, Update
from packtrain.runtime.training import Training
from packtrain.runtime.watchdog import Watchdog, save_and_exit


class Learn(NamedTuple):
    """A wish for updates."""

    learner: str
    updates: int


def run(training: Training) -> None:
    """Run the schedule to the end, or until `training.stop` is set."""
    environment = training.experiment.streams.environment

    def on_hang(error: EnvError) -> None:
        save_and_exit([training], error)  # the only thread is stuck inside the environment, and nothing else moves

    deadlines = environment.step_deadline_secs, environment.start_deadline_secs
    with Watchdog(training.columns(), *deadlines, on_hang, lambda: training.stop is not None):
        try:
            _run(training)
            training.settle()
        except EnvError:
            training.save(with_actor=False)
            raise


def _run(training: Training) -> None:
    if training.experiment.by_epochs:
        for _ in turns(training):
            with training.learner_busy.waiting():
                training.act()
    elif training.experiment.by_ratio:
        for wish in wishes(training):
            _grant(training, wish)
    else:
        _evaluate_if_due(training)
        for stage in training.experiment.schedule:
            _run_stage(training, stage)


def _run_stage(training: Training, stage: Collect | Update | Repeat) -> None:
    if isinstance(stage, Repeat):
        while not training.finished and training.stop is None:
            for inner in stage.stages:
                _run_stage(training, inner)
    elif isinstance(stage, Collect):
        (name,) = stage.memories
        memory = training.parts.memories[name]
        while not memory.ready() and training.stop is None:
            with training.learner_busy.waiting():
                training.act()
    else:
        for _ in range(stage.count):
            with training.actor_busy.waiting():
                if training.stop is None and training.update(stage.learner):
                    _evaluate_if_due(training)
                    training.save_if_due(background=False)


def _grant(training: Training, wish: Learn | None) -> None:
    if wish is None:
        with training.learner_busy.waiting():
            training.act()
    else:
        with training.actor_busy.waiting():
            training.learn(*wish)


def wishes(training: Training) -> Iterator[Learn | None]:
    """Run an experiment that replays; wherever this yields, a turn of the actor (None) or updates are due.

    What is next follows from counters alone: a run that was saved anywhere goes on as if it had not been.
    """
    _evaluate_if_due(training)
    for stage in training.experiment.schedule:
        if isinstance(stage, Collect):
            training.begin_stage(stage)
            while training.stop is None and not training.finished and training.step < (stage.steps or 0):
                yield None
                _look_around(training)
        elif isinstance(stage, Update):
            learner = training.parts.learners[stage.learner]
            while training.stop is None and (left := stage.count - learner.updates) > 0:
                yield Learn(stage.learner, min(left, ROOM))
                training.save_if_due(background=False)
        else:
            yield from _repeat(training, stage)


def _repeat(training: Training, stage: Repeat) -> Iterator[Learn | None]:
    for inner in stage.stages:
        if isinstance(inner, Collect):
            training.begin_stage(inner)
    while training.stop is None:
        for inner in stage.stages:
            if isinstance(inner, Update):
                free = training.experiment.learners[inner.learner].ratio is None  # as many a turn as it makes at once
                while training.stop is None and (left := training.due(inner.learner)) > 0:
                    yield Learn(inner.learner, min(left, training.parts.learners[inner.learner].at_once))
                    if free:
                        break
        if training.stop is not None:
            return
        _look_around(training)
        if training.finished:
            return
        yield None


def _look_around(training: Training) -> None:
    """Count, evaluate and save, where that is due."""
    training.count_acted()
    _evaluate_if_due(training)
    training.save_if_due(background=False)


def turns(training: Training) -> Iterator[None]:
    """Run an experiment that goes by epochs; wherever this yields, a turn of the actor is due before it goes on."""
    _evaluate_if_due(training)
    for index, stage in enumerate(training.experiment.schedule):
        assert isinstance(stage, Repeat)
        yield from _epochs(training, index, stage)


def _epochs(training: Training, index: int, stage: Repeat) -> Iterator[None]:
    """Play and learn in turns; what is saved is between two epochs, or between two updates of one."""
    while training.stop is None and not training.finished and training.repeats_left(index):
        training.begin_epoch()
        for place, inner in enumerate(stage.stages):
            if place < training.resumed_at:
                continue  # a run that was stopped has done this
            if isinstance(inner, Update):
                if not _update(training, place, inner):
                    return
            elif not (yield from _play(training, inner)):
                return  # episodes that were broken off count for nothing, and are played again by a run that goes on
        training.end_epoch(index)
        _evaluate_if_due(training)
        training.save_if_due(background=False)


def _update(training: Training, place: int, stage: Update) -> bool:
    """Make the updates of a stage of an epoch; False if the run is to stop first."""
    training.begin_updates(place)
    while training.epoch_updates < stage.count:
        if training.stop is not None:
            return False
        with training.actor_busy.waiting():
            training.update(stage.learner)
        training.epoch_updates += 1
    training.end_updates()
    return True


def _play(training: Training, stage: Collect) -> Generator[None, None, bool]:
    """Let every column play so many episodes; False if the run is to stop first."""
    for _ in range(stage.rounds or 1):
        training.begin_round(stage)
        while not training.round_is_over():
            if training.stop is not None:
                return False
            yield
    return True


def _evaluate_if_due(training: Training) -> None:
    while training.stop is None and training.begin_evaluation_if_due():
        while training.evaluating and training.stop is None:
            training.evaluations.tick()
            training.collect_evaluation()
            training.save_if_due(background=False)
