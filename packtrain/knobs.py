"""Find configurations and read their knobs, without gin and without torch.

A knob is a leading line `name = literal  # help text` of a `.gin` file, or of a file it includes. `--name VALUE` sets
it. Its type is that of the default; for a default of `None` the comment declares it: `# type: int`.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import math
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packtrain import config_parts, files, old_names
from packtrain.config_parts import CONFIGS as CONFIGS
from packtrain.config_parts import INCLUDE as _INCLUDE
from packtrain.errors import ConfigError

SHIPPED = "configs/"  # prefix of shipped files in messages
MOST_INCLUDES = 200  # maximum number of files that one configuration reads
PROGRAM_FLAGS = (
    "acting address config config_file demonstrations device env_kwargs fresh help inference json learners min_nodes "
    "mode mrunner num_episodes num_seeds output_dir profile replay_shards restarts runtime savedir seed start_from "
    "tensorboard track trust_config video workers xpid"
).split()

_OTHER_NAMES = {
    "lr": ("learning_rate",),
    "gamma": ("discounting", "discount"),
    "n_steps": ("unroll_length", "n_step"),
    "num_steps": ("unroll_length", "total_steps"),
    "n_envs": ("num_actors",),
    "num_envs": ("num_actors",),
    "num_envs_per_env_runner": ("num_actors",),
    "num_workers": ("workers",),
    "num_env_runners": ("workers",),
    "rollout_fragment_length": ("unroll_length",),
    "timesteps": ("total_steps",),
    "n_timesteps": ("total_steps",),
    "total_timesteps": ("total_steps",),
    "steps": ("total_steps",),
    "ent_coef": ("entropy_cost",),
    "entropy_coeff": ("entropy_cost",),
    "vf_coef": ("baseline_cost",),
    "vf_loss_coeff": ("baseline_cost",),
    "gae_lambda": ("trace_lambda",),
    "lambda": ("trace_lambda",),
    "clip_coef": ("clip",),
    "clip_range": ("clip",),
    "clip_param": ("clip",),
    "n_epochs": ("optimisation_epochs",),
    "update_epochs": ("optimisation_epochs",),
    "num_epochs": ("optimisation_epochs",),
    "max_grad_norm": ("grad_norm_clipping",),
    "grad_clip": ("grad_norm_clipping",),
    "buffer_size": ("replay_size",),
    "learning_starts": ("warm_up",),
    "tau": ("polyak",),
    "target_update_interval": ("target_period",),
    "target_network_frequency": ("target_period",),
    "target_network_update_freq": ("target_period",),
    "net_arch": ("hidden_size", "hidden_sizes"),
    "env_id": ("env",),
    "logdir": ("output_dir",),
    "out": ("output_dir",),
    "eval_freq": ("eval_every",),
    "n_eval_episodes": ("eval_episodes",),
}
"""What other libraries call settings; a suggestion names the first that is known here."""

_KNOB = re.compile(r"^([A-Za-z_]\w*)\s*=\s*(.+?)\s*$")
_IMPORT = re.compile(r"^(import|from)\s")
_SOURCE = re.compile(r" \[[^\]]*\]$")
_TYPE = re.compile(r"#?\s*type:\s*(\w+)\s*$")
_TYPES = {"int": int, "float": float, "str": str, "bool": bool, "tuple": tuple}


@dataclass(frozen=True)
class Knob:
    """One value of a configuration that has its own flag."""

    name: str
    default: Any
    type: type
    comment: str
    where: str  # file:line of the line that sets it

    def accept(self, value: Any) -> Any:
        """Check a value from a Python program; ConfigError if it is not of the knob's type. Strings are parsed."""
        if value is None and (self.default is None or "None:" in self.comment):
            return None
        if isinstance(value, str):
            return self.parse(value)
        if self.type is tuple and isinstance(value, list):
            return tuple(value)
        fits = isinstance(value, self.type) and (self.type is bool or not isinstance(value, bool))
        if self.type is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if self.type is int and isinstance(value, float) and value.is_integer():
            return int(value)
        if not fits:
            raise ConfigError(
                f"{self.name} = {value!r} is not a {self.type.__name__} (default {self.default!r}, {self.where})"
            )
        return value

    def parse(self, text: str) -> Any:
        """Return the value of a flag's text; ConfigError if it is not of the knob's type."""
        # The comment explains this special value.
        if text == "None" and (self.default is None or "None:" in self.comment):
            return None
        if self.type is bool:
            if text.lower() in ("true", "1", "yes", "false", "0", "no"):
                return text.lower() in ("true", "1", "yes")
            raise ConfigError(f"--{self.name} {text!r} is not true or false (default {self.default}, {self.where})")
        if self.type is str:
            return text
        if self.type in (int, float):
            try:
                number = self.type(text)
            except ValueError:
                number = math.nan
            if math.isfinite(number):
                return number
            if self.type is int and re.fullmatch(r"\d+(\.\d+)?[eE]\+?\d+", text) and float(text).is_integer():
                return int(float(text))  # 1e6 steps
            what = "a whole number" if self.type is int else "a number"
            raise ConfigError(f"--{self.name} {text!r} is not {what} (default {self.default!r}, {self.where})")
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            value = None
        if not isinstance(value, self.type):
            raise ConfigError(
                f"--{self.name} {text!r} is not a {self.type.__name__} (default {self.default!r}, {self.where})"
            )
        return value


