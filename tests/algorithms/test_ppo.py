"""PPO: the loss and the advantages on hand-made trajectories, the bonuses, and a learner that goes on as it was."""

import json
import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from packtrain import trees
from packtrain.acting.sampling import ActorCritic
from packtrain.algorithms.novelty_bonus import CountBonus
from packtrain.algorithms.ppo import PPO, explained_variance, loss, prepare
from packtrain.cli import main
from packtrain.equations.boundaries import boundaries
from packtrain.equations.gae import endless_gae, gae
from packtrain.errors import ConfigError
from packtrain.metrics.reading import read_metrics
from packtrain.networks.novelty import RandomDistillation
from packtrain.runtime import checkpoint
from packtrain.types import Sample, Spec, Trajectory

T, B = 6, 4
SMALL = RandomDistillation((8,), (8,), 4)
BONUSES = ("none", "rnd", "count")


def build(bonus="none", seed=0, use_lstm=False, **values):
    torch.manual_seed(seed)
    description = ActorCritic(hidden_size=8, lstm_size=6, use_lstm=use_lstm, intrinsic_value=bonus != "none")
    network = description.build_network(Spec(Box(-9, 9, (3,)), Discrete(4)))
    settings = PPO(**{"bonus": bonus, "minibatches": 2, "distillation": SMALL, **values})
    return network, settings, settings.build(network, 1000)


def hand_made(network, seed=1):
    """Column 0: one episode; 1: a termination, a reset; 2: a truncation, a reset, a lost life; 3: a filler at the end.

    Observations are few, so that they come again.
    """
    g = torch.Generator().manual_seed(seed)
    first, terminated, truncated = (torch.zeros(n, B, dtype=torch.bool) for n in (T + 1, T, T))
    terminated[1, 1] = first[3, 1] = True
    truncated[2, 2] = first[4, 2] = terminated[4, 2] = True
    terminated[4, 3] = first[6, 3] = True
    action = torch.randint(4, (T + 1, B), generator=g)
    reward = 2 * torch.randn(T + 1, B, generator=g)
    return Trajectory(
        obs=torch.randint(0, 2, (T + 1, B, 3), generator=g).float(),
        first=first,
        action=action[1:],
        reward=reward[1:].masked_fill(first[1:], 0),
        terminated=terminated,
        truncated=truncated,
        last_action=action[:1],
        last_reward={"train": reward[:1]},
        carry=tuple(torch.randn(state.shape, generator=g) for state in network.initial_carry(B)),
        extras={"behaviour_log_prob": math.log(1 / 4) + 0.3 * torch.randn(T, B, generator=g)},
    )


def sample(network, seed=1):
    trajectory = hand_made(network, seed)
    return Sample(trajectory, int((~trajectory.first[1:]).sum()))


def outputs(network, trajectory):
    last_action, last_reward = trajectory.last_inputs()
    return network(trajectory.obs, trajectory.first, last_action, last_reward, trajectory.carry)


@pytest.mark.parametrize("use_lstm", [False, True])
@pytest.mark.parametrize("bonus", ["none", "rnd"])
def test_the_loss_number_by_number(bonus, use_lstm):
    """Each step on its own, with min and max; fillers left out. Mutation: any cost, sign or coefficient."""
    network, settings, _ = build(bonus, use_lstm=use_lstm, entropy_cost=0.1, baseline_cost=0.25)
    intrinsic = torch.rand(T, B) if bonus == "rnd" else None
    trajectory, _ = prepare(network, hand_made(network), intrinsic, settings)
    total, parts = loss(network, trajectory, settings)
    output, extras = outputs(network, trajectory), trajectory.extras
    log_probs = output.parameters[:-1].log_softmax(-1)
    pg = values = entropy = clipped = 0.0
    steps = [(t, b) for t in range(T) for b in range(B) if not trajectory.first[t + 1, b]]
    for t, b in steps:
        ratio = (log_probs[t, b, trajectory.action[t, b]] - extras["behaviour_log_prob"][t, b]).exp().item()
        advantage = extras["advantage"][t, b].item()
        pg -= min(ratio * advantage, max(0.9, min(1.1, ratio)) * advantage)
        clipped += not 0.9 <= ratio <= 1.1
        values += 0.5 * (output.value[t, b] - extras["target"][t, b]).item() ** 2
        if bonus == "rnd":
            values += 0.5 * (output.intrinsic_value[t, b] - extras["intrinsic_target"][t, b]).item() ** 2
        entropy -= (log_probs[t, b].exp() * log_probs[t, b]).sum().item()
    n = len(steps)
    assert n == T * B - 3
    assert total.item() == pytest.approx((pg + 0.25 * values - 0.1 * entropy) / n, rel=1e-4)
    assert parts["pg_loss"].item() == pytest.approx(pg / n, abs=1e-5)
    assert parts["entropy"].item() == pytest.approx(entropy / n, rel=1e-4)
    assert parts["clip_fraction"].item() == pytest.approx(clipped / n)


