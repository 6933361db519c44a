"""Groups of environments that are stepped by servers in other processes, as seen by the acting process.

Answers are taken first come, first served, so a slow server delays its own groups alone. A server that ends, raises or
does not answer in time is started again with new episodes, after a pause that doubles with each failure in a row; its
groups are skipped meanwhile. After `FAILURES` in a row it is left out for the rest of the run.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from packtrain import trees
from packtrain.envs.validation import Boundary
from packtrain.envs.vector_env import Outcome, Unsaved
from packtrain.errors import EnvError, EnvSetupError, one_line, warn
from packtrain.runtime.cluster.calls import Arrival, Call, Engine, Event, Failure, Started
from packtrain.runtime.env_server import EnvAnswer, EnvOrder
from packtrain.trees import Tree
from packtrain.types import Spec

log = logging.getLogger("packtrain")
FAILURES = 5  # failures in a row, after which a server is not restarted
GOOD_ANSWERS = 100  # number of answers in a life that resets the count of failures
FIRST_DELAY, LAST_DELAY = 1.0, 30.0  # seconds before a server is restarted
LONGEST_GAP = 5.0  # seconds; a longer time between two polls means that this process was stopped, and is not counted
LOOK_SECS = 0.2  # maximum duration of a poll

Phase = Literal["waiting", "starting", "ready", "left_out"]


@dataclass
class _Server:
    index: int
    groups: tuple[int, ...]
    phase: Phase = "waiting"
    life: int = -1
    since: float = 0.0  # when the phase began; for a ready server, its last answer or the start of the wait
    due: float = 0.0  # when the next life starts
    number: int = 0  # number of the next call
    in_flight: set[int] = field(default_factory=set)
    answers: int = 0  # of this life
    failures: int = 0  # in a row
    steps: int = 0  # environment steps since the last row of metrics
    error: str = ""


class EnvServers:
    """Starts servers of environments, sends actions, and collects outcomes. To be used from one thread."""

    def __init__(
        self,
        engine: Engine,
        blocks: Sequence[tuple[int, ...]],
        *,
        start_secs: float,
        step_secs: float,
        reset_secs: float = 0.0,
    ):
        """Store the settings; nothing starts before the first `poll`.

        Args:
          engine: starts and calls the servers.
          blocks: the groups of each server.
          start_secs: that a server may take to start.
          step_secs: that a step may take.
          reset_secs: that the first reset may take, if longer.
        """
        self._engine, self._start_secs, self._step_secs, self._reset_secs = engine, start_secs, step_secs, reset_secs
        self._servers = [_Server(index, tuple(block)) for index, block in enumerate(blocks)]
        self._server_of = {group: server for server in self._servers for group in server.groups}
        self._answered: dict[int, EnvAnswer] = {}  # by group, in order of arrival
        self._new: set[int] = set()  # groups whose next outcome begins new episodes
        self._counts: dict[int, tuple[int, int]] = {}  # (dropped, clipped) of ended lives, by group
        self._latest: dict[int, tuple[int, int]] = {}  # the same for the current life
        self._time, self._last = 0.0, engine.now()
        self.restarts = 0
        self.first_error = ""
        self._row_at, self._waited, self._bytes = 0.0, 0.0, 0  # of the metrics since the last row

    # -- used by the acting side

    @property
    def answered(self) -> list[int]:
        """Groups whose outcome has arrived, in order of arrival."""
        return list(self._answered)

    @property
    def lost(self) -> list[int]:
        """Return the groups that are left out for the rest of the run."""
        return [group for server in self._servers if server.phase == "left_out" for group in server.groups]

    def send(self, group: int, actions: Tree) -> None:
        """Start a step of a group; ignored if its server has ended, since new episodes begin soon."""
        server = self._server_of[group]
        if server.phase == "ready" and group not in self._new:
            self._call(server, EnvOrder(group, actions))

    def is_new(self, group: int) -> bool:
        """Return whether a group's outcome is the first one of new episodes."""
        return group in self._new

    def take(self, group: int) -> Outcome:
        """Return the outcome of a group; waits for it.

        Raises:
          EnvError: the group was left out.
        """
        while group not in self._answered:
            if self._server_of[group].phase == "left_out":
                raise EnvError(f"environments of group {group} were left out: {self._server_of[group].error}")
            self.poll(LOOK_SECS)
        self._new.discard(group)
        answer = self._answered.pop(group)
        self._latest[group] = answer.dropped, answer.clipped
        return answer.outcome

    def counts(self, group: int) -> tuple[int, int]:
        """Return how many episodes of a group were dropped, and how many values clipped, since the run began."""
        before, now = self._counts.get(group, (0, 0)), self._latest.get(group, (0, 0))
        return before[0] + now[0], before[1] + now[1]

    def row(self) -> dict[str, float]:
        """Return metrics of the servers since the last call; those of `workers/` have the meaning of other workers'."""
        span = max(1e-9, self._time - self._row_at)
        ready = sum(server.phase == "ready" for server in self._servers)
        row: dict[str, float] = {
            "env_servers_ready": ready,
            "env_servers_left_out": sum(server.phase == "left_out" for server in self._servers),
            "env_server_restarts": self.restarts,
            "workers/workers_ready": ready,
            "workers/calls_in_flight": sum(len(server.in_flight) for server in self._servers),
            "workers/chunk_bytes_per_s": self._bytes / span,
            "workers/wait_share": min(1.0, self._waited / span),
        }
        for server in self._servers:
            row[f"workers/worker_{server.index}_steps_per_s"] = server.steps / span
            server.steps = 0
        self._row_at, self._waited, self._bytes = self._time, 0.0, 0
        return row

    def waiting_for(self) -> str:
        """Return one sentence that says why no outcome has arrived."""
        for server in self._servers:
            secs = self._time - server.since
            name = f"environment server {server.index}"
            if server.phase == "waiting":
                return f"{name} starts in {max(0.0, server.due - self._time):.0f} s after: {server.error}"
            if server.phase == "starting":
                return f"{name} has been starting for {secs:.0f} s"
            if server.phase == "ready" and server.in_flight:
                return f"{name} has been at a step for {secs:.0f} s"
        return "no environment server is at work"

    def poll(self, timeout: float) -> None:
        """Start and replace servers as due, and wait at most `timeout` seconds for an outcome.

        Raises:
          EnvError: all servers are left out.
        """
        self._tick(0.0)
        self._advance()
        before = self._time
        events = self._engine.ready(timeout)
        self._tick(timeout)
        self._waited += self._time - before
        for event in events:
            self._receive(event)

    def check(self) -> None:
        """Raise a ClusterLostError if the cluster is lost; never waits."""
        getattr(self._engine, "check", lambda: None)()

    def close(self) -> None:
        """End all servers."""
        for server in self._servers:
            if server.phase in ("starting", "ready"):
                self._engine.kill(server.index, server.life)
            server.phase = "left_out"
        self._engine.close()  # type: ignore[attr-defined]

    # -- life cycle of a server

    def _tick(self, waited: float) -> None:
        now = self._engine.now()
        self._time += min(max(0.0, now - self._last), waited + LONGEST_GAP)
        self._last = now

    def _advance(self) -> None:
        for server in self._servers:
            if server.phase == "waiting" and server.due <= self._time:
                server.life += 1
                server.phase, server.since = "starting", self._time
                server.number, server.answers, server.in_flight = 0, 0, set()
                self._engine.spawn(server.index, "env", server.life, 0)
            elif server.phase == "starting" and self._time - server.since > self._start_secs:
                self._give_up(server, f"it did not start within {self._start_secs:g} s")
            elif server.in_flight and self._time - server.since > (limit := self._limit(server)):
                self._give_up(server, f"it did not answer within {limit:g} s")

    def _limit(self, server: _Server) -> float:
        """Return the deadline of the next answer: the first ones of a life are resets."""
        resets = server.answers < len(server.groups)
        return max(self._reset_secs, self._step_secs) if resets else self._step_secs

    def _give_up(self, server: _Server, why: str) -> None:
        self._engine.kill(server.index, server.life)
        self._end_life(server, why)

    def _receive(self, event: Event) -> None:
        server = self._servers[event.worker]
        if event.life != server.life or server.phase not in ("starting", "ready"):
            return  # result of a life that was given up
        match event:
            case Started() if server.phase == "starting":
                server.phase, server.since = "ready", self._time
                for group in server.groups:
                    self._new.add(group)
                    self._call(server, EnvOrder(group, None))
            case Arrival() if event.number in server.in_flight:
                server.in_flight.remove(event.number)
                server.since = self._time
                server.answers += 1
                if server.answers == GOOD_ANSWERS:
                    server.failures = 0
                self._answered[event.report.group] = event.report
                self._measure(server, event.report.outcome)
            case Failure():
                self._end_life(server, event.error)

    def _measure(self, server: _Server, outcome: Outcome) -> None:
        server.steps += len(outcome.first)
        self._bytes += sum(np.asarray(leaf).nbytes for leaf in trees.flatten((outcome.obs, outcome.rewards)))

    def _call(self, server: _Server, order: EnvOrder) -> None:
        if not server.in_flight:
            server.since = self._time
        server.in_flight.add(server.number)
        self._engine.call(Call(server.index, server.life, server.number, 0, None, order, 0))
        server.number += 1

    def _end_life(self, server: _Server, error: str) -> None:
        server.error = one_line((error.strip().splitlines() or ["no reason given"])[-1])
        self.first_error = self.first_error or error
        log.info("the error of environment server %d:\n%s", server.index, error)
        server.failures += 1
        server.in_flight = set()
        for group in server.groups:
            self._answered.pop(group, None)
            self._new.discard(group)
            self._counts[group], self._latest[group] = self.counts(group), (0, 0)
        name = f"environment server {server.index} (groups {', '.join(map(str, server.groups))})"
        if server.failures >= FAILURES:
            server.phase = "left_out"
            warn(f"{name} ended: {server.error}; left out after {FAILURES} failures in a row")
            if all(each.phase == "left_out" for each in self._servers):
                first = one_line((self.first_error.strip().splitlines() or ["no reason given"])[-1])
                raise EnvError(f"all environment servers failed {FAILURES} times in a row; the first error: {first}")
            return
        self.restarts += 1
        delay = min(LAST_DELAY, FIRST_DELAY * 2.0 ** (server.failures - 1))
        server.phase, server.due = "waiting", self._time + delay
        warn(f"{name} ended: {server.error}; it is started again in {delay:g} s with new episodes")


