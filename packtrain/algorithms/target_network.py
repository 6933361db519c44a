"""Learners of action values: one step of every optimiser per sample, and a periodically copied target network.

What a step computes is the algorithm's (`dqn.py`, `r2d2.py`, `ngu.py`, `agent57.py`). On a GPU it is captured as a CUDA
graph (`accelerate/cuda_graph.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from packtrain import trees
from packtrain.accelerate.cuda_graph import CapturedFunction
from packtrain.algorithms.data_parallel import Averages, GradientRecorder, Part, Ranks, SplitBatch, Work
from packtrain.algorithms.optimisers import Adam
from packtrain.interfaces import SampleLearner
from packtrain.networks.action_values import ActionValuesNetwork
from packtrain.types import Sample, Trajectory

Optimisers = dict[str, Adam]
Step = Callable[..., dict[str, Tensor]]
Inputs = Callable[[Sample, int], tuple[Any, ...]]
Prepare = Callable[[ActionValuesNetwork, Trajectory], None]


def sample_inputs(sample: Sample, update: int) -> tuple[Any, ...]:
    """Return the trajectory and the weight [B] of each sequence in the loss, 1 where sampling was uniform."""
    weight = sample.importance_weight
    if weight is None:
        weight = torch.ones_like(sample.trajectory.reward[0])
    return sample.trajectory, weight


def averages_over_sequences(novelty_steps: int = 0) -> Averages:
    """Return the denominators of the averages in losses and metrics of action values.

    Args:
      novelty_steps: last steps of each sequence that novelty is learned from.
    """

    def amounts(trajectory: Trajectory, weight: Tensor, *_: Any) -> dict[str, Tensor]:
        counts = trajectory.extras["weight"]
        return {
            "sequences": torch.ones_like(weight).sum(),
            "steps": counts.sum(),
            "novelty": counts.sum(0).clamp(max=novelty_steps).sum(),
        }

    novel = ("embedding", "distillation")
    return Averages(
        amounts,
        gradients=dict.fromkeys(novel, "novelty"),
        metrics={
            **{f"{name}_loss": "novelty" for name in novel},
            **dict.fromkeys(("value_mean", "intrinsic_reward"), "steps"),
        },
        main="sequences",
    )


def observe_learned_rows(network: ActionValuesNetwork, trajectory: Trajectory) -> None:
    """Update the running moments of observations with the rows of a batch that are learned from, without padding."""
    weight = trajectory.extras["weight"]  # [T, B]
    begin = len(trajectory.first) - 1 - len(weight)
    rows = trees.map(lambda leaf: leaf[begin : begin + len(weight)].flatten(0, 1), trajectory.obs)
    for values in (network.acting.values, network.target):  # the target network has the same statistics at any time
        values.observe(rows, weight.flatten())


class TargetNetworkLearner(SampleLearner):
    """Makes one update for each sample, and copies the online network into the target network periodically."""

    saves_acting_weights = True  # published every `publish_period` updates

    def __init__(
        self,
        network: ActionValuesNetwork,
        optimisers: Optimisers,
        step: Step,
        *,
        target_period: int,
        publish_period: int,
        inputs: Inputs = sample_inputs,
        prepare: Prepare | None = None,
        averages: Averages | None = None,
    ):
        """Build a learner at its first update.

        Args:
          network: what is trained, with its target network.
          optimisers: by name.
          step: (network, optimisers, *inputs) → metrics as detached 0-d tensors, and "priorities" [B].
          target_period: updates between copies into the target network.
          publish_period: updates between versions of the weights that act.
          inputs: (sample, number of the update) → what `step` gets.
          prepare: (network, trajectory): what is done with a whole batch before its step; None: nothing.
          averages: what the losses are averages over; None: sequences.
        """
        self.network, self._optimisers = network, optimisers
        self._algorithm, self._inputs, self._prepare = step, inputs, prepare
        self._averages = averages or averages_over_sequences()
        self._split: SplitBatch | None = None
        self._target_period, self._publish_period = target_period, publish_period
        self._online, self._target = (list(p.state_dict().values()) for p in (network.acting.values, network.target))
        self._device = network.device
        self._captured: CapturedFunction | None = None
        self.capture = self._device.type == "cuda"
        self._ended: torch.cuda.Event | None = None  # recorded after the latest launch
        self.updates = 0
        self.steps = 0

    @property
    def capture(self) -> bool:
        """Return whether an update is captured as one CUDA graph."""
        return self._captured is not None

    @capture.setter
    def capture(self, capture: bool) -> None:
        self._captured = CapturedFunction(self._step, self._device, "the update") if capture else None

    def update(self, sample: Sample) -> dict[str, Any]:
        """Make one update; return metrics as 0-d tensors, and "priorities" [B]."""
        inputs = self._inputs(sample, self.updates)
        if self._captured is None:
            metrics = self._step(*inputs)
        else:
            metrics = self._captured(*inputs)
            self._limit_queue()
        self.steps += sample.steps
        self.updates += 1
        if self.updates % self._target_period == 0:
            with torch.no_grad():
                torch._foreach_copy_(self._target, self._online)
        return metrics

    def _step(self, *inputs: Any) -> dict[str, Tensor]:
        if self.network.sizes.network.normalise_obs:
            observe_learned_rows(self.network, inputs[0])
        if self._prepare is not None:
            self._prepare(self.network, inputs[0])
        if self._split is None:
            return self._algorithm(self.network, self._optimisers, *inputs)
        gradients, metrics, items = self._split(*inputs)
        for name, found in gradients.items():
            norm = self._optimisers[name].follow(found)
            if norm is not None:
                metrics["grad_norm"] = norm
        return {**metrics, **items}

    def split(self, ranks: Ranks) -> None:
        """Divide each batch over several ranks from now on; updates are no longer captured."""
        self.capture = False
        self._split = SplitBatch(ranks, self._averages, self.part)

    def part(self, work: Work) -> Part:
        """Return gradients, metrics and priorities of a part of a batch."""
        recorders = {
            name: GradientRecorder(one.parameters, self._averages.share_of(name, work.shares))
            for name, one in self._optimisers.items()
        }
        metrics = dict(self._algorithm(self.network, recorders, *work.inputs))
        items = {"priorities": metrics.pop("priorities")}
        return Part({name: recorder.found for name, recorder in recorders.items()}, metrics, items)

    def _limit_queue(self) -> None:
        """Wait for the launch before the last one: one queued update keeps a GPU busy; actors wait for two at most."""
        before, self._ended = self._ended, torch.cuda.Event(blocking=True)
        self._ended.record()
        if before is not None:
            before.synchronize()

    @property
    def publish_due(self) -> bool:
        """Return whether actors should use the current weights."""
        return self.updates % self._publish_period == 0

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimiser state and counters."""
        return {
            "network": {name: leaf.detach().clone() for name, leaf in self.network.state_dict().items()},
            "optimisers": {
                name: {key: leaf.clone() for key, leaf in one.state.items()} for name, one in self._optimisers.items()
            },
            "steps": self.steps,
            "updates": self.updates,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self.network.load_state_dict(state["network"])
        for name, one in self._optimisers.items():
            for key, leaf in one.state.items():
                leaf.copy_(state["optimisers"][name][key])
        self.steps, self.updates = int(state["steps"]), int(state["updates"])
