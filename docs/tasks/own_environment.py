"""Train on a Gymnasium environment of your own, and act with the result.

    python docs/tasks/own_environment.py

The command line does the same with the class in a file of the current folder: `packtrain train ppo/gym --env
own_environment:Corridor`.
"""

import gymnasium as gym
import numpy as np

import packtrain


class Corridor(gym.Env):
    """Walk right to the end of a corridor: reward 1 there, and a small cost for every step."""

    def __init__(self, length=6):
        self.length = length
        self.observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = 0, 0
        return self._observation(), {}

    def step(self, action):
        self.place = max(0, self.place + (1 if action == 1 else -1))
        self.steps += 1
        at_end = self.place == self.length
        return self._observation(), float(at_end) - 0.01, at_end, self.steps >= 50, {}

    def _observation(self):
        return np.array([self.place / self.length], np.float32)


if __name__ == "__main__":
    run = packtrain.train(
        "ppo/gym",
        env=Corridor,
        env_kwargs={"length": 6},
        total_steps=6_000,
        eval_every=3_000,
        output_dir="runs/corridor",
    )
    policy = packtrain.load(run)
    env = Corridor()
    obs, _ = env.reset()
    state, done, total = None, False, 0.0
    while not done:
        action, state = policy.predict(obs, state)
        obs, reward, terminated, truncated, _ = env.step(action)
        done, total = terminated or truncated, total + reward
    print(f"return {total:.2f} in {env.steps} steps")
