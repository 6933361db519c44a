"""The serial runtime: one thread and a fixed order, so that results are bit-exact, also across a resume."""

from __future__ import annotations

from packtrain.errors import ENDS_AFTER_SAVING, EnvError
from packtrain.runtime import evaluation_scheduler
from packtrain.runtime.loops import Act, Learn, Loop, epoch, queue, ratio
from packtrain.runtime.order_log import replay
from packtrain.runtime.training import Training
from packtrain.runtime.watchdog import Watchdog, save_and_exit


def run(training: Training) -> None:
    """Run the schedule to the end, or until `training.progress.stop` is set."""
    environment = training.experiment.streams.environment

    def on_hang(error: EnvError) -> None:
        save_and_exit([training], error)  # the only thread is stuck inside the environment

    deadlines = environment.step_deadline_secs, environment.start_deadline_secs
    with Watchdog(training.columns(), *deadlines, on_hang, lambda: training.progress.stop is not None):
        try:
            if (order := training.experiment.run.replay_order) is not None:
                replay(training, order)
            else:
                for due in loop(training):
                    carry_out(training, due)
            training.acting.settle()
        except ENDS_AFTER_SAVING:
            training.saver.save(with_actor=False)
            raise


def loop(training: Training) -> Loop:
    """Return the loop of a run's regime; evaluations and checkpoints are made in between, in the same thread."""

    def tidy() -> None:
        training.rows.count_acted()
        training.pulse()
        _evaluate_if_due(training)
        training.saver.save_if_due(background=False)

    experiment, progress, learning = training.experiment, training.progress, training.learning
    if experiment.by_epochs:
        return epoch.run(experiment, progress, training.acting, learning, training.rows, tidy)
    if experiment.by_ratio:
        return ratio.run(ratio.Ratio(experiment, progress, learning), training.acting, tidy)
    return queue.run(experiment, progress, learning, tidy)


def carry_out(training: Training, due: Act | Learn) -> None:
    """Make the actor steps or the updates that are due."""
    if isinstance(due, Act):
        with training.log.learner_busy.waiting():
            training.act()
    else:
        training.acting.check()
        with training.log.actor_busy.waiting():
            training.learn(due.learner, due.updates)


def _evaluate_if_due(training: Training) -> None:
    progress, evaluations = training.progress, training.evaluations
    while progress.stop is None and evaluation_scheduler.begin_if_due(training):
        while evaluations.running and progress.stop is None:
            training.acting.check()
            evaluations.tick()
            evaluation_scheduler.collect(training)
            training.saver.save_if_due(background=False)
