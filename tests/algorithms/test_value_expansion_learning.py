"""Value expansion: targets and losses against slow twins that follow one candidate at a time, and who is moved when."""

import itertools
import math

import gymnasium as gym
import numpy as np
import pytest
import torch

from packtrain.algorithms import value_expansion
from packtrain.algorithms.dynamics import DynamicsLearning
from packtrain.algorithms.targets import Mve, MveMean, MveTdLambda, OneStep, Steve, SteveCov
from packtrain.algorithms.value_expansion import (
    ValueExpansion,
    ValueRule,
    critic_losses,
    expand,
    imagine,
    policy_losses,
)
from packtrain.equations.value_expansion import expanded_returns, model_use, steve_targets
from packtrain.errors import ConfigError
from packtrain.memory.replay import Replay
from packtrain.networks.control import Control
from packtrain.networks.dynamics import NARROWEST, WIDEST, Dynamics
from packtrain.networks.stacked import join
from packtrain.types import Spec

OBS, ACTIONS, RUNS, ROWS, HORIZON = 3, 2, 2, 6, 2
MEMBERS, JUDGES, CRITICS = 2, 3, 3
SPEC = Spec(gym.spaces.Box(-np.inf, np.inf, (OBS,)), gym.spaces.Box(-1, 1, (ACTIONS,)))
GAMMA, KAPPA = 0.9, 0.7
TARGETS = {
    "one_step": OneStep(),
    "mve_tdk": Mve(HORIZON),
    "mve": Mve(HORIZON, tdk_trick=False),
    "mean": MveMean(HORIZON),
    "mean_tdk": MveMean(HORIZON, tdk_trick=True),
    "lambda": MveTdLambda(HORIZON, 0.6),
    "lambda_tdk": MveTdLambda(HORIZON, 0.6, tdk_trick=True),
    "steve": Steve(HORIZON),
    "steve_tdk": Steve(HORIZON, tdk_trick=True),
    "cov": SteveCov(HORIZON),
}


def build(seed=0, core="ddpg", critics=CRITICS, model=True, **options):
    """A small network of one run in which no part is a copy of another."""
    torch.manual_seed(seed)
    dynamics = Dynamics(
        **{
            "transitions": MEMBERS,
            "rewards": JUDGES,
            "hidden_size": 5,
            "num_layers": 1,
            "aux_hidden_size": 4,
            "aux_num_layers": 1,
            **options,
        }
    )
    sizes = Control(6, 1, critics, stochastic=core == "sac", dynamics=dynamics if model else None)
    network = sizes.build(SPEC)
    with torch.no_grad():
        for leaf in network.parameters():
            leaf.add_(0.2 * torch.randn_like(leaf))
        if network.frozen is not None and network.frozen.sizes.normalise:
            for name in ("obs_mean", "change_mean", "obs_std", "change_std", "reward_scale"):
                buffer = getattr(network.frozen, name)
                buffer.copy_(torch.rand_like(buffer) + 0.5)
    return network


def settings(target=None, core="ddpg", **options):
    numbers = {"batch_size": ROWS, "discount": GAMMA, "reward_scale": KAPPA, **options}
    return ValueExpansion(target=target or OneStep(), core=core, **numbers)


def steps(count=None, seed=0, size=ROWS):
    """Real steps [count, B, ...] as a memory gives them; row 1 ended the task."""
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(count or RUNS, size, *shape, generator=generator)  # noqa: E731
    ended = torch.zeros(count or RUNS, size, dtype=torch.uint8)
    ended[:, 1] = 1
    return {
        "obs": normal(OBS),
        "action": torch.tanh(normal(ACTIONS)),
        "reward": normal(),
        "after": normal(OBS),
        "terminated": ended,
        "truncated": torch.zeros_like(ended),
        "row": torch.zeros(count or RUNS, size, dtype=torch.int64),
    }


def scene(target, core="ddpg", rows="all", **options):
    """R runs in one network, settings, and a batch with all that is random, in float64."""
    networks = [build(seed, core, **options).double() for seed in range(RUNS)]
    network = join(networks)
    numbers = settings(target, core, rows=rows)
    drawn = ValueRule(numbers, networks[0]).draws(RUNS, torch.Generator().manual_seed(3))  # a draw for each run
    batch = {**steps(), **drawn}
    double = {name: leaf.double() if leaf.is_floating_point() else leaf for name, leaf in batch.items()}
    return network, numbers, double


# -- the slow twin: one run, one row, one candidate at a time, on NumPy vectors


def ask(network, run, member, x):
    """One member of one run on one vector."""
    k = run * network.members + member
    for layer, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        x = x @ weight[k].detach().numpy() + bias[k, 0].detach().numpy()
        x = np.maximum(x, 0) if layer + 1 < len(network.weights) else x
    return x


def softplus(x):
    return np.log1p(np.exp(x))