class RemoteGroup(Unsaved):
    """One group of environments that a server steps, as a vector environment."""

    overlaps = True
    rows_last = True
    starting = False
    times_itself = True
    busy_since: float | None = None

    def __init__(self, servers: EnvServers, group: int, spec: Spec, name: str):
        """Describe the group; nothing is sent.

        Args:
          servers: that step it.
          group: its number.
          spec: of the environment.
          name: of the environment, for messages.
        """
        self._servers, self._group, self._name = servers, group, name
        self.observation_space, self.action_space = spec.obs, spec.action
        self.reward_channels = spec.reward_channels
        # The server checks values; only its counts are added here.
        self.boundary = Boundary(spec.obs, "raise", lambda column: f"environment {column} of group {group} ({name})")

    def reset(self) -> Outcome:
        """Return the first rows of new episodes, which the server sends without a request."""
        return self.recv()

    def send(self, actions: Tree) -> None:
        """Start one step."""
        self._servers.send(self._group, actions)

    def recv(self) -> Outcome:
        """Wait for the step and return its outcome."""
        outcome = self._servers.take(self._group)
        self.boundary.dropped, self.boundary.clipped = self._servers.counts(self._group)
        return outcome

    def describe_busy(self) -> str:
        """Return the name of the group."""
        return f"group {self._group} of {self._name}"

    def picture(self, column: int) -> np.ndarray:
        """Raise an error: pictures can be drawn only in the environments' process."""
        raise EnvSetupError(f"{self._name} cannot be drawn from another process")

    def pictures_per_second(self) -> float:
        """Return a default, since the environment's rate is not known here."""
        return 30.0

    def close(self) -> None:
        """Do nothing: the servers are closed together."""
