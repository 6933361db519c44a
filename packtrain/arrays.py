"""Functions that enlarge arrays."""

from __future__ import annotations

import numpy as np


def longer(array: np.ndarray, length: int) -> np.ndarray:
    """Return the array padded with zeros to `length` rows."""
    grown = np.zeros((length, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown


def wider(board: np.ndarray, room: int, fill: float) -> np.ndarray:
    """Return rows padded with `fill` to `room` columns."""
    grown = np.full((len(board), room), fill, board.dtype)
    grown[:, : board.shape[1]] = board
    return grown
