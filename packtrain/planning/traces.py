"""Search traces: one JSON file per episode, with real steps, what each search knew, and states.

The form, version 2:

    {"version": 2, "environment": id, "epoch": 3, "column": 0, "cut": false, "source": "train" or "eval",
     "checkpoint": step or null, "actions": [names], "start": node,
     "states": {node: {leaf: [dtype, shape, base64]}}, "texts": {node: text}, "pictures": {node: base64 of a PNG},
     "steps": [{"action": a, "reward": r, "ended": false, "to": node, "extras": {name: number or list},
                "predicted": {"to": node, "reward": r, "terminated": false},
                "search": {"planner": name, "kind": "tree", "left_out": 0, "path": [edges],
                           "nodes": {"state": [...], "value": [...], ...},
                           "edges": {"from": [...], "to": [...], "action": [...], "visits": [...], ...}},
                "passes": [[{"from": node, "to": node, "action": a, "reward": r, "terminated": false}, ...], ...]}]}

Nodes of the episode are numbers; equal states are one node. In a search, nodes and edges are columns of equal length,
node 0 is the root, "state" is a node of the episode or −1, and the other columns are those of
`events.SearchRecord` that the planner has. In a learned model, "verified" says that a real transition has replaced the
prediction, and "truth" is the node that the environment really leads to, where that is known. Searches of the kind
"sequences" have "sequences" in place of edges. "predicted" is the learned model's prediction of the step that was
taken. `passes` are model steps in their order; a step from a state that the planner did not keep comes from −1. `cut`
says that a limit was reached and something is missing. Version 1 has neither `search` nor what is new beside it.
Files hold data alone: reading one runs nothing.
"""

from __future__ import annotations

import base64
import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from packtrain import config, files, trees
from packtrain.config import configurable
from packtrain.envs.functional import Core
from packtrain.errors import ConfigError, Error, Seldom
from packtrain.planning.counter_rng import chance
from packtrain.planning.events import Describe, ModelSteps, SearchRecord
from packtrain.planning.model import Model, Stepped
from packtrain.planning.nodes import NO_NODE
from packtrain.planning.trace_states import EpisodeStates, View, plain_keys, view_of
from packtrain.trees import Tree

VERSION = 2
_LEAST_NODES = 64  # of a search, however large the file is already
_SEARCH_SHARE = 0.6  # share of a file's bytes that decisions may take; the rest is left to states


@configurable
@dataclass(frozen=True)
class Traces:
    """Which episodes are recorded, and how much of them."""

    sample_rate: float = 1.0  # share of the episodes
    max_model_steps: int = 20_000  # of one episode; later ones are left out
    max_files: int = 1_000  # of one run
    texts: bool = False  # also write states as the environment renders them as text
    pictures: bool = False  # also write small pictures of states
    passes: bool = True  # write the steps in the model in their order, beside the search data at its end
    max_nodes: int = 2_000  # of one search; others are left out
    max_bytes: int = 1 << 24  # of one file
    lenient: bool = False  # leave out texts and pictures where the environment has none
    spread: int | None = None  # record so many episodes of the first environment, spread over the run; None: sample

    def __post_init__(self) -> None:
        if not 0 <= self.sample_rate <= 1:
            raise ConfigError(f"Traces.sample_rate = {self.sample_rate} must lie in [0, 1]")
        for name in ("max_model_steps", "max_files", "max_nodes", "max_bytes", "spread"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"Traces.{name} = {value} must be at least 1")


def traces_of_flag(episodes: int) -> Traces:
    """Return the settings of `--trace N`: N episodes with texts and pictures where there are any."""
    with config.unrecorded():
        return Traces(texts=True, pictures=True, passes=False, lenient=True, spread=episodes)


@dataclass
class _Episode:
    """An episode that is being recorded."""

    name: str  # of its file
    epoch: int
    column: int
    states: EpisodeStates
    start: int = NO_NODE
    here: int = NO_NODE  # the node it has come to
    known: dict[int, int] = field(default_factory=dict)  # the planner's number of a state → node
    outcomes: dict[tuple[int, int], tuple[int, float, bool]] = field(default_factory=dict)  # of (number, action)
    walked: dict[tuple[int, int], int] = field(default_factory=dict)  # (node, action) → node of real steps
    steps: list[str] = field(default_factory=list)  # as JSON
    passes: list[list[dict[str, Any]]] = field(default_factory=list)  # since the last real step
    search: dict[str, Any] | None = None  # of the decision before the next real step
    model_steps: int = 0
    bytes: int = 0  # of `steps`
    cut: bool = False


