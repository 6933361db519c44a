"""Divergences between action distributions: by arithmetic, against slow sums and integrals, and at the edges."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain.equations import divergences
from packtrain.equations.divergences import (
    categorical_bhattacharyya,
    categorical_chi_square,
    categorical_hellinger,
    categorical_jensen_shannon,
    categorical_kl,
    categorical_log_chi_square,
    categorical_total_variation,
    chi_square_from_log,
    clipped_gaussian_hellinger,
    clipped_gaussian_jensen_shannon,
    gaussian_bhattacharyya,
    gaussian_hellinger,
    gaussian_jensen_shannon,
    gaussian_kl,
    jensen_shannon_distance,
    joint_logits,
)

CATEGORICAL = [
    categorical_kl,
    categorical_jensen_shannon,
    categorical_hellinger,
    categorical_total_variation,
    categorical_bhattacharyya,
    categorical_chi_square,
]
ONE_WAY = (categorical_kl, categorical_chi_square)  # those that are no symmetric functions
GAUSSIAN = [gaussian_kl, gaussian_bhattacharyya, gaussian_hellinger]


def logits(*probabilities):
    return torch.tensor(probabilities, dtype=torch.float64).log()


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


def naive_kl(p, q):
    total = 0.0
    for a, b in zip(p, q, strict=True):
        if a > 0:
            total += a * math.log(a / b) if b > 0 else math.inf
    return total


def naive_js(p, q):
    mixture = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return naive_kl(p, mixture) / 2 + naive_kl(q, mixture) / 2


def naive_affinity(p, q):
    return sum(math.sqrt(a * b) for a, b in zip(p, q, strict=True))


def naive_chi_square(p, q):
    total = 0.0
    for a, b in zip(p, q, strict=True):
        if a > 0:
            total += a**2 / b if b > 0 else math.inf
    return total - 1


def naive(p, q):
    """All categorical divergences of two lists of probabilities, in the order of CATEGORICAL."""
    affinity = naive_affinity(p, q)
    return [
        naive_kl(p, q),
        naive_js(p, q),
        math.sqrt(sum((math.sqrt(a) - math.sqrt(b)) ** 2 for a, b in zip(p, q, strict=True)) / 2),
        sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2,
        -math.log(affinity) if affinity > 0 else math.inf,
        naive_chi_square(p, q),
    ]


def test_two_coins_by_arithmetic():
    """Mutations: bits for nats; the square of Hellinger; twice the total variation; KL the wrong way round."""
    p, q = logits(0.5, 0.5), logits(0.8, 0.2)
    affinity = math.sqrt(0.4) + math.sqrt(0.1)
    assert categorical_kl(p, q).item() == pytest.approx(0.5 * math.log(5 / 8) + 0.5 * math.log(5 / 2))
    assert categorical_kl(q, p).item() == pytest.approx(0.8 * math.log(1.6) + 0.2 * math.log(0.4))
    assert categorical_hellinger(p, q).item() == pytest.approx(math.sqrt(1 - affinity))
    assert categorical_bhattacharyya(p, q).item() == pytest.approx(-math.log(affinity))
    assert categorical_total_variation(p, q).item() == pytest.approx(0.3)
    # m = (0.65, 0.35)
    want = 0.25 * math.log(10 / 13) + 0.25 * math.log(10 / 7) + 0.4 * math.log(16 / 13) + 0.1 * math.log(4 / 7)
    assert categorical_jensen_shannon(p, q).item() == pytest.approx(want)
    assert jensen_shannon_distance(vector(want)).item() == pytest.approx(math.sqrt(want))
    assert categorical_chi_square(p, q).item() == pytest.approx(0.09 / 0.8 + 0.09 / 0.2)
    assert categorical_chi_square(q, p).item() == pytest.approx(0.09 / 0.5 + 0.09 / 0.5)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.floats(0.1, 8.0))
def test_rows_are_the_naive_sums(seed, actions, scale):
    """Brute force over rows [2, 3, A], logits not normalised and with actions that p or q never takes."""
    generator = torch.Generator().manual_seed(seed)
    p, q = scale * torch.randn(2, 2, 3, actions, generator=generator, dtype=torch.float64)
    p[0, 0, 1:] = -math.inf  # one action only
    p[1, 0, 1], q[1, 0, 1], q[1, 1, 0] = -math.inf, -math.inf, -math.inf
    for index, divergence in enumerate(CATEGORICAL):
        got = divergence(p, q)
        assert got.shape == (2, 3)
        want = [
            [naive(p[i, j].softmax(-1).tolist(), q[i, j].softmax(-1).tolist())[index] for j in range(3)]
            for i in range(2)
        ]
        torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=1e-7, atol=1e-9)


def test_distributions_that_share_no_action():
    """Mutation: no mask before 0 · inf, which gives NaN."""
    p, q = logits(1.0, 0.0, 0.0), logits(0.0, 0.3, 0.7)
    got = [divergence(p, q).item() for divergence in CATEGORICAL]
    assert got == pytest.approx([math.inf, math.log(2), 1.0, 1.0, math.inf, math.inf])
    assert jensen_shannon_distance(vector(got[1])).item() == pytest.approx(math.sqrt(math.log(2)))


@pytest.mark.parametrize("divergence", CATEGORICAL, ids=lambda f: f.__name__)
def test_logits_may_be_moved_by_a_constant_and_equal_ones_are_at_distance_0(divergence):
    """Mutation: logits taken as they are."""
    torch.manual_seed(1)
    p, q = torch.randn(2, 5, 4, dtype=torch.float64)
    torch.testing.assert_close(divergence(p + 3.0, q - 40.0), divergence(p, q))
    assert divergence(p, p + 2).abs().max() < 1e-7
    rounded = torch.randn(1000, 4)
    assert divergence(rounded, rounded).min() >= 0
    if divergence not in ONE_WAY:
        torch.testing.assert_close(divergence(q, p), divergence(p, q))


@pytest.mark.parametrize("divergence", CATEGORICAL, ids=lambda f: f.__name__)
def test_gradients_are_finite_where_an_action_is_masked_in_both(divergence):
    """χ² is e^120 in the second row, which float32 cannot hold. Mutation: exponentials of unbounded log-ratios."""
    p = torch.tensor([[0.3, -1.0, -math.inf], [60.0, -60.0, 0.0]], requires_grad=True)
    found = divergence(p, torch.tensor([[1.0, 0.5, -math.inf], [-60.0, 60.0, 0.0]]))
    found.sum().backward()
    assert found.isfinite().all() and p.grad.isfinite().all() and p.grad.square().sum().isfinite()
    assert p.grad[0].abs().max() > 0


def test_logarithms_of_chi_square_of_independent_choices_add_up():
    """Σ p²/q = 0.5²/0.8 + 0.5²/0.2 = 1.5625 for two coins; for two pairs of them 1.5625². Mutation: products of χ²."""
    p, q = logits(0.5, 0.5), logits(0.8, 0.2)
    assert categorical_log_chi_square(p, q).item() == pytest.approx(math.log(1.5625))
    assert chi_square_from_log(2 * categorical_log_chi_square(p, q)).item() == pytest.approx(1.5625**2 - 1)


def test_chi_square_is_exact_up_to_its_edge_and_grows_monotonely_above():
    """Two actions with log-ratio z: e^20 is representable, e^100 is not in float32. Mutation: a clamp, whose gradient
    is 0 where the policies are furthest apart."""
    z = torch.tensor([1.0, 20.0, 29.0, 31.0, 60.0, 100.0, 1000.0], requires_grad=True)
    p, q = torch.stack([0 * z, z], -1), torch.stack([z, 0 * z], -1)
    found = categorical_chi_square(p, q)
    found.sum().backward()
    want = categorical_chi_square(p.detach().double(), q.detach().double())
    torch.testing.assert_close(found[:3].detach().double(), want[:3], rtol=1e-5, atol=0.0)
    assert (want[3:] > found[3:]).all() and (found.diff() > 0).all() and found.isfinite().all()
    assert (z.grad > 0).all() and z.grad.isfinite().all()


def test_a_small_divergence_is_not_rounding():
    """p and q differ by 1e-3 relative in float32: JS = Σ (p−q)² / 8m. Mutation: the mean of two KL sums, in float32."""
    p = torch.full((64,), 1 / 64, dtype=torch.float32)
    tilt = torch.tensor([1e-3, -1e-3]).repeat(32)
    got = categorical_jensen_shannon((p * (1 + tilt)).log(), p.log())
    want = naive_js((p * (1 + tilt)).double().tolist(), p.double().tolist())
    assert want == pytest.approx(1e-6 / 8, rel=1e-2)
    assert got.item() == pytest.approx(want, rel=2e-3)
    assert categorical_jensen_shannon(p.log(), p.log()).item() == 0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_inequalities_between_them(seed):
    """H² ≤ TV ≤ √2 H, Pinsker, JS ≤ log 2 · TV, KL ≤ log(1 + χ²), and triangles for the distances."""
    p, q, r = 3 * torch.randn(3, 16, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    hellinger, variation = categorical_hellinger(p, q), categorical_total_variation(p, q)
    slack = 1e-9
    assert (hellinger**2 <= variation + slack).all() and (variation <= math.sqrt(2) * hellinger + slack).all()
    assert (variation <= (categorical_kl(p, q) / 2).sqrt() + slack).all()
    assert (categorical_jensen_shannon(p, q) <= math.log(2) * variation + slack).all()
    assert (categorical_kl(p, q) <= categorical_chi_square(p, q).log1p() + slack).all()
    for distance in (
        categorical_hellinger,
        categorical_total_variation,
        lambda a, b: jensen_shannon_distance(categorical_jensen_shannon(a, b)),
    ):
        assert (distance(p, r) <= distance(p, q) + distance(q, r) + slack).all()


def density(x, mean, std):
    return math.exp(-((x - mean) ** 2) / (2 * std**2)) / (std * math.sqrt(2 * math.pi))


def integral(function, low=-30.0, high=30.0, pieces=6000):
    """The midpoint rule."""
    width = (high - low) / pieces
    return width * sum(function(low + (i + 0.5) * width) for i in range(pieces))


PAIRS = [((0.0, 1.0), (1.0, 1.0)), ((0.5, 0.4), (-0.7, 2.0)), ((1.0, 1.5), (1.0, 0.5))]


@pytest.mark.parametrize(("p", "q"), PAIRS)
def test_gaussians_in_one_dimension_are_the_integrals(p, q):
    """Mutations: standard deviations where variances belong (the second pair); KL the wrong way round."""
    arguments = [vector(value) for value in (*p, *q)]
    kl = integral(lambda x: density(x, *p) * ((x - q[0]) ** 2 / q[1] ** 2 - (x - p[0]) ** 2 / p[1] ** 2) / 2)
    kl += math.log(q[1] / p[1])
    affinity = integral(lambda x: math.sqrt(density(x, *p) * density(x, *q)))
    assert gaussian_kl(*arguments).item() == pytest.approx(kl, rel=1e-6)
    assert gaussian_bhattacharyya(*arguments).item() == pytest.approx(-math.log(affinity), rel=1e-6)
    assert gaussian_hellinger(*arguments).item() == pytest.approx(math.sqrt(1 - affinity), rel=1e-6)


@pytest.mark.parametrize(("p", "q"), PAIRS)
def test_the_estimated_jensen_shannon_divergence_is_the_integral(p, q):
    """20,000 samples a side, to four standard errors (f varies by less than log 2). Mutation: half the sum."""

    def both(x):
        a, b = density(x, *p), density(x, *q)
        m = (a + b) / 2
        return (a * math.log(a / m) if a > 0 else 0) / 2 + (b * math.log(b / m) if b > 0 else 0) / 2

    noise = torch.randn(20_000, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    got = gaussian_jensen_shannon(*(vector(value) for value in (*p, *q)), noise)
    assert got.shape == ()
    assert got.item() == pytest.approx(integral(both), abs=0.008)


def test_dimensions_are_independent():
    """[2, D] rows: sums over D for KL and Bhattacharyya, a product of affinities for Hellinger."""
    torch.manual_seed(4)
    means, stds = torch.randn(2, 2, 3, dtype=torch.float64), torch.rand(2, 2, 3, dtype=torch.float64) + 0.2
    arguments = (means[0], stds[0], means[1], stds[1])
    single = [[tensor[..., d : d + 1] for tensor in arguments] for d in range(3)]
    torch.testing.assert_close(gaussian_kl(*arguments), sum(gaussian_kl(*one) for one in single))
    torch.testing.assert_close(gaussian_bhattacharyya(*arguments), sum(gaussian_bhattacharyya(*one) for one in single))
    affinity = math.prod(1 - gaussian_hellinger(*one) ** 2 for one in single)
    torch.testing.assert_close(gaussian_hellinger(*arguments), (1 - affinity).sqrt())
    assert gaussian_hellinger(*arguments).shape == (2,)


def test_the_estimate_is_bounded_row_by_row_and_by_a_naive_loop():
    torch.manual_seed(5)
    means, stds = 3 * torch.randn(2, 4, 3, dtype=torch.float64), torch.rand(2, 4, 3, dtype=torch.float64) + 0.2
    noise = torch.randn(7, 4, 3, dtype=torch.float64)
    got = gaussian_jensen_shannon(means[0], stds[0], means[1], stds[1], noise)
    for row in range(4):
        total = 0.0
        for side in range(2):
            for sample in range(7):
                x = means[side, row] + stds[side, row] * noise[sample, row]
                a, b = (
                    math.prod(density(x[d].item(), means[k, row, d].item(), stds[k, row, d].item()) for d in range(3))
                    for k in range(2)
                )
                share = a / (a + b)
                total += sum(part * math.log(2 * part) for part in (share, 1 - share) if part > 0) / 14
        assert got[row].item() == pytest.approx(total, rel=1e-6, abs=1e-12)
        assert 0 <= got[row] <= math.log(2)
    same = gaussian_jensen_shannon(means[0], stds[0], means[0], stds[0], noise)
    assert same.abs().max() == 0


def test_gaussians_far_apart():
    """Mutation: densities instead of their logarithms, which are 0 / 0 here."""
    far = [vector(0.0), vector(0.01), vector(50.0), vector(0.02)]
    noise = torch.zeros(2, 1, dtype=torch.float64)
    assert gaussian_jensen_shannon(*far, noise).item() == pytest.approx(math.log(2))
    assert gaussian_hellinger(*far).item() == pytest.approx(1)
    for divergence in GAUSSIAN:
        assert divergence(*far[:2], *far[:2]).item() == 0


def test_unequal_shapes_are_refused():
    """Mutation: no assertion, and [3, 1] against [3] broadcasts."""
    for divergence in CATEGORICAL:
        with pytest.raises(AssertionError, match="shapes differ"):
            divergence(torch.zeros(3, 1), torch.zeros(1, 3))
    wide, narrow = torch.ones(2, 3), torch.ones(2, 1)
    for divergence in GAUSSIAN:
        with pytest.raises(AssertionError, match="shapes differ"):
            divergence(wide, narrow, wide, wide)
    with pytest.raises(AssertionError, match="shapes differ"):
        gaussian_jensen_shannon(wide, wide, wide, wide, torch.ones(5, 3))


# Gaussians that are clipped, and several choices at once

PAIRS = [(0.1, 0.5, 0.0, 0.4), (-0.6, 0.3, 0.5, 1.2), (3.0, 0.5, 5.0, 0.9), (-2.0, 0.4, 1.5, 0.3)]
INFINITE = torch.tensor([math.inf])


def masses(mean, std, bound, cells=200_000):
    """The probabilities of a clipped Gaussian: below, in narrow cells, above."""
    edges = torch.linspace(-bound, bound, cells + 1, dtype=torch.float64)
    inner = torch.special.ndtr((edges - mean) / std)
    return torch.cat([inner[:1], inner.diff(), 1 - inner[-1:]])


@pytest.mark.parametrize("pair", PAIRS)
def test_clipped_gaussians_by_brute_force(pair):
    """Mutations: σ for σ² in the spread of √(pq); no mass beyond the bounds; one of the two bounds forgotten."""
    p, q = masses(pair[0], pair[1], 1.0), masses(pair[2], pair[3], 1.0)
    sides = [torch.tensor([value], dtype=torch.float64) for value in pair]
    bound = torch.tensor([1.0], dtype=torch.float64)
    want = (1 - (p * q).sqrt().sum()).clamp(min=0).sqrt()
    got = clipped_gaussian_hellinger(*sides, bound)
    assert got.shape == ()
    torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)
    middle = (p + q) / 2
    terms = [torch.where(side > 0, side * (side / middle).log(), 0.0).sum() for side in (p, q)]
    noise = torch.randn(40_000, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    estimate = clipped_gaussian_jensen_shannon(*sides, bound, noise)
    torch.testing.assert_close(estimate, 0.5 * (terms[0] + terms[1]), atol=6e-3, rtol=0.02)


def test_without_bounds_they_are_the_plain_ones_and_dimensions_multiply():
    """Mutation: the sum of the dimensions' distances."""
    made = torch.Generator().manual_seed(1)
    p_mean, q_mean = (torch.randn(5, 3, generator=made) for _ in range(2))
    p_std, q_std = (0.3 + torch.rand(5, 3, generator=made) for _ in range(2))
    noise = torch.randn(4000, 5, 3, generator=made)
    bound = INFINITE.expand(3)
    torch.testing.assert_close(
        clipped_gaussian_hellinger(p_mean, p_std, q_mean, q_std, bound),
        gaussian_hellinger(p_mean, p_std, q_mean, q_std),
    )
    torch.testing.assert_close(
        clipped_gaussian_jensen_shannon(p_mean, p_std, q_mean, q_std, bound, noise),
        gaussian_jensen_shannon(p_mean, p_std, q_mean, q_std, noise),
        atol=0.02,
        rtol=0.05,
    )


def test_joint_logits_are_those_of_all_combinations():
    """Mutation: the first choice varies fastest."""
    p = torch.randn(4, 5, generator=torch.Generator().manual_seed(2))
    joint = joint_logits(p, (2, 3))
    for first, second in itertools.product(range(2), range(3)):
        want = p[:, :2].log_softmax(-1)[:, first] + p[:, 2:].log_softmax(-1)[:, second]
        torch.testing.assert_close(joint[:, 3 * first + second], want)


def test_every_public_function_is_tested_here():
    public = {n for n, f in vars(divergences).items() if getattr(f, "__module__", "") == divergences.__name__}
    others = (
        gaussian_jensen_shannon,
        jensen_shannon_distance,
        clipped_gaussian_hellinger,
        clipped_gaussian_jensen_shannon,
        joint_logits,
        categorical_log_chi_square,
        chi_square_from_log,
    )
    tested = {f.__name__ for f in (*CATEGORICAL, *GAUSSIAN, *others)}
    assert {name for name in public if not name.startswith("_")} == tested