class Path:
    """What transition member m of a run imagines after row b: x, a, log π, δ, and ρ of every judge."""

    def __init__(self, network, numbers, batch, run, b, m):
        horizon, model = numbers.target.horizon, network.frozen
        get = lambda name: batch[name][run].numpy()  # noqa: E731
        self.x, self.a, self.surprise, self.value = [get("after")[b]], [], [], []
        self.delta, self.rho = [float(get("terminated")[b])], [[float(get("reward")[b])] * JUDGES]
        temperature = math.exp(network.log_temperature[run].item()) if numbers.core == "sac" else 0.0
        for t in range(horizon + 1):
            x = self.x[t]
            if numbers.core == "ddpg":
                a, log_prob = np.tanh(ask(network.policy, run, 0, x)), 0.0
            elif numbers.core == "td3":
                noise = np.clip(0.2 * get("action_noise")[t, b], -0.5, 0.5)
                a, log_prob = np.clip(np.tanh(ask(network.target_policy, run, 0, x)) + noise, -1, 1), 0.0
            else:
                said, noise = ask(network.policy, run, 0, x), get("action_noise")[t, b]
                std = np.exp(-5 + 3.5 * (np.tanh(said[ACTIONS:]) + 1))
                before = said[:ACTIONS] + std * noise
                normal = -0.5 * noise**2 - np.log(std) - 0.5 * math.log(2 * math.pi)
                cosh = np.logaddexp(before, -before) - math.log(2)  # its logarithm; 1 − tanh² = cosh⁻²
                a, log_prob = np.tanh(before), float((normal + 2 * cosh).sum())
            self.a.append(a)
            self.value.append(critics_say(network, numbers, batch, run, x, a))
            self.surprise.append(temperature * log_prob)
            if t == horizon:
                return
            unit = lambda s: s  # noqa: E731
            moments = {name: getattr(model, name)[run].numpy() for name in ("obs_mean", "obs_std")}
            if model.sizes.normalise:
                unit = lambda s, of=moments: (s - of["obs_mean"][0]) / of["obs_std"][0]  # noqa: E731
            moved = ask(model.transition, run, m, np.concatenate([unit(x), a]))
            if model.sizes.probabilistic:
                moved, wide = moved[:OBS], moved[OBS:]
                wide = NARROWEST + softplus(WIDEST - softplus(WIDEST - wide) - NARROWEST)
                moved = moved + np.exp(wide / 2) * get("model_noise")[t, m, b]
            after = x + moved * model.change_std[run, 0].numpy() + model.change_mean[run, 0].numpy()
            step = np.concatenate([unit(after), unit(x), a])
            self.x.append(after)
            self.delta.append(1 / (1 + math.exp(-ask(model.termination, run, m, step)[0])))
            scale = model.reward_scale[run, 0].item()
            self.rho.append([scale * ask(model.reward, run, judge, step)[0] for judge in range(JUDGES)])

    def reached(self, i):
        """c_{i−1}."""
        return math.prod(1 - delta for delta in self.delta[:i])


def critics_say(network, numbers, batch, run, x, a):
    """Q'_q for all q; under td3 and sac the lesser of the q-th in a random order and the one before it."""
    said = [ask(network.target, run, n, np.concatenate([x, a]))[0] for n in range(network.target.members)]
    if numbers.core == "ddpg":
        return said
    order = batch["critics"][run].tolist()
    return [min(said[order[q]], said[order[q - 1]]) for q in range(len(order))]


def candidate(numbers, path, judge, q, i, j):
    """T[i, j](m, l, q)."""
    if numbers.core == "sac":  # soft Q = r + γ (1 − δ) (Q − α log π), followed through the model
        after = path.value[i][q] if i == j else candidate(numbers, path, judge, q, i + 1, j)
        return KAPPA * path.rho[i][judge] + GAMMA * (1 - path.delta[i]) * (after - path.surprise[i])
    going = lambda t: math.prod(1 - delta for delta in path.delta[i : t + 1])  # noqa: E731  c_t / c_{i−1}
    rewards = sum(GAMMA ** (t - i) * going(t - 1) * path.rho[t][judge] for t in range(i, j + 1))
    return KAPPA * rewards + GAMMA ** (j - i + 1) * going(j) * path.value[j][q]


def weights_by_hand(target, samples):
    """w[i, j] for j = i … H of candidates [depth][sample]."""
    depths, last = len(samples), len(samples) - 1
    kind = type(target)
    if kind in (OneStep, Mve):
        weights = [float(j == last) for j in range(depths)]
    elif kind is MveMean:
        weights = [1.0] * depths
    elif kind is MveTdLambda:
        weights = [(1 - target.trace_lambda if j < last else 1.0) * target.trace_lambda**j for j in range(depths)]
    elif kind is Steve:
        weights = [1 / (np.var(each) + 1e-8) for each in samples]
    else:
        apart = np.array([np.array(each) - np.mean(each) for each in samples])
        weights = np.linalg.solve(apart @ apart.T + 1e-3 * np.eye(depths), np.ones(depths)).tolist()
    return [weight / sum(weights) for weight in weights]


