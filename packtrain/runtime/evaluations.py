"""Evaluations beside a training: when one is due, what it plays with, and what has come of it.

One at a time. It counts as under way until its row is written: only then may what was evaluated be deleted.
"""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import torch
from torch import nn

from packtrain.acting.actor import AnyPolicy
from packtrain.config import Travelling
from packtrain.envs.columns import Columns
from packtrain.runtime.experiment import Evaluation, Experiment
from packtrain.runtime.parts import open_evaluator
from packtrain.types import Spec


class Evaluated(NamedTuple):
    """What is being evaluated."""

    step: int
    state: dict[str, Any] | None  # of the run, as it was before; None: the disk refused
    updates: dict[str, int]  # of every learner, by metric


class Evaluations:
    """Those of one run; without any, if its settings want none."""

    def __init__(
        self,
        experiment: Experiment,
        spec: Spec,
        device: torch.device,
        travelling: Travelling | None,
        precision: torch.dtype | None,
    ):
        self._settings: Evaluation = experiment.evaluation
        self._next, self._last = 0, -1  # steps
        self._results: collections.deque[dict[str, Any]] = collections.deque()  # from the actor's thread
        self.under_way: Evaluated | None = None
        self._evaluator, self._network = None, None
        if self._settings.every or self._settings.every_epochs:
            self._evaluator, self._network = open_evaluator(
                experiment,
                spec,
                device,
                self._settings.num_episodes,
                experiment.seed,
                travelling,
                precision,
                deadline_secs=self._settings.deadline_secs,
            )

    @property
    def columns(self) -> list[Columns]:
        """What it plays in: for a watchdog."""
        return [] if self._evaluator is None else [self._evaluator.stream.columns]

    @property
    def policy(self) -> AnyPolicy:
        """Who plays."""
        assert self._evaluator is not None
        return self._evaluator.policy

    def is_due(self, step: int, epoch: int, finished: bool) -> bool:
        """Whether one should begin at this step: the last one too, once."""
        if self._evaluator is None or self.under_way is not None or self._last == step:
            return False
        every, every_epochs = self._settings.every, self._settings.every_epochs
        by_epoch = bool(every_epochs) and epoch > 0 and epoch % every_epochs == 0
        return finished or by_epoch or (bool(every) and step >= self._next)

    def begin(self, evaluated: Evaluated, networks: list[nn.Module], known: dict[str, Any] | None) -> None:
        """Play from now on, with the weights of these networks.

        Args:
          evaluated: what it is of.
          networks: of all learners, each with what it has learned.
          known: see `Evaluator.begin`.
        """
        assert self._evaluator is not None and self._network is not None
        for network in networks:
            self._network.load_state_dict(network.state_dict())
        self.under_way = evaluated
        self._evaluator.begin(known)
        if every := self._settings.every:
            self._next = (evaluated.step // every + 1) * every
        self._last = evaluated.step

    def tick(self) -> None:
        """One step of the one that is under way, if there is one."""
        if self._evaluator is not None and self._evaluator.active:
            result = self._evaluator.tick()
            if result is not None:
                self._results.append(result)

    def progress(self) -> str:
        """How far the one under way is, in words."""
        assert self._evaluator is not None
        return self._evaluator.progress()

    def finished(self) -> dict[str, Any] | None:
        """The result of the one under way, once; None if it still plays."""
        return self._results.popleft() if self._results else None

    def snapshot(self) -> dict[str, int]:
        """When the next one is due; one that is under way is begun again."""
        if self.under_way is not None:
            return {"next_eval": self._last, "last_eval": -1}
        return {"next_eval": self._next, "last_eval": self._last}

    def restore(self, snapshot: dict[str, int]) -> None:
        """Go on with what was saved."""
        self._next, self._last = snapshot["next_eval"], snapshot["last_eval"]

    def close(self) -> None:
        """Close the environments."""
        if self._evaluator is not None:
            self._evaluator.close()
