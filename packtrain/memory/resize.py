"""Resuming a replay of sequences with another number, or other groups, of environments.

Each environment of the snapshot has a history: rows, and sequences that lie in them. With as many environments as
before, every history moves to the environment of the same index. With fewer or more, histories are divided into blocks
of sequences that share rows, which are episodes, and the blocks are dealt out: the newest first, each to the
environment that has the fewest rows so far. A block that has no room is cut between two sequences, and the rows that
both need are stored twice. Whatever does not fit is older than what was kept, and is counted.

A sequence keeps its rows, its carry and its priority. Only its place changes, and the key that its sample carries.

All but `restore_resized` are functions of a snapshot.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from packtrain.errors import warn

if TYPE_CHECKING:
    from packtrain.memory.segments import NoSegments, Segments
    from packtrain.memory.sequence_memory import SequenceMemory

log = logging.getLogger("packtrain")
Rows = dict[str, Tensor]


class Stored(NamedTuple):
    """Consecutive rows of one group of environments, as a snapshot refers to them."""

    first: int  # number of the first row
    end: int
    rows: Rows | None  # [end − first, group, ...]; None: lost with their segment file
    known: bool = False  # the snapshot already records the loss


class Notes(NamedTuple):
    """Sequences of a snapshot, [M] each, ordered by environment and then by their first rows."""

    slot: np.ndarray
    env: np.ndarray
    start: np.ndarray  # number of row 0, the first row to learn from
    front: np.ndarray  # number of rows before it (context and burn-in)
    steps: np.ndarray

    @property
    def first(self) -> np.ndarray:
        """Return the first row that each sequence needs."""
        found: np.ndarray = self.start - self.front
        return found

    @property
    def end(self) -> np.ndarray:
        """Return the row after the last one that each sequence needs."""
        found: np.ndarray = self.start + self.steps + 1
        return found


class Piece(NamedTuple):
    """Rows `first` to `end` − 1 of an environment, which become rows `to` and later of another one."""

    env: int
    first: int
    end: int
    new_env: int
    to: int


class Plan(NamedTuple):
    """New positions of rows and sequences."""

    notes: Notes
    pieces: list[Piece]
    new_env: np.ndarray  # [M] new environment of each sequence; −1: it does not fit
    new_start: np.ndarray  # [M] new start of each sequence
    begin: int  # number of the first row from now on
    rows: int  # number of the row that is written next

    @property
    def kept(self) -> np.ndarray:
        """Which sequences are kept, bool [M]."""
        return self.new_env >= 0

    def describe(self, old_envs: int, envs: int) -> str:
        """Return one line with the numbers of kept sequences and steps."""
        kept = self.kept
        return (
            f"the replay of {old_envs} environments goes on with {envs}: {int(kept.sum()):,} of {len(kept):,} "
            f"sequences kept, {count_steps(self.notes, kept):,} of {count_steps(self.notes):,} steps"
        )


def group_sizes(snapshot: dict[str, Any]) -> list[int]:
    """Return the number of environments in each group of a snapshot."""
    return [len(sink["episode"]) for sink in snapshot["sinks"]]


def stored_rows(
    sink: dict[str, Any], group: int, groups: int, length: int, segments: Segments | NoSegments
) -> Iterator[Stored]:
    """Yield the stored rows of one group in order, one segment at a time, since all together are large.

    Args:
      sink: of the group, from a snapshot.
      group: its number.
      groups: how many there are.
      length: L, rows of each environment.
      segments: where rows lie that are not in the snapshot.
    """
    rows, begin = int(sink["rows"]), int(sink.get("begin", 0))
    oldest = max(begin, rows - length)
    count = {part: len(sink[part]["first"]) if sink[part] else 0 for part in ("head", "tail")}
    if count["head"]:
        yield Stored(oldest, oldest + count["head"], sink["head"])
    size = (rows - oldest - sum(count.values())) // max(1, len(sink["segments"]))  # rows of a segment
    for description in sink["segments"]:
        first = (description["number"] - group) // groups * size
        yield Stored(first, first + size, segments.read(description, size), known="lost" in description)
    if count["tail"]:
        yield Stored(rows - count["tail"], rows, sink["tail"])


def read_notes(index: dict[str, Any]) -> Notes:
    """Return the sequences of an index's snapshot."""
    made, gone, queue = index["made"], index["gone"], index["queue"]
    items, length = index["items"].numpy(), queue.shape[2]
    slots = [queue[0, env, np.arange(gone[env], made[env]) % length] for env in range(len(made))]
    slot = np.concatenate([np.zeros(0, np.int64), *slots])
    env, start, front, steps = items[slot].T if len(slot) else np.zeros((4, 0), np.int64)
    return Notes(slot, env, start, front, steps)


def count_steps(notes: Notes, which: np.ndarray | None = None) -> int:
    """Return the number of distinct steps in some sequences, or in all."""
    if which is not None:
        notes = Notes(*(column[which] for column in notes))
    first, end = notes.first, notes.end - 1  # the last row only ends the last step
    before = np.where(notes.env[1:] == notes.env[:-1], np.maximum(first[1:], end[:-1]), first[1:])
    return int((end - np.concatenate([first[:1], before])).sum())


