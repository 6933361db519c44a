"""Records of published results: commands, versions and digests of the first updates in each file of docs/results.

    {"record": {"schema": 1, "title": "…", "page": "catch.md", "commands": ["packtrain train …"], "seeds": [0, 1],
                "versions": {"packtrain": "0.1.0", …}, "machine": "…", "date": "2026-11-15", "before": "0.2",
                "verify": {"fingerprint": {…}, "runs": [{"config": "impala/catch", …, "state": "…"}]}},
     …the measured data, as the scripts of benchmarks/ write them…}

A field that is unknown is absent. A file may come from another person: it is read as data, with bounded size and depth,
and only shipped configurations with plain knob values are taken from it. Imports no torch.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from packtrain import files, knobs
from packtrain.errors import ConfigError, one_line

SCHEMA = 1
FOLDER = Path("docs/results")
MOST_BYTES = 16 * 2**20
MOST_RUNS = 16
MOST_UPDATES = 100_000
MOST_LENGTH = 20_000  # characters of one text
MOST_NAMES = 1_000  # entries of one table
_PLAIN = re.compile(r"[A-Za-z0-9_ +.\-]*(/[A-Za-z0-9_ +.\-]+)?")
_DIGEST = re.compile(r"[0-9a-f]{64}")

TRAIN_FLAGS = ("seed", "num_seeds", "runtime", "device", "output_dir", "savedir", "xpid", "start_from", "fresh")
EVAL_FLAGS = ("num_episodes", "checkpoint", "seed", "greedy", "sampled", "device", "json")
OWN_COMMANDS = {"train": TRAIN_FLAGS, "eval": EVAL_FLAGS, "report": ("out", "compare")}
"""Commands that `packtrain reproduce --run` runs, with the flags that it accepts; knobs are accepted for train."""


@dataclass(frozen=True)
class StoredRun:
    """A short run whose digest is stored."""

    config: str
    knobs: dict[str, Any]
    reduced: dict[str, Any]  # knobs that are smaller than in the result, so that it takes seconds
    seed: int
    updates: int | None
    secs: float | None  # that it took when it was stored
    digest: dict[str, Any]


@dataclass(frozen=True)
class Result:
    """One file of results, without its data."""

    name: str
    title: str
    page: str | None = None
    before: str | None = None  # a version: it was measured before that, and has not been run again since
    commands: tuple[str, ...] = ()
    seeds: tuple[int, ...] | None = None
    versions: dict[str, str] = field(default_factory=dict)
    machine: str | None = None
    date: str | None = None
    fingerprint: dict[str, str] = field(default_factory=dict)
    runs: tuple[StoredRun, ...] = ()


def find(name: str) -> Path:
    """Return the file of a RESULT argument: a path, or a name in docs/results of the current folder."""
    path = Path(name).expanduser()
    if path.suffix == ".json":
        return path
    known = names(FOLDER)
    if name in known:
        return FOLDER / f"{name}.json"
    there = f"; {FOLDER} has {', '.join(known)}" if known else f"; there is no folder {FOLDER} here: give a path"
    raise ConfigError(f"there is no result {name!r}{knobs.nearest(name, known)}{there}")


def names(folder: Path) -> list[str]:
    """Return the names of the results in a folder; none if it does not exist."""
    try:
        return [name[:-5] for name in files.list_inside(folder) if name.endswith(".json")]
    except OSError:
        return []


def load(path: Path) -> Result:
    """Read one file of results; ConfigError in one line if it is not one."""
    document = read(path)
    record = document.get("record") if isinstance(document, dict) else None
    if record is None:
        raise ConfigError(f"{path} has no record: nothing is known about its commands, and nothing can be verified")
    try:
        return _Reader(path).result(record)
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply to be a result") from None


def read(path: Path) -> Any:
    """Return the JSON value of a file; ConfigError if it is too large, a link, too deep, or not valid JSON."""

    def refuse(text: str) -> NoReturn:
        raise ValueError(f"{text} is not a number of JSON")

    try:
        data = files.read_inside(path.parent, path.name, most=MOST_BYTES)
        return json.loads(data, parse_constant=refuse, parse_float=_finite)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply to be a result") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not a file of results: {one_line(str(error))[:200]}") from error


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large a number")
    return number


def is_plain(value: Any) -> bool:
    """Return whether a knob value is a literal that names no module, no folder outside, and nothing long."""
    if value is None or isinstance(value, (bool, int, float)):
        return not isinstance(value, (int, float)) or abs(value) < 2**53
    if isinstance(value, str):
        return len(value) <= 100 and ".." not in value and _PLAIN.fullmatch(value) is not None
    return isinstance(value, (list, tuple)) and len(value) <= 64 and all(is_plain(inner) for inner in value)


class _Reader:
    """Checks a record field by field; every problem is a ConfigError that names the file and the field."""

    def __init__(self, path: Path):
        self._path = path

    def _wrong(self, name: str, expected: str) -> NoReturn:
        raise ConfigError(f"{self._path}: {one_line(name)[:100]} must be {expected}")

    def _get(self, table: dict[str, Any], name: str, fits: Callable[[Any], bool], expected: str) -> Any:
        """Return a field, or None if it is absent."""
        value = table.get(name)
        if value is not None and not fits(value):
            self._wrong(name, expected)
        return value

    def _text(self, table: dict[str, Any], name: str) -> str | None:
        fits = lambda value: isinstance(value, str) and len(value) <= MOST_LENGTH  # noqa: E731
        value = self._get(table, name, fits, f"a text of at most {MOST_LENGTH:,} characters")
        return None if value is None else one_line(value)

    def _texts(self, table: dict[str, Any], name: str) -> dict[str, str]:
        is_text = lambda value: isinstance(value, str) and len(value) <= 500  # noqa: E731
        fits = lambda value: self._is_table(value) and all(is_text(text) for text in value.values())  # noqa: E731
        return dict(self._get(table, name, fits, "a table of short texts") or {})

    def _whole(self, table: dict[str, Any], name: str, most: int) -> int | None:
        fits = lambda value: type(value) is int and 0 <= value <= most  # noqa: E731
        return self._get(table, name, fits, f"a whole number up to {most:,}")

    @staticmethod
    def _is_table(value: Any) -> bool:
        return isinstance(value, dict) and len(value) <= MOST_NAMES and all(len(name) <= 500 for name in value)

    def result(self, record: Any) -> Result:
        """Return a checked record."""
        if not self._is_table(record):
            self._wrong("record", "a table")
        schema = self._whole(record, "schema", 10**6)
        if schema != SCHEMA:
            raise ConfigError(f"{self._path} has schema {schema} of results; this version reads schema {SCHEMA}")
        strings = lambda value: isinstance(value, list) and len(value) <= 100 and all(map(_is_short, value))  # noqa: E731
        whole = lambda value: isinstance(value, list) and all(type(one) is int for one in value)  # noqa: E731
        commands = self._get(record, "commands", strings, "a list of command lines") or ()
        seeds = self._get(record, "seeds", whole, "a list of whole numbers")
        verify = self._get(record, "verify", self._is_table, "a table") or {}
        few = lambda value: isinstance(value, list) and len(value) <= MOST_RUNS  # noqa: E731
        runs = self._get(verify, "runs", few, f"a list of up to {MOST_RUNS} runs")
        return Result(
            name=self._path.stem,
            title=self._text(record, "title") or self._path.stem,
            page=self._text(record, "page"),
            before=self._text(record, "before"),
            commands=tuple(one_line(command) for command in commands),
            seeds=None if seeds is None else tuple(seeds),
            versions=self._texts(record, "versions"),
            machine=self._text(record, "machine"),
            date=self._text(record, "date"),
            fingerprint=self._texts(verify, "fingerprint"),
            runs=tuple(self._run(run) for run in runs or ()),
        )

    def _run(self, run: Any) -> StoredRun:
        """Return a checked short run with its digest."""
        if not self._is_table(run):
            self._wrong("verify.runs", "a list of tables")
        config = self._text(run, "config")
        if config not in knobs.shipped():
            self._wrong("verify.runs.config", f"a shipped configuration, not {str(config)[:60]!r}")
        values = {}
        for name in ("knobs", "reduced"):
            values[name] = self._get(run, name, self._is_table, "a table of knobs") or {}
            for knob, value in values[name].items():
                if not is_plain(value):
                    self._wrong(f"verify.runs.{name}.{knob}", "a plain literal")
        for name in ("identity", "state", "rows"):
            fits = lambda value: isinstance(value, str) and _DIGEST.fullmatch(value) is not None  # noqa: E731
            if self._get(run, name, fits, "a SHA-256 in hexadecimal") is None:
                self._wrong(f"verify.runs.{name}", "a SHA-256 in hexadecimal")
        is_number = lambda value: type(value) in (int, float) and abs(value) < 1e300  # noqa: E731
        fits = lambda value: self._is_table(value) and all(is_number(one) for one in value.values())  # noqa: E731
        scalars = self._get(run, "scalars", fits, "a table of numbers") or {}
        secs = self._get(run, "secs", lambda value: is_number(value) and 0 <= value < 10**6, "a number of seconds")
        digest = {name: run[name] for name in ("identity", "state", "rows")}
        digest |= {"parts": self._texts(run, "parts"), "scalars": {name: float(one) for name, one in scalars.items()}}
        seed, updates = self._whole(run, "seed", 2**31) or 0, self._whole(run, "updates", MOST_UPDATES)
        return StoredRun(config, values["knobs"], values["reduced"], seed, updates, secs, digest)


def _is_short(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 2_000


def arguments_of(command: str) -> list[str] | str:
    """Return the arguments of a command that `reproduce --run` may run; a text that says why it is not run.

    Only packtrain's own commands on shipped configurations with plain values: a file of results is untrusted.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        return f"it cannot be read: {error}"
    if len(words) < 2 or words[0] != "packtrain" or words[1] not in OWN_COMMANDS:
        return f"only packtrain {', '.join(OWN_COMMANDS)} are run from a file of results"
    name, rest = words[1], words[2:]
    shipped, flags, last = set(knobs.shipped()), set(OWN_COMMANDS[name]), ""
    known = {knob for word in rest if name == "train" and word in shipped for knob in _knobs_of(word)}
    for word in rest:
        flag, has_value, value = word.removeprefix("--").partition("=")
        if word.startswith("-"):
            if not word.startswith("--") or flag not in flags | known:
                return f"its flag {word.partition('=')[0]} is not accepted from a file of results"
            last = "" if has_value else flag
            if has_value and not _is_plain_text(value):
                return f"the value of --{flag} is not a plain literal"
        elif last:
            if not _is_plain_text(word):
                return f"the value of --{last} is not a plain literal"
            last = ""
        elif name == "train" and word not in shipped:
            return f"{word} is not a shipped configuration"
        elif name != "train" and not is_plain(word.replace("/", "_")):
            return f"{word} is not a plain path"
    return [name, *rest]


def _knobs_of(name: str) -> dict[str, knobs.Knob]:
    return knobs.read_knobs(knobs.find_config(name)[0])


def _is_plain_text(text: str) -> bool:
    """Return whether the text of a flag is a number, a plain word or path, or a tuple of numbers."""
    path = text.replace("/", "_") if not text.startswith("/") else text
    return is_plain(path) or re.fullmatch(r"[(\[][0-9., ]*[)\]]", text) is not None


def write_data(path: Path, body: str) -> None:
    """Write the measured data of a result, the text of a JSON object or array; a record that the file has is kept.

    The record is the first line of the file, so that the data stay as they are.
    """
    try:
        before = read(path)
    except ConfigError:
        before = None
    if isinstance(before, dict) and "record" in before:
        rest = f'"cells": {body.strip()}}}\n' if body.lstrip().startswith("[") else body.partition("{")[2].lstrip("\n")
        body = f'{{"record": {json.dumps(before["record"], ensure_ascii=False)},\n{rest}'
    files.write_whole(path, body.encode())


def data_of(document: Any) -> Any:
    """Return the measured data of a result that is a list of cells, with a record or without."""
    return document["cells"] if isinstance(document, dict) and "cells" in document else document
