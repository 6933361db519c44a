"""V-trace: by arithmetic, by the paper's sum and product, and by what must hold for any stream."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain.equations.boundaries import boundaries
from packtrain.equations.vtrace import MAX_LOG_RHO, vtrace, vtrace_advantages, vtrace_targets

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)


def col(*rows):
    return torch.tensor(rows, dtype=torch.float64)[:, None]


def paper_targets(v_tm1, v_t, r_t, discount_t, rho_tm1, continue_t, rho_bar, c_bar, trace_lambda):
    """Equation 1 of the paper, sum and product written out: O(T²), no recursion."""
    length, width = r_t.shape
    targets = torch.empty(length, width, dtype=torch.float64)
    for b in range(width):
        for s in range(length):
            target = v_tm1[s, b].item()
            for t in range(s, length):
                product = math.prod(
                    (discount_t[i, b] * trace_lambda * continue_t[i, b] * min(c_bar, rho_tm1[i, b])).item()
                    for i in range(s, t)
                )
                rho = min(rho_bar, rho_tm1[t, b].item())
                target += product * rho * (r_t[t, b] + discount_t[t, b] * v_t[t, b] - v_tm1[t, b]).item()
            targets[s, b] = target
    return targets


def random_stream(seed, length, width, off_policy=True):
    """Arguments of `vtrace` for streams whose episodes end in every way, with fillers where resets drop actions."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.zeros(length + 1, width, dtype=torch.bool)
    terminated, truncated = (torch.zeros(length, width, dtype=torch.bool) for _ in range(2))
    for b in range(width):
        over = False
        for t in range(length):
            if over:
                first[t + 1, b], over = True, False
                continue
            event = torch.rand((), generator=generator).item()
            terminated[t, b] = event < 0.2  # half of these are lost lives: no filler follows
            truncated[t, b] = 0.2 <= event < 0.3
            over = event < 0.1 or bool(truncated[t, b])
    value = torch.randn(length + 1, width, dtype=torch.float64, generator=generator)
    log_rho = torch.rand(length, width, dtype=torch.float64, generator=generator) * 5 - 2.5
    ends = boundaries(first, terminated, truncated, 0.9)
    return {
        "v_tm1": value[:-1],
        "v_t": value[1:],
        "r_t": torch.randn(length, width, dtype=torch.float64, generator=generator),
        "discount_t": ends.discount_t.double(),
        "log_rho_tm1": log_rho if off_policy else torch.zeros_like(log_rho),
        "continue_t": ends.continue_t.double(),
        "weight_t": ends.weight_t.double(),
    }


def in_rows(stream, rows):
    return {name: value[rows] for name, value in stream.items()}


# By arithmetic.


def test_on_policy_target_is_the_discounted_sum():
    """The reader sees the powers of γ; the last bootstrap is v_t[2] = 8."""
    got = vtrace_targets(
        v_tm1=col(5, 6, 7),
        v_t=col(6, 7, 8),
        r_t=col(1, 2, 4),
        discount_t=col(0.5, 0.5, 0.5),
        rho_tm1=col(1, 1, 1),
        continue_t=col(1, 1, 1),
    )
    want = col(
        1 + 0.5 * 2 + 0.25 * 4 + 0.125 * 8,
        2 + 0.5 * 4 + 0.25 * 8,
        4 + 0.5 * 8,
    )
    torch.testing.assert_close(got, want)


def test_rho_bar_weighs_the_errors_and_c_bar_the_traces():
    """Ratio 4 in both rows, rho_bar 3, c_bar 2, λ ½. Catches the two clips exchanged, and λ on δ instead of c."""
    got = vtrace_targets(
        v_tm1=col(0, 0),
        v_t=col(0, 10),
        r_t=col(1, 100),
        discount_t=col(0.5, 0.5),
        rho_tm1=col(4, 4),
        continue_t=col(1, 1),
        rho_bar=3.0,
        c_bar=2.0,
        trace_lambda=0.5,
    )
    later = 3 * (100 + 0.5 * 10)
    torch.testing.assert_close(got, col(3 * 1 + 0.5 * (0.5 * 2) * later, later))


def test_no_rho_bar_is_no_clipping():
    arguments = col(0.0), col(2.0), col(1.0), col(0.5), col(4.0)
    torch.testing.assert_close(vtrace_targets(*arguments, col(1.0), rho_bar=None), col(4 * (1 + 0.5 * 2)))
    torch.testing.assert_close(vtrace_advantages(*arguments, pg_rho_bar=None), col(4 * (1 + 0.5 * 2)))


