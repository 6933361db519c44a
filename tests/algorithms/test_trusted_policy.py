"""The penalty for diverging from a trusted policy: its value by brute force, and its effect on what is learned."""

import json

import gymnasium as gym
import pytest
import torch
from safetensors.torch import save_file

from packtrain.acting.sampling import ActorCritic
from packtrain.algorithms.trusted_policy import TrustedPolicy, divergence
from packtrain.cli import main
from packtrain.equations.divergences import categorical_chi_square
from packtrain.errors import ConfigError
from packtrain.networks.distributions import Categorical, Gaussian, MultiCategorical
from packtrain.types import Spec

RUN = ["train", "misspecification/ppo_counterfeit", "--runtime", "serial", "--total_steps", "60000"]


def test_chi_square_is_the_sum_over_actions():
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    wanted = sum((float(a) - float(b)) ** 2 / float(b) for a, b in zip(p, q, strict=True))
    assert float(categorical_chi_square(p.log(), q.log())) == pytest.approx(wanted, rel=1e-5)


def test_chi_square_of_an_action_that_only_one_policy_takes():
    p, q = torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5])
    assert float(categorical_chi_square(p.log(), q.log())) == pytest.approx(1.0)
    assert float(categorical_chi_square(q.log(), p.log())) == float("inf")


@pytest.mark.parametrize("kind", ["kl", "chi_square"])
def test_independent_choices_diverge_as_their_joint_distribution(kind):
    generator = torch.Generator().manual_seed(0)
    p, q = torch.randn(2, 5, generator=generator)
    joint = [(x[:2].softmax(-1)[:, None] * x[2:].softmax(-1)).flatten().log() for x in (p, q)]
    found = divergence(MultiCategorical((2, 3)), p, q, kind)
    assert float(found) == pytest.approx(float(divergence(Categorical(6), *joint, kind)), rel=1e-5)


@pytest.mark.parametrize("kind", ["kl", "chi_square"])
@pytest.mark.parametrize("distribution", [Categorical(3), MultiCategorical((3, 3))], ids=["one", "two"])
def test_the_gradient_norm_of_nearly_disjoint_policies_is_finite(kind, distribution):
    """1 + χ² is about e^120 and, of two choices, e^240. Training would stop at an infinite gradient norm."""
    p, q = torch.tensor([3.0, -3.0, 0.0]), torch.tensor([-60.0, 60.0, 0.0])
    choices = len(getattr(distribution, "nvec", (3,)))
    p, q = p.repeat(choices).requires_grad_(), q.repeat(choices)
    penalty = divergence(distribution, p, q, kind)
    penalty.backward()
    norm = torch.linalg.vector_norm(p.grad)
    assert penalty.isfinite() and norm.isfinite() and norm > 0
    with torch.no_grad():
        closer = divergence(distribution, p - p.grad / norm, q, kind)
    assert closer < penalty, "the gradient leads towards the trusted policy"


def test_gaussians_diverge_by_the_closed_form():
    p, q = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 0.5])  # mean, log standard deviation
    wanted = 0.5 + (1 + 1) / (2 * torch.tensor(1.0).exp()) - 0.5
    assert float(divergence(Gaussian((1,)), p, q, "kl")) == pytest.approx(float(wanted), rel=1e-5)


def network(seed=0):
    torch.manual_seed(seed)
    spec = Spec(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2))
    return ActorCritic(hidden_size=8).build_network(spec)


def test_weights_of_another_network_are_refused(tmp_path):
    save_file({"other": torch.zeros(1)}, tmp_path / "w.safetensors")
    with pytest.raises(ConfigError, match=r"TrustedPolicy\.weights"):
        TrustedPolicy(weights=str(tmp_path / "w.safetensors")).freeze(network())


def test_the_penalty_is_zero_for_the_trusted_policy_itself(tmp_path):
    own = network()
    save_file(own.state_dict(), tmp_path / "w.safetensors")
    frozen = TrustedPolicy(weights=str(tmp_path / "w.safetensors")).freeze(own)
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    assert all(torch.equal(a, b) for a, b in zip(own.parameters(), frozen.parameters(), strict=True))


def last_evaluation(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "eval"][-1]


@pytest.mark.learning
def test_a_penalty_keeps_a_policy_from_forging_and_no_penalty_does_not(tmp_path):
    """Counterfeit, trained on coins. Chance: true return 10; trusted walk 20; forging −37. Mutation: coefficient 0."""
    trusted, guarded, free = tmp_path / "trusted", tmp_path / "guarded", tmp_path / "free"
    assert main([*RUN, "--proxy", "true", "--output_dir", str(trusted)]) == 0
    newest = max((trusted / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))
    weights = newest / "weights.safetensors"
    assert main([*RUN, "--trusted_weights", str(weights), "--output_dir", str(guarded)]) == 0
    assert main([*RUN, "--output_dir", str(free)]) == 0
    assert last_evaluation(guarded)["reward/true"] >= 19
    assert last_evaluation(free)["reward/true"] < 0 and last_evaluation(free)["reward/coins"] > 40
