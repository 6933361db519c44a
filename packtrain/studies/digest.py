"""Digests of short serial runs: what a configuration computes in its first updates, to the bit.

A serial run repeats exactly on the same versions and the same processor, so the SHA-256 of its checkpoint and of its
metric rows shows whether the code still computes the same. Elsewhere floating-point sums are rounded differently, and
checked scalars (norms of weights, losses, returns) are compared within a tolerance instead.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.metadata
import json
import math
import platform
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from packtrain import config, knobs
from packtrain.errors import ConfigError
from packtrain.runtime import serial
from packtrain.runtime.open_run import TrainRequest, open_run
from packtrain.runtime.training import Training

UNEQUAL_BY_NATURE = {"wall_s", "metrics_bytes", "identity", "values", "groups"}  # groups: since 0.2
CHECKED = ("loss", "return_mean", "episode_return", "entropy", "grad_norm", "solved_rate")
"""Words in the names of the metrics that are compared on another processor."""
RATES = ("_second", "_busy", "rss_mb", "gpu_mb", "wall_s", "time", "secs")
VERSIONS = ("torch", "numpy", "gymnasium", "ale-py", "mujoco", "numba", "safetensors")
NORMS_TOLERANCE = 0.02
SCALARS_TOLERANCE = 0.25
"""Relative differences that are accepted on other versions or another processor; see docs/verify.md."""


# Comparing run folders


def state_of(folder: Path) -> dict[str, Any]:
    """Return every leaf of the newest checkpoint by its path."""
    newest = max((p for p in (folder / "checkpoints").iterdir() if p.name.isdecimal()), key=lambda p: int(p.name))
    leaves: dict[str, Any] = {}

    def walk(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                if name not in UNEQUAL_BY_NATURE:
                    walk(f"{path}/{name}", inner)
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                walk(f"{path}/{index}", inner)
        else:
            leaves[path] = value

    walk("state", json.loads((newest / "state.json").read_text(encoding="utf-8")))
    for file in sorted(newest.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            leaves[f"{file.stem}:{name}"] = tensor
    return leaves


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the metric rows without times and rates."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in row.items() if not any(word in k for word in RATES)} for row in rows]


def equal(a: Any, b: Any) -> bool:
    """Return whether two leaves are equal to the bit; NaN equals NaN."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape
        return same and a.numpy().tobytes() == b.numpy().tobytes()
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b):
        return True
    return type(a) is type(b) and bool(a == b)


def differences(old: Path, new: Path, key_map: dict[str, str] | None = None) -> list[str]:
    """Return what differs between two run folders, a line each.

    Args:
      old: a run folder.
      new: another one.
      key_map: names of state entries of `old` that have another name in `new`.
    """
    before, after = state_of(old), state_of(new)
    before = {(key_map or {}).get(name, name): value for name, value in before.items()}
    found = [f"only old: {name}" for name in sorted(set(before) - set(after))]
    found += [f"only new: {name}" for name in sorted(set(after) - set(before))]
    found += [f"differs: {name}" for name in sorted(set(before) & set(after)) if not equal(before[name], after[name])]
    rows = rows_of(old), rows_of(new)
    if len(rows[0]) != len(rows[1]):
        found.append(f"{len(rows[0])} rows and {len(rows[1])} rows")
    for number, (a, b) in enumerate(zip(*rows, strict=False)):
        found += [
            f"row {number}: {k}: {a.get(k)} / {b.get(k)}" for k in sorted({*a, *b}) if not equal(a.get(k), b.get(k))
        ]
    return found


# Digests


@dataclass(frozen=True)
class ShortRun:
    """The first updates of a shipped configuration."""

    config: str  # name of a shipped configuration
    knobs: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    updates: int | None = None  # of all learners; None: until the run ends
    within_secs: float = 600.0  # time after which the run is given up


@dataclass(frozen=True)
class Digest:
    """What a short run computed."""

    identity: str  # hash of the configuration, defaults included
    parts: dict[str, str]  # short hash of the settings of each configurable, to name what changed
    step: int  # environment steps at the end
    updates: int  # of all learners
    state: str  # SHA-256 of the checkpoint's leaves
    rows: str  # SHA-256 of the metric rows without times and rates
    scalars: dict[str, float]  # norms of weights, and the last value of each metric

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return dict(self.__dict__)


