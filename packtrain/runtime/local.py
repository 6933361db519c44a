"""The local runtime: one process, acting and learning at the same time, each in a thread of its own."""

from __future__ import annotations

import logging
import sys
import threading
import time

import torch

from packtrain.algorithms.launches import ROOM
from packtrain.envs.deadline import RunningTime
from packtrain.errors import EnvError, StalledError
from packtrain.memory.unroll import UnrollQueue
from packtrain.runtime import serial
from packtrain.runtime.experiment import Collect, Repeat, Update
from packtrain.runtime.training import Training
from packtrain.runtime.watchdog import Watchdog, is_in_environment, save_and_exit

log = logging.getLogger("packtrain")
LOOK_SECS = 0.2  # how often a waiting loop looks whether the run is to end
STARVED_SECS = 60.0  # after which a waiting loop says for what it waits
# How long one thread may keep the interpreter from another that asks for it. Both threads give it up inside every torch
# operator and want it back right after; with Python's 5 ms, a learner of small operators waits for the actor's NumPy
# more than it computes. Measured on 2 cores with impala/catch: the two loops together do 1.62 times the work of one
# alone at 5 ms, 1.88 times at 0.1 ms.
SWITCH_SECS = 1e-4


def run(training: Training) -> None:
    """Run the schedule to the end, or until `training.stop` is set. The learner has the calling thread.

    A `Repeat` lets the actor run ahead as far as the memory has room; what comes before it runs in order.
    """
    if training.experiment.by_epochs or (training.experiment.by_ratio and not training.experiment.overlaps):
        serial.run(training)  # acting and learning wait for each other: there is nothing to overlap
        return
    training.parts.weights.waits = False  # an update takes longer than many decisions
    environment = training.experiment.streams.environment
    faults: list[BaseException] = []
    learner = threading.current_thread()

    def on_hang(error: EnvError) -> None:
        if is_in_environment(learner):  # it began an evaluation or waited for a row to save: it cannot end the run
            save_and_exit([training], error)
        faults.append(error)
        training.gate.stuck = True

    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECS)
    over = threading.Event()
    actor = threading.Thread(target=_act_until, args=(training, over, faults), name="actor", daemon=True)
    stages = [stage for stage in training.experiment.schedule if not _is_over(training, stage)]
    if stages:
        _begin(training, stages[0])  # before the first turn
    deadlines = environment.step_deadline_secs, environment.start_deadline_secs
    with Watchdog(training.columns(), *deadlines, on_hang, lambda: training.stop is not None):
        actor.start()
        try:
            for stage in stages:
                (_replay if training.experiment.by_ratio else _learn)(training, stage, faults)
            _last_evaluation(training, faults)
        except EnvError as error:  # met while saving or evaluating
            faults.append(error)
        except StalledError:
            if not faults:  # waiting for an actor whose environment hangs: the fault says more
                raise
        finally:
            over.set()
            _join(actor, faults)
            sys.setswitchinterval(before)
            training.parts.weights.waits = True
        try:
            if not faults and not actor.is_alive():
                training.settle()
        except EnvError as error:
            faults.append(error)
    if faults:
        training.save(with_actor=False)
        raise faults[0]


def _join(actor: threading.Thread, faults: list[BaseException]) -> None:
    """Wait for the turn under way: 30 s, or 5 s from when an environment is known to hang."""
    waited, hung = RunningTime(longest_gap=1.0), RunningTime(longest_gap=1.0)
    while actor.is_alive() and waited.look() < 30.0:
        if faults and hung.look() > 5.0:
            return
        if not faults:
            hung = RunningTime(longest_gap=1.0)
        actor.join(0.1)


def _act_until(training: Training, over: threading.Event, faults: list[BaseException]) -> None:
    """The actor's thread: turns while there is room, an evaluation's steps in between."""
    torch.set_num_threads(1)
    memories = list(training.parts.memories.values())
    ratios = training.experiment.by_ratio
    waits_for = "the learner to come nearer" if ratios else "room in the unroll queue: the learner is slower"
    hungry = _Hunger("the actor", waits_for)
    try:
        with training.parts.acting():
            while not over.is_set():
                with training.actor_busy.waiting():
                    patience = 0.0 if training.evaluating else LOOK_SECS
                    room = all(memory.wait_for_room(patience) for memory in memories)
                    if ratios and training.acting_is_ahead:
                        room = False
                        time.sleep(0.0 if training.evaluating else 0.0005)
                with training.gate.turn():
                    if room and not over.is_set():
                        hungry.fed()
                        training.act()
                    training.evaluations.tick()
                if training.evaluating:
                    hungry.fed()  # it has something to do
                elif not room:
                    hungry.look()
    except BaseException as error:  # handed to the learner's thread, which saves and ends the run
        faults.append(error)


