"""Training of a world model for continuous control on replayed steps; see `networks/dynamics.py` for its predictions.

The loss of STEVE (Buckman et al. 2018); D and R are evaluated at real next observations, not at predicted ones:

    L = mean CE(terminated, D) + mean ½ (r − R)² + mean ½ ‖s' − s − f‖² + weight_decay · Σ ½ θ²

A probabilistic model has the Gaussian's negative log-likelihood in place of the third term. The last term is Adam's own
weight decay, which adds weight_decay · θ to the gradient.

With `rows` = 'split' or 'random' the means are over the rows of one batch, each of which trains one member, as in the
released STEVE: a member's own mean has the factor 1 / K in L, so weight decay is K times as strong, relative to its
data, as for a single model. With 'all' and 'own' a batch trains every member, and L is summed over members: each
descends its own mean with the nominal decay.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from packtrain import check
from packtrain.accelerate.compilation import Compiled
from packtrain.acting.mpc import PredictiveControl
from packtrain.acting.noise import Control
from packtrain.algorithms.batched_updates import Batch, ReplayLearner, Rule, transitions
from packtrain.algorithms.optimisers import Adam
from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.interfaces import LearnerSettings, Memory, MemorySettings, PolicySettings
from packtrain.memory.replay import Replay
from packtrain.networks.control import ControlNetwork
from packtrain.networks.dynamics import DynamicsNetwork

VALIDATION_ROWS = 4096
_GROWN = 1.05  # recompute moments when the data has grown by this factor
_NARROW = 1e-4  # coordinates with a smaller deviation are treated as constant


@configurable
@dataclass(frozen=True)
class DynamicsLearning(LearnerSettings):
    """Training settings of the world model; defaults are STEVE's."""

    joins_seeds: ClassVar[bool] = True

    batch_size: int = 512
    learning_rate: float = 0.0003
    weight_decay: float = 0.0001
    rows: Literal["split", "random", "all", "own"] = "split"
    """Rows of a batch per member: split (equal shares), random (one random member each), all, own (a batch each)."""
    bootstrap: bool = False  # each member never trains on a random half of the data
    holdout: bool = False
    """Leave every tenth block of transitions out of batches; validation, elites and calibration use these alone."""
    validation_period: int = 1000  # updates
    compile: bool | None = None  # compile the loss and its gradient; None: on a GPU

    def __post_init__(self) -> None:
        check.positive(self, "batch_size", "learning_rate", "validation_period")
        check.not_negative(self, "weight_decay")

    def check(self, memory: MemorySettings, policy: PolicySettings) -> None:
        """Raise a ConfigError if the memory lacks data that the model needs."""
        control = policy.control if isinstance(policy, PredictiveControl) else policy
        if not (isinstance(memory, Replay) and isinstance(control, Control)):
            raise ConfigError("DynamicsLearning learns from a Replay memory, for a Control or PredictiveControl policy")
        members = control.dynamics.transitions if self.rows == "own" and control.dynamics is not None else 1
        memory.check_batch_size(self.batch_size * members, "DynamicsLearning")
        if memory.n_step > 1:
            raise ConfigError(f"Replay.n_step = {memory.n_step}: a world model learns from single steps")
        if memory.normalise_rewards:
            raise ConfigError(
                "Replay.normalise_rewards = True: a world model predicts rewards as they are; set --normalise_rewards "
                "false, or --reward_scale"
            )

    def build(self, network: ControlNetwork, total_steps: int) -> ReplayLearner:
        """Return a learner of a run's world model; ConfigError if the two do not fit."""
        if network.model is None:
            raise ConfigError("DynamicsLearning has nothing to learn: set Control.dynamics")
        sizes = network.model.sizes
        for name in ("transitions", "rewards"):
            if self.rows == "split" and self.batch_size % getattr(sizes, name):
                raise ConfigError(
                    f"DynamicsLearning.batch_size = {self.batch_size} cannot be split between "
                    f"Dynamics.{name} = {getattr(sizes, name)}"
                )
        if sizes.elites is not None and sizes.elites < sizes.transitions and not self.holdout:
            raise ConfigError(
                "Dynamics.elites are chosen on held-out steps: set DynamicsLearning.holdout, --holdout True"
            )
        if self.rows == "own" and sizes.transitions != sizes.rewards:
            raise ConfigError("DynamicsLearning.rows = 'own' needs as many Dynamics.rewards as Dynamics.transitions")
        network.model.holdout = self.holdout
        return ReplayLearner(network, ("model",), partial(DynamicsRule, self))


