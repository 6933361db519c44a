"""Value expansion: the golden vectors, the sums by plain loops over all candidates, and what must hold at the edges."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain.equations.value_expansion import (
    every_return,
    expanded_returns,
    joined_rewards,
    model_use,
    mve_mean_targets,
    mve_targets,
    return_mean,
    return_scatter,
    return_variance,
    steve_cov_targets,
    steve_targets,
    td_lambda_targets,
    td_targets,
    with_fallback,
)

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)
GAMMA = 0.99
TARGETS = {
    "mve": mve_targets,
    "mean": mve_mean_targets,
    "lambda": lambda expansion: td_lambda_targets(expansion, trace_lambda=0.9),
    "steve": steve_targets,
    "cov": steve_cov_targets,
}


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def golden(ended=0.0):
    """H = 2 and two members of each kind, without batch dimensions."""
    return expanded_returns(
        double(1.0),
        double([[ended, ended], [0.1, 0.2], [0.05, 0.0]]),
        double([[[0.5, 0.7], [0.4, 0.9]], [[-0.2, 0.1], [0.3, 0.0]]]),
        double([[[10, 11], [10, 11]], [[9, 12], [10, 10.5]], [[8, 9], [13, 12]]]),
        discount=GAMMA,
    )


def random_inputs(seed, horizon=None, batch=None, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    size = torch.randint(1, 4, (3,), generator=generator).tolist()
    horizon = int(torch.randint(0, 4, (), generator=generator)) if horizon is None else horizon
    batch = [(), (2,), (2, 3)][seed % 3] if batch is None else batch
    members, judges, critics = size
    termination = 0.9 * torch.rand(horizon + 1, *batch, members, generator=generator, dtype=dtype)
    termination[0] = termination[0, ..., :1]
    return (
        torch.randn(batch, generator=generator, dtype=dtype),
        termination,
        torch.randn(horizon, *batch, members, judges, generator=generator, dtype=dtype),
        3 * torch.randn(horizon + 1, *batch, members, critics, generator=generator, dtype=dtype),
    )


def candidates(r_0, termination, reward, value, scale):
    """T[i][j] of one example as a list over all (m, l, q), straight from the definition."""
    horizon, members, judges = reward.shape
    table = [[[] for _ in range(horizon + 1)] for _ in range(horizon + 1)]
    for m, k, q in itertools.product(range(members), range(judges), range(value.shape[-1])):
        c = [1.0]  # c[t + 1] is c_t
        for t in range(horizon + 1):
            c.append(c[-1] * (1 - termination[t, m].item()))
        rho = [r_0.item()] + [reward[t, m, k].item() for t in range(horizon)]
        for i, j in itertools.product(range(horizon + 1), repeat=2):
            total = 0.0
            if j >= i:
                total = scale * sum(GAMMA ** (t - i) * c[t] / c[i] * rho[t] for t in range(i, j + 1))
                total += GAMMA ** (j - i + 1) * c[j + 1] / c[i] * value[j, m, q].item()
            table[i][j].append(total)
    return table


def average(values):
    return sum(values) / len(values)


def weights_by_hand(kind, samples, i):
    """w[i] from the candidates of row i: one list for each depth."""
    depths = len(samples)
    means = [average(each) for each in samples]
    if kind == "mve":
        weights = [float(j == depths - 1) for j in range(depths)]
    elif kind == "mean":
        weights = [float(j >= i) / (depths - i) for j in range(depths)]
    elif kind == "lambda":
        weights = [0.1 * 0.9 ** (j - i) * (j >= i) for j in range(depths - 1)] + [0.9 ** (depths - 1 - i)]
    elif kind == "steve":
        variances = [average([(x - mean) ** 2 for x in each]) for each, mean in zip(samples, means, strict=True)]
        weights = [1 / (v + 1e-8) * (j >= i) for j, v in enumerate(variances)]
    else:
        centred = double([[x - mean for x in each] for each, mean in zip(samples, means, strict=True)])
        scatter = centred @ centred.T + 1e-3 * torch.eye(depths, dtype=torch.float64)
        solution = torch.linalg.inv(scatter).sum(1).tolist()
        weights = [x * (j >= i) for j, x in enumerate(solution)]
    return [weight / sum(weights) for weight in weights]


def close(got, want, atol=1e-6):
    torch.testing.assert_close(got, double(want), atol=atol, rtol=0)


def test_golden_moments():
    expansion = golden()
    mean, variance = return_mean(expansion), return_variance(expansion)
    close(mean, [[11.395, 10.268132, 10.032823], [0, 9.361750, 9.124063], [0, 0, 10.234625]])
    close(variance, [[0.245025, 1.275607, 2.245098], [0, 1.301507, 2.290682], [0, 0, 5.501398]])
    close(expansion.reach, [1, 1, 0.85])


@pytest.mark.parametrize(
    ("targets", "want"),
    [
        (steve_targets, [11.114403, 9.275632, 10.234625]),
        (mve_targets, [10.032823, 9.124063, 10.234625]),
        (mve_mean_targets, [10.565318]),
        (lambda e: td_lambda_targets(e, trace_lambda=0.25), [11.098576]),
        (lambda e: td_lambda_targets(e, trace_lambda=0.75), [10.417488]),
        (steve_cov_targets, [11.431331, 9.267548]),
    ],
)
def test_golden_targets(targets, want):
    got = targets(golden())
    assert got.target.shape == (3,) and got.weight.shape == (3, 3)
    close(got.target[: len(want)], want)
    close(got.reach, [1, 1, 0.85])


def test_golden_weights():
    steve, cov = steve_targets(golden()), steve_cov_targets(golden())
    close(steve.weight, [[0.768508, 0.147619, 0.083873], [0, 0.637684, 0.362316], [0, 0, 1]])
    close(model_use(steve), 0.231492)
    close(cov.weight[0], [1.045708, -0.110203, 0.064495])


def test_golden_td():
    """Mutation: a sum over critics; no κ, which is 1 in the golden vectors."""
    got = td_targets(double([1.0, 1.0]), double([0.0, 1.0]), double([[10, 11], [10, 11]]), discount=GAMMA)
    close(got.target, [[11.395, 1.0]])
    assert got.weight.shape == (1, 1, 2) and (model_use(got) == 0).all() and (got.reach == 1).all()
    scaled = td_targets(double([3.0]), double([0.0]), double([[10.0]]), discount=0.5, reward_scale=0.1)
    close(scaled.target, [[0.3 + 5.0]])
    mixed = td_targets(double([3.0, 4.0]), double([0.0, 0.0]), double([[8.0], [8.0]]), discount=double([0.5, 0.25]))
    close(mixed.target, [[7.0, 6.0]])


def test_joined_rewards_are_a_discounted_sum():
    """Mutation: γ^n where fewer steps were made."""
    got = joined_rewards(double([[1.0, 2.0, 4.0], [3.0, 5.0, 0.0]]), torch.tensor([3, 2]), discount=0.5)
    close(got.reward, [1 + 1 + 1, 3 + 2.5])
    close(got.discount, [0.125, 0.25])
    with pytest.raises(AssertionError, match="shapes do not fit"):
        joined_rewards(double([1.0, 2.0]), torch.tensor([1, 1]), discount=0.5)


def test_after_a_real_end_the_target_is_the_reward_and_no_imagined_state_counts():
    """Mutation: δ_0 left out of the products, which would bootstrap; of the reach."""
    for name, targets in TARGETS.items():
        got = targets(golden(ended=1.0))
        close(got.target[0], 1.0)
        close(got.reach, [1, 0, 0])
        assert all(leaf.isfinite().all() for leaf in got[:3]), name
    close(steve_targets(golden(ended=1.0)).weight[0], [1 / 3, 1 / 3, 1 / 3])


@quick
@given(seeds)
def test_moments_are_those_of_all_candidates_one_by_one(seed):
    """Any numbers of members, any batch. Mutation: rewards not discounted by c_{t−1}; a sample variance; no variance
    between transition members; κ on values."""
    inputs = random_inputs(seed)
    expansion = expanded_returns(*inputs, discount=GAMMA, reward_scale=0.3)
    mean, variance, scatter = return_mean(expansion), return_variance(expansion), return_scatter(expansion)
    depths = len(inputs[1])
    assert mean.shape == variance.shape == (depths, depths, *inputs[0].shape)
    assert scatter.shape == (depths, *inputs[0].shape, depths, depths)
    for b in itertools.product(*map(range, inputs[0].shape)):
        at = (slice(None), *b)
        table = candidates(inputs[0][b], *(leaf[at] for leaf in inputs[1:]), 0.3)
        for i in range(depths):
            samples = double(table[i])  # [D, M*L*N]
            got = every_return(expansion)[(i, slice(None), *b)].flatten(1)
            torch.testing.assert_close(got, samples)
            torch.testing.assert_close(mean[(i, slice(None), *b)], samples.mean(1))
            torch.testing.assert_close(variance[(i, slice(None), *b)], samples.var(1, correction=0))
            centred = samples - samples.mean(1, keepdim=True)
            torch.testing.assert_close(scatter[(i, *b)], centred @ centred.T)


@quick
@given(seeds, st.sampled_from(sorted(TARGETS)))
def test_targets_are_mixtures_by_hand(seed, kind):
    """Mutation: absolute powers in TD(λ); the mean's weights not by row; weight left before the start."""
    inputs = random_inputs(seed)
    expansion = expanded_returns(*inputs, discount=GAMMA, reward_scale=2.0)
    got = TARGETS[kind](expansion)
    depths = len(inputs[1])
    for b in itertools.product(*map(range, inputs[0].shape)):
        at = (slice(None), *b)
        table = candidates(inputs[0][b], *(leaf[at] for leaf in inputs[1:]), 2.0)
        for i in range(depths):
            weights = weights_by_hand(kind, table[i], i)
            torch.testing.assert_close(got.weight[(i, *at)], double(weights), atol=1e-6, rtol=1e-6)
            want = sum(w * average(samples) for w, samples in zip(weights, table[i], strict=True))
            assert got.target[(i, *b)].item() == pytest.approx(want, rel=1e-6, abs=1e-6)
            alive = (1 - inputs[1][at][:i]).prod(0).mean().item()
            assert got.reach[(i, *b)].item() == pytest.approx(alive)
    torch.testing.assert_close(got.weight.sum(1), torch.ones_like(got.target))


