"""Central inference: environments are stepped by servers in other processes, and the policy acts here for all of them.

The policy lives on the learner's device. It serves the groups of environments whose rows have arrived, first come first
served, and computes them in one batch where it can. A group whose server has ended is skipped until there is another.
"""

from __future__ import annotations

import collections
import functools
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from packtrain import trees
from packtrain.envs.stream import Stream
from packtrain.errors import ConfigError
from packtrain.interfaces import Memory, Policy, Writer
from packtrain.runtime.acting import ActingOptions
from packtrain.runtime.cluster.calls import Engine
from packtrain.runtime.env_server import EnvServer, EnvServerSetup, ServedGroup
from packtrain.runtime.experiment import Experiment
from packtrain.runtime.local_acting import ActingSide, build_acting
from packtrain.runtime.messages import Remote, Report
from packtrain.runtime.preflight import row_bytes
from packtrain.runtime.process_engine import ProcessEngine
from packtrain.runtime.regrouping import Layout
from packtrain.runtime.remote_envs import EnvServers, RemoteGroup
from packtrain.runtime.remote_setup import ROW_EXTRAS, divide, group_sizes
from packtrain.runtime.seeds import seed_for
from packtrain.runtime.starvation import StarvationLog
from packtrain.runtime.weights import Weights
from packtrain.types import Row, Spec

LOOK_SECS = 0.2


def refuse_central(experiment: Experiment) -> None:
    """Raise a ConfigError if the policy cannot act in another process than the environments."""
    if experiment.policy.env_access == "states":
        raise ConfigError(
            "--inference learner is not supported for planners, which act in the process of their simulator; "
            "leave --inference out"
        )
    if experiment.exploration is not None:
        raise ConfigError(
            "--inference learner does not support ExplorationCallback, which needs the environments in this process"
        )


def central_acting(
    remote: Remote, experiment: Experiment, spec: Spec, device: torch.device, options: ActingOptions
) -> CentralActing:
    """Return an acting side whose environments are stepped by servers; they start with the first row.

    Args:
      remote: where the servers run, and how many.
      experiment: what acts.
      spec: of its environment.
      device: of the policy.
      options: how the acting side differs from a plain run's.
    """
    refuse_central(experiment)
    options = replace(options, saved=None)  # environments always begin new episodes
    environment = experiment.streams.environment
    launched = None
    if remote.kind == "cluster":
        from packtrain.runtime.cluster.launch import launch  # needs the extra "cluster"

        envs = experiment.streams.num_actors
        launched = launch(remote, envs, envs * (2 * row_bytes(spec) + ROW_EXTRAS), 0)
    count = (remote.workers or 1) if launched is None else launched.workers
    try:
        sizes = group_sizes(experiment, count, options.sizes)
    except BaseException:
        if launched is not None:
            launched.cluster.close()
        raise
    blocks = divide(len(sizes), count)

    def setup(server: int, life: int) -> EnvServerSetup:
        lives = (server, life) if life else ()
        names = {group: ("environments", group, *options.again, *lives) for group in blocks[server]}
        groups = tuple(ServedGroup(group, sizes[group], seed_for(experiment.seed, *names[group])) for group in names)
        return EnvServerSetup(environment, spec, groups, len(sizes), tuple(sys.path))

    servers = EnvServers(
        engine_for(setup, launched),
        blocks,
        start_secs=environment.start_deadline_secs + 60,
        step_secs=environment.step_deadline_secs,
        reset_secs=environment.start_deadline_secs,
    )
    streams = [Stream(RemoteGroup(servers, group, spec, environment.id), size) for group, size in enumerate(sizes)]
    kind = functools.partial(CentralActing, servers=servers, exact=options.exact)
    side = build_acting(experiment, spec, device, replace(options, sizes=tuple(sizes)), streams, kind)
    assert isinstance(side, CentralActing)
    return side


def engine_for(setup: Callable[[int, int], EnvServerSetup], launched: Any) -> Engine:
    """Return the engine that starts the servers.

    Args:
      setup: of a server by its index and life.
      launched: an open cluster, whose actors they are; None: processes of this machine.
    """
    if launched is None:
        return ProcessEngine(setup)
    from packtrain.runtime.cluster.engine import RayEngine, Recipe

    def recipe(server: int, role: str, life: int, seed: int) -> Recipe:
        values = setup(server, life)
        return Recipe(EnvServer, (values,), values.import_path)

    return RayEngine(launched.cluster, launched.plan, recipe)


class _Waiting(NamedTuple):
    """A row that cannot be stored yet because the memory is full."""

    group: int
    row: Row
    carry: Any
    extras: dict[str, Any]


class _PatientWriter(Writer):
    """Writes the rows of a group in order, and queues them while the memory is full."""

    def __init__(self, acting: CentralActing, group: int):
        self._acting, self._group = acting, group

    def add(self, row: Row, carry: Any, extras: dict[str, Any]) -> None:
        """Store a row, or queue it while the memory is full."""
        self._acting.store(self._group, row, carry, extras)


