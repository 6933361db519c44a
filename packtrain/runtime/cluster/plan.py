"""What runs where: workers on the nodes of a cluster, and the bytes they need.

A node offers roles. `packtrain node --role R` states them as a Ray resource; a node that states none, as those of
Slurm or Kubernetes, takes every role but "head" if it has processors.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from packtrain.errors import ClusterError

ROLES = ("actor", "env", "head")
"""What `packtrain node --role` accepts: acting with a policy, environments alone, or neither."""
RESOURCE = "packtrain_role_"
"""Beginning of the name of the Ray resource by which a node states a role."""
SMALLEST_STORE = 80 * 2**20
"""Bytes; Ray refuses less than 75 MiB."""
_PLACES = {"actor": "actor", "env": "env", "evaluator": "actor", "replay": "actor"}
"""The role of the nodes on which a worker of a role may run."""


class Node(NamedTuple):
    """One machine of a cluster, or one simulated machine."""

    id: str
    address: str
    cpus: float
    gpus: float
    store_bytes: int
    roles: frozenset[str]
    driver: bool = False  # whether the learner runs there
    sockets: int = 1  # NUMA nodes


@dataclass(frozen=True)
class Needs:
    """The resources that a run needs from a cluster."""

    num_envs: int
    chunk_bytes: int  # size of one result of one worker that serves all environments
    weights_bytes: int
    workers: int | None = None  # None: one per NUMA node of every machine that may act
    role: str = "actor"  # role of the workers; "env": they step environments and have no policy
    min_nodes: int = 1
    extra_bytes: int = 0  # of other objects at a time: the weights of an evaluation, batches of replay shards


class Placed(NamedTuple):
    """One worker of a plan."""

    role: str
    node: str  # id of the preferred node; another node takes over if this one is lost
    cpus: float
    envs: range  # global indices of its environments; empty if it has none


class Plan(NamedTuple):
    """The nodes on which the workers and the learner of a run are placed."""

    workers: tuple[Placed, ...]
    chunk_bytes: int  # size of the largest result of one worker
    store_bytes: dict[str, int]  # required size of the object store, per node id
    notes: tuple[str, ...]  # one sentence each, for the log


def roles_of(resources: dict[str, float]) -> frozenset[str]:
    """Return the roles that a node's Ray resources state."""
    stated = {role for role in ROLES if f"{RESOURCE}{role}" in resources}
    if stated:
        return frozenset(stated - {"head"})
    return frozenset({"actor", "env"}) if resources.get("CPU", 0) > 0 else frozenset()


def make_plan(nodes: Sequence[Node], needs: Needs) -> Plan:
    """Place a run on nodes; ClusterError, in one sentence, if it cannot be."""
    if len(nodes) < needs.min_nodes:
        raise ClusterError(
            f"the cluster has {len(nodes)} of the {needs.min_nodes} nodes that --min_nodes requires; "
            "start the others with `packtrain node --address`"
        )
    acting = [node for node in nodes if _PLACES[needs.role] in node.roles]
    if not acting:
        what, more = ("act", "") if needs.role == "actor" else ("run environments alone", " --role env")
        raise ClusterError(
            f"no node of the cluster may {what}; start one with `packtrain node --address HEAD:PORT{more}`"
        )
    count = needs.workers if needs.workers is not None else min(needs.num_envs, sum(node.sockets for node in acting))
    blocks = split(needs.num_envs, count)
    chunk = math.ceil(needs.chunk_bytes * len(blocks[0]) / needs.num_envs)
    roles = [needs.role] * count
    load: Counter[str] = Counter()
    chosen = []
    for role in roles:
        node = choose_node(nodes, role, load)
        assert node is not None  # some may act, see above
        load[node.id] += 1
        chosen.append(node)
    cpus = {node.id: _share(node, load[node.id]) for node in nodes}
    workers = tuple(
        Placed(role, node.id, cpus[node.id], blocks[index] if index < count else range(0))
        for index, (role, node) in enumerate(zip(roles, chosen, strict=True))
    )
    actors = Counter(node.id for role, node in zip(roles, chosen, strict=True) if role == needs.role)
    store = {node.id: store_needed(chunk, needs.weights_bytes, actors[node.id]) for node in nodes if load[node.id]}
    for node in nodes:
        if node.driver:  # all results are sent to the driver
            store[node.id] = store_needed(chunk, needs.weights_bytes, count)
    store = {node: needed + needs.extra_bytes for node, needed in store.items()}
    _check_stores(nodes, store, chunk, needs)
    notes = [f"{count} worker{'s' * (count != 1)} on {len(actors)} node{'s' * (len(actors) != 1)}"]
    crowded = [node.address for node in nodes if load[node.id] > node.cpus]
    if crowded:
        notes.append(f"more workers than processors on {', '.join(crowded)}: they share them")
    return Plan(workers, chunk, store, tuple(notes))


