"""Several seeds of one experiment in one process: each run has its own folder and networks, and all share the work.

Runs that plan share a search, runs that replay share their updates: the networks of all lie side by side, and one
launch updates them together. With `slack` environments step on while a GPU is at the updates that were launched last.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from packtrain.acting.joint import Joint
from packtrain.acting.planned import PlannedPolicy
from packtrain.algorithms import launches
from packtrain.errors import CheckpointError, EnvError, Error
from packtrain.networks.action_values import ActionValues
from packtrain.runtime import checkpoint, serial
from packtrain.runtime.experiment import Experiment, Planning
from packtrain.runtime.seeds import seed_for
from packtrain.runtime.training import Training
from packtrain.runtime.watchdog import Watchdog, save_and_exit


def can_share(experiment: Experiment) -> bool:
    """Whether runs of an experiment can share the work.

    Those can that plan in a learned model, and write no traces, and those that make so many updates for each step.
    """
    policy = experiment.policy
    if experiment.by_ratio:
        ratios = [use.ratio for use in experiment.learners.values()]
        return None not in ratios and not isinstance(policy, ActionValues)
    return isinstance(policy, Planning) and policy.model is not None and policy.traces is None


def run(runs: Sequence[Training | None], overlaps: bool = True) -> None:
    """Run all to their ends, or until `stop` is set in them. Run k has the seed of the first plus k, and is else equal.

    Args:
      runs: None stands in the place of a run that has ended before: the others draw what they would have drawn beside
        it.
      overlaps: whether those that have slack may use it.
    """
    trainings = {place: training for place, training in enumerate(runs) if training is not None}
    place, first = next(iter(trainings.items()))
    environment = first.experiment.streams.environment

    def on_hang(error: EnvError) -> None:
        save_and_exit(list(trainings.values()), error)

    columns = [each for training in trainings.values() for each in training.columns()]
    deadlines = environment.step_deadline_secs, environment.start_deadline_secs
    with Watchdog(columns, *deadlines, on_hang, lambda: first.stop is not None):
        try:
            if first.experiment.by_ratio:
                _replay(list(trainings.values()), overlaps and first.experiment.overlaps)
            else:
                seed = seed_for(first.experiment.seed - place, "actions")
                _plan(trainings, _joint(runs, first, seed))
            for training in trainings.values():
                training.settle()
        except EnvError:
            for training in trainings.values():
                training.save(with_actor=False)
            raise


def _replay(trainings: Sequence[Training], overlaps: bool) -> None:
    """Act with each, and learn with all at once: they wish for the same updates in the same order."""
    names = list(trainings[0].parts.learners)
    launches.join([[training.parts.learners[name] for name in names] for training in trainings])
    for training in trainings:
        training.parts.moved()
        training.saves_itself = False
        training.parts.weights.waits = not overlaps
    launched = _Launched(trainings[0] if overlaps else None)
    try:
        _take_turns(trainings, launched)
    finally:
        for training in trainings:
            training.parts.weights.waits = True


def _take_turns(trainings: Sequence[Training], launched: _Launched) -> None:
    under_way = [serial.wishes(training) for training in trainings]
    while True:
        launched.wait()
        wished = [_act_until_it_learns(training, own) for training, own in zip(trainings, under_way, strict=True)]
        if None in wished:  # the end, or a signal that reached some before they wished
            return
        (wish,) = set(wished)
        assert wish is not None
        learners = [training.parts.learners[wish.learner] for training in trainings]
        batches = [training.draw(*wish) for training in trainings]
        for training, metrics in zip(trainings, launches.update(learners, batches), strict=True):
            training.note_learned(wish.learner, metrics)
        launched.add(wish)
        if trainings[0].save_due:
            for training in trainings:
                training.save()


class _Launched:
    """Updates that a GPU may not be done with: as many as there is slack for.

    Without slack those who act wait for the newest weights, and so for all updates.
    """

    def __init__(self, training: Training | None):
        on_gpu = training is not None and training.parts.device.type == "cuda"
        uses = training.experiment.learners if training is not None and on_gpu else {}
        self._slack = {name: use.slack for name, use in uses.items() if use.slack is not None}
        self._counts = dict.fromkeys(self._slack, 0)
        self._queue: collections.deque[tuple[serial.Learn, torch.cuda.Event]] = collections.deque()

    def add(self, wish: serial.Learn) -> None:
        """These were launched last."""
        if wish.learner in self._slack:
            done = torch.cuda.Event()
            done.record()
            self._queue.append((wish, done))
            self._counts[wish.learner] += wish.updates

    def wait(self) -> None:
        """Until no more of any learner are left than it has slack."""
        while any(self._counts[name] > slack for name, slack in self._slack.items()):
            wish, done = self._queue.popleft()
            done.synchronize()
            self._counts[wish.learner] -= wish.updates


def same_updates(folders: Sequence[Path]) -> list[tuple[int, dict[str, Any]] | None]:
    """The newest checkpoint of each run at which all had made the same updates; None for each if none has any.

    A kill between saving two of them leaves some a checkpoint ahead.

    Raises:
      CheckpointError: there are checkpoints, and none that fit together.
    """
    saved = [checkpoint.load_newest(folder, with_replay=True) for folder in folders]
    while True:
        counts = [0 if one is None else _updates(one[1]) for one in saved]
        if len(set(counts)) == 1:
            return saved
        ahead = counts.index(max(counts))
        step = saved[ahead][0]  # type: ignore[index]
        older = [other for other in checkpoint.steps(folders[ahead]) if other < step]
        if not older:
            if min(counts) == 0 and all(len(checkpoint.steps(folder)) <= 1 for folder in folders):
                return [None] * len(saved)  # killed while the first of all were written
            raise CheckpointError(
                f"the runs beside {folders[0].parent} have no checkpoints of the same update; "
                "go on with each of them alone, or --fresh starts anew beside them"
            )
        saved[ahead] = (older[-1], checkpoint.load(folders[ahead] / str(older[-1])))


def _updates(state: dict[str, Any]) -> int:
    return sum(learner["updates"] for learner in state["learners"].values())


def _act_until_it_learns(training: Training, wishes: Iterator[serial.Learn | None]) -> serial.Learn | None:
    """Its next wish for updates; None if it has come to its end."""
    for wish in wishes:
        if wish is not None:
            return wish
        training.act()
    return None


def _joint(runs: Sequence[Training | None], first: Training, seed: int) -> Joint:
    """The search of all runs."""
    actors = [None if training is None else training.parts.actor for training in runs]
    parts = [(training or first).parts for training in runs]
    policies = [part.policy for part in parts]
    assert all(isinstance(policy, PlannedPolicy) for policy in policies)
    return Joint(actors, policies, [part.streams[0] for part in parts], seed)  # type: ignore[arg-type]


def _plan(trainings: Mapping[int, Training], joint: Joint) -> None:
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
        groups = [trainings[place].parts.actor.next_group for place in served]
        joint.turn(served)
        for place, group in zip(served, groups, strict=True):
            trainings[place].count_turn(group)
        waiting.difference_update(served)
