"""Rows that say which they are, and a plain list of them: what a replay of sequences must hold and show."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from packtrain.memory.sequence_memory import SequenceMemory
from packtrain.memory.sequence_settings import Sequences
from packtrain.types import Row, Sample


class Numbered:
    """Environments whose rows say which they are, and a list of all that each has ever shown."""

    def __init__(self, groups: Sequence[int], seed: int, longest: int = 12, steps: Iterable[int] = ()):
        """Nothing is shown yet.

        Args:
          groups: number of environments in each group.
          seed: of episodes and rewards.
          longest: no episode is as long.
          steps: lengths of the first episodes.
        """
        self.rng, self.longest = np.random.default_rng(seed), longest
        self.lengths = iter(steps)  # lengths of the first episodes; later ones are random
        self.groups, self.begin = groups, np.cumsum([0, *groups])
        self.columns: list[list[dict[str, Any]]] = [[] for _ in range(sum(groups))]

    def step(self, memory: SequenceMemory, group: int) -> None:
        """Add the next row of one group to a memory."""
        columns = range(self.begin[group], self.begin[group + 1])
        for column in columns:
            self.columns[column].append(self.next_row(column))
        latest = [self.columns[column][-1] for column in columns]
        pick = lambda name, dtype: np.array([row[name] for row in latest], dtype)  # noqa: E731
        number = pick("number", np.float32)
        fields: dict[str, Any] = {
            "obs": {"frame": pick("frame", np.uint8), "place": pick("place", np.float64)},
            "last_action": pick("action", np.int64),
            "last_reward": {"train": pick("reward", np.float32), "side": -pick("reward", np.float32)},
            **{name: pick(name, bool) for name in ("first", "terminated", "truncated")},
        }
        row = Row(**fields)
        carry = tuple(torch.from_numpy(pick(name, np.float32)[:, None, None]) for name in ("number", "column"))
        extras = {"known": 7 * number, "unwanted": number, "priority": pick("error", np.float32)}
        memory.writer(group).add(row, carry, extras)
        shown: tuple[Any, ...] = (*carry, row.obs["frame"], row.first, *extras.values())
        for leaf in shown:  # observations are valid only until the next call
            leaf[:] = 99

    def next_row(self, column: int) -> dict[str, Any]:
        """Return the next row of one environment."""
        rows = self.columns[column]
        number, before = len(rows), rows[-1] if rows else {"left": 0}
        first = before["left"] == 0
        left = next(self.lengths, int(self.rng.integers(0, self.longest))) if first else before["left"] - 1
        end = self.rng.integers(5) if left == 0 and not first else 9  # 4: the episode is dropped without an end
        return {
            "number": number,
            "column": column,
            "left": left,
            "episode": number if first else before["episode"],
            "frame": np.full((2, 2), (3 * number + column) % 256),
            "place": (column, number),
            "first": first,
            "action": 0 if first else int(self.rng.integers(1, 100)),
            "reward": 0.0 if first else float(self.rng.integers(1, 100)),
            "terminated": end in (0, 1) or (end == 9 and not first and self.rng.random() < 0.1),  # a lost life
            "truncated": end in (1, 2, 3),
            "error": float(self.rng.random()),
        }

    def items(self, sizes: Sequences, context: int, length: int) -> list[tuple[int, int, int, int]]:
        """Column, start, rows in front, steps of all sequences that are whole and of which no row is gone."""
        found, after = [], max(sizes.n_step, 1) - 1
        for column, rows in enumerate(self.columns):
            for begin, group in itertools.groupby(rows, key=lambda row: row["episode"]):
                final = list(group)[-1]["number"]
                over = final + 1 < len(rows)
                starts = [s for s in range(begin, final, sizes.stride) if s + sizes.sequence_length <= final]
                if over and final > begin and (not starts or starts[-1] + sizes.sequence_length < final):
                    starts.append(max(begin, final - sizes.sequence_length))
                for start in starts:
                    steps = min(sizes.sequence_length + after, final - start)
                    if not over and steps < sizes.sequence_length + after:
                        continue  # the rows that its returns need have not been collected
                    front = min(context + sizes.burn_in, start - begin)
                    if start - front >= len(rows) - length:
                        found.append((column, start, front, steps))
        return sorted(found)


def live(memory: SequenceMemory) -> list[tuple[int, ...]]:
    """Return the sequences that can be sampled, each as often as it is there: environment, start, front, steps."""
    memory._upload()
    chances = memory.index.tree.snapshot()["priorities"]
    return sorted(tuple(memory.index.items[slot].tolist()) for slot in chances.nonzero().flatten())


def run(memory: SequenceMemory, stream: Numbered, turns: int, rng: np.random.Generator) -> None:
    """Add rows of groups in random order."""
    for _ in range(turns):
        stream.step(memory, int(rng.integers(len(stream.groups))))


def check(sample: Sample, stream: Any, sizes: Sequences, context: int) -> None:
    """Every row of a sample against the list, one by one."""
    t = sample.trajectory
    c, length = context + sizes.burn_in, sizes.sequence_length + max(sizes.n_step, 1) - 1
    assert t.obs["frame"].shape == (c + length + 1, sizes.batch_size, 2, 2) and t.obs["frame"].dtype == torch.uint8
    assert t.first.shape == t.obs["place"].shape[:2] and t.action.shape == t.reward.shape == (length, sizes.batch_size)
    assert t.last_action.shape == t.last_reward["side"].shape == (c + 1, sizes.batch_size)
    for b in range(sizes.batch_size):
        column, start = (int(x) for x in t.obs["place"][c, b])
        rows = stream.columns[column]
        begin = rows[start]["episode"]
        final = max(row["number"] for row in rows if row["episode"] == begin)
        for o in range(-c, length + 1):
            number, at = start + o, (c + o, b)
            if not begin <= number <= final:
                assert not t.obs["frame"][at].any() and not t.obs["place"][at].any()
                assert bool(t.first[at]) == (number > final)
                if o > 0:
                    assert not t.action[o - 1, b] and not t.reward[o - 1, b] and not t.extras["reward/side"][o - 1, b]
                    assert not t.terminated[o - 1, b] and not t.truncated[o - 1, b]
                else:
                    assert not t.last_action[at] and not t.last_reward["train"][at]
                continue
            row = rows[number]
            assert t.obs["frame"][at].tolist() == row["frame"].tolist() and bool(t.first[at]) == row["first"]
            assert t.obs["place"][at].tolist() == [column, number]
            if o > 0:
                assert (t.action[o - 1, b], t.reward[o - 1, b]) == (row["action"], row["reward"])
                assert t.extras["reward/side"][o - 1, b] == -row["reward"]
                assert bool(t.terminated[o - 1, b]) == row["terminated"]
                cut = number == final and o < length and not row["terminated"]
                assert bool(t.truncated[o - 1, b]) == (row["truncated"] or cut)
            else:
                assert (t.last_action[at], t.last_reward["train"][at]) == (row["action"], row["reward"])
                assert t.last_reward["side"][at] == -row["reward"]
        for o in range(length):
            assert bool(t.extras["weight"][o, b]) == (o < sizes.sequence_length and start + o < final)
            assert t.extras["known"][o, b] == (7 * (start + o) if start + o < final else 0)
        assert t.carry[0][b].item() == max(start - sizes.burn_in, begin) and t.carry[1][b].item() == column
    assert set(t.extras) == {"known", "weight", "reward/side"}
