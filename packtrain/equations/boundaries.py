"""Treatment of terminations, truncations and filler rows in the equations; no other module reads these flags."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from packtrain.equations.shapes import assert_equal_shapes


class Boundaries(NamedTuple):
    """Effects of episode ends on each of T rows."""

    discount_t: Tensor  # [T, B] float32  factor of the value after row t
    continue_t: Tensor  # [T, B] float32  1 if row t+1 continues the episode of row t, else 0: traces end
    weight_t: Tensor  # [T, B] float32  1 for a step, 0 for a filler row: its weight in a loss


def boundaries(first: Tensor, terminated: Tensor, truncated: Tensor, discount: float) -> Boundaries:
    """Return discount, continuation and loss weight of each row of a stream with next-step autoreset.

    After the last step of an episode the stream holds its final observation in row t; the action chosen there is
    dropped by a reset, which makes row t+1. That row t is a filler: no step happened.

        row t is                               discount_t   continue_t   weight_t
        a step inside an episode               discount     1            1
        a step that terminated (a lost life)   0            0            1
        a step that was truncated              discount     0            1
        a filler, first[t+1] set               0            0            0

    A step that both terminated and was truncated terminated. A lost life is a termination that no filler follows: row
    t+1 is the next step of the same game, and the table needs no line for it. first[0] speaks of an action before row
    0 and is not read. The end of the unroll is no boundary: the last row continues, into the bootstrap value.

    Args:
      first: [T+1, B] bool, a reset made this row.
      terminated: [T, B] bool, action t ended the task or cost a life.
      truncated: [T, B] bool, the clock ended the episode after action t.
      discount: γ inside an episode.

    Returns:
      Boundaries of [T, B] float32.
    """
    filler = first[1:]
    assert_equal_shapes(2, filler=filler, terminated=terminated, truncated=truncated)
    worthless = terminated | filler
    return Boundaries(
        discount_t=discount * (~worthless).to(torch.float32),
        continue_t=(~(worthless | truncated)).to(torch.float32),
        weight_t=(~filler).to(torch.float32),
    )
