"""Action masks: forbidden actions have probability 0 and are never chosen, in training, evaluation and prediction."""

import gymnasium as gym
import numpy as np
import pytest
import torch

import packtrain
from packtrain.envs.action_mask import InfoActionMask
from packtrain.errors import EnvSetupError
from packtrain.networks.action_mask import allowed_actions, masked_logits, masked_values
from packtrain.networks.distributions import Categorical

SMALL = {"total_steps": 600, "num_actors": 4, "eval_every": 600, "eval_episodes": 2, "progress": False}
SETTINGS = {
    "ppo/gym": {"unroll_length": 16, "batch_size": 4, "minibatches": 2},
    "impala/gym": {"unroll_length": 10, "batch_size": 4},
    "dqn/gym": {"warm_up": 100},
    "r2d2/gym": {"warm_up": 100},
}


class Masked(gym.Env):
    """Four actions, of which some are allowed, others each time; a forbidden one is an error."""

    observation_space = gym.spaces.Dict(
        place=gym.spaces.Box(-1, 1, (2,), np.float32), action_mask=gym.spaces.MultiBinary(4)
    )
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._see(), {}

    def step(self, action):
        assert self.mask[action], f"action {action} is forbidden by {self.mask}"
        self.steps += 1
        return self._see(), float(action), False, self.steps >= 10, {}

    def _see(self):
        self.mask = (self.np_random.random(4) < 0.4).astype(np.int8)
        self.mask[self.np_random.integers(4)] = 1
        return {"place": np.zeros(2, np.float32), "action_mask": self.mask.copy()}


@pytest.mark.parametrize("config", SETTINGS)
def test_a_forbidden_action_is_never_taken(config, tmp_path):
    """Random, sampled and greedy ones.

    Mutations: random actions of all; masks of another row; no mask in evaluations.
    """
    run = packtrain.train(config, env=Masked, output_dir=tmp_path / "run", **SMALL, **SETTINGS[config])
    assert len(run.metrics("eval")["step"]) >= 1
    policy, env = packtrain.load(run), Masked()
    for deterministic in (True, False):
        obs, state = env.reset(seed=1)[0], None
        for _ in range(10):
            action, state = policy.predict(obs, state, deterministic=deterministic)
            obs = env.step(action)[0]


def test_probabilities_are_those_of_the_allowed_actions():
    """By hand, with a row that forbids all, which counts as one that allows all."""
    allowed = allowed_actions({"action_mask": torch.tensor([[1, 0, 1], [0, 0, 0]])})
    assert allowed.tolist() == [[True, False, True], [True, True, True]]
    logits = torch.tensor([[0.0, 9.0, 1.0], [0.0, 0.0, 0.0]], requires_grad=True)
    masked = masked_logits(logits, allowed)
    odds = torch.tensor([1.0, 2.718281828])
    torch.testing.assert_close(masked[0].softmax(-1)[[0, 2]], odds / odds.sum())
    entropy = Categorical(3).entropy(masked)
    shares = odds / odds.sum()
    torch.testing.assert_close(entropy, torch.stack([-(shares * shares.log()).sum(), torch.tensor(3.0).log()]))
    entropy.sum().backward()
    assert logits.grad[0, 1] == 0 and logits.grad.isfinite().all()


def test_forbidden_values_are_never_the_largest_and_have_no_gradient():
    values = torch.tensor([[3.0, 9.0, 5.0]], requires_grad=True)
    masked = masked_values(values, torch.tensor([[True, False, True]]))
    assert masked.tolist() == [[3, 2, 5]]
    masked.sum().backward()
    assert values.grad.tolist() == [[1, 0, 1]]


def test_a_mask_in_info_becomes_an_observation():
    taxi = next(name for name in ("Taxi-v4", "Taxi-v3") if name in gym.registry)
    env = InfoActionMask(gym.make(taxi))
    obs, info = env.reset(seed=0)
    assert (obs["action_mask"] == info["action_mask"]).all() and env.observation_space.contains(obs)
    obs, _, _, _, info = env.step(int(np.flatnonzero(obs["action_mask"])[0]))
    assert (obs["action_mask"] == info["action_mask"]).all() and not obs["action_mask"].all()
    with pytest.raises(EnvSetupError, match="Discrete actions"):
        InfoActionMask(gym.make("Pendulum-v1"))


def test_a_mask_of_another_size_is_refused(tmp_path):
    class Wrong(Masked):
        action_space = gym.spaces.Discrete(5)

    for config in ("ppo/gym", "dqn/gym"):
        with pytest.raises(EnvSetupError, match=r"'action_mask' has shape \(4,\)"):
            packtrain.train(config, env=Wrong, output_dir=tmp_path / "run", **SMALL)
