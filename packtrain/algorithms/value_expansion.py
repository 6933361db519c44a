"""DDPG, MVE and STEVE, and their targets under newer critics: actor–critic control whose critic looks into a model.

DDPG: Lillicrap et al. 2015 (arXiv:1509.02971). MVE: Feinberg et al. 2018 (arXiv:1803.00101). STEVE: Buckman et al. 2018
(arXiv:1807.01675). TD3: Fujimoto et al. 2018 (arXiv:1802.09477). SAC: Haarnoja et al. 2018 (arXiv:1812.05905), pairs of
many critics as in REDQ: Chen et al. 2021 (arXiv:2101.05982).

Which target is `target`, from `algorithms/targets.py`; who acts and how critics are combined is `core`:

| core | imagined actions | target critics | policy loss |
| --- | --- | --- | --- |
| ddpg | the policy's | their mean | −mean Q + policy_regulariser · mean pre-tanh² |
| td3 | the slower policy's, with clipped noise | the lesser of pairs | −mean Q |
| sac | drawn from the policy, entropy counted | the lesser of pairs | temperature · log π − mean Q |

Deviations from the released STEVE (docs/value_expansion.md says why):
 1. The rows of a batch are split between the members of an ensemble, instead of computing all members on all rows and
    masking three quarters; `rows = 'random'` is the original.
 2. The critic steps first, the policy sees the critic after its step; the original leaves the order open.
 3. Copies are made after every 500th update, not before it.
 4. c_t / c_{i−1} is a product over the steps between, not a quotient with 1e-8 added.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from packtrain.algorithms.calibration import calibration
from packtrain.algorithms.launches import Batch, ReplayLearner
from packtrain.algorithms.optimisers import Adam
from packtrain.algorithms.targets import OneStep, Target
from packtrain.config import configurable
from packtrain.devices.compiled import Compiled
from packtrain.equations.value_expansion import (
    Targets,
    expanded_returns,
    joined_rewards,
    model_use,
    td_targets,
    with_fallback,
)
from packtrain.errors import ConfigError
from packtrain.memory.replay import Replay, ReplayMemory
from packtrain.networks.control import ControlNetwork

STRETCHES = 1024  # of real steps, that a model is held against
Core = Literal["ddpg", "td3", "sac"]
Rows = Literal["split", "random", "all"]


@configurable
@dataclass(frozen=True)
class ValueExpansion:
    """Numbers of the critic and the policy; defaults are STEVE's."""

    target: Target = field(default_factory=OneStep)
    core: Core = "ddpg"
    batch_size: int = 512
    discount: float = 0.99
    reward_scale: float = 1.0
    learning_rate: float = 0.0003
    policy_regulariser: float = 0.001  # of ddpg: keeps tanh from saturating
    rows: Rows = "split"  # of a batch: split between critics, one random critic each, or all for all
    target_period: int | None = 500  # updates between copies into the target critic; None: it follows slowly
    polyak: float = 0.005  # how much of the way it follows in an update
    model_period: int | None = 500  # updates between copies of the model that targets are made with; None: every turn
    publish_period: int | None = 500  # updates between copies of the policy that acts; None: every turn
    calibration_period: int = 2500  # updates between two looks at how good the model is, see calibration.py; 0: never
    policy_delay: int = 1  # updates of the critic for each of the policy
    target_noise: float = 0.2  # of td3's imagined actions
    target_noise_clip: float = 0.5
    temperature: float | None = None  # of sac; None: learned, so that entropy is target_entropy per dimension
    target_entropy: float = -1.0  # nats per dimension of the action
    compile: bool | None = None  # the functions of an update; None: on a GPU

    def __post_init__(self) -> None:
        for name in ("batch_size", "reward_scale", "learning_rate", "policy_delay"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"ValueExpansion.{name} = {getattr(self, name)} must be above 0")
        for name in ("target_period", "model_period", "publish_period"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"ValueExpansion.{name} = {value} must be at least 1, or None")
        for name in ("policy_regulariser", "target_noise", "target_noise_clip"):
            if getattr(self, name) < 0:
                raise ConfigError(f"ValueExpansion.{name} = {getattr(self, name)} must not be negative")
        for name in ("discount", "polyak"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"ValueExpansion.{name} = {getattr(self, name)} must lie between 0 and 1")
        if self.temperature is not None and self.temperature < 0:
            raise ConfigError(f"ValueExpansion.temperature = {self.temperature} must not be negative")

    def refuse_unless_it_fits(self, memory: Replay) -> None:
        """ConfigError if targets cannot be made of what a memory keeps."""
        if memory.n_step > 1 and self.target.horizon:
            raise ConfigError(
                f"Replay.n_step = {memory.n_step} and ValueExpansion.target = @{type(self.target).__name__}() do not "
                "fit: what goes into a model goes on from single steps; @OneStep() takes several real ones"
            )

    def build(self, network: ControlNetwork, total_steps: int) -> ReplayLearner:
        """A learner for a run's network; ConfigError if the two do not fit."""
        sizes = network.sizes
        if self.target.horizon and network.frozen is None:
            kind = type(self.target).__name__
            raise ConfigError(f"ValueExpansion.target = @{kind}() needs a world model: set Control.dynamics")
        if (self.core == "sac") != sizes.stochastic:
            raise ConfigError(
                f"ValueExpansion.core = {self.core!r} and Control.stochastic = {sizes.stochastic} do not fit: "
                f"sac draws its actions, the others do not; --stochastic {not sizes.stochastic}"
            )
        if self.rows == "split" and self.batch_size % sizes.critics:
            raise ConfigError(
                f"ValueExpansion.batch_size = {self.batch_size} cannot be split between "
                f"Control.critics = {sizes.critics}"
            )
        parts = ("policy", "critic", "target", "target_policy", "behaviour", "frozen", "log_temperature")
        return ReplayLearner(network, parts, partial(ValueRule, self))


