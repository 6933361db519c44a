"""What DDPG, TD3, SAC, MVE and STEVE share: critics and their loss, periodic copies of weights, metrics, checks.

Every tensor has R runs in front: seeds that learn together (`batched_updates.py`). N is the number of critics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from packtrain.accelerate.compilation import Compiler
from packtrain.acting.noise import Control
from packtrain.algorithms.batched_updates import Batch, ReplayLearner, Rule
from packtrain.algorithms.optimisers import Adam
from packtrain.equations.value_expansion import Targets, joined_rewards, model_use, td_targets
from packtrain.errors import ConfigError
from packtrain.interfaces import Memory, MemorySettings, PolicySettings
from packtrain.memory.replay import Replay
from packtrain.networks.control import ControlNetwork

Rows = Literal["split", "random", "all"]
"""Which critics learn from a row: rows are split between critics, one random critic for each row, or all critics."""
Optimisers = dict[str, Adam]
Prepare = Callable[[ControlNetwork, Memory, int, dict[str, int]], dict[str, Tensor]]
_PARTS = ("policy", "critic", "target", "target_policy", "behaviour", "frozen", "log_temperature")


class PolicyStep(NamedTuple):
    """Losses of the policy in one update."""

    loss: Tensor  # [R]
    regulariser: Tensor | None = None  # [R]


class NextAction(NamedTuple):
    """An action in the state that follows a step."""

    action: Tensor  # [R, M, B, A]
    entropy_cost: Tensor | None = None  # [R, M, B] temperature · log π(action); None where entropy does not count


class Numbers(Protocol):
    """Settings that every actor–critic algorithm has."""

    @property
    def batch_size(self) -> int:
        """Transitions per update."""

    @property
    def discount(self) -> float:
        """Discount factor γ per step."""

    @property
    def reward_scale(self) -> float:
        """Factor applied to rewards."""

    @property
    def learning_rate(self) -> float:
        """Learning rate of policy and critics."""

    @property
    def rows(self) -> Rows:
        """Which critics are trained on a row."""

    @property
    def target_period(self) -> int | None:
        """Updates between copies into the target critic; None: Polyak averaging."""

    @property
    def publish_period(self) -> int | None:
        """Updates between copies into the policy that acts; None: one copy at the end of every call."""

    @property
    def policy_delay(self) -> int:
        """Critic updates per policy update."""

    @property
    def compile(self) -> bool | None:
        """Whether the functions of an update are compiled; None: only on a GPU."""


class ActorCritic(Numbers, Protocol):
    """An actor–critic algorithm that MVE and STEVE can build on: DDPG, TD3, SAC or a user's own."""

    stochastic: ClassVar[bool]  # whether the policy samples its actions

    def optimisers(self, network: ControlNetwork) -> Optimisers:
        """Return the optimisers by name, "critic" and "policy" among them."""

    def draws(self, network: ControlNetwork, count: int, generator: torch.Generator, depths: int = 1) -> Batch:
        """Return the random inputs of the next updates, [count, ...] each.

        Args:
          network: of R runs.
          count: updates.
          generator: of one run.
          depths: states after the first in which an action is chosen.
        """

    def next_action(self, network: ControlNetwork, batch: Batch, obs: Tensor, depth: int) -> NextAction:
        """Return the actions that targets are computed with in states [R, M, B, D] at a depth."""

    def next_value(self, network: ControlNetwork, batch: Batch, obs: Tensor, action: Tensor) -> Tensor:
        """Return the target critics' values [R, N, P] of pairs [R, P, ...]; P may cover B several times."""

    def step_policy(
        self, network: ControlNetwork, optimisers: Optimisers, batch: Batch, compiled: Compiler
    ) -> PolicyStep:
        """Make one optimiser step of the policy, and of the parameters that are trained with it."""

    def follow(self, network: ControlNetwork, moved_policy: bool) -> None:
        """Move the target networks after an update by Polyak averaging, where no period is set."""

    def temperature_of(self, network: ControlNetwork) -> Tensor:
        """Return the entropy temperature [R], detached; 0 for algorithms without an entropy term."""


