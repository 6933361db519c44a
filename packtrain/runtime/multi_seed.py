"""Several seeds of one experiment in one process: each run has its own folder and networks, and updates are batched.

Runs that plan share a search, runs that replay share their updates: the networks of all lie side by side, and one
launch updates them together. With `slack` environments step on while a GPU is at the updates that were launched last.

A run that diverges is left out, and the others continue without it. Its folder keeps its last checkpoint.
"""

from __future__ import annotations

import collections
import contextlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from packtrain.envs.exits import exits_are_faults
from packtrain.errors import CheckpointError, DivergedError, EnvError, Error, FolderLostError
from packtrain.interfaces import SeedGroup
from packtrain.runtime import checkpoint, serial
from packtrain.runtime.divergence import Guarded, learn_together
from packtrain.runtime.experiment import Experiment
from packtrain.runtime.local_acting import local_side
from packtrain.runtime.loops import Act, Learn, Loop
from packtrain.runtime.seeds import seed_for
from packtrain.runtime.training import Training
from packtrain.runtime.watchdog import Watchdog, save_and_exit

log = logging.getLogger("packtrain")
_MARK = "diverged.json"  # in the folder of a run that diverged and is no longer trained


def can_share(experiment: Experiment) -> bool:
    """Return whether several seeds of an experiment can run in one loop.

    Planners share one search if their policy allows it. Runs that replay share launches if all learners can be joined
    and make a fixed number of updates for each step.
    """
    if experiment.run.record_order or experiment.run.replay_order is not None:
        return False
    if experiment.by_ratio:
        return all(use.ratio is not None and use.joins_seeds for use in experiment.learners.values())
    return experiment.policy.joins_seeds


def run(runs: Sequence[Training | None], overlaps: bool = True) -> dict[int, DivergedError]:
    """Run all to their ends, or until their `stop` is set. Run k has the first run's seed plus k and the same settings.

    Args:
      runs: None stands in the place of a run that has ended before: the others draw what they would have drawn beside
        it.
      overlaps: whether those that have slack may use it.

    Returns:
      Why runs have diverged, by their places. These are not to be saved.

    Raises:
      DivergedError: all have.
    """
    trainings = {place: training for place, training in enumerate(runs) if training is not None}
    place, first = next(iter(trainings.items()))
    environment = first.experiment.streams.environment

    def on_hang(error: EnvError) -> None:
        save_and_exit(list(trainings.values()), error)

    columns = [each for training in trainings.values() for each in training.columns()]
    deadlines = environment.step_deadline_secs, environment.start_deadline_secs
    with Watchdog(columns, *deadlines, on_hang, lambda: first.progress.stop is not None):
        try:
            if first.experiment.by_ratio:
                diverged = _replay(trainings, overlaps and first.experiment.overlaps)
            else:
                seed = seed_for(first.experiment.seed - place, "actions")
                diverged = _plan(trainings, _joint(runs, first, seed))
            for other, training in trainings.items():
                if other not in diverged:
                    training.acting.settle()
            return diverged
        except (EnvError, FolderLostError) as error:
            with contextlib.suppress(FolderLostError):
                save_all(trainings, with_actor=not isinstance(error, EnvError))
            raise


def save_all(
    trainings: Mapping[int, Training], with_actor: bool = True, required: bool = False
) -> dict[int, DivergedError]:
    """Save every run; return those whose weights are not finite, which are not saved.

    Raises:
      FolderLostError: the folder of a run is no longer where it was; all others are saved.
    """
    lost: list[FolderLostError] = []
    diverged: dict[int, DivergedError] = {}
    for place, training in trainings.items():
        try:
            training.saver.save(with_actor=with_actor, required=required)
        except FolderLostError as error:
            lost.append(error)
        except DivergedError as error:
            diverged[place] = error
    if lost:
        raise lost[0]
    return diverged


def _replay(trainings: Mapping[int, Training], overlaps: bool) -> dict[int, DivergedError]:
    """Let all runs act, and update all at once: they request the same updates in the same order."""
    _join(trainings.values())
    for training in trainings.values():
        training.saver.decides = False
        training.learning.weights.waits = not overlaps
    launched = _Launched(next(iter(trainings.values())) if overlaps else None)
    try:
        return _take_turns(dict(trainings), launched)
    finally:
        for training in trainings.values():
            training.learning.weights.waits = True