class Imagined(NamedTuple):
    """H steps of the model under the policy from where real steps led; H = 0 without a model.

    Letters: M transition members, L reward members, N critics.
    """

    obs: list[Tensor]  # H + 1 of [R, M, B, D]
    action: list[Tensor]  # H + 1 of [R, M, B, A]
    termination: Tensor  # [H+1, R, B, M]; row 0 is the real one
    reward: Tensor  # [H, R, B, M, L]
    value: Tensor  # [H+1, R, B, M, N]
    surprise: Tensor | None  # [H, R, B, M] temperature · log π of the actions; None where entropy does not count


class ValueRule:
    """One update of critic and policy."""

    def __init__(self, settings: ValueExpansion, network: ControlNetwork):
        self.settings, self.network = settings, network
        self.batch_size, self.holdout = settings.batch_size, False
        self.compiles = settings.compile is True
        self._depths = settings.target.horizon + 1
        self._leaves = {
            name: [leaf.detach() for leaf in getattr(network, name).parameters()]
            for name in ("critic", "policy", "target", "target_policy", "behaviour")
        }
        weights = [f"weight/depth_{depth}" for depth in range(self._depths)] if self._depths > 1 else []
        self.names: tuple[str, ...] = (
            *("critic_loss", "policy_loss", "policy_regulariser", "temperature", "value_mean", "target_mean"),
            *(["model_use", "targets/nonfinite_candidates", "targets/fallbacks"] * bool(weights)),
            *weights,
        )
        self.optimisers: dict[str, Adam] = {
            "critic": Adam(network.critic.parameters(), settings.learning_rate),
            "policy": Adam(network.policy.parameters(), settings.learning_rate),
        }
        if settings.core == "sac" and settings.temperature is None:
            self.optimisers["temperature"] = Adam([network.log_temperature], settings.learning_rate)
        compiled = partial(Compiled, device=network.log_temperature.device, wanted=settings.compile)
        self._expand, self._critic_losses = compiled(expand), compiled(critic_losses)
        self._policy_losses, self._measures = compiled(policy_losses), compiled(measures)

    # -- what the launches ask

    def draws(self, count: int, generator: torch.Generator) -> Batch:
        """Noise of imagined actions and states, and who of the critics is asked."""
        network, settings = self.network, self.settings
        device, rows = generator.device, settings.batch_size
        drawn: Batch = {}
        normal = partial(torch.randn, generator=generator, device=device)
        if settings.core != "ddpg":
            # One sample for all members of a depth: their candidates differ by what models and critics estimate alone.
            drawn["action_noise"] = normal(count, self._depths, rows, network.action_size)
            shuffled = torch.rand(count, network.sizes.critics, generator=generator, device=device).argsort(-1)
            drawn["critics"] = shuffled
        if settings.core == "sac":
            drawn["policy_noise"] = normal(count, rows, network.action_size)
        if network.frozen is not None and network.frozen.sizes.probabilistic and self._depths > 1:
            width = network.frozen.obs_mean.shape[-1]
            members = network.frozen.transition.members
            drawn["model_noise"] = normal(count, self._depths - 1, members, rows, width)
        if settings.rows == "random":
            drawn["member"] = torch.randint(network.sizes.critics, (count, rows), generator=generator, device=device)
        return drawn

    def kind(self, update: int) -> bool:
        """Whether the policy is updated too."""
        return (update + 1) % self.settings.policy_delay == 0

    def begin(self) -> None:
        """Pack what does not learn in the course of this, where products may be rounded."""
        network, settings = self.network, self.settings
        if network.log_temperature.is_cuda and torch.get_float32_matmul_precision() == "high":
            if network.frozen is not None:
                network.frozen.pack()
            if settings.target_period is not None:
                network.target.pack()

    def stop(self, update: int) -> int:
        """The distance to the next copy."""
        periods = (self.settings.target_period, self.settings.model_period, self.settings.publish_period)
        return min((period - update % period for period in periods if period is not None), default=2**31)

    @torch.no_grad()
    def between(self, update: int) -> None:
        """Copies that are due."""
        settings = self.settings
        target, model, publish = (
            period is not None and update % period == 0
            for period in (settings.target_period, settings.model_period, settings.publish_period)
        )
        if target:
            self._copy("target", "critic")
            self._copy("target_policy", "policy")
        if model:
            self._freeze()
        if publish:
            self._copy("behaviour", "policy")
        if target or model:
            self.begin()

    @torch.no_grad()
    def end(self) -> None:
        """Copies that are made every turn."""
        if self.settings.model_period is None:
            self._freeze()
        if self.settings.publish_period is None:
            self._copy("behaviour", "policy")

    def publishes(self, before: int, after: int) -> bool:
        """Whether the policy that acts was copied."""
        period = self.settings.publish_period
        return period is None or after // period > before // period

    def prepare(
        self, network: ControlNetwork, memory: ReplayMemory, updates: int, prepared: dict[str, int]
    ) -> dict[str, Tensor]:
        """Before the first update, the model as it is by then is what targets are made with; then, how good it is."""
        if network.frozen is None or network.model is None:
            return {}
        if updates == 0:
            network.frozen.take_elites(network.model)
        period = self.settings.calibration_period
        if not period or self._depths == 1 or updates < prepared.get("next_calibration", period):
            return {}
        prepared["next_calibration"] = updates + period
        stretches = memory.stretches(self._depths, STRETCHES, network.model.holdout)
        enough = len(stretches["reward"]) >= 16
        settings = self.settings
        return calibration(network, stretches, settings.discount, settings.reward_scale) if enough else {}

    def _copy(self, into: str, source: str) -> None:
        torch._foreach_copy_(self._leaves[into], self._leaves[source])

    @torch.no_grad()
    def _follow(self, into: str, source: str) -> None:
        torch._foreach_lerp_(self._leaves[into], self._leaves[source], self.settings.polyak)

    def _freeze(self) -> None:
        if self.network.frozen is not None and self.network.model is not None:
            self.network.frozen.take_elites(self.network.model)

    def step(self, batch: Batch, kind: bool) -> Tensor:
        """One update; metrics [R, M]."""
        settings, network = self.settings, self.network
        imagined, targets = self._expand(network, settings, batch)
        critic_loss, value_mean = self._critic_losses(network, settings, batch, imagined, targets)  # [R] each
        self.optimisers["critic"].descend(critic_loss.sum())
        policy_loss = regulariser = None
        if kind:
            policy_loss, regulariser, log_prob = self._policy_losses(network, settings, batch)
            self.optimisers["policy"].descend((policy_loss + regulariser).sum())
            if "temperature" in self.optimisers:
                wanted = settings.target_entropy * network.action_size
                surplus = log_prob.detach().mean(-1) + wanted
                self.optimisers["temperature"].follow([-surplus])  # down −log temperature · surplus
        if settings.target_period is None:
            self._follow("target", "critic")
            if settings.core == "td3" and kind:
                self._follow("target_policy", "policy")
        losses = [None if loss is None else loss.detach() for loss in (critic_loss, policy_loss, regulariser)]
        return self._measures(network, settings, losses, value_mean, targets)