class CentralActing(ActingSide):
    """Serves the groups whose rows have arrived, with one policy that uses the newest weights."""

    def __init__(
        self,
        experiment: Experiment,
        streams: list[Stream],
        policy: Policy,
        device: torch.device,
        *,
        servers: EnvServers,
        exact: bool,
    ):
        """Store the arguments; nothing starts before the first step.

        Args:
          experiment: of the run.
          streams: one per group of environments.
          policy: acts for all groups.
          device: of the policy.
          servers: that step the environments.
          exact: serve the groups one after another, in a fixed order.
        """
        super().__init__(experiment, streams, policy, device)
        self._servers, self._exact = servers, exact
        self._memories: dict[str, Memory] = {}
        self._waiting: collections.deque[_Waiting] = collections.deque()
        self._batches = self._served = 0  # since the last metrics row
        self._starvation = StarvationLog("the run", lambda: f"environments: {servers.waiting_for()}")

    def connect(self, memories: Mapping[str, Memory], weights: Weights | None) -> None:
        """Store rows in these memories, and act with these weights; None if nothing learns."""
        self._memories = dict(memories)
        writers = [_PatientWriter(self, group) for group in range(len(self.streams))]
        self.connect_writers({"memories": writers}, weights)

    # -- acting

    def act(self, patience: float | None = None) -> Report:
        """Serve the groups whose rows have arrived.

        Args:
          patience: seconds to wait for a row; None: until there is one.
        """
        end = None if patience is None else time.monotonic() + patience
        while not (served := self._serve()) and not self.stopping():
            self._starvation.check()
            left = LOOK_SECS if end is None else min(LOOK_SECS, end - time.monotonic())
            if left <= 0:
                break
            if self._waiting:
                next(iter(self._memories.values())).wait_for_room(left)
                if end is None:
                    break  # wait until the learner makes room
            else:
                self._servers.poll(left)
        if served:
            self._starvation.reset()
        return Report(self.actor.steps, self.actor.drain_finished(), self.policy.random)

    def check(self) -> None:
        """Raise an error if the cluster is lost; never waits."""
        self._servers.check()

    def _serve(self) -> bool:
        """Serve the groups whose rows have arrived; return whether any was served."""
        stored = self._store_waiting()
        if self._waiting:
            return stored
        self._servers.poll(0.0)
        groups = self._due()
        if not groups:
            return stored
        with self.on_device():
            for group in groups:
                if self._servers.is_new(group):
                    self._begin_anew(group)
            self.actor.serve(groups)
        self._batches += 1
        self._served += len(groups)
        return True

    def _due(self) -> list[int]:
        """Return the groups to serve now."""
        answered = self._servers.answered
        if not self._exact:
            return answered
        lost = set(self._servers.lost)
        order = [(self.actor.next_group + step) % len(self.streams) for step in range(len(self.streams))]
        first = next(group for group in order if group not in lost)
        return [first] if first in answered else []

    def _begin_anew(self, group: int) -> None:
        """Begin new episodes of a group: the unfinished ones ended with its server."""
        stream, state = self.streams[group], self.actor.actor_states[group]
        if not stream.started:
            return  # no state has been saved: the first episodes of the run
        lasting = state.lasting_state()
        state.begin()
        if lasting:
            state.load_lasting_state(lasting)
        for memory in self._memories.values():
            memory.release(group)
        stream.restart()

    # -- rows on their way to memories

    def store(self, group: int, row: Row, carry: Any, extras: dict[str, Any]) -> None:
        """Store a row of a group in the order of calls; rows wait while a memory is full."""
        if self._waiting or not self._has_room(group):
            kept = trees.map(_copied, (tuple(row), carry, extras))
            self._waiting.append(_Waiting(group, Row(*kept[0]), kept[1], kept[2]))
        else:
            self._write(group, row, carry, extras)

    def _store_waiting(self) -> bool:
        stored = False
        while self._waiting and self._has_room(self._waiting[0].group):
            self._write(*self._waiting.popleft())
            stored = True
        return stored

    def _has_room(self, group: int) -> bool:
        return all(memory.room(group) > 0 for memory in self._memories.values())

    def _write(self, group: int, row: Row, carry: Any, extras: dict[str, Any]) -> None:
        for memory in self._memories.values():
            memory.writer(group).add(row, carry, extras)

    # -- metrics, checkpoints and the end

    def row(self) -> dict[str, Any]:
        """Return metrics of environments, servers and policy since the last call."""
        row = super().row()
        if not self._exact:
            row |= self._servers.row() | {"groups_per_batch": self._served / max(1, self._batches)}
            self._batches = self._served = 0
        return row

    @property
    def layout(self) -> Layout:
        """The division of the environments. It is never in a checkpoint: environments of servers are not saved."""
        return Layout(0, tuple(self.group_sizes))

    def close(self) -> None:
        """End the servers; they close their environments."""
        self._servers.close()


def _copied(leaf: Any) -> Any:
    """Return a copy of an array or a tensor, which its owner is about to overwrite."""
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf.copy()
