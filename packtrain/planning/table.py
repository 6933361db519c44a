"""A hash map from 64-bit keys to numbers, in arrays: thousands of keys are looked up or entered in one call."""

from __future__ import annotations

import numpy as np

from packtrain.planning import kernels

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
        """Look M keys up, and enter those that are not there. The caller then gives the new ones numbers with `give`.

        Returns:
          [M] the numbers of known keys; for new ones ~i, below 0, where i is the index at which the key stands first
          among the M (its own, unless it comes twice); [M] the keys' places, for `give`.
        """
        if 2 * (self._used + len(keys)) > self._size:
            self._grow(self._used + len(keys))
        keys = _proper(keys)
        if kernels.compiled:
            found, places = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
            self._used += kernels.enter(self._keys, self._values, keys, found, places)
            return found, places
        places = self._start(keys)
        hit = self._keys.take(places) == keys
        found = self._values.take(places)
        open_ = (~hit).nonzero()[0]
        if not len(open_):
            return found, places
        at, mine = places.take(open_), keys.take(open_)
        while True:
            empty = (self._keys.take(at) == _EMPTY).nonzero()[0][::-1]  # of several that want a place the last writer
            claimed = at.take(empty)  # has it: the first key
            self._keys[claimed] = mine.take(empty)
            self._values[claimed] = ~open_.take(empty)  # below 0: claimed in this call, not numbered yet
            hit = self._keys.take(at) == mine
            value = self._values.take(at)
            found[open_], places[open_] = value, at  # wrong where there was no hit, until there is one
            if hit.all():
                break
            left = (~hit).nonzero()[0]
            open_, at, mine = open_.take(left), (at.take(left) + 1) & (self._size - 1), mine.take(left)
        self._used += int(np.count_nonzero(found == ~np.arange(len(keys))))
        return found, places

    def give(self, places: np.ndarray, values: np.ndarray) -> None:
        """Number keys by the places that `enter` has just said, each once."""
        self._values[places] = values

    def rebuild(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Hold these keys, all different, and no others."""
        self._keys[:] = _EMPTY
        self._used = 0
        self.give(self.enter(keys)[1], values)

    def _start(self, keys: np.ndarray) -> np.ndarray:
        return (keys & np.uint64(self._size - 1)).astype(np.int64)

    def _grow(self, wanted: int) -> None:
        taken = self._keys != _EMPTY
        keys, values = self._keys[taken], self._values[taken]
        self._size = 1 << (4 * wanted - 1).bit_length()
        self._keys, self._values = np.zeros(self._size, np.uint64), np.zeros(self._size, np.int64)
        self._used = 0
        self.give(self.enter(keys)[1], values)


def _proper(keys: np.ndarray) -> np.ndarray:
    """Keys without the one that means an empty place."""
    return np.maximum(keys, np.uint64(1))
