"""Rows that have arrived from workers and wait for room in the memories."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from packtrain.interfaces import Memory
from packtrain.runtime.messages import GroupChunk
from packtrain.types import Chunk


class PendingRows:
    """Chunks of rows in the order of their arrival."""

    def __init__(self) -> None:
        self._chunks: deque[GroupChunk] = deque()

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def extend(self, chunks: Iterable[GroupChunk]) -> None:
        """Add chunks at the end."""
        self._chunks.extend(chunks)

    def drop(self, groups: Iterable[int]) -> None:
        """Remove the rows of some groups."""
        gone = set(groups)
        self._chunks = deque(each for each in self._chunks if each.group not in gone)

    def store(self, memories: Sequence[Memory]) -> bool:
        """Store rows in these memories as far as all of them have room; return whether any were stored."""
        stored = False
        while self._chunks:
            group, chunk = self._chunks[0]
            room = min((memory.room(group) for memory in memories), default=chunk.length)
            if room <= 0:
                break
            part = chunk.part(0, min(room, chunk.length))
            for memory in memories:
                memory.writer(group).add_many(part)
            self._chunks.popleft()
            if part.length < chunk.length:
                self._chunks.appendleft(GroupChunk(group, chunk.part(part.length, chunk.length)))
            stored = True
        return stored

    def as_list(self) -> list[dict[str, Any]]:
        """Return the chunks for a checkpoint."""
        return [{"group": group, **chunk.as_dict()} for group, chunk in self._chunks]

    def restore(self, saved: Iterable[dict[str, Any]]) -> None:
        """Add what `as_list` returned."""
        self._chunks.extend(GroupChunk(int(each["group"]), Chunk.from_dict(each)) for each in saved)
