"""Where rows lie: what comes out is what a dict of rows says, wherever they are."""

import os
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain.errors import ConfigError
from packtrain.memory import storage
from packtrain.memory.storage import Rings

CPU = torch.device("cpu")
KINDS = [("device", None), ("host", None), ("disk", None), ("host", "zlib")]
LEAVES = {
    "obs/frame": torch.zeros(1, 3, 5, dtype=torch.uint8),
    "obs/number": torch.zeros(1, dtype=torch.int64),
    "obs/half": torch.zeros(1, 3, dtype=torch.bfloat16),
    "obs/flags": torch.zeros(1, 8, dtype=torch.bool),
    "reward": torch.zeros(1),
}


def some(name, generator, *lead):
    leaf = LEAVES[name]
    return torch.randint(0, 2 if leaf.dtype == torch.bool else 250, (*lead, *leaf.shape[1:]), generator=generator).to(
        leaf.dtype
    )


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.sampled_from(KINDS), st.integers(1, 3), st.integers(1, 70), st.integers(0, 10_000))
def test_what_is_put_is_what_is_taken(kind, columns, length, seed) -> None:
    """One row at a time and many, lap after lap, of all kinds of numbers.

    Mutations: blocks that forget the last lap when they are opened; the open block not read; a block of another
    column; the row that is not there not zero.
    """
    rings, rng, generator = Rings(columns, length, CPU, *kind), np.random.default_rng(seed), torch.Generator()
    generator.manual_seed(seed)
    rings.allocate(LEAVES)
    plain = {
        name: torch.zeros(columns * length + 1, *leaf.shape[1:], dtype=leaf.dtype) for name, leaf in LEAVES.items()
    }
    number = 0
    for _ in range(12):
        begin = int(rng.integers(columns))
        group = slice(begin, int(rng.integers(begin, columns)) + 1)
        count = 1 if rng.random() < 0.5 else int(rng.integers(1, length + 1))
        places = np.arange(number, number + count) % length
        for name in LEAVES:
            rows = some(name, generator, group.stop - begin, count)
            rings.put(name, group, places, rows)
            for column in range(begin, group.stop):
                plain[name][column * length + places] = rows[column - begin]
        number += count
        wanted = torch.from_numpy(rng.integers(0, columns * length + 1, (3, 7)))
        wanted[1, 2] = columns * length
        found = dict(zip(names := rings.names("obs"), rings.take(names, wanted), strict=True))
        (found["reward"],) = rings.take(["reward"], wanted)
        whole = rings.rows(group, places)
        for name in LEAVES:
            assert found[name].dtype == plain[name].dtype and torch.equal(found[name], plain[name][wanted])
            grid = plain[name][:-1].unflatten(0, (columns, length))
            assert torch.equal(whole[name], grid[group, places].transpose(0, 1))


def test_what_is_taken_is_a_copy() -> None:
    """Mutation: a view of the ring."""
    for kind in KINDS:
        rings = Rings(1, 4, CPU, *kind)
        rings.allocate(LEAVES)
        rings.put("obs/number", slice(0, 1), np.array([2]), torch.tensor([[5]]))
        (taken,) = rings.take(["obs/number"], torch.tensor([2]))
        rings.put("obs/number", slice(0, 1), np.array([2]), torch.tensor([[6]]))
        assert taken.tolist() == [5]


def mapped_files():
    with open("/proc/self/maps") as lines:
        return {line.split(maxsplit=5)[5].strip() for line in lines if line.count(" ") and len(line.split()) > 5}


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="only Linux tells what is mapped")
def test_files_lie_in_the_folder_and_have_no_name(tmp_path) -> None:
    """Nothing is left behind, whatever happens. Mutations: a file elsewhere; a named file; files of small leaves."""
    folder = tmp_path / "replay" / "main"
    rings = Rings(2, 50, CPU, "disk")
    rings.folder = folder
    rings.allocate(LEAVES)
    mine = [path for path in mapped_files() if path.startswith(str(folder))]
    assert len(mine) == 4 and all(path.endswith("(deleted)") for path in mine) and not list(folder.iterdir())
    rings.clear()
    assert not [path for path in mapped_files() if path.startswith(str(folder))]


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(tmp_path, monkeypatch) -> None:
    """Mutation: a sparse file, which ends the process when the disk is full."""

    def full(file, begin, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.os, "posix_fallocate", full, raising=False)
    rings = Rings(2, 10_000_000, CPU, "disk")
    rings.folder = tmp_path
    line = f'Sequences.storage = "disk" takes 0.3 GB below {tmp_path}: No space left on device; lower'
    with pytest.raises(ConfigError, match=re.escape(line)):
        rings.allocate({"obs": LEAVES["obs/frame"]})


def test_pictures_that_repeat_are_packed_small() -> None:
    """200 rows of 5,000 bytes in two columns. Mutations: every row by itself; blocks kept as they were too."""
    rings = Rings(2, 100, CPU, "host", "zlib")
    rings.allocate({"obs": torch.zeros(1, 5000, dtype=torch.uint8)})
    frame = torch.randint(0, 256, (5000,), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    for number in range(100):
        rings.put("obs", slice(0, 2), np.array([number]), frame.expand(2, 1, 5000))
    ring = rings._rings["obs"]
    packed = [block for block in ring._packed if block is not None]
    assert len(packed) == 2 * 6 and ring.packed_bytes == sum(map(len, packed)) < 12 * 7000
    assert torch.equal(rings.take(["obs"], torch.arange(200))[0], frame.expand(200, 5000))