def make_plan(notes: Notes, rows: np.ndarray, envs: int, length: int, begin: int) -> Plan:
    """Choose a new position for every sequence.

    Args:
      notes: the sequences.
      rows: [old environments] number of the row that each writes next.
      envs: number of environments from now on.
      length: L, rows of each of them.
      begin: number of the first row from now on.
    """
    pieces, new_env, shift = _move(notes, rows) if envs == len(rows) else _deal(notes, rows, envs, length)
    # Positions are relative to the row that is written next, which is the same for all environments.
    next_row = begin - min((piece.to for piece in pieces), default=0)
    pieces = [piece._replace(to=piece.to + next_row) for piece in pieces]
    return Plan(notes, pieces, new_env, notes.start + shift + next_row, begin, next_row)


def _move(notes: Notes, rows: np.ndarray) -> tuple[list[Piece], np.ndarray, np.ndarray]:
    """Keep every history in its environment; rows are numbered relative to the next row to be written."""
    pieces = []
    for env in np.unique(notes.env).tolist():
        mine = notes.env == env
        first, end = int(notes.first[mine].min()), int(notes.end[mine].max())
        pieces.append(Piece(env, first, end, env, first - int(rows[env])))
    return pieces, notes.env.copy(), -rows[notes.env]


def _deal(notes: Notes, rows: np.ndarray, envs: int, length: int) -> tuple[list[Piece], np.ndarray, np.ndarray]:
    """Distribute blocks of rows, newest first; rows are numbered relative to the next row to be written."""
    first, end = notes.first, notes.end
    apart = (notes.env[1:] != notes.env[:-1]) | (first[1:] >= end[:-1])
    bounds = np.concatenate([[0], np.flatnonzero(apart) + 1, [len(first)]]) if len(first) else np.zeros(1, np.int64)
    blocks = np.stack([bounds[:-1], bounds[1:]], axis=1)
    age = rows[notes.env[blocks[:, 1] - 1]] - end[blocks[:, 1] - 1]
    # Equal shares, so that none is full while another is empty; up to two sequences of room may be wasted at cuts.
    share = -(-int((end[blocks[:, 1] - 1] - first[blocks[:, 0]]).sum()) // envs)
    room = min(length, share + 2 * int((end - first).max(initial=0)))
    new_env, shift = np.full(len(first), -1), np.zeros(len(first), np.int64)
    used = [(0, env) for env in range(envs)]  # a heap of (rows so far, environment)
    pieces = []
    for block in np.argsort(age, kind="stable"):
        begin, until = (int(bound) for bound in blocks[block])
        while used and begin < until:
            there, env = heapq.heappop(used)
            last = int(end[until - 1])
            # the oldest do not fit
            cut = begin + int(np.searchsorted(first[begin:until], last - (room - there)))
            if cut == until:
                continue  # it is full
            size = last - int(first[cut])
            pieces.append(Piece(int(notes.env[cut]), int(first[cut]), last, env, -there - size))
            new_env[cut:until], shift[cut:until] = env, -there - last
            heapq.heappush(used, (there + size, env))
            until = cut
    return pieces, new_env, shift


def resized_index(index: dict[str, Any], plan: Plan, envs: int, length: int, slots: int) -> dict[str, Any]:
    """Return the snapshot of an index with sequences at their new positions.

    Args:
      index: its snapshot, with nothing in progress.
      plan: where they go.
      envs: number of environments.
      length: L, rows of each.
      slots: capacity of its tree.
    """
    order = np.lexsort((plan.new_start, plan.new_env))
    order = order[plan.kept[order]]
    notes, env = Notes(*(column[order] for column in plan.notes)), plan.new_env[order]
    count, start = len(order), plan.new_start[order]
    queue, made = np.zeros((2, envs, length), np.int64), np.bincount(env, minlength=envs)
    turn = np.arange(count) - np.concatenate([[0], np.cumsum(made)[:-1]])[env]
    queue[0, env, turn], queue[1, env, turn] = np.arange(count), start - notes.front
    old = torch.from_numpy(notes.slot)
    priorities = torch.zeros(slots, dtype=torch.float64)
    priorities[:count] = index["tree"]["priorities"][old]
    generation = torch.full((slots,), -1, dtype=torch.int64)
    generation[:count] = 0
    span = len(index["errors"])
    return {
        "items": torch.from_numpy(np.stack([env, start, notes.front, notes.steps], axis=1)),
        "carries": [leaf[old] for leaf in index["carries"]],
        "recent": [leaf.new_zeros(span, envs, *leaf.shape[2:]) for leaf in index["recent"]],
        "errors": np.zeros((span, envs), np.float32),
        "freed": np.zeros(0, np.int64),
        "resting": np.zeros(0, np.int64),
        "made": made.astype(np.int64),
        "gone": np.zeros(envs, np.int64),
        "queue": queue,
        "largest": index["largest"],
        "tree": {"priorities": priorities},
        "keys": {"generation": generation, "dropped": index["keys"]["dropped"]},
    }


def first_free_row(snapshot: dict[str, Any], groups: int, size: int) -> int:
    """Return a row number that avoids the segment names that older checkpoints refer to.

    Args:
      snapshot: of the memory as it was.
      groups: number of groups from now on.
      size: rows of a segment from now on.
    """
    numbers = [description["number"] for sink in snapshot["sinks"] for description in sink["segments"]]
    return (max(numbers) // groups + 1) * size if numbers else 0


class Mover:
    """Copies stored rows to their new positions, and translates the numbers of lost rows."""

    def __init__(self, plan: Plan, old_groups: Sequence[int]):
        """Create a mover; nothing is copied yet.

        Args:
          plan: where rows go.
          old_groups: number of environments in each group of the snapshot.
        """
        ends = np.cumsum([0, *old_groups])
        self._pieces: list[list[Piece]] = [
            sorted(piece for piece in plan.pieces if begin <= piece.env < end)
            for begin, end in zip(ends[:-1], ends[1:], strict=True)
        ]
        self._begin = ends

    def move(self, group: int, part: Stored, put: Callable[[int, np.ndarray, Rows], None]) -> None:
        """Write to each environment the rows that it takes over.

        Args:
          group: number of the old group.
          part: its rows.
          put: called with an environment, row numbers [R] and rows [R, 1, ...].
        """
        assert part.rows is not None
        taken: dict[int, list[tuple[np.ndarray, int, int]]] = {}
        for piece, first, end in self.overlaps(group, part.first, part.end):
            numbers = np.arange(first, end)
            where = (numbers - part.first, piece.env - int(self._begin[group]), piece.to - piece.first)
            taken.setdefault(piece.new_env, []).append(where)
        for env, parts in taken.items():
            row = np.concatenate([rows for rows, _, _ in parts])
            column = np.concatenate([np.full(len(rows), place) for rows, place, _ in parts])
            to = np.concatenate([rows + part.first + shift for rows, _, shift in parts])
            rows, columns = torch.from_numpy(row), torch.from_numpy(column)
            put(env, to, {name: leaf[rows, columns].unsqueeze(1) for name, leaf in part.rows.items()})

    def overlaps(self, group: int, first: int, end: int) -> Iterator[tuple[Piece, int, int]]:
        """Yield the pieces of a group that contain some of rows `first` to `end` − 1, with the range of these."""
        for piece in self._pieces[group]:
            a, b = max(first, piece.first), min(end, piece.end)
            if a < b:
                yield piece, a, b


def restore_resized(memory: SequenceMemory, snapshot: dict[str, Any]) -> None:
    """Restore index, writers and rows of a memory from the snapshot of one with other environments or groups.

    Args:
      memory: without rows.
      snapshot: of the other one.
    """
    groups, length, segments = group_sizes(snapshot), int(snapshot["sizes"][1]), memory.segments
    index = _ended_index(memory, snapshot)
    begin = first_free_row(snapshot, len(memory.writers), max(1, segments.rows // memory.columns))
    rows = np.repeat([int(sink["rows"]) for sink in snapshot["sinks"]], groups)
    plan = make_plan(read_notes(index), rows, memory.columns, memory.length, begin)
    log.info("%s", plan.describe(sum(groups), memory.columns))
    for writer in memory.writers:
        writer.begin_at(plan.begin, plan.rows)
    slots = memory.index.tree.capacity
    memory.index.restore(resized_index(index, plan, memory.columns, memory.length, slots))
    mover, gone = Mover(plan, groups), 0
    put = lambda env, numbers, rows: memory.put_rows(slice(env, env + 1), numbers, rows)  # noqa: E731
    for group, sink in enumerate(snapshot["sinks"]):
        for part in stored_rows(sink, group, len(groups), length, segments):
            if part.rows is not None:
                mover.move(group, part, put)
                continue
            memory.lost += 0 if part.known else (part.end - part.first) * groups[group]
            for piece, first, end in mover.overlaps(group, part.first, part.end):
                shift = piece.to - piece.first
                gone += memory.index.lose(np.array([piece.new_env]), first + shift, end + shift)
    if gone:
        warn(f"{gone:,} sequences of the replay need rows that are lost: {len(memory):,} are left")


def _ended_index(memory: SequenceMemory, snapshot: dict[str, Any]) -> dict[str, Any]:
    """Return the snapshot of an index after its unfinished episodes have been ended."""
    policy_context = memory.context - memory.sizes.burn_in
    old = memory.sizes.build(group_sizes(snapshot), policy_context, torch.device("cpu"))
    old.index.restore(snapshot)
    for writer, sink in zip(old.writers, snapshot["sinks"], strict=True):
        writer.stand(sink)
        writer.leave()
    old.index.upload()
    return old.index.snapshot()
