"""Read traces of searches from run folders, which may be untrusted: every value is checked and bounded.

A file that is not a trace becomes one line. Nothing of PyTorch is imported. `planning/traces.py` writes the files and
describes their form; version 1 has model steps only, from which a graph is made here.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from packtrain.errors import RunFolderError
from packtrain.files import list_inside, read_inside
from packtrain.studies.chart import printable

FOLDER = "traces"
MOST_TRACE = 64 * 2**20  # bytes of a file
MOST_FILES = 10_000  # names that are looked at in a folder
MOST_NODES = 50_000  # of one search
MOST_STEPS = 100_000  # of an episode
MOST_LIST = 4_096  # numbers of an extra, or of an action
MOST_NAME, MOST_TEXT_LENGTH, MOST_PICTURE = 80, 4_000, 1 << 16  # characters
KINDS = ("tree", "graph", "sequences")
_PNG = b"\x89PNG\r\n\x1a\n"
_LARGEST_PICTURE = 512  # pixels of a side


class NotATrace(ValueError):
    """A value in a trace file does not have the required form."""


@dataclass
class Trace:
    """One episode, checked: plain values that are safe in a page once they are escaped."""

    run: str
    file: str
    environment: str
    source: str  # "train" or "eval"
    checkpoint: int | None
    epoch: int
    column: int
    cut: bool
    start: int
    actions: list[str] = field(default_factory=list)
    states: dict[str, dict[str, str]] = field(default_factory=dict)  # node → text, values, picture
    steps: list[dict[str, Any]] = field(default_factory=list)


def read_traces(run: Path, checkpoint: int | None = None) -> tuple[list[Trace], list[str]]:
    """Return the traces of a run, the latest training first, and a line for each file that is none.

    Args:
      run: folder of a run.
      checkpoint: of evaluations that are wanted; None: all traces.

    Raises:
      RunFolderError: the folder has no trace, or none of this checkpoint.
    """
    if not run.is_dir():
        raise RunFolderError(f"{run} is not a run folder: it does not exist")
    try:
        names = [name for name in list_inside(run, FOLDER) if name.endswith(".json")]
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise RunFolderError(f"{run / FOLDER} cannot be read: {error.strerror or error}") from None
    if checkpoint is not None:
        names = [name for name in names if name.startswith(f"eval{checkpoint:010}_")]
    if not names:
        raise RunFolderError(_advice(run, checkpoint))
    found, lines = list[Trace](), list[str]()
    for name in names[:MOST_FILES]:
        try:
            found.append(read_trace(run, name))
        except (NotATrace, RunFolderError, OSError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            lines.append(printable(f"{FOLDER}/{_short(name)} is left out: {reason}"))
    if not found:
        raise RunFolderError(f"{run} has no readable trace: {lines[0]}")
    return found, lines


def _advice(run: Path, checkpoint: int | None) -> str:
    if checkpoint is not None:
        how = f"packtrain eval {run} --checkpoint {checkpoint} --trace 1"
        return f"{run} has no trace of checkpoint {checkpoint}; `{how}` records one"
    return f"{run} has no traces; `packtrain eval {run} --trace 5` records five, and so does --trace 5 of train"


def read_trace(run: Path, name: str) -> Trace:
    """Return one trace of a run; NotATrace, RunFolderError or OSError if it is none."""
    data = read_inside(run, f"{FOLDER}/{name}", MOST_TRACE)
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotATrace(f"it is not JSON: {_short(str(error))}") from None
    if not isinstance(content, dict) or content.get("version") not in (1, 2):
        raise NotATrace("it is not a trace of version 1 or 2")
    steps = _list(content.get("steps"), "steps", MOST_STEPS)
    numbers = [str(node) for node in range(len(_dict(content.get("states"), "states")))]
    trace = Trace(
        run="",
        file=_text(name, MOST_NAME),
        environment=_text(content.get("environment"), MOST_NAME),
        source="eval" if content.get("source") == "eval" else "train",
        checkpoint=_optional(content.get("checkpoint"), _whole),
        epoch=_whole(content.get("epoch"), "epoch"),
        column=_whole(content.get("column"), "column"),
        cut=content.get("cut") is True,
        start=_whole(content.get("start"), "start"),
        actions=[_text(one, MOST_NAME) for one in _list(content.get("actions", []), "actions", MOST_LIST)],
    )
    known = _dict(content["states"], "states")
    texts, pictures = (_dict(content.get(part, {}), part) for part in ("texts", "pictures"))
    for node in dict.fromkeys([*numbers, *known]):
        if node.isdecimal() and len(node) < 10 and node in known:
            trace.states[node] = _state(known[node], texts.get(node), pictures.get(node))
    here = trace.start
    for index, step in enumerate(steps):
        try:
            trace.steps.append(_step(_dict(step, "step"), here))
        except NotATrace as error:
            raise NotATrace(f"decision {index}: {error}") from None
        here = trace.steps[-1]["to"]
    return trace


# -- values, checked


def _short(text: str) -> str:
    return text if len(text) <= 120 else text[:119] + "…"


def _text(value: Any, most: int) -> str:
    if not isinstance(value, str):
        raise NotATrace("a name is not text")
    return printable(value[:most])


def _dict(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise NotATrace(f"{name} is not an object")
    return value


def _list(value: Any, name: str, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise NotATrace(f"{name} is not a list of at most {most:,} entries")
    return value


def _whole(value: Any, name: str = "a number") -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > 2**53:
        raise NotATrace(f"{name} is not a whole number")
    return value


def _optional(value: Any, check: Callable[[Any], Any]) -> Any:
    return None if value is None else check(value)


def _number(value: Any) -> float | int | bool | None:
    """Return a number that JSON has; None for NaN and infinities."""
    if value is None or isinstance(value, bool):
        return value
    if not isinstance(value, int | float):
        raise NotATrace("a value is not a number")
    try:
        return value if math.isfinite(value) and abs(value) < 1e300 else None
    except OverflowError:  # a whole number of thousands of digits
        return None


def _numbers(value: Any, most: int = MOST_LIST) -> Any:
    """Return a number or a list of numbers; longer lists are cut."""
    if isinstance(value, list):
        return [_number(one) for one in value[:most] if not isinstance(one, list)]
    return _number(value)


def _state(arrays: Any, text: Any, picture: Any) -> dict[str, str]:
    """Return what is shown of a state."""
    found = {}
    if isinstance(text, str):
        found["text"] = printable(text[:MOST_TEXT_LENGTH])
    else:
        found["values"] = _values(_dict(arrays, "a state"))
    if isinstance(picture, str) and _is_picture(picture):
        found["picture"] = picture
    return found


def _is_picture(text: str) -> bool:
    """Return whether a text is a PNG of moderate size in base64."""
    if len(text) > MOST_PICTURE:
        return False
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    sides = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    return data.startswith(_PNG) and data[12:16] == b"IHDR" and all(0 < side <= _LARGEST_PICTURE for side in sides)


def _values(arrays: dict[str, Any]) -> str:
    """Return the first numbers of a state's arrays as text."""
    lines = []
    for name, leaf in list(arrays.items())[:8]:
        try:
            dtype, shape, data = leaf
            kind = np.dtype(str(dtype)[:4])
            if kind.kind not in "biuf" or not isinstance(data, str):
                continue
            raw = base64.b64decode(data[: 4 * (64 * kind.itemsize // 3 + 1)])
            values = np.frombuffer(raw[: len(raw) // kind.itemsize * kind.itemsize], kind)[:48].tolist()
            size = " × ".join(str(_whole(side)) for side in list(shape)[:6])
        except (ValueError, TypeError, NotATrace):
            continue
        shown = " ".join(f"{value:g}" if isinstance(value, float) else str(int(value)) for value in values)
        lines.append(printable(f"{str(name)[:MOST_NAME]} [{size}]: {shown}"))
    return "\n".join(lines)


# -- steps and searches


def _step(step: dict[str, Any], here: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "action": _numbers(step.get("action")),
        "reward": _number(step.get("reward")),
        "ended": step.get("ended") is True,
        "to": _whole(step.get("to"), "to"),
        "extras": {},
    }
    for name, value in list(_dict(step.get("extras", {}), "extras").items())[:64]:
        found["extras"][_text(name, MOST_NAME)] = _numbers(value)
    if "predicted" in step:
        guess = _dict(step["predicted"], "predicted")
        found["predicted"] = {
            "to": _whole(guess.get("to"), "predicted.to"),
            "reward": _number(guess.get("reward")),
            "terminated": guess.get("terminated") is True,
        }
    if "search" in step:
        found["search"] = _search(_dict(step["search"], "search"))
    elif step.get("passes"):
        found["search"] = _search_of_passes(_list(step["passes"], "passes", 1 << 20), here)
    return found


def _search(search: dict[str, Any]) -> dict[str, Any]:
    kind = search.get("kind")
    if kind not in KINDS:
        raise NotATrace(f"a search is of none of the kinds {', '.join(KINDS)}")
    nodes = _columns(search.get("nodes"), "nodes", MOST_NODES)
    count = len(next(iter(nodes.values()), []))
    if "state" not in nodes or not count:
        raise NotATrace("a search has no nodes")
    nodes["state"] = [_whole(one, "state") for one in nodes["state"]]
    found: dict[str, Any] = {
        "planner": _text(search.get("planner"), MOST_NAME),
        "kind": kind,
        "left_out": _whole(search.get("left_out"), "left_out"),
        "nodes": nodes,
        "path": [],
    }
    if kind == "sequences":
        return {**found, "sequences": _sequences(_dict(search.get("sequences"), "sequences"))}
    edges = _columns(search.get("edges"), "edges", 8 * MOST_NODES)
    size = len(next(iter(edges.values()), []))
    for name in ("from", "to", "action"):
        edges[name] = [_whole(one, name) for one in edges.get(name, [])]
        if len(edges[name]) != size:
            raise NotATrace(f"edges have no column {name!r}")
    if any(not 0 <= one < count for name in ("from", "to") for one in edges[name]):
        raise NotATrace("an edge leads to no node")
    path = [_whole(one, "path") for one in _list(search.get("path"), "path", MOST_NODES)]
    if any(not 0 <= one < size for one in path):
        raise NotATrace("the path has no edge")
    return {**found, "edges": edges, "path": path}


def _columns(columns: Any, name: str, most: int) -> dict[str, list[Any]]:
    """Return columns of equal length, of numbers."""
    found: dict[str, list[Any]] = {}
    for key, values in list(_dict(columns, name).items())[:32]:
        found[_text(key, MOST_NAME)] = [_number(one) for one in _list(values, f"{name}.{_short(key)}", most)]
    if len({len(values) for values in found.values()}) > 1:
        raise NotATrace(f"the columns of {name} differ in length")
    return found


def _sequences(sequences: dict[str, Any]) -> dict[str, Any]:
    """Return action sequences [P][H][D] with their iterations and returns, and the plan [H][D]."""
    actions = [_matrix(one) for one in _list(sequences.get("actions"), "actions", 10_000)]
    found: dict[str, Any] = {
        "iteration": [_whole(one, "iteration") for one in _list(sequences.get("iteration"), "iteration", 10_000)],
        "return": [_number(one) for one in _list(sequences.get("return"), "return", 10_000)],
        "tried": [_whole(one, "tried") for one in _list(sequences.get("tried"), "tried", 1_000)],
        "actions": actions,
        "plan": _matrix(sequences.get("plan")),
    }
    if not len(actions) == len(found["iteration"]) == len(found["return"]):
        raise NotATrace("the sequences differ in number")
    if "std" in sequences:
        found["std"] = _matrix(sequences["std"])
    return found


def _matrix(value: Any) -> list[list[Any]]:
    rows = [_list(row, "a sequence", 256) for row in _list(value, "a sequence", 1_000)]
    return [[_number(one) for one in row] for row in rows]


def _search_of_passes(passes: Sequence[Any], here: int) -> dict[str, Any]:
    """Return the graph of the model steps of version 1: how often each was made, and what it paid.

    Steps of rollouts, whose states were not kept, are only counted.
    """
    places, states = {here: 0}, [here]
    visits: dict[tuple[int, int, int], int] = {}
    rewards: dict[tuple[int, int, int], Any] = {}
    terminal: dict[int, bool] = {}
    unkept = 0
    for one in passes:
        for link in _list(one, "a pass", 1 << 20):
            link = _dict(link, "a model step")
            source, to = _whole(link.get("from"), "from"), _whole(link.get("to"), "to")
            action = link.get("action")
            if source < 0 or isinstance(action, list):
                unkept += 1
                continue
            for node in (source, to):
                if node not in places and len(states) < MOST_NODES:
                    places[node] = len(states)
                    states.append(node)
            if source in places and to in places:
                key = (places[source], places[to], _whole(action, "action"))
                visits[key] = visits.get(key, 0) + 1
                rewards[key] = _number(link.get("reward"))
                terminal[key[1]] = link.get("terminated") is True
    names = ("from", "to", "action")
    edges: dict[str, list[Any]] = {name: [key[at] for key in visits] for at, name in enumerate(names)}
    edges |= {"visits": list(visits.values()), "reward": list(rewards.values())}
    nodes = {"state": states, "terminal": [terminal.get(place, False) for place in range(len(states))]}
    name = "model steps" + f", {unkept:,} of rollouts not shown" * bool(unkept)
    return {"planner": name, "kind": "graph", "left_out": 0, "nodes": nodes, "edges": edges, "path": []}
