"""Several seeds of one experiment in one process: each run has its own folder and networks, and all share a search."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from packtrain.acting.joint import Joint
from packtrain.acting.planned import PlannedPolicy
from packtrain.errors import EnvError, Error
from packtrain.runtime import serial
from packtrain.runtime.experiment import Experiment, Planning
from packtrain.runtime.seeds import seed_for
from packtrain.runtime.training import Training
from packtrain.runtime.watchdog import Watchdog


def can_share(experiment: Experiment) -> bool:
    """Whether runs of an experiment can share a search: those that plan in a learned model, and write no traces."""
    policy = experiment.policy
    return isinstance(policy, Planning) and policy.model is not None and policy.traces is None


def run(runs: Sequence[Training | None]) -> None:
    """Run all to their ends, or until `stop` is set in them. Run k has the seed of the first plus k, and is else equal.

    None stands in the place of a run that has ended before: the others draw what they would have drawn beside it.
    """
    trainings = {place: training for place, training in enumerate(runs) if training is not None}
    place, first = next(iter(trainings.items()))
    environment = first.experiment.streams.environment

    def on_hang(error: EnvError) -> None:
        print(f"packtrain: error: {error}", file=sys.stderr, flush=True)
        for training in trainings.values():
            training.save(with_actor=False)
        os._exit(error.exit_code)

    actors = [None if training is None else training.parts.actor for training in runs]
    parts = [(training or first).parts for training in runs]
    policies = [part.policy for part in parts]
    assert all(isinstance(policy, PlannedPolicy) for policy in policies)
    seed = seed_for(first.experiment.seed - place, "actions")
    joint = Joint(actors, policies, [part.streams[0] for part in parts], seed)  # type: ignore[arg-type]
    columns = [each for training in trainings.values() for each in training.columns()]
    with Watchdog(columns, environment.step_deadline_secs, on_hang):
        try:
            _run(trainings, joint)
        except EnvError:
            for training in trainings.values():
                training.save(with_actor=False)
            raise


def _run(trainings: Mapping[int, Training], joint: Joint) -> None:
    """Let each run go on until it wants a turn, make the turns of all that do at once, and again.

    Runs begin every epoch together: those that have finished one wait for those that have not.
    """
    under_way = {place: serial.turns(training) for place, training in trainings.items()}
    waiting: set[int] = set()  # for a turn
    epoch = -1
    while True:
        for place in sorted(set(under_way) - waiting):
            try:
                over = next(under_way[place], "over") == "over"
            except Error:  # the others are between two turns, and go on from here when the cause is gone
                for other in set(under_way) - {place}:
                    trainings[other].save()
                raise
            if over:
                del under_way[place]
            else:
                waiting.add(place)
        if not waiting:
            return
        earliest = min(trainings[place].epoch for place in waiting)
        if earliest != epoch:
            epoch = earliest
            joint.begin_epoch(epoch)
        served = sorted(place for place in waiting if trainings[place].epoch == epoch)
        before = [(trainings[place].parts.actor.next_group, trainings[place].parts.actor.steps) for place in served]
        joint.turn(served)
        for place, counted in zip(served, before, strict=True):
            trainings[place].count_turn(*counted)
        waiting.difference_update(served)
