"""Exploration statistics for environments with enumerable states: states visited, and distance to the goal."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from packtrain.config import configurable
from packtrain.envs.functional import Core
from packtrain.envs.functional_vector_env import FunctionalVectorEnv
from packtrain.envs.state_graph import StateGraph
from packtrain.envs.stream import Stream
from packtrain.errors import ConfigError, MissingExtraError, RunFolderError, Seldom
from packtrain.metrics.exploration import Exploration
from packtrain.metrics.heat_map import heat_map, write_png

MARKS = ("wrong", "false_loop", "verified")  # flags of a step that are counted: see `PlannerPolicy.marks`


@partial(configurable, module="packtrain")
@dataclass(frozen=True)
class ExplorationCallback:
    """Counts visited states and their exact distances to the goal, and writes heat maps to RUN/pictures.

    It requires a built-in environment with one start state and few states: all are enumerated when a run begins.
    """

    picture_every: int = 0  # metrics rows (epochs, for planners) between two images; 0: only at the end
    most_states: int = 1_000_000  # maximum number of states of an environment

    def __post_init__(self) -> None:
        for name, least in (("picture_every", 0), ("most_states", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"ExplorationCallback.{name} = {getattr(self, name)} must be at least {least}")


class Explorer:
    """Visit counts of all streams. Steps of random data collection are counted separately."""

    def __init__(self, settings: ExplorationCallback, streams: list[Stream], folder: Path):
        """Enumerate all states; EnvSetupError if that is impossible.

        Args:
          settings: what to write.
          streams: whose columns are watched.
          folder: for pictures.
        """
        if not all(isinstance(stream.columns, FunctionalVectorEnv) for stream in streams):
            raise ConfigError("ExplorationCallback needs a built-in environment whose states can be enumerated")
        self._settings, self._folder = settings, folder
        core: Core = streams[0].columns.core  # type: ignore[attr-defined]
        self._core, self.graph = core, StateGraph(core, settings.most_states)
        shown = core.landmarks(self.graph.states) if hasattr(core, "landmarks") else {}
        sizes = (len(self.graph), self.graph.edges.shape[1], self.graph.to_goal, self.graph.from_start)
        self.planned, self.random = (Exploration(*sizes, shown) for _ in range(2))
        self._marks = {name: np.zeros(len(self.graph), np.int64) for name in MARKS}
        self._before: list[tuple[np.ndarray, np.ndarray] | None] = [None] * len(streams)  # states, actions
        self._rows = 0
        self._refused = Seldom()
        self._lock = threading.Lock()  # one thread may read while another writes a row

    def look(self, group: int, stream: Stream, at: int, random: bool, marks: Mapping[str, np.ndarray]) -> None:
        """Count the states of a group after its actor step, in which it received a row and sent actions.

        Args:
          group: its number.
          stream: its stream.
          at: the run's steps so far.
          random: whether it acts only to gather data.
          marks: {name: bool [B]} what is noted of the step before this row.
        """
        states, first, acted = self.graph.find(stream.columns.states), stream.first, stream.acted  # type: ignore[attr-defined]
        counters = self.random if random else self.planned
        with self._lock:
            if self._before[group] is None or not acted.any():
                counters.visit(np.where(first, states, -1), at)
            else:
                before, actions = self._before[group]  # type: ignore[misc]
                before = np.where(acted, before, -1)
                counters.step(before, actions, np.where(acted | first, states, -1), at)
                for name in self._marks.keys() & marks.keys():
                    np.add.at(self._marks[name], before[marks[name] & (before >= 0)], 1)
        self._before[group] = (states, np.array(stream.sent))

    def row(self) -> dict[str, Any]:
        """Return the metrics since the last call, or of an epoch, and begin a new interval."""
        with self._lock:
            row = self.planned.row()
            if self.random.visits.any():
                row |= {f"random_episodes/{name.partition('/')[2]}": v for name, v in self.random.row().items()}
            self.planned.begin_epoch()
            self.random.begin_epoch()
        self._rows += 1
        every = self._settings.picture_every
        if every and self._rows % every == 0:
            self.draw(f"visits-{self._rows}.png")
        return row

    def draw(self, name: str = "visits.png") -> None:
        """Write a heat map of visits and recorded values, if the environment can be drawn; warn if writing fails."""
        if not hasattr(self._core, "chart"):
            return
        noted = {label: (self.graph.states, counts) for label, counts in self._marks.items() if counts.any()}
        picture = heat_map(self._core, self.graph.states, self.planned.visits, noted)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_png(self._folder / name, picture)
        except (OSError, RunFolderError, MissingExtraError) as error:
            self._refused.warn(f"{error}; the run goes on without that picture")

    def snapshot(self) -> dict[str, Any]:
        """Return all counts."""
        return {
            "planned": self.planned.snapshot(),
            "random": self.random.snapshot(),
            "marks": {name: counts.copy() for name, counts in self._marks.items()},
            "rows": self._rows,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Continue from a snapshot, with the next row."""
        self.planned.restore(snapshot["planned"])
        self.random.restore(snapshot["random"])
        self._marks = {name: np.array(counts) for name, counts in snapshot["marks"].items()}
        self._rows = int(snapshot["rows"])
