"""A hash map from 64-bit keys to numbers, in arrays: thousands of keys are looked up or entered in one call."""

from __future__ import annotations

import numpy as np

NOBODY = -1  # the number of a key that is not there
_EMPTY = np.uint64(0)


class Table:
    """Open addressing with linear probing. Keys should be well mixed (`model.digest`); 0 is kept as another key."""

    def __init__(self, capacity: int = 1024):
        self._size = 1 << max(4, (2 * capacity - 1).bit_length())
        self._keys = np.zeros(self._size, np.uint64)
        self._values = np.zeros(self._size, np.int64)
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The numbers of M keys, NOBODY where there is none."""
        keys = _proper(keys)
        found = np.full(len(keys), NOBODY, np.int64)
        places = self._start(keys)
        seen = self._keys[places]
        hit = seen == keys
        found[hit] = self._values[places[hit]]
        open_ = np.flatnonzero(~hit & (seen != _EMPTY))
        while len(open_):
            places[open_] = (places[open_] + 1) & (self._size - 1)
            seen = self._keys[places[open_]]
            hit = seen == keys[open_]
            found[open_[hit]] = self._values[places[open_[hit]]]
            open_ = open_[~hit & (seen != _EMPTY)]
        return found

    def enter(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Look M keys up, and enter those that are not there. The caller gives the new ones their numbers with `give`.

        Returns:
          [M] the numbers of known keys, NOBODY for new ones; [M] for each new key the index at which it stands first
          among the M (its own, unless it comes twice), and for known ones −1.
        """
        if 2 * (self._used + len(keys)) > self._size:
            self._grow(self._used + len(keys))
        keys = _proper(keys)
        found = np.full(len(keys), NOBODY, np.int64)
        first = np.full(len(keys), -1, np.int64)
        places = self._start(keys)
        open_ = np.arange(len(keys))
        while len(open_):
            seen = self._keys[places[open_]]
            empty = open_[seen == _EMPTY][::-1]  # of several that want a place the last writer has it: the first key
            self._keys[places[empty]] = keys[empty]
            self._values[places[empty]] = ~empty  # below 0: claimed in this call, not numbered yet
            hit = self._keys[places[open_]] == keys[open_]
            values = self._values[places[open_[hit]]]
            found[open_[hit]] = np.where(values < 0, NOBODY, values)
            first[open_[hit]] = np.where(values < 0, ~values, -1)
            open_ = open_[~hit]
            places[open_] = (places[open_] + 1) & (self._size - 1)
        fresh = first == np.arange(len(keys))
        self._used += int(fresh.sum())
        return found, first

    def give(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Number keys that are in the table, each once."""
        keys = _proper(keys)
        places = self._start(keys)
        open_ = np.arange(len(keys))
        while len(open_):
            hit = self._keys[places[open_]] == keys[open_]
            self._values[places[open_[hit]]] = values[open_[hit]]
            open_ = open_[~hit]
            places[open_] = (places[open_] + 1) & (self._size - 1)

    def rebuild(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Hold these keys, all different, and no others."""
        self._keys[:] = _EMPTY
        self._used = 0
        self.enter(keys)
        self.give(keys, values)

    def _start(self, keys: np.ndarray) -> np.ndarray:
        return (keys & np.uint64(self._size - 1)).astype(np.int64)

    def _grow(self, wanted: int) -> None:
        taken = self._keys != _EMPTY
        keys, values = self._keys[taken], self._values[taken]
        self._size = 1 << (4 * wanted - 1).bit_length()
        self._keys, self._values = np.zeros(self._size, np.uint64), np.zeros(self._size, np.int64)
        self._used = 0
        self.enter(keys)
        self.give(keys, values)


def _proper(keys: np.ndarray) -> np.ndarray:
    """Keys without the one that means an empty place."""
    return np.where(keys == _EMPTY, np.uint64(1), keys)
