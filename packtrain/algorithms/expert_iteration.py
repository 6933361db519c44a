"""Expert iteration: between episodes, a network is trained on the results of searches.

Expert iteration (Anthony et al. 2017, arXiv:1705.08439; Silver et al. 2017) as the planning frameworks of Miłoś et al.
2019 (arXiv:1912.09996) and Januszewski et al. 2021 do it: a supervised step on single decisions of whole episodes, each
head towards a target that the search or the end of the episode gave.

Deviations from those frameworks, each by choice:
 1. Targets are what the search knew when it acted, not what its tree held at the end of the episode.
 2. Policy heads are logits and learn by cross-entropy; give `losses` to have them learn by squared error.
 3. The n-step target is computed from its definition; its bootstrap is 0 only where an episode terminated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from packtrain import check, trees
from packtrain.algorithms.gradient import GradientLearner
from packtrain.algorithms.optimisers import check_decay, make_optimiser
from packtrain.algorithms.polyak import SlowCopy
from packtrain.config import configurable
from packtrain.equations.schedules import scheduled_rate
from packtrain.errors import ConfigError
from packtrain.memory.episodes import HINDSIGHT
from packtrain.networks.planner_inputs import Inputs, append_action
from packtrain.trees import Tree
from packtrain.types import Trajectory

LossName = Literal["squared_error", "cross_entropy", "binary_cross_entropy"]
MaskName = Literal["one", "nonzero", "action"]
TRANSITION = ("next_observation", "observation_change", "reward", "terminated")  # targets that each step has
NO_CLIPPING = float("inf")


@configurable
@dataclass(frozen=True)
class ExpertIteration:
    """Settings of supervised training: target and loss of each head, and the optimiser; defaults are Keras's."""

    network: str = "agent"  # the network that learns
    inputs: Inputs = "observation"  # what the network receives; must be what the planner sends
    targets: dict[str, str] = field(default_factory=lambda: {"value": "value"})  # head → what it should say: `target`
    losses: dict[str, LossName] = field(default_factory=dict)  # head → loss; logits: cross_entropy, else squared_error
    # head → outputs to train; nonzero: those with a nonzero target; action: the action taken; one (default): all
    masks: dict[str, MaskName] = field(default_factory=dict)
    loss_weights: dict[str, float] = field(default_factory=dict)  # head → weight of its loss; default 1
    optimiser: Literal["adam", "rmsprop", "rmsprop_tf"] = "adam"
    learning_rate: float = 0.001
    final_learning_rate: float | None = None  # after `decay_updates` updates, by `decay`; None: constant
    decay_updates: int | None = None
    decay: Literal["linear", "step"] = "linear"  # to the final rate on a straight line, or in one step
    alpha: float = 0.9  # RMSProp's decay
    epsilon: float = 1e-7
    weight_decay: float = 0.0  # weight of the sum of squares of all weights but biases in the loss
    grad_norm_clipping: float | None = None  # maximum global gradient norm; None: not clipped
    # bootstrap n_step returns with a slow copy: c · own + (1 − c) · new; None: no copy
    target_decay: float | None = None

    def __post_init__(self) -> None:
        check.positive(self, "learning_rate", "epsilon", "grad_norm_clipping")
        check_decay(self)
        check.share(self, "target_decay")
        if self.target_decay is not None and "n_step" not in self.targets.values():
            raise ConfigError("ExpertIteration.target_decay is of n-step returns, and no target is 'n_step'")
        if self.inputs not in get_args(Inputs):
            raise ConfigError(f"ExpertIteration.inputs = {self.inputs!r} is not one of {', '.join(get_args(Inputs))}")
        if self.inputs != "observation" and "n_step" in self.targets.values():
            raise ConfigError(
                f"n-step returns bootstrap from observations, and ExpertIteration.inputs = {self.inputs!r}"
            )
        if not self.targets:
            raise ConfigError("ExpertIteration.targets = {} is empty: name at least one head and its target")
        check.not_negative(self, "weight_decay")
        for name in ("losses", "masks", "loss_weights"):
            unknown = set(getattr(self, name)) - set(self.targets)
            if unknown:
                raise ConfigError(f"ExpertIteration.{name} names {sorted(unknown)[0]!r}, which has no target")

    def wanted(self) -> tuple[str, ...]:
        """Return which search results a memory must store."""
        return tuple(dict.fromkeys(t for t in self.targets.values() if t not in (*HINDSIGHT, *TRANSITION, "n_step")))

    def build(self, network: nn.ModuleDict, total_steps: int) -> GradientLearner:
        """Return a learner for the named network of a planner."""
        if self.network not in network:
            raise ConfigError(
                f"ExpertIteration.network = {self.network!r} is not one of the planner's networks {sorted(network)}"
            )
        heads = network[self.network].heads
        for head in self.targets:
            if head not in heads:  # type: ignore[operator]
                known = ", ".join(sorted(heads))  # type: ignore[arg-type]
                raise ConfigError(
                    f"ExpertIteration.targets names head {head!r}, which the planner does not use; it uses {known}"
                )
        optimiser = make_optimiser(
            network[self.network].parameters(),
            self.optimiser,
            self.learning_rate,
            alpha=self.alpha,
            epsilon=self.epsilon,
        )
        slow = None if self.target_decay is None else SlowCopy(network[self.network], self.target_decay)
        schedule = self.learning_rate, self.final_learning_rate, self.decay_updates, self.decay
        learner: GradientLearner = GradientLearner(
            network,
            partial(loss, settings=self, bootstrap=None if slow is None else slow.module),
            optimiser,
            lambda _: scheduled_rate(learner.updates, *schedule),
            self.grad_norm_clipping or NO_CLIPPING,
            validation=partial(validation, settings=self, bootstrap=None if slow is None else slow.module),
        )
        learner.slow_copy = slow
        return learner