def _learn(training: Training, stage: Collect | Update | Repeat, faults: list[BaseException]) -> None:
    """The learner's thread: a step whenever there is a batch."""
    updates = [s for s in (stage.stages if isinstance(stage, Repeat) else (stage,)) if isinstance(s, Update)]
    hungry = _Hunger("the learner", "unrolls: the environments or the policy are slower")
    training.begin_evaluation_if_due()
    while not training.finished and training.stop is None and not faults:
        for update in updates:
            memory = training.parts.memories[training.experiment.learners[update.learner].memory]
            for _ in range(update.count):
                if not memory.ready():
                    assert isinstance(memory, UnrollQueue)
                    with training.learner_busy.waiting():
                        memory.wait_for_batch(LOOK_SECS)
                if training.update(update.learner):
                    hungry.fed()
                else:
                    hungry.look()
        training.collect_evaluation()
        training.begin_evaluation_if_due()
        training.save_if_due(background=True)
        if not isinstance(stage, Repeat):
            return


def _is_over(training: Training, stage: Collect | Update | Repeat) -> bool:
    """Whether a run that goes on has that many steps already."""
    return training.experiment.by_ratio and isinstance(stage, Collect) and training.step >= (stage.steps or 0)


def _begin(training: Training, stage: Collect | Update | Repeat) -> None:
    """Let whom a stage names act."""
    if training.experiment.by_ratio:
        for inner in stage.stages if isinstance(stage, Repeat) else (stage,):
            if isinstance(inner, Collect):
                training.begin_stage(inner)


def _replay(training: Training, stage: Collect | Update | Repeat, faults: list[BaseException]) -> None:
    """The learner's thread beside an actor's: as many updates as are due, one learner after the other."""

    def goes_on() -> bool:
        return training.stop is None and not training.finished and not faults

    _begin(training, stage)
    if isinstance(stage, Collect):
        while goes_on() and training.step < (stage.steps or 0):
            with training.learner_busy.waiting():
                time.sleep(0.005)
            _look_around(training)
    elif isinstance(stage, Update):
        learner = training.parts.learners[stage.learner]
        while goes_on() and (left := stage.count - learner.updates) > 0:
            training.learn(stage.learner, min(left, ROOM))
            _look_around(training)
    else:
        updates = [inner for inner in stage.stages if isinstance(inner, Update)]
        while goes_on():
            learned = 0
            for update in updates:
                if (left := training.due(update.learner)) > 0:
                    count = min(left, training.parts.learners[update.learner].at_once)
                    training.learn(update.learner, count)
                    learned += count
            if not learned:
                with training.learner_busy.waiting():
                    time.sleep(0.0005)
            _look_around(training)


def _look_around(training: Training) -> None:
    """Count, evaluate and save, where that is due."""
    training.count_acted()
    training.collect_evaluation()
    training.begin_evaluation_if_due()
    training.save_if_due(background=True)


def _last_evaluation(training: Training, faults: list[BaseException]) -> None:
    """Wait for the evaluation under way, and for one of the last weights; what has been learned is saved before."""
    saved = False
    while training.stop is None and not faults and training.finished:
        if not training.evaluating and not training.begin_evaluation_if_due():
            return
        if not saved:
            training.save(background=True)
            saved = True
        time.sleep(0.005)
        training.collect_evaluation()
        training.save_if_due(background=True)


class _Hunger:
    """Says once a minute that somebody waits, and for what."""

    def __init__(self, who: str, what: str):
        self._who, self._what = who, what
        self._since = time.monotonic()
        self._said = 0

    def fed(self) -> None:
        self._since, self._said = time.monotonic(), 0

    def look(self) -> None:
        waited = time.monotonic() - self._since
        if waited > STARVED_SECS * (self._said + 1):
            self._said += 1
            log.warning("%s has waited %.0f s for %s", self._who, waited, self._what)