def fingerprint() -> dict[str, str]:
    """Return what bit-exact equality depends on beside the code: versions, processor, and its instruction set."""
    found = {name: _version(name) for name in VERSIONS}
    return {
        "python": platform.python_version(),
        **found,
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": "1",  # of the updates; `measure` sets it
    }


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _cpu_model() -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def measure(run: ShortRun, folder: Path | None = None) -> Digest:
    """Make a short serial run in this process, and return its digest.

    Args:
      run: what to run.
      folder: where the run folder is left; None: it is temporary.

    Raises:
      ConfigError: the configuration names code outside packtrain, or the run takes longer than `within_secs`.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="packtrain-digest-") as name:
            return measure(run, Path(name) / "run")
    path, _ = knobs.find_config(run.config)
    known = knobs.read_knobs(path)
    values = {name: _knob(run.config, known, name).accept(value) for name, value in run.knobs.items()}
    if "num_threads" in known:
        values["num_threads"] = 1
    with config.alone(), torch.random.fork_rng(devices=[]):
        loaded = config.load([path], [], values, False, run.seed)
        config.build(loaded)  # before any environment is made: an environment's name may be that of a module
        if _names_code(loaded):
            raise ConfigError(f"{run.config} with these knobs names code outside packtrain, which is not run here")
        request = TrainRequest([path], [], values, folder, seed=run.seed, runtime="serial", quiet=True)
        with open_run(request, saved=None) as opened:
            assert opened is not None
            _drive(opened.training, run)
            identity = opened.training.setup.configuration
            step, updates = opened.training.progress.step, opened.training.learning.updates
    leaves = state_of(folder)
    rows = rows_of(folder)
    scalars = _norms(leaves) | _last_values(rows)
    parts = _parts(identity.identity())
    return Digest(identity.hash(), parts, step, updates, _hash_state(leaves), _hash_rows(rows), scalars)


def _knob(name: str, known: dict[str, knobs.Knob], knob: str) -> knobs.Knob:
    """Return a knob of a configuration; ConfigError if it has none of that name."""
    if knob not in known:
        raise ConfigError(f"{name} has no knob {knob!r}{knobs.nearest(knob, list(known))}")
    return known[knob]


def _names_code(loaded: config.Configuration) -> bool:
    """Return whether a configuration imports foreign modules, or an environment's name or argument may be one's."""
    if any(not module.startswith("packtrain.") for module in loaded.imports):
        return True
    texts = {name: text for name, text in loaded.values.items() if name.rpartition("/")[2].startswith("Environment.")}
    values = [_literal(text) for name, text in texts.items() if name.endswith((".id", ".kwargs"))]
    return any(":" in text or "GymV2" in text for value in values for text in _strings(value))


def _literal(text: str) -> Any:
    """Return the value of a literal; other texts as they are."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _strings(value: Any) -> list[str]:
    """Return all strings in a literal."""
    if isinstance(value, str):
        return [value]
    inside = [*value, *value.values()] if isinstance(value, dict) else value
    return [text for each in inside for text in _strings(each)] if isinstance(inside, (list, tuple)) else []


def _drive(training: Training, run: ShortRun) -> None:
    """Run until the updates are made; write a row and a checkpoint of the state then."""
    began = time.monotonic()
    for due in serial.loop(training):
        serial.carry_out(training, due)
        if run.updates is not None and training.learning.updates >= run.updates:
            break
        if time.monotonic() - began > run.within_secs:
            raise ConfigError(f"{run.config} took longer than {run.within_secs:.0f} s for its first updates")
    training.acting.settle()
    if not training.experiment.by_epochs and training.progress.step > training.log.row_step:
        training.rows.write()
    training.saver.save(required=True)
    training.saver.join()


def _hash_state(leaves: dict[str, Any]) -> str:
    """Return the SHA-256 of all leaves with their names, types and shapes."""
    total = hashlib.sha256()
    for name, leaf in sorted(leaves.items()):
        if isinstance(leaf, torch.Tensor):
            total.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}\n".encode())
            total.update(leaf.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            total.update(f"{name} {json.dumps(leaf)}\n".encode())
    return total.hexdigest()


def _hash_rows(rows: list[dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def _parts(identity: dict[str, str]) -> dict[str, str]:
    """Return a short hash of the settings of each configurable."""
    lines: dict[str, list[str]] = {}
    for name, text in sorted(identity.items()):
        lines.setdefault(name.rpartition(".")[0], []).append(f"{name} = {text}")
    return {owner: hashlib.sha256("\n".join(of).encode()).hexdigest()[:8] for owner, of in lines.items()}


def _norms(leaves: dict[str, Any]) -> dict[str, float]:
    """Return the Euclidean norm of each learner's weights."""
    squares: dict[str, float] = {}
    for name, leaf in leaves.items():
        if name.startswith("weights:") and isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            learner = name.removeprefix("weights:").lstrip("/").partition("/")[0].partition(".")[0]
            squares[learner] = squares.get(learner, 0.0) + float(leaf.double().square().sum())
    return {f"norm of weights: {learner}": math.sqrt(square) for learner, square in sorted(squares.items())}


def _last_values(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the last finite value of each checked metric of each kind of row."""
    found: dict[str, float] = {}
    for row in rows:
        for name, value in row.items():
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if number and any(word in name for word in CHECKED) and math.isfinite(value):
                found[f"{row['kind']}: {name}"] = float(value)
    return dict(sorted(found.items()))


# Comparing digests


def compare(stored: dict[str, Any], found: Digest, exact: bool) -> list[str]:
    """Return what differs between a stored digest and that of a new run, a line each.

    Args:
      stored: `Digest.as_json()`, as read from a file and checked by the caller.
      found: of the new run.
      exact: the fingerprints are equal, so every bit must be; otherwise scalars are compared within the tolerance.
    """
    if stored["identity"] != found.identity:
        owners = sorted({*stored["parts"], *found.parts})
        changed = [owner for owner in owners if stored["parts"].get(owner) != found.parts.get(owner)]
        return [f"the configuration differs in {', '.join(changed[:5]) or 'its settings'}"]
    lines = []
    if exact:
        lines += ["the weights and the state of the run differ"] * (stored["state"] != found.state)
        lines += ["the metrics differ"] * (stored["rows"] != found.rows)
        if not lines:
            return []
    for name in sorted({*stored["scalars"], *found.scalars}):
        before, after = stored["scalars"].get(name), found.scalars.get(name)
        if before is None or after is None:
            lines += [f"{name}: {'absent' if before is None else before} / {'absent' if after is None else after}"]
        elif (before != after) if exact else not _near(name, before, after):
            lines.append(f"{name}: {before:.6g} / {after:.6g}")
    return lines


def _near(name: str, before: float, after: float) -> bool:
    """Return whether two values of a scalar agree within the tolerance."""
    relative = NORMS_TOLERANCE if name.startswith("norm of weights") else SCALARS_TOLERANCE
    return abs(before - after) <= relative * max(abs(before), abs(after), 0.1)
