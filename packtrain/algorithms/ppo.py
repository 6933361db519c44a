"""PPO: clipped policy gradients on fresh unrolls (Schulman et al. 2017, arXiv:1707.06347), with a bonus for novelty.

The model-free baselines of "Trust, but verify" (openreview DE0MSwKv32y; IJCNN 2021): plain PPO, RND on PPO (Burda et
al. 2018, arXiv:1810.12894), and a count-based bonus in its place. A batch of unrolls is gone through `epochs` times in
`minibatches` steps; then it is gone.

Deviations from the papers and RND's public code, each by choice:
 1. Truncations bootstrap from the value of the final observation; only terminations have discount 0. Filler rows of an
    autoreset have weight 0 and are not counted as steps.
 2. Minibatches are whole unrolls, as in RND's code; with `minibatch_of = 'steps'` single steps, as in PPO's paper.
 3. Ratios are to the probabilities with which actions were chosen, and values are those of the newest weights: where
    acting goes on while a batch is learned from, the first steps of the next one were chosen by older weights.
 4. Advantages are brought to mean 0 and deviation 1 over the batch, after those of both rewards have been added.
 5. Value losses are not clipped; the gradient's norm is.
 6. The intrinsic stream has no ends, as in RND; it steps over filler rows, from the last step to the reset.
 7. RND's running moments take in a batch before they are used on it; no random steps are spent on them beforehand.
 8. The forward filter of intrinsic rewards begins an unroll at the mean of where those of the last batch ended: a batch
    does not know which environment an unroll came from.
 9. Visits are counted for ever, by digest of the observation, and 1 / √n is scaled like RND's error.
10. Observations are normalised by what was seen before a batch, which is added after it has been learned from: the
    first ratios of a batch are 1. Rewards are divided by the deviation of their forward returns, this batch included.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from packtrain import check, trees
from packtrain.algorithms.data_parallel import Averages, Part, Ranks, Work, count_steps, count_weights
from packtrain.algorithms.gradient import GradientLearner
from packtrain.algorithms.novelty_bonus import (
    NO_CLIPPING,
    Bonus,
    CountBonus,
    RandomDistillationBonus,
    moments_from,
)
from packtrain.algorithms.optimisers import make_optimiser
from packtrain.algorithms.trusted_policy import TrustedPolicy, mean_hellinger
from packtrain.config import configurable
from packtrain.equations import novelty
from packtrain.equations.boundaries import boundaries
from packtrain.equations.gae import endless_gae, gae
from packtrain.equations.losses import baseline_loss, entropy_loss, weighted_mean
from packtrain.equations.scan import reverse_linear_scan
from packtrain.equations.schedules import linear_decay
from packtrain.equations.surrogate import clipped_surrogate
from packtrain.errors import ConfigError
from packtrain.interfaces import SampleLearner
from packtrain.metrics.recorder import means
from packtrain.networks.actor_critic import ActorCriticNetwork, Output
from packtrain.networks.novelty import RandomDistillation
from packtrain.types import Sample, Trajectory

REWARD_CLIP = 10.0  # clip value of normalised rewards


@configurable
@dataclass(frozen=True)
class PPO:
    """Settings of the loss, the bonus and the optimiser; defaults are those published for the Tower of Hanoi."""

    splits_batches: ClassVar[bool] = True
    minibatches: int = 4  # optimiser steps per epoch; each uses an equal share of the unrolls
    epochs: int = 4  # passes over a batch
    clip: float = 0.1  # ε: probability ratios are clipped to 1 ± ε
    discounting: float = 0.999
    intrinsic_discounting: float = 0.99  # γ of the bonus
    trace_lambda: float = 0.95  # λ of both advantages
    entropy_cost: float = 0.001
    baseline_cost: float = 0.5  # weight of ½ · squared error of each value head
    bonus: Literal["none", "rnd", "count"] = "none"  # source of the novelty bonus
    extrinsic_coefficient: float = 1.0  # weight of the environment's advantages
    intrinsic_coefficient: float = 10.0  # weight of the bonus's advantages; published for Toy Montezuma's Revenge: 100
    distillation: RandomDistillation = RandomDistillation()  # networks of "rnd"
    predictor_share: float = 1.0  # fraction of a minibatch's steps that "rnd" is trained on
    learning_rate: float = 0.001  # Adam's learning rate
    lr_schedule: Literal["linear", "constant"] = "constant"  # linear: decay to 0 over total_steps
    epsilon: float = 1e-5  # Adam's ε
    grad_norm_clipping: float | None = 0.5  # maximum global norm of the policy's gradient; None: not clipped
    minibatch_of: Literal["unrolls", "steps"] = "unrolls"  # unit that minibatches sample; steps: not with an LSTM
    normalise_rewards: bool = False  # by the running deviation of discounted returns, clipped to ±10
    trusted: TrustedPolicy | None = None  # a policy to stay near to; None: no penalty

    def __post_init__(self) -> None:
        check.at_least(self, 1, "minibatches", "epochs")
        check.positive(self, "clip", "predictor_share", "learning_rate", "epsilon", "grad_norm_clipping")
        if self.clip >= 1 or self.predictor_share > 1:
            name, bound = ("clip", "below 1") if self.clip >= 1 else ("predictor_share", "at most 1")
            raise ConfigError(f"PPO.{name} = {getattr(self, name)} must be {bound}")
        check.share(self, "discounting", "intrinsic_discounting", "trace_lambda")
        check.not_negative(self, "entropy_cost", "baseline_cost", "extrinsic_coefficient", "intrinsic_coefficient")

    def build(self, network: ActorCriticNetwork, total_steps: int) -> PPOLearner:
        """Return a learner for a network, which needs a second value head if there is a bonus."""
        if (network.intrinsic_value is not None) != (self.bonus != "none"):
            wanted = self.bonus != "none"
            raise ConfigError(
                f"PPO.bonus = {self.bonus!r} {'needs a second value head' if wanted else 'has no second value'}: "
                f"set ActorCritic.intrinsic_value = {wanted}"
            )
        if self.minibatch_of == "steps" and (network.core is not None or network.context or self.bonus != "none"):
            raise ConfigError(
                "PPO.minibatch_of = 'steps' draws single steps, which an LSTM, a stack of frames or a bonus does not "
                "allow: set PPO.minibatch_of = 'unrolls'"
            )
        return PPOLearner(network, self, total_steps)


def loss(network: ActorCriticNetwork, trajectory: Trajectory, settings: PPO) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the PPO loss of some unrolls, and its parts as detached 0-d tensors.

    Args:
      network: what is trained.
      trajectory: [T, B] whose extras hold "advantage", "target" and, with a bonus, "intrinsic_target", from `prepare`.
      settings: the numbers.
    """
    output = _all_rows(network, trajectory)
    own = None if output.intrinsic_value is None else output.intrinsic_value[:-1]
    rows = output._replace(parameters=output.parameters[:-1], value=output.value[:-1], intrinsic_value=own)
    return _loss_of_rows(network, rows, trajectory, _weight(network, trajectory), settings)