@torch.no_grad()
def measures(
    network: ControlNetwork,
    settings: ValueExpansion,
    losses: list[Tensor | None],
    value_mean: Tensor,
    targets: Targets,
) -> Tensor:
    """The metrics of an update in the order of `ValueRule.names`, [R, M]; losses of what made no step are None."""
    critic_loss, *of_policy = (torch.zeros_like(value_mean) if loss is None else loss for loss in losses)
    if settings.policy_delay > 1:  # means over updates count those without a step of the policy as 0
        of_policy = [settings.policy_delay * loss for loss in of_policy]
    found = [critic_loss, *of_policy, temperature_of(network, settings), value_mean, targets.target[0].mean(-1)]
    if targets.weight.shape[1] > 1:
        assert targets.nonfinite is not None and targets.fallback is not None
        counts = [targets.nonfinite.sum(-1), targets.fallback.to(value_mean.dtype).sum((0, -1))]  # [R] each
        found += [model_use(targets).mean(-1), *counts, *targets.weight[0].mean(-1).unbind()]
    return torch.stack(found, -1)


def temperature_of(network: ControlNetwork, settings: ValueExpansion) -> Tensor:
    """What entropy is worth, [R], detached; 0 where the policy is deterministic."""
    if settings.core != "sac":
        return torch.zeros_like(network.log_temperature)
    if settings.temperature is not None:
        return torch.full_like(network.log_temperature, settings.temperature)
    return network.log_temperature.detach().exp()