def split(num_envs: int, workers: int) -> list[range]:
    """Divide environments into contiguous blocks whose sizes differ by one at most; ClusterError if that cannot be."""
    if workers < 1:
        raise ClusterError(f"--workers {workers} must be at least 1")
    if workers > num_envs:
        raise ClusterError(
            f"{num_envs} environments cannot be divided over {workers} workers; lower --workers or raise num_actors"
        )
    size, more = divmod(num_envs, workers)
    ends = [0]
    for index in range(workers):
        ends.append(ends[-1] + size + (index < more))
    return [range(begin, end) for begin, end in zip(ends, ends[1:], strict=False)]


def choose_node(nodes: Sequence[Node], role: str, load: Counter[str], wish: str | None = None) -> Node | None:
    """Return the node for one more worker: the preferred one if it is alive, else the one with the most room.

    Args:
      nodes: those that are alive.
      role: of the worker.
      load: workers on each node id so far.
      wish: id of the preferred node; None: no preference.
    """
    fitting = [node for node in nodes if _PLACES[role] in node.roles]
    for node in fitting:
        if node.id == wish:
            return node
    return max(fitting, key=lambda node: node.cpus / (load[node.id] + 1), default=None)


def place_more(nodes: Sequence[Node], placed: Plan, role: str, count: int) -> Plan:
    """Return places for processes beside the workers of a plan, on the nodes with the most room.

    Args:
      nodes: those that are alive.
      placed: the plan of the workers.
      role: "evaluator" or "replay".
      count: number of processes.
    """
    load = Counter(worker.node for worker in placed.workers)
    more = []
    for _ in range(count):
        node = choose_node(nodes, role, load)
        if node is None:
            raise ClusterError(
                f"no node of the cluster can take a process of role {role!r}; start one with "
                "`packtrain node --address HEAD:PORT`"
            )
        load[node.id] += 1
        more.append(Placed(role, node.id, 0.0, range(0)))
    return Plan(tuple(more), 0, {}, ())


def place_of(role: str) -> str:
    """Return the role of the nodes on which a worker of this role may run."""
    return _PLACES[role]


def store_needed(chunk_bytes: int, weights_bytes: int, workers: int) -> int:
    """Return the bytes that an object store must hold: 4 results per worker and 3 versions of weights."""
    return 4 * chunk_bytes * workers + 3 * weights_bytes


def store_to_start(needed: int) -> int:
    """Return the size of the object store of a cluster of this machine alone, with a quarter to spare."""
    return max(SMALLEST_STORE, math.ceil(1.25 * needed))


def place_runs(nodes: Sequence[Node], count: int, cpus: float = 1.0, gpus: float = 0.0) -> list[str]:
    """Place complete runs, such as those of a sweep, one per worker; the others wait until one ends.

    Args:
      nodes: those that are alive.
      count: number of runs.
      cpus: processors that a run takes.
      gpus: GPUs that a run takes.

    Returns:
      Node ids of the runs that may start now, in turn over the nodes with the most room; `count` of them at most.
    """
    free = {node.id: [node.cpus, node.gpus] for node in nodes if "actor" in node.roles}
    placed: list[str] = []
    while len(placed) < count:
        fitting = [name for name, (some_cpus, some_gpus) in free.items() if some_cpus >= cpus and some_gpus >= gpus]
        if not fitting:
            break
        name = max(fitting, key=lambda name: (free[name][1], free[name][0]))
        free[name][0] -= cpus
        free[name][1] -= gpus
        placed.append(name)
    if not placed:
        raise ClusterError(f"no node has {cpus:g} processors and {gpus:g} GPUs for a run")
    return placed


def count_sockets(folder: Path = Path("/sys/devices/system/node")) -> int:
    """Return the number of NUMA nodes of this machine that have processors; 1 if it is not known."""
    try:
        lists = [(node / "cpulist").read_text().strip() for node in folder.glob("node[0-9]*")]
    except OSError:
        return 1
    return max(1, sum(bool(text) for text in lists))


def usable_cpus() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _share(node: Node, workers: int) -> float:
    """Return the processors of one of a node's workers; the learner's own machine keeps one for the learner."""
    if not workers:
        return 0.0
    left = node.cpus - 1 if node.driver and node.cpus > workers else node.cpus
    share = left / workers
    return float(math.floor(share)) if share >= 1 else math.floor(100 * share) / 100


def _check_stores(nodes: Sequence[Node], store: dict[str, int], chunk: int, needs: Needs) -> None:
    for node in nodes:
        needed = store.get(node.id, 0)
        if needed > node.store_bytes:
            raise ClusterError(
                f"the object store of {node.address} holds {_mib(node.store_bytes)} and this run needs {_mib(needed)} "
                f"there (4 results of {_mib(chunk)} for each worker and 3 versions of weights of "
                f"{_mib(needs.weights_bytes)}); start the node with --store_gb {math.ceil(needed / 2**30 * 10) / 10:g}"
                ", or lower unroll_length or num_actors"
            )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