class Algorithm(Protocol):
    """What an update consists of, for `ActorCriticRule`."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that `step` returns."""

    def optimisers(self, network: ControlNetwork) -> Optimisers:
        """Return the optimisers by name."""

    def draws(self, network: ControlNetwork, count: int, generator: torch.Generator) -> Batch:
        """Return the random inputs of the next updates, [count, ...] each."""

    def step(
        self, network: ControlNetwork, optimisers: Optimisers, batch: Batch, moves_policy: bool, compiled: Compiler
    ) -> Tensor:
        """Make one update; return metrics [R, M]."""


class ActorCriticAlgorithm(ActorCritic, Protocol):
    """Interface of a complete actor–critic algorithm: DDPG, TD3, SAC or a user's own."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that `step` returns."""

    def step(
        self, network: ControlNetwork, optimisers: Optimisers, batch: Batch, moves_policy: bool, compiled: Compiler
    ) -> Tensor:
        """Make one update; return metrics [R, M]."""


# -- critics


def one_step_targets(numbers: Numbers, batch: Batch, value_t: Tensor) -> Targets:
    """Return y = κ r + γ (1 − δ) mean_q Q'_q for transitions of one or several steps.

    Args:
      numbers: γ and κ.
      batch: transitions [R, B].
      value_t: [R, B, N] Q' after the last step.
    """
    over = batch["terminated"].to(value_t.dtype)
    reward: Tensor = batch["reward"]
    discount: float | Tensor = numbers.discount
    if "steps" in batch:
        reward, discount = joined_rewards(reward, batch["steps"], discount=numbers.discount)
    return td_targets(reward, over, value_t, discount=discount, reward_scale=numbers.reward_scale)


def least_of_random_pairs(value: Tensor, order: Tensor) -> Tensor:
    """Return the lesser of each critic's value and another critic's, [R, N, P]: pairs as in REDQ (arXiv:2101.05982).

    Args:
      value: [R, N, P].
      order: [R, N] a permutation of the critics; each is paired with the one before it.
    """
    if value.shape[1] == 1:
        return value
    shuffled = value.gather(1, order.unsqueeze(-1).expand_as(value))
    return torch.minimum(shuffled, shuffled.roll(1, 1))


def critic_losses(network: ControlNetwork, numbers: Numbers, batch: Batch, targets: Targets) -> tuple[Tensor, Tensor]:
    """Return half the mean squared error of the critics, and the mean of their values; [R] each."""
    value = critic_values(network, numbers.rows, batch, batch["obs"].unsqueeze(1), batch["action"].unsqueeze(1))
    target = rows_of_critics(network, numbers.rows, targets.target.transpose(0, 1))
    return (0.5 * (value - target).square()).mean((1, 2, 3)), value.detach().mean((1, 2, 3))


def critic_values(network: ControlNetwork, rows: Rows, batch: Batch, obs: Tensor, action: Tensor) -> Tensor:
    """Return Q of P pairs for each row of a batch, by the critics that are trained on the row.

    Args:
      network: of R runs.
      rows: which critics those are.
      batch: "member" [R, B] where rows are 'random'.
      obs: [R, P, B, D].
      action: [R, P, B, A].

    Returns:
      [R, P, N, B / N] for 'split', [R, P, 1, B] for 'random', [R, P, N, B] for 'all'.
    """
    pairs, size = obs.shape[1:3]
    if rows == "split":
        parts = (part.unflatten(2, (network.sizes.critics, -1)).transpose(1, 2) for part in (obs, action))
        value: Tensor = network.value(network.critic, *(part.flatten(2, 3) for part in parts))  # [R, N, P*B/N]
        value = value.unflatten(-1, (pairs, -1)).transpose(1, 2)
        return value
    value = network.value(network.critic, obs.flatten(1, 2), action.flatten(1, 2)).unflatten(-1, (pairs, size))
    value = value.transpose(1, 2)  # [R, P, N, B]
    if rows == "all":
        return value
    return value.gather(2, batch["member"][:, None, None].expand(-1, pairs, -1, -1))


def rows_of_critics(network: ControlNetwork, rows: Rows, numbers: Tensor) -> Tensor:
    """Return numbers [R, ..., B] in a shape that broadcasts against `critic_values`."""
    return numbers.unflatten(-1, (network.sizes.critics, -1)) if rows == "split" else numbers.unsqueeze(-2)


def mean_value(network: ControlNetwork, obs: Tensor, action: Tensor) -> Tensor:
    """Return the mean of all critics' values of pairs [R, B, ...], [R, B]; gradients reach the actions only."""
    value = network.value(network.critic, obs, action, learns=False)
    return value.squeeze(1) if value.shape[1] == 1 else value.mean(1)