@quick
@given(seeds, st.integers(1, 4))
def test_fewer_starts_are_the_first_rows(seed, starts):
    """Without the TD-k trick only row 0 is asked for. Mutation: a mask of the wrong rows."""
    inputs = random_inputs(seed, horizon=3)
    whole = expanded_returns(*inputs, discount=GAMMA)
    some = expanded_returns(*inputs, discount=GAMMA, starts=starts)
    for targets in TARGETS.values():
        for got, want in zip(targets(some)[:3], targets(whole)[:3], strict=True):
            torch.testing.assert_close(got, want[:starts])


def test_lambda_0_is_one_step_and_lambda_1_is_mve():
    expansion = expanded_returns(*random_inputs(4, horizon=3), discount=GAMMA)
    torch.testing.assert_close(td_lambda_targets(expansion, trace_lambda=1.0).target, mve_targets(expansion).target)
    one_step = td_lambda_targets(expansion, trace_lambda=0.0).target
    torch.testing.assert_close(one_step, torch.stack([return_mean(expansion)[i, i] for i in range(4)]))


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_members_that_agree_give_uniform_weights(scale):
    """(a) Three members, whose mean is rounded. Mutation: no ε; deviations from a rounded mean, at the larger scale."""
    r_0, termination, reward, value = random_inputs(7, horizon=3, batch=(50,), dtype=torch.float32)
    termination, reward, value = termination[..., :1], reward[..., :1, :1], scale * value[..., :1, :1]
    expansion = expanded_returns(
        r_0, termination.expand(-1, -1, 3), reward.expand(-1, -1, 3, 3), value.expand(-1, -1, 3, 3), discount=GAMMA
    )
    assert (return_variance(expansion) == 0).all()
    got = steve_targets(expansion)
    torch.testing.assert_close(got.weight, mve_mean_targets(expansion).weight)
    torch.testing.assert_close(model_use(got), torch.full((50,), 0.75))