def test_advantage_uses_the_next_target_and_its_own_clip():
    """Catches V(x_{s+1}) or v_s in the place of v_{s+1}, and rho_bar in that of pg_rho_bar."""
    got = vtrace(
        v_tm1=col(5, 6),
        v_t=col(6, 8),
        r_t=col(1, 2),
        discount_t=col(0.5, 0.5),
        log_rho_tm1=col(math.log(3), math.log(3)),
        continue_t=col(1, 1),
        weight_t=col(1, 1),
        rho_bar=1.0,
        pg_rho_bar=2.0,
    )
    second = 2 + 0.5 * 8  # ρ = 1: the return itself
    torch.testing.assert_close(got.targets, col(1 + 0.5 * second, second))
    torch.testing.assert_close(
        got.advantages,
        col(
            2 * (1 + 0.5 * second - 5),
            2 * (2 + 0.5 * 8 - 6),  # the end of the unroll: the bootstrap value
        ),
    )


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_truncation_bootstraps_from_the_final_observation_and_termination_does_not(ending):
    """Row 1 ends the episode in an observation worth 20; row 2 is the filler, row 3 the next episode.

    Catches a truncation treated as a termination (20 gone), a termination treated as a truncation (20 leaks), and a
    filler that hands the trace on to the next episode (1000 leaks).
    """
    ended = torch.tensor([[False], [True], [False], [False]])
    never = torch.zeros_like(ended)
    first = torch.tensor([[True], [False], [False], [True], [False]])
    ends = boundaries(
        first,
        terminated=ended if ending == "terminated" else never,
        truncated=ended if ending == "truncated" else never,
        discount=0.5,
    )
    got = vtrace(
        v_tm1=col(3, 4, 20, 5),
        v_t=col(4, 20, 5, 6),
        r_t=col(1, 2, 0, 1000),
        discount_t=ends.discount_t.double(),
        log_rho_tm1=col(0, 0, 0, 0),
        continue_t=ends.continue_t.double(),
        weight_t=ends.weight_t.double(),
    )
    final = 20 if ending == "truncated" else 0
    returns = 1 + 0.5 * 2 + 0.25 * final, 2 + 0.5 * final, 1000 + 0.5 * 6
    torch.testing.assert_close(got.targets, col(returns[0], returns[1], 20, returns[2]))
    torch.testing.assert_close(got.advantages, col(returns[0] - 3, returns[1] - 4, 0, returns[2] - 5))


def test_truncated_row_needs_no_filler_behind_it():
    """A truncated row, then an unrelated one. Catches the trace (1000) or v_{s+1} (100) taken across an end."""
    got = vtrace(
        v_tm1=col(1, 100),
        v_t=col(20, 7),
        r_t=col(2, 1000),
        discount_t=col(0.5, 0.5),
        log_rho_tm1=col(0, 0),
        continue_t=col(0, 1),
        weight_t=col(1, 1),
    )
    torch.testing.assert_close(got.targets[:1], col(2 + 0.5 * 20))
    torch.testing.assert_close(got.advantages[:1], col(2 + 0.5 * 20 - 1))


# By brute force.


@pytest.mark.parametrize("width", [1, 5])
def test_equals_the_textbook_sum(width):
    """TorchBeast's and seed_rl's test, in float32: ratios on both sides of every clip, a discount per column."""
    length = 5
    ramp = torch.arange(length * width, dtype=torch.float32).reshape(length, width) / (length * width)
    log_rho = 5 * ramp - 2.5
    assert log_rho.min() == -2.5 and log_rho.max() < 2.5 and log_rho.exp().max() > 3.7
    discount_t = torch.tensor([[0.9 / (b + 1) for b in range(width)]] * length)
    value = torch.cat([ramp * 3 + 0.5, torch.arange(float(width))[None] + 1])
    ones = torch.ones(length, width)
    v_tm1, v_t = value[:-1], value[1:]
    got = vtrace(v_tm1, v_t, ramp, discount_t, log_rho, ones, ones, rho_bar=3.7, pg_rho_bar=2.2)
    want = paper_targets(v_tm1, v_t, ramp, discount_t, log_rho.exp(), ones, 3.7, 1.0, 1.0)
    assert got.targets.shape == got.advantages.shape == (length, width)
    torch.testing.assert_close(got.targets.double(), want, rtol=1e-6, atol=1e-5)
    next_target = torch.cat([want[1:], v_t[-1:].double()])
    advantages = log_rho.double().exp().clamp(max=2.2) * (ramp + discount_t * next_target - v_tm1)
    torch.testing.assert_close(got.advantages.double(), advantages, rtol=1e-6, atol=1e-5)


