"""Arrays that grow."""

from __future__ import annotations

import numpy as np


def longer(array: np.ndarray, length: int) -> np.ndarray:
    """The array with zeros behind it, `length` rows in all."""
    grown = np.zeros((length, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown


def wider(board: np.ndarray, room: int, fill: float) -> np.ndarray:
    """Rows with `fill` behind them, `room` places each."""
    grown = np.full((len(board), room), fill, board.dtype)
    grown[:, : board.shape[1]] = board
    return grown