@quick
@given(seeds)
def test_a_transition_member_that_disagrees_moves_weight_to_depth_0(seed):
    """(b) Mutation: the variance without its part between transition members."""
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(4, 3, 4, 2, generator=generator)
    value[0] = value[0, :, :1]  # at x_0 all rollouts are in one state
    arguments = (torch.zeros(3), torch.zeros(4, 3, 4), torch.zeros(3, 3, 4, 2))
    before = steve_targets(expanded_returns(*arguments, value, discount=GAMMA))
    value[1:, :, 0] += 100.0  # both critics follow the member where it went
    after = steve_targets(expanded_returns(*arguments, value, discount=GAMMA))
    assert (model_use(after) <= model_use(before)).all()  # none is used where both critics say the same at depth 0
    assert (model_use(after) < 0.05).all()


@quick
@given(seeds)
def test_without_a_horizon_steve_is_td_with_an_ensemble(seed):
    """(c)"""
    r_0, termination, reward, value = random_inputs(seed, horizon=0)
    value[:] = value[:, ..., :1, :]  # x_0 is real: the same for all transition members
    got = steve_targets(expanded_returns(r_0, termination, reward, value, discount=GAMMA, reward_scale=0.5))
    want = td_targets(r_0, termination[0, ..., 0], value[0, ..., 0, :], discount=GAMMA, reward_scale=0.5)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)