@quick
@given(
    seed=seeds,
    length=st.integers(1, 12),
    width=st.integers(1, 3),
    rho_bar=st.floats(0.5, 4),
    c_bar=st.floats(0.5, 4),
    trace_lambda=st.floats(0, 1),
)
def test_equals_the_textbook_sum_on_any_stream(seed, length, width, rho_bar, c_bar, trace_lambda):
    """Catches a setting that `vtrace` does not hand on; with traces cut elsewhere too, continue_t left out of c."""
    clips = {"rho_bar": rho_bar, "c_bar": c_bar, "trace_lambda": trace_lambda}
    stream = random_stream(seed, length, width)
    stream["continue_t"] = stream["continue_t"] * (torch.arange(length * width).reshape(length, width) % 3 > 0)
    got = vtrace(**stream, **clips).targets
    stream["rho_tm1"] = stream.pop("log_rho_tm1").exp() * stream.pop("weight_t")
    torch.testing.assert_close(got, paper_targets(**stream, **clips))
    torch.testing.assert_close(vtrace_targets(**stream, **clips), got)


# By properties.


@quick
@given(seed=seeds, length=st.integers(1, 25), width=st.integers(1, 3))
def test_on_policy_is_the_n_step_return_with_bootstrap(seed, length, width):
    """Catches a value that does not cancel between δ_t and δ_{t+1}, and traces that outlive an episode."""
    stream = random_stream(seed, length, width, off_policy=False)
    got = vtrace(**stream)
    for b in range(width):
        for s in range(length):
            if stream["weight_t"][s, b] == 0:
                continue
            want, power, t = 0.0, 1.0, s
            while True:
                want += power * stream["r_t"][t, b].item()
                power *= stream["discount_t"][t, b].item()
                if stream["continue_t"][t, b] == 0 or t == length - 1:
                    break
                t += 1
            want += power * stream["v_t"][t, b].item()
            assert got.targets[s, b].item() == pytest.approx(want)
            assert got.advantages[s, b].item() == pytest.approx(want - stream["v_tm1"][s, b].item())


@quick
@given(seed=seeds, length=st.integers(1, 12))
def test_lambda_0_is_one_step(seed, length):
    """Catches λ ignored, or applied to δ."""
    stream = random_stream(seed, length, 2)
    rho = stream["log_rho_tm1"].exp().clamp(max=1) * stream["weight_t"]
    error = stream["r_t"] + stream["discount_t"] * stream["v_t"] - stream["v_tm1"]
    torch.testing.assert_close(vtrace(**stream, trace_lambda=0.0).targets, stream["v_tm1"] + rho * error)


@quick
@given(
    seed=seeds,
    before=st.integers(1, 9),
    after=st.integers(1, 9),
    ending=st.sampled_from(["terminated", "truncated", "lost life"]),
)
def test_cutting_at_an_episode_end_gives_the_two_pieces(seed, before, after, ending):
    """A stream of two episodes against each of them alone. Catches anything that crosses the end.

    With a filler row in between, except after a lost life. The first piece keeps its last row's v_t: the value of the
    final observation.
    """
    filler = int(ending != "lost life")
    length = before + filler + after
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(length + 1, 2, dtype=torch.float64, generator=generator)
    terminated, truncated = (torch.zeros(length, 2, dtype=torch.bool) for _ in range(2))
    first = torch.zeros(length + 1, 2, dtype=torch.bool)
    (truncated if ending == "truncated" else terminated)[before - 1] = True
    first[before + 1] = bool(filler)
    ends = boundaries(first, terminated, truncated, 0.9)
    whole = {
        "v_tm1": value[:-1],
        "v_t": value[1:],
        "r_t": torch.randn(length, 2, dtype=torch.float64, generator=generator),
        "log_rho_tm1": torch.rand(length, 2, dtype=torch.float64, generator=generator) * 5 - 2.5,
    }
    got = vtrace(**whole, **{name: part.double() for name, part in ends._asdict().items()})

    head, tail = slice(0, before), slice(before + filler, None)
    inside = torch.full((length, 2), 0.9, dtype=torch.float32).double()
    ones = torch.ones_like(inside)
    pieces = in_rows({**whole, "discount_t": inside, "continue_t": ones, "weight_t": ones}, slice(None))
    head_alone = in_rows(pieces, head)
    if ending != "truncated":
        head_alone["discount_t"] = head_alone["discount_t"].clone()
        head_alone["discount_t"][-1] = 0.0
    for rows, piece in ((head, vtrace(**head_alone)), (tail, vtrace(**in_rows(pieces, tail)))):
        torch.testing.assert_close(got.targets[rows], piece.targets)
        torch.testing.assert_close(got.advantages[rows], piece.advantages)
    assert (got.advantages[before : before + filler] == 0).all()
    torch.testing.assert_close(got.targets[before : before + filler], value[before : before + filler])


