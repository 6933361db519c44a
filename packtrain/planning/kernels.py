"""Loops over arrays that NumPy has no operator for, compiled where numba is installed (`pip install packtrain[numba]`).

Each has a twin in NumPy beside its caller that gives the same results, and does the work where there is no numba: a
search chooses the same with and without, only sooner. A module that has a kernel looks at `kernels.compiled` at every
call, so that tests can have both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

try:
    import numba
except ImportError:
    numba = None

compiled = numba is not None
_EMPTY = np.uint64(0)


def _kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, and keep the result for other processes."""
    return function if numba is None else numba.njit(cache=True, nogil=True)(function)


@_kernel
def enter(
    table_keys: np.ndarray, table_values: np.ndarray, keys: np.ndarray, found: np.ndarray, places: np.ndarray
) -> int:
    """`Table.enter`: write `found` [M] and `places` [M]; how many keys were new. Empty places of a table have key 0."""
    new, last = 0, len(table_keys) - 1
    for index in range(len(keys)):
        key = keys[index]
        place = np.int64(key & np.uint64(last))
        while table_keys[place] != key and table_keys[place] != _EMPTY:
            place = (place + 1) & last
        if table_keys[place] != key:
            table_keys[place], table_values[place] = key, ~index
            new += 1
        found[index], places[index] = table_values[place], place
    return new


@_kernel
def ways(ids: np.ndarray, edges: np.ndarray, ways: np.ndarray) -> int:
    """Of `Graph.link`: write the `ways` [M, A] of nodes [M] with edges [M, A]; the most that one has."""
    width = 0
    for index in range(len(ids)):
        count = 0
        for action in range(edges.shape[1]):
            to = edges[index, action]
            known = to == ids[index]
            for earlier in range(count):
                known |= ways[index, earlier] == to
            if not known:
                ways[index, count] = to
                count += 1
        width = max(width, count)
        ways[index, count:] = ids[index]
    return width


@_kernel
def seek(
    front: np.ndarray,  # [F] the outermost level, row by row
    rows: np.ndarray,  # [F]
    field: np.ndarray,  # [N] of nodes
    wanted: np.ndarray,  # [R] or [1]
    ways: np.ndarray,  # [N, A]
    seen: np.ndarray,  # [N]
    predecessor: np.ndarray,  # [N]
    order: int,
    base: int,
    met: np.ndarray,  # [at least the nodes there are] written: those met, row by row
    steps: np.ndarray,  # [R] written
) -> tuple[int, np.ndarray]:
    """`Outward.seek`: how many nodes were met; the levels at which the rows stopped, row by row."""
    count, actions = 0, ways.shape[1]
    stopped = np.empty(len(front), np.int64)
    n_stopped, begin = 0, 0
    while begin < len(front):
        row = rows[begin]
        end = begin
        while end < len(front) and rows[end] == row:
            end += 1
        want = wanted[row] if len(wanted) > 1 else wanted[0]
        start, level = count, 0  # where the level being met starts in `met`
        for index in range(begin, end):
            node = front[index]
            for action in range(actions):
                to = ways[node, action]
                if to == node:
                    break
                if seen[to] < base:
                    seen[to], predecessor[to], met[count] = base + order, node, to
                    order += 1
                    count += 1
        while True:
            level += 1
            stop = count
            hit = False
            for index in range(start, stop):
                hit |= field[met[index]] == want
            if hit or start == stop:
                break
            for index in range(start, stop):
                node = met[index]
                for action in range(actions):
                    to = ways[node, action]
                    if to == node:
                        break
                    if seen[to] < base:
                        seen[to], predecessor[to], met[count] = base + order, node, to
                        order += 1
                        count += 1
            start = stop
        if hit:
            steps[row] = level
            if n_stopped + stop - start > len(stopped):
                more = np.empty(2 * (n_stopped + stop - start), np.int64)
                more[:n_stopped] = stopped[:n_stopped]
                stopped = more
            stopped[n_stopped : n_stopped + stop - start] = met[start:stop]
            n_stopped += stop - start
        begin = end
    return count, stopped[:n_stopped]


@_kernel
def best_ranks(ranks: np.ndarray, sizes: np.ndarray, columns: np.ndarray, slots: np.ndarray, top: np.ndarray) -> None:
    """Of `BestFirstSearch`: write the best rank [R] in each of the columns [R], but for that at its place [R]."""
    for row in range(len(columns)):
        of, best, slot = ranks[columns[row]], top[row], slots[row]
        for place in range(slot):
            best = max(best, of[place])
        for place in range(slot + 1, sizes[columns[row]]):
            best = max(best, of[place])
        top[row] = best


@_kernel
def first_met(
    ranks: np.ndarray,  # [C, room]
    members: np.ndarray,  # [C, room]
    sizes: np.ndarray,  # [C]
    columns: np.ndarray,  # [R]
    top: np.ndarray,  # [R]
    wanted: np.ndarray,  # [R]
    seen: np.ndarray,  # [N]
    base: int,
    target: np.ndarray,  # [R] written where there is one
) -> None:
    """`BestFirstSearch._first_met`."""
    for row in range(len(columns)):
        column, first = columns[row], np.iinfo(np.int64).max
        if not wanted[row]:
            continue
        for slot in range(sizes[column]):
            if ranks[column, slot] == top[row]:
                node = members[column, slot]
                if base < seen[node] < first:
                    first, target[row] = seen[node], node


@_kernel
def plan_back(
    number: int,
    targets: np.ndarray,  # [M]
    values: np.ndarray,  # [M] of the targets
    gamma: float,
    predecessor: np.ndarray,
    edges: np.ndarray,
    rewards: np.ndarray,
    plan: np.ndarray,
    plan_action: np.ndarray,
    plan_steps: np.ndarray,
    plan_value: np.ndarray,
) -> None:
    """Of `BestFirstSearch`: write down the paths to the targets of plans with this number."""
    for index in range(len(targets)):
        node, value, steps = targets[index], values[index], 0
        source = predecessor[node]
        while source >= 0:
            action, steps = 0, steps + 1
            while edges[source, action] != node:
                action += 1
            value = rewards[source, action] + gamma * value
            plan[source], plan_action[source] = number, action
            plan_steps[source], plan_value[source] = steps, value
            node, source = source, predecessor[source]