def test_one_exact_model_gives_the_return_and_a_bootstrap():
    """(d) Rewards 1, 2, 3 and a critic that says 10 at the end: the reader sees the powers of γ."""
    value = double([77, 88, 10]).reshape(3, 1, 1)  # what it says on the way does not matter
    got = mve_targets(
        expanded_returns(double(1.0), torch.zeros(3, 1).double(), double([[[2.0]], [[3.0]]]), value, discount=0.5)
    )
    close(got.target, [1 + 0.5 * 2 + 0.25 * 3 + 0.125 * 10, 2 + 0.5 * 3 + 0.25 * 10, 3 + 0.5 * 10])


@pytest.mark.parametrize("spread", [0.0, 1e-22, 1e-10, 1e-4, 1.0, 1e10, 1e17])
def test_any_spread_gives_finite_weights_in_float32(spread):
    """Mutation: a bare reciprocal, which overflows where ε is small too."""
    value = spread * torch.randn(4, 6, 4, 4, generator=torch.Generator().manual_seed(0))
    expansion = expanded_returns(torch.ones(6), torch.zeros(4, 6, 4), torch.ones(3, 6, 4, 4), value, discount=GAMMA)
    for epsilon in (1e-8, 1e-39):
        got = steve_targets(expansion, epsilon=epsilon)
        assert got.weight.dtype == torch.float32 and got.weight.isfinite().all() and got.target.isfinite().all()
        torch.testing.assert_close(got.weight.sum(1), torch.ones(4, 6))
    cov = steve_cov_targets(expansion)
    assert cov.target.dtype == torch.float32 and cov.target.isfinite().all()


def test_covariance_weights_in_float32_are_those_of_float64():
    """Depths that have nearly everything in common, 1,000 apart. Mutation: solving in float32."""
    generator = torch.Generator().manual_seed(2)
    shared = 1e3 * torch.randn(1, 5, 4, 4, generator=generator)
    value = shared + torch.randn(4, 5, 4, 4, generator=generator)
    arguments = (torch.zeros(5), torch.zeros(4, 5, 4), torch.zeros(3, 5, 4, 1), value)
    single = steve_cov_targets(expanded_returns(*arguments, discount=1.0))
    exact = steve_cov_targets(expanded_returns(*(leaf.double() for leaf in arguments), discount=1.0))
    torch.testing.assert_close(single.weight.double(), exact.weight, atol=1e-3, rtol=0)


def test_a_member_that_is_sure_of_the_end_is_not_divided_by():
    """After the end, a row counts as reached and keeps the other member's part. Mutation: c_t over c_{i−1} + ε."""
    termination = double([[0, 0], [1, 0], [0, 0]])
    value = double([[1, 1], [2, 2], [4, 8]])[..., None]
    expansion = expanded_returns(double(0.0), termination, torch.zeros(2, 2, 1).double(), value, discount=0.5)
    close(expansion.reach, [1, 1, 0.5])
    close(mve_targets(expansion).target, [(0 + 0.125 * 8) / 2, (0 + 0.25 * 8) / 2, (0.5 * 4 + 0.5 * 8) / 2])


