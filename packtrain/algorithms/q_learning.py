"""Q-learning from replayed sequences: DQN and its family, R2D2, NGU and Agent57 are its settings.

DQN: Mnih et al. 2015; double: van Hasselt et al. 2016 (arXiv:1509.06461); prioritised: Schaul et al. 2016
(arXiv:1511.05952). R2D2: Kapturowski et al. 2019. NGU: Badia et al. 2020 (arXiv:2002.06038). Agent57: Badia et al. 2020
(arXiv:2003.13350). A transition is a sequence of one step.

Deviations from these and from marltas' code (docs/recurrent_replay.md says why):
 1. Returns near the end of an episode or of what is stored are shorter; every step of a sequence has a target.
 2. Both of two values, of rewards and of novelty, are judged under the greedy policy of their mixture.
 3. Truncations bootstrap; only terminations have discount 0.
 4. Embedding and distillation learn from the last steps of each sequence, padding left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from packtrain import trees
from packtrain.acting.actor_errors import ErrorNumbers
from packtrain.acting.values import INTRINSIC
from packtrain.algorithms.optimisers import Adam
from packtrain.config import configurable
from packtrain.devices.beside import Beside
from packtrain.devices.captured import Captured
from packtrain.equations.boundaries import Boundaries, boundaries
from packtrain.equations.priorities import sequence_priority
from packtrain.equations.q_learning import (
    combined_q,
    n_step_q_targets,
    peng_q_targets,
    retrace_q_targets,
    sequence_losses,
    td_errors,
)
from packtrain.equations.rewards import clip_reward
from packtrain.errors import ConfigError
from packtrain.interfaces import SampleLearner
from packtrain.memory.sequences import Sequences
from packtrain.networks.action_values import ActionValues, ActionValuesNetwork, Arms
from packtrain.networks.q_network import QOutput, QValueNetwork
from packtrain.trees import Tree
from packtrain.types import Sample, Trajectory


@configurable
@dataclass(frozen=True)
class QLearning:
    """Numbers of targets, losses and optimisers; defaults are R2D2's."""

    discount: float | None = 0.997  # of a step; None: each arm has its own
    returns: Literal["n_step", "retrace", "peng"] = "n_step"
    n_step: int = 5  # of n_step; the memory's must be the same
    trace_lambda: float = 0.95  # of retrace and peng
    double: bool = True  # the online network ranks actions, the target network values them
    reward_clipping: Literal["abs_one", "none", "symlog"] = "none"
    huber: float | None = None  # where the loss becomes linear; None: nowhere
    exploit_share: float = 0.0  # of the sequences, learned as if arm 0 had made them
    eta: float = 0.9  # of a sequence's priority, η max |δ| + (1 − η) mean |δ|
    learning_rate: float = 0.0001
    adam_epsilon: float = 0.001
    grad_norm_clipping: float | None = 40.0  # of the values' network; None: not clipped
    target_period: int = 2500  # updates between copies into the target network
    publish_period: int = 1  # updates between versions of the weights that act
    embedding_learning_rate: float = 0.0005
    embedding_decay: float = 1e-5  # L2
    distillation_learning_rate: float = 0.0005
    novelty_steps: int = 5  # of each sequence, its last ones, that they learn from
    target_epsilon: float = 0.0  # of the ε-greedy policy that retrace evaluates
    reduction: Literal["sum", "mean"] = "mean"  # of the loss over the steps of a sequence

    def __post_init__(self) -> None:
        for name in ("embedding_learning_rate", "distillation_learning_rate"):
            if getattr(self, name) < 0:
                raise ConfigError(f"QLearning.{name} = {getattr(self, name)} must not be negative")
        for name in ("learning_rate", "adam_epsilon"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"QLearning.{name} = {getattr(self, name)} must be above 0")
        for name in ("discount", "trace_lambda", "target_epsilon", "eta", "exploit_share"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ConfigError(f"QLearning.{name} = {getattr(self, name)} must lie between 0 and 1")
        for name in ("n_step", "target_period", "publish_period", "novelty_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"QLearning.{name} = {getattr(self, name)} must be at least 1")
        for name in ("huber", "grad_norm_clipping"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"QLearning.{name} = {value} must be above 0, or None")

    def refuse_unless_it_fits(self, memory: Sequences, arms: Arms | None) -> None:
        """ConfigError if a memory does not keep what is learned from, or nothing says what the discount is."""
        if self.discount is None and (arms is None or arms.discounts == "one"):
            why = "without arms" if arms is None else "with Arms.discounts = 'one'"
            raise ConfigError(f"QLearning.discount = None {why} leaves no discount: set --discount")
        if self.returns == "n_step" and self.n_step != max(memory.n_step, 1):
            raise ConfigError(f"QLearning.n_step = {self.n_step} and Sequences.n_step = {memory.n_step} differ")
        if memory.new_priority == "given" and self.eta != memory.eta:
            raise ConfigError(f"QLearning.eta = {self.eta} and Sequences.eta = {memory.eta} differ")
        for wanted, name in ((self.returns == "retrace", "behaviour_prob"), (arms is not None, "arm")):
            if wanted and name not in memory.extras:
                raise ConfigError(f"QLearning wants {name!r} kept: add it to Sequences.extras = {memory.extras}")

    def refuse_ignored(self, policy: ActionValues) -> None:
        """ConfigError if a number is set that nothing would use."""
        arms = policy.arms
        if self.discount is not None and arms is not None and arms.discounts != "one":
            raise ConfigError(
                f"QLearning.discount = {self.discount} would be ignored: with Arms.discounts = {arms.discounts!r} "
                "each arm has its own; leave --discount out, or set --arm_discounts one"
            )

    def actor_errors(self, memory: Sequences) -> ErrorNumbers:
        """Numbers of the TD errors that actors compute for new sequences: those that are learned with."""
        return ErrorNumbers(self.discount, max(memory.n_step, 1), self.reward_clipping)

    def build(self, network: ActionValuesNetwork, total_steps: int) -> QLearner:
        """A learner for a network."""
        return QLearner(self, network)


class QLearner(SampleLearner):
    """One step of all optimisers for each sample; on a GPU one launch."""

    saves_acting_weights = True  # they are published every `publish_period` updates

    def __init__(self, settings: QLearning, network: ActionValuesNetwork):
        self.settings, self.network = settings, network
        acting = network.acting
        self._device = network.device
        self.capture = self._device.type == "cuda"  # whether an update is one launch
        self._optimisers = {
            "values": Adam(
                acting.values.parameters(),
                settings.learning_rate,
                epsilon=settings.adam_epsilon,
                norm=settings.grad_norm_clipping,
            )
        }
        if acting.embedding is not None:
            self._optimisers["embedding"] = Adam(
                acting.embedding.parameters(), settings.embedding_learning_rate, settings.embedding_decay
            )
        if acting.distillation is not None:
            predictor = acting.distillation.predictor.parameters()
            self._optimisers["distillation"] = Adam(predictor, settings.distillation_learning_rate)
        self._slower, self._faster = (list(part.state_dict().values()) for part in (network.target, acting.values))
        self._given: tuple[Trajectory, Tensor, Tensor] | None = None  # what a captured update reads
        self._found: dict[str, Tensor] = {}  # and what it leaves
        self._launch: Captured | None = None
        self._ended: torch.cuda.Event | None = None  # the latest launch
        self.updates = 0
        self.steps = 0

    def update(self, sample: Sample) -> dict[str, Any]:
        """One update; metrics as 0-d tensors, and "priorities" [B]."""
        weight = sample.importance_weight
        if weight is None:
            weight = torch.ones(sample.trajectory.first.shape[1], device=self._device)
        exploits = torch.zeros_like(weight, dtype=torch.bool)
        if self.settings.exploit_share:
            exploits = exploiting(self.updates, len(weight), self.settings.exploit_share).to(self._device)
        step = self._replay if self.capture else self._step
        found = step(sample.trajectory, weight, exploits)
        self.steps += sample.steps
        self.updates += 1
        if self.updates % self.settings.target_period == 0:
            with torch.no_grad():
                torch._foreach_copy_(self._slower, self._faster)
        return found

    @property
    def publish_due(self) -> bool:
        """Whether actors should use the weights as they are now."""
        return self.updates % self.settings.publish_period == 0

    def _step(self, trajectory: Trajectory, weight: Tensor, exploits: Tensor) -> dict[str, Tensor]:
        loss, found = value_loss(self.network, trajectory, weight, self.settings, exploits)
        norm = self._optimisers["values"].descend(loss)
        if norm is not None:
            found["grad_norm"] = norm
        losses = novelty_losses(self.network, trajectory, self.settings)
        for name, own in losses.items():
            self._optimisers[name].descend(own)
            found[f"{name}_loss"] = own.detach()
        return found

    def _replay(self, trajectory: Trajectory, weight: Tensor, exploits: Tensor) -> dict[str, Tensor]:
        """The same on tensors that stay in place."""
        if self._launch is None or self._given is None:
            self._given = trees.map(torch.clone, trajectory), weight.clone(), exploits.clone()
            self._launch = Captured(self._step_in_place, self._device, "the update")
        trees.map(lambda mine, given: mine.copy_(given), self._given, (trajectory, weight, exploits))
        self._launch()
        self._stay_near()
        return {name: leaf.clone() for name, leaf in self._found.items()}

    def _stay_near(self) -> None:
        """Wait for the launch before the last: with one in stock a GPU is busy, and others wait for two at most."""
        before, self._ended = self._ended, torch.cuda.Event(blocking=True)
        self._ended.record()
        if before is not None:
            before.synchronize()

    def _step_in_place(self) -> None:
        assert self._given is not None
        found = self._step(*self._given)
        if not self._found:
            self._found = found
        for name, leaf in found.items():
            self._found[name].copy_(leaf)

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser state and counters."""
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
        """The reverse of state_dict."""
        self.network.load_state_dict(state["network"])
        for name, one in self._optimisers.items():
            for key, leaf in one.state.items():
                leaf.copy_(state["optimisers"][name][key])
        self.steps, self.updates = int(state["steps"]), int(state["updates"])


def exploiting(update: int, size: int, share: float) -> Tensor:
    """Which of a batch are learned from as if arm 0 had made them, [B] bool: evenly over the batch, others each time.

    What lies side by side in a memory lies so in a stratified batch too: the same places every time would be nearly the
    same sequences.
    """
    phase = update * 0.6180339887498949 % 1  # the golden ratio's: evenly over all
    turn = (torch.arange(size + 1, dtype=torch.float64) * share + phase).floor()
    return turn[1:] > turn[:-1]


def value_loss(
    network: ActionValuesNetwork,
    trajectory: Trajectory,
    weight: Tensor,
    settings: QLearning,
    exploits: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch of sequences, its parts as detached 0-d tensors, and "priorities" [B].

    Args:
      network: values, and their slower copy.
      trajectory: C = context + burn-in rows in front, T steps, those after the ones to learn from included.
      weight: [B] of each sequence in the loss.
      settings: numbers.
      exploits: [B] bool, see `exploiting`; None: none of them.
    """
    steps = len(trajectory.reward)
    burn_in = len(trajectory.first) - 1 - steps - network.context
    arm = _arms(network, trajectory, exploits)
    if _are_transitions(network, trajectory, settings, burn_in):
        online, target = _values_of_transitions(network, trajectory)
    else:
        other = Beside(weight.device)  # an LSTM is a long chain of small steps: two of them at once
        with other.work():
            target = _values(network.target, network, trajectory, arm, burn_in, learns=False)
        online = _values(network.acting.values, network, trajectory, arm, burn_in, learns=True)
        other.join()
    beta = network.arm_weights[arm]  # [B]
    discount = settings.discount if network.arm_discounts is None else network.arm_discounts[arm]
    assert discount is not None, "neither the learner nor the arms have a discount"
    first = trajectory.first[network.context + burn_in :]
    ends = boundaries(first, trajectory.terminated, trajectory.truncated, 1.0)
    ends = ends._replace(discount_t=ends.discount_t * discount)
    counts = trajectory.extras["weight"]
    reward = clip_reward(trajectory.reward, settings.reward_clipping)
    found: dict[str, Tensor] = {}
    if network.sizes.novelty is None:
        losses, priority = _judge(network, settings, trajectory, online.values, target.values, None, reward, ends)
    else:
        intrinsic = trajectory.extras[f"reward/{INTRINSIC}"]
        found["intrinsic_reward"] = (intrinsic * counts).sum() / counts.sum().clamp(min=1)
        if online.intrinsic_values is None or target.intrinsic_values is None:
            mixed = reward + beta * intrinsic
            losses, priority = _judge(network, settings, trajectory, online.values, target.values, None, mixed, ends)
        else:
            rows = beta.expand(len(online.values), -1)
            ranks = combined_q(online.values, online.intrinsic_values, rows, network.sizes.rescaling).detach()
            losses, priority = _judge(network, settings, trajectory, online.values, target.values, ranks, reward, ends)
            others, second = _judge(
                network,
                settings,
                trajectory,
                online.intrinsic_values,
                target.intrinsic_values,
                ranks,
                intrinsic,
                ends,
            )
            found["intrinsic_value_loss"] = (weight * others).mean().detach()
            losses, priority = losses + others, priority + beta * second
    loss = (weight * losses).mean()
    valid = counts.sum().clamp(min=1)
    found |= {
        "total_loss": loss.detach(),
        "value_mean": (online.values[:-1].detach().amax(-1) * counts).sum() / valid,
        "td_error": priority.mean(),
        "importance_weight": weight.mean(),
        "priorities": priority,
    }
    return loss, found


def _arms(network: ActionValuesNetwork, trajectory: Trajectory, exploits: Tensor | None) -> Tensor:
    """Whose values are learned from each sequence, [B] int64; one an episode, and there is one episode."""
    if network.sizes.arms is None:
        return torch.zeros_like(trajectory.reward[0], dtype=torch.int64)
    arm = trajectory.extras["arm"][0]
    return arm if exploits is None else arm.masked_fill(exploits, 0)


def _values(
    values: QValueNetwork,
    network: ActionValuesNetwork,
    trajectory: Trajectory,
    arm: Tensor,
    burn_in: int,
    learns: bool,
) -> QOutput:
    """What a network says of all rows after the burn-in, [T+1, B, A]; the burn-in only warms its core up."""
    context, own = network.context, values.context
    last_action, last_reward = trajectory.last_inputs()
    first = trajectory.first.clone()
    first[context + burn_in + 1 :] = False  # padding behind an end counts for nothing: no reset in it is needed
    intrinsic: Tensor | None = None
    if values.sizes.use_last_intrinsic:
        before, after = trajectory.last_reward[INTRINSIC], trajectory.extras[f"reward/{INTRINSIC}"]
        intrinsic = torch.cat([before, after])
    told = arm.expand(len(first), -1) if values.sizes.arms else None

    def say(begin: int, end: int, carry: Tree) -> QOutput:
        """Of rows begin … end, counted from the first of the burn-in."""
        rows = slice(context + begin, context + end)
        behind = slice(context - own + begin, context + end)
        return values(
            trees.map(lambda leaf: leaf[behind], trajectory.obs),
            first[behind],
            last_action[rows],
            last_reward[rows],
            carry,
            None if intrinsic is None else intrinsic[rows],
            None if told is None else told[rows],
            padded=True,
        )

    end = len(first) - context
    carry = trajectory.carry
    if not learns:
        with torch.no_grad():
            output = say(0, end, carry)
        return QOutput(
            output.values[burn_in:],
            (),
            None if output.intrinsic_values is None else output.intrinsic_values[burn_in:],
        )
    if burn_in and trees.flatten(carry):
        with torch.no_grad():
            carry = say(0, burn_in, carry).carry
    return say(burn_in, end, carry)


def _are_transitions(network: ActionValuesNetwork, trajectory: Trajectory, settings: QLearning, burn_in: int) -> bool:
    """Whether one step is learned from, with an n-step return, by a network that remembers nothing."""
    one = settings.returns == "n_step" and len(trajectory.reward) == settings.n_step and burn_in == 0
    return one and not network.sizes.network.recurrent and network.sizes.novelty is None and network.sizes.arms is None


def _values_of_transitions(network: ActionValuesNetwork, trajectory: Trajectory) -> tuple[QOutput, QOutput]:
    """What both networks say of the row acted in and of the one bootstrapped from, [n+1, B, A]; elsewhere 0.

    No target of the first step looks anywhere else: the return stops at row n, or where the episode ends before.
    """
    steps, batch = trajectory.reward.shape
    ended = trajectory.terminated | trajectory.truncated
    number = torch.arange(1, steps + 1, device=ended.device).unsqueeze(1)
    last = torch.where(ended, number, steps).amin(0)  # [B]
    column = torch.arange(batch, device=ended.device)
    first = trajectory.first.clone()
    first[network.context + 1 :] = False  # as for sequences
    last_action, last_reward = trajectory.last_inputs()

    def say(values: QValueNetwork, row: Tensor) -> Tensor:
        """Of one row of each column, [1, B, A]."""
        row = network.context + row
        behind = row + torch.arange(-values.context, 1, device=row.device).unsqueeze(1)  # [C+1, B]
        return values(
            trees.map(lambda leaf: leaf[behind, column], trajectory.obs),
            first[behind, column],
            last_action[row, column].unsqueeze(0),
            last_reward[row, column].unsqueeze(0),
            (),
        ).values

    acted = say(network.acting.values, torch.zeros_like(last))
    with torch.no_grad():
        led_to = [say(values, last) for values in (network.acting.values, network.target)]
    place = (last - 1).view(1, -1, 1).expand_as(acted)
    nothing = acted.new_zeros(steps, *acted.shape[1:])
    online, target = (nothing.scatter(0, place, values) for values in led_to)
    return QOutput(torch.cat([acted, online]), ()), QOutput(torch.cat([torch.zeros_like(acted), target]), ())


def _judge(
    network: ActionValuesNetwork,
    settings: QLearning,
    trajectory: Trajectory,
    online: Tensor,
    target: Tensor,
    ranks: Tensor | None,
    reward: Tensor,
    ends: Boundaries,
) -> tuple[Tensor, Tensor]:
    """The losses [B] and priorities [B] of one kind of values.

    Args:
      network: whose values they are.
      settings: numbers.
      trajectory: what was done.
      online: [T+1, B, A].
      target: [T+1, B, A], of the slower copy.
      ranks: [T+1, B, A] whose greedy policy is judged; None: that of `online`.
      reward: [T, B] that these values speak of.
      ends: of episodes.
    """
    counts = trajectory.extras["weight"]
    online_rank = online.detach() if ranks is None else ranks
    double = settings.double or ranks is not None
    rest: dict[str, Any] = {"double": double, "rescaling": network.sizes.rescaling}
    rows = (reward, ends.discount_t, ends.continue_t, ends.weight_t)
    if settings.returns == "n_step":
        targets = n_step_q_targets(online_rank, target, *rows, n=settings.n_step, **rest)
    elif settings.returns == "peng":
        targets = peng_q_targets(online_rank, target, *rows, trace_lambda=settings.trace_lambda, **rest)
    else:
        done = trajectory.action, trajectory.extras["behaviour_prob"]
        rest |= {"trace_lambda": settings.trace_lambda, "target_epsilon": settings.target_epsilon}
        targets = retrace_q_targets(online_rank, target, *done, *rows, **rest)
    errors = td_errors(online, trajectory.action, targets, counts)
    losses = sequence_losses(errors, counts, settings.huber, settings.reduction)
    return losses, sequence_priority(errors.detach(), counts, settings.eta)


def novelty_losses(network: ActionValuesNetwork, trajectory: Trajectory, settings: QLearning) -> dict[str, Tensor]:
    """What embedding and distillation are off by in the last steps of each sequence, by name."""
    acting = network.acting
    if acting.embedding is None and acting.distillation is None:
        return {}
    steps = len(trajectory.reward)
    taken = min(settings.novelty_steps, steps)
    counts = trajectory.extras["weight"]
    # The last steps that count: those whose number, from the end of what counts, is below `taken`.
    left = counts.flip(0).cumsum(0).flip(0)  # [T, B] how many steps are left, this one included
    learned = counts * (left <= taken)
    begin = len(trajectory.first) - 1 - steps
    losses: dict[str, Tensor] = {}
    wanted = int(counts.shape[1]) * taken
    chosen = learned.t().reshape(-1).topk(wanted).indices  # [B·taken] of [B·T], those that count first
    column, step = chosen // steps, chosen % steps
    valid = learned[step, column]
    total = valid.sum().clamp(min=1)
    if acting.embedding is not None:
        own = acting.embedding.context
        offsets = torch.arange(-own, 2, device=step.device).unsqueeze(1)  # rows from each step's own to the next
        rows = begin + step + offsets  # [own + 2, N]
        obs = trees.map(lambda leaf: leaf[rows, column], trajectory.obs)
        first = trajectory.first[rows, column]
        logits = acting.embedding(obs, first)[0][0]  # [N, A]
        missed = nn.functional.cross_entropy(logits, trajectory.action[step, column], reduction="none")
        losses["embedding"] = (missed * valid).sum() / total
    if acting.distillation is not None:
        shown = trajectory.obs[begin + 1 + step, column]
        acting.count_observations(shown, valid)
        losses["distillation"] = (acting.distillation_error(shown) * valid).sum() / total
    return losses