def _join(trainings: Iterable[Training]) -> None:
    """Let these runs update together from now on, whatever runs they were joined with before."""
    joined = list(trainings)
    names = list(joined[0].learning.learners)
    each = [[training.learning.learners[name] for name in names] for training in joined]
    each[0][0].join(each)
    for training in joined:
        training.learning.moved()


def _take_turns(trainings: dict[int, Training], launched: _Launched) -> dict[int, DivergedError]:
    """Alternate between the runs until they end. Diverged runs are removed from `trainings`."""
    under_way = {place: serial.loop(training) for place, training in trainings.items()}
    diverged: dict[int, DivergedError] = {}
    while True:
        launched.wait()
        wished: dict[int, Learn | None] = {}
        for place in list(trainings):
            try:
                wished[place] = _act_until_it_learns(trainings[place], under_way[place])
            except DivergedError as error:
                diverged[place] = error
        _leave_out(trainings, diverged)
        if None in wished.values():  # the end, or a signal that stopped some runs before their request
            return diverged
        (wish,) = set(wished.values())
        assert wish is not None
        diverged |= _learn(trainings, wish)
        _leave_out(trainings, diverged)
        launched.add(wish)
        if next(iter(trainings.values())).saver.due:
            diverged |= save_all(trainings)
            _leave_out(trainings, diverged)


def _learn(trainings: Mapping[int, Training], wish: Learn) -> dict[int, DivergedError]:
    """Make the updates of all runs at once; return the runs whose update is not finite."""
    sides = [training.learning for training in trainings.values()]
    guarded = [Guarded(side.divergence, side.learners[wish.learner], side.memory_of(wish.learner)) for side in sides]
    results = learn_together(wish.learner, guarded, wish.updates)
    assert results is not None
    diverged: dict[int, DivergedError] = {}
    for (place, training), result in zip(trainings.items(), results, strict=True):
        if isinstance(result, DivergedError):
            diverged[place] = result
        else:
            training.learning.publish_after(wish.learner)
            training.rows.note_update(wish.learner, result)
    return diverged


def _leave_out(trainings: dict[int, Training], diverged: Mapping[int, DivergedError]) -> None:
    """Remove diverged runs and join the remaining ones again; DivergedError if none is left."""
    gone = {place: trainings.pop(place) for place in diverged if place in trainings}
    if not gone:
        return
    if not trainings:
        raise next(iter(diverged.values()))
    for place, training in gone.items():
        _say_diverged(training, diverged[place])
        mark = {"step": training.progress.step, "error": str(diverged[place])}
        (training.folder.path / _MARK).write_text(json.dumps(mark) + "\n", encoding="utf-8")
    _join(trainings.values())


def _say_diverged(training: Training, error: DivergedError) -> None:
    line = f"{training.folder.path} has diverged, and the other seeds go on: {error}"
    print(line, flush=True)
    log.error("%s", line)


def left_behind(folder: Path) -> bool:
    """Return whether the other seeds have continued without the run in this folder."""
    return (folder / _MARK).exists()


def take_up(folder: Path) -> None:
    """Resume the run in a folder."""
    (folder / _MARK).unlink(missing_ok=True)


class _Launched:
    """Launched updates that a GPU may not have finished, at most as many as `slack` allows.

    Without slack those who act wait for the newest weights, and so for all updates.
    """

    def __init__(self, training: Training | None):
        on_gpu = training is not None and training.device.type == "cuda"
        uses = training.experiment.learners if training is not None and on_gpu else {}
        self._slack = {name: use.slack for name, use in uses.items() if use.slack is not None}
        self._counts = dict.fromkeys(self._slack, 0)
        self._queue: collections.deque[tuple[Learn, torch.cuda.Event]] = collections.deque()

    def add(self, wish: Learn) -> None:
        """Add the launched updates."""
        if wish.learner in self._slack:
            done = torch.cuda.Event()
            done.record()
            self._queue.append((wish, done))
            self._counts[wish.learner] += wish.updates

    def wait(self) -> None:
        """Wait until at most `slack` updates of any learner are unfinished."""
        while any(self._counts[name] > slack for name, slack in self._slack.items()):
            wish, done = self._queue.popleft()
            done.synchronize()
            self._counts[wish.learner] -= wish.updates