@torch.no_grad()
def expand(network: ControlNetwork, settings: ValueExpansion, batch: Batch) -> tuple[Imagined, Targets]:
    """What is imagined after the steps of a batch, and the targets that are made of it."""
    imagined = imagine(network, settings, batch)
    if settings.target.horizon == 0:  # the same in fewer operations
        value, over = imagined.value[0, :, :, 0], imagined.termination[0, :, :, 0]
        reward: Tensor = batch["reward"]
        discount: float | Tensor = settings.discount
        if "steps" in batch:
            reward, discount = joined_rewards(reward, batch["steps"], discount=settings.discount)
        return imagined, td_targets(reward, over, value, discount=discount, reward_scale=settings.reward_scale)
    expansion = expanded_returns(
        batch["reward"],
        imagined.termination,
        imagined.reward,
        imagined.value,
        discount=settings.discount,
        reward_scale=settings.reward_scale,
        starts=settings.target.horizon + 1 if settings.target.tdk_trick else 1,
    )
    if imagined.surprise is not None:  # the value of an imagined pair does not count how likely its own action was
        for start in range(1, len(expansion.rewards)):
            expansion.rewards[start, start:] += imagined.surprise[start - 1].unsqueeze(-1)
    return imagined, with_fallback(settings.target.mix(expansion), expansion)


