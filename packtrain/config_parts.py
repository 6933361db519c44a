"""Shipped configurations that are composed of parts, such as METHOD_TASK and METHOD_TASK_paper.

A folder of configurations may have a file names.toml, which lists such names:

    [[names]]
    methods = ["ddpg", "steve"]      # files METHOD.gin
    tasks = ["ant", "hopper"]        # files tasks/TASK.gin
    then = ["paper"]                 # files paper.gin
    title = "{method} on {task} with the networks and numbers of the paper"

This makes ddpg_ant_paper, ddpg_hopper_paper, steve_ant_paper and steve_hopper_paper. Later parts win. A part has
variations: tasks/sac/hopper.gin follows tasks/hopper.gin if METHOD.gin includes sac.gin, or is sac.gin, and
paper/hopper.gin follows paper.gin if the task is hopper. `suffix` replaces the last of `then` in the name, `name` is
the whole name of a single one, and `knobs` sets knobs after all parts.

An entry may also list whole configurations, from any folder, and then needs a name:

    [[names]]
    name = "cartpole"
    parts = ["ppo/base.gin"]
    knobs = { env = "CartPole", discounting = 0.98 }
    title = "PPO on CartPole"

A name in a folder, such as "tasks/ant", stands for the file tasks/ant.gin: a part that other names use and that cannot
be run by itself. A part that only sets knobs needs no `parts` of its own.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).parent / "configs"
TABLE = "names.toml"
MOST_SETTINGS = 3  # knobs that a description spells out
INCLUDE = re.compile(r"""^include\s+(['"])(.+)\1\s*(#.*)?$""")


@dataclass(frozen=True)
class Composed:
    """A configuration without a file of its own."""

    title: str
    parts: tuple[str, ...]  # files below CONFIGS, in the order they are read
    knobs: tuple[tuple[str, Any], ...] = ()  # set after them

    def text(self) -> str:
        """Return the configuration as the text of a .gin file."""
        lines = [f"# {self.title}", *(f"include {part!r}" for part in self.parts)]
        return "\n".join([*lines, *(f"{name} = {value!r}" for name, value in self.knobs)]) + "\n"

    def description(self, given: Collection[str] = ()) -> str:
        """Return its parts and knobs in one line; if there are many knobs, only their number.

        Args:
          given: names of knobs that are set otherwise and left out.
        """
        said = [part.removesuffix(".gin") for part in self.parts]
        settings = [f"{name} = {value!r}" for name, value in self.knobs if name not in given]
        if len(settings) > MOST_SETTINGS:
            settings = [f"{len(settings)} knobs set for it (`packtrain show-config` prints them)"]
        return " + ".join([*said, *settings])


@functools.cache
def _entries() -> list[tuple[Path, dict[str, Any]]]:
    """Return the entries of all tables, each with the folder of its table."""
    return [
        (table.parent, entry)
        for table in sorted(CONFIGS.glob(f"*/{TABLE}"))
        for entry in tomllib.loads(table.read_text(encoding="utf-8"))["names"]
    ]


@functools.cache
def parts() -> dict[str, Composed]:
    """Return the entries without methods, by name: configurations, and parts of others such as "steve/tasks/ant"."""
    return {
        f"{folder.name}/{entry['name']}": Composed(entry["title"], tuple(entry.get("parts", ())), _knobs(entry))
        for folder, entry in _entries()
        if "methods" not in entry
    }


@functools.cache
def composed() -> dict[str, Composed]:
    """Return all composed configurations by name, such as "steve/steve_hopper_paper"."""
    found = {name: one for name, one in parts().items() if name.count("/") == 1}
    for folder, entry in _entries():
        stages = entry.get("then", [])
        suffix = entry.get("suffix", stages[-1] if stages else "")
        for method in entry.get("methods", ()):
            for task in entry["tasks"]:
                name = entry.get("name") or "_".join(filter(None, (method, task, suffix)))
                titles = {"method": _subject(folder / f"{method}.gin"), "task": _subject(_task(folder, task))}
                found[f"{folder.name}/{name}"] = Composed(
                    entry["title"].format(**titles),
                    tuple(str(part.relative_to(CONFIGS)) for part in _parts(folder, method, task, stages)),
                    _knobs(entry),
                )
    return found


def _knobs(entry: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return the knobs that an entry sets; lists of TOML become tuples."""
    knobs = entry.get("knobs", {})
    return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in knobs.items())


@functools.cache
def parts_of_names() -> frozenset[Path]:
    """Return the files that are only parts of configurations and cannot be run by themselves."""
    return frozenset(folder / f"{stage}.gin" for folder, entry in _entries() for stage in entry.get("then", []))


def find(path: Path) -> Composed | None:
    """Return the composed configuration or part that a path below CONFIGS means; None if there is none."""
    try:
        name = str(path.relative_to(CONFIGS).with_suffix(""))
    except ValueError:
        return None
    return parts().get(name) or composed().get(name)


def _task(folder: Path, task: str) -> Path:
    return folder / "tasks" / f"{task}.gin"


def _parts(folder: Path, method: str, task: str, stages: list[str]) -> list[Path]:
    """Return the files of a name in order: method, task and stages, each followed by its variations."""
    stems = _included(folder / f"{method}.gin")
    parts = [folder / f"{method}.gin", _task(folder, task)]
    parts += [folder / "tasks" / stem / f"{task}.gin" for stem in stems]
    for stage in stages:
        parts += [folder / f"{stage}.gin", *(folder / stage / f"{stem}.gin" for stem in [*stems, task])]
    required = {parts[0], parts[1]}
    return [part for part in parts if part in required or part.is_file() or _listed_at(part)]


def _listed_at(path: Path) -> Composed | None:
    return parts().get(str(path.relative_to(CONFIGS).with_suffix("")))


def _text(path: Path) -> str:
    """Return the text of a method, a task, or a part: of its entry in a table, if it has one, otherwise of its file."""
    found = _listed_at(path)
    return found.text() if found else path.read_text(encoding="utf-8")


@functools.cache
def _included(path: Path) -> tuple[str, ...]:
    """Return the names, without folders, of all files that a configuration includes, in order, and its own."""
    stems: list[str] = []
    for line in _text(path).splitlines():
        if match := INCLUDE.match(line.strip()):
            stems += [stem for stem in _included(CONFIGS / match[2]) if stem not in stems]
    return (*stems, path.stem)


@functools.cache
def _subject(path: Path) -> str:
    """Return the first comment of a file, up to its colon."""
    return _text(path).partition("\n")[0].lstrip("# ").partition(":")[0].strip()
