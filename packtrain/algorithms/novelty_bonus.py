"""Exploration bonuses of PPO: the prediction error of random network distillation (RND), and 1 / √n for the n-th visit.

RND: Burda et al. 2018 (arXiv:1810.12894). `algorithms/ppo.py` lists the deviations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from packtrain import trees
from packtrain.algorithms.gradient import GradientLearner
from packtrain.algorithms.optimisers import make_optimiser
from packtrain.equations import novelty
from packtrain.equations.losses import weighted_mean
from packtrain.hashing import digest
from packtrain.networks.actor_critic import ActorCriticNetwork
from packtrain.networks.perception import Flatten
from packtrain.trees import Tree
from packtrain.types import Sample

if TYPE_CHECKING:
    from packtrain.algorithms.ppo import PPO

OBSERVATION_CLIP = 5.0  # clip value of RND's inputs, in standard deviations
NO_CLIPPING = float("inf")


class Bonus(Protocol):
    """Computes a novelty bonus, and is updated with the observations it has received."""

    def novelty(self, obs: Tree, weight_t: Tensor) -> Tensor:
        """Return the novelty of new observations [T, B, ...], [T, B]; undefined where the weight is 0."""

    def learn(self, columns: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """Train on some environments of the observations of the latest `novelty` call."""

    def extent(self) -> dict[str, float]:
        """Return metrics about the observations received so far."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that checkpoints contain."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""


class RandomDistillationBonus:
    """Prediction error of a network trained to imitate a fixed random network on an observation's newest frame, scaled.

    Small worlds show the same observations again and again. Each goes through the networks once, and weighs as much as
    it came often: the same loss for less work.
    """

    def __init__(self, network: ActorCriticNetwork, settings: PPO, rate: Callable[[int], float]):
        device = network.value.weight.device
        self._flat = Flatten().build(network.obs_space)
        width = int(self._flat.width)  # type: ignore[arg-type]
        self.network = settings.distillation.build(width).to(device)
        self._share = settings.predictor_share
        self._moments = novelty.no_moments(width, device=device)
        # [U, D], [U, F] distinct observations of the last batch
        self._inputs, self._targets = torch.empty(0), torch.empty(0)
        self._which, self._weight = torch.empty(0), torch.empty(0)  # [T, B] index into these, and weight of each step
        parameters = self.network.predictor.parameters()
        optimiser = make_optimiser(parameters, "adam", settings.learning_rate, epsilon=settings.epsilon)
        self._gradient = GradientLearner(self.network.predictor, self._loss, optimiser, rate, NO_CLIPPING)

    @torch.no_grad()
    def novelty(self, obs: Tree, weight_t: Tensor) -> Tensor:
        """Update the observation moments with these observations, and return the predictor's error."""
        rows = trees.map(lambda leaf: leaf.flatten(0, 1), obs)  # [T, B, ...] → [T*B, ...]
        keys = digest(trees.map(lambda leaf: leaf.cpu().numpy(), rows))
        _, index, which = np.unique(keys, return_index=True, return_inverse=True)
        first, self._which = (torch.from_numpy(each).to(weight_t.device) for each in (index, which))
        flat = self._flat(trees.map(lambda leaf: leaf[first], rows))  # [U, D]
        self._moments = novelty.add_to_moments(self._moments, flat, self._times(self._which, weight_t.flatten(), flat))
        self._inputs = novelty.normalise(flat, self._moments, OBSERVATION_CLIP)
        self._which, self._weight = self._which.unflatten(0, weight_t.shape), weight_t
        prediction, self._targets = self.network(self._inputs)
        return novelty.rnd_error(prediction, self._targets)[self._which]

    def learn(self, columns: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """Make one optimiser step of the predictor on these environments, or on a fraction of their steps."""
        columns = columns.to(self._weight.device)
        weight = self._weight.index_select(1, columns)
        if self._share < 1:
            weight = weight * (torch.rand(weight.shape, generator=generator) < self._share).to(weight)
        times = self._times(self._which.index_select(1, columns).flatten(), weight.flatten(), self._inputs)
        there = times.nonzero().squeeze(1)
        minibatch: Any = (self._inputs[there], self._targets[there], times[there])
        return {"predictor_loss": self._gradient.update(Sample(minibatch, 0))["predictor_loss"]}

    @staticmethod
    def _times(which: Tensor, weight: Tensor, distinct: Tensor) -> Tensor:
        """Return how often each of U observations occurs: [M], [M], [U, ...] → [U]."""
        return weight.new_zeros(len(distinct)).index_add_(0, which, weight)

    @staticmethod
    def _loss(predictor: nn.Module, minibatch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        inputs, targets, weight = minibatch
        error = weighted_mean(novelty.rnd_error(predictor(inputs), targets), weight)
        return error, {"predictor_loss": error.detach()}

    def extent(self) -> dict[str, float]:
        """Return no metrics."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return both networks, the predictor's optimiser, and the observation moments."""
        target = {name: leaf.clone() for name, leaf in self.network.target.state_dict().items()}
        return {"predictor": self._gradient.state_dict(), "target": target, "moments": self._moments._asdict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self._gradient.load_state_dict(state["predictor"])
        self.network.target.load_state_dict(state["target"])
        self._moments = moments_from(state["moments"], self._moments.mean.device)


class CountBonus:
    """1 / √n for the n-th visit of an observation, counted over the whole run by a hash of the observation.

    Within a batch visits are counted in the order of time, and in the order of environments at equal times.
    """

    def __init__(self) -> None:
        self._keys = np.zeros(0, np.uint64)  # [N] digests, ascending
        self._visits = np.zeros(0, np.int64)  # [N]

    def novelty(self, obs: Tree, weight_t: Tensor) -> Tensor:
        """Return the bonus, and count a visit for each observation of weight 1."""
        counted = weight_t.flatten().cpu().numpy() > 0
        rows = trees.map(lambda leaf: leaf.flatten(0, 1).cpu().numpy()[counted], obs)  # [T, B, ...] → [M, ...]
        numbers = np.ones(len(counted), np.int64)
        numbers[counted] = self.visit(digest(rows))
        found: Tensor = novelty.count_bonus(torch.from_numpy(numbers).to(weight_t.device)).unflatten(0, weight_t.shape)
        return found

    def visit(self, keys: np.ndarray) -> np.ndarray:
        """Return the visit number of each of M keys, [M] int64 from 1, earlier calls included."""
        distinct, which, counts = np.unique(keys, return_inverse=True, return_counts=True)
        order = np.argsort(which, kind="stable")
        begin = np.cumsum(counts) - counts
        nth = np.empty(len(keys), np.int64)
        nth[order] = np.arange(len(keys)) - np.repeat(begin, counts) + 1  # 1, 2, … among equal keys
        places = np.searchsorted(self._keys, distinct)
        known = np.zeros(len(distinct), bool)
        inside = places < len(self._keys)
        known[inside] = self._keys[places[inside]] == distinct[inside]
        before = np.zeros(len(distinct), np.int64)
        before[known] = self._visits[places[known]]
        self._visits[places[known]] += counts[known]
        self._keys = np.insert(self._keys, places[~known], distinct[~known])
        self._visits = np.insert(self._visits, places[~known], counts[~known])
        return before[which] + nth

    def learn(self, columns: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """Do nothing: visits are counted by `novelty`."""
        return {}

    def extent(self) -> dict[str, float]:
        """Return the number of different observations so far."""
        return {"distinct_observations": float(len(self._keys))}

    def state_dict(self) -> dict[str, Any]:
        """Return hashes, as int64, and visits."""
        return {"keys": torch.tensor(self._keys.view(np.int64)), "visits": torch.tensor(self._visits)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self._keys = state["keys"].cpu().numpy().copy().view(np.uint64)
        self._visits = state["visits"].cpu().numpy().copy()


def moments_from(state: dict[str, Tensor], device: torch.device) -> novelty.Moments:
    """Return the moments of a checkpoint on a device."""
    return novelty.Moments(**{name: leaf.to(device) for name, leaf in state.items()})
