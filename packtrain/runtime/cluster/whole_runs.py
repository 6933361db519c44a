"""Whole runs on the nodes of a cluster, as those of a sweep: each is a process that a Ray actor starts and watches.

The folder of the runs must be on a file system that all nodes share, under one path.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packtrain.errors import ClusterError
from packtrain.runtime.cluster import connection, engine, plan
from packtrain.runtime.supervise import launch

NODES_SECS = 120.0  # that lost nodes have to come back
UNSEEN = 1001  # exit code of a run on a node that does not have the folder


class Watcher:
    """Starts one process on a node and waits for its end; runs in a Ray actor."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def run(self, command: Sequence[str], env: Mapping[str, str], log: str, home: str, mark: str) -> int:
        """Run a process to its end and return its exit code.

        Args:
          command: Python and its arguments; the node's own Python is used.
          env: variables on top of the node's own.
          log: file for the output.
          home: the process's working directory.
          mark: a file that must exist if this node has the folder of the runs.
        """
        if not Path(mark).is_file() or not Path(home).is_dir():
            return UNSEEN
        os.chdir(home)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self._process = launch([sys.executable, *command[1:]], {**kept, **env}, Path(log))
        if self._stopped:
            self.stop()
        return self._process.wait()

    def stop(self) -> None:
        """Ask the process to save and leave."""
        self._stopped = True
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.send_signal(signal.SIGTERM)


@dataclass(eq=False)
class WholeRun:
    """A run that has been started."""

    actor: Any
    answer: Any
    node: plan.Node


class WholeRuns:
    """Runs of a sweep on a cluster, placed on the nodes with the most room; to be closed."""

    def __init__(self, cluster: connection.Cluster, cpus: float, gpus: float):
        """Nothing is started yet.

        Args:
          cluster: an open connection.
          cpus: processors that a run takes.
          gpus: GPUs that a run takes.
        """
        self._cluster, self._cpus, self._gpus = cluster, cpus, gpus
        self._ray = cluster.ray
        self._watcher = self._ray.remote(max_concurrency=2)(Watcher)
        self._running: list[WholeRun] = []
        self._had_room = time.monotonic()
        plan.place_runs(cluster.nodes(), 1, cpus, gpus)  # ClusterError if no node could ever take a run

    def free_node(self) -> plan.Node | None:
        """Return the node for one more run, or None if all are busy.

        Raises:
          ClusterLostError: the head is lost.
          ClusterError: nothing runs, and no node could take a run for NODES_SECS.
        """
        self._cluster.check()
        used = Counter(run.node.id for run in self._running)
        nodes = {node.id: node for node in self._cluster.nodes()}
        left = [
            node._replace(
                cpus=node.cpus - self._cpus * used[node.id],
                gpus=node.gpus - self._gpus * used[node.id],
            )
            for node in nodes.values()
        ]
        try:
            found = nodes[plan.place_runs(left, 1, self._cpus, self._gpus)[0]]
        except ClusterError:
            if not self._running and time.monotonic() - self._had_room > NODES_SECS:
                raise
            return None
        self._had_room = time.monotonic()
        return found

    def start(
        self, node: plan.Node, command: Sequence[str], env: Mapping[str, str], log: Path, home: Path, mark: Path
    ) -> WholeRun:
        """Start a run on a node; the arguments are those of `Watcher.run`."""
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
        actor = self._watcher.options(
            num_cpus=self._cpus, num_gpus=self._gpus, max_restarts=0, scheduling_strategy=strategy
        ).remote()
        answer = actor.run.remote(list(command), dict(env), str(log), str(home), str(mark))
        run = WholeRun(actor, answer, node)
        self._running.append(run)
        return run

    def poll(self, run: WholeRun) -> int | None:
        """Return a run's exit code, or None while it runs.

        Raises:
          ClusterError: its node or its actor is lost; the run may be started again.
          ClusterLostError: the head is lost.
        """
        self._cluster.check()
        done, _ = self._ray.wait([run.answer], timeout=0)
        if not done:
            return None
        self._had_room = time.monotonic()
        self._running.remove(run)
        try:
            return int(self._ray.get(run.answer, timeout=engine.GET_SECS))
        except Exception as error:  # Ray's own kinds
            raise ClusterError(f"the run on {run.node.address} is lost: {type(error).__name__}") from error
        finally:
            self.end(run)

    def stop(self, run: WholeRun) -> None:
        """Ask a run to save and leave."""
        run.actor.stop.remote()

    def end(self, run: WholeRun) -> None:
        """End a run's actor; its process gets SIGTERM."""
        with contextlib.suppress(Exception):
            self._ray.kill(run.actor, no_restart=True)

    def close(self) -> None:
        """End everything that runs, and leave the cluster."""
        for run in list(self._running):
            self.end(run)
        self._cluster.close()


def connect(address: str | None, cpus: float, gpus: float, min_nodes: int = 1) -> WholeRuns:
    """Join the cluster at an address, or start one of this machine alone.

    Args:
      address: HOST:PORT of the head; None: this machine.
      cpus: processors that a run takes.
      gpus: GPUs that a run takes.
      min_nodes: number of nodes to wait for.
    """
    connection.require_ray()
    if address is None:
        cluster = connection.Cluster.start(plan.SMALLEST_STORE, plan.usable_cpus(), int(gpus))
    else:
        cluster = connection.Cluster.connect(address)
    try:
        cluster.wait_for_nodes(min_nodes, connection.START_SECS)
        return WholeRuns(cluster, cpus, gpus)
    except BaseException:
        cluster.close()
        raise