@torch.no_grad()
def imagine(network: ControlNetwork, settings: ValueExpansion, batch: Batch) -> Imagined:
    """Follow the policy through the model from where the steps of a batch led.

    Args:
      network: of R runs.
      settings: numbers.
      batch: "after" [R, B, D] and "terminated" [R, B], and the noise that `ValueRule.draws` makes.
    """
    horizon = settings.target.horizon
    model = network.frozen if horizon else None
    members = model.transition.members if model is not None else 1
    obs = [batch["after"].unsqueeze(1).expand(-1, members, -1, -1)]  # [R, M, B, D]
    action: list[Tensor] = []
    surprise: list[Tensor] = []
    for t in range(horizon + 1):
        chosen, log_prob = _imagined_action(network, settings, batch, obs[t], t)
        action.append(chosen)
        if log_prob is not None:
            surprise.append(temperature_of(network, settings)[:, None, None] * log_prob)  # [R, M, B]
        if t < horizon:
            assert model is not None
            noise = batch["model_noise"][:, t] if "model_noise" in batch else None
            obs.append(model.move(obs[t], chosen, noise))
    # Only where to go next depends on the step before; all steps are judged together.
    value = _critics(network, settings, batch, *(_all_steps(part) for part in (obs, action)))  # [R, N, (H+1)*M*B]
    value = value.unflatten(-1, (horizon + 1, *obs[0].shape[1:3])).permute(2, 0, 4, 3, 1)  # [H+1, R, B, M, N]
    termination = batch["terminated"].to(value.dtype)[None, :, :, None].expand(1, -1, -1, members)
    reward = value.new_zeros(0, *value.shape[1:4], 1)
    if model is not None:
        paid, over = model.judge_rollout(torch.stack(obs, 1), torch.stack(action[:-1], 1))
        reward = paid.permute(1, 0, 4, 2, 3)  # [R, H, M, L, B] → [H, R, B, M, L]
        termination = torch.cat([termination, over.permute(1, 0, 3, 2)])  # [R, H, M, B] → [H, R, B, M]
    if not surprise:
        return Imagined(obs, action, termination, reward, value, None)
    earned = torch.stack(surprise).permute(0, 1, 3, 2)  # [H+1, R, B, M]: with what follows a choice comes its entropy
    value = value - earned.unsqueeze(-1)
    reward = reward - earned[:-1].unsqueeze(-1) / settings.reward_scale
    return Imagined(obs, action, termination, reward, value, earned[:-1])


def _all_steps(parts: list[Tensor]) -> Tensor:
    """H + 1 of [R, M, B, ...] → [R, (H+1)*M*B, ...]."""
    return torch.stack(parts, 1).flatten(1, 3)


def _imagined_action(
    network: ControlNetwork, settings: ValueExpansion, batch: Batch, obs: Tensor, t: int
) -> tuple[Tensor, Tensor | None]:
    """Actions [R, M, B, A] at imagined states [R, M, B, D], and their log-probabilities where there are any."""
    flat = obs.flatten(1, 2)
    if settings.core == "ddpg":
        return network.act(network.policy, flat).unflatten(1, obs.shape[1:3]), None
    noise = batch["action_noise"][:, t].unsqueeze(1).expand(-1, obs.shape[1], -1, -1)  # [R, M, B, A]
    if settings.core == "td3":
        greedy = network.act(network.target_policy, flat).unflatten(1, obs.shape[1:3])
        clip = settings.target_noise_clip
        return (greedy + (settings.target_noise * noise).clamp(-clip, clip)).clamp(-1, 1), None
    action, log_prob = network.draw(network.policy, flat, noise.flatten(1, 2))
    return action.unflatten(1, obs.shape[1:3]), log_prob.unflatten(1, obs.shape[1:3])


def _critics(network: ControlNetwork, settings: ValueExpansion, batch: Batch, obs: Tensor, action: Tensor) -> Tensor:
    """What the target critics say, [R, N, B]; except in ddpg each is the lesser of itself and a random other one."""
    said = network.value(network.target, obs, action)
    if settings.core == "ddpg" or said.shape[1] == 1:
        return said
    shuffled = said.gather(1, batch["critics"].unsqueeze(-1).expand_as(said))
    return torch.minimum(shuffled, shuffled.roll(1, 1))