def shipped() -> list[str]:
    """Return the names of the shipped configurations, such as "impala/catch", including composed ones."""
    files = set(CONFIGS.glob("*/*.gin")) - config_parts.parts_of_names()
    return sorted([*(str(path.relative_to(CONFIGS).with_suffix("")) for path in files), *config_parts.composed()])


def own_knobs(name: str) -> list[Knob]:
    """Return the knobs that a shipped configuration sets itself: in its file, or in its parts after the method."""
    found = config_parts.composed().get(name)
    files = [f"{name}.gin", *(found.parts[1:] if found else ())]
    known = read_knobs(CONFIGS / f"{name}.gin").values()
    return [knob for knob in known if knob.where.rpartition(":")[0] in {SHIPPED + file for file in files}]


def nearest(name: str, known: list[str]) -> str:
    """Return a suggestion with the closest known spelling, to append to a message; empty if nothing is close."""
    lower = {word.lower(): word for word in reversed(known)}
    for other in _OTHER_NAMES.get(name.lower().replace("-", "_").strip("_"), ()):
        if other in known:
            return f" (did you mean {other!r}?)"
    close = difflib.get_close_matches(name.lower(), list(lower), n=1, cutoff=0.6)
    return f" (did you mean {lower[close[0]]!r}?)" if close else ""


def find_config(name: str, given: Collection[str] = ()) -> tuple[Path, str | None]:
    """Return the file of a CONFIG argument, and a line to print if it was guessed or is composed of parts.

    Args:
      name: the argument.
      given: names of knobs that the command line sets, which the line about the parts leaves out.

    The argument is a shipped name, a path, or a path that does not exist but whose file name is that of exactly one
    shipped config. The file of a composed configuration does not exist; `read_text` and `find_include` handle it.
    """
    if name in shipped():
        path = CONFIGS / f"{name}.gin"
        found = config_parts.find(path)
        return path, None if found is None else f"{name} is {found.description(given)}"
    path = Path(name).expanduser()
    if os.path.isfile(path):
        return path, None
    namesakes = [known for known in shipped() if Path(known).name == path.stem]
    if path.stem in old_names.FIRST_FAMILY:
        namesakes = [f"{old_names.FIRST_FAMILY[path.stem]}/{path.stem}"]
    if path.suffix == ".gin" and len(namesakes) == 1:
        return CONFIGS / f"{namesakes[0]}.gin", f"{name} does not exist; taking the shipped config {namesakes[0]!r}"
    if path.suffix == ".gin":
        which = f"; did you mean one of {', '.join(namesakes)}?" if namesakes else ""
        raise ConfigError(f"config file {name} does not exist{which or '; `packtrain list` shows the shipped ones'}")
    raise ConfigError(f"unknown config {name!r}{nearest(name, shipped())}; `packtrain list` shows them all")


def find_include(name: str, including: Path, line: int) -> Path:
    """Return the file of an `include` line: in the folder of the including file, or a shipped one."""
    for candidate in (including.parent / name, CONFIGS / old_names.INCLUDES.get(name, name)):
        if os.path.isfile(candidate) or config_parts.find(candidate):  # isfile: also False for invalid file names
            return candidate
    raise ConfigError(f"{shown(including)}:{line} includes {name!r}, which does not exist")


def shown(path: Path) -> str:
    """Return a path as messages show it: shipped files relative to the package, others as given."""
    try:
        return SHIPPED + str(path.resolve().relative_to(CONFIGS))
    except ValueError:
        return str(path)


