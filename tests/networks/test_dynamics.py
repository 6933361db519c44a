"""World models of control: a step by hand, paths of reward models, variance bounds, units, choice of elites."""

import math

import pytest
import torch
from torch.nn.functional import softplus

from packtrain.errors import ConfigError
from packtrain.networks.dynamics import NARROWEST, WIDEST, Dynamics, EndOutside
from packtrain.networks.stacked import join

RUNS, MEMBERS, JUDGES, ROWS, OBS, ACTIONS = 2, 3, 2, 4, 3, 2
SMALL = {
    "transitions": MEMBERS,
    "rewards": JUDGES,
    "hidden_size": 5,
    "num_layers": 1,
    "aux_hidden_size": 4,
    "aux_num_layers": 1,
}


def build(seed=0, **options):
    """A model of one run with moments that are not neutral where it normalises."""
    torch.manual_seed(seed)
    model = Dynamics(**{**SMALL, **options}).build(OBS, ACTIONS)
    if model.sizes.normalise:
        for name in ("obs_mean", "change_mean", "obs_std", "change_std", "reward_scale"):
            buffer = getattr(model, name)
            buffer.copy_(torch.rand_like(buffer) + 0.5)
    return model


def joined(**options):
    return join([build(seed, **options) for seed in range(RUNS)])


def steps():
    torch.manual_seed(7)
    return torch.randn(RUNS, MEMBERS, ROWS, OBS), torch.rand(RUNS, MEMBERS, ROWS, ACTIONS) * 2 - 1


def two_steps(model, obs, action, noise=None):
    """A rollout that turns its actions round after a step: where it leads, and what is said of both steps."""
    between = model.move(obs, action, noise)
    after = model.move(between, -action, noise)
    paid, over = model.judge_rollout(torch.stack([obs, between, after], 1), torch.stack([action, -action], 1))
    assert paid.shape == (RUNS, 2, MEMBERS, JUDGES, ROWS) and over.shape == (RUNS, 2, MEMBERS, ROWS)
    return between, after, paid, over


def ask(network, run, member, members, x):
    """One member of one run on a single vector."""
    k = run * members + member
    for layer, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        x = x @ weight[k] + bias[k, 0]
        x = x.relu() if layer + 1 < len(network.weights) else x
    return x


def test_a_deterministic_step_by_hand():
    """s' = s + f(s, a), R(s', s, a) of every reward model on every member's path, σ(D(s', s, a)) of the member itself.

    Mutations: s before s' as inputs of R; reward model l only on path l; the end from another member; runs mixed up.
    """
    model, (obs, action) = joined(), steps()
    between, after, paid, over = two_steps(model, obs, action)
    assert after.shape == between.shape == obs.shape
    for r in range(RUNS):
        for m in range(MEMBERS):
            for n in range(ROWS):
                s = obs[r, m, n]
                for t, (sign, where) in enumerate([(1, between), (-1, after)]):
                    a = sign * action[r, m, n]
                    want = s + ask(model.transition, r, m, MEMBERS, torch.cat([s, a]))
                    torch.testing.assert_close(where[r, m, n], want)
                    step = torch.cat([want, s, a])
                    end = torch.sigmoid(ask(model.termination, r, m, MEMBERS, step))[0]
                    torch.testing.assert_close(over[r, t, m, n], end)
                    for judge in range(JUDGES):
                        reward = ask(model.reward, r, judge, JUDGES, step)[0]
                        torch.testing.assert_close(paid[r, t, m, judge, n], reward)
                    s = want


def test_a_normalised_probabilistic_step_by_hand():
    """Inputs and changes are normalised, actions are not; noise is scaled by the guessed deviation, rewards by theirs.

    Mutations: exp(log variance) for the deviation; noise in raw units; after normalised by the change's moments.
    """
    model, (obs, action) = joined(probabilistic=True, normalise=True), steps()
    noise = torch.randn(RUNS, MEMBERS, ROWS, OBS)
    after, _, paid, over = two_steps(model, obs, action, noise)
    for r in range(RUNS):
        mean, std = model.obs_mean[r, 0], model.obs_std[r, 0]
        for m in range(MEMBERS):
            s, a = obs[r, m, 1], action[r, m, 1]
            raw = ask(model.transition, r, m, MEMBERS, torch.cat([(s - mean) / std, a]))
            log_variance = WIDEST - softplus(WIDEST - raw[OBS:])
            log_variance = NARROWEST + softplus(log_variance - NARROWEST)
            moved = raw[:OBS] + noise[r, m, 1] * log_variance.exp().sqrt()
            want = s + model.change_mean[r, 0] + moved * model.change_std[r, 0]
            torch.testing.assert_close(after[r, m, 1], want)
            step = torch.cat([(want - mean) / std, (s - mean) / std, a])
            end = torch.sigmoid(ask(model.termination, r, m, MEMBERS, step))[0]
            torch.testing.assert_close(over[r, 0, m, 1], end)
            for judge in range(JUDGES):
                reward = ask(model.reward, r, judge, JUDGES, step)[0] * model.reward_scale[r, 0]
                torch.testing.assert_close(paid[r, 0, m, judge, 1], reward)


