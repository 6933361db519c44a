"""The four ways a learner squeezes a reward."""

import math

import pytest
import torch

from packtrain.equations.rewards import REWARD_CLIPPING, clip_reward

REWARD = torch.tensor([-1000.0, -2.0, -0.5, 0.0, 0.5, 2.0, 1000.0])


def test_abs_one():
    torch.testing.assert_close(clip_reward(REWARD, "abs_one"), torch.tensor([-1, -1, -0.5, 0, 0.5, 1, 1]))


def test_none():
    assert torch.equal(clip_reward(REWARD, "none"), REWARD)


def test_soft_asymmetric():
    """Catches the 0.3 on the wrong side, or squeezing by tanh(r) instead of 5 tanh(r / 5)."""
    want = [
        -1.5,
        0.3 * 5 * math.tanh(-2 / 5),
        0.3 * 5 * math.tanh(-0.5 / 5),
        0,
        5 * math.tanh(0.5 / 5),
        5 * math.tanh(2 / 5),
        5,
    ]
    torch.testing.assert_close(clip_reward(REWARD, "soft_asymmetric"), torch.tensor(want))


@pytest.mark.parametrize("mode", REWARD_CLIPPING)
def test_every_name_works_and_changes_no_input(mode):
    reward = REWARD.clone()[:, None]
    assert clip_reward(reward, mode).shape == reward.shape
    assert torch.equal(reward[:, 0], REWARD)


def test_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="'abs_two', expected one of abs_one, none, soft_asymmetric"):
        clip_reward(REWARD, "abs_two")


def test_symlog_keeps_rewards_of_all_sizes_apart():
    """Mutations: log of 1 + r without its sign; log10."""
    rewards = torch.tensor([-800.0, -10.0, -0.5, 0.0, 1e-3, 10.0, 80.0, 800.0])
    squeezed = clip_reward(rewards, "symlog")
    want = [math.copysign(math.log(1 + abs(r)), r) for r in rewards.tolist()]
    torch.testing.assert_close(squeezed, torch.tensor(want))
    assert (squeezed.diff() > 0).all()