def test_advantages_of_both_rewards_are_added_and_then_normalised():
    """Mutation: normalising over fillers too; one coefficient left out; ends for the intrinsic stream."""
    network, settings, _ = build("rnd", intrinsic_coefficient=3.0, extrinsic_coefficient=2.0)
    plain, reward = hand_made(network), torch.rand(T, B)
    trajectory, metrics = prepare(network, plain, reward, settings)
    output = outputs(network, plain)
    value, own = output.value.detach(), output.intrinsic_value.detach()
    ends = boundaries(plain.first, plain.terminated, plain.truncated, settings.discounting)
    extrinsic = gae(value[:-1], value[1:], plain.reward, *ends, trace_lambda=0.95)
    intrinsic = endless_gae(own[:-1], own[1:], reward, ends.weight_t, discount=0.99, trace_lambda=0.95)
    steps = ends.weight_t > 0
    together = (2 * extrinsic.advantages + 3 * intrinsic.advantages)[steps]
    want = (together - together.mean()) / together.std(correction=0)
    torch.testing.assert_close(trajectory.extras["advantage"][steps], want, atol=1e-4, rtol=1e-4)
    assert (trajectory.extras["advantage"][~steps] == 0).all()
    torch.testing.assert_close(trajectory.extras["target"], extrinsic.targets)
    torch.testing.assert_close(trajectory.extras["intrinsic_target"], intrinsic.targets)
    torch.testing.assert_close(metrics["intrinsic_reward"], reward[steps].mean())


def test_explained_variance():
    targets, weight = torch.tensor([[1.0, 2.0, 3.0, 99.0]]), torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    assert explained_variance(targets, targets + 5, weight).item() == pytest.approx(1)
    assert explained_variance(targets, torch.zeros(1, 4), weight).item() == pytest.approx(0)
    assert explained_variance(targets, -targets, weight).item() == pytest.approx(-3)
    assert explained_variance(torch.ones(1, 4), targets, weight).item() == 0


@pytest.mark.parametrize("bonus", BONUSES)
def test_an_update_makes_the_configured_number_of_epochs(bonus):
    network, _, learner = build(bonus, epochs=3)
    before = [leaf.clone() for leaf in network.parameters()]
    metrics = learner.update(sample(network))
    assert learner._gradient.updates == 3 * 2 and (learner.updates, learner.steps) == (1, T * B - 3)
    assert all(not torch.equal(old, new) for old, new in zip(before, network.parameters(), strict=True))
    assert all(math.isfinite(float(value)) for value in metrics.values())
    named = {"pg_loss", "value_loss", "entropy", "clip_fraction", "approx_kl", "explained_variance", "grad_norm"}
    named |= {"intrinsic_value_loss", "intrinsic_reward"} if bonus != "none" else set()
    assert named <= set(metrics) and metrics["learning_rate"] == 0.001


def test_every_epoch_sees_every_unroll_once():
    network, _, learner = build(epochs=2)
    seen = []
    update = learner._gradient.update
    learner._gradient.update = lambda s: (seen.append(s.trajectory), update(s))[1]
    given = sample(network)
    learner.update(given)
    want = sorted(given.trajectory.reward[:, b].tolist() for b in range(B))
    for epoch in (seen[:2], seen[2:]):
        rewards = torch.cat([minibatch.reward for minibatch in epoch], 1)
        assert sorted(rewards.T.tolist()) == want
    assert not torch.equal(seen[0].reward, seen[2].reward), "another order"


@pytest.mark.parametrize("bonus", BONUSES)
def test_filler_rows_teach_nothing(bonus):
    """Actions, rewards and probabilities of fillers do not matter. (The observation of a filler row is that of the
    step before; the one after it, a reset's, is a step's too.) Mutation: weights left out anywhere."""
    after = []
    for junk in (0.0, 7.0):
        network, _, learner = build(bonus)
        given = sample(network)
        filler = given.trajectory.first[1:]
        given.trajectory.reward[filler] += junk
        given.trajectory.extras["behaviour_log_prob"][filler] -= junk
        learner.update(given)
        after.append([leaf.clone() for leaf in network.parameters()])
    for one, other in zip(*after, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("bonus", BONUSES)
def test_a_learner_that_is_loaded_goes_on_exactly(bonus):
    """Mutation: the generator, the moments, the scale, the counts or the predictor left out of the state."""
    network, _, learner = build(bonus, predictor_share=0.5)
    for seed in range(3):
        learner.update(sample(network, seed))
    state = trees.map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, learner.state_dict())
    other, _, resumed = build(bonus, seed=9, predictor_share=0.5)
    resumed.load_state_dict(state)
    for seed in range(3, 6):
        one, two = learner.update(sample(network, seed)), resumed.update(sample(other, seed))
        assert {k: float(v) for k, v in one.items()} == {k: float(v) for k, v in two.items()}
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), other.parameters(), strict=True))
    assert resumed.steps == learner.steps and resumed.updates == 6