class DynamicsRule(Rule):
    """One update of a world model."""

    names: tuple[str, ...] = (
        "model/total_loss",
        "model/observation_loss",
        "model/reward_loss",
        "model/terminated_loss",
    )

    def __init__(self, settings: DynamicsLearning, network: ControlNetwork):
        assert network.model is not None
        self.settings, self.model = settings, network.model
        own = self.model.sizes.transitions if settings.rows == "own" else 1
        self.batch_size = settings.batch_size * own
        self.holdout, self.compiles = settings.holdout, settings.compile is True
        self.optimisers: dict[str, Adam] = {
            "model": Adam(self.model.parameters(), settings.learning_rate, settings.weight_decay)
        }
        self._losses = Compiled(losses, network.log_temperature.device, settings.compile)

    def draws(self, count: int, generator: torch.Generator) -> Batch:
        """Return which member is trained on each row where that is random, for each ensemble separately."""
        if self.settings.rows != "random":
            return {}
        sizes, shape = self.model.sizes, (count, self.settings.batch_size)
        draw = partial(torch.randint, size=shape, generator=generator, device=generator.device)
        members = {"transition": sizes.transitions, "reward": sizes.rewards, "termination": sizes.transitions}
        return {f"member/{name}": draw(0, count) for name, count in members.items()}

    def step(self, batch: Batch, kind: None) -> Tensor:
        """Make one update; return metrics [R, M]."""
        parts = self._losses(self.model, self.settings, batch)
        total = parts["observation"] + parts["reward"] + parts["terminated"]
        descended = total
        if self.settings.rows in ("all", "own"):  # sums over members, not means: see the module's docstring
            transitions, rewards = self.model.transition.members, self.model.reward.members
            descended = transitions * (parts["observation"] + parts["terminated"]) + rewards * parts["reward"]
        self.optimisers["model"].descend(descended.sum())
        return torch.stack([total, parts["observation"], parts["reward"], parts["terminated"]], -1).detach()

    @torch.no_grad()
    def prepare(
        self, network: ControlNetwork, memory: Memory, updates: int, prepared: dict[str, int]
    ) -> dict[str, Tensor]:
        """Update the normalisation when the data has grown; periodically measure the weights and choose the elites."""
        model, settings = network.model, self.settings
        assert model is not None
        everything = None
        if model.sizes.normalise and memory.steps > _GROWN * prepared.get("steps", 0):
            everything = memory.view("all")
        if everything is not None:
            prepared["steps"] = memory.steps
            take_moments(model, transitions(everything))
        if updates < prepared.get("next_validation", 0):
            return {}
        steps = memory.view("held_out", most=VALIDATION_ROWS) if settings.holdout else None
        if steps is None and settings.holdout:
            return {}
        prepared["next_validation"] = updates + settings.validation_period
        found = {"model/l2_loss": 0.5 * settings.weight_decay * _squares(model)} if settings.weight_decay else {}
        if steps is not None:
            errors = held_out_errors(model, transitions(steps))  # [K]
            best = errors.argsort()[: model.elites.shape[1]]
            model.elites.copy_(best.sort().values[None])
            found |= {"model/held_out_error": errors.mean(), "model/held_out_error_elites": errors[best].mean()}
        return found


def _squares(model: DynamicsNetwork) -> Tensor:
    """Return the sum of the squares of all weights and biases."""
    return torch.stack(torch._foreach_norm([leaf.detach() for leaf in model.parameters()])).square().sum()


