"""Loops over arrays without a NumPy operator, compiled if numba is installed (`pip install packtrain[numba]`).

Each kernel has an equivalent in NumPy in its caller's file, which is used without numba. A search makes the same
choices with both. Callers read `kernels.compiled` at every call, so that tests can use both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

try:
    import numba
except ImportError:
    numba: Any = None  # type: ignore[no-redef]

compiled = numba is not None
_EMPTY = np.uint64(0)


def _kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, and cache the result for other processes."""
    return function if numba is None else numba.njit(cache=True, nogil=True)(function)


@_kernel
def enter(
    table_keys: np.ndarray, table_values: np.ndarray, keys: np.ndarray, found: np.ndarray, places: np.ndarray
) -> int:
    """Write `found` and `places` [M] of `HashTable.enter`; return the number of new keys. Key 0 is an empty place."""
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
    """Append the new nodes that the nodes `level[begin:end]` lead to to `met[:count]`; return the new count.

    There is no branch, because the processor could not predict which nodes are new.
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
    """Write the `ways` [M, A] of nodes [M] with edges [M, A] (`Graph.link`); return the largest number of ways."""
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
    front: np.ndarray,  # [F] nodes of the outermost level, row by row
    rows: np.ndarray,  # [F] row of each
    field: np.ndarray,  # [N] heuristic of each node
    wanted: np.ndarray,  # [R] or [1] value to look for
    ways: np.ndarray,  # [N, W]
    mark: np.ndarray,  # [N]
    met: np.ndarray,  # output, larger than the number of nodes: the nodes met, row by row
    floor: int,
    number: int,  # of the first node that is met
    steps: np.ndarray,  # [R] output
) -> tuple[int, np.ndarray]:
    """Advance a walk (`BreadthFirstWalk.seek`); return the number of nodes met, and the rows' last levels joined."""
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
    """Write the best rank [R] in each of environments [R] except at the slots [R] (`FrontierIndex.best_ranks`)."""
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
    target: np.ndarray,  # [R] output
) -> None:
    """Write the first node met with the best rank in each wanted row (`FrontierIndex.first_met`)."""
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
    plan_nodes: np.ndarray,  # [C, D] output, as are the next three
    plan_actions: np.ndarray,  # [C, D]
    plan_values: np.ndarray,  # [C, D]
    plan_steps: np.ndarray,  # [C]
) -> int:
    """Write paths of up to D steps (`PlanPaths.lead`); return the number of steps of the longest path."""
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
    """Write `decode_delta` and `deviations` of rows [N] of answers delta [..., K, D] to `after` and `spread`, [N, D].

    `begins` and `sizes` [F] are those of one-hot factors.
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
            for d in range(width):  # innermost, so that compilers vectorise it
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
