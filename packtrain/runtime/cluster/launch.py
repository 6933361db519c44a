"""Open the cluster of a run: join one, or start one on this machine, and place the run's workers on its nodes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from packtrain.errors import ClusterError
from packtrain.runtime.cluster import connection, engine, plan
from packtrain.runtime.messages import Remote

log = logging.getLogger("packtrain")
NODES_SECS = 120.0  # limit for nodes to join


class Launched(NamedTuple):
    """An open connection to a cluster, and the places of a run on it."""

    cluster: connection.Cluster
    plan: plan.Plan

    @property
    def workers(self) -> int:
        """Number of workers that act, or step environments where the policy acts in the learner's process."""
        return sum(placed.role in ("actor", "env") for placed in self.plan.workers)

    def more(self, role: str, count: int, recipe: Callable[[int, str, int, int], engine.Recipe]) -> engine.RayEngine:
        """Return an engine for processes beside the workers; it does not leave the cluster when it is closed.

        Args:
          role: "evaluator" or "replay".
          count: number of processes.
          recipe: see `RayEngine`.
        """
        places = plan.place_more(self.cluster.nodes(), self.plan, role, count)
        return engine.RayEngine(self.cluster, places, recipe, leaves=False)

    @property
    def store_bytes(self) -> int:
        """Size of the object store of the learner's machine."""
        return next((node.store_bytes for node in self.cluster.nodes() if node.driver), 0)


def check(remote: Remote) -> None:
    """Raise a ClusterError or MissingExtraError if a cluster run is impossible; starts nothing, takes seconds.

    Args:
      remote: what the command line says.
    """
    connection.require_ray()
    if remote.min_nodes < 1:
        raise ClusterError(f"--min_nodes {remote.min_nodes} must be at least 1")
    if remote.address is None and remote.min_nodes > 1:
        raise ClusterError(
            f"--min_nodes {remote.min_nodes} needs --address HEAD:PORT: without it, the cluster "
            "consists of this machine only"
        )
    if remote.address is not None:
        address = connection.resolve(remote.address)
        connection.refuse_other_versions(connection.check_head(address), address)


def launch(remote: Remote, num_envs: int, chunk_bytes: int, weights_bytes: int, extra_bytes: int = 0) -> Launched:
    """Join or start a cluster and place a run on it; ClusterError, in one sentence, if that cannot be done.

    Args:
      remote: what the command line says.
      num_envs: environments of the run.
      chunk_bytes: of one result of a worker that serves all environments, about.
      weights_bytes: of one version of the weights.
      extra_bytes: of other objects at a time, see `plan.Needs`.
    """
    check(remote)
    role = "env" if remote.inference == "learner" else "actor"
    sizes = (num_envs, chunk_bytes, weights_bytes)
    needs = plan.Needs(*sizes, remote.workers, role, min_nodes=remote.min_nodes, extra_bytes=extra_bytes)
    if remote.address is None:
        workers = remote.workers or plan.count_sockets()
        store = plan.store_to_start(plan.store_needed(chunk_bytes, weights_bytes, workers) + extra_bytes)
        cluster = connection.Cluster.start(store, plan.usable_cpus())
    else:
        cluster = connection.Cluster.connect(remote.address)
    try:
        nodes = cluster.wait_for_nodes(remote.min_nodes, NODES_SECS)
        placed = plan.make_plan(nodes, needs)
    except BaseException:
        cluster.close()
        raise
    for note in placed.notes:
        log.info("cluster %s: %s", cluster.address, note)
    return Launched(cluster, placed)
