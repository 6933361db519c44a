"""Evaluations during a training run: when each is due, its networks and environments, and its result.

Only one evaluation runs at a time. It is unfinished until its row is written; only then may the evaluated checkpoint be
deleted.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import nn

from packtrain.accelerate.side_stream import settle_gpu
from packtrain.envs.exits import exits_are_faults
from packtrain.envs.vector_env import VectorEnv
from packtrain.runtime.evaluation import Evaluator, open_evaluator
from packtrain.runtime.experiment import Evaluation, Experiment
from packtrain.runtime.progress import planned_epochs, schedule_epoch
from packtrain.types import Spec

if TYPE_CHECKING:
    from packtrain.runtime.training import Training

log = logging.getLogger("packtrain")


class Evaluated(NamedTuple):
    """The step and the state of the run that an evaluation belongs to."""

    step: int
    state: dict[str, Any] | None  # state of the run before the evaluation; None: writing failed
    updates: dict[str, int]  # number of updates of every learner, by metric


class Given(NamedTuple):
    """Networks, acting state and counters that the run passes to an evaluation."""

    networks: Sequence[nn.Module]  # of all learners, each with what it has learned
    known: dict[str, Any] | None  # see `Evaluator.begin`
    epoch: int  # for schedules
    total_epochs: int
    version: int  # of the weights


class Player(Protocol):
    """Plays the episodes of one evaluation, in this process or in another one."""

    @property
    def columns(self) -> Sequence[VectorEnv]:
        """Environments of this process, for its watchdog."""

    @property
    def here(self) -> bool:
        """Whether episodes are being played in this process, one step at each `tick`."""

    def begin(self, given: Given) -> None:
        """Begin an evaluation."""

    def tick(self) -> dict[str, Any] | None:
        """Continue the current evaluation; return its result when it is finished, once."""

    def progress(self) -> str:
        """Return the progress of the current evaluation as text."""

    def close(self) -> None:
        """Close the environments."""


OpenPlayer = Callable[[str, torch.dtype | None], Player]
"""(name of the evaluation, precision of the networks' large layers on a CPU) → its player."""


class LocalPlayer:
    """Plays in this process, one step of the environments at each `tick`."""

    def __init__(self, evaluator: Evaluator, network: nn.Module):
        """Store the arguments.

        Args:
          evaluator: plays.
          network: of its policies.
        """
        self._evaluator, self._network = evaluator, network
        self.columns = [evaluator.stream.columns]

    @property
    def here(self) -> bool:
        """Whether episodes are being played."""
        return self._evaluator.active

    def begin(self, given: Given) -> None:
        """Begin an evaluation with the weights of the learners' networks."""
        for policy in self._evaluator.policies:
            policy.begin_epoch(given.epoch, given.total_epochs, given.version)
        for network in given.networks:
            self._network.load_state_dict(network.state_dict())
        with exits_are_faults(self.columns):
            self._evaluator.begin(given.known)

    def tick(self) -> dict[str, Any] | None:
        """Play one step; return the result after the last one."""
        if not self._evaluator.active:
            return None
        with exits_are_faults(self.columns):
            return self._evaluator.tick()

    def progress(self) -> str:
        """Return the number of episodes played as text."""
        return self._evaluator.progress()

    def close(self) -> None:
        """Close the environments."""
        self._evaluator.close()


class _One:
    """One of a run's evaluations: its name, settings, player and next step."""

    def __init__(self, name: str, settings: Evaluation, player: Player):
        self.name, self.settings, self.player = name, settings, player
        self.next, self.last = 0, -1  # steps of the next and the last evaluation

    def is_due(self, step: int, epoch: int, finished: bool) -> bool:
        """Return whether it should begin at this step of the run."""
        if self.last == step:
            return False
        every, every_epochs = self.settings.every, self.settings.every_epochs
        by_epoch = bool(every_epochs) and epoch > 0 and epoch % every_epochs == 0
        return finished or by_epoch or (bool(every) and step >= self.next)


class Evaluations:
    """All evaluations of one run, one at a time; empty if no settings request one.

    The first one decides which checkpoint is the best.
    """

    def __init__(
        self,
        experiment: Experiment,
        spec: Spec,
        device: torch.device,
        precision: torch.dtype | None,
        open_player: OpenPlayer | None = None,
    ):
        """Open the environments of all evaluations; nothing is played.

        Args:
          experiment: of the run.
          spec: of its environment.
          device: of the networks.
          precision: of the large layers.
          open_player: returns what plays an evaluation; None: this process does.
        """
        self._results: collections.deque[dict[str, Any]] = collections.deque()  # results from the actor's thread
        self.under_way: Evaluated | None = None
        self._all: list[_One] = []
        for name, settings in experiment.evaluations.items():
            if settings.every or settings.every_epochs:
                if open_player is not None:
                    player = open_player(name, precision if device.type == "cpu" else None)
                else:
                    own = (experiment, spec, device, experiment.seed, settings)
                    player = LocalPlayer(*open_evaluator(*own, precision=precision))
                self._all.append(_One(name, settings, player))
        self._current: _One | None = None

    @property
    def columns(self) -> list[VectorEnv]:
        """Return the environments of all evaluations, for a watchdog."""
        return [columns for one in self._all for columns in one.player.columns]

    @property
    def here(self) -> bool:
        """Whether episodes are being played in this process, one step at each `tick`."""
        return self._current is not None and self._current.player.here

    @property
    def running(self) -> bool:
        """Return whether an evaluation has begun and its row is not written yet."""
        return self.under_way is not None

    @property
    def name(self) -> str:
        """Return the name of the current evaluation; empty for one without a name."""
        assert self._current is not None
        return self._current.name

    @property
    def decides_the_best(self) -> bool:
        """Return whether the score of the current evaluation decides which checkpoint is the best."""
        return self._current is self._all[0]

    def is_due(self, step: int, epoch: int, finished: bool) -> bool:
        """Return whether an evaluation should begin at this step or at the end of the run, and make it the current one.

        Args:
          step: of the run.
          epoch: number of epochs in which the planner has played.
          finished: the run is over; it is evaluated once more.
        """
        if self.under_way is not None:
            return False
        self._current = next((one for one in self._all if one.is_due(step, epoch, finished)), None)
        return self._current is not None

    def begin(self, evaluated: Evaluated, given: Given) -> None:
        """Begin the current evaluation.

        Args:
          evaluated: what it is of.
          given: what it takes from the run.
        """
        current = self._current
        assert current is not None
        self.under_way = evaluated
        current.player.begin(given)
        if every := current.settings.every:
            current.next = (evaluated.step // every + 1) * every
        current.last = evaluated.step

    def tick(self) -> None:
        """Continue the current evaluation, if there is one."""
        current = self._current  # the learner's thread may replace it when no evaluation is running
        if current is not None and (result := current.player.tick()) is not None:
            self._results.append(result)

    def progress(self) -> str:
        """Return the progress of the current evaluation as text."""
        assert self._current is not None
        return self._current.player.progress()

    def finished(self) -> dict[str, Any] | None:
        """Return the result of the current evaluation, once; None while it runs."""
        return self._results.popleft() if self._results else None

    def snapshot(self) -> dict[str, Any]:
        """Return when each evaluation is due next; an unfinished one begins again after a resume."""
        due = {"": {"next": 0, "last": -1}}
        for one in self._all:
            again = self.under_way is not None and one is self._current
            mine = {"next": one.last, "last": -1} if again else {"next": one.next, "last": one.last}
            due["" if one is self._all[0] else one.name] = mine
        first = due.pop("")
        return {"next_eval": first["next"], "last_eval": first["last"], **({"more_evals": due} if due else {})}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Restore saved due times; evaluations added since then are due after their period."""
        saved = {name: (due["next"], due["last"]) for name, due in snapshot.get("more_evals", {}).items()}
        for one in self._all:
            first = (snapshot["next_eval"], snapshot["last_eval"])
            one.next, one.last = first if one is self._all[0] else saved.get(one.name, (one.next, one.last))

    def close(self) -> None:
        """Close the environments."""
        for one in self._all:
            one.player.close()


def begin_if_due(training: Training) -> bool:
    """Start an evaluation with the current weights if one is due at this step of a run."""
    evaluations, progress, learning = training.evaluations, training.progress, training.learning
    planned = planned_epochs(training.experiment, progress.repeats)
    if not evaluations.is_due(progress.step, planned, progress.finished):
        return False
    with training.gate.held():
        # State before the evaluation: a run that resumes from it repeats the evaluation and writes the row.
        state = training.saver.state_to_evaluate()
        epoch = schedule_epoch(training.experiment, progress.repeats)
        networks = [learner.network for learner in learning.learners.values()]
        given = Given(networks, training.acting.evaluation_state(), epoch, progress.epoch, learning.updates)
        evaluations.begin(Evaluated(progress.step, state, training.rows.update_counts()), given)
        settle_gpu()  # the actor's CUDA stream uses tensors prepared on this one
    return True


def collect(training: Training) -> None:
    """Write the row of a finished evaluation; a new best score saves the evaluated state.

    Of one that is not finished, the console shows how far it is.
    """
    evaluations = training.evaluations
    if evaluations.running:
        training.pulse()
    while (result := evaluations.finished()) is not None:
        assert evaluations.under_way is not None
        step, state, updates = evaluations.under_way
        rewards = result.pop("rewards")
        result |= {f"reward/{name}": value for name, value in rewards.items() if name != "train"}
        epoch = {"epoch": training.progress.epoch} if training.experiment.by_epochs else {}
        if cut := result["episodes_truncated"]:
            text = "evaluation at step %d: %d of %d episodes cut off by Evaluation.max_steps or deadline_secs"
            log.warning(text, step, cut, result["episodes"])
        label = evaluations.name
        training.log.write(f"eval/{label}" if label else "eval", {**epoch, **result, **updates}, step)
        if state is not None and evaluations.decides_the_best:
            others = {name: value for name, value in rewards.items() if name != "train"}
            training.saver.keep_if_best(state, result["return_mean"], others, training.experiment.evaluation.best)
        evaluations.under_way = None
