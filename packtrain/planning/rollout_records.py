"""What planners without a graph of states report of a finished search: rollouts, arms and action sequences.

`traces.py` writes the records to files. Shapes: R environments, n rollouts of each, A actions, P sequences of H steps
with D coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from packtrain import trees
from packtrain.planning.events import SearchRecord
from packtrain.planning.nodes import NO_NODE
from packtrain.planning.search_records import keep, most_visited
from packtrain.trees import Tree

KEPT_LEVELS = 4  # steps of rollouts whose states are kept
MOST_SEQUENCES = 48  # of an iteration that are recorded: half of them the best, the others evenly spread over the ranks


class Taken(NamedTuple):
    """The steps of n rollouts at one time."""

    alive: np.ndarray  # [m] which rollouts
    actions: np.ndarray  # [m]
    rewards: np.ndarray  # [m]
    terminated: np.ndarray  # [m] bool
    states: Tree  # [m, ...] they led to; None: not kept


class RolloutGroup(NamedTuple):
    """Rollouts that were under way at once, of R environments with the same number of rollouts each."""

    taken: list[Taken]
    returns: np.ndarray  # [R, n]


def rollouts_record(
    groups: Sequence[RolloutGroup],
    row: int,
    action: int,
    prior: np.ndarray | None,
    aggregate: Callable[[np.ndarray, np.ndarray, int], np.ndarray],
    most: int,
) -> SearchRecord:
    """Describe the rollouts of shooting as a tree in which equal beginnings are one path.

    Args:
      groups: of one decision.
      row: of the environment.
      action: the one taken; the plan is the best rollout that begins with it.
      prior: [A] probabilities of first actions; None: unknown.
      aggregate: (places [n], returns [n], number of places) → [places], the value of rollouts with the same beginning.
      most: maximum number of nodes.
    """
    actions, rewards, ends = _sequences(groups, row)
    returns = np.concatenate([group.returns[row] for group in groups])
    count, longest = actions.shape
    chosen = np.flatnonzero(actions[:, 0] == action)
    best = int(chosen[returns[chosen].argmax()])
    place, total = np.zeros(count, np.int64), 1
    levels: list[dict[str, np.ndarray]] = []
    on_path: list[int] = []
    terminal = [np.zeros(1, bool)]
    for time in range(longest):
        going = np.flatnonzero(actions[:, time] >= 0)
        if total > 4 * most:  # only the plan is followed to its end
            going = going[going == best]
        if not len(going):
            break
        width = int(actions.max()) + 1
        pair = place[going] * width + actions[going, time]
        pairs, first, which = np.unique(pair, return_index=True, return_inverse=True)
        levels.append(
            {
                "from": pairs // width,
                "to": total + np.arange(len(pairs)),
                "action": pairs % width,
                "visits": np.bincount(which, minlength=len(pairs)),
                "value": aggregate(which, returns[going], len(pairs)),
                "reward": rewards[going[first], time],
                "sample": going[first],
            }
        )
        terminal.append(ends[going[first], time])
        place[going] = total + which
        if actions[best, time] >= 0:
            on_path.append(int(place[best]))
        total += len(pairs)
    edges = {name: np.concatenate([level[name] for level in levels]) for name in levels[0]}
    if prior is not None:
        edges["prior"] = np.where(edges["from"] == 0, prior[edges["action"]], np.nan)
    samples, depth = edges.pop("sample"), np.concatenate([np.full(len(one["to"]), d) for d, one in enumerate(levels)])
    field = {"visits": np.concatenate([[count], edges["visits"]]), "terminal": np.concatenate(terminal)}
    states, rows = _states_of_rollouts(groups, row, samples, depth)
    record = SearchRecord("Shooting", "tree", field, edges, states=states, state_rows=rows)
    kept = most_visited(edges, total, most, on_path)
    record = keep(record, kept)
    edge_to = {int(to): edge for edge, to in enumerate(record.edges["to"])}
    record.path = [edge_to[int(place)] for place in np.searchsorted(kept, on_path)]
    return record


def arms_record(
    visits: np.ndarray, fields: dict[str, np.ndarray], outcomes: dict[str, np.ndarray], states: Tree, action: int
) -> SearchRecord:
    """Describe the arms of a bandit at the root: A edges, of which those that were pulled lead to states.

    Args:
      visits: [A] pulls.
      fields: further fields of edges, [A] each.
      outcomes: "reward" and "terminated" of each arm's latest pull, [A] each.
      states: [A, ...] they led to; None: unknown.
      action: the one taken.
    """
    arms = np.flatnonzero(visits > 0)
    edges = {"from": np.zeros(len(arms), np.int64), "to": np.arange(1, len(arms) + 1), "action": arms}
    edges |= {"visits": visits[arms], "reward": outcomes["reward"][arms]}
    edges |= {name: values[arms] for name, values in fields.items()}
    nodes = {
        "visits": np.concatenate([[visits.sum()], visits[arms]]),
        "terminal": np.concatenate([[False], outcomes["terminated"][arms]]),
    }
    rows = None if states is None else np.concatenate([[NO_NODE], arms])
    path = np.flatnonzero(arms == action).tolist()
    return SearchRecord("Bandit", "tree", nodes, edges, path, states=states, state_rows=rows)


class Iteration(NamedTuple):
    """The sequences that one iteration of a planner tried, for R environments."""

    sequences: np.ndarray  # [R, P, H, D]
    returns: np.ndarray  # [R, P]


def sequences_record(
    planner: str, iterations: Sequence[Iteration], row: int, plan: np.ndarray, std: np.ndarray | None = None
) -> SearchRecord:
    """Describe action sequences of a continuous planner: some candidates of each iteration, and the plan.

    Args:
      planner: its name.
      iterations: of one decision.
      row: of the environment.
      plan: [H, D] the sequence whose first action is taken.
      std: [H, D] spread of the last candidates; None: there is none.
    """
    found: dict[str, Any] = {"iteration": [], "return": [], "actions": [], "tried": []}
    for number, (sequences, returns) in enumerate(iterations):
        scores = np.where(np.isfinite(returns[row]), returns[row], -np.inf)
        order = np.argsort(-scores, kind="stable")
        half = MOST_SEQUENCES // 2
        others = order[half:][:: max(1, -(-max(len(order) - half, 1) // half))]
        for index in np.concatenate([order[:half], others]).tolist():
            found["iteration"].append(number)
            found["return"].append(returns[row][index])
            found["actions"].append(sequences[row][index])
        found["tried"].append(len(order))
    found["plan"] = plan
    if std is not None:
        found["std"] = std
    return SearchRecord(planner, "sequences", {"visits": np.array([sum(found["tried"])])}, sequences=found)


# -- parts


def _sequences(groups: Sequence[RolloutGroup], row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return actions [n, L], −1 after the end, rewards [n, L] and ends [n, L] of one environment's rollouts."""
    longest = max(len(group.taken) for group in groups)
    parts = []
    for group in groups:
        each = group.returns.shape[1]
        low = row * each
        actions, rewards = np.full((each, longest), -1), np.zeros((each, longest))
        ends = np.zeros((each, longest), bool)
        for time, one in enumerate(group.taken):
            mine = np.flatnonzero((one.alive >= low) & (one.alive < low + each))
            at = one.alive[mine] - low
            actions[at, time], rewards[at, time] = one.actions[mine], one.rewards[mine]
            ends[at, time] = one.terminated[mine]
        parts.append((actions, rewards, ends))
    actions, rewards, ends = (np.concatenate(part) for part in zip(*parts, strict=True))
    return actions, rewards, ends


def _states_of_rollouts(
    groups: Sequence[RolloutGroup], row: int, samples: np.ndarray, depth: np.ndarray
) -> tuple[Tree, np.ndarray]:
    """Return the states that were kept, and the row of each node [1 + E] in them: that of a rollout through it."""
    rows, states, count = np.full(len(samples) + 1, NO_NODE), [], 0
    offset = 0
    for group in groups:
        each = group.returns.shape[1]
        for time, one in enumerate(group.taken):
            if one.states is None:
                continue
            mine = np.flatnonzero((depth == time) & (samples >= offset) & (samples < offset + each))
            if not len(mine):
                continue
            at = np.searchsorted(one.alive, row * each + samples[mine] - offset)
            states.append(trees.pick(one.states, at))
            rows[mine + 1] = count + np.arange(len(mine))
            count += len(mine)
        offset += each
    return (trees.map(lambda *leaves: np.concatenate(leaves), *states) if states else None), rows