# -- candidates that are not finite


def broken_inputs(seed):
    """Random inputs in which some rewards and values of imagined steps are NaN or infinite."""
    r_0, termination, reward, value = random_inputs(seed)
    generator = torch.Generator().manual_seed(seed)
    for part in (reward, value[1:]):
        draw = torch.rand(part.shape, generator=generator)
        part[draw < 0.15] = [torch.nan, torch.inf, -torch.inf][seed % 3]
    return r_0, termination, reward, value


def finite(values):
    return [value for value in values if math.isfinite(value)]


@quick
@given(seeds)
def test_moments_are_those_of_finite_candidates(seed):
    """Mutations: a member dropped as a whole; members weighted alike whose numbers of finite candidates differ; means
    of depths in the scatter that are not of the same candidates.
    """
    inputs = broken_inputs(seed)
    expansion = expanded_returns(*inputs, discount=GAMMA, reward_scale=0.3)
    mean, variance, scatter = return_mean(expansion), return_variance(expansion), return_scatter(expansion)
    depths = len(inputs[1])
    for b in itertools.product(*map(range, inputs[0].shape)):
        at = (slice(None), *b)
        table = candidates(inputs[0][b], *(leaf[at] for leaf in inputs[1:]), 0.3)
        for i in range(depths):
            for j in range(i, depths):
                left = double(finite(table[i][j]))
                got = (mean[(i, j, *b)], variance[(i, j, *b)])
                if not len(left):
                    assert all(leaf.isnan() for leaf in got)
                    continue
                torch.testing.assert_close(got, (left.mean(), left.var(correction=0)))
            whole = double([each for each in zip(*table[i], strict=True) if all(map(math.isfinite, each))])
            centred = (whole - whole.mean(0)).T if len(whole) else torch.zeros(depths, 0).double()
            torch.testing.assert_close(scatter[(i, *b)], centred @ centred.T)