def step_loss(network: ActorCriticNetwork, steps: Trajectory, settings: PPO) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the PPO loss of single steps from `single_steps`: one row [1, N], without next observations."""
    actions, rewards = steps.last_action, steps.last_reward["train"]
    output = network(steps.obs, steps.first, actions, rewards, ())
    return _loss_of_rows(network, output, steps, steps.extras["weight"], settings)


def _loss_of_rows(
    network: ActorCriticNetwork, output: Output, trajectory: Trajectory, weight_t: Tensor, settings: PPO
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss, given the network's output for each decision [T, B]."""
    extras = trajectory.extras
    log_prob = network.distribution.log_prob(output.parameters, trajectory.action)
    moved = clipped_surrogate(log_prob - extras["behaviour_log_prob"], extras["advantage"], weight_t, settings.clip)
    negative_entropy = entropy_loss(network.distribution.entropy(output.parameters), weight_t, "mean")
    parts = {"pg_loss": moved.loss, "value_loss": baseline_loss(extras["target"], output.value, weight_t, "mean")}
    if output.intrinsic_value is not None:
        wanted = extras["intrinsic_target"]
        parts["intrinsic_value_loss"] = baseline_loss(wanted, output.intrinsic_value, weight_t, "mean")
    values = sum(part for name, part in parts.items() if name != "pg_loss")
    total = moved.loss + settings.baseline_cost * values + settings.entropy_cost * negative_entropy
    if settings.trusted is not None and "trusted" in extras:
        apart = settings.trusted.mean_divergence(network.distribution, output.parameters, extras["trusted"], weight_t)
        total = total + settings.trusted.coefficient * apart
        parts["trusted_divergence"] = apart  # mean per decision
    parts |= {
        "total_loss": total,
        "entropy": -negative_entropy,  # nats per decision
        "clip_fraction": moved.clip_fraction,
        "approx_kl": moved.approx_kl,
    }
    return total, {name: part.detach() for name, part in parts.items()}


