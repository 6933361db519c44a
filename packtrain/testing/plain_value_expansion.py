"""Value expansion one run, one row and one candidate at a time, on NumPy vectors: the place to start reading.

`ddpg.py`, `td3.py`, `sac.py`, `mve.py` and `steve.py` in `packtrain/algorithms` compute the same on tensors. Small
networks, settings and batches for tests stand in front.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from packtrain.acting.noise import Control
from packtrain.algorithms.actor_critic import critic_losses
from packtrain.algorithms.batched_updates import ReplayLearner
from packtrain.algorithms.candidate_returns import tdk_critic_losses
from packtrain.algorithms.ddpg import DDPG
from packtrain.algorithms.mve import MVE
from packtrain.algorithms.sac import SAC
from packtrain.algorithms.steve import STEVE
from packtrain.algorithms.td3 import TD3
from packtrain.equations.value_expansion import Targets
from packtrain.networks.control import ControlNetwork
from packtrain.networks.dynamics import NARROWEST, WIDEST, Dynamics
from packtrain.networks.stacked import join
from packtrain.types import Spec

OBS, ACTIONS, RUNS, ROWS, HORIZON = 3, 2, 2, 6, 2
MEMBERS, JUDGES, CRITICS = 2, 3, 3  # transition models, reward models, critics
GAMMA, KAPPA = 0.9, 0.7
SPEC = Spec(gym.spaces.Box(-np.inf, np.inf, (OBS,)), gym.spaces.Box(-1, 1, (ACTIONS,)))
Algorithm = DDPG | TD3 | SAC | MVE | STEVE
CORES: dict[str, Callable[..., Any]] = {"ddpg": DDPG, "td3": TD3, "sac": SAC}
TARGETS: dict[str, Callable[..., Any]] = {
    "one_step": lambda base: base,
    "mve_tdk": lambda base, **more: MVE(base, HORIZON, **more),
    "mve": lambda base, **more: MVE(base, HORIZON, tdk_trick=False, **more),
    "mean": lambda base, **more: MVE(base, HORIZON, tdk_trick=False, trace_lambda=None, **more),
    "mean_tdk": lambda base, **more: MVE(base, HORIZON, trace_lambda=None, **more),
    "lambda": lambda base, **more: MVE(base, HORIZON, tdk_trick=False, trace_lambda=0.6, **more),
    "lambda_tdk": lambda base, **more: MVE(base, HORIZON, trace_lambda=0.6, **more),
    "steve": lambda base, **more: STEVE(base, HORIZON, **more),
    "steve_tdk": lambda base, **more: STEVE(base, HORIZON, tdk_trick=True, **more),
    "cov": lambda base, **more: STEVE(base, HORIZON, ridge=1e-3, **more),
}
EXPANSIONS = [name for name in TARGETS if name != "one_step"]
FAR = {"target_period": 1000, "model_period": 1000, "publish_period": 1000}


# -- small networks, settings and batches


def build(
    seed: int = 0, core: str = "ddpg", critics: int = CRITICS, model: bool = True, **sizes: Any
) -> ControlNetwork:
    """Return a small network of one run in which no part is a copy of another."""
    torch.manual_seed(seed)
    small = {"hidden_size": 5, "num_layers": 1, "aux_hidden_size": 4, "aux_num_layers": 1}
    dynamics = Dynamics(**{"transitions": MEMBERS, "rewards": JUDGES, **small, **sizes})
    network = Control(6, 1, critics, stochastic=core == "sac", dynamics=dynamics if model else None).build_network(SPEC)
    with torch.no_grad():
        for leaf in network.parameters():
            leaf.add_(0.2 * torch.randn_like(leaf))
        if network.frozen is not None and network.frozen.sizes.normalise:
            for name in ("obs_mean", "change_mean", "obs_std", "change_std", "reward_scale"):
                buffer = getattr(network.frozen, name)
                buffer.copy_(torch.rand_like(buffer) + 0.5)
    return network


def settings(target: str = "one_step", core: str = "ddpg", **numbers: Any) -> Any:
    """Return settings of an algorithm; each number goes where it belongs, numbers of a model may be of no use."""
    model = {name: numbers.pop(name) for name in ("model_period", "calibration_period") if name in numbers}
    base = {"batch_size": ROWS, "discount": GAMMA, "reward_scale": KAPPA, "rows": "all", "policy_delay": 1, **numbers}
    base = {"target_period": 500, "publish_period": 500, **base}
    return TARGETS[target](CORES[core](**base), **(model if target != "one_step" else {}))


def steps(count: int = RUNS, seed: int = 0, size: int = ROWS) -> dict[str, Tensor]:
    """Return real steps [count, B, ...] as a memory gives them; row 1 ended the task."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(count, size, *shape, generator=generator)

    ended = torch.zeros(count, size, dtype=torch.uint8)
    ended[:, 1] = 1
    return {
        "obs": normal(OBS),
        "action": torch.tanh(normal(ACTIONS)),
        "reward": normal(),
        "after": normal(OBS),
        "terminated": ended,
        "truncated": torch.zeros_like(ended),
        "row": torch.zeros(count, size, dtype=torch.int64),
    }


