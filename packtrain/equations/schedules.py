"""Learning rates as functions of how far training is."""

from __future__ import annotations

from typing import Literal


def linear_decay(learning_rate: float, step: int, total_steps: int) -> float:
    """Return the learning rate that falls linearly to 0.

        lr = learning_rate · (1 − min(step, total_steps) / total_steps)

    Args:
      learning_rate: at step 0.
      step: progress so far, in any unit; IMPALA counts decisions learned from.
      total_steps: where the rate reaches 0 and stays, same unit.

    Returns:
      The rate at `step`.
    """
    return learning_rate * (1.0 - min(step, total_steps) / total_steps)


def linear_between(first: float, last: float | None, update: int, updates: int | None) -> float:
    """Return the learning rate on a straight line from `first` at update 0 to `last` at update `updates` and after.

    Args:
      first: the rate of the first update.
      last: the rate from update `updates` on; None: the rate is constant.
      update: number of updates made.
      updates: length of the line; None: the rate is constant.
    """
    if last is None or updates is None:
        return first
    share = min(update, updates) / updates
    return (1.0 - share) * first + share * last


def scheduled_rate(
    update: int, first: float, last: float | None, updates: int | None, decay: Literal["linear", "step"]
) -> float:
    """Return the learning rate of an update.

    Args:
      update: number of updates made.
      first: the rate of the first update.
      last: the final rate; None: the rate is constant.
      updates: number of updates after which the rate is `last`; None: the rate is constant.
      decay: "linear" is `linear_between`; "step" keeps the first rate for `updates` updates, then uses the last.
    """
    if decay == "step" and last is not None and updates is not None:
        return first if update < updates else last
    return linear_between(first, last, update, updates)
