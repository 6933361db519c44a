"""How environments are split into groups."""

import pytest

from packtrain.envs.environment import Environment
from packtrain.runtime.experiment import Streams


@pytest.mark.parametrize(
    ("id", "columns", "groups", "sizes"),
    [
        ("Catch", 300, None, [300]),  # steps inside the turn: nothing to overlap
        ("Catch", 7, 2, [4, 3]),
        ("PongNoFrameskip-v4", 1, None, [1]),
        ("PongNoFrameskip-v4", 128, None, [64, 64]),
        ("PongNoFrameskip-v4", 256, None, [64, 64, 64, 64]),
        ("PongNoFrameskip-v4", 256, 2, [128, 128]),
    ],
)
def test_groups(id: str, columns: int, groups: int | None, sizes: list[int]) -> None:
    """One group where stepping is part of the turn, else two, and four where they stay large enough."""
    assert Streams(Environment(id), columns, groups).group_sizes() == sizes
