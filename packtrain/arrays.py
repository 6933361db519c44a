"""Arrays that grow."""

from __future__ import annotations

import numpy as np


def longer(array: np.ndarray, length: int) -> np.ndarray:
    """The array with zeros behind it, `length` rows in all."""
    grown = np.zeros((length, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown
