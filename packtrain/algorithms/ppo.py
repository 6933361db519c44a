"""PPO: clipped policy gradients on fresh unrolls (Schulman et al. 2017, arXiv:1707.06347), with a bonus for novelty.

The model-free baselines of "Trust, but verify" (openreview DE0MSwKv32y; IJCNN 2021): plain PPO, RND on PPO (Burda et
al. 2018, arXiv:1810.12894), and a count-based bonus in its place. A batch of unrolls is gone through `epochs` times in
`minibatches` steps; then it is gone.

Deviations from the papers and RND's public code, each by choice:
 1. Truncations bootstrap from the value of the final observation; only terminations have discount 0. Filler rows of an
    autoreset have weight 0 and are not counted as steps.
 2. Minibatches are whole unrolls, as in RND's code; PPO's paper draws single steps.
 3. Ratios are to the probabilities with which actions were chosen, and values are those of the newest weights: where
    acting goes on while a batch is learned from, the first steps of the next one were chosen by older weights.
 4. Advantages are brought to mean 0 and deviation 1 over the batch, after those of both rewards have been added.
 5. Value losses are not clipped; the gradient's norm is.
 6. The intrinsic stream has no ends, as in RND; it steps over filler rows, from the last step to the reset.
 7. RND's running moments take in a batch before they are used on it; no random steps are spent on them beforehand.
 8. The forward filter of intrinsic rewards begins an unroll at the mean of where those of the last batch ended: a batch
    does not know which environment an unroll came from.
 9. Visits are counted for ever, by digest of the observation, and 1 / √n is scaled like RND's error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from packtrain import trees
from packtrain.algorithms.gradient import GradientLearner
from packtrain.algorithms.optimisers import linear_decay, make_optimiser
from packtrain.config import configurable
from packtrain.equations import novelty
from packtrain.equations.boundaries import boundaries
from packtrain.equations.gae import endless_gae, gae
from packtrain.equations.losses import baseline_loss, entropy_loss
from packtrain.equations.surrogate import clipped_surrogate
from packtrain.errors import ConfigError
from packtrain.interfaces import SampleLearner
from packtrain.metrics.recorder import means
from packtrain.networks.actor_critic import ActorCriticNetwork, Output
from packtrain.networks.novelty import RandomDistillation
from packtrain.networks.perception import Flatten
from packtrain.planning.model import digest
from packtrain.trees import Tree
from packtrain.types import Sample, Trajectory

OBSERVATION_CLIP = 5.0  # of what RND's networks see, in standard deviations
NO_CLIPPING = float("inf")


@configurable
@dataclass(frozen=True)
class PPO:
    """Numbers of the loss, the bonus and the optimiser; defaults are those published for the Tower of Hanoi."""

    minibatches: int = 4  # optimiser steps in an epoch, each on its share of the unrolls
    epochs: int = 4  # times that a batch is gone through
    clip: float = 0.1  # how far a probability ratio pays to move from 1
    discounting: float = 0.999
    intrinsic_discounting: float = 0.99  # of the bonus
    trace_lambda: float = 0.95  # of both
    entropy_cost: float = 0.001
    baseline_cost: float = 0.5  # times ½ squared error, of each value head
    bonus: Literal["none", "rnd", "count"] = "none"  # what novelty is measured by
    extrinsic_coefficient: float = 1.0  # of the environment's advantages
    intrinsic_coefficient: float = 10.0  # of the bonus's advantages; published for Toy Montezuma's Revenge: 100
    distillation: RandomDistillation = RandomDistillation()  # the networks of "rnd"
    predictor_share: float = 1.0  # of a minibatch's steps that "rnd" learns from
    learning_rate: float = 0.001  # Adam's
    lr_schedule: Literal["linear", "constant"] = "constant"  # linear: to 0 over total_steps
    epsilon: float = 1e-5  # Adam's
    grad_norm_clipping: float | None = 0.5  # of the global norm of the policy's gradient; None: not clipped

    def __post_init__(self) -> None:
        for name in ("minibatches", "epochs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"PPO.{name} = {getattr(self, name)} must be at least 1")
        for name in ("clip", "predictor_share", "learning_rate", "epsilon", "grad_norm_clipping"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"PPO.{name} = {value} must be above 0")
        if self.clip >= 1 or self.predictor_share > 1:
            name, bound = ("clip", "below 1") if self.clip >= 1 else ("predictor_share", "at most 1")
            raise ConfigError(f"PPO.{name} = {getattr(self, name)} must be {bound}")
        for name in ("discounting", "intrinsic_discounting", "trace_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"PPO.{name} = {getattr(self, name)} must lie in [0, 1]")
        for name in ("entropy_cost", "baseline_cost", "extrinsic_coefficient", "intrinsic_coefficient"):
            if getattr(self, name) < 0:
                raise ConfigError(f"PPO.{name} = {getattr(self, name)} must not be negative")

    def build(self, network: ActorCriticNetwork, total_steps: int) -> PPOLearner:
        """A learner for a network, which needs a second value head if there is a bonus."""
        if (network.intrinsic_value is not None) != (self.bonus != "none"):
            wanted = self.bonus != "none"
            raise ConfigError(
                f"PPO.bonus = {self.bonus!r} {'needs a second value head' if wanted else 'has no second value'}: "
                f"set ActorCritic.intrinsic_value = {wanted}"
            )
        return PPOLearner(network, self, total_steps)


def loss(network: ActorCriticNetwork, trajectory: Trajectory, settings: PPO) -> tuple[Tensor, dict[str, Tensor]]:
    """The PPO loss of some unrolls, and its parts as detached 0-d tensors.

    Args:
      network: what is trained.
      trajectory: [T, B] whose extras hold "advantage", "target" and, with a bonus, "intrinsic_target", from `prepare`.
      settings: the numbers.
    """
    output, extras = _all_rows(network, trajectory), trajectory.extras
    parameters, value = output.parameters[:-1], output.value[:-1]  # [T, B, P], [T, B]
    weight_t = _weight(network, trajectory)
    log_prob = network.distribution.log_prob(parameters, trajectory.action)
    moved = clipped_surrogate(log_prob - extras["behaviour_log_prob"], extras["advantage"], weight_t, settings.clip)
    negative_entropy = entropy_loss(network.distribution.entropy(parameters), weight_t, "mean")
    parts = {"pg_loss": moved.loss, "value_loss": baseline_loss(extras["target"], value, weight_t, "mean")}
    if output.intrinsic_value is not None:
        wanted = extras["intrinsic_target"]
        parts["intrinsic_value_loss"] = baseline_loss(wanted, output.intrinsic_value[:-1], weight_t, "mean")
    values = sum(part for name, part in parts.items() if name != "pg_loss")
    total = moved.loss + settings.baseline_cost * values + settings.entropy_cost * negative_entropy
    parts |= {
        "total_loss": total,
        "entropy": -negative_entropy,  # nats a decision
        "clip_fraction": moved.clip_fraction,
        "approx_kl": moved.approx_kl,
    }
    return total, {name: part.detach() for name, part in parts.items()}


@torch.no_grad()
def prepare(
    network: ActorCriticNetwork, trajectory: Trajectory, intrinsic_reward: Tensor | None, settings: PPO
) -> tuple[Trajectory, dict[str, Tensor]]:
    """The trajectory with what `loss` needs in its extras, by the network as it is now; and metrics of the batch.

    Args:
      network: whose values are the baseline.
      trajectory: [T, B].
      intrinsic_reward: [T, B] for reaching the observation after action t; None without a bonus.
      settings: the numbers.
    """
    output = _all_rows(network, trajectory)
    value, rows = output.value, slice(network.context, None)
    ends = boundaries(trajectory.first[rows], trajectory.terminated, trajectory.truncated, settings.discounting)
    weight_t, trace_lambda = ends.weight_t, settings.trace_lambda
    extrinsic = gae(value[:-1], value[1:], trajectory.reward, *ends, trace_lambda=trace_lambda)
    advantage = settings.extrinsic_coefficient * extrinsic.advantages
    extras = {"behaviour_log_prob": trajectory.extras["behaviour_log_prob"], "target": extrinsic.targets}
    metrics = {
        "value": _mean(value[:-1], weight_t),
        "explained_variance": explained_variance(extrinsic.targets, value[:-1], weight_t),
    }
    if intrinsic_reward is not None:
        own = output.intrinsic_value
        assert own is not None
        intrinsic = endless_gae(
            own[:-1],
            own[1:],
            intrinsic_reward,
            weight_t,
            discount=settings.intrinsic_discounting,
            trace_lambda=trace_lambda,
        )
        advantage = advantage + settings.intrinsic_coefficient * intrinsic.advantages
        extras["intrinsic_target"] = intrinsic.targets
        metrics["intrinsic_reward"] = _mean(intrinsic_reward, weight_t)
        metrics["intrinsic_explained_variance"] = explained_variance(intrinsic.targets, own[:-1], weight_t)
    centred = (advantage - _mean(advantage, weight_t)) * weight_t
    extras["advantage"] = centred / (_mean(centred.square(), weight_t).sqrt() + novelty.TINY)
    return trajectory._replace(extras=extras), metrics


def explained_variance(targets: Tensor, values: Tensor, weight_t: Tensor) -> Tensor:
    """1 − Var(target − V) / Var(target) over the rows that count, 0-d; 0 where the targets are all the same."""

    def variance(x: Tensor) -> Tensor:
        return _mean((x - _mean(x, weight_t)).square(), weight_t)

    spread = variance(targets)
    return torch.where(spread > novelty.TINY**2, 1 - variance(targets - values) / spread, 0.0)


class PPOLearner(SampleLearner):
    """One batch of unrolls an update: the bonus, advantages, then every epoch and minibatch."""

    def __init__(self, network: ActorCriticNetwork, settings: PPO, total_steps: int):
        self.network, self._settings = network, settings
        self.steps = 0  # decisions learned from, each counted once
        self.updates = 0  # batches
        optimiser = make_optimiser(network.parameters(), "adam", settings.learning_rate, epsilon=settings.epsilon)
        clipping = settings.grad_norm_clipping or NO_CLIPPING

        def rate(_: int) -> float:
            linear = settings.lr_schedule == "linear"
            return linear_decay(settings.learning_rate, self.steps, total_steps) if linear else settings.learning_rate

        self._gradient = GradientLearner(network, partial(loss, settings=settings), optimiser, rate, clipping)
        self._generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))  # of minibatches
        self._bonus: Bonus | None = None
        if settings.bonus == "rnd":
            self._bonus = RandomDistillationBonus(network, settings, rate)
        elif settings.bonus == "count":
            self._bonus = CountBonus()
        device = network.value.weight.device
        self._scale = novelty.no_moments(device=device)  # of forward returns of the bonus
        self._forward = torch.zeros((), device=device)  # where these ended in the last batch, on average

    def update(self, sample: Sample) -> dict[str, Any]:
        """All optimiser steps on one batch; metrics are averages over them, or of the batch."""
        trajectory, settings = sample.trajectory, self._settings
        columns = trajectory.reward.shape[1]
        if columns < settings.minibatches:
            raise ConfigError(f"PPO.minibatches = {settings.minibatches} is more than the {columns} unrolls of a batch")
        reward = self._intrinsic_reward(trajectory) if self._bonus is not None else None
        trajectory, metrics = prepare(self.network, trajectory, reward, settings)
        steps: list[dict[str, Any]] = []
        for _ in range(settings.epochs):
            order = torch.randperm(columns, generator=self._generator)
            for chosen in order.tensor_split(settings.minibatches):
                steps.append(self._gradient.update(Sample(_columns(trajectory, chosen), 0)))
                if self._bonus is not None:
                    steps[-1] |= self._bonus.learn(chosen, self._generator)
        self.steps += sample.steps
        self.updates += 1
        extent = {} if self._bonus is None else self._bonus.extent()
        return {**metrics, **means(steps), **extent, "learning_rate": steps[-1]["learning_rate"]}

    def _intrinsic_reward(self, trajectory: Trajectory) -> Tensor:
        """[T, B] the bonus for the observation after each action, over the deviation of its forward returns so far."""
        assert self._bonus is not None
        after = slice(self.network.context + 1, None)
        weight_t = _weight(self.network, trajectory)
        raw = self._bonus.novelty(trees.map(lambda leaf: leaf[after], trajectory.obs), weight_t)
        before = self._forward.expand(raw.shape[1])
        forward = novelty.forward_returns(raw, weight_t, self._settings.intrinsic_discounting, before)
        self._scale = novelty.add_to_moments(self._scale, forward.flatten(), weight_t.flatten())
        self._forward = forward[-1].mean()
        return raw / novelty.deviation(self._scale).clamp(min=novelty.TINY).float()

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser state, counters, the generator, scales, and all that the bonus knows."""
        return {
            **self._gradient.state_dict(),
            "minibatch_steps": self._gradient.updates,
            "steps": self.steps,
            "updates": self.updates,
            "generator": self._generator.get_state(),
            "scale": self._scale._asdict(),
            "forward": self._forward,
            "bonus": {} if self._bonus is None else self._bonus.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The reverse of state_dict."""
        self._gradient.load_state_dict({**state, "updates": state["minibatch_steps"]})
        self.steps, self.updates = int(state["steps"]), int(state["updates"])
        self._generator.set_state(state["generator"].cpu())
        self._scale = _moments(state["scale"], self._scale.mean.device)
        self._forward = state["forward"].to(self._forward.device)
        if self._bonus is not None:
            self._bonus.load_state_dict(state["bonus"])


class Bonus(Protocol):
    """Measures novelty, and changes with what it has seen."""

    def novelty(self, obs: Tree, weight_t: Tensor) -> Tensor:
        """How new observations [T, B, ...] are, [T, B]; anything where the weight is 0."""

    def learn(self, columns: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """Learn from some columns of the observations that were last asked about."""

    def extent(self) -> dict[str, float]:
        """Metrics of what it has seen in all."""

    def state_dict(self) -> dict[str, Any]:
        """All that must survive."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The reverse of state_dict."""


class RandomDistillationBonus:
    """The error of a network that learns what another, random one says of an observation: its newest frame, scaled.

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
        self._inputs, self._targets = torch.empty(0), torch.empty(0)  # [U, D], [U, F] of the last batch, each once
        self._which, self._weight = torch.empty(0), torch.empty(0)  # [T, B] which of these, and what it counts
        parameters = self.network.predictor.parameters()
        optimiser = make_optimiser(parameters, "adam", settings.learning_rate, epsilon=settings.epsilon)
        self._gradient = GradientLearner(self.network.predictor, self._loss, optimiser, rate, NO_CLIPPING)

    @torch.no_grad()
    def novelty(self, obs: Tree, weight_t: Tensor) -> Tensor:
        """The predictor's error, after the moments of observations have taken these in."""
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
        """One step of the predictor on these columns, or on a share of their steps."""
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
        """How often each of U observations comes: [M], [M], [U, ...] → [U]."""
        return weight.new_zeros(len(distinct)).index_add_(0, which, weight)

    @staticmethod
    def _loss(predictor: nn.Module, minibatch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        inputs, targets, weight = minibatch
        error = _mean(novelty.rnd_error(predictor(inputs), targets), weight)
        return error, {"predictor_loss": error.detach()}

    def extent(self) -> dict[str, float]:
        """Nothing."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Both networks, the predictor's optimiser, and the moments of observations."""
        target = {name: leaf.clone() for name, leaf in self.network.target.state_dict().items()}
        return {"predictor": self._gradient.state_dict(), "target": target, "moments": self._moments._asdict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The reverse of state_dict."""
        self._gradient.load_state_dict(state["predictor"])
        self.network.target.load_state_dict(state["target"])
        self._moments = _moments(state["moments"], self._moments.mean.device)


class CountBonus:
    """1 / √n for the n-th visit of an observation, counted over the whole run by a digest of it.

    Within a batch visits are counted in the order of time, and of columns at the same time.
    """

    def __init__(self) -> None:
        self._keys = np.zeros(0, np.uint64)  # [N] digests, ascending
        self._visits = np.zeros(0, np.int64)  # [N]

    def novelty(self, obs: Tree, weight_t: Tensor) -> Tensor:
        """The bonus, and one visit more for each observation of weight 1."""
        counted = weight_t.flatten().cpu().numpy() > 0
        rows = trees.map(lambda leaf: leaf.flatten(0, 1).cpu().numpy()[counted], obs)  # [T, B, ...] → [M, ...]
        numbers = np.ones(len(counted), np.int64)
        numbers[counted] = self.visit(digest(rows))
        return novelty.count_bonus(torch.from_numpy(numbers).to(weight_t.device)).unflatten(0, weight_t.shape)

    def visit(self, keys: np.ndarray) -> np.ndarray:
        """Which visit of its key each of M is, [M] int64 from 1, earlier calls included."""
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
        """Nothing: visits are counted when they are asked about."""
        return {}

    def extent(self) -> dict[str, float]:
        """How many different observations there have been."""
        return {"distinct_observations": float(len(self._keys))}

    def state_dict(self) -> dict[str, Any]:
        """Digests, as int64, and visits."""
        return {"keys": torch.tensor(self._keys.view(np.int64)), "visits": torch.tensor(self._visits)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The reverse of state_dict."""
        self._keys = state["keys"].cpu().numpy().copy().view(np.uint64)
        self._visits = state["visits"].cpu().numpy().copy()


def _all_rows(network: ActorCriticNetwork, trajectory: Trajectory) -> Output:
    """What the network says of rows 0 … T, from the carry stored with the unrolls."""
    rows = slice(network.context, None)
    last_action, last_reward = trajectory.last_inputs()
    return network(trajectory.obs, trajectory.first, last_action[rows], last_reward[rows], trajectory.carry)


def _weight(network: ActorCriticNetwork, trajectory: Trajectory) -> Tensor:
    rows = slice(network.context, None)
    return boundaries(trajectory.first[rows], trajectory.terminated, trajectory.truncated, 1.0).weight_t


def _columns(trajectory: Trajectory, chosen: Tensor) -> Trajectory:
    """Some unrolls of a batch."""
    chosen = chosen.to(trajectory.reward.device)
    some = trees.map(lambda leaf: leaf.index_select(1, chosen), trajectory._replace(carry=()))
    return some._replace(carry=trees.map(lambda leaf: leaf.index_select(0, chosen), trajectory.carry))


def _mean(x: Tensor, weight: Tensor) -> Tensor:
    """Over the rows that count; 0 if there are none."""
    return (x * weight).sum() / weight.sum().clamp(min=1)


def _moments(state: dict[str, Tensor], device: torch.device) -> novelty.Moments:
    return novelty.Moments(**{name: leaf.to(device) for name, leaf in state.items()})
