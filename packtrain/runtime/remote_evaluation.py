"""Evaluations in another process, on a cluster: a version of the weights goes there, and the result comes back.

The process keeps nothing between two evaluations. If it ends during one, the next process plays that evaluation again
from the same weights and the same seeds, so nothing is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from packtrain.config import import_again
from packtrain.envs.exits import exits_are_faults
from packtrain.envs.vector_env import VectorEnv
from packtrain.errors import WorkersLostError, one_line
from packtrain.runtime.cluster.calls import Engine, Limits
from packtrain.runtime.cluster.flow import Flow
from packtrain.runtime.evaluation import Evaluator, open_evaluator
from packtrain.runtime.evaluation_scheduler import Given, OpenPlayer, Player
from packtrain.runtime.experiment import Experiment
from packtrain.runtime.worker import EnvWatch, pack_tensors, unpack_tensors
from packtrain.types import Spec

log = logging.getLogger("packtrain")
ROLE = "evaluator"
IDLE_SECS = 1.0  # between two polls of a process that has no order
FRUITLESS_LIVES = 20  # lives in a row without a result, after which the run ends


@dataclass(frozen=True)
class EvaluatorSetup:
    """Settings of the process that evaluates, as plain values."""

    experiment: Experiment
    spec: Spec  # of its environment
    precision: torch.dtype | None  # of the networks' large layers
    import_path: tuple[str, ...]  # folders of the user's modules
    imports: tuple[str, ...] = ()  # modules that the configuration imports

    def build(self) -> EvaluationWorker:
        """Return the worker; called in its process."""
        return EvaluationWorker(self)


class EvaluationOrder(NamedTuple):
    """An order to play one evaluation."""

    name: str
    known: Any  # see `Evaluator.begin`, packed
    epochs: tuple[int, int, int]  # epoch for schedules, total number of epochs, version of the weights


class EvaluationWorker:
    """Owns the environments of all evaluations of a run, and plays one evaluation at a time."""

    def __init__(self, setup: EvaluatorSetup):
        """Open the environments; nothing is played.

        Args:
          setup: what to build.
        """
        torch.set_num_threads(1)
        import_again(setup.imports)
        experiment = setup.experiment
        self._weights: Any = None
        self._opened: dict[str, tuple[Evaluator, nn.Module, EnvWatch]] = {}
        for name, settings in experiment.evaluations.items():
            if settings.every or settings.every_epochs:
                own = (experiment, setup.spec, torch.device("cpu"), experiment.seed, settings)
                evaluator, network = open_evaluator(*own, precision=setup.precision)
                environment = settings.environment or experiment.streams.environment
                self._opened[name] = evaluator, network, EnvWatch(environment, [evaluator.stream.columns])
        self._watch = next(iter(self._opened.values()))[2]

    @property
    def progress(self) -> int:
        """A number that changes with every reading; EnvError if a call of an environment exceeds its deadline."""
        return self._watch.look()

    def act(self, order: EvaluationOrder, version: int, weights: Any) -> tuple[list[Any], dict[str, Any]]:
        """Play an evaluation; return no rows, and its result.

        Args:
          order: which one.
          version: of the weights.
          weights: state dicts of the learners' networks, packed; None: those of the order before.
        """
        self._weights = self._weights if weights is None else weights
        evaluator, network, self._watch = self._opened[order.name]
        for policy in evaluator.policies:
            policy.begin_epoch(*order.epochs)
        for state in self._weights:
            network.load_state_dict(unpack_tensors(state))
        with exits_are_faults([evaluator.stream.columns]):
            evaluator.begin(unpack_tensors(order.known))
            while (result := evaluator.tick()) is None:
                pass
        return [], result

    def close(self) -> None:
        """Close the environments."""
        for evaluator, _, _ in self._opened.values():
            evaluator.close()


class RemoteEvaluator:
    """Lets another process play the evaluations of a run, one at a time. `tick` is called by one thread at a time."""

    def __init__(self, engine: Engine, limits: Limits, seed: int, wait: float):
        """Begin to start the process.

        Args:
          engine: starts and calls it.
          limits: deadlines, see `evaluator_limits`.
          seed: of the run.
          wait: seconds for which `tick` waits for a result at most.
        """
        self._engine, self._wait = engine, wait
        self._flow = Flow(engine, [ROLE], limits, seed)
        self._next: tuple[EvaluationOrder, Any] | None = None  # order and weights that have not been sent
        self._errand: int | None = None
        self._number = 0  # of evaluations, which also numbers their weights
        self._began = self._looked = engine.now()
        self._flow.poll(0.0)

    def begin(self, name: str, given: Given) -> None:
        """Begin an evaluation with a copy of the learners' weights.

        Args:
          name: of the evaluation.
          given: what it takes from the run.
        """
        networks = {id(network): network for network in given.networks}
        weights = [pack_tensors(dict(network.state_dict())) for network in networks.values()]
        epochs = given.epoch, given.total_epochs, given.version
        self._began = self._engine.now()
        self._next = EvaluationOrder(name, pack_tensors(given.known), epochs), weights

    def tick(self) -> dict[str, Any] | None:
        """Return the result of the current evaluation once it has arrived; else None.

        Raises:
          WorkersLostError: the process always fails.
        """
        if self._next is not None:
            (order, weights), self._next = self._next, None
            self._flow.publish(self._number, lambda: weights)
            self._number += 1
            self._errand = self._flow.request(order)
        if self._errand is None and self._engine.now() - self._looked < IDLE_SECS:
            return None
        self._looked = self._engine.now()
        deliveries = self._flow.poll(0.0 if self._errand is None else self._wait)
        for notice in self._flow.notices:
            log.warning("%s%s", notice, "" if self._errand is None else "; the evaluation is played again")
        self._flow.notices.clear()
        for delivery in deliveries:
            if delivery.errand == self._errand:
                self._errand = None
                result: dict[str, Any] = delivery.report
                return result
        if self._flow.drain_failed_errands():
            raise WorkersLostError(f"evaluations fail: {one_line(self._flow.first_error)[-400:]}")
        return None

    def progress(self) -> str:
        """Return for how long the current evaluation has been played."""
        return f"evaluating in another process for {self._engine.now() - self._began:.0f} s"

    def close(self) -> None:
        """End the process."""
        self._flow.close()
        self._engine.close()  # type: ignore[attr-defined]


class _Player:
    """One of a run's evaluations, which a shared process plays."""

    columns: Sequence[VectorEnv] = ()
    here = False

    def __init__(self, name: str, evaluator: RemoteEvaluator):
        self._name, self._evaluator = name, evaluator
        self.tick, self.progress, self.close = evaluator.tick, evaluator.progress, evaluator.close

    def begin(self, given: Given) -> None:
        """Begin an evaluation."""
        self._evaluator.begin(self._name, given)


