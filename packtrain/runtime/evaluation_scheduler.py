"""Evaluations during a training run: when each is due, its networks and environments, and its result.

Only one evaluation runs at a time. It is unfinished until its row is written; only then may the evaluated checkpoint be
deleted.
"""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import torch
from torch import nn

from packtrain.config import Travelling
from packtrain.envs.exits import exits_are_faults
from packtrain.envs.vector_env import VectorEnv
from packtrain.interfaces import Policy
from packtrain.runtime.evaluation import Evaluator, open_evaluator
from packtrain.runtime.experiment import Evaluation, Experiment
from packtrain.types import Spec


class Evaluated(NamedTuple):
    """What is being evaluated."""

    step: int
    state: dict[str, Any] | None  # state of the run before the evaluation; None: writing failed
    updates: dict[str, int]  # number of updates of every learner, by metric


class _One:
    """One of a run's evaluations: its name, settings, evaluator, network and next step."""

    def __init__(self, name: str, settings: Evaluation, evaluator: Evaluator, network: nn.Module):
        self.name, self.settings, self.evaluator, self.network = name, settings, evaluator, network
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
        travelling: Travelling | None,
        precision: torch.dtype | None,
    ):
        self._results: collections.deque[dict[str, Any]] = collections.deque()  # results from the actor's thread
        self.under_way: Evaluated | None = None
        self._all: list[_One] = []
        for name, settings in experiment.evaluations.items():
            if settings.every or settings.every_epochs:
                own = (experiment, spec, device, experiment.seed, settings)
                found = open_evaluator(*own, travelling=travelling, precision=precision)
                self._all.append(_One(name, settings, *found))
        self._current: _One | None = None

    @property
    def columns(self) -> list[VectorEnv]:
        """Return the environments of all evaluations, for a watchdog."""
        return [one.evaluator.stream.columns for one in self._all]

    @property
    def policies(self) -> list[Policy]:
        """Return the policies of the current evaluation."""
        assert self._current is not None
        return self._current.evaluator.policies

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

    def begin(self, evaluated: Evaluated, networks: list[nn.Module], known: dict[str, Any] | None) -> None:
        """Begin the current evaluation with the weights of these networks.

        Args:
          evaluated: what it is of.
          networks: of all learners, each with what it has learned.
          known: see `Evaluator.begin`.
        """
        current = self._current
        assert current is not None
        for network in networks:
            current.network.load_state_dict(network.state_dict())
        self.under_way = evaluated
        with exits_are_faults(self.columns):
            current.evaluator.begin(known)
        if every := current.settings.every:
            current.next = (evaluated.step // every + 1) * every
        current.last = evaluated.step

    def tick(self) -> None:
        """Play one step of the current evaluation, if there is one."""
        current = self._current  # the learner's thread may replace it when no evaluation is running
        if current is not None and current.evaluator.active:
            with exits_are_faults(self.columns):
                result = current.evaluator.tick()
            if result is not None:
                self._results.append(result)

    def progress(self) -> str:
        """Return the progress of the current evaluation as text."""
        assert self._current is not None
        return self._current.evaluator.progress()

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
            one.evaluator.close()