def twin(network, numbers, batch):
    """Targets [S][R][B], the weights of their depths, their reach, and the critic's loss [R] for who is asked."""
    horizon, critics = numbers.target.horizon, network.target.members
    members = network.frozen.transition.members if horizon else 1
    starts = horizon + 1 if numbers.target.tdk_trick else 1
    target, reach = (np.zeros((starts, RUNS, ROWS)) for _ in range(2))
    weight = np.zeros((starts, horizon + 1, RUNS, ROWS))
    loss = np.zeros(RUNS)
    for run, b in itertools.product(range(RUNS), range(ROWS)):
        paths = [Path(network, numbers, batch, run, b, m) for m in range(members)]
        for i in range(starts):
            every = list(itertools.product(paths, range(JUDGES if horizon else 1), range(critics)))
            samples = [[candidate(numbers, *one, i, j) for one in every] for j in range(i, horizon + 1)]
            weights = weights_by_hand(numbers.target, samples)
            weight[i, i:, run, b] = weights
            target[i, run, b] = sum(w * np.mean(each) for w, each in zip(weights, samples, strict=True))
            reach[i, run, b] = np.mean([path.reached(i) for path in paths])
            asked = {
                "split": [b // (ROWS // critics)],
                "random": [batch["member"][run, b].item()] if numbers.rows == "random" else None,
                "all": range(critics),
            }[numbers.rows]
            for n in asked:
                real = (batch["obs"][run, b].numpy(), batch["action"][run, b].numpy())
                pairs = [real] if i == 0 else [(path.x[i - 1], path.a[i - 1]) for path in paths]
                guess = np.mean([ask(network.critic, run, n, np.concatenate(pair))[0] for pair in pairs])
                error = reach[i, run, b] * 0.5 * (guess - target[i, run, b]) ** 2
                loss[run] += error / (ROWS * starts * len(asked))
    return target, weight, reach, loss


def check(network, numbers, batch):
    imagined, targets = expand(network, numbers, batch)
    loss, value_mean = critic_losses(network, numbers, batch, imagined, targets)
    target, weight, reach, want_loss = twin(network, numbers, batch)
    close = lambda got, want: np.testing.assert_allclose(got.detach().numpy(), want, rtol=1e-7, atol=1e-8)  # noqa: E731
    close(targets.target, target)
    close(targets.weight, weight)
    close(targets.reach, reach)
    close(loss, want_loss)
    assert value_mean.shape == (RUNS,) and not targets.target.requires_grad
    return targets


@pytest.mark.parametrize(
    "target, rows",
    [(name, "all") for name in TARGETS]
    + list(itertools.product(["one_step", "mve_tdk", "steve"], ["split", "random"])),
)
def test_targets_and_loss_of_every_candidate_by_itself(target, rows):
    """Mutations: the live model, critic or policy in place of its copy; γ once too often; judge l only with member l;
    depths counted from 1; a loss without reach; imagined pairs of one member; rows dealt to the wrong critic.
    """
    network, numbers, batch = scene(TARGETS[target], rows=rows)
    targets = check(network, numbers, batch)
    if target == "steve":  # no depth takes all: else its mixture would not be tested
        assert targets.weight[0, :, :, [0, 2, 3, 4, 5]].amax() < 0.999


@pytest.mark.parametrize("core", ["td3", "sac"])
@pytest.mark.parametrize("target", ["one_step", "mve_tdk", "steve", "steve_tdk"])
def test_other_cores_under_the_same_targets(core, target):
    """Soft values follow their own recursion; critics are taken in pairs.

    Mutations: entropy not discounted, or not divided by κ; the entropy of an imagined pair's own action in its target;
    td3's noise not clipped, or its fast policy; the greater of a pair; a pair with itself.
    """
    network, numbers, batch = scene(TARGETS[target], core)
    check(network, numbers, batch)


@pytest.mark.parametrize("core", ["ddpg", "sac"])
def test_a_probabilistic_model_of_elites_is_sampled(core):
    """Mutations: the same noise at every depth or for every member; raw units; as many members as the model has."""
    options = {"probabilistic": True, "normalise": True, "transitions": 3, "elites": 2}
    network, numbers, batch = scene(TARGETS["steve_tdk"], core, **options)
    assert batch["model_noise"].shape == (RUNS, HORIZON, 2, ROWS, OBS)
    check(network, numbers, batch)


@pytest.mark.parametrize("core", ["td3", "sac"])
def test_members_that_are_equal_have_no_variance_under_a_stochastic_policy(core):
    """Variance is what models and critics disagree on, not what the policy samples: weights of depths are uniform.

    Mutation: an action sample for each member.
    """
    network, numbers, batch = scene(TARGETS["steve"], core)
    with torch.no_grad():
        for part in (network.frozen, network.target):
            for leaf in part.parameters():
                members = leaf.unflatten(0, (RUNS, -1))
                members.copy_(members[:, :1].expand_as(members).clone())
    imagined, targets = expand(network, numbers, batch)
    for action in imagined.action:
        assert (action == action[:, :1]).all() and action.std(2).min() > 0
    torch.testing.assert_close(targets.weight, torch.full_like(targets.weight, 1 / (HORIZON + 1)), atol=1e-6, rtol=0)
    other = expand(network, numbers, {**batch, "action_noise": -batch["action_noise"]})[1]
    assert (other.target - targets.target).abs().max() > 1e-3, "actions are sampled"


def test_td3_noise_is_clipped():
    """Mutation: no clip, which the twin above would see only where noise is large enough."""
    network, numbers, batch = scene(OneStep(), "td3")
    batch["action_noise"] = torch.full_like(batch["action_noise"], 50.0)
    greedy = network.act(network.target_policy, batch["after"])
    got = imagine(network, numbers, batch).action[0][:, 0]
    torch.testing.assert_close(got, (greedy + 0.5).clamp(max=1))
    assert (got < 1).any() and (got == 1).any()


def test_two_critics_are_td3s_twins():
    """The mean over both pairs is the lesser of the two. Mutation: the mean of the critics."""
    network, numbers, batch = scene(OneStep(), "td3", critics=2)
    imagined, targets = expand(network, numbers, batch)
    said = network.value(network.target, batch["after"], imagined.action[0][:, 0])
    going = GAMMA * (1 - batch["terminated"].double())
    torch.testing.assert_close(targets.target[0], KAPPA * batch["reward"] + going * said.amin(1))
    alone, numbers, batch = scene(OneStep(), "td3", critics=1)
    said = alone.value(alone.target, batch["after"], imagine(alone, numbers, batch).action[0][:, 0])
    torch.testing.assert_close(expand(alone, numbers, batch)[1].target[0], KAPPA * batch["reward"] + going * said[:, 0])


@pytest.mark.parametrize("core", ["ddpg", "td3", "sac"])
def test_rows_of_several_steps_ask_the_critic_after_the_last(core):
    """Mutation: γ of one step for all of them."""
    network, numbers, batch = scene(OneStep(), core)
    once = expand(network, numbers, batch)[1].target[0] - KAPPA * batch["reward"]
    steps = 1 + torch.arange(RUNS * ROWS).reshape(RUNS, ROWS) % 3
    rewards = torch.randn(RUNS, ROWS, 3, dtype=torch.float64)
    rewards[torch.arange(3) >= steps[..., None]] = 0
    found = expand(network, numbers, {**batch, "reward": rewards, "steps": steps})[1].target[0]
    paid = sum(GAMMA**k * rewards[..., k] for k in range(3))
    torch.testing.assert_close(found, KAPPA * paid + once * GAMMA ** (steps - 1).double())


def test_without_depth_steve_is_ddpg_with_an_ensemble():
    """Check (c) of the specification."""
    network, numbers, batch = scene(OneStep())
    imagined, targets = expand(network, numbers, batch)
    inputs = (batch["reward"], imagined.termination, imagined.reward, imagined.value)
    steve = steve_targets(expanded_returns(*inputs, discount=GAMMA, reward_scale=KAPPA))
    torch.testing.assert_close(steve.target, targets.target)
    said = network.value(network.target, batch["after"], network.act(network.policy, batch["after"])).mean(1)
    going = GAMMA * (1 - batch["terminated"].double())
    torch.testing.assert_close(targets.target, (KAPPA * batch["reward"] + going * said)[None])


def test_with_a_perfect_model_of_one_member_mve_is_the_return_and_a_bootstrap():
    """Check (d): rewards of H + 1 true steps and the critic after them. The negative control errs by 1 %."""
    torch.manual_seed(0)
    drift = 0.1 * torch.randn(OBS + ACTIONS, OBS, dtype=torch.float64)
    pays = torch.randn(2 * OBS + ACTIONS, 1, dtype=torch.float64)
    options = {"transitions": 1, "rewards": 1, "num_layers": 0, "aux_num_layers": 0, "critics": 1}
    network, numbers, batch = scene(Mve(4, tdk_trick=False), **options)
    with torch.no_grad():
        for part, weight, bias in (
            (network.frozen.transition, drift, 0.0),
            (network.frozen.reward, pays, 0.0),
            (network.frozen.termination, torch.zeros_like(pays), -40.0),
        ):
            part.weights[0].copy_(weight.expand_as(part.weights[0]))
            part.biases[0].fill_(bias)
    s, total, discount = batch["after"], KAPPA * batch["reward"], GAMMA * (1 - batch["terminated"].double())
    for _ in range(4):  # the true system
        a = network.act(network.policy, s)
        after = s + torch.cat([s, a], -1) @ drift
        total = total + discount * KAPPA * (torch.cat([after, s, a], -1) @ pays)[..., 0]
        s, discount = after, discount * GAMMA
    bootstrap = network.value(network.target, s, network.act(network.policy, s))[:, 0]
    want = total + discount * bootstrap
    torch.testing.assert_close(expand(network, numbers, batch)[1].target[0], want)
    network.frozen.transition.weights[0].mul_(1.01)
    assert (expand(network, numbers, batch)[1].target[0] - want).abs().max() > 1e-3


@pytest.mark.parametrize("core", ["ddpg", "td3", "sac"])
@pytest.mark.parametrize("target", list(TARGETS))
def test_after_a_real_end_the_target_is_the_reward(target, core):
    """Mutation: the end left out of the rollout, or its entropy paid."""
    network, numbers, batch = scene(TARGETS[target], core)
    _, targets = expand(network, numbers, batch)
    torch.testing.assert_close(targets.target[0, :, 1], KAPPA * batch["reward"][:, 1])
    assert (targets.target[0, :, 0] - KAPPA * batch["reward"][:, 0]).abs().max() > 0.1
    if target == "steve":
        torch.testing.assert_close(targets.weight[0, :, :, 1], torch.full((3, RUNS), 1 / 3, dtype=torch.float64))
        assert (model_use(targets)[:, 1] > 0.66).all()


# -- the policy


def test_the_policys_losses_by_hand():
    """−mean Q of all critics at tanh π, and 0.001 mean π². Mutations: the target critic; one critic; the tanh squared;
    td3 with the regulariser.
    """
    for core in ("ddpg", "td3"):
        network, numbers, batch = scene(OneStep(), core)
        loss, regulariser, log_prob = policy_losses(network, numbers, batch)
        for run in range(RUNS):
            said = [ask(network.policy, run, 0, s) for s in batch["obs"][run].numpy()]
            pairs = zip(batch["obs"][run].numpy(), said, strict=True)
            worth = [ask(network.critic, run, n, np.concatenate([s, np.tanh(a)])) for s, a in pairs for n in range(3)]
            np.testing.assert_allclose(loss[run].item(), -np.mean(worth))
            want = 0.001 * np.mean(np.square(said)) if core == "ddpg" else 0.0
            np.testing.assert_allclose(regulariser[run].item(), want)
        assert not log_prob.any() and log_prob.shape == (RUNS, ROWS)


def test_sacs_policy_loss_by_hand():
    """Mutations: the temperature not a factor; entropy with the wrong sign."""
    network, numbers, batch = scene(OneStep(), "sac")
    loss, regulariser, log_prob = policy_losses(network, numbers, batch)
    action, want = network.draw(network.policy, batch["obs"], batch["policy_noise"])
    torch.testing.assert_close(log_prob, want)
    worth = network.value(network.critic, batch["obs"], action).mean(1)
    temperature = network.log_temperature.exp()[:, None]
    torch.testing.assert_close(loss, (temperature * want - worth).mean(-1))
    assert not regulariser.any() and not (temperature == 1).any()
    fixed = settings(OneStep(), "sac", temperature=0.3)
    torch.testing.assert_close(policy_losses(network, fixed, batch)[0], (0.3 * want - worth).mean(-1))


# -- updates


def learner_of(network, numbers, seed=0):
    learner = numbers.build(network, 0)
    learner.reseed(seed)
    return learner


def inputs(learner, count, seed=0):
    """Batches of synthetic steps and what the rule draws."""
    return {**steps(count, seed), **learner.rule.draws(count, learner._generator)}


def parts_of(network):
    names = ("policy", "critic", "target", "target_policy", "behaviour", "model", "frozen")
    parts = {name: getattr(network, name) for name in names if getattr(network, name) is not None}
    weights = {name: [leaf.detach().clone() for leaf in part.parameters()] for name, part in parts.items()}
    return {**weights, "log_temperature": [network.log_temperature.detach().clone()]}


def moved(before, after):
    """Names of parts in which anything is different."""
    pairs = {name: zip(before[name], after[name], strict=True) for name in before}
    return {name for name, leaves in pairs.items() if not all(torch.equal(a, b) for a, b in leaves)}


FAR = {"target_period": 1000, "model_period": 1000, "publish_period": 1000}


@pytest.mark.parametrize("core", ["ddpg", "td3", "sac"])
@pytest.mark.parametrize("target", ["one_step", "mve_tdk", "steve"])
def test_each_loss_moves_its_own_network(core, target):
    """Mutation: an optimiser of all parameters, or gradients of one loss left for the other's step."""
    delayed, both = (build(core=core) for _ in range(2))
    before = parts_of(delayed)
    options = {"target": TARGETS[target], "core": core, "learning_rate": 0.01, **FAR}
    first = learner_of(delayed, settings(policy_delay=2, **options))
    first.update(inputs(first, 1))
    assert moved(before, parts_of(delayed)) == {"critic"}
    second = learner_of(both, settings(**options))
    second.update(inputs(second, 1))
    after = parts_of(both)
    assert moved(before, after) == {"critic", "policy"} | ({"log_temperature"} if core == "sac" else set())
    assert moved({"critic": parts_of(delayed)["critic"]}, after) == set()  # the policy's step left the critic alone
    first.update(inputs(first, 1))
    assert "policy" in moved(before, parts_of(delayed))


def test_an_update_is_adam_on_the_critic_and_then_on_the_policy_it_is_shown():
    """Mutations: the policy first; one step for both; the mean over runs. Losses are those of before each step."""
    network, twin_network = build(), build()
    numbers = settings(TARGETS["mve_tdk"], learning_rate=0.01, rows="split", **FAR)
    learner = learner_of(network, numbers)
    batch = inputs(learner, 1)
    metrics = learner.update(batch)
    imagined, targets = expand(twin_network, numbers, batch)
    critic_loss, value_mean = critic_losses(twin_network, numbers, batch, imagined, targets)
    plain = {n: torch.optim.Adam(getattr(twin_network, n).parameters(), 0.01) for n in ("critic", "policy")}
    plain["critic"].zero_grad()
    critic_loss.sum().backward()
    plain["critic"].step()
    policy_loss, regulariser, _ = policy_losses(twin_network, numbers, batch)
    plain["policy"].zero_grad()
    (policy_loss + regulariser).sum().backward()
    plain["policy"].step()
    for name in ("critic", "policy"):
        for mine, want in zip(
            getattr(network, name).parameters(), getattr(twin_network, name).parameters(), strict=True
        ):
            torch.testing.assert_close(mine, want)
    torch.testing.assert_close(metrics["critic_loss"], critic_loss[0].detach())
    torch.testing.assert_close(metrics["policy_loss"], policy_loss[0].detach())
    torch.testing.assert_close(metrics["policy_regulariser"], regulariser[0].detach())
    torch.testing.assert_close(metrics["value_mean"], value_mean[0])
    torch.testing.assert_close(metrics["target_mean"], targets.target[0].mean())
    assert metrics["model_use"] == 1 and metrics["weight/depth_2"] == 1 and metrics["weight/depth_0"] == 0


def test_weights_of_depths_are_reported():
    network = build()
    learner = learner_of(network, settings(TARGETS["steve"]))
    batch = inputs(learner, 1)
    _, targets = expand(network, learner.rule.settings, batch)
    metrics = learner.update(batch)
    for depth in range(3):
        torch.testing.assert_close(metrics[f"weight/depth_{depth}"], targets.weight[0, depth].mean())
    torch.testing.assert_close(metrics["model_use"], 1 - metrics["weight/depth_0"])
    plain = learner_of(build(), settings(OneStep()))
    assert not {"model_use", "weight/depth_0"} & set(plain.update(inputs(plain, 1)))


EXPANSIONS = [name for name in TARGETS if name != "one_step"]


def break_members(network, members, by):
    """Let transition members of the model that targets are made with end up nowhere."""
    with torch.no_grad():
        network.frozen.transition.biases[-1][members] = by


def is_finite(network):
    return all(leaf.isfinite().all() for leaf in network.parameters() if leaf.requires_grad)


@pytest.mark.parametrize(
    "target, core, rows, by",
    [(target, "ddpg", "all", torch.nan) for target in EXPANSIONS]
    + [("mve_tdk", "td3", "split", torch.inf), ("steve_tdk", "sac", "random", torch.inf)]
    + [("steve", "sac", "split", 1e30), ("steve", "ddpg", "all", -1e38)],  # finite, but not their squares
)
def test_an_update_stays_finite_while_a_member_diverges(target, core, rows, by):
    """Taped and not. What is not finite is counted, and the other members' candidates make the targets.

    Mutations: candidates that are not finite in the mean; imagined pairs that are not, in the critic's loss; a count
    that includes rows that ended the task, whose target is the reward.
    """
    network = build(core=core)
    learner = learner_of(network, settings(TARGETS[target], core, learning_rate=0.01, rows=rows, **FAR))
    break_members(network, [0], by)
    for seed in range(4):
        before = parts_of(network)
        metrics = {name: value.item() for name, value in learner.update(inputs(learner, 1, seed)).items()}
        assert all(map(math.isfinite, metrics.values())) and is_finite(network)
        assert {"critic", "policy"} <= moved(before, parts_of(network))
        if not math.isfinite(by):
            lost = HORIZON * JUDGES * CRITICS * (ROWS - 1)
            assert metrics["targets/nonfinite_candidates"] == pytest.approx(lost)
            assert metrics["targets/fallbacks"] == 0


def test_targets_are_those_of_the_members_that_have_not_diverged():
    """As if the broken one were not there. Mutation: weights of depths from variances of other candidates."""
    network, alone = build(), build(transitions=1)
    with torch.no_grad():
        for part in ("transition", "termination"):
            mine, theirs = (getattr(each.frozen, part).parameters() for each in (alone, network))
            for leaf, whole in zip(mine, theirs, strict=True):
                leaf.copy_(whole[1:2])
        for name in ("target", "policy"):
            getattr(alone, name).load_state_dict(getattr(network, name).state_dict())
        alone.frozen.reward.load_state_dict(network.frozen.reward.state_dict())
    break_members(network, [0], torch.nan)
    batch = steps(1)
    for target in EXPANSIONS:
        numbers = settings(TARGETS[target])
        found = [expand(each, numbers, batch)[1] for each in (network, alone)]
        assert not found[0].fallback.any() and found[0].nonfinite.any() and not found[1].nonfinite.any()
        rows = slice(None)
        if target == "cov":  # a candidate that is not finite later does not count at depth 0 either
            rows = [0, *range(2, ROWS)]
        torch.testing.assert_close(found[0].target[:, :, rows], found[1].target[:, :, rows])


def test_where_all_members_have_diverged_targets_are_plain():
    """MVE has no depth left; STEVE has depth 0. Mutation: a fallback that is not counted."""
    plain = None
    for target, fallbacks in (("mve", ROWS - 1), ("mve_tdk", None), ("steve", 0), ("mean", 0), ("cov", ROWS - 1)):
        network = build(core="sac")
        break_members(network, slice(None), torch.inf)
        learner = learner_of(network, settings(TARGETS[target], "sac", **FAR))
        batch = inputs(learner, 1)
        targets = expand(network, learner.rule.settings, {name: leaf[:1] for name, leaf in batch.items()})[1]
        going = [0, *range(2, ROWS)]  # without the row that ended its task
        assert (targets.weight[0, 0, 0, going] == 1).all() and targets.target.isfinite().all()
        plain = targets.target[0] if plain is None else plain
        torch.testing.assert_close(targets.target[0], plain)
        if fallbacks is not None:
            assert learner.update(batch)["targets/fallbacks"] == fallbacks
        assert is_finite(network)


def test_an_overflow_in_half_precision_is_left_out_and_counted():
    """As on a GPU, where networks that make targets are packed: a member's 1e5 is fine in float32, and not in float16.

    Mutation: targets of NaN, which one such candidate made.
    """
    network = build()
    with torch.no_grad():
        network.frozen.transition.biases[-1][0] = 1e5
    learner = learner_of(network, settings(TARGETS["steve"], learning_rate=0.01, **FAR))
    batch = {name: leaf[:1] for name, leaf in inputs(learner, 1).items()}
    assert not expand(network, learner.rule.settings, batch)[1].nonfinite.any()
    network.frozen.pack()
    network.target.pack()
    lost = expand(network, learner.rule.settings, batch)[1].nonfinite[0]
    assert lost[1] == 0 and (lost[[0, *range(2, ROWS)]] == HORIZON * JUDGES * CRITICS).all()
    metrics = learner.update(batch)
    assert metrics["targets/nonfinite_candidates"] == lost.sum()
    assert all(value.isfinite() for value in metrics.values()) and is_finite(network)


def test_temperature_rises_where_entropy_is_short_and_falls_where_there_is_plenty():
    """Adam's first step is the learning rate, whatever the gradient. Mutations: the sign; what is wanted of one
    dimension asked of the whole action, which the last two tell apart.
    """
    for wanted in (3.0, -3.0, +0.1, -0.1):
        network = build(core="sac")
        learner = learner_of(network, settings(core="sac", learning_rate=0.01))
        batch = inputs(learner, 1)
        entropy = -network.draw(network.policy, batch["obs"][:1], batch["policy_noise"])[1].mean().item()
        wanted = wanted if abs(wanted) > 1 else (entropy + wanted) / 2  # of two dimensions, together just off
        learner = learner_of(network, settings(core="sac", target_entropy=wanted, learning_rate=0.01))
        before = network.log_temperature.item()
        metrics = learner.update(batch)
        want = before + (0.01 if entropy < 2 * wanted else -0.01)
        assert abs(network.log_temperature.item() - want) < 1e-5
        assert abs(metrics["temperature"].item() - math.exp(want)) < 1e-4
    fixed = learner_of(build(core="sac"), settings(core="sac", temperature=0.2))
    before = fixed.network.log_temperature.clone()
    metrics = fixed.update(inputs(fixed, 2))
    assert torch.equal(fixed.network.log_temperature, before) and abs(metrics["temperature"].item() - 0.2) < 1e-6


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("at_once", [1, 5])
def test_copies_are_made_exactly_when_their_periods_are_over(at_once):
    """Mutations: before the update; at every call; one period for all; the target policy forgotten."""
    network = build()
    numbers = settings(TARGETS["steve"], target_period=3, model_period=2, publish_period=5, learning_rate=0.01)
    learner = learner_of(network, numbers)
    rule, step, between = learner.rule, learner.rule.step, learner.rule.between
    pairs = [("target", "critic"), ("target_policy", "policy"), ("frozen", "model"), ("behaviour", "policy")]
    look = lambda: tuple(equal(getattr(network, a), getattr(network, b)) for a, b in pairs)  # noqa: E731
    seen = []

    def watched_step(batch, kind):
        metrics = step(batch, kind)
        for leaf in network.model.parameters():  # it learns meanwhile
            leaf.data.add_(0.01)
        assert not any(look())  # nothing is copied within an update
        return metrics

    def watched_between(update):
        between(update)
        seen.append((update, *look()))

    rule.step, rule.between = watched_step, watched_between
    for _ in range(0, 15, at_once):
        learner.update(inputs(learner, at_once))
    want = [(n, n % 3 == 0, n % 3 == 0, n % 2 == 0, n % 5 == 0) for n in range(1, 16)]
    assert seen == want and learner.updates == 15
    assert [n + rule.stop(n) for n in range(9)] == [2, 2, 3, 4, 5, 6, 8, 8, 9]


@pytest.mark.parametrize("period", [1, 5, None])
def test_a_version_is_published_when_the_policy_that_acts_has_changed(period):
    """Mutations: at every call; only where a call ends with the period."""
    network = build()
    learner = learner_of(network, settings(TARGETS["steve"], publish_period=period, learning_rate=0.01))
    published = []
    for count in (2, 2, 2, 4, 1, 4, 3):
        before = [leaf.clone() for leaf in network.behaviour.parameters()]
        learner.update(inputs(learner, count))
        changed = not all(map(torch.equal, before, network.behaviour.parameters()))
        assert learner.publish_due == changed
        published.append(changed)
    assert published == ([False, False, True, True, False, True, False] if period == 5 else [True] * 7)


def test_what_has_no_period_is_copied_at_the_end_of_a_call():
    """Mutation: after every update."""
    network = build()
    learner = learner_of(network, settings(TARGETS["steve"], model_period=None, publish_period=None, target_period=7))
    seen, step = [], learner.rule.step

    def watch(batch, kind):
        seen.append((equal(network.frozen, network.model), equal(network.behaviour, network.policy)))
        return step(batch, kind)

    learner.rule.step = watch
    learner.update(inputs(learner, 3))
    assert seen == [(False, False)] * 3
    assert equal(network.frozen, network.model) and equal(network.behaviour, network.policy)
    assert not equal(network.target, network.critic) and learner.rule.stop(3) == 4
    learner.update(inputs(learner, 2))
    assert seen[3:] == [(True, True), (True, False)]


def test_without_any_period_nothing_stops_a_launch():
    options = {"target_period": None, "model_period": None, "publish_period": None}
    assert learner_of(build(), settings(**options)).rule.stop(5) > 1_000_000


def test_the_target_follows_slowly():
    """new = old + polyak (critic − old), after the critic's step; td3's policy with it, when the policy moves.

    Mutations: before the step; the way round; td3's policy at every update.
    """
    network = build(core="td3")
    numbers = settings(core="td3", target_period=None, polyak=0.1, policy_delay=2, learning_rate=0.01)
    learner = learner_of(network, numbers)
    for update in range(4):
        before = parts_of(network)
        learner.update(inputs(learner, 1, update))
        after = parts_of(network)
        for old, new, source in zip(before["target"], after["target"], after["critic"], strict=True):
            torch.testing.assert_close(new, old + 0.1 * (source - old))
        policy_moves = update % 2 == 1
        assert ("policy" in moved(before, after)) == policy_moves
        for old, new, source in zip(before["target_policy"], after["target_policy"], after["policy"], strict=True):
            torch.testing.assert_close(new, old + 0.1 * (source - old) if policy_moves else old)


def test_the_first_update_is_made_with_the_model_as_it_is_by_then():
    """Mutation: with the model's first weights, though it has been trained before."""
    network = build()
    learner = learner_of(network, settings(TARGETS["steve"]))
    memory = Replay(100, ROWS).build([1], 0, torch.device("cpu"))
    memory.add({name: leaf[0].numpy() for name, leaf in steps(1, size=20).items() if name != "row"})
    assert not equal(network.frozen, network.model)
    batch = learner.draw(memory, 2)
    assert equal(network.frozen, network.model)
    learner.update(batch)
    with torch.no_grad():
        network.model.transition.weights[0].add_(1)
    learner.draw(memory, 2)
    assert not equal(network.frozen, network.model)  # later there is a period for it


def test_every_so_often_the_model_is_held_against_real_steps():
    """Mutations: never; at every draw; before the first period is over; reported again as if it were new."""
    network = build()
    learner = learner_of(network, settings(TARGETS["steve"], calibration_period=4))
    memory = Replay(100, ROWS).build([1], 0, torch.device("cpu"))
    line = np.arange(40.0)[:, None] + np.arange(network.frozen.obs_mean.shape[-1])
    taken = {name: leaf[0].numpy() for name, leaf in steps(1, size=40).items() if name != "row"}
    taken |= {"obs": line, "after": line + 1, "terminated": np.zeros(40, bool)}
    memory.add(taken)
    seen = [learner.update(learner.draw(memory, 2)) for _ in range(3)]
    with torch.no_grad():
        network.frozen.transition.weights[0].add_(0.1)
    seen += [learner.update(learner.draw(memory, 2)) for _ in range(2)]
    found = [{name: leaf.item() for name, leaf in one.items() if name.startswith("model/")} for one in seen]
    assert found[0] == found[1] == {}
    horizon = TARGETS["steve"].horizon
    kinds = ("error", "target_error", "target_spread", "calibration")
    assert set(found[2]) == {f"model/{kind}_{depth}" for kind in kinds for depth in range(1, horizon + 1)}
    assert found[3] == {} and set(found[4]) == set(found[2]) and found[4] != found[2], "once each"


@pytest.mark.parametrize("first", ["model", "value"])
@pytest.mark.parametrize("count, holdout, measured", [(150, True, False), (400, True, True), (150, False, True)])
def test_calibration_is_measured_on_steps_that_the_model_never_trains_on(monkeypatch, first, count, holdout, measured):
    """With holdout; the metrics are left out until enough steps are held out. Mutation: stretches of all steps."""
    seen = []
    monkeypatch.setattr(value_expansion, "calibration", lambda network, stretches, *_: seen.append(stretches) or {})
    network = build()
    numbers = {
        "value": settings(TARGETS["steve"], calibration_period=2),
        "model": DynamicsLearning(ROWS, holdout=holdout),
    }
    learners = {name: numbers[name].build(network, 0) for name in sorted(numbers, reverse=first == "value")}
    memory = Replay(1000, ROWS).build([1], 0, torch.device("cpu"))
    taken = {name: leaf[0].numpy() for name, leaf in steps(1, size=count).items() if name != "row"}
    line = np.arange(float(count))[:, None] + np.zeros(OBS)
    memory.add(taken | {"obs": line, "after": line + 1, "terminated": np.zeros(count, bool)})
    trained = set(learners["model"].draw(memory, 1000)["obs"][..., 0].flatten().tolist())
    for _ in range(3):
        learners["value"].update(learners["value"].draw(memory, 1))
    assert len(seen) == measured
    if measured:
        assert len(seen[0]["reward"]) >= 16 and seen[0]["obs"].shape[1] == HORIZON + 1
        assert bool(trained & set(seen[0]["obs"][..., 0].flatten().tolist())) != holdout


def test_what_is_drawn_is_what_is_needed_and_no_more():
    """One noise of actions for each depth and row. Mutations: one for each member; torch's global generator."""
    count = 4
    shapes = lambda core, target, **o: {  # noqa: E731
        name: tuple(leaf.shape)
        for name, leaf in learner_of(build(core=core), settings(TARGETS[target], core, **o))
        .rule.draws(count, torch.Generator().manual_seed(0))
        .items()
    }
    assert shapes("ddpg", "steve") == {} and shapes("ddpg", "steve", rows="random") == {"member": (count, ROWS)}
    noise = (count, HORIZON + 1, ROWS, ACTIONS)
    assert shapes("td3", "steve") == {"action_noise": noise, "critics": (count, CRITICS)}
    assert shapes("sac", "one_step") == {
        "action_noise": (count, 1, ROWS, ACTIONS),
        "critics": (count, CRITICS),
        "policy_noise": (count, ROWS, ACTIONS),
    }
    rule = learner_of(build(core="sac"), settings(TARGETS["steve"], "sac", rows="random")).rule
    one, other = (rule.draws(200, torch.Generator().manual_seed(1)) for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert (one["critics"].sort(-1).values == torch.arange(CRITICS)).all()  # orders, and all of them
    assert len(torch.unique(one["critics"], dim=0)) == math.factorial(CRITICS)
    assert torch.bincount(one["member"].flatten(), minlength=CRITICS).min() > 300  # 400 each
    assert abs(one["action_noise"].std() - 1) < 0.03


@pytest.mark.parametrize(
    "values, line",
    [
        ({"batch_size": 0}, "ValueExpansion.batch_size = 0 must be above 0"),
        ({"policy_delay": 0}, "ValueExpansion.policy_delay = 0 must be above 0"),
        ({"target_period": 0}, "ValueExpansion.target_period = 0 must be at least 1, or None"),
        ({"discount": 1.1}, "ValueExpansion.discount = 1.1 must lie between 0 and 1"),
        ({"polyak": -0.1}, "ValueExpansion.polyak = -0.1 must lie between 0 and 1"),
        ({"temperature": -1.0}, "ValueExpansion.temperature = -1.0 must not be negative"),
        ({"target_noise_clip": -0.5}, "ValueExpansion.target_noise_clip = -0.5 must not be negative"),
    ],
)
def test_numbers_that_cannot_be_are_refused(values, line):
    with pytest.raises(ConfigError, match=line):
        ValueExpansion(**values)


@pytest.mark.parametrize(
    "make, line",
    [
        (lambda: Steve(0), "Steve.horizon = 0 must be at least 1; without a model there is @OneStep"),
        (lambda: Mve(0), "Mve.horizon = 0 must be at least 1"),
        (lambda: Steve(epsilon=0.0), "Steve.epsilon = 0.0 must be above 0"),
        (lambda: SteveCov(ridge=0.0), "SteveCov.ridge = 0.0 must be above 0"),
        (lambda: MveTdLambda(trace_lambda=1.5), "MveTdLambda.trace_lambda = 1.5 must lie between 0 and 1"),
    ],
)
def test_targets_that_cannot_be_are_refused(make, line):
    with pytest.raises(ConfigError, match=line):
        make()


@pytest.mark.parametrize(
    "network, values, line",
    [
        ({"model": False}, {"target": Steve()}, "ValueExpansion.target = @Steve.. needs a world model"),
        ({"core": "sac"}, {}, "ValueExpansion.core = 'ddpg' and Control.stochastic = True do not fit"),
        ({}, {"core": "sac"}, "ValueExpansion.core = 'sac' and Control.stochastic = False do not fit"),
        ({}, {"batch_size": 7}, "ValueExpansion.batch_size = 7 cannot be split between Control.critics = 3"),
    ],
)
def test_networks_that_do_not_fit_are_refused(network, values, line):
    with pytest.raises(ConfigError, match=line):
        ValueExpansion(**values).build(build(**network), 0)
    ValueExpansion(batch_size=7, rows="all").build(build(), 0)
    ValueExpansion(target=Steve(), batch_size=6).build(build(), 0)
