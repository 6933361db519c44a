"""The learned model's face: decoding, thresholds, disagreement and masks on crafted ensembles."""

import gymnasium as gym
import numpy as np
import pytest

from packtrain.errors import ConfigError, EnvSetupError
from packtrain.planning.learned import EnsembleModel, LearnedModel
from packtrain.types import Request

SPACE = gym.spaces.Box(0, 2, (3,), np.float32)
ACTIONS = gym.spaces.Discrete(2)


class World:
    """What a model looks at: spaces."""

    def __init__(self, observation_space: gym.Space = SPACE):
        self.observation_space, self.action_space = observation_space, ACTIONS


def model(members: int = 4, mask_size: int | None = None, **more) -> EnsembleModel:
    return LearnedModel(members, mask_size, **{"cache": False, **more}).build(World(), seed=0)


def guess(own: EnsembleModel, obs: np.ndarray, columns: np.ndarray, **answer: np.ndarray):
    own.begin(columns, 0)
    asking = own.step(own.roots(columns, obs), np.zeros(len(obs), int), np.random.default_rng(0))
    request = next(asking)
    assert isinstance(request, Request) and request.network == "model"
    np.testing.assert_array_equal(request.inputs["obs"], obs)
    with pytest.raises(StopIteration) as end:
        asking.send(answer)
    return end.value.value


def test_decoding_by_hand() -> None:
    """Mean change, clipped, rounded with halves up; rewards and ends by the mean belief; the members' deviation.

    Mutations: NumPy's half-to-even rounding (1.5 and 0.5 would both give 2 and 0); the mean of logits, not of beliefs.
    """
    obs = np.array([[1, 0, 2]], np.float32)
    delta = np.array([[[0.5, 0.5, 0.9], [0.5, 0.5, 0.9], [0.5, 0.5, -0.1], [0.5, 0.5, -0.1]]], np.float32)
    logits = np.array([[9.0, -1.0, -1.0, -1.0]], np.float32)  # mean logit above 0, mean belief 0.45
    got = guess(model(), obs, np.array([0]), delta=delta, reward=-logits, terminated=logits)
    np.testing.assert_array_equal(got.states["obs"], [[2, 1, 2]])
    assert (got.rewards[0], got.terminated[0], got.solved[0]) == (1.0, False, False)
    assert got.bonus[0] == pytest.approx((0 + 0 + 0.5) / 3)


def test_members_that_agree_have_no_disagreement() -> None:
    """Identical members: 0, whatever they say."""
    delta = np.broadcast_to(np.array([0.3, -0.2, 0.1], np.float32), (2, 4, 3))
    zeros = np.zeros((2, 4), np.float32)
    got = guess(model(), np.ones((2, 3), np.float32), np.arange(2), delta=delta, reward=zeros, terminated=zeros)
    np.testing.assert_allclose(got.bonus, 0, atol=1e-7)


def test_masks_are_drawn_per_column_and_episode_without_replacement() -> None:
    """And only masked members are heard. Mutation: one mask for all columns."""
    own = model(8, 4)
    columns = np.arange(200)
    own.begin(columns, 0)
    masks = own.roots(columns, np.zeros((200, 3)))["mask"].copy()
    assert masks.shape == (200, 4) and all(len(set(mask)) == 4 for mask in masks.tolist())
    assert len({tuple(mask) for mask in masks.tolist()}) > 50
    counts = np.bincount(masks.ravel(), minlength=8)
    assert counts.min() > 70 and counts.max() < 130
    own.begin(columns[:100], 1)
    again = own.roots(columns, np.zeros((200, 3)))["mask"]
    np.testing.assert_array_equal(again[100:], masks[100:])
    assert (again[:100] != masks[:100]).any(axis=1).mean() > 0.8
    delta = np.zeros((1, 8, 3), np.float32)
    delta[0, [m for m in range(8) if m not in again[5]]] = 100.0
    zeros = np.zeros((1, 8), np.float32)
    asking = own.step(own.roots(np.array([5]), np.zeros((1, 3))), np.zeros(1, int), np.random.default_rng(0))
    next(asking)
    with pytest.raises(StopIteration) as end:
        asking.send({"delta": delta, "reward": zeros, "terminated": zeros})
    assert end.value.value.states["obs"].max() == 0 and end.value.value.bonus[0] == 0


def test_keys_are_those_of_observations() -> None:
    """Negative zero is zero, and the mask does not matter."""
    own = model(8, 4)
    own.begin(np.arange(2), 0)
    keys = own.keys(own.roots(np.arange(2), np.array([[0.0, 1, 2], [-0.0, 1, 2]])))
    assert keys[0] == keys[1]


def test_bad_settings_are_refused() -> None:
    """With one line."""
    with pytest.raises(ConfigError, match="mask_size"):
        LearnedModel(4, 5)
    with pytest.raises(EnvSetupError, match="vector"):
        LearnedModel().build(World(gym.spaces.Box(0, 1, (3, 3))), 0)