def scene(
    target: str, core: str = "ddpg", rows: str = "all", numbers: dict[str, Any] | None = None, **sizes: Any
) -> tuple[ControlNetwork, Any, dict[str, Tensor]]:
    """Return R runs in one network, settings, and a batch with everything random, in float64."""
    networks = [build(seed, core, **sizes).double() for seed in range(RUNS)]
    algorithm = settings(target, core, rows=rows, **(numbers or {}))
    drawn = learner_of(networks[0], algorithm).rule.draws(RUNS, torch.Generator().manual_seed(3))  # one for each run
    batch = {**steps(), **drawn}
    double = {name: leaf.double() if leaf.is_floating_point() else leaf for name, leaf in batch.items()}
    return join(networks), algorithm, double


def learner_of(network: ControlNetwork, algorithm: Algorithm, seed: int = 0) -> ReplayLearner:
    """Return a learner of one run."""
    learner = algorithm.build(network, 0)
    learner.reseed(seed)
    return learner


def inputs(learner: ReplayLearner, count: int, seed: int = 0) -> dict[str, Tensor]:
    """Return batches of synthetic steps with everything random."""
    return {**steps(count, seed), **learner.rule.draws(count, learner._generator)}


def base_of(algorithm: Algorithm) -> Any:
    """Return DDPG, TD3 or SAC."""
    return algorithm.actor_critic if isinstance(algorithm, MVE | STEVE) else algorithm


def targets_of(algorithm: Algorithm, network: ControlNetwork, batch: dict[str, Tensor]) -> Targets:
    """Return targets, without the rollouts."""
    return (
        algorithm.targets(network, batch)[1]
        if isinstance(algorithm, MVE | STEVE)
        else algorithm.targets(network, batch)
    )