def single_steps(network: ActorCriticNetwork, trajectory: Trajectory) -> Trajectory:
    """Flatten the decisions of a batch, [T, B] → [1, T·B], with their weights as the extra "weight"."""
    length = len(trajectory.reward)

    def flat(leaf: Tensor) -> Tensor:
        return leaf[:length].flatten(0, 1).unsqueeze(0)

    last_action, last_reward = trajectory.last_inputs()
    extras = {**trajectory.extras, "weight": _weight(network, trajectory)}
    return Trajectory(
        obs=trees.map(flat, trajectory.obs),
        first=flat(trajectory.first),
        action=trees.map(flat, trajectory.action),
        reward=flat(trajectory.reward),
        terminated=flat(trajectory.terminated),
        truncated=flat(trajectory.truncated),
        last_action=trees.map(flat, last_action),
        last_reward={"train": flat(last_reward)},
        carry=(),
        extras={name: flat(leaf) for name, leaf in extras.items()},
    )


@torch.no_grad()
def prepare(
    network: ActorCriticNetwork,
    trajectory: Trajectory,
    intrinsic_reward: Tensor | None,
    settings: PPO,
    trusted: ActorCriticNetwork | None = None,
) -> tuple[Trajectory, dict[str, Tensor]]:
    """Return the trajectory with the inputs of `loss` in its extras, by the current network; and metrics of the batch.

    Args:
      network: whose values are the baseline.
      trajectory: [T, B].
      intrinsic_reward: [T, B] for reaching the observation after action t; None without a bonus.
      settings: the numbers.
      trusted: frozen network to stay near to; None: no penalty.
    """
    output = _all_rows(network, trajectory)
    value, rows = output.value, slice(network.context, None)
    ends = boundaries(trajectory.first[rows], trajectory.terminated, trajectory.truncated, settings.discounting)
    weight_t, trace_lambda = ends.weight_t, settings.trace_lambda
    extrinsic = gae(value[:-1], value[1:], trajectory.reward, *ends, trace_lambda=trace_lambda)
    advantage = settings.extrinsic_coefficient * extrinsic.advantages
    extras = {"behaviour_log_prob": trajectory.extras["behaviour_log_prob"], "target": extrinsic.targets}
    metrics = {
        "value": weighted_mean(value[:-1], weight_t),
        "explained_variance": explained_variance(extrinsic.targets, value[:-1], weight_t),
    }
    if trusted is not None:
        extras["trusted"] = _all_rows(trusted, trajectory).parameters[:-1]
        parameters = output.parameters[:-1]
        metrics["trusted_hellinger"] = mean_hellinger(network.distribution, parameters, extras["trusted"], weight_t)
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
        metrics["intrinsic_reward"] = weighted_mean(intrinsic_reward, weight_t)
        metrics["intrinsic_explained_variance"] = explained_variance(intrinsic.targets, own[:-1], weight_t)
    centred = (advantage - weighted_mean(advantage, weight_t)) * weight_t
    extras["advantage"] = centred / (weighted_mean(centred.square(), weight_t).sqrt() + novelty.TINY)
    return trajectory._replace(extras=extras), metrics