def critic_losses(
    network: ControlNetwork, settings: ValueExpansion, batch: Batch, imagined: Imagined, targets: Targets
) -> tuple[Tensor, Tensor]:
    """Half the mean squared error of the critics, and the mean of what they say of the real pairs; [R] each.

    With the TD-k trick imagined pairs count too, each by how likely it is reached, and all terms are averaged. Imagined
    pairs that are not finite are left out.
    """
    real = _ask(network, settings, batch, batch["obs"].unsqueeze(1), batch["action"].unsqueeze(1))  # [R, 1, ...]
    guess, starts = real, len(targets.target)
    wanted, weight = (_deal(network, settings, rows.transpose(0, 1)) for rows in (targets.target, targets.reach))
    if starts > 1:
        obs, action, finite = _finite_pairs(imagined, starts - 1)
        asked = _ask(network, settings, batch, obs.flatten(1, 2), action.flatten(1, 2)).unflatten(1, (starts - 1, -1))
        counts = _deal(network, settings, finite)  # as `asked`, [R, S-1, M, N, B / N]
        number = counts.sum(2, dtype=asked.dtype)
        guess = torch.cat([real, torch.where(counts, asked, 0.0).sum(2) / number.clamp(min=1)], 1)  # [R, S, N, B / N]
        weight = torch.cat([weight[:, :1], torch.where(number > 0, weight[:, 1:], 0.0)], 1)
    loss = (weight * 0.5 * (guess - wanted).square()).mean((1, 2, 3))
    return loss, real.detach().mean((1, 2, 3))


def _finite_pairs(imagined: Imagined, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first imagined pairs, [R, S-1, M, B, ...] each, with 0 for those that are not finite; and which are.

    A pair on which a target critic is not finite is one of the latter: its gradient would not be finite either.
    """
    obs, action = (torch.stack(parts[:count], 1) for parts in (imagined.obs, imagined.action))
    value = imagined.value[:count].isfinite().all(-1).permute(1, 0, 3, 2)  # [S-1, R, B, M] → [R, S-1, M, B]
    finite = value & obs.isfinite().all(-1) & action.isfinite().all(-1)
    obs, action = (torch.where(finite.unsqueeze(-1), part, 0.0) for part in (obs, action))
    return obs, action, finite


def _ask(network: ControlNetwork, settings: ValueExpansion, batch: Batch, obs: Tensor, action: Tensor) -> Tensor:
    """What critics say of pairs [R, P, B, ...]: [R, P, N, B / N], [R, P, 1, B] or [R, P, N, B], as rows are dealt."""
    paths, rows = obs.shape[1:3]
    if settings.rows == "split":
        parts = (part.unflatten(2, (network.sizes.critics, -1)).transpose(1, 2) for part in (obs, action))
        said = network.value(network.critic, *(part.flatten(2, 3) for part in parts))  # [R, N, P*B/N]
        return said.unflatten(-1, (paths, -1)).transpose(1, 2)
    said = network.value(network.critic, obs.flatten(1, 2), action.flatten(1, 2)).unflatten(-1, (paths, rows))
    said = said.transpose(1, 2)  # [R, P, N, B]
    if settings.rows == "all":
        return said
    return said.gather(2, batch["member"][:, None, None].expand(-1, paths, -1, -1))


def _deal(network: ControlNetwork, settings: ValueExpansion, rows: Tensor) -> Tensor:
    """Numbers [R, ..., B] against what `_ask` answers."""
    return rows.unflatten(-1, (network.sizes.critics, -1)) if settings.rows == "split" else rows.unsqueeze(-2)


def policy_losses(network: ControlNetwork, settings: ValueExpansion, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The policy's loss and its regulariser, [R] each, and log-probabilities [R, B] (0 where deterministic)."""
    obs = batch["obs"]
    nothing = obs.new_zeros(len(obs))
    if settings.core == "sac":
        action, log_prob = network.draw(network.policy, obs, batch["policy_noise"])
        worth = _worth(network, obs, action)
        temperature = temperature_of(network, settings).unsqueeze(-1)
        return (temperature * log_prob - worth).mean(-1), nothing, log_prob
    before = network.policy(obs).squeeze(1)
    worth = _worth(network, obs, torch.tanh(before))
    regulariser = settings.policy_regulariser * before.square().mean((1, 2)) if settings.core == "ddpg" else nothing
    return -worth.mean(-1), regulariser, torch.zeros_like(worth)


def _worth(network: ControlNetwork, obs: Tensor, action: Tensor) -> Tensor:
    """What the critics say of pairs on average, [R, B]; only actions have a gradient."""
    said = network.value(network.critic, obs, action, learns=False)
    return said.squeeze(1) if said.shape[1] == 1 else said.mean(1)
