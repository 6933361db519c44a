"""The table of docs/spaces.md, cell by cell: what is promised works, and what is refused is one line."""

import re
import sys
import types
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from packtrain import config, knobs
from packtrain.errors import Error
from packtrain.runtime.preparation import prepare

PAGE = Path(__file__).parent.parent / "docs" / "spaces.md"
S = gym.spaces
VECTOR, DISCRETE, BOUNDED = S.Box(-1, 1, (3,), np.float32), S.Discrete(3), S.Box(-2, 2, (2,), np.float32)
IMAGE = S.Box(0, 255, (84, 84, 3), np.uint8)
OBSERVATIONS = {
    "Box, a vector": [VECTOR],
    "Box, an image of bytes": [IMAGE, S.Box(0, 255, (84, 84), np.uint8)],
    "Box, a small image of 32 × 32": [S.Box(0, 255, (32, 32, 3), np.uint8)],
    "Discrete": [S.Discrete(5, start=2)],
    "MultiDiscrete": [S.MultiDiscrete([2, 3])],
    "MultiBinary": [S.MultiBinary(4)],
    "Dict or Tuple of these": [S.Dict(a=IMAGE, b=VECTOR), S.Tuple((S.Discrete(2), S.MultiBinary(3)))],
    "Dict with two images": [S.Dict(a=IMAGE, b=IMAGE)],
    "Text, Graph, Sequence": [S.Text(5), S.Graph(VECTOR, None), S.Sequence(VECTOR)],
}
ACTIONS = {
    "Discrete": [DISCRETE, S.Discrete(3, start=1)],
    "MultiDiscrete": [S.MultiDiscrete([2, 3])],
    "MultiBinary": [S.MultiBinary(4)],
    "Box, a bounded vector": [BOUNDED],
    "Box without bounds": [S.Box(-np.inf, np.inf, (2,), np.float32)],
    "Dict or Tuple": [S.Dict(a=DISCRETE), S.Tuple((DISCRETE, DISCRETE))],
}
FAMILIES = (
    ("impala/gym", "ppo/gym"),
    ("dqn/gym", "r2d2/gym"),
    ("sac/gym", "td3/gym", "ddpg/gym", "steve/steve_pendulum"),
)
SETTINGS = {"impala/gym": "ActorCritic", "ppo/gym": "ActorCritic", "dqn/gym": "QNetwork", "r2d2/gym": "QNetwork"}
USUAL = (DISCRETE, DISCRETE, BOUNDED)  # actions that each column of the table takes


class Spaces(gym.Env):
    """An environment of any spaces."""

    def __init__(self, observation, action):
        self.observation_space, self.action_space = observation, action

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, False, False, {}


def try_out(name, observation, action, *bindings):
    """Build everything for an environment of these spaces; the error, or None."""
    module = types.ModuleType("spaces_for_table")
    module.make = lambda: Spaces(observation, action)
    sys.modules["spaces_for_table"] = module
    gym.registry.pop("spaces_for_table:make", None)
    with config.alone():
        try:
            prepare([knobs.find_config(name)[0]], list(bindings), {"env": "spaces_for_table:make"}, None, True)
        except Error as error:
            assert "\n" not in str(error), error
            return error
    return None


def rows():
    row = r"^\| (observation|action): ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$"
    found = re.findall(row, PAGE.read_text(), re.M)
    assert len(found) == len(OBSERVATIONS) + len(ACTIONS)
    return [(kind, what, tuple(cells)) for kind, what, *cells in found]


@pytest.mark.parametrize("kind, what, cells", rows(), ids=lambda value: value if isinstance(value, str) else "")
def test_each_row(kind, what, cells):
    """Mutations: any cell changed."""
    for column, (cell, names) in enumerate(zip(cells, FAMILIES, strict=True)):
        for space in (OBSERVATIONS if kind == "observation" else ACTIONS)[what]:
            pair = (space, USUAL[column]) if kind == "observation" else (VECTOR, space)
            for name in names:
                error = try_out(name, *pair)
                assert (error is None) == (cell == "yes"), (name, what, space, error)
                if cell == "with a setting":
                    perception = "@Flatten()" if "two" in what else "@Conv()"
                    assert try_out(name, *pair, f"{SETTINGS[name]}.perception = {perception}") is None, (name, space)