def explained_variance(targets: Tensor, values: Tensor, weight_t: Tensor) -> Tensor:
    """Return 1 − Var(target − V) / Var(target) over rows of nonzero weight, 0-d; 0 if the targets are constant."""

    def variance(x: Tensor) -> Tensor:
        return weighted_mean((x - weighted_mean(x, weight_t)).square(), weight_t)

    spread = variance(targets)
    return torch.where(spread > novelty.TINY**2, 1 - variance(targets - values) / spread, 0.0)


class PPOLearner(SampleLearner):
    """Makes the updates of one batch of unrolls: the bonus, advantages, then every epoch and minibatch."""

    def __init__(self, network: ActorCriticNetwork, settings: PPO, total_steps: int):
        self.network, self._settings = network, settings
        self.steps = 0  # decisions learned from, each counted once
        self.updates = 0  # batches learned from
        optimiser = make_optimiser(network.parameters(), "adam", settings.learning_rate, epsilon=settings.epsilon)
        clipping = settings.grad_norm_clipping or NO_CLIPPING

        def rate(_: int) -> float:
            linear = settings.lr_schedule == "linear"
            return linear_decay(settings.learning_rate, self.steps, total_steps) if linear else settings.learning_rate

        of_minibatch = partial(step_loss if settings.minibatch_of == "steps" else loss, settings=settings)
        averages = Averages(count_weights if settings.minibatch_of == "steps" else count_steps)
        self._gradient = GradientLearner(network, of_minibatch, optimiser, rate, clipping, averages=averages)
        self._gradient.observe = None  # this class calls it, once per batch
        self._trusted = None if settings.trusted is None else settings.trusted.freeze(network)
        self._generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))  # samples minibatches
        self._bonus: Bonus | None = None
        if settings.bonus == "rnd":
            self._bonus = RandomDistillationBonus(network, settings, rate)
        elif settings.bonus == "count":
            self._bonus = CountBonus()
        device = network.value.weight.device
        self._scale = novelty.no_moments(device=device)  # scale of the bonus's forward returns
        self._forward = torch.zeros((), device=device)  # last forward returns of the previous batch, on average
        self._rewards = ReturnScale(settings.discounting, device) if settings.normalise_rewards else None

    def update(self, sample: Sample) -> dict[str, Any]:
        """Make all optimiser steps on one batch; metrics are averages over them, or of the batch."""
        trajectory, settings = sample.trajectory, self._settings
        reward = self._intrinsic_reward(trajectory) if self._bonus is not None else None
        seen = trajectory.obs
        if self._rewards is not None:
            trajectory = self._rewards.scale(trajectory, _weight(self.network, trajectory), self.network.context)
        trajectory, metrics = prepare(self.network, trajectory, reward, settings, self._trusted)
        if settings.minibatch_of == "steps":
            trajectory = single_steps(self.network, trajectory)
        columns = trajectory.reward.shape[1]
        if columns < settings.minibatches:
            raise ConfigError(
                f"PPO.minibatches = {settings.minibatches} is more than the {columns} {settings.minibatch_of} "
                "of a batch"
            )
        steps: list[dict[str, Any]] = []
        for _ in range(settings.epochs):
            order = torch.randperm(columns, generator=self._generator)
            for chosen in order.tensor_split(settings.minibatches):
                steps.append(self._gradient.update(Sample(_columns(trajectory, chosen), 0)))
                if self._bonus is not None:
                    steps[-1] |= self._bonus.learn(chosen, self._generator)
        self.network.observe(seen)
        self.steps += sample.steps
        self.updates += 1
        extent = {} if self._bonus is None else self._bonus.extent()
        return {**metrics, **means(steps), **extent, "learning_rate": steps[-1]["learning_rate"]}

    def split(self, ranks: Ranks) -> None:
        """Divide each minibatch over several ranks from now on; advantages and the bonus are those of the batch."""
        self._gradient.split(ranks)

    def part(self, work: Work) -> Part:
        """Return gradients and metrics of a part of a minibatch."""
        return self._gradient.part(work)

    def _intrinsic_reward(self, trajectory: Trajectory) -> Tensor:
        """Return the bonus for the observation after each action, [T, B], divided by the deviation of its returns."""
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
        """Return weights, optimiser state, counters, the generator, scales, and the bonus's state."""
        return {
            **self._gradient.state_dict(),
            "minibatch_steps": self._gradient.updates,
            "steps": self.steps,
            "updates": self.updates,
            "generator": self._generator.get_state(),
            "scale": self._scale._asdict(),
            "forward": self._forward,
            "bonus": {} if self._bonus is None else self._bonus.state_dict(),
            **({} if self._rewards is None else {"rewards": self._rewards.state_dict()}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self._gradient.load_state_dict({**state, "updates": state["minibatch_steps"]})
        self.steps, self.updates = int(state["steps"]), int(state["updates"])
        self._generator.set_state(state["generator"].cpu())
        self._scale = moments_from(state["scale"], self._scale.mean.device)
        self._forward = state["forward"].to(self._forward.device)
        if self._bonus is not None:
            self._bonus.load_state_dict(state["bonus"])
        if self._rewards is not None:
            self._rewards.load_state_dict(state["rewards"])


class ReturnScale:
    """Divides rewards by the running deviation of discounted returns f_t = γ f_{t−1} + r_t, reset at episode ends.

    A batch does not know which environment an unroll came from: f begins an unroll at the mean of where those of the
    last batch ended.
    """

    def __init__(self, discount: float, device: torch.device):
        self._discount = discount
        self._moments = novelty.no_moments(device=device)
        self._last = torch.zeros((), device=device)

    def scale(self, trajectory: Trajectory, weight_t: Tensor, context: int) -> Trajectory:
        """Update the statistics with the rewards [T, B] of a batch, and return the batch with scaled rewards."""
        begins = trajectory.first[context:-1]  # whether the action of row t is the first of an episode
        decay = self._discount * (~begins).to(trajectory.reward) * weight_t
        added = trajectory.reward * weight_t
        added = torch.cat([added[:1] + decay[:1] * self._last, added[1:]])
        forward = reverse_linear_scan(added.flip(0), decay.flip(0)).flip(0)
        self._moments = novelty.add_to_moments(self._moments, forward.flatten(), weight_t.flatten())
        self._last = forward[-1].mean()
        unit = novelty.deviation(self._moments).clamp(min=novelty.TINY).float()
        return trajectory._replace(reward=(trajectory.reward / unit).clamp(-REWARD_CLIP, REWARD_CLIP))

    def state_dict(self) -> dict[str, Any]:
        """Return the running moments, and the current discounted return of each environment."""
        return {"moments": self._moments._asdict(), "last": self._last.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self._moments = moments_from(state["moments"], self._last.device)
        self._last = state["last"].to(self._last.device)


def _all_rows(network: ActorCriticNetwork, trajectory: Trajectory) -> Output:
    """Return the network's outputs for rows 0 … T, from the recurrent state stored with the unrolls."""
    rows = slice(network.context, None)
    last_action, last_reward = trajectory.last_inputs()
    found: Output = network(trajectory.obs, trajectory.first, last_action[rows], last_reward[rows], trajectory.carry)
    return found


def _weight(network: ActorCriticNetwork, trajectory: Trajectory) -> Tensor:
    rows = slice(network.context, None)
    return boundaries(trajectory.first[rows], trajectory.terminated, trajectory.truncated, 1.0).weight_t


def _columns(trajectory: Trajectory, chosen: Tensor) -> Trajectory:
    """Return some unrolls of a batch."""
    chosen = chosen.to(trajectory.reward.device)
    some = trees.map(lambda leaf: leaf.index_select(1, chosen), trajectory._replace(carry=()))
    found: Trajectory = some._replace(carry=trees.map(lambda leaf: leaf.index_select(0, chosen), trajectory.carry))
    return found
