"""Search traces: one JSON file per episode, with real steps, the steps tried in the model, and states.

The form, version 1:

    {"version": 1, "environment": id, "epoch": 3, "column": 0, "cut": false,
     "start": node, "states": {node: {leaf: [dtype, shape, base64]}},
     "steps": [{"action": a, "reward": r, "ended": false, "to": node, "extras": {name: number or list},
                "passes": [[{"from": node, "to": node, "action": a, "reward": r, "terminated": false}, ...], ...]}]}

Nodes are numbers within the episode; equal states are one node. A model step from a state that the planner did not keep
comes from −1. `cut` says that a limit was reached and later model steps are missing. Files hold data alone: reading one
runs nothing.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from packtrain import trees
from packtrain.config import configurable
from packtrain.errors import ConfigError, Seldom
from packtrain.hashing import digest
from packtrain.planning.counter_rng import chance
from packtrain.planning.events import ModelSteps
from packtrain.trees import Tree

VERSION = 1
STATE_BYTES = 1 << 26  # bytes of states per episode; later model steps are left out, since images are large


@configurable
@dataclass(frozen=True)
class Traces:
    """Which episodes are recorded, and how many of their steps."""

    sample_rate: float = 1.0  # fraction of the episodes
    max_model_steps: int = 20_000  # per episode; later ones are left out
    max_files: int = 1_000  # per run
    texts: bool = False  # also write every state as rendered text

    def __post_init__(self) -> None:
        if not 0 <= self.sample_rate <= 1:
            raise ConfigError(f"Traces.sample_rate = {self.sample_rate} must lie in [0, 1]")
        for name in ("max_model_steps", "max_files"):
            if getattr(self, name) < 1:
                raise ConfigError(f"Traces.{name} = {getattr(self, name)} must be at least 1")


@dataclass
class _Episode:
    """An episode that is being recorded."""

    epoch: int
    start: int = -1
    here: int = -1  # current node
    numbers: dict[int, int] = field(default_factory=dict)  # digest → node
    known: dict[int, int] = field(default_factory=dict)  # the planner's id of a state → node
    states: dict[int, Any] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    passes: list[list[dict[str, Any]]] = field(default_factory=list)  # passes since the last real step
    model_steps: int = 0
    state_bytes: int = 0
    cut: bool = False


class TraceWriter:
    """Receives planners' events and writes `folder/ep<epoch>_<column>.json` at the end of an episode."""

    def __init__(self, settings: Traces, folder: Path, environment: str, seed: int):
        self._settings, self._folder, self._environment, self._seed = settings, folder, environment, seed
        self._episodes: dict[int, _Episode] = {}
        self._refused = Seldom()
        self._render: Callable[[Tree, str], str] | None = None
        self._renders_model = False
        self._written = len(list(folder.glob("*.json"))) if folder.is_dir() else 0

    def use_renderer(self, core: Any, model_states: bool) -> None:
        """Render states as text if `texts` is set; ConfigError if the environment cannot.

        Args:
          core: the environment, with `render(states, "ansi")`.
          model_states: whether states of model steps are states of the environment, as in its own simulator.
        """
        if not self._settings.texts:
            return
        if not hasattr(core, "render"):
            raise ConfigError(f"TraceCallback.texts = True: {self._environment} has no text rendering")
        self._render, self._renders_model = core.render, model_states

    # -- reported by planners

    def pass_begin(self, columns: np.ndarray) -> None:
        """Begin a pass in these environments."""
        for column in columns.tolist():
            episode = self._episodes.get(column)
            if episode is not None and not episode.cut:
                episode.passes.append([])

    def model_steps(self, steps: ModelSteps) -> None:
        """Record model steps."""
        watched = np.flatnonzero(np.isin(steps.columns, list(self._episodes)))
        if not len(watched):
            return
        keys = self._digests(trees.pick(steps.states, watched))
        for place, index in enumerate(watched):
            episode = self._episodes[int(steps.columns[index])]
            if episode.model_steps >= self._settings.max_model_steps or episode.state_bytes >= STATE_BYTES:
                episode.cut = True
                continue
            episode.model_steps += 1
            if not episode.passes:
                episode.passes.append([])
            source, target = int(steps.source[index]), int(steps.target[index])
            # Only the root has an id without a reported step that leads to it.
            origin = -1 if source < 0 else episode.known.setdefault(source, episode.here)
            node = self._node(episode, keys[place], steps.states, int(index), self._renders_model)
            if target >= 0:
                episode.known[target] = node
            episode.passes[-1].append(
                {
                    "from": origin,
                    "to": node,
                    "action": _plain(steps.actions[index]),
                    "reward": float(steps.rewards[index]),
                    "terminated": bool(steps.terminated[index]),
                }
            )

    def pass_end(self, columns: np.ndarray) -> None:
        """Do nothing at the end of a pass."""

    # -- real steps

    def episode_begin(self, columns: np.ndarray, epoch: int, states: Tree) -> None:
        """Begin an episode in these environments; some of them are recorded."""
        keys = self._digests(states)
        for place, column in enumerate(columns.tolist()):
            self._episodes.pop(column, None)
            drawn = float(chance(self._seed, epoch, column)[0]) < self._settings.sample_rate
            if drawn and self._written + len(self._episodes) < self._settings.max_files:
                episode = self._episodes[column] = _Episode(epoch)
                episode.start = episode.here = self._node(episode, keys[place], states, place)

    def real_steps(
        self, columns: np.ndarray, states: Tree, actions: Any, rewards: Any, ended: Any, extras: dict[str, Any]
    ) -> None:
        """Record real steps, and write finished episodes."""
        keys = self._digests(states)
        for place, column in enumerate(columns.tolist()):
            episode = self._episodes.get(column)
            if episode is None:
                continue
            episode.here = self._node(episode, keys[place], states, place)
            episode.steps.append(
                {
                    "action": _plain(actions[place]),
                    "reward": float(rewards[place]),
                    "ended": bool(ended[place]),
                    "to": episode.here,
                    "extras": {name: _plain(value[place]) for name, value in extras.items()},
                    "passes": episode.passes,
                }
            )
            episode.passes = []
            if ended[place]:
                self._write(column, self._episodes.pop(column))

    # -- the file

    def _digests(self, states: Tree) -> list[int]:
        plain = [leaf for leaf in trees.flatten(states) if leaf.dtype != object]
        return digest(plain).tolist() if plain else [-1] * len(trees.front(states))

    def _node(self, episode: _Episode, key: int, states: Tree, index: int, real: bool = True) -> int:
        if key not in episode.numbers:
            episode.numbers[key] = len(episode.numbers)
            leaves = trees.named_leaves(trees.map(lambda leaf: leaf[index], states))
            plain = {name or "state": leaf for name, leaf in leaves.items() if np.asarray(leaf).dtype != object}
            episode.states[episode.numbers[key]] = {name: _encoded(leaf) for name, leaf in plain.items()}
            episode.state_bytes += sum(np.asarray(leaf).nbytes for leaf in plain.values())
        node = episode.numbers[key]
        if self._render is not None and real and node not in episode.texts:
            one = trees.map(lambda leaf: leaf[index : index + 1], states)
            episode.texts[node] = self._render(one, "ansi")
        return node

    def _write(self, column: int, episode: _Episode) -> None:
        content = {
            "version": VERSION,
            "environment": self._environment,
            "epoch": episode.epoch,
            "column": column,
            "cut": episode.cut,
            "start": episode.start,
            "states": episode.states,
            **({"texts": episode.texts} if self._render is not None else {}),
            "steps": episode.steps,
        }
        path = self._folder / f"ep{episode.epoch:06}_{column:04}.json"
        temporary = path.with_suffix(".part")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")
            temporary.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            self._refused.warn(f"{path} cannot be written: {error.strerror}; the run goes on without that trace")
            return
        self._written += 1


def decode(leaf: list[Any]) -> np.ndarray:
    """Return an array of a trace file."""
    dtype, shape, data = leaf
    return np.frombuffer(base64.b64decode(data), np.dtype(dtype)).reshape(shape)


def _encoded(leaf: Any) -> list[Any]:
    array = np.ascontiguousarray(leaf)
    return [array.dtype.str, list(np.shape(leaf)), base64.b64encode(array.tobytes()).decode()]


def _plain(value: Any) -> Any:
    """Return a number or a list of numbers, with None for values that JSON does not support."""
    if np.ndim(value):
        return [_plain(item) for item in value]
    number = value.item() if hasattr(value, "item") else value
    return number if not isinstance(number, float) or np.isfinite(number) else None
