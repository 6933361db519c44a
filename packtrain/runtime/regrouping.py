"""Resuming with other environments than the checkpoint's: another number, other groups, or other workers.

Episodes in progress end, and environments begin new ones. State that outlives episodes is kept: environment i of the
run follows environment i modulo n of the checkpoint, which had n. Replays are resized by the memories themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from packtrain.interfaces import ActorState


class Layout(NamedTuple):
    """The division of a run's environments into groups."""

    workers: int  # acting sides; 0: environments that are never saved
    sizes: tuple[int, ...]  # number of environments in each group of all workers


def saved_layout(state: dict[str, Any]) -> Layout | None:
    """Return the layout of the environments that a checkpoint holds; None if it holds none."""
    if "actor" not in state:
        return None
    workers = _workers(state)
    return Layout(len(workers), tuple(len(stream["lengths"]) for worker in workers for stream in worker["streams"]))


def saved_envs(state: dict[str, Any]) -> int | None:
    """Return the number of environments in a checkpoint; None if it is not recorded."""
    layout, sizes = saved_layout(state), state["run"].get("groups")
    return sum(layout.sizes) if layout is not None else sum(sizes) if sizes else None


def leave_environments(state: dict[str, Any], layout: Layout) -> None:
    """Replace the environments' state in a checkpoint by what outlives their episodes, if the environments differ.

    Args:
      state: of the checkpoint; it gets "left" in place of "actor" or "seats".
      layout: of the run from now on.
    """
    saved = saved_layout(state)
    if saved == layout:
        return
    sizes, seats = state["run"].get("groups"), state.get("seats", [])
    if saved is not None:
        sizes, seats = saved.sizes, [seat for worker in _workers(state) for seat in worker["seats"]]
        del state["actor"]
    elif not sizes or tuple(sizes) == layout.sizes:  # empty: converted runs, which have no state of environments
        return
    state.pop("seats", None)
    envs = np.arange(sum(layout.sizes)) % sum(sizes)
    parts = np.split(envs, np.cumsum(layout.sizes)[:-1])
    groups = [{"envs": part} for part in parts]
    state["left"] = {"whole": saved is not None, "seats": seats, "sizes": list(sizes), "groups": groups}


def adopt(actor_states: Sequence[ActorState], left: dict[str, Any]) -> None:
    """Let groups of environments continue with the lasting state of a checkpoint's groups.

    Args:
      actor_states: one per group.
      left: from `leave_environments`, with the entries of these groups.
    """
    for actor_state, group in zip(actor_states, left["groups"], strict=True):
        seats = left["seats"]
        lasting = [actor_state.lasting_part(seat) for seat in seats] if left["whole"] else seats
        if lasting and all(lasting):
            actor_state.adopt(lasting, list(left["sizes"]), np.asarray(group["envs"]))


def _workers(state: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = state["actor"].get("workers", [state["actor"]])
    return found


def states_of_workers(state: dict[str, Any], blocks: Sequence[tuple[int, ...]]) -> list[dict[str, Any]]:
    """Return the part of a checkpoint's acting state that each worker restores.

    Args:
      state: of the checkpoint, after `leave_environments`.
      blocks: groups of environments of each worker.
    """
    if "actor" in state:
        return [{"actor": {k: v for k, v in actor.items() if k != "pending"}} for actor in _workers(state)]
    if "left" in state:
        left = state["left"]
        return [{"left": {**left, "groups": [left["groups"][g] for g in block]}} for block in blocks]
    lasting = state.get("seats", ())
    return [{"seats": [lasting[group] for group in block if group < len(lasting)]} for block in blocks]
