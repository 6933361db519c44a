"""TD errors of actors against a slow twin."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from packtrain.acting.actor_errors import ActorErrors, ErrorNumbers
from packtrain.acting.arms import Arms
from packtrain.acting.epsilon_greedy import ActionValues, EpsilonGreedyPolicy, GroupPolicy
from packtrain.acting.epsilons import Epsilons
from packtrain.equations.q_learning import combined_q
from packtrain.equations.rescale import rescale, unrescale
from packtrain.networks.action_values import Novelty
from packtrain.networks.embedding import ControllableEmbedding
from packtrain.networks.q_network import QNetwork, QOutput
from packtrain.types import Row, Spec

SPEC = Spec(gym.spaces.Box(-9, 9, (3,), np.float32), gym.spaces.Discrete(4))
NOVEL = Novelty(ControllableEmbedding(hidden_sizes=(), size=3, inverse_size=4), None, memory=50, neighbours=2)
B = 3


def make(case, numbers):
    torch.manual_seed(0)
    arms = None if case == "plain" else Arms(3, discounts="one" if case == "one discount" else "ngu")
    network = QNetwork(
        recurrent=False, hidden_sizes=(8,), dueling_size=None, arms=3 if arms else 0,
        separate_intrinsic=case == "two networks",
    )  # fmt: skip
    rescaling = None if case == "one discount" else 1e-3
    description = ActionValues(network, Epsilons(0.5, alpha=0.0), None if arms is None else NOVEL, arms, 0.3, rescaling)
    policy = EpsilonGreedyPolicy(description, description.build_network(SPEC), 1, B)
    policy.error_numbers = numbers
    return policy, GroupPolicy(policy, 0, B)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("case", ["plain", "one discount", "ngu", "two networks"])
def test_errors_of_actors_equal_the_sum_written_out(case, n, monkeypatch):
    """Mutations: the reward of another step; a bootstrap behind a termination; rows of the episode before."""
    numbers = ErrorNumbers(0.9, n, "abs_one")
    policy, one = make(case, numbers)
    outputs, rng = [], np.random.default_rng(n)
    ask = one._acting.values.forward
    monkeypatch.setattr(one._acting.values, "forward", lambda *given: outputs.append(ask(*given)) or outputs[-1])
    rows, compared = [], 0
    arms = policy.description.arms
    for step in range(60):
        before = rows[-1] if rows else None
        first = np.ones(B, bool) if before is None else before["over"]
        over = (rng.random(B) < 0.15) & ~first
        row = {
            "first": first,
            "over": over,
            "reward": np.where(first, 0, rng.normal(0, 2, B)).astype(np.float32),
            "terminated": ~first & (over & (rng.random(B) < 0.5) | (rng.random(B) < 0.1)),  # the latter: a life
        }
        no = torch.zeros(1, B, dtype=torch.bool)
        action, _, extras = one.act(
            Row(
                torch.from_numpy(rng.normal(0, 1, (1, B, 3)).astype(np.float32)),
                torch.from_numpy(first)[None],
                torch.zeros(1, B, dtype=torch.int64),
                {"train": torch.from_numpy(row["reward"])[None]},
                torch.from_numpy(row["terminated"])[None],
                no,
            ),
            (),
        )
        rows.append(row | {"action": action, "intrinsic": extras.get("intrinsic"), "output": outputs[-1]})
        for b in range(B):
            rows[-1].setdefault("age", {})[b] = 0 if first[b] else before["age"][b] + 1
            arm = int(extras["arm"][b])
            beta = 0.0 if arms is None else float(arms.weights()[arm])
            own = None if arms is None else arms.own_discounts()
            gamma = 0.9 if own is None else float(own[arm])
            want = 0.0
            if rows[-1]["age"][b] >= n:
                want = _written_out(rows[step - n :], b, gamma, beta, case, policy.description.rescaling)
                compared += 1
            assert float(extras["priority"][b]) == pytest.approx(want, rel=1e-4, abs=1e-5), (step, b)
    assert compared > 50


def _written_out(rows, b, gamma, beta, case, rescaling):
    squash = (lambda x: x) if rescaling is None else (lambda x: float(rescale(torch.tensor(x), rescaling)))
    plain = (lambda x: x) if rescaling is None else (lambda x: float(unrescale(torch.tensor(x), rescaling)))
    last = rows[-1]["output"]
    rank = last.values[0, b]
    if case == "two networks":
        rank = combined_q(rank, last.intrinsic_values[0, b], beta, rescaling)
    kinds = ["both"] if case != "two networks" else ["extrinsic", "intrinsic"]
    total = 0.0
    for kind in kinds:
        value = lambda output, kind=kind: output.intrinsic_values if kind == "intrinsic" else output.values  # noqa: E731
        target, factor = 0.0, 1.0
        for row in rows[1:]:
            clipped = float(np.clip(row["reward"][b], -1, 1))
            novelty = 0.0 if row["intrinsic"] is None else float(row["intrinsic"][b])
            reward = {"both": clipped + beta * novelty, "extrinsic": clipped, "intrinsic": novelty}[kind]
            target += factor * reward
            factor *= 0.0 if row["terminated"][b] else gamma
        target += factor * plain(float(value(last)[0, b, rank.argmax()]))
        said = float(value(rows[0]["output"])[0, b, rows[0]["action"][b]])
        total += (beta if kind == "intrinsic" else 1.0) * abs(squash(target) - said)
    return total


@pytest.mark.parametrize("discount", [None, 0.9])
def test_no_error_is_computed_on_the_host(discount):
    """A captured decision must not read data there."""
    with FakeTensorMode():
        errors = ActorErrors(ErrorNumbers(0.9, 3, "symlog"), B, torch.device("cpu"), 1e-3, True)
        no, zeros, any_action = torch.zeros(B, dtype=torch.bool), torch.zeros(B), torch.zeros(B, dtype=torch.int64)
        values = torch.zeros(1, B, 4)
        own = None if discount is None else torch.full((B,), discount)
        output = QOutput(values, (), values)
        assert errors.step(no, no, zeros, zeros, output, any_action, any_action, zeros, own).shape == (B,)
