"""Read an mrunner specification: a Python program that defines `experiments_list`.

The program is run, because the user named it on the command line. One that lies in a run folder is refused.

Precedence is gin file < `base_config` < `params_grid` < command line. The flags of `script` count as command line.
"""

from __future__ import annotations

import ast
import os
import re
import runpy
import shlex
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packtrain import config
from packtrain.errors import ConfigError, Error
from packtrain.studies.sweep import mrunner_stub

OLD_PACKAGE = "alpacka"
RUNNERS = (f"{OLD_PACKAGE}.runner", "packtrain.runner")
_RAW = ("@", "%", "{", "(", "[")  # texts that begin so are gin expressions, not strings
_OLD_NAME = re.compile(rf"(?<![\w.]){OLD_PACKAGE}(?=\.)")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


class Specified(NamedTuple):
    """One experiment of a specification, translated."""

    name: str
    parameters: dict[str, Any]  # base_config and the values of one combination
    bindings: list[str]  # the same as gin statements
    words: list[str]  # arguments of `packtrain train` in the script, without those about output
    env: dict[str, str]  # variables of its process, PYTHONPATH included
    tags: list[str]
    with_neptune: bool
    dropped: list[str]  # arguments of the script that a sweep replaces


def load(path: Path, trust: bool = False) -> list[Specified]:
    """Run a specification and return its experiments; ConfigError, in one line, if that cannot be done.

    Args:
      path: of the program.
      trust: run it even if it lies in a run folder.
    """
    found = experiments(path, trust)
    return [_translate(path, each) for each in found]


def first_bindings(path: Path, trust: bool = False) -> tuple[list[str], int]:
    """Return the bindings of a specification's first experiment, and the number of experiments."""
    found = experiments(path, trust)
    return bindings(path, dict(found[0].parameters)), len(found)


def experiments(path: Path, trust: bool) -> list[Any]:
    """Run a specification and return its `experiments_list`: objects with mrunner's attributes."""
    if not path.is_file():
        raise ConfigError(f"the specification {path} does not exist")
    if path.suffix != ".py":
        raise ConfigError(
            f"{path} is not a specification: a Python program (.py) is read, and never a pickled experiment"
        )
    if not trust and config.is_foreign(path):
        raise ConfigError(
            f"{path} lies in a run folder, whose content may be untrusted, and a specification is a program; "
            "--trust-config allows it"
        )
    try:
        with mrunner_stub.importable():
            names = runpy.run_path(str(path), init_globals={"script": path.name})
    except Error as error:
        raise ConfigError(f"{path}: {error}") from error
    except (Exception, SystemExit) as error:
        places = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        place = f":{places[-1]}" if places else ""
        text = str(error).splitlines()[0] if str(error) else ""
        raise ConfigError(f"{path}{place}: {type(error).__name__}{': ' * bool(text)}{text}") from error
    found = names.get("experiments_list")
    if not isinstance(found, list | tuple) or not found:
        raise ConfigError(f"{path} does not define `experiments_list`, a list of at least one experiment")
    for each in found:
        if not isinstance(getattr(each, "script", None), str) or not hasattr(each, "parameters"):
            raise ConfigError(f"{path}: experiments_list holds {type(each).__name__}, which is not an experiment")
    return list(found)


def _translate(path: Path, experiment: Any) -> Specified:
    environ, words = arguments_of(path, experiment.script)
    kept, dropped = _without_output(words)
    given = {str(name): str(value) for name, value in dict(getattr(experiment, "env", None) or {}).items()}
    environ = {**given, **environ}
    folders = str(getattr(experiment, "python_path", "") or "").split(os.pathsep)
    if absolute := [os.path.abspath(folder) for folder in folders if folder]:
        environ["PYTHONPATH"] = os.pathsep.join([*absolute, *filter(None, [environ.get("PYTHONPATH", "")])])
    parameters = dict(experiment.parameters)
    neptune = bool(getattr(experiment, "with_neptune", "NEPTUNE_API_TOKEN" in environ))
    environ.pop("NEPTUNE_API_TOKEN", None)
    return Specified(
        name=str(getattr(experiment, "name", path.stem)),
        parameters=parameters,
        bindings=bindings(path, parameters),
        words=kept,
        env=environ,
        tags=[str(tag) for tag in getattr(experiment, "tags", None) or ()],
        with_neptune=neptune,
        dropped=dropped,
    )


def arguments_of(path: Path, script: str) -> tuple[dict[str, str], list[str]]:
    """Return the variables that a script sets, and its arguments to `packtrain train`.

    Understood are `python -m alpacka.runner`, `python alpacka/runner.py`, `python -m packtrain.runner`,
    `python -m packtrain train` and `packtrain train`, each after any number of NAME=VALUE.
    """
    try:
        words = shlex.split(script)
    except ValueError as error:
        raise ConfigError(f"{path}: script {script!r} is not a command line: {error}") from None
    environ: dict[str, str] = {}
    while words and (match := _ASSIGNMENT.fullmatch(words[0])):
        environ[match[1]] = match[2]
        words = words[1:]
    program = Path(words[0]).name if words else ""
    rest: list[str] | None = None
    if program.startswith("python"):
        if words[1:2] == ["-m"] and words[2:3] and words[2] in RUNNERS:
            rest = words[3:]
        elif words[1:4] == ["-m", "packtrain", "train"]:
            rest = words[4:]
        elif words[1:2] and words[1].endswith(tuple(f"{runner.replace('.', '/')}.py" for runner in RUNNERS)):
            rest = words[2:]
    elif program == "packtrain" and words[1:2] == ["train"]:
        rest = words[2:]
    if rest is None:
        raise ConfigError(
            f"{path}: script {script!r} is not a command that trains; understood are `python -m {RUNNERS[0]} …`, "
            f"`python -m {RUNNERS[1]} …` and `packtrain train …`"
        )
    return environ, rest


def _without_output(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide arguments into those of a run and those that a sweep replaces: --mrunner and the place of the output."""
    kept: list[str] = []
    dropped: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        name = word.partition("=")[0]
        if word in ("--mrunner", "--fresh"):
            dropped += [word] * (word != "--mrunner")
        elif name in ("--output_dir", "--savedir", "--xpid", "--restarts"):
            if "=" not in word:
                word, index = " ".join(words[index : index + 2]), index + 1
            dropped.append(word)
        else:
            kept.append(word)
        index += 1
    return kept, dropped


def bindings(path: Path, parameters: dict[str, Any]) -> list[str]:
    """Return parameters of a specification as gin statements; names of Alpacka's modules become ours."""
    lines = []
    for name, value in parameters.items():
        if name == "imports":
            lines += [f"import {_ours(str(module))}" for module in value]
        elif not isinstance(name, str) or not re.fullmatch(r"[\w./]+", name, re.ASCII):
            raise ConfigError(f"{path}: {name!r} is not the name of a parameter")
        else:
            lines.append(f"{_ours(name)} = {_literal(path, name, value)}")
    return lines


def _literal(path: Path, name: str, value: Any) -> str:
    """Return a value as gin reads it: strings are quoted, unless they begin as an expression of gin."""
    if isinstance(value, str):
        return _ours(value) if value.startswith(_RAW) else repr(value)
    if hasattr(value, "tolist"):  # NumPy's scalars and arrays
        value = value.tolist()
    text = repr(value)
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise ConfigError(f"{path}: {name} = {text} is not a literal that a configuration can hold") from None
    return text


def _ours(text: str) -> str:
    return _OLD_NAME.sub("packtrain", text)