def read_text(path: Path) -> str:
    """Return the text of a config file; ConfigError if it cannot be read as UTF-8 text."""
    if found := config_parts.find(path):
        return found.text()
    try:
        return files.read_text(path)
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or an invalid file name
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(f"config file {shown(path)} cannot be read: {reason}") from error


class Includes:
    """Tracks the files being read, to detect circular includes and to limit their number."""

    def __init__(self) -> None:
        self._above: list[Path] = []
        self._count = 0

    @contextlib.contextmanager
    def inside(self, path: Path) -> Iterator[None]:
        """Context of reading a file; ConfigError if it includes itself, or if there are too many files."""
        real = path.resolve()
        if real in self._above:
            raise ConfigError(f"{shown(path)} includes itself")
        self._count += 1
        if self._count > MOST_INCLUDES:
            raise ConfigError(f"{shown(path)} is one of more than {MOST_INCLUDES} files that a configuration includes")
        self._above.append(real)
        try:
            yield
        finally:
            self._above.pop()


def read_knobs(path: Path, _includes: Includes | None = None, _known: dict[str, Knob] | None = None) -> dict[str, Knob]:
    """Return the knobs of a config file and of its includes, in the order of first appearance; later lines win.

    A knob that is set again keeps its type and its comment, unless the new line has a comment. A comment in brackets is
    the source of the new value, and is appended to the earlier comment.
    """
    if not _known and path.is_relative_to(CONFIGS):
        return dict(_shipped_knobs(path))
    includes = _includes or Includes()
    with includes.inside(path):
        return _read_knobs(path, includes, _known or {})


@functools.cache
def _shipped_knobs(path: Path) -> dict[str, Knob]:
    """Return the knobs of a shipped file, cached: shipped files do not change, and many include the same."""
    return _read_knobs(path, Includes(), {})


def _read_knobs(path: Path, includes: Includes, _known: dict[str, Knob]) -> dict[str, Knob]:
    knobs, label = dict(_known), shown(path)
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#") or _IMPORT.match(stripped):
            continue
        if include := _INCLUDE.match(stripped):
            knobs = read_knobs(find_include(include.group(2), path, number), includes, knobs)
            continue
        knob = _read_line(line, knobs, f"{label}:{number}")
        if knob is None:
            break
        if knob.name in PROGRAM_FLAGS:
            raise ConfigError(f"{knob.where}: {knob.name!r} is a flag of the program and cannot be a knob")
        knobs[knob.name] = knob
    return knobs


def _read_line(line: str, known: dict[str, Knob], where: str) -> Knob | None:
    """Return the knob of a line `name = literal  # comment`, or None if the line is something else."""
    match = _KNOB.match(line)
    if not match:
        return None
    name, rest = match.groups()
    text, comment = _split_comment(rest)
    try:
        default = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
    kind: type = type(default)
    if declared := _TYPE.search(comment):
        kind = _TYPES.get(declared.group(1), str)
        comment = comment[: declared.start()].rstrip(" #;")
    if name in known:  # set again: keep its comment and its type
        before = known[name]
        if default is None or isinstance(default, before.type) or (before.type is float and isinstance(default, int)):
            kind = before.type
        if comment.startswith("["):  # only the source of the value
            comment = f"{_SOURCE.sub('', before.comment)} {comment}"
        return replace(before, default=default, type=kind, comment=comment or before.comment, where=where)
    if default is None and kind is type(None):
        raise ConfigError(f"{where}: knob {name!r} is None and needs a comment '# type: int|float|str|bool|tuple'")
    return Knob(name, default, kind, comment, where)


def written(values: dict[str, Any], bindings: dict[str, str], comments: dict[str, str]) -> list[str]:
    """Return the lines of a configuration that sets knobs and then bindings, each below its comment."""
    lines: list[str] = []
    for part in ({name: repr(value) for name, value in values.items()}, bindings):
        lines += [""] * bool(part)
        for name, value in part.items():
            if name in comments:
                lines.append(f"# {comments[name]}")
            lines.append(f"{name} = {value}")
    return lines


def _split_comment(text: str) -> tuple[str, str]:
    """Split `literal  # comment`, respecting quotes."""
    quote = ""
    for index, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#":
            return text[:index].strip(), text[index + 1 :].strip()
    return text, ""


def headline(path: Path) -> str:
    """Return the first comment line of a config file, its title."""
    for line in read_text(path).splitlines():
        if line.startswith("#"):
            return line.lstrip("# ").strip()
    return ""