def evaluator_limits(limits: Limits, experiment: Experiment) -> Limits:
    """Return the limits of a process that evaluates.

    A process that is killed from outside is started again many times: an evaluation may take long.

    Args:
      limits: of workers.
      experiment: of the run.
    """
    found = [each.environment or experiment.streams.environment for each in experiment.evaluations.values()]
    return replace(
        limits,
        max_lag=None,
        max_bytes=None,
        start_secs=max(each.start_deadline_secs for each in found) + 60,
        call_secs=max(each.step_deadline_secs for each in found) + 10,
        first_secs=max(max(each.step_deadline_secs, each.start_deadline_secs) for each in found) + 10,
        fruitful_chunks=1,
        fruitless_lives=FRUITLESS_LIVES,
        errand_lives=10**6,
    )


def player_opener(open_evaluator: Callable[[torch.dtype | None], RemoteEvaluator]) -> OpenPlayer:
    """Return a function that opens the players of a run's evaluations; the first call starts their process.

    Args:
      open_evaluator: starts the process that plays them all; its argument is the precision of large layers.
    """
    opened: list[RemoteEvaluator] = []

    def open_player(name: str, precision: torch.dtype | None) -> Player:
        if not opened:
            opened.append(open_evaluator(precision))
        return _Player(name, opened[0])

    return open_player