def test_a_saved_state_does_not_change_when_learning_goes_on():
    """It is written in the background. Mutation: counts or weights that are not copied."""
    for bonus in BONUSES:
        network, _, learner = build(bonus)
        learner.update(sample(network))
        state = learner.state_dict()
        copy = trees.map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, state)
        learner.update(sample(network))
        for one, other in zip(trees.flatten(state), trees.flatten(copy), strict=True):
            assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))


def test_rnd_learns_what_it_is_shown_and_its_target_stays():
    """What is shown often becomes less new than what never was. Mutation: no steps of the predictor."""
    network, _, learner = build("rnd", learning_rate=0.03)
    bonus = learner._bonus
    target = [leaf.clone() for leaf in bonus.network.target.parameters()]
    begin = None
    for _ in range(15):
        metrics = learner.update(sample(network))
        begin = begin or metrics["predictor_loss"]
    assert metrics["predictor_loss"] < begin / 10
    new = torch.full((1, 1, 3), 5.0)
    assert bonus.novelty(new, torch.zeros(1, 1)) > 10 * metrics["predictor_loss"]
    assert all(torch.equal(a, b) for a, b in zip(target, bonus.network.target.parameters(), strict=True))


def test_the_predictor_learns_from_equal_observations_as_from_each_of_them():
    """Its gradient is that of the plain mean over steps. Mutation: every different observation counting once."""
    network, _, learner = build("rnd")
    bonus, trajectory = learner._bonus, hand_made(network)
    weight = (~trajectory.first[1:]).float()
    error = bonus.novelty(trajectory.obs[1:], weight)
    assert len(bonus._inputs) <= 8 < T * B, "there are eight observations in all"
    flat = bonus._inputs[bonus._which]
    torch.testing.assert_close(bonus._moments.mean.float(), trajectory.obs[1:][weight > 0].mean(0))
    prediction, target = bonus.network(flat)
    squared = (prediction - target).square().mean(-1)
    torch.testing.assert_close(error, squared.detach())
    chosen = torch.tensor([2, 0])
    want = (squared * weight)[:, chosen].sum() / weight[:, chosen].sum()
    gradient = torch.autograd.grad(want, list(bonus.network.predictor.parameters()))
    got = bonus.learn(chosen, torch.Generator())
    torch.testing.assert_close(got["predictor_loss"], want.detach())
    for leaf, wanted in zip(bonus.network.predictor.parameters(), gradient, strict=True):
        torch.testing.assert_close(leaf.grad, wanted)


def test_a_share_of_the_steps_teaches_the_predictor():
    network, _, learner = build("rnd", predictor_share=0.25)
    counted = []
    update = learner._bonus._gradient.update
    learner._bonus._gradient.update = lambda s: (counted.append(float(s.trajectory[2].sum())), update(s))[1]
    for seed in range(12):
        learner.update(sample(network, seed))
    shown = 12 * 4 * (T * B - 3)
    assert sum(counted) / shown == pytest.approx(0.25, abs=0.05)


def test_visits_are_counted_like_in_a_dictionary():
    """Mutation: no memory between calls; equal keys of one call numbered alike."""
    rng, bonus, seen = np.random.default_rng(0), CountBonus(), {}
    for _ in range(30):
        keys = rng.integers(0, 40, rng.integers(0, 25), dtype=np.uint64) << np.uint64(58)  # large ones among them
        want = []
        for key in keys.tolist():
            seen[key] = seen.get(key, 0) + 1
            want.append(seen[key])
        assert bonus.visit(keys).tolist() == want
    assert bonus.extent() == {"distinct_observations": len(seen)}


def test_count_bonus_of_observations():
    """Fillers are no visits. Mutation: counting them."""
    obs = torch.tensor([[[1.0], [2.0]], [[1.0], [2.0]], [[1.0], [3.0]]])
    weight = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    bonus = CountBonus()
    got = bonus.novelty(obs, weight)
    torch.testing.assert_close(got[:, 0], torch.tensor([1, 2**-0.5, 3**-0.5]))
    torch.testing.assert_close(got[[0, 2], 1], torch.tensor([1.0, 1.0]))
    assert sorted(bonus.state_dict()["visits"].tolist()) == [1, 1, 3]