# -- copies of weights


@torch.no_grad()
def copy_weights(into: nn.Module, source: nn.Module) -> None:
    """Copy all parameters."""
    torch._foreach_copy_(list(into.parameters()), list(source.parameters()))


@torch.no_grad()
def average_weights(into: nn.Module, source: nn.Module, polyak: float) -> None:
    """Polyak averaging: into ← into + polyak (source − into)."""
    torch._foreach_lerp_(list(into.parameters()), list(source.parameters()), polyak)


class Copy(NamedTuple):
    """A copy of weights that is made periodically."""

    period: int | None  # updates; None: copy at the end of every call
    make: Callable[[], None]
    for_targets: bool  # whether targets are computed with this copy


# -- metrics


def metric_names(depths: int = 1) -> tuple[str, ...]:
    """Return the names of the metrics that `measures` returns."""
    names = ("critic_loss", "policy_loss", "policy_regulariser", "temperature", "value_mean", "target_mean")
    if depths == 1:
        return names
    counts = ("model_use", "targets/nonfinite_candidates", "targets/fallbacks")
    return (*names, *counts, *(f"weight/depth_{depth}" for depth in range(depths)))


@torch.no_grad()
def measures(
    network: ControlNetwork,
    algorithm: ActorCritic,
    critic_loss: Tensor,
    policy: PolicyStep | None,
    value_mean: Tensor,
    targets: Targets,
) -> Tensor:
    """Return the metrics of an update in the order of `metric_names`, [R, M].

    Means over many updates count those without a step of the policy as 0; the factor `policy_delay` makes up for it.

    Args:
      network: of R runs.
      algorithm: the actor–critic algorithm.
      critic_loss: [R].
      policy: losses; None: this update made no step of the policy.
      value_mean: [R].
      targets: of the critics.
    """
    none = torch.zeros_like(value_mean)
    losses = [none if loss is None else loss for loss in policy or PolicyStep(none)]
    if algorithm.policy_delay > 1:
        losses = [algorithm.policy_delay * loss for loss in losses]
    found = [critic_loss, *losses, algorithm.temperature_of(network), value_mean, targets.target[0].mean(-1)]
    if targets.weight.shape[1] > 1:
        assert targets.nonfinite is not None and targets.fallback is not None
        counts = [targets.nonfinite.sum(-1), targets.fallback.to(value_mean.dtype).sum((0, -1))]  # [R] each
        found += [model_use(targets).mean(-1), *counts, *targets.weight[0].mean(-1).unbind()]
    return torch.stack(found, -1)


# -- the learner


def build_learner(
    network: ControlNetwork,
    algorithm: Algorithm,
    actor_critic: ActorCritic,
    more_copies: Callable[[ControlNetwork], Sequence[Copy]] | None = None,
    prepare: Prepare | None = None,
) -> ReplayLearner:
    """Return a learner of one run.

    Args:
      network: of the run.
      algorithm: what an update consists of.
      actor_critic: the actor–critic algorithm in it; the same for DDPG, TD3 and SAC.
      more_copies: network → copies besides those of the critic and the policy.
      prepare: called before updates are drawn, see `Rule.prepare`.
    """
    rule = partial(
        ActorCriticRule, algorithm=algorithm, actor_critic=actor_critic, more_copies=more_copies, prepare=prepare
    )
    return ReplayLearner(network, _PARTS, rule)


