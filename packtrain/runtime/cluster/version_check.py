"""Whether the nodes of a cluster can run packtrain: a process on each of them states its versions."""

from __future__ import annotations

import contextlib
import time
from typing import NamedTuple

from packtrain.runtime.cluster import host, plan
from packtrain.runtime.cluster.connection import Cluster, last_line


class Inspected(NamedTuple):
    """What one node answered."""

    node: plan.Node
    trouble: str  # one sentence; empty if its versions equal the driver's


def inspect(cluster: Cluster, secs: float = 60.0) -> list[Inspected]:
    """Start a process on every node and compare its versions with ours; waits `secs` at most."""
    ray, ours = cluster.ray, host.versions()
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    started = []
    for node in cluster.nodes():
        actor = ray.remote(host.Host).options(
            num_cpus=0, max_restarts=0, scheduling_strategy=affinity(node.id, soft=False)
        )
        started.append((node, handle := actor.remote(), handle.identify.remote(())))
    found = []
    deadline = time.monotonic() + secs
    for node, handle, answer in started:
        try:
            theirs, _ = ray.get(answer, timeout=max(0.0, deadline - time.monotonic()))
            found.append(Inspected(node, host.compare(ours, theirs, node.address) or ""))
        except Exception as error:
            found.append(Inspected(node, f"{node.address} cannot run packtrain: {last_line(error)}"))
        with contextlib.suppress(Exception):
            ray.kill(handle, no_restart=True)
    return found
