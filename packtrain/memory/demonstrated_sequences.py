"""Demonstrations in a memory of sequences: recorded episodes, divided among its environments before a run begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from packtrain import trees
from packtrain.interfaces import DemonstratedState
from packtrain.types import Row

if TYPE_CHECKING:
    from packtrain.memory.sequence_memory import SequenceMemory


def divide_episodes(rows: Iterable[Row], columns: int) -> list[list[Row]]:
    """Return the rows [1, ...] of one environment as those of several: each episode goes where fewest rows are.

    Args:
      rows: of whole episodes, each with `first` in its first row.
      columns: number of environments.
    """
    episodes: list[list[Row]] = []
    for row in rows:
        if bool(row.first[0]):
            episodes.append([])
        episodes[-1].append(row)
    found: list[list[Row]] = [[] for _ in range(columns)]
    for episode in episodes:
        min(found, key=len).extend(episode)
    return found


def store_demonstrations(memory: SequenceMemory, rows: Iterable[Row], state: DemonstratedState) -> int:
    """Write demonstrations as if the memory's environments had played them; return the number of their steps.

    An environment that has fewer rows than others of its group gets resets behind them, which belong to no sequence.
    Errors of actors are not known: with `new_priority = "given"` sequences begin with the largest priority.

    Args:
      memory: without any rows.
      rows: [1, ...] of one environment that plays whole episodes.
      state: number of environments → recurrent state and extras of their rows.
    """
    parts, begin = divide_episodes(rows, memory.columns), 0
    reset = next(part[0] for part in parts if part)
    memory.index.errors_are_known = False
    for group, writer in enumerate(memory.writers):
        mine = parts[begin : begin + writer.columns]
        carry, extras = state(writer.columns)
        extras = {**extras, "priority": np.zeros(writer.columns, np.float32)}
        for t in range(max(map(len, mine))):
            writer.add(_joined([part[t] if t < len(part) else reset for part in mine]), carry, extras)
        memory.release(group)
        begin += writer.columns
    memory.index.errors_are_known = True
    return sum(not bool(row.first[0]) for part in parts for row in part)


def _joined(rows: Sequence[Row]) -> Row:
    """Return rows [1, ...] of B environments as one row [B, ...]."""
    joined: Row = trees.map(lambda *leaves: np.concatenate(leaves), *rows)
    return joined
