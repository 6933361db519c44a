"""The local runtime: one process, acting and learning concurrently in two threads."""

from __future__ import annotations

import contextlib
import itertools
import logging
import sys
import threading
import time
from collections.abc import Iterator

import torch

from packtrain.envs.deadline import RunningTime
from packtrain.errors import ENDS_AFTER_SAVING, EnvError, StalledError
from packtrain.runtime import evaluation_scheduler, serial
from packtrain.runtime.loops import Act, Learn, Loop, queue, ratio
from packtrain.runtime.starvation import StarvationLog
from packtrain.runtime.training import Training
from packtrain.runtime.watchdog import Watchdog, is_in_environment, save_and_exit

log = logging.getLogger("packtrain")
LOOK_SECS = 0.2  # interval at which a waiting loop checks whether the run should end
PAUSE_SECS = 0.0005  # sleep of a loop that waits for steps or updates because of a ratio
WARM_UP_PAUSE_SECS = 0.005
# Longest time for which one thread may hold the interpreter's lock while another waits for it. Both threads release it
# inside every torch operator and need it right after; with Python's 5 ms, a learner of small operators waits for the
# actor's NumPy longer than it computes. Measured on 2 cores with impala/catch: the two loops together do 1.62 times the
# work of one alone at 5 ms, 1.88 times at 0.1 ms.
SWITCH_SECS = 1e-4


def run(training: Training) -> None:
    """Run the schedule to the end, or until `training.progress.stop` is set. The learner has the calling thread."""
    if not training.experiment.can_overlap:
        log.info("acting and learning wait for each other in this experiment: it runs serially")
        serial.run(training)
        return
    training.learning.weights.waits = False  # an update takes longer than many decisions
    environment = training.experiment.streams.environment
    faults: list[BaseException] = []
    learner = threading.current_thread()

    def on_hang(error: EnvError) -> None:
        if is_in_environment(learner):  # it began an evaluation or waited for a row to save, so it cannot end the run
            save_and_exit([training], error)
        faults.append(error)
        training.gate.stuck = True

    over = threading.Event()
    actor = threading.Thread(target=_act_until, args=(training, over, faults), name="actor", daemon=True)
    due = _loop(training)
    first = next(due, None)  # the next action is determined before the actor starts
    deadlines = environment.step_deadline_secs, environment.start_deadline_secs
    watchdog = Watchdog(training.columns(), *deadlines, on_hang, lambda: training.progress.stop is not None)
    with _short_switches(), watchdog:
        actor.start()
        try:
            if first is not None:
                _learn(training, itertools.chain((first,), due), faults)
            _last_evaluation(training, faults)
        except ENDS_AFTER_SAVING as error:  # raised while learning, saving or evaluating
            faults.append(error)
        except StalledError:
            if not faults:  # waiting for an actor whose environment hangs: the fault is more informative
                raise
        finally:
            over.set()
            _join(actor, faults)
            training.learning.weights.waits = True
        try:
            if not faults and not actor.is_alive():
                training.acting.settle()
        except ENDS_AFTER_SAVING as error:
            faults.append(error)
    if faults:
        training.saver.save(with_actor=False)
        raise faults[0]


_switches = threading.Lock()
_runs, _before = 0, 0.0  # number of runs that need short switch intervals, and the interval before the first of them


@contextlib.contextmanager
def _short_switches() -> Iterator[None]:
    """Let threads switch after SWITCH_SECS; the last of several runs at the same time restores the interval."""
    global _runs, _before
    with _switches:
        if _runs == 0:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(SWITCH_SECS)
        _runs += 1
    try:
        yield
    finally:
        with _switches:
            _runs -= 1
            if _runs == 0:
                sys.setswitchinterval(_before)


