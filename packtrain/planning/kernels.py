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
def _meet(
    level: np.ndarray,
    begin: int,
    end: int,
    ways: np.ndarray,
    mark: np.ndarray,
    met: np.ndarray,
    count: int,
    floor: int,
    number: int,
) -> int:
    """Append to the first `count` of `met` what the nodes `level[begin:end]` lead to; how many these are then.

    Without branches: which of the ways are new is hard to foresee.
    """
    for index in range(begin, end):
        node = level[index]
        for way in range(ways.shape[1]):
            to = ways[node, way]
            old = mark[to]
            new = old < floor
            mark[to] = ((number + count) << 32) | node if new else old
            met[count] = to
            count += new
    return count


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
    ways: np.ndarray,  # [N, W]
    mark: np.ndarray,  # [N]
    met: np.ndarray,  # [more than there are nodes] written: those met, row by row
    floor: int,
    number: int,  # of the first node that will be met
    steps: np.ndarray,  # [R] written
) -> tuple[int, np.ndarray]:
    """`Outward.seek`: how many nodes were met; the levels at which the rows stopped, row by row."""
    count, n_stopped, begin = 0, 0, 0
    stopped = np.empty(len(front), np.int64)
    while begin < len(front):
        row, end = rows[begin], begin
        while end < len(front) and rows[end] == row:
            end += 1
        want = wanted[row] if len(wanted) > 1 else wanted[0]
        start = count
        count = _meet(front, begin, end, ways, mark, met, count, floor, number)
        stop, level, hit = count, 1, False
        while True:
            for index in range(start, stop):
                hit |= field[met[index]] == want
            if hit or start == stop:
                break
            count = _meet(met, start, stop, ways, mark, met, count, floor, number)
            start, stop, level = stop, count, level + 1
        if hit:
            steps[row] = level
            total = n_stopped + stop - start
            if total > len(stopped):
                more = np.empty(2 * total, np.int64)
                more[:n_stopped] = stopped[:n_stopped]
                stopped = more
            stopped[n_stopped:total] = met[start:stop]
            n_stopped = total
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
    current: np.ndarray,  # [R]
    mark: np.ndarray,  # [N]
    floor: int,
    target: np.ndarray,  # [R] written where there is one
) -> None:
    """`Boards.first_met`."""
    for row in range(len(columns)):
        column, first = columns[row], np.iinfo(np.int64).max
        if not wanted[row]:
            continue
        for slot in range(sizes[column]):
            if ranks[column, slot] == top[row]:
                node = members[column, slot]
                if floor <= mark[node] < first and node != current[row]:
                    first, target[row] = mark[node], node


@_kernel
def plan_back(
    columns: np.ndarray,  # [M]
    targets: np.ndarray,  # [M]
    values: np.ndarray,  # [M] of the targets
    gamma: float,
    mark: np.ndarray,  # [N]
    edges: np.ndarray,  # [N, A]
    rewards: np.ndarray,  # [N, A]
    plan_nodes: np.ndarray,  # [C, D], written like the others
    plan_actions: np.ndarray,  # [C, D]
    plan_values: np.ndarray,  # [C, D]
    plan_steps: np.ndarray,  # [C]
) -> int:
    """`Routes.lead`, of paths that D has room for; how many steps the longest of all has."""
    longest, node_bits = 0, (1 << 32) - 1
    for index in range(len(targets)):
        column, node, value, steps = columns[index], targets[index], values[index], 0
        source = mark[node] & node_bits
        while source != node:
            if steps < plan_nodes.shape[1]:
                action = 0
                while edges[source, action] != node:
                    action += 1
                value = rewards[source, action] + gamma * value
                plan_nodes[column, steps], plan_actions[column, steps] = source, action
                plan_values[column, steps] = value
            steps += 1
            node = source
            source = mark[node] & node_bits
        plan_steps[column] = steps
        longest = max(longest, steps)
    return longest


@_kernel
def decode_deltas(
    obs: np.ndarray,
    delta: np.ndarray,
    rows: np.ndarray,
    masks: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    begins: np.ndarray,
    sizes: np.ndarray,
    after: np.ndarray,
    spread: np.ndarray,
) -> None:
    """`decoding.decode_delta` and `decoding.deviations` of rows [N] of answers delta [..., K, D], in one pass.

    Writes `after` and `spread`, both [N, D]. `begins` and `sizes` [F] are those of one-hot factors.
    """
    members, width = masks.shape[1], obs.shape[1]
    count, half, nothing = np.float32(members), np.float32(0.5), np.float32(0)
    total, apart_total, squares = np.empty(width, np.float32), np.empty(width, np.float32), np.empty(width, np.float32)
    moved = np.empty(width, np.float32)
    for n in range(len(rows)):
        row, base = rows[n], masks[n, 0]
        for d in range(width):
            total[d] = apart_total[d] = squares[d] = nothing
        for m in range(members):
            member = masks[n, m]
            for d in range(width):  # innermost: compilers do several coordinates at once
                value = delta[row, member, d]
                apart = value - delta[row, base, d]
                total[d] += value
                apart_total[d] += apart
                squares[d] += apart * apart
        for d in range(width):
            mean = apart_total[d] / count
            spread[n, d] = np.sqrt(max(squares[d] / count - mean * mean, nothing))
            moved[d] = total[d] / count + obs[n, d]
            after[n, d] = np.floor(min(max(moved[d], low[d]), high[d]) + half)
        for f in range(len(begins)):
            top = begins[f]
            for d in range(begins[f], begins[f] + sizes[f]):
                after[n, d] = 0
                if moved[d] > moved[top]:
                    top = d
            after[n, top] = 1
