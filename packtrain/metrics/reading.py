"""Read a run folder: the rows of metrics.jsonl, and the folders of seeds.

Only the standard library is used, so that everything built on it starts in milliseconds.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

from packtrain.errors import RunFolderError
from packtrain.files import open_inside

METRICS_FILE = "metrics.jsonl"
CONFIG_FILE = "config.gin"
BOOKKEEPING = ("step", "wall_s", "kind")  # keys of a row that are not metrics

_LONGEST_LINE = 2**20  # bytes; a longer line is read in pieces, which are not valid rows
_SEED_NAME = re.compile(r"seed_(\d+)", re.ASCII)


class Rows(list[dict[str, Any]]):
    """The rows of one metrics.jsonl, in the order of the file.

    Every row has an int "step" and a str "kind". `bad_lines` counts invalid lines, without the incomplete last line
    that a crash may leave.
    """

    bad_lines: int = 0


class Series(NamedTuple):
    """One metric of one run: three lists of one length, steps strictly increasing."""

    steps: list[int]
    values: list[float]
    walls: list[float]  # seconds since the start of the run


def is_run_folder(folder: str | Path) -> bool:
    """Return whether `folder` is an ordinary run folder: one that contains metrics.jsonl or config.gin."""
    return any((Path(folder) / name).is_file() for name in (METRICS_FILE, CONFIG_FILE))


def seed_folders(run: str | Path) -> list[Path]:
    """Return the ordinary run folders of a run: its seed_K in numeric order if there are any, else itself."""
    run = Path(run)
    if not run.exists():
        raise RunFolderError(f"no run folder at {run}: the path does not exist")
    if not run.is_dir():
        raise RunFolderError(f"{run} is not a run folder but a file; give the folder that contains {METRICS_FILE}")
    try:
        children = list(run.iterdir())
    except OSError as error:
        raise RunFolderError(f"cannot read the folder {run}: {error.strerror}") from error
    seeds = []
    for child in children:
        match = _SEED_NAME.fullmatch(child.name)
        if match and is_run_folder(child):
            seeds.append((int(match[1]), child.name, child))
    if seeds:
        return [child for _, _, child in sorted(seeds)]
    if is_run_folder(run):
        return [run]
    raise RunFolderError(
        f"{run} is not a run folder: looked for {METRICS_FILE} or {CONFIG_FILE} in it and in seed_0, seed_1, …"
    )


def read_metrics(folder: str | Path) -> Rows:
    """Return the rows of an ordinary run folder; none if the run has not written any yet.

    A last line without its newline is a row if it is complete and is otherwise ignored; any other invalid line is
    skipped and counted in `bad_lines`.
    """
    folder = Path(folder)
    if not folder.exists():
        raise RunFolderError(f"no run folder at {folder}: the path does not exist")
    if not is_run_folder(folder):
        raise RunFolderError(f"{folder} is not a run folder: looked for {METRICS_FILE} or {CONFIG_FILE} in it")
    rows = Rows()
    path = folder / METRICS_FILE
    if not path.is_file():
        return rows
    try:
        with open_inside(folder, METRICS_FILE) as file:
            for line in iter(lambda: file.readline(_LONGEST_LINE), b""):
                row = _parse(line)
                if row is not None:
                    rows.append(row)
                elif line.strip() and line.endswith(b"\n"):
                    rows.bad_lines += 1
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror}") from error
    return rows


def series(rows: list[dict[str, Any]], kind: str, name: str) -> tuple[list[int], list[float]]:
    """Return steps and values of one metric in the rows of one kind, steps strictly increasing.

    Rows where it is absent, null, NaN, infinite or not a number are skipped. If a step has two values, the later one in
    the file counts.
    """
    values = {}
    for row in rows:
        if row["kind"] == kind:
            value = number(row.get(name))
            if value is not None:
                values[row["step"]] = value
    steps = sorted(values)
    return steps, [values[step] for step in steps]


def all_series(rows: list[dict[str, Any]]) -> dict[tuple[str, str], Series]:
    """Return every metric that has at least one number, by (kind, name), in the order of first appearance.

    The same as `series` for each of `metric_names`, but faster. Metrics that every row has share their steps and times.
    """
    kinds: dict[str, list[dict[str, Any]]] = {}
    names: dict[tuple[str, str], None] = {}
    for row in rows:
        kinds.setdefault(row["kind"], []).append(row)
        for name in row:
            names[row["kind"], name] = None
    steps = {kind: [row["step"] for row in members] for kind, members in kinds.items()}
    walls = {kind: [_or_nan(number(row.get("wall_s"))) for row in members] for kind, members in kinds.items()}
    rising = {kind: _rises(those) for kind, those in steps.items()}
    found = {}
    for kind, name in names:
        if name in BOOKKEEPING:
            continue
        values: list[Any] = [row.get(name) for row in kinds[kind]]
        if rising[kind] and set(map(type, values)) == {float} and all(map(math.isfinite, values)):  # the usual case
            found[kind, name] = Series(steps[kind], values, walls[kind])
        elif one := _picked(steps[kind], [number(value) for value in values], walls[kind]):
            found[kind, name] = one
    return found


def _picked(steps: list[int], values: list[float | None], walls: list[float]) -> Series | None:
    """Return the existing values sorted by step; if a step has several, the last one counts."""
    rows = zip(steps, values, walls, strict=True)
    last = {step: (value, wall) for step, value, wall in rows if value is not None}
    if not last:
        return None
    ordered = sorted(last)
    return Series(ordered, [last[step][0] for step in ordered], [last[step][1] for step in ordered])


def _rises(steps: list[int]) -> bool:
    return all(before < after for before, after in zip(steps, steps[1:], strict=False))


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def metric_names(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return every (kind, name) that has at least one number, in the order of first appearance."""
    found: dict[tuple[str, str], None] = {}
    for row in rows:
        for name, value in row.items():
            if name not in BOOKKEEPING and number(value) is not None:
                found.setdefault((row["kind"], name))
    return list(found)


def number(value: Any) -> float | None:
    """Return `value` as a finite float, or None if it is not one. Booleans are not numbers here."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        value = float(value)
    except OverflowError:  # an int with hundreds of digits
        return None
    return value if math.isfinite(value) else None


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the row in a line, or None if it is invalid."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # bad JSON, bad UTF-8, an absurd number, absurd nesting
        return None
    if not isinstance(row, dict) or type(row.get("step")) is not int or not isinstance(row.get("kind"), str):
        return None
    return row if abs(row["step"]) < 2**63 else None