def _join(actor: threading.Thread, faults: list[BaseException]) -> None:
    """Wait for the current actor step: 30 s, or 5 s after an environment is known to hang."""
    waited, hung = RunningTime(longest_gap=1.0), RunningTime(longest_gap=1.0)
    while actor.is_alive() and waited.look() < 30.0:
        if faults and hung.look() > 5.0:
            return
        if not faults:
            hung = RunningTime(longest_gap=1.0)
        actor.join(0.1)


def _act_until(training: Training, over: threading.Event, faults: list[BaseException]) -> None:
    """Run the actor's thread: steps while the memory has room, with the steps of evaluations in between."""
    torch.set_num_threads(1)
    memories = list(training.learning.memories.values())
    ratios = ratio.Ratio(training.experiment, training.progress, training.learning)
    by_ratio = training.experiment.by_ratio
    waits_for = "the learner to come nearer" if by_ratio else "room in the unroll queue: the learner is slower"
    starvation = StarvationLog("the actor", waits_for)
    try:
        with training.acting.on_device():
            while not over.is_set():
                with training.log.actor_busy.waiting():
                    patience = 0.0 if training.evaluations.here else LOOK_SECS
                    room = all(memory.wait_for_room(patience) for memory in memories)
                    if by_ratio and ratios.acting_is_ahead():
                        room = False
                        time.sleep(0.0 if training.evaluations.here else PAUSE_SECS)
                with training.gate.turn():
                    if room and not over.is_set():
                        starvation.reset()
                        training.act(0.0 if training.evaluations.here else LOOK_SECS)
                    training.evaluations.tick()
                training.acting.check()
                if training.evaluations.running:
                    starvation.reset()  # the actor can continue
                elif not room:
                    starvation.check()
    except BaseException as error:  # re-raised in the learner's thread, which saves and ends the run
        faults.append(error)


def _loop(training: Training) -> Loop:
    """Return the loop of a run's regime."""
    experiment, progress, learning = training.experiment, training.progress, training.learning
    if not experiment.by_ratio:
        return queue.run(experiment, progress, learning, lambda: _tidy(training))
    due = ratio.Ratio(experiment, progress, learning)
    return ratio.run(due, training.acting, lambda: _tidy(training), catch_up=False)


def _tidy(training: Training) -> None:
    """Count, evaluate and save when that is due, without waiting for evaluations or files."""
    training.rows.count_acted()
    training.pulse()
    evaluation_scheduler.collect(training)
    evaluation_scheduler.begin_if_due(training)
    training.saver.save_if_due(background=True)


def _learn(training: Training, due: Iterator[Act | Learn], faults: list[BaseException]) -> None:
    """Run the learner's thread: make updates as they are due; the actor's thread makes actor steps."""
    memories, by_ratio = list(training.learning.memories.values()), training.experiment.by_ratio
    what = "steps" if by_ratio else "unrolls"
    starvation = StarvationLog("the learner", f"{what}: the environments or the policy are slower")
    before = -1  # steps when it last looked
    for item in due:
        if faults:
            return
        if not isinstance(item, Act):
            if training.learn(item.learner, item.updates):
                starvation.reset()
            continue
        with training.log.learner_busy.waiting():
            if by_ratio:
                time.sleep(WARM_UP_PAUSE_SECS if training.progress.step < training.experiment.warm_up else PAUSE_SECS)
            else:
                for memory in memories:
                    memory.wait_for_batch(LOOK_SECS)
        if by_ratio and training.progress.acted != before:
            before = training.progress.acted
            starvation.reset()
        starvation.check()
        if not by_ratio:
            _tidy(training)


def _last_evaluation(training: Training, faults: list[BaseException]) -> None:
    """Wait for the current evaluation, and for one of the final weights; save what has been learned first."""
    saved = False
    while training.progress.stop is None and not faults and training.progress.finished:
        if not training.evaluations.running and not evaluation_scheduler.begin_if_due(training):
            return
        if not saved:
            training.saver.save(background=True)
            saved = True
        time.sleep(0.005)
        evaluation_scheduler.collect(training)
        training.saver.save_if_due(background=True)