def test_without_noise_a_step_is_the_mean():
    model, (obs, action) = joined(probabilistic=True, normalise=True), steps()
    calm, zero, noisy = (model.move(obs, action, n) for n in (None, torch.zeros_like(obs), torch.ones_like(obs)))
    torch.testing.assert_close(calm, zero)
    assert (noisy - calm).abs().min() > 0
    deterministic = joined()
    same = deterministic.move(obs, action, torch.ones_like(obs))
    assert torch.equal(same, deterministic.move(obs, action))  # there is nothing that noise could scale


@pytest.mark.parametrize("shift, want", [(-1e3, NARROWEST), (1e3, WIDEST)])
def test_variances_stay_in_their_bounds(shift, want):
    """Softly: there is a gradient everywhere near. Mutations: no lower bound; a clamp, which has none."""
    model = joined(probabilistic=True, normalise=True)
    obs, action = steps()
    with torch.no_grad():
        model.transition.biases[-1][..., OBS:] += shift
    got = model.guess(obs, action).log_variance
    torch.testing.assert_close(got, torch.full_like(got, want), atol=1e-4, rtol=0)
    with torch.no_grad():
        model.transition.biases[-1][..., OBS:] += -shift + 1.1 * want
    near = model.guess(obs, action).log_variance
    (gradient,) = torch.autograd.grad(near.sum(), [model.transition.biases[-1]])
    assert gradient[..., OBS:].min() > 0.01 and NARROWEST <= near.min() and near.max() <= WIDEST + 1e-4


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("own", [False, True], ids=["same-rows", "own-rows"])
def test_what_a_step_adds_change_takes_apart(normalise, own):
    """The change between where a step began and where it led is what was guessed. Mutation: mean and deviation of
    observations in one of the two.
    """
    model, (obs, action) = joined(normalise=normalise), steps()
    if not own:
        obs, action = obs[:, :1].expand_as(obs), action[:, :1].expand_as(action)
    after = model.move(obs, action)
    guess = model.guess(obs, action) if own else model.guess(obs[:, 0], action[:, 0])
    torch.testing.assert_close(model.change(obs, after), guess.mean, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.change(obs[:, 0], after[:, 0]), guess.mean[:, 0], atol=1e-5, rtol=1e-5)


def test_elites_are_the_chosen_members_of_each_run():
    """Of two runs in one module, with ends, rewards and moments. Mutations: elites of run 0 for all; not the ends."""
    options = {"probabilistic": True, "normalise": True, "elites": 2}
    models = [build(seed, **options) for seed in range(RUNS)]
    frozen = [Dynamics(**SMALL, **options).build_elites(OBS, ACTIONS) for _ in models]
    chosen = [[2, 0], [1, 2]]
    for model, best in zip(models, chosen, strict=True):
        model.elites.copy_(torch.tensor([best]))
    joint, copies = join(models), join(frozen)
    copies.take_elites(joint)
    obs, action = torch.randn(RUNS, ROWS, OBS), torch.randn(RUNS, ROWS, ACTIONS)
    assert copies.transition.members == 2
    everyone, few = joint.guess(obs, action), copies.guess(obs, action)
    ends, few_ends = (m.judge(m.termination, obs, action, obs + 1) for m in (joint, copies))
    judged, few_judged = (m.judge(m.reward, obs, action, obs + 1) for m in (joint, copies))
    for run, best in enumerate(chosen):
        torch.testing.assert_close(few.mean[run], everyone.mean[run, best])
        torch.testing.assert_close(few.log_variance[run], everyone.log_variance[run, best])
        torch.testing.assert_close(few_ends[run], ends[run, best])
        torch.testing.assert_close(few_judged[run], judged[run])
        own = frozen[run].guess(obs[run : run + 1], action[run : run + 1])  # each run's module sees it
        torch.testing.assert_close(own.mean[0], everyone.mean[run, best])
    assert torch.equal(copies.reward_scale, joint.reward_scale)