def loss(
    network: nn.ModuleDict, trajectory: Trajectory, settings: ExpertIteration, bootstrap: nn.Module | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the weighted sum of the heads' losses on B steps, and its parts as detached 0-d tensors.

    A network of K members deals the steps out to them. Each member's loss is the mean over its own steps, and these are
    summed over members: each learns as if it were alone. XX is how far the first head was off.
    """
    module = network[settings.network]
    members = int(module.members)  # type: ignore[arg-type]
    outputs = module.on_batch(_inputs(network, settings, trajectory))  # type: ignore[operator]
    weight = trajectory.extras["importance_weight"][0] if "importance_weight" in trajectory.extras else None
    total, parts, priorities = torch.zeros((), device=trajectory.reward.device), {}, None
    for head, name in settings.targets.items():
        wanted = target(name, trajectory, bootstrap or module, head)
        kind = settings.losses.get(head, "cross_entropy" if head == "logits" else "squared_error")
        if wanted.shape[1] == 1 and kind != "cross_entropy":
            # one target for every member of an ensemble, or for the action taken
            wanted = wanted.expand(outputs[head].shape)
        if wanted.shape != outputs[head].shape:
            raise ConfigError(
                f"ExpertIteration.targets: head {head!r} has {outputs[head].shape[1]} outputs and learns by {kind}, "
                f"and its target {name!r} has {wanted.shape[1]}"
            )
        allowed = mask(settings.masks.get(head, "one"), wanted, trajectory.action[0])
        each = head_loss(kind, outputs[head], wanted, allowed)  # [B]
        part = (each if weight is None else each * weight).mean()
        parts[f"{head}_loss"] = part
        total = total + settings.loss_weights.get(head, 1.0) * members * part  # sum of the members' losses
        if priorities is None:
            priorities = each.detach().sqrt() if kind == "squared_error" else each.detach()
    if settings.weight_decay:
        squares = [w.square().sum() for name, w in module.named_parameters() if not name.endswith("bias")]
        parts["weight_loss"] = settings.weight_decay * torch.stack(squares).sum()
        total = total + parts["weight_loss"]
    parts = {name: part.detach() for name, part in {"total_loss": total, **parts}.items()}
    if weight is not None and priorities is not None:
        parts["priorities"] = priorities
    return total, parts


@torch.no_grad()
def validation(
    network: nn.ModuleDict, trajectory: Trajectory, settings: ExpertIteration, bootstrap: nn.Module | None = None
) -> dict[str, Tensor]:
    """Return the losses of the heads on held-out steps [1, M], without that of the weights; nothing if M is too small.

    Of a network with K members the largest multiple of K steps is used.
    """
    members = int(network[settings.network].members)  # type: ignore[arg-type]
    count = trajectory.reward.shape[1] // members * members
    if not count:
        return {}
    some = Trajectory(*trees.map(lambda leaf: leaf[:, :count], tuple(trajectory)))
    _, parts = loss(network, some, settings, bootstrap)
    return {name: part for name, part in parts.items() if name.removesuffix("_loss") in settings.targets}


def target(name: str, trajectory: Trajectory, module: nn.Module, head: str) -> Tensor:
    """Return what a head should output at each of B steps, [B, outputs].

    "return", "discounted_return" and "solved" are how the episode went on from there; "next_observation",
    "observation_change", "reward" and "terminated" are what the step itself led to, observations as vectors; "n_step"
    is an n-step return that bootstraps with the same head of `module`; anything else is what the search reported under
    that name. One number is [B, 1], and holds for all outputs that learn.
    """
    if name in ("next_observation", "observation_change"):
        before, after = trajectory.obs[0].float().flatten(1), trajectory.obs[1].float().flatten(1)
        found: Tensor = after - before if name == "observation_change" else after
        return found
    if name in ("reward", "terminated"):
        each: Tensor = trajectory.reward if name == "reward" else trajectory.terminated
        return each[0].float()[:, None]
    if name == "n_step":
        extras = trajectory.extras
        with torch.no_grad():
            bootstrap = module.on_batch(_step(extras["bootstrap_obs"], 0))[head]  # type: ignore[operator]
        found = extras["n_step_return"][0, :, None] + extras["bootstrap_discount"][0, :, None] * bootstrap
        return found
    value = trajectory.extras[name][0].float()
    return value[:, None] if value.ndim == 1 else value


def mask(name: str, wanted: Tensor, action: Tensor) -> Tensor | None:
    """Return which outputs are trained, [B, outputs] of 0 and 1; None for all."""
    if name == "nonzero":
        return (wanted != 0).float()
    if name == "action":
        return nn.functional.one_hot(action.long(), wanted.shape[1]).float()
    return None


def head_loss(kind: str, output: Tensor, wanted: Tensor, allowed: Tensor | None) -> Tensor:
    """Return the loss of one head at each of B steps, [B]; squared errors are averaged over the trained outputs."""
    assert output.shape == wanted.shape, (output.shape, wanted.shape)
    if kind == "cross_entropy":
        log_prob = output.log_softmax(-1)
        return -(wanted * log_prob * (1.0 if allowed is None else allowed)).sum(-1)
    if kind == "binary_cross_entropy":
        each = nn.functional.binary_cross_entropy_with_logits(output, wanted, reduction="none")
    else:
        each = (output - wanted).square()
    if allowed is None:
        return each.mean(-1)
    return (each * allowed).sum(-1) / allowed.sum(-1).clamp(min=1)


def _inputs(network: nn.ModuleDict, settings: ExpertIteration, trajectory: Trajectory) -> Tree:
    """Return what the network receives at each step, [B, ...]."""
    obs = _step(trajectory.obs, 0)
    if settings.inputs == "observation":
        return obs
    return append_action(obs, trajectory.action[0], int(network[settings.network].actions))  # type: ignore[arg-type]


def _step(tree: Tree, time: int) -> Tree:
    return trees.map(lambda leaf: leaf[time], tree)