def critic_loss_of(algorithm: Algorithm, network: ControlNetwork, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the critics' loss and mean value, [R] each."""
    if isinstance(algorithm, MVE | STEVE):
        return tdk_critic_losses(network, algorithm.actor_critic, batch, *algorithm.targets(network, batch))
    return critic_losses(network, algorithm, batch, algorithm.targets(network, batch))


# -- the reference


def ask(network: Any, run: int, member: int, x: np.ndarray) -> np.ndarray:
    """Return the output of one member of one run for one vector."""
    k = run * network.members + member
    for layer, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        x = x @ weight[k].detach().numpy() + bias[k, 0].detach().numpy()
        x = np.maximum(x, 0) if layer + 1 < len(network.weights) else x
    return x


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.log1p(np.exp(x))


class Path:
    """What transition member m of a run imagines after row b: x, a, α log π, δ, and ρ of every reward member."""

    def __init__(self, network: Any, algorithm: Algorithm, batch: dict[str, Tensor], run: int, b: int, m: int):
        base, horizon, model = base_of(algorithm), getattr(algorithm, "horizon", 0), network.frozen
        self._network, self._run, self._b = network, run, b
        self._given = {name: leaf[run].numpy() for name, leaf in batch.items()}
        self.x, self.a, self.entropy_cost, self.value = [self._given["after"][b]], [], [], []
        self.delta = [float(self._given["terminated"][b])]
        self.rho = [[float(self._given["reward"][b])] * JUDGES]
        for t in range(horizon + 1):
            a, cost = self._action(base, t)
            self.a.append(a)
            self.entropy_cost.append(cost)
            self.value.append(self._values(base, t))
            if t < horizon:
                self._move(model, m, t)

    def _action(self, base: Any, t: int) -> tuple[np.ndarray, float]:
        network, run, x = self._network, self._run, self.x[t]
        if isinstance(base, DDPG):
            return np.tanh(ask(network.policy, run, 0, x)), 0.0
        noise = self._given["action_noise"][t, self._b]
        if isinstance(base, TD3):
            clipped = np.clip(0.2 * noise, -0.5, 0.5)
            return np.clip(np.tanh(ask(network.target_policy, run, 0, x)) + clipped, -1, 1), 0.0
        output = ask(network.policy, run, 0, x)
        std = np.exp(-5 + 3.5 * (np.tanh(output[ACTIONS:]) + 1))
        before = output[:ACTIONS] + std * noise
        normal = -0.5 * noise**2 - np.log(std) - 0.5 * math.log(2 * math.pi)
        log_cosh = np.logaddexp(before, -before) - math.log(2)  # 1 − tanh² = cosh⁻²
        return np.tanh(before), math.exp(network.log_temperature[run].item()) * float((normal + 2 * log_cosh).sum())

    def _values(self, base: Any, t: int) -> list[float]:
        """Q'_q for all q; under TD3 and SAC the lesser of the q-th in a random order and the one before it."""
        target = self._network.target
        pair = np.concatenate([self.x[t], self.a[t]])
        value = [ask(target, self._run, n, pair)[0] for n in range(target.members)]
        if isinstance(base, DDPG):
            return value
        order = self._given["critics"].tolist()
        return [min(value[order[q]], value[order[q - 1]]) for q in range(len(order))]

    def _move(self, model: Any, m: int, t: int) -> None:
        run, x, a = self._run, self.x[t], self.a[t]

        def unit(s: np.ndarray) -> np.ndarray:
            if not model.sizes.normalise:
                return s
            return (s - model.obs_mean[run, 0].numpy()) / model.obs_std[run, 0].numpy()

        moved = ask(model.transition, run, m, np.concatenate([unit(x), a]))
        if model.sizes.probabilistic:
            moved, wide = moved[:OBS], moved[OBS:]
            wide = NARROWEST + _softplus(WIDEST - _softplus(WIDEST - wide) - NARROWEST)
            moved = moved + np.exp(wide / 2) * self._given["model_noise"][t, m, self._b]
        after = x + moved * model.change_std[run, 0].numpy() + model.change_mean[run, 0].numpy()
        step = np.concatenate([unit(after), unit(x), a])
        self.x.append(after)
        self.delta.append(1 / (1 + math.exp(-ask(model.termination, run, m, step)[0])))
        scale = model.reward_scale[run, 0].item()
        self.rho.append([scale * ask(model.reward, run, judge, step)[0] for judge in range(JUDGES)])

    def reached(self, i: int) -> float:
        """Return c_{i−1}, the probability that step i was reached."""
        return math.prod(1 - delta for delta in self.delta[:i])


def candidate(base: Any, path: Path, judge: int, q: int, i: int, j: int) -> float:
    """Return candidate target T[i, j] for transition member m (whose path this is), reward member l and critic q."""
    if isinstance(base, SAC):  # soft Q = r + γ (1 − δ) (Q − α log π), followed through the model
        after = path.value[i][q] if i == j else candidate(base, path, judge, q, i + 1, j)
        return KAPPA * path.rho[i][judge] + GAMMA * (1 - path.delta[i]) * (after - path.entropy_cost[i])

    def going(t: int) -> float:  # c_t / c_{i−1}
        return math.prod(1 - delta for delta in path.delta[i : t + 1])

    rewards = sum(GAMMA ** (t - i) * going(t - 1) * path.rho[t][judge] for t in range(i, j + 1))
    return KAPPA * rewards + GAMMA ** (j - i + 1) * going(j) * path.value[j][q]


def weights_by_hand(algorithm: Algorithm, samples: list[list[float]]) -> list[float]:
    """w[i, j] for j = i … H of candidates [depth][sample]."""
    depths, last = len(samples), len(samples) - 1
    if isinstance(algorithm, STEVE) and algorithm.ridge is not None:
        apart = np.array([np.array(each) - np.mean(each) for each in samples])
        weights = np.linalg.solve(apart @ apart.T + algorithm.ridge * np.eye(depths), np.ones(depths)).tolist()
    elif isinstance(algorithm, STEVE):
        weights = [1 / (float(np.var(each)) + 1e-8) for each in samples]
    elif isinstance(algorithm, MVE) and algorithm.trace_lambda is None:
        weights = [1.0] * depths
    elif isinstance(algorithm, MVE) and (trace := algorithm.trace_lambda or 0.0) < 1:
        weights = [(1 - trace if j < last else 1.0) * trace**j for j in range(depths)]
    else:
        weights = [float(j == last) for j in range(depths)]
    return [weight / sum(weights) for weight in weights]


def plain_targets(
    network: Any, algorithm: Algorithm, batch: dict[str, Tensor]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return targets [S][R][B], the weights of their depths, their reach, and the critics' loss [R]."""
    base, horizon, critics = base_of(algorithm), getattr(algorithm, "horizon", 0), network.target.members
    members = network.frozen.transition.members if horizon else 1
    starts = horizon + 1 if getattr(algorithm, "tdk_trick", False) else 1
    target, reach = (np.zeros((starts, RUNS, ROWS)) for _ in range(2))
    weight, loss = np.zeros((starts, horizon + 1, RUNS, ROWS)), np.zeros(RUNS)
    for run, b in itertools.product(range(RUNS), range(ROWS)):
        paths = [Path(network, algorithm, batch, run, b, m) for m in range(members)]
        for i in range(starts):
            every = list(itertools.product(paths, range(JUDGES if horizon else 1), range(critics)))
            samples = [[candidate(base, *one, i, j) for one in every] for j in range(i, horizon + 1)]
            weights = weights_by_hand(algorithm, samples)
            weight[i, i:, run, b] = weights
            target[i, run, b] = sum(w * np.mean(each) for w, each in zip(weights, samples, strict=True))
            reach[i, run, b] = np.mean([path.reached(i) for path in paths])
            learning = _critics_of_row(base.rows, batch, critics, run, b)
            for n in learning:
                real = (batch["obs"][run, b].numpy(), batch["action"][run, b].numpy())
                pairs = [real] if i == 0 else [(path.x[i - 1], path.a[i - 1]) for path in paths]
                value = np.mean([ask(network.critic, run, n, np.concatenate(pair))[0] for pair in pairs])
                error = reach[i, run, b] * 0.5 * (value - target[i, run, b]) ** 2
                loss[run] += error / (ROWS * starts * len(learning))
    return target, weight, reach, loss


def _critics_of_row(rows: str, batch: dict[str, Tensor], critics: int, run: int, b: int) -> list[int]:
    if rows == "split":
        return [b // (ROWS // critics)]
    return [int(batch["member"][run, b])] if rows == "random" else list(range(critics))


def check_against_reference(network: Any, algorithm: Algorithm, batch: dict[str, Tensor]) -> Targets:
    """Assert that targets, weights, reach and loss equal the reference's; return the targets."""
    targets = targets_of(algorithm, network, batch)
    loss, value_mean = critic_loss_of(algorithm, network, batch)
    target, weight, reach, want_loss = plain_targets(network, algorithm, batch)
    for got, want in ((targets.target, target), (targets.weight, weight), (targets.reach, reach), (loss, want_loss)):
        np.testing.assert_allclose(got.detach().numpy(), want, rtol=1e-7, atol=1e-8)
    assert value_mean.shape == (RUNS,) and not targets.target.requires_grad
    return targets