@quick
@given(seeds, st.sampled_from(sorted(TARGETS)))
def test_targets_are_mixtures_of_depths_with_finite_candidates(seed, kind):
    """The weights of other depths go to these in proportion; without any, the target is the plain one and counted.

    Mutations: weights that are not normalised again; a depth of weight 0 whose mean is NaN; candidates that are counted
    at one depth, or of imagined starts too.
    """
    inputs = broken_inputs(seed)
    expansion = expanded_returns(*inputs, discount=GAMMA)
    got = with_fallback(TARGETS[kind](expansion), expansion)
    depths = len(inputs[1])
    for b in itertools.product(*map(range, inputs[0].shape)):
        at = (slice(None), *b)
        table = candidates(inputs[0][b], *(leaf[at] for leaf in inputs[1:]), 1.0)
        assert got.nonfinite[b].item() == pytest.approx(sum(len(each) - len(finite(each)) for each in table[0]))
        left = table[0]
        if kind == "cov":  # candidates count whole or not at all
            whole = [all(map(math.isfinite, each)) for each in zip(*table[0], strict=True)]
            left = [[value for value, use in zip(each, whole, strict=True) if use] for each in table[0]]
        left = [finite(each) for each in left]
        usable = [j for j in range(depths) if left[j]]
        lost = not usable or (kind == "mve" and depths - 1 not in usable)
        assert got.fallback[(0, *b)].item() == lost
        if lost:
            weights, left = [float(j == 0) for j in range(depths)], [finite(each) or [0.0] for each in table[0]]
        elif kind == "mean":
            weights = [float(j in usable) / len(usable) for j in range(depths)]
        elif kind == "lambda":
            powers = [0.1 * 0.9**j for j in range(depths - 1)] + [0.9 ** (depths - 1)]
            total = sum(powers[j] for j in usable)
            weights = [power * (j in usable) / total for j, power in enumerate(powers)]
        else:
            some = iter(weights_by_hand(kind, [left[j] for j in usable], 0))
            weights = [next(some) if j in usable else 0.0 for j in range(depths)]
        torch.testing.assert_close(got.weight[(0, *at)], double(weights), atol=1e-6, rtol=1e-6)
        want = sum(w * average(each) for w, each in zip(weights, left, strict=True) if w)
        assert got.target[(0, *b)].item() == pytest.approx(want, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("kind", sorted(TARGETS))
def test_without_any_finite_candidate_the_target_says_so(kind):
    """The critics have diverged: the loss is not finite, and the run stops. Imagined starts have no weight there.

    Mutation: a target of 0.
    """
    r_0, termination, reward, value = random_inputs(4, horizon=2, batch=(3,))
    value[:, 1] = torch.nan
    expansion = expanded_returns(r_0, termination, reward, value, discount=GAMMA)
    got = with_fallback(TARGETS[kind](expansion), expansion)
    assert got.target[0].isfinite().tolist() == [True, False, True]
    assert got.target[1:].isfinite().all() and got.reach.isfinite().all() and not got.reach[1:, 1].any()
    assert not got.fallback.any() and got.nonfinite[1] > 0 == got.nonfinite[0]


@pytest.mark.parametrize("kind", sorted(TARGETS))
def test_after_a_real_end_nothing_imagined_counts_even_if_it_is_not_finite(kind):
    """Mutation: 0 · NaN."""
    expansion = expanded_returns(
        double(1.5),
        double([[1.0, 1.0], [torch.nan, 0.0]]),
        double([[[torch.nan], [1.0]]]),
        double([[[torch.inf], [1.0]], [[1.0], [torch.nan]]]),
        discount=GAMMA,
        starts=1,
    )
    got = with_fallback(TARGETS[kind](expansion), expansion)
    close(got.target, [1.5])
    assert got.nonfinite == 0 and not got.fallback.any()


def test_a_depth_whose_variance_overflows_has_no_weight():
    """In float32, where squares of 1e30 are infinite. Mutation: a weight of 1 / inf beside a NaN."""
    _, termination, reward, value = random_inputs(7, horizon=2, batch=(4,), dtype=torch.float32)
    value = value[..., :1].repeat(1, 1, 1, 2)
    value[2, ..., 1] = 1e30
    expansion = expanded_returns(torch.zeros(4), 0 * termination, reward, value, discount=GAMMA, starts=1)
    got = with_fallback(steve_targets(expansion), expansion)
    assert got.target.isfinite().all() and not got.weight[0, 2].any() and not got.nonfinite.any()
    torch.testing.assert_close(got.weight.sum(1), torch.ones(1, 4))


def test_no_gradient_flows():
    """Mutation: an expansion that is not detached."""
    inputs = [leaf.requires_grad_() for leaf in random_inputs(5, horizon=2)]
    expansion = expanded_returns(*inputs, discount=GAMMA)
    for targets in TARGETS.values():
        assert not any(leaf.requires_grad for leaf in (*expansion, *targets(expansion)[:3]))
    r_0, termination, _, value = inputs
    td = td_targets(r_0, termination[0, ..., 0], value[0, ..., 0, :], discount=GAMMA)
    assert not any(leaf.requires_grad for leaf in td[:3])


def test_shapes_that_do_not_fit_are_refused():
    """Mutation: a check that broadcasts."""
    r_0, termination, reward, value = random_inputs(8, horizon=2, batch=(2,))
    for wrong in (
        (r_0[:1], termination, reward, value),
        (r_0, termination[:2], reward, value),
        (r_0, termination[..., None], reward, value),
        (r_0, termination, reward[..., 0], value),
        (r_0, termination, reward, value[:2]),
        (r_0, termination, reward, torch.cat([value, value], -2)),
    ):
        with pytest.raises(AssertionError, match="shapes do not fit"):
            expanded_returns(*wrong, discount=GAMMA)
    for starts in (0, 4):
        with pytest.raises(AssertionError, match="starts"):
            expanded_returns(r_0, termination, reward, value, discount=GAMMA, starts=starts)
    with pytest.raises(AssertionError, match="shapes do not fit"):
        td_targets(r_0, r_0, r_0, discount=GAMMA)
    with pytest.raises(AssertionError, match="trace_lambda"):
        td_lambda_targets(golden(), trace_lambda=1.5)
