"""The bandit over a window: against lists, by arithmetic, and that it finds a best arm again after it has changed."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from packtrain.equations.bandit import (
    ArmStatistics,
    Window,
    add_episode,
    agent57_scores,
    arm_statistics,
    choose_arm,
    empty_window,
    ucb1_tuned_scores,
)

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)


def random_window(seed, episodes, columns=3, length=6, arms=4):
    """A window and, beside it, the lists of all (arm, return) of each column."""
    generator = torch.Generator().manual_seed(seed)
    window, lists = empty_window(columns, length), [[] for _ in range(columns)]
    for _ in range(episodes):
        arm = torch.randint(arms, (columns,), generator=generator)
        value = 100 * torch.randn(columns, generator=generator, dtype=torch.float64)
        value += 1000 * (torch.arange(columns) - 1)  # 0 is out of the range, or in it
        ended = torch.rand(columns, generator=generator) < 0.7
        window = add_episode(window, arm, value.masked_fill(~ended, math.nan), ended)
        for c in range(columns):
            if ended[c]:
                lists[c].append((arm[c].item(), value[c].item()))
    return window, lists


@quick
@given(seeds, st.integers(0, 25), st.booleans())
def test_statistics_and_scores_are_those_of_the_last_episodes(seed, episodes, scaled):
    """Against a list's last W. Mutations: a window that never slides; a return one place after its arm; n + 1; a
    variance over episodes of other arms; the bounds of all time.
    """
    window, lists = random_window(seed, episodes)
    got = arm_statistics(window, 4, scaled)
    tuned, simple = ucb1_tuned_scores(got), agent57_scores(got, 2.0)
    assert tuned.shape == simple.shape == got.number.shape == (3, 4)
    for c in range(3):
        recent = lists[c][-6:]
        values = [value for _, value in recent]
        least, span = (min(values), max(values) - min(values)) if values else (0, 0)
        for a in range(4):
            own = [value for arm, value in recent if arm == a]
            if scaled:
                own = [(value - least) / (span or 1) for value in own]
            assert got.number[c, a] == len(own)
            if not own:
                assert tuned[c, a] == simple[c, a] == math.inf
                continue
            mean, variance = statistics.fmean(own), statistics.pvariance(own)
            assert got.mean[c, a].item() == pytest.approx(mean)
            assert got.variance[c, a].item() == pytest.approx(variance)
            log = math.log(len(recent))
            bound = min(0.25, variance + math.sqrt(2 * log / len(own)))
            assert tuned[c, a].item() == pytest.approx(mean + math.sqrt(log / len(own) * bound))
            assert simple[c, a].item() == pytest.approx(mean + 2 * math.sqrt(1 / len(own)))


def test_ucb1_tuned_by_arithmetic():
    """m = 8. A variance of 0 of an arm tried often makes its bound less than ¼. Mutation: max for min."""
    got = ucb1_tuned_scores(
        ArmStatistics(torch.tensor([[7.0, 1.0, 0.0]]), torch.tensor([[0.5, 0.1, 0.0]]), torch.tensor([[0.0, 0.2, 0.0]]))
    )
    share = math.log(8) / 7
    assert math.sqrt(2 * share) > 0.25
    want = [0.5 + math.sqrt(share * 0.25), 0.1 + math.sqrt(math.log(8) * 0.25), math.inf]
    torch.testing.assert_close(got, torch.tensor([want]))
    often = ArmStatistics(torch.tensor([[1000.0, 24.0]]), torch.zeros(1, 2), torch.zeros(1, 2))
    share = math.log(1024) / 1000
    assert math.sqrt(2 * share) < 0.25
    assert ucb1_tuned_scores(often)[0, 0].item() == pytest.approx(math.sqrt(share * math.sqrt(2 * share)))


def test_what_left_the_window_is_gone_and_the_window_given_is_not_changed():
    """A return of a million, then W others: neither mean nor scale remember it."""
    window = add_episode(empty_window(1, 2), torch.tensor([0]), torch.tensor([1e6]), torch.tensor([True]))
    later = window
    for value in (1.0, 3.0):
        later = add_episode(later, torch.tensor([1]), torch.tensor([value]), torch.tensor([True]))
    assert window.number.item() == 1 and window.value.max() == 1e6
    got = arm_statistics(later, 2)
    assert got.number.tolist() == [[0, 2]] and got.mean[0, 1] == 0.5 and got.variance[0, 1] == 0.25


def test_equal_returns_are_no_division_by_zero():
    window = Window(torch.tensor([[0, 1]]), torch.full((1, 2), 5.0), torch.tensor([2]))
    assert arm_statistics(window, 2).mean.tolist() == [[0, 0]]
    assert ucb1_tuned_scores(arm_statistics(window, 2)).isfinite().all()


def test_untried_arms_come_first_then_exploration_then_the_best():
    """Mutation: exploring before every arm was tried; ties to the first."""
    inf = math.inf
    scores = torch.tensor([[9.0, inf, 1.0, inf], [1.0, 2.0, 2.0, 0.0], [1.0, 2.0, 2.0, 0.0], [3.0, 2.0, 2.0, 0.0]])
    noise = torch.tensor([[0.9, 0.1, 0.8, 0.2], [0.9, 0.1, 0.8, 0.2], [0.9, 0.1, 0.8, 0.2], [0.0, 0.1, 0.8, 0.2]])
    explore = torch.tensor([True, False, True, False])
    assert choose_arm(scores, explore, noise).tolist() == [3, 2, 0, 0]


def test_ties_and_exploration_are_fair():
    """2000 draws each: 4 standard deviations of a share of ⅓ or ¼ are below 0.045."""
    noise = torch.rand(2000, 4, generator=torch.Generator().manual_seed(0))
    scores = torch.tensor([5.0, 5.0, 1.0, 5.0]).expand(2000, 4)
    tied = choose_arm(scores, torch.zeros(2000, dtype=torch.bool), noise).bincount(minlength=4) / 2000
    torch.testing.assert_close(tied, torch.tensor([1 / 3, 1 / 3, 0, 1 / 3]), atol=0.045, rtol=0)
    random = choose_arm(scores, torch.ones(2000, dtype=torch.bool), noise).bincount(minlength=4) / 2000
    torch.testing.assert_close(random, torch.full((4,), 0.25), atol=0.045, rtol=0)


def play(length, episodes=300, columns=16):
    """Two arms' returns change places half-way: the arms played, [2 · episodes, columns]."""
    generator = torch.Generator().manual_seed(0)
    window, played = empty_window(columns, length), []
    for episode in range(2 * episodes):
        noise = torch.rand(columns, 2, generator=generator)
        explore = torch.rand(columns, generator=generator) < 0.05
        arm = choose_arm(ucb1_tuned_scores(arm_statistics(window, 2)), explore, noise)
        good = arm == int(episode >= episodes)
        value = good * 50.0 + 10 * torch.randn(columns, generator=generator)
        window = add_episode(window, arm, value, torch.ones(columns, dtype=torch.bool))
        played.append(arm)
    return torch.stack(played)


def test_the_best_arm_is_found_again_within_one_window():
    """A window of 40 against one that never slides, which is late: the negative control. Chance is 0.5."""
    sliding, endless = play(40), play(600)
    for played in (sliding, endless):
        assert (played[100:300] == 0).float().mean() > 0.7
    assert (sliding[340:] == 1).float().mean() > 0.7
    assert (sliding[340:360] == 1).float().mean() > 0.7
    assert (endless[340:360] == 1).float().mean() < 0.5


def test_no_shape_depends_on_data():
    with FakeTensorMode():
        window = add_episode(empty_window(3, 5), torch.zeros(3, dtype=torch.int64), torch.ones(3), torch.ones(3) > 0)
        scores = ucb1_tuned_scores(arm_statistics(window, 4))
        assert choose_arm(scores, torch.ones(3) > 0, torch.rand(3, 4)).shape == (3,)