def test_taking_elites_is_a_copy_that_stays():
    """Mutations: sharing memory, so that targets would follow the model between two copies; moments left behind."""
    options = {"probabilistic": True, "normalise": True}
    model = build(**options)
    frozen = Dynamics(**SMALL, **options).build_elites(OBS, ACTIONS).requires_grad_(False)
    frozen.take_elites(model)
    obs, action = torch.randn(1, MEMBERS, ROWS, OBS), torch.randn(1, MEMBERS, ROWS, ACTIONS)
    before, paid, over = rolled = one_step(frozen, obs, action)
    for mine, theirs in zip(rolled, one_step(model, obs, action), strict=True):
        torch.testing.assert_close(mine, theirs)
    with torch.no_grad():
        for leaf in (*model.parameters(), *model.buffers()):
            leaf.add_(1)
    for mine, was in zip(one_step(frozen, obs, action), (before, paid, over), strict=True):
        assert torch.equal(mine, was)


def one_step(model, obs, action):
    """Where a step leads, what it pays, and whether it is the last."""
    after = model.move(obs, action)
    return after, *model.judge_rollout(torch.stack([obs, after], 1), action.unsqueeze(1))


def test_a_known_rule_says_the_ends_and_nothing_else():
    """Of every member's own path. Mutations: the learned ends; the observation before the step; rewards left out."""
    rule = EndOutside(((0, 0.1, None), (2, -1.0, 0.5)))
    models = [build(seed, known_end=known) for seed in range(RUNS) for known in (None, rule)]
    learned, known = join(models[::2]), join(models[1::2])
    obs, action = steps()
    _, after, paid, over = two_steps(known, obs, action)
    between, _, same_paid, _ = two_steps(learned, obs, action)
    assert torch.equal(paid, same_paid) and set(over.unique().tolist()) == {0.0, 1.0}
    for t, where in enumerate((between, after)):
        inside = (where[..., 0] > 0.1) & (where[..., 2] > -1.0) & (where[..., 2] < 0.5)
        assert torch.equal(over[:, t], (~inside).float())


def test_ranges_are_open_and_what_is_no_number_is_outside():
    """Mutation: bounds that count as inside; NaN that is neither above nor below."""
    rule = EndOutside(((1, 0.7, None),), most=100.0)
    after = torch.tensor([[0, 0.71, 0], [0, 0.7, 0], [0, 5, 100], [0, 5, -99.9], [0, 5, -101], [0, math.nan, 0]])
    assert rule.ended(after, after, after).tolist() == [False, True, True, False, True, True]
    assert EndOutside().ended(after, after, after).tolist() == [False] * 6  # never
    with pytest.raises(ConfigError, match="has index 1, but observations have indices 0 to 0"):
        Dynamics(known_end=rule).build(1, 1)
    for ranges in (((-1, 0.0, 1.0),), ((0, 1.0, 1.0),)):
        with pytest.raises(ConfigError, match="low below high"):
            EndOutside(ranges)
    with pytest.raises(ConfigError, match="EndOutside.most = 0 must be above 0"):
        EndOutside(most=0)


@pytest.mark.parametrize(
    "values, line",
    [
        ({"transitions": 0}, "Dynamics.transitions = 0 must be at least 1"),
        ({"aux_hidden_size": 0}, "Dynamics.aux_hidden_size = 0 must be at least 1"),
        ({"num_layers": -1}, "Dynamics.num_layers = -1 must not be negative"),
        ({"elites": 5}, "Dynamics.elites = 5 must lie between 1 and transitions = 4"),
        ({"elites": 0}, "Dynamics.elites = 0 must lie between 1"),
        ({"probabilistic": True}, "Dynamics.probabilistic = True needs Dynamics.normalise"),
    ],
)
def test_sizes_that_cannot_be_are_refused(values, line):
    with pytest.raises(ConfigError, match=line):
        Dynamics(**values)


@pytest.mark.parametrize("activation", ["relu", "silu", "elu"])
def test_all_three_ensembles_have_the_activation(activation):
    """Mutation: only the transition's."""
    model = Dynamics(2, 2, 8, 1, 8, 1, activation=activation).build(3, 2)
    act = {"relu": torch.relu, "silu": torch.nn.functional.silu, "elu": torch.nn.functional.elu}[activation]
    for network, inputs in ((model.transition, 5), (model.reward, 8), (model.termination, 8)):
        x = torch.randn(1, 4, inputs)
        wanted = act(x @ network.weights[0] + network.biases[0]) @ network.weights[1] + network.biases[1]
        torch.testing.assert_close(network(x)[0], wanted)


def test_the_defaults_are_steves():
    """Parameter counts of HalfCheetah in the paper's code: 17 observations, 6 actions, four of each."""
    model = Dynamics().build(17, 6)
    count = {name: sum(p.numel() for p in getattr(model, name).parameters()) / 4 for name in ("transition", "reward")}
    assert count == {"transition": 1_596_945, "reward": 38_401}
    assert sum(p.numel() for p in model.termination.parameters()) == 4 * 38_401