class ActorCriticRule(Rule):
    """Updates of an actor–critic algorithm, and the periodic copies of weights between them."""

    def __init__(
        self,
        network: ControlNetwork,
        algorithm: Algorithm,
        actor_critic: ActorCritic,
        more_copies: Callable[[ControlNetwork], Sequence[Copy]] | None = None,
        prepare: Prepare | None = None,
    ):
        self.network, self.algorithm, self._actor_critic, self._prepare = network, algorithm, actor_critic, prepare
        self.names, self.optimisers = algorithm.metrics, algorithm.optimisers(network)
        self.batch_size, self.compiles = actor_critic.batch_size, actor_critic.compile is True
        self._compiled = Compiler(network.log_temperature.device, actor_critic.compile)
        self._copies: list[Copy] = []
        if actor_critic.target_period is not None:
            self._copies.append(Copy(actor_critic.target_period, self._copy_targets, True))
        self._copies += more_copies(network) if more_copies is not None else []
        publish = partial(copy_weights, network.behaviour, network.policy)
        self._copies.append(Copy(actor_critic.publish_period, publish, False))

    def draws(self, count: int, generator: torch.Generator) -> Batch:
        """Return random noise, and the critic that is trained on each row where that is random."""
        drawn = self.algorithm.draws(self.network, count, generator)
        if self._actor_critic.rows == "random":
            shape, critics = (count, self.batch_size), self.network.sizes.critics
            drawn["member"] = torch.randint(critics, shape, generator=generator, device=generator.device)
        return drawn

    def kind(self, update: int) -> bool:
        """Return whether the update includes the policy."""
        return (update + 1) % self._actor_critic.policy_delay == 0

    def step(self, batch: Batch, kind: bool) -> Tensor:
        """Make one update; return metrics [R, M]."""
        return self.algorithm.step(self.network, self.optimisers, batch, kind, self._compiled)

    def observe(self, network: ControlNetwork, inputs: Batch) -> None:
        """Update the running moments of observations, if policy and critics see them normalised."""
        if network.normaliser is not None:
            network.normaliser.add(inputs["obs"].flatten(0, 1).unsqueeze(0))

    def begin(self) -> None:
        """Pack networks that change only when they are copied, where products may be rounded."""
        network = self.network
        if network.log_temperature.is_cuda and torch.get_float32_matmul_precision() == "high":
            if network.frozen is not None:
                network.frozen.pack()
            if self._actor_critic.target_period is not None:
                network.target.pack()

    def stop(self, update: int) -> int:
        """Return the updates until the next copy."""
        periods = [copy.period for copy in self._copies if copy.period is not None]
        return min((period - update % period for period in periods), default=2**31)

    @torch.no_grad()
    def between(self, update: int) -> None:
        """Copy weights whose copy period has passed."""
        due = [copy for copy in self._copies if copy.period is not None and update % copy.period == 0]
        for copy in due:
            copy.make()
        if any(copy.for_targets for copy in due):
            self.begin()

    @torch.no_grad()
    def end(self) -> None:
        """Make the copies that are made at the end of every call."""
        for copy in self._copies:
            if copy.period is None:
                copy.make()

    def publishes(self, before: int, after: int) -> bool:
        """Return whether the policy that acts was copied."""
        period = self._actor_critic.publish_period
        return period is None or after // period > before // period

    def prepare(self, network: Any, memory: Memory, updates: int, prepared: dict[str, int]) -> dict[str, Tensor]:
        """Prepare a run's next updates, if the algorithm needs that."""
        return {} if self._prepare is None else self._prepare(network, memory, updates, prepared)

    def _copy_targets(self) -> None:
        copy_weights(self.network.target, self.network.critic)
        copy_weights(self.network.target_policy, self.network.policy)


# -- checks


def check_replay(settings: Any, numbers: Numbers, memory: MemorySettings, policy: PolicySettings) -> Replay:
    """Return the memory with its concrete type; ConfigError if settings, memory and policy do not fit.

    Args:
      settings: of the learner, for its name.
      numbers: of the actor–critic algorithm.
      memory: must be a `Replay`.
      policy: must be a `Control`, or have one as `control`.
    """
    name = type(settings).__name__
    if not (isinstance(memory, Replay) and isinstance(getattr(policy, "control", policy), Control)):
        raise ConfigError(f"{name} learns from a Replay memory, for a Control or PredictiveControl policy")
    memory.check_batch_size(numbers.batch_size, name)
    return memory


def check_network(settings: Any, actor_critic: ActorCritic, network: ControlNetwork) -> None:
    """Raise a ConfigError if policy and algorithm do not fit, or rows cannot be split between critics."""
    sizes, name = network.sizes, type(settings).__name__
    if actor_critic.stochastic != sizes.stochastic:
        raise ConfigError(
            f"{type(actor_critic).__name__} and Control.stochastic = {sizes.stochastic} do not fit: set "
            f"Control.stochastic = {not sizes.stochastic}"
        )
    if actor_critic.rows == "split" and actor_critic.batch_size % sizes.critics:
        raise ConfigError(
            f"{name}.batch_size = {actor_critic.batch_size} cannot be split between Control.critics = {sizes.critics}"
        )
