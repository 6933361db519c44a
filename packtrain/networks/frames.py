"""Frame stacks, computed when they are used: environments and memories store every frame once."""

from __future__ import annotations

import torch
from torch import Tensor


def stack_frames(frames: Tensor, first: Tensor, count: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return the last `count` frames up to each row, oldest first.

    A stack never crosses a reset: frames before the reset are replaced by the first frame of the episode.

    Args:
      frames: [C+T, B, ...] with C = count − 1 context rows in front.
      first: [C+T, B] bool, the row comes from a reset.
      count: frames in a stack.
      dtype: of the stacks; None: that of the frames.

    Returns:
      [T, B, count, ...], with the frames of a stack as adjacent channels in memory, as convolutions prefer.
    """
    rows, columns = first.shape
    time = torch.arange(rows, device=first.device).unsqueeze(1)  # [C+T, 1]
    # [T, B] index of the first row of each row's episode.
    begin = torch.where(first, time, 0).cummax(0).values[count - 1 :]
    column = torch.arange(columns, device=first.device)
    flat = frames.flatten(0, 1)  # [(C+T)*B, ...]
    stacks = frames.new_empty(*begin.shape, *frames.shape[2:], count, dtype=dtype or frames.dtype)
    for age in range(count):  # 0 is the oldest; one strided copy each is faster than one transposition of all
        row = torch.maximum(time[age : age + len(begin)], begin)  # [T, B]
        stacks[..., age] = flat.index_select(0, (row * columns + column).flatten()).unflatten(0, begin.shape)
    return stacks.movedim(-1, 2)