@quick
@given(seed=seeds, length=st.integers(2, 20), noise=st.floats(-1e6, 1e6))
def test_filler_rows_contribute_nothing_whatever_they_hold(seed, length, noise):
    """Catches rho not multiplied by the weight, and v_{s+1} read from a filler."""
    stream = random_stream(seed, length, 3)
    filler = stream["weight_t"] == 0
    other = dict(stream)
    for name in ("v_tm1", "v_t", "r_t", "log_rho_tm1"):
        other[name] = torch.where(filler, noise, stream[name])
    got, want = vtrace(**other, rho_bar=None), vtrace(**stream, rho_bar=None)
    torch.testing.assert_close(got.targets[~filler], want.targets[~filler], rtol=0, atol=0)
    torch.testing.assert_close(got.advantages, want.advantages, rtol=0, atol=0)
    assert (got.advantages[filler] == 0).all()


def test_nan_in_a_filler_is_silenced():
    """Catches multiplication by the weight alone: 0 · NaN is NaN."""
    stream = random_stream(3, 20, 3)
    filler = stream["weight_t"] == 0
    assert filler.any()
    want = vtrace(**stream)
    for name in ("r_t", "log_rho_tm1"):
        stream[name] = stream[name].masked_fill(filler, math.nan)
    got = vtrace(**stream)
    torch.testing.assert_close(got.targets, want.targets, rtol=0, atol=0)
    torch.testing.assert_close(got.advantages, want.advantages, rtol=0, atol=0)


@quick
@given(seed=seeds, order=st.permutations(range(4)))
def test_permuting_columns_permutes_the_result(seed, order):
    """Catches anything that mixes columns."""
    stream = random_stream(seed, 9, 4)
    got = vtrace(**{name: value[:, order] for name, value in stream.items()})
    want = vtrace(**stream)
    torch.testing.assert_close(got.targets, want.targets[:, order], rtol=0, atol=0)
    torch.testing.assert_close(got.advantages, want.advantages[:, order], rtol=0, atol=0)


@pytest.mark.parametrize("log_ratio", [1e4, -1e4, math.inf, -math.inf])
def test_huge_log_ratios_stay_finite_without_clipping(log_ratio):
    """Catches the missing clamp: exp(1e4) is inf, and inf · 0 is NaN."""
    ones = torch.ones(80, 2)
    got = vtrace(
        v_tm1=ones,
        v_t=ones,
        r_t=0.01 * ones,  # with discount 0.99 every δ is 0, where inf would give NaN
        discount_t=0.99 * ones,
        log_rho_tm1=log_ratio * ones,
        continue_t=ones,
        weight_t=ones,
        rho_bar=None,
        pg_rho_bar=None,
    )
    assert got.targets.dtype == torch.float32
    assert got.targets.isfinite().all() and got.advantages.isfinite().all()


def test_clamp_leaves_useful_ratios_alone():
    """Catches a clamp that bites: at MAX_LOG_RHO / 2 the ratio is still the true one."""
    one = col(1.0)
    got = vtrace(0 * one, 0 * one, one, one, one * MAX_LOG_RHO / 2, one, one, rho_bar=None)
    torch.testing.assert_close(got.targets, col(math.exp(MAX_LOG_RHO / 2)))


def test_results_are_detached_and_inputs_unchanged():
    stream = random_stream(0, 6, 2)
    copies = {name: value.clone() for name, value in stream.items()}
    for name in ("v_tm1", "v_t", "log_rho_tm1"):
        stream[name] = stream[name].clone().requires_grad_()
    got = vtrace(**stream)
    assert not got.targets.requires_grad and not got.advantages.requires_grad
    leaf = torch.ones(2, 2, requires_grad=True)
    assert not vtrace_targets(leaf, leaf, leaf, leaf, leaf, leaf).requires_grad
    assert not vtrace_advantages(leaf, leaf, leaf, leaf, leaf).requires_grad
    assert all(torch.equal(stream[name], copies[name]) for name in stream)


@pytest.mark.parametrize("shape", [(4, 3, 1), (4, 1), (1, 3), (3,), ()])
@pytest.mark.parametrize("position", range(6))
def test_shapes_that_would_broadcast_are_refused(position, shape):
    """Catches an argument left out of the assertion."""
    arguments = [torch.ones(4, 3) for _ in range(6)]
    arguments[position] = torch.ones(shape)
    with pytest.raises(AssertionError, match="shapes differ"):
        vtrace_targets(*arguments)
    if position < 5:
        with pytest.raises(AssertionError, match="shapes differ"):
            vtrace_advantages(*arguments[:5])
    with pytest.raises(AssertionError, match="shapes differ"):
        vtrace(*arguments, torch.ones(4, 3))


def test_rank_is_checked_and_so_is_the_weight():
    with pytest.raises(AssertionError, match="2 dimensions"):
        vtrace_targets(*[torch.ones(4, 3, 1)] * 6)
    with pytest.raises(AssertionError, match="2 dimensions"):
        vtrace_advantages(*[torch.ones(4)] * 5)
    with pytest.raises(AssertionError, match="shapes differ"):
        vtrace(*[torch.ones(4, 3)] * 6, torch.ones(4, 1))
