"""Keys: an old entry is distinguished from the one that replaced it."""

import pytest
import torch

from packtrain.errors import CheckpointError, ConfigError
from packtrain.memory.slot_generations import SlotGenerations


def test_a_key_is_generation_times_capacity_plus_slot():
    keys = SlotGenerations(4)
    assert keys.take(torch.tensor([0, 3])).tolist() == [0, 3]
    assert keys.take(torch.tensor([3])).tolist() == [7]
    assert keys.take(torch.tensor([3, 1])).tolist() == [11, 1]
    assert keys.of(torch.tensor([0, 1, 2, 3])).tolist() == [0, 1, -2, 11]


def test_only_what_is_still_there_is_found():
    """Literal. Mutations: the generation not compared; an empty slot found by a key below 0; drops not counted."""
    keys = SlotGenerations(4)
    keys.take(torch.tensor([0, 1, 3]))
    keys.take(torch.tensor([3]))
    given = [0, 1, 2, 3, 7, 11, 4, -2, -1]
    assert keys.slots(torch.tensor(given)).tolist() == [0, 1, -1, -1, 3, -1, -1, -1, -1]
    assert int(keys.dropped) == 6
    assert keys.slots(torch.tensor([7, 3])).tolist() == [3, -1] and int(keys.dropped) == 7


def test_keys_survive_a_checkpoint():
    keys = SlotGenerations(3)
    old = keys.take(torch.arange(3))
    new = keys.take(torch.tensor([1]))
    keys.slots(old)
    other = SlotGenerations(3)
    other.restore(keys.snapshot())
    keys.take(torch.tensor([0]))  # a snapshot is a copy
    assert other.slots(old).tolist() == [0, -1, 2] and other.slots(new).tolist() == [1]
    assert int(other.dropped) == 2


def test_impossible_sizes_are_refused():
    with pytest.raises(ConfigError, match=r"SlotGenerations\.capacity = 0 must be at least 1"):
        SlotGenerations(0)
    with pytest.raises(CheckpointError, match="keys of 4 slots cannot be restored from those of 3"):
        SlotGenerations(4).restore(SlotGenerations(3).snapshot())