def same_updates(folders: Sequence[Path]) -> list[tuple[int, dict[str, Any]] | None]:
    """Return the newest checkpoint of each run with the same number of updates in all; None for each if there is none.

    A kill between saving two of them leaves some a checkpoint ahead.

    Raises:
      CheckpointError: there are checkpoints, and none that fit together.
    """
    saved = [checkpoint.load_newest(folder) for folder in folders]
    while True:
        counts = [0 if one is None else _updates(one[1]) for one in saved]
        if len(set(counts)) == 1:
            return saved
        ahead = counts.index(max(counts))
        step = saved[ahead][0]  # type: ignore[index]
        older = [other for other in checkpoint.steps(folders[ahead]) if other < step]
        if not older:
            if min(counts) == 0 and all(len(checkpoint.steps(folder)) <= 1 for folder in folders):
                return [None] * len(saved)  # ended while the first checkpoints of all were written
            raise CheckpointError(
                f"the runs beside {folders[0].parent} have no checkpoints of the same update; "
                "resume each of them separately, or --fresh starts new runs beside them"
            )
        saved[ahead] = (older[-1], checkpoint.load(folders[ahead] / str(older[-1])))


def _updates(state: dict[str, Any]) -> int:
    return sum(learner["updates"] for learner in state["learners"].values())


def _act_until_it_learns(training: Training, loop: Loop) -> Learn | None:
    """Make the actor steps that are due; return the updates that are due next, None at the end of the run.

    Raises:
      DivergedError: learning has diverged, or the environment has failed on actions that are not finite.
    """
    try:
        for due in loop:
            if isinstance(due, Learn):
                return due
            training.act()
    except EnvError as error:
        if _has_finite_weights(training):
            raise
        raise DivergedError(f"the weights are not finite at step {training.progress.step}: {error}") from error
    return None


def _has_finite_weights(training: Training) -> bool:
    networks = [learner.network for learner in training.learning.learners.values()]
    return all(bool(leaf.isfinite().all()) for network in networks for leaf in network.parameters())


def _learn_until_it_acts(training: Training, loop: Loop) -> bool:
    """Make the updates that are due; return whether an actor step is due next, False at the end of the run."""
    for due in loop:
        if isinstance(due, Act):
            return True
        serial.carry_out(training, due)
    return False


def _joint(runs: Sequence[Training | None], first: Training, seed: int) -> SeedGroup:
    """Return the object that acts for all runs."""
    sides = [local_side((training or first).acting) for training in runs]
    actors = [None if training is None else side.actor for training, side in zip(runs, sides, strict=True)]
    policies: list[Any] = [side.policy for side in sides]
    return first.experiment.policy.join_seeds(actors, policies, [side.streams[0] for side in sides], seed)


def _plan(trainings: Mapping[int, Training], joint: SeedGroup) -> dict[int, DivergedError]:
    """Advance each run until it needs an actor step, make those of all runs at once, and repeat.

    Runs begin every epoch together: those that have finished one wait for those that have not.
    """
    under_way = {place: serial.loop(training) for place, training in trainings.items()}
    diverged: dict[int, DivergedError] = {}
    waiting: set[int] = set()  # runs that wait for a turn
    epoch = -1
    while True:
        for place in sorted(set(under_way) - waiting):
            try:
                over = not _learn_until_it_acts(trainings[place], under_way[place])
            except DivergedError as error:
                diverged[place] = error
                if len(diverged) == len(trainings):
                    raise
                _say_diverged(trainings[place], error)
                over = True
            except Error:  # the others are between two turns, and continue from there when the cause is removed
                with contextlib.suppress(FolderLostError):
                    save_all({other: trainings[other] for other in set(under_way) - {place}})
                raise
            if over:
                del under_way[place]
            else:
                waiting.add(place)
        if not waiting:
            return diverged
        earliest = min(trainings[place].progress.epoch for place in waiting)
        if earliest != epoch:
            epoch = earliest
            joint.begin_epoch(epoch)
        served = sorted(place for place in waiting if trainings[place].progress.epoch == epoch)
        sides = {place: local_side(trainings[place].acting) for place in served}
        groups = [side.actor.next_group for side in sides.values()]
        try:
            with exits_are_faults(columns for training in trainings.values() for columns in training.columns()):
                joint.turn(served)
        except DivergedError:  # in a search shared by all: the others are saved as they were at the start of the epoch
            save_all(trainings)
            raise
        for place, group in zip(served, groups, strict=True):
            trainings[place].rows.note_report(sides[place].report(group))
        waiting.difference_update(served)
