"""The bench of prioritised replay: tiny, it fills what it says, and its result has what every bench's has."""

import pytest
import torch

from packtrain.bench import replay
from packtrain.bench.measure import table
from packtrain.memory.sequence_memory import SequenceMemory


def test_the_result(monkeypatch) -> None:
    """Mutations: the time at 1 % in place of that of a full memory; memories that are all equally full."""
    monkeypatch.setattr(replay, "TRANSITIONS", 64_000)
    monkeypatch.setattr(replay, "FRAMES", 5_200)
    monkeypatch.setattr(replay, "FILLS", (0.1, 0.5, 1.0))
    monkeypatch.setattr(replay, "ROUNDS", 2)
    result = replay.run(0.02)
    parts = result["parts"]
    assert [(part["name"], part["fill"]) for part in parts] == [
        (name, fill) for name in ("transitions", "sequences") for fill in (0.1, 0.5, 1.0)
    ]
    # Every step of a column but the last three; 3 rows of an episode that is over need no return of 3 steps.
    assert parts[0]["sequences"] == 64 * (100 - 3) and 4 * 20 < parts[5]["sequences"] < 4 * 35
    assert parts[1]["sequences"] < parts[2]["sequences"] <= 64_000
    assert all(part[name] > 0 for part in parts for name in part if name.endswith("per_second"))
    assert [part["times_smallest"] for part in parts[::3]] == [1, 1]
    assert result["bench"] == "replay" and result["passed"] == (result["times_smallest"] <= 1.5)
    assert result["rate"] == parts[2]["samples_per_second"] and result["bound"] == parts[0]["samples_per_second"]
    assert result["ratio"] == pytest.approx(result["rate"] / result["bound"]) and "machine" in result
    assert len(table(result).splitlines()) >= 10


def test_a_slow_sample_is_seen(monkeypatch) -> None:
    """A full memory that takes three times as long fails the bar. Mutation: a median over memories, not rounds."""
    clock = [0.0]
    monkeypatch.setattr(replay.time, "perf_counter", lambda: clock[0])
    plain = SequenceMemory.sample

    def slow(memory, **given):
        clock[0] += 1e-3 * (3 if memory.count > 50_000 else 1)
        return plain(memory, **given)

    def update_priorities(memory, keys, priorities):
        clock[0] += 1e-3

    def add(feed, memory, number, plain=replay._Feed._add):
        clock[0] += 1e-6
        plain(feed, memory, number)

    monkeypatch.setattr(SequenceMemory, "sample", slow)
    monkeypatch.setattr(SequenceMemory, "update_priorities", update_priorities)
    monkeypatch.setattr(replay._Feed, "_add", add)
    monkeypatch.setattr(replay, "FILLS", (0.1, 0.5, 1.0))
    sizes = replay.Sequences(64_000, 1, burn_in=0, stride=1, n_step=3, batch_size=512)
    case = replay.Case("transitions", sizes, 64, replay.np.zeros(8, "f4"), 0)
    parts = replay._measured(case, 0.02, torch.device("cpu"))
    assert [part["times_smallest"] for part in parts] == pytest.approx([1, 1, 3])
    assert [part["batch_ms"] for part in parts] == pytest.approx([1, 1, 3])
    assert [part["inserts_per_second"] for part in parts] == pytest.approx([64e6] * 3)
    assert not replay._result(parts, torch.device("cpu"))["passed"]