def test_the_bonus_is_that_of_where_an_action_led():
    """The row after the action, not its own. Mutation: obs[:-1]."""
    network, _, learner = build("count")
    asked = []
    novelty = learner._bonus.novelty
    learner._bonus.novelty = lambda obs, weight: (asked.append(obs), novelty(obs, weight))[1]
    given = sample(network)
    learner.update(given)
    assert torch.equal(asked[0], given.trajectory.obs[1:])


def test_the_rate_falls_with_decisions_not_with_optimiser_steps():
    network, _, learner = build(lr_schedule="linear")
    rates = [learner.update(sample(network))["learning_rate"] for _ in range(3)]
    per_batch = (T * B - 3) / 1000
    assert rates == pytest.approx([0.001 * (1 - n * per_batch) for n in range(3)])


@pytest.mark.parametrize(
    "values, message",
    [
        ({"minibatches": 0}, "PPO.minibatches = 0 must be at least 1"),
        ({"epochs": 0}, "PPO.epochs = 0 must be at least 1"),
        ({"clip": 0.0}, "PPO.clip = 0.0 must be above 0"),
        ({"clip": 1.0}, "PPO.clip = 1.0 must be below 1"),
        ({"predictor_share": 1.5}, "PPO.predictor_share = 1.5 must be at most 1"),
        ({"discounting": 1.1}, "PPO.discounting = 1.1 must lie between 0 and 1"),
        ({"intrinsic_coefficient": -1.0}, "PPO.intrinsic_coefficient = -1.0 must not be negative"),
        ({"grad_norm_clipping": 0.0}, "PPO.grad_norm_clipping = 0.0 must be above 0"),
    ],
)
def test_bad_numbers_are_one_clear_line(values, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        PPO(**values)


def test_bad_sizes_of_the_networks_are_one_clear_line():
    with pytest.raises(ConfigError, match="^RandomDistillation.representation = 0 must be at least 1"):
        RandomDistillation(representation=0)
    with pytest.raises(ConfigError, match=r"^RandomDistillation.target_sizes = \(0,\) must be at least 1 each"):
        RandomDistillation(target_sizes=(0,))


def test_a_bonus_and_a_second_value_head_go_together():
    spec = Spec(Box(-9, 9, (3,)), Discrete(4))
    with pytest.raises(ConfigError, match="needs a second value head: set ActorCritic.intrinsic_value = True"):
        PPO(bonus="rnd").build(ActorCritic().build_network(spec), 1)
    with pytest.raises(ConfigError, match="has no second value: set ActorCritic.intrinsic_value = False"):
        PPO().build(ActorCritic(intrinsic_value=True).build_network(spec), 1)


def test_more_minibatches_than_unrolls_are_refused():
    network, _, learner = build(minibatches=5)
    with pytest.raises(ConfigError, match="PPO.minibatches = 5 is more than the 4 unrolls of a batch"):
        learner.update(sample(network))


CLOCKED = ("wall_s", "steps_per_second", "actor_busy", "learner_busy", "rss_mb")


def train(folder, config, steps):
    sizes = ["--num_actors", "4", "--batch_size", "4", "--unroll_length", "10", "--hidden_size", "8"]
    more = ["--disks", "2", "--log_every", "1", "--runtime", "serial", "--episode_time_limit", "7", "--eval_every", "0"]
    if "rnd" in config:
        more += ["--predictor_sizes", "(8,)", "--target_sizes", "(8,)", "--predictor_share", "0.5"]
    assert main(["train", config, "--output_dir", str(folder), "--total_steps", str(steps), *sizes, *more]) == 0


@pytest.mark.parametrize("config", ["tbv/ppo_hanoi", "tbv/rnd_hanoi", "tbv/count_hanoi"])
def test_a_run_that_is_resumed_equals_one_that_was_not(tmp_path, config):
    """Through checkpoints on disk: weights and rows, of which the end of a run makes one more where none is due.

    Mutation: any part of the learner left out of its state.
    """
    train(tmp_path / "straight", config, 240)
    train(tmp_path / "stopped", config, 120)
    train(tmp_path / "stopped", config, 240)
    found = []
    for name in ("straight", "stopped"):
        rows = [{k: v for k, v in row.items() if k not in CLOCKED} for row in read_metrics(tmp_path / name)]
        step, state = checkpoint.load_newest(tmp_path / name / "checkpoints")
        learner = trees.map(np.asarray, [state["weights"], state["learners"]])
        found.append((rows, step, json.dumps(trees.map(lambda leaf: leaf.tolist(), learner), sort_keys=True)))
    assert found[0][1] >= 240 and found[0] == found[1]