class TraceWriter:
    """Receives planners' events, and writes a file at the end of an episode."""

    def __init__(
        self,
        settings: Traces,
        folder: Path,
        environment: str,
        seed: int,
        first_env: int = 0,
        checkpoint: int | None = None,
    ):
        """Record nothing so far.

        Args:
          settings: what to record.
          folder: to write to.
          environment: its name.
          seed: of the sampling of episodes.
          first_env: index of the first environment among those of all acting processes.
          checkpoint: that an evaluation plays; then its first `Traces.spread` episodes are recorded. None: training.
        """
        self._settings, self._folder, self._environment, self._seed = settings, folder, environment, seed
        self._first_env, self._checkpoint = first_env, checkpoint
        self._episodes: dict[int, _Episode] = {}
        self._refused = Seldom()
        self._view = View(plain_keys)
        self.planned: int | None = 0  # number of the epoch among those in which the planner acts; None: it does not
        self._begun = 0  # episodes that an evaluation has begun
        self._written = len(list(folder.glob("*.json"))) if folder.is_dir() else 0

    def look_at(self, core: Core, model: Model) -> None:
        """Set how states are identified and drawn; ConfigError if the settings ask for what the environment lacks."""
        settings = self._settings
        self._view = view_of(core, model, settings.texts, settings.pictures, settings.lenient, self._environment)

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
        keys = self._view.keys(trees.pick(steps.states, watched)).tolist()
        simulator = steps.states if self._view.learned is None else None
        for place, index in enumerate(watched):
            episode = self._episodes[int(steps.columns[index])]
            if episode.model_steps >= self._settings.max_model_steps or episode.states.full:
                episode.cut = True
                continue
            episode.model_steps += 1
            if not episode.passes:
                episode.passes.append([])
            source, target = int(steps.source[index]), int(steps.target[index])
            # The root is the one state that the planner has a number for and has told no step to.
            origin = NO_NODE if source < 0 else episode.known.setdefault(source, episode.here)
            node = episode.states.add(keys[place], steps.states, int(index), simulator)
            if target >= 0:
                episode.known[target] = node
            reward, terminated = float(steps.rewards[index]), bool(steps.terminated[index])
            if source >= 0 and np.ndim(steps.actions[index]) == 0:
                episode.outcomes[source, int(steps.actions[index])] = (node, reward, terminated)
            if self._settings.passes:
                action = _plain(steps.actions[index])
                link = {"from": origin, "to": node, "action": action, "reward": reward, "terminated": terminated}
                episode.passes[-1].append(link)

    def pass_end(self, columns: np.ndarray) -> None:
        """Do nothing at the end of a pass."""

    def searched(self, columns: np.ndarray, describe: Describe) -> None:
        """Record what the searches of these environments know at their end."""
        for row, column in enumerate(columns.tolist()):
            episode = self._episodes.get(column)
            if episode is not None:
                left = 1 - episode.bytes / (_SEARCH_SHARE * self._settings.max_bytes)
                most = max(_LEAST_NODES, int(left * self._settings.max_nodes))  # fewer as the file grows
                episode.search = self._search(episode, describe(row, min(most, self._settings.max_nodes)))

    # -- what really happens

    def episode_begin(self, columns: np.ndarray, epoch: int, states: Tree, seen: Tree = None) -> None:
        """Begin an episode in these environments; some of them are recorded.

        Args:
          columns: [R] environments.
          epoch: of all stages.
          states: [R, ...] the simulator's.
          seen: [R, ...] as the model sees them; None: the same.
        """
        seen = states if seen is None else seen
        keys = self._view.keys(seen).tolist()
        for place, column in enumerate(columns.tolist()):
            self._episodes.pop(column, None)
            name = self._name(column, epoch)
            if name is not None:
                own = _Episode(name, epoch, column + self._first_env, EpisodeStates(self._view))
                own.start = own.here = own.states.add(keys[place], seen, place, states)
                self._episodes[column] = own

    def real_steps(
        self,
        columns: np.ndarray,
        states: Tree,
        actions: Any,
        rewards: Any,
        ended: Any,
        extras: dict[str, Any],
        seen: Tree = None,
        predicted: Stepped | None = None,
    ) -> None:
        """Record real steps, and write finished episodes.

        Args:
          columns: [R] environments.
          states: [R, ...] the simulator's after the step.
          actions: [R, ...].
          rewards: [R].
          ended: [R] bool.
          extras: [R, ...] of the decisions.
          seen: [R, ...] the states as the model sees them; None: the same.
          predicted: what a learned model predicts for the steps; None: the model is exact, or made no prediction.
        """
        seen = states if seen is None else seen
        keys = self._view.keys(seen).tolist()
        guesses = None if predicted is None else self._view.keys(predicted.states).tolist()
        for place, column in enumerate(columns.tolist()):
            episode = self._episodes.get(column)
            if episode is None:
                continue
            before, numbered = episode.here, episode.states
            episode.here = numbered.add(keys[place], seen, place, states)
            step: dict[str, Any] = {
                "action": _plain(actions[place]),
                "reward": _plain(float(rewards[place])),
                "ended": bool(ended[place]),
                "to": episode.here,
                "extras": {name: _plain(value[place]) for name, value in extras.items()},
            }
            if predicted is not None and guesses is not None:
                guess = numbered.add(guesses[place], predicted.states, place)
                reward, over = float(predicted.rewards[place]), bool(predicted.terminated[place])
                step["predicted"] = {"to": guess, "reward": _plain(reward), "terminated": over}
            self._keep(episode, step)
            if np.ndim(actions[place]) == 0:
                episode.walked[before, int(actions[place])] = episode.here
            if ended[place]:
                self._write(self._episodes.pop(column))

    def finish(self) -> None:
        """Write the episodes that are cut off."""
        for column in list(self._episodes):
            episode = self._episodes.pop(column)
            if episode.steps:
                self._write(episode)

    # -- parts

    def _name(self, column: int, epoch: int) -> str | None:
        """Return the file of an episode that begins; None if it is not recorded."""
        spread, index = self._settings.spread, column + self._first_env
        if self._checkpoint is not None:
            self._begun += 1
            wanted = spread is None or self._begun <= spread
            return f"eval{self._checkpoint:010}_{self._begun - 1:04}.json" if wanted else None
        if spread is not None:
            number = None if index else self.planned
            recorded = number is not None and not number % self._make_room(number)
            return f"spread{number:06}.json" if recorded else None
        drawn = float(chance(self._seed, epoch, column)[0]) < self._settings.sample_rate
        room = self._written + len(self._episodes) < self._settings.max_files
        return f"ep{epoch:06}_{index:04}.json" if drawn and room else None

    def _make_room(self, epoch: int) -> int:
        """Return the number of epochs between two recorded episodes, a power of 2, and remove the files in between.

        It is doubled until the files of its multiples, the one of this epoch included, are no more than `spread`.
        """
        assert self._settings.spread is not None
        known = sorted(self._folder.glob("spread*.json")) if self._folder.is_dir() else []
        epochs = {path: int(path.stem[6:]) for path in known if path.stem[6:].isdecimal()}
        wanted = {*epochs.values(), epoch}
        stride = min((one & -one for one in epochs.values() if one), default=1)
        while sum(not one % stride for one in wanted) > self._settings.spread:
            stride *= 2
        for path, one in epochs.items():
            if one % stride:
                with contextlib.suppress(OSError, Error):
                    files.remove_inside(self._folder.parent, f"{self._folder.name}/{path.name}")
        return stride

    def _search(self, episode: _Episode, record: SearchRecord) -> dict[str, Any]:
        """Return a search as JSON values."""
        nodes = {name: _column(values) for name, values in record.nodes.items()}
        count = len(next(iter(nodes.values())))
        edges = dict(record.edges)
        state = self._states_of(episode, record, count)
        found: dict[str, Any] = {"planner": record.planner, "kind": record.kind, "left_out": record.left_out}
        found |= {"path": record.path, "nodes": {"state": state.tolist(), **nodes}}
        if record.kind == "sequences":
            return {**found, "sequences": _plain_tree(record.sequences)}
        if record.numbers is not None:
            self._add_outcomes(episode, record, edges)
        columns = {name: _column(values) for name, values in edges.items()}
        source, action = state[edges["from"]], edges["action"]
        columns |= episode.states.check_edges(source, state[edges["to"]], action)
        if self._view.learned is not None:
            walked = [pair in episode.walked for pair in zip(source.tolist(), action.tolist(), strict=True)]
            always = columns.get("verified", [False] * len(walked))
            columns["verified"] = [one or other for one, other in zip(walked, always, strict=True)]
        return {**found, "edges": columns}

    def _states_of(self, episode: _Episode, record: SearchRecord, count: int) -> np.ndarray:
        """Return the nodes of the episode that the nodes of a search stand for, [N]; NO_NODE where that is unknown."""
        state = np.full(count, NO_NODE)
        if record.states is not None and not episode.states.full:
            keys = self._view.keys(record.states).tolist()
            simulator = record.states if self._view.learned is None else None
            numbers = [episode.states.add(key, record.states, row, simulator) for row, key in enumerate(keys)]
            rows = np.arange(count) if record.state_rows is None else record.state_rows
            state = np.where(rows == NO_NODE, NO_NODE, np.array(numbers)[np.maximum(rows, 0)])
        elif record.numbers is not None:
            state = np.array([episode.known.get(int(number), NO_NODE) for number in record.numbers])
            sources, actions = record.numbers[record.edges["from"]].tolist(), record.edges["action"].tolist()
            for to, pair in zip(record.edges["to"].tolist(), zip(sources, actions, strict=True), strict=True):
                if state[to] == NO_NODE and pair in episode.outcomes:
                    state[to] = episode.outcomes[pair][0]
        state[0] = episode.here
        return state

    def _add_outcomes(self, episode: _Episode, record: SearchRecord, edges: dict[str, np.ndarray]) -> None:
        """Add rewards and ends of a tree's edges as they were last reported."""
        assert record.numbers is not None
        pairs = zip(record.numbers[edges["from"]].tolist(), edges["action"].tolist(), strict=True)
        known = [episode.outcomes.get(pair) for pair in pairs]
        edges["reward"] = np.array([np.nan if one is None else one[1] for one in known])
        edges["terminated"] = np.array([one is not None and one[2] for one in known], bool)

    def _keep(self, episode: _Episode, step: dict[str, Any]) -> None:
        """Add a step; what does not fit into the file is left out, the passes first."""
        full = dict(step)
        if episode.search is not None:
            full["search"] = episode.search
        most = int(_SEARCH_SHARE * self._settings.max_bytes)
        shorter = [{**full, "passes": episode.passes}] if self._settings.passes else []
        for candidate in (*shorter, full):
            text = json.dumps(candidate, allow_nan=False)
            if episode.bytes + len(text) <= most:
                break
            episode.cut = True
        else:
            text = json.dumps(step, allow_nan=False)
        episode.steps.append(text)
        episode.bytes += len(text)
        episode.passes, episode.search = [], None

    def _write(self, episode: _Episode) -> None:
        head = {
            "version": VERSION,
            "environment": self._environment,
            "epoch": episode.epoch,
            "column": episode.column,
            "source": "train" if self._checkpoint is None else "eval",
            "checkpoint": self._checkpoint,
            "actions": list(self._view.actions),
            "start": episode.start,
        }
        described, complete = self._described(episode)
        head |= {"cut": episode.cut or not complete, **described}
        text = f'{json.dumps(head)[:-1]}, "steps": [{", ".join(episode.steps)}]}}\n'
        name = f"{self._folder.name}/{episode.name}"
        try:
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            files.write_inside(self._folder.parent, name, text.encode())
        except (OSError, Error) as error:
            reason = getattr(error, "strerror", None) or str(error)
            path = self._folder / episode.name
            self._refused.warn(f"{path} cannot be written: {reason}; the run goes on without that trace")
            return
        self._written += 1

    def _described(self, episode: _Episode) -> tuple[dict[str, Any], bool]:
        """Return arrays, texts and pictures of states, those of real steps first, and whether all fit into the file."""
        numbered, room = episode.states, self._settings.max_bytes - episode.bytes
        real = [episode.start, *episode.walked.values()]
        wanted = dict.fromkeys([*real, *numbered.numbers.values()])
        found: dict[str, dict[int, Any]] = {"states": {}}
        found |= {"texts": {}} if self._view.text is not None else {}
        found |= {"pictures": {}} if self._view.picture is not None else {}
        for node in wanted:
            arrays = {name: _encoded(leaf) for name, leaf in numbered.arrays(node).items()}
            text, picture = numbered.text(node), numbered.picture(node)
            room -= sum(len(leaf[2]) + 40 for leaf in arrays.values()) + len(text or "") + len(picture or "") + 40
            if room < 0:
                return found, False
            found["states"][node] = arrays
            if text is not None:
                found["texts"][node] = text
            if picture is not None:
                found["pictures"][node] = picture
        return found, True


def decode(leaf: list[Any]) -> np.ndarray:
    """Return an array of a trace file."""
    dtype, shape, data = leaf
    return np.frombuffer(base64.b64decode(data), np.dtype(dtype)).reshape(shape)


def _encoded(leaf: Any) -> list[Any]:
    array = np.ascontiguousarray(leaf)
    return [array.dtype.str, list(np.shape(leaf)), base64.b64encode(array.tobytes()).decode()]


def _column(values: np.ndarray) -> list[Any]:
    """Return a column of a search: numbers with six digits, None for values that JSON does not support."""
    if values.dtype.kind != "f":
        return list(values.tolist())
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values.tolist()]


def _plain_tree(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain_tree(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain_tree(item) for item in value]
    if isinstance(value, np.ndarray):
        return [_plain_tree(item) for item in value] if value.ndim > 1 else _column(value)
    return _column(np.array([value]))[0]


def _plain(value: Any) -> Any:
    """Return a number or a list of numbers, with None for values that JSON does not support."""
    if np.ndim(value):
        return [_plain(item) for item in value]
    number = value.item() if hasattr(value, "item") else value
    return number if not isinstance(number, float) or np.isfinite(number) else None