@torch.no_grad()
def take_moments(model: DynamicsNetwork, steps: Batch) -> None:
    """Set the input normalisation of one run's model to the mean and standard deviation of steps [N, ...]."""
    for mean, std, rows in (
        (model.obs_mean, model.obs_std, steps["obs"]),
        (model.change_mean, model.change_std, steps["after"] - steps["obs"]),
    ):
        deviation, average = torch.std_mean(rows.double(), 0, correction=0)
        mean.copy_(average[None, None])
        std.copy_(_proper(deviation)[None, None])
    model.reward_scale.copy_(_proper(steps["reward"].double().std(correction=0)))


def _proper(deviation: Tensor) -> Tensor:
    """Replace near-zero standard deviations by 1: a change of a constant feature must not become an enormous input."""
    return torch.where(deviation < _NARROW, 1.0, deviation)


@torch.no_grad()
def held_out_errors(model: DynamicsNetwork, steps: Batch) -> Tensor:
    """Return the mean squared error of each transition member's mean prediction in the model's units, [K]."""
    obs, action, after = (steps[name][None] for name in ("obs", "action", "after"))
    guess = model.guess(obs, action)
    return (guess.mean - model.change(obs, after).unsqueeze(1)).square().mean((0, 2, 3))


def losses(model: DynamicsNetwork, settings: DynamicsLearning, batch: Batch) -> dict[str, Tensor]:
    """Return the losses "observation", "reward" and "terminated", averaged over members and their rows, [R] each."""
    transitions, rewards = model.transition.members, model.reward.members
    obs, action, after = (_deal(batch[name], transitions, settings) for name in ("obs", "action", "after"))
    change = _against(model.change(obs, after))
    guess = model.guess(obs, action)
    error = (guess.mean - change).square()
    if guess.log_variance is None:
        error = 0.5 * error.sum(-1)
    else:
        error = 0.5 * (error * torch.exp(-guess.log_variance) + guess.log_variance).sum(-1)
    over = _against(_deal(batch["terminated"].to(obs.dtype), transitions, settings), 2)
    said = model.judge(model.termination, obs, action, after)
    ends = nn.functional.binary_cross_entropy_with_logits(said, over.expand_as(said), reduction="none")
    obs, action, after = (_deal(batch[name], rewards, settings) for name in ("obs", "action", "after"))
    wanted = _against(_deal(batch["reward"] / model.reward_scale, rewards, settings), 2)
    paid = 0.5 * (model.judge(model.reward, obs, action, after) - wanted).square()
    errors = {"transition": error, "reward": paid, "termination": ends}  # [R, K, N] each
    weighted = {name: (each * _shares(each, name, settings, batch)).mean((1, 2)) for name, each in errors.items()}
    return {
        "observation": weighted["transition"],
        "reward": weighted["reward"],
        "terminated": weighted["termination"],
    }


def _deal(rows: Tensor, members: int, settings: DynamicsLearning) -> Tensor:
    """Return [R, K, B / K, ...] of [R, B, ...] where each member has its own rows; else the input, for all members."""
    return rows.unflatten(1, (members, -1)) if settings.rows in ("split", "own") else rows


def _against(rows: Tensor, whole: int = 3) -> Tensor:
    """Return targets that all members share, with an axis for the members."""
    return rows.unsqueeze(1) if rows.ndim == whole else rows


def _shares(errors: Tensor, name: str, settings: DynamicsLearning, batch: Batch) -> Tensor | float:
    """Return the weight of each row in each member's loss, 1 on average."""
    members = errors.shape[1]
    shares: Tensor | float = 1.0
    if settings.rows == "random":
        asked = batch[f"member/{name}"].unsqueeze(1)  # [R, 1, B]
        shares = members * (asked == torch.arange(members, device=asked.device).unsqueeze(-1))
    if not settings.bootstrap:
        return shares
    rows = _against(_deal(batch["row"], members, settings), 2)
    member = torch.arange(members, device=rows.device)[:, None]
    # A hash of row and member: the same half whenever the row comes up, and no table of masks. Large factors are for
    # rows, which are 64 bits wide: compiled for a GPU, what is made of members alone has 32.
    mixed = ((rows * members + member) * 0x9E3779B1) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    return shares * 2.0 * ((mixed >> 16) & 1)
