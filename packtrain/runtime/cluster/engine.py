"""The engine that runs workers as Ray actors, on an open connection to a cluster."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from packtrain.errors import ClusterError
from packtrain.runtime.cluster import host, plan
from packtrain.runtime.cluster.calls import Arrival, Beat, Call, Event, Failure, Started
from packtrain.runtime.cluster.connection import Cluster

log = logging.getLogger("packtrain")
GET_SECS = 10.0  # limit for fetching a result that has arrived
ROLE_SHARE = 0.001  # of a node's role that one worker takes: a thousand fit


class Recipe(NamedTuple):
    """How a worker is built in its own process: `build(*arguments)`, both of which travel there."""

    build: Callable[..., Any]
    arguments: tuple[Any, ...]
    import_path: tuple[str, ...] = ()  # folders in which the process searches modules first


@dataclass
class _Life:
    actor: Any
    worker: int
    life: int
    role: str
    node: str
    recipe: Recipe
    starting: Any = None  # pending result of `identify`, then of `build`
    identified: bool = False
    calls: deque[tuple[int, Any]] = field(default_factory=deque)  # number and result, oldest first
    status: Any = None
    pid: int = 0
    version: int = -1  # version of the weights sent last


class RayEngine:
    """Workers as Ray actors; see `flow.Engine`."""

    def __init__(
        self,
        cluster: Cluster,
        placed: plan.Plan,
        recipe: Callable[[int, str, int, int], Recipe],
        leaves: bool = True,
    ):
        """Store the arguments; workers start at `spawn`.

        Args:
          cluster: an open connection.
          placed: which worker goes where.
          recipe: of a worker by its index, role, life and seed.
          leaves: `close` leaves the cluster.
        """
        self._cluster, self._plan, self._recipe, self._leaves = cluster, placed, recipe, leaves
        self._ray = cluster.ray
        self._host = self._ray.remote(concurrency_groups={"status": 1})(host.Host)
        self._lives: dict[int, _Life] = {}
        self._events: deque[Event] = deque()
        self._versions = host.versions()
        self._first_life: dict[int, int] = {}

    def now(self) -> float:
        """Return the time in seconds."""
        return time.monotonic()

    def spawn(self, worker: int, role: str, life: int, seed: int) -> None:
        """Begin to start a life on the node that the plan names, or on another if that is lost."""
        placed = self._plan.workers[worker]
        load = Counter(each.node for each in self._lives.values())
        node = plan.choose_node(self._cluster.nodes(), role, load, placed.node)
        self._first_life.setdefault(worker, life)
        if node is None:
            self._events.append(Failure(worker, life, f"no node of the cluster can take a worker of role {role!r}"))
            return
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.id, soft=True)
        # A later life may have to use another node, and the previous life's resources may not be free yet.
        cpus = placed.cpus if life == self._first_life[worker] else 0
        # If that node is lost at this moment, Ray takes another: one with the same role, where nodes state theirs.
        resource = f"{plan.RESOURCE}{plan.place_of(role)}"
        resources = {resource: ROLE_SHARE} if self._cluster.offers(node.id, resource) else None
        try:
            actor = self._host.options(
                num_cpus=cpus,
                resources=resources,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=strategy,
            ).remote()
            started = _Life(actor, worker, life, role, node.id, self._recipe(worker, role, life, seed))
            started.starting = actor.identify.remote(started.recipe.import_path)
        except Exception as error:
            self._events.append(Failure(worker, life, _describe(error)))
            return
        self._lives[worker] = started

    def call(self, call: Call) -> None:
        """Send a call; a version of weights travels once per node and is read once per worker."""
        life = self._lives.get(call.worker)
        if life is None or life.life != call.life:  # the life has failed, and `ready` will report it
            return
        weights = None if life.version == call.version else call.weights
        try:
            life.calls.append((call.number, life.actor.act.remote(call.order, call.version, weights)))
            life.version = call.version
        except Exception as error:
            self._fail(life, error)

    def ask_status(self, worker: int, life: int) -> None:
        """Request a Beat from a thread of the worker's process that is not busy with orders."""
        found = self._lives.get(worker)
        if found is None or found.life != life:
            return
        try:
            found.status = found.actor.status.options(concurrency_group="status").remote()
        except Exception as error:
            self._fail(found, error)

    def put(self, version: int, weights: Any) -> Any:
        """Store weights, owned by this process."""
        return self._ray.put(weights)

    def kill(self, worker: int, life: int) -> None:
        """End a life at once, even one whose process is stopped."""
        found = self._lives.get(worker)
        if found is None or found.life != life:
            return
        del self._lives[worker]
        with contextlib.suppress(Exception):
            self._ray.kill(found.actor, no_restart=True)

    def ready(self, timeout: float) -> Sequence[Event]:
        """Return the events since the last call; ClusterLostError if the head is lost."""
        deadline = time.monotonic() + timeout
        while True:
            self._cluster.check()
            self._collect()
            left = deadline - time.monotonic()
            if self._events or left <= 0:
                events = list(self._events)
                self._events.clear()
                return events
            self._wait(min(left, 0.5))

    def check(self) -> None:
        """Raise a ClusterLostError if the cluster is lost; never waits."""
        self._cluster.check()

    def close(self) -> None:
        """End all lives, and leave the cluster if this engine is the one that does."""
        for worker, life in list(self._lives.items()):
            self.kill(worker, life.life)
        if self._leaves:
            self._cluster.close()

    def pids(self) -> dict[int, tuple[str, int]]:
        """Return node id and process id of each worker that runs."""
        return {worker: (life.node, life.pid) for worker, life in self._lives.items() if life.pid}

    # -- results

    def _references(self) -> dict[Any, _Life]:
        """Return what is waited for: of each life its start, its oldest result and its status."""
        found = {}
        for life in self._lives.values():
            oldest = life.calls[0][1] if life.calls else None
            found.update({each: life for each in (life.starting, oldest, life.status) if each is not None})
        return found

    def _wait(self, secs: float) -> None:
        references = list(self._references())
        if not references:
            time.sleep(secs)
            return
        self._ray.wait(references, num_returns=1, timeout=secs, fetch_local=True)

    def _collect(self) -> None:
        """Convert all arrived results into events; each allows the next call of its worker."""
        while references := self._references():
            done, _ = self._ray.wait(list(references), num_returns=len(references), timeout=0, fetch_local=True)
            if not done:
                return
            for reference in done:
                life = references[reference]
                if self._lives.get(life.worker) is life:
                    self._receive(life, reference)

    def _receive(self, life: _Life, reference: Any) -> None:
        try:
            value = self._ray.get(reference, timeout=GET_SECS)
        except Exception as error:  # the worker's own error, its death, or a lost object
            self._fail(life, error)
            return
        if reference == life.status:
            life.status = None
            self._events.append(Beat(life.worker, life.life, value))
        elif reference == life.starting:
            self._go_on_starting(life, value)
        else:
            number, _ = life.calls.popleft()
            self._events.append(Arrival(life.worker, life.life, number, *value))

    def _go_on_starting(self, life: _Life, value: Any) -> None:
        if life.identified:
            life.starting = None
            self._events.append(Started(life.worker, life.life))
            return
        theirs, life.pid = value
        life.identified = True
        where = life.role, life.worker, life.life, life.pid, self._address(life.node)
        log.info("%s %d (life %d) is process %d on %s", *where)
        if (differ := host.compare(self._versions, theirs, self._address(life.node))) is not None:
            if life.life == self._first_life[life.worker]:
                raise ClusterError(differ)
            self._fail(life, ClusterError(differ))
            return
        try:
            life.starting = life.actor.build.remote(*life.recipe[:2])
        except Exception as error:
            self._fail(life, error)

    def _address(self, node: str) -> str:
        return next((each.address for each in self._cluster.nodes() if each.id == node), node[:12])

    def _fail(self, life: _Life, error: BaseException) -> None:
        self.kill(life.worker, life.life)
        raised = getattr(error, "cause", None) is not None  # by the worker; Ray's own errors have no cause
        self._events.append(Failure(life.worker, life.life, _describe(error), raised))


def _describe(error: BaseException) -> str:
    """Return a traceback whose last line is a one-line error."""
    cause = getattr(error, "cause", None)
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    if cause is not None:  # raised by the worker: Ray adds its traceback to the text
        return f"{text}\n{type(cause).__name__}: {cause}"
    kind = type(error).__name__
    sentences = [line.strip() for line in text.splitlines() if line.strip()]
    last = " ".join(sentences[:1]) if kind.startswith("Actor") else " ".join(sentences[-1:])
    return f"{text}\n{kind}: {last}"
