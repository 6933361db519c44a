"""gin behind one door: loading, checking, building and hashing configurations. The only module that imports gin.

gin checks names but neither types nor use, keeps everything in one global, and runs what a file imports. Here: every
value is checked against the annotation of the parameter it reaches, with the line that set it; bindings nobody used
are refused after building; imports of a file that was not named by the user are limited to this package.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib
import inspect
import os
import sys
import tokenize
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import gin
from gin import config_parser

from packtrain import knobs
from packtrain.errors import ConfigError, Error
from packtrain.metrics.reading import CONFIG_FILE, METRICS_FILE

T = TypeVar("T", bound=Callable)

_CHANGEABLE = (
    *("Run.", "Evaluation.", "EvaluationCallback.", "TraceCallback.", "ExplorationCallback."),
    *("Runner.n_epochs", "Runner.total_steps", "Runner.callback_classes"),
)
_CHANGEABLE_ENDS = (".compile", ".slack", ".calibration_period", ".step_deadline_secs", ".start_deadline_secs")
"""Parameters that may differ on resume: run length, logging, evaluation, what is only measured, and how the machine is
used. Device and runtime are program flags."""

_HEADER = "# the configuration of this run, from:"
_signatures: dict[str, dict[str, inspect.Parameter]] = {}  # configurable → its parameters
_recording = True
_building = False  # whether `build` is under way
_state: Configuration | None = None  # the one being built, so that configurables can record what they were given


def _lasting(values: dict[str, str]) -> dict[str, str]:
    """Those of the built values that may not change on resume."""
    return {
        name: text
        for name, text in values.items()
        if not name.startswith(_CHANGEABLE) and not name.endswith(_CHANGEABLE_ENDS)
    }


@dataclass
class Configuration:
    """One parsed configuration: where each binding came from, and what was built from it."""

    sources: list[str] = field(default_factory=list)  # names as the user gave them
    imports: list[str] = field(default_factory=list)
    where: dict[tuple[str, str], str] = field(default_factory=dict)  # (configurable or "", parameter or knob) → place
    macros: dict[tuple[str, str], str] = field(default_factory=dict)  # (configurable, parameter) → the knob it reads
    scoped: dict[tuple[str, str], tuple[str, str | None]] = field(default_factory=dict)
    """("scope/configurable", parameter) → the place, and the knob it reads."""
    comments: dict[str, str] = field(default_factory=dict)  # knob → its comment
    values: dict[str, str] = field(default_factory=dict)  # "Impala.entropy_cost" → repr, of everything built
    trusted: bool = True  # False where a file belongs to a run folder and `trust_config` is not given
    includes: knobs.Includes = field(default_factory=knobs.Includes)  # files being read
    trust_config: bool = False  # the user trusts files of run folders too
    error: Error | None = None  # the first one while building

    @property
    def root(self) -> str:
        """What it builds: a `Study` or a `Runner` where a line sets something of one, else an `Experiment`."""
        owners = {owner for owner, _ in self.where}
        return next((name for name in ("Study", "Runner") if name in owners), "Experiment")

    def place(self, configurable: str, parameter: str) -> str:
        """Where a parameter's value was set, in the scope that is being built, for messages."""
        key = (configurable, parameter)
        anywhere = (self.where.get(key, "its default"), self.macros.get(key))
        place, macro = self.scoped.get((f"{gin.current_scope_str()}/{configurable}", parameter), anywhere)
        if macro is None or ("", macro) not in self.where:
            return place
        knob = self.where["", macro]
        return knob if knob == f"--{macro}" else f"{knob} as {macro}"

    def identity(self) -> dict[str, str]:
        """The built values that make this run this run; what may change on resume is left out."""
        return _lasting(dict(sorted(self.values.items())))

    def difference(self, before: dict[str, str]) -> list[str]:
        """One line for each value that differs from an earlier identity.

        A parameter that the earlier one does not know is new in this release: its default, whether somebody sets it
        here or not, is what the earlier run did.
        """
        before, after = _lasting(before), self.identity()
        given = {f"{owner}.{parameter}" for owner, parameter in self.where}
        return [
            f"{name}: {before.get(name, 'absent')} → {after.get(name, 'absent')}"
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name)
            and (name in before or (name in given and not _is_default(name, after[name])))
        ]

    def hash(self) -> str:
        """A digest of `identity`."""
        lines = "\n".join(f"{name} = {text}" for name, text in self.identity().items())
        return hashlib.sha256(lines.encode()).hexdigest()

    def text(self) -> str:
        """The operative configuration as a gin file that gives the same run: knobs, bindings, and every default."""
        bound = _operative()
        lines = [f"{_HEADER} {' '.join(self.sources)}"]
        lines += [f"import {module}" for module in self.imports] + [""]
        for name in [*[n for n in self.comments if n in bound], *[n for n in bound if "." not in n]]:
            if name in bound:
                comment = self.comments.get(name, "")
                lines.append(f"{name} = {bound.pop(name)}" + f"  # {comment}" * bool(comment))
        defaults = {name: text for name, text in self.values.items() if name not in bound and _is_literal(text)}
        owner = ""
        for name in sorted({*bound, *defaults}):
            if name.rpartition(".")[0] != owner:
                owner = name.rpartition(".")[0]
                lines.append("")
            lines.append(f"{name} = {bound.get(name) or defaults[name]}")
        return "\n".join(lines) + "\n"


def _operative() -> dict[str, str]:
    """What gin says was used: "entropy_cost" or "Impala.entropy_cost" → the text of its value."""
    lines = gin.operative_config_str(max_line_length=10_000).splitlines()
    parts = [line.partition(" = ") for line in lines if " = " in line and not line.startswith("#")]
    return {name: value for name, _, value in parts}


def _is_default(name: str, text: str) -> bool:
    """Whether a parameter, as "Impala.entropy_cost", has this value where nobody sets it."""
    owner, _, parameter = name.rpartition(".")
    known = _signatures.get(owner, {}).get(parameter)
    return known is not None and known.default is not known.empty and _written(known.default) == text


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


def configurable(target: T, module: str | None = None) -> T:
    """Register a class or function with gin under its own name, with its values checked against its annotations.

    Args:
      target: what is registered.
      module: how configurations may spell it out in front of the name; planners are "packtrain.agents", as they were
        in Alpacka, and the rest is "packtrain".
    """
    name = target.__name__
    module = module or ("packtrain.agents" if target.__module__.startswith("packtrain.planning") else "packtrain")
    _signatures[name] = dict(inspect.signature(target).parameters)
    if inspect.isclass(target):
        setattr(target, "__init__", _checked(target.__init__, name))  # noqa: B010  (mypy)
        return typing.cast(T, gin.configurable(name, module=module)(target))
    return typing.cast(T, gin.configurable(name, module=module)(_checked(target, name, is_function=True)))


def bind(target: Callable, **given: Any) -> Any:
    """Call a configurable with some parameters given by code: what it notes are the others."""
    result = target(**given)
    if _state is not None:
        for parameter in given:
            _state.values.pop(f"{target.__name__}.{parameter}", None)
    return result


def scope() -> str:
    """Return the gin scope of the configurable that is being called; empty outside of any."""
    return gin.current_scope_str()


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """What is built inside is not noted as a value of the configuration: it follows from values that are."""
    global _recording
    before, _recording = _recording, False
    try:
        yield
    finally:
        _recording = before


def _checked(function: Callable, name: str, is_function: bool = False) -> Callable:
    """With its values checked and noted; those of a function only while a configuration is built: a run may call it."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        hints = typing.get_type_hints(function)
        bound = signature.bind(*args, **kwargs)
        for parameter, value in bound.arguments.items():
            if parameter in hints and not _fits(value, hints[parameter]):
                raise ConfigError(
                    f"{name}.{parameter} = {value!r} is not {_describe(hints[parameter])}; "
                    f"set in {_state.place(name, parameter) if _state else 'code'}"
                )
        if _state is not None and _recording and (_building or not is_function):
            bound.apply_defaults()
            scope = gin.current_scope_str()
            for parameter, value in bound.arguments.items():
                if parameter != "self":
                    _state.values[f"{scope}/" * bool(scope) + f"{name}.{parameter}"] = _written(value)
        return function(*args, **kwargs)

    @functools.wraps(function)
    def remember_errors(*args: Any, **kwargs: Any) -> Any:
        # gin re-raises a stand-in with its own remarks appended to the text; `build` raises the one kept here.
        try:
            return call(*args, **kwargs)
        except Error as error:
            if _state is not None and _state.error is None:
                _state.error = _with_place(error, name)
            raise

    return remember_errors


def _written(value: Any) -> str:
    """A value as a configuration file writes it; something built, as a call of its name."""
    if inspect.isclass(value) or inspect.isroutine(value):
        return f"@{value.__name__}"
    if is_dataclass(value):
        return f"@{type(value).__name__}()"
    if isinstance(value, dict):
        items = sorted(value.items(), key=lambda pair: repr(pair[0]))  # in which order they were written says nothing
        return "{" + ", ".join(f"{key!r}: {_written(item)}" for key, item in items) + "}"
    if isinstance(value, (tuple, list)):
        inside = ", ".join(_written(item) for item in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
    return repr(value)


def _with_place(error: Error, name: str) -> Error:
    """Add where a parameter that the message names was set."""
    text = str(error)
    if _state is not None and "; set in " not in text:
        for owner, parameter in _state.where:
            if owner == name and f"{name}.{parameter} " in f"{text} ":
                return ConfigError(f"{text}; set in {_state.place(name, parameter)}")
    return error


def _fits(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if hint is Any or isinstance(hint, (str, TypeVar)):
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if hint is None or hint is type(None):
        return value is None
    if origin in (tuple, list):
        inner = typing.get_args(hint) or (Any, ...)
        if origin is tuple and inner[-1] is not ...:  # each place has its own
            same_length = isinstance(value, (tuple, list)) and len(value) == len(inner)
            return same_length and all(_fits(item, each) for item, each in zip(value, inner, strict=True))
        return isinstance(value, (tuple, list)) and all(_fits(item, inner[0]) for item in value)
    if origin is dict:
        inner = typing.get_args(hint)[1:] or (Any,)
        return isinstance(value, dict) and all(_fits(item, inner[0]) for item in value.values())
    if origin is not None:  # Callable and the like
        return True
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if inspect.isclass(hint) and getattr(hint, "_is_protocol", False):
        return not isinstance(value, (str, int, float, bool, type(None)))
    return isinstance(value, hint) if inspect.isclass(hint) else True


def _describe(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(repr(choice) for choice in typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(_describe(option) for option in typing.get_args(hint))
    plain = {int: "a whole number", float: "a number", str: "a string", bool: "True or False", type(None): "None"}
    return plain.get(hint, f"a {getattr(hint, '__name__', hint)}")


def is_trusted() -> bool:
    """Whether the configuration being built was named by the user and may import and name anything."""
    return _state is None or _state.trusted


def refuse_foreign_code(what: str, value: Any) -> None:
    """ConfigError if a configuration that is not trusted names code, as an environment's "module:ID" does.

    Args:
      what: the parameter, for the message.
      value: its value; every text in lists and dicts counts.
    """
    if is_trusted():
        return
    if isinstance(value, str) and (":" in value or value.startswith("GymV2")):
        raise ConfigError(
            f"{what} = {value!r} names code outside packtrain, and this configuration belongs to a run folder, where "
            "somebody else may have put it; --trust-config allows it"
        )
    inner = [*value, *value.values()] if isinstance(value, dict) else value
    for part in inner if isinstance(inner, (list, tuple)) else ():
        refuse_foreign_code(what, part)


class _Names(config_parser.ParserDelegate):
    """Reads references as text: for finding out what a file says without resolving anything."""

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> str:
        return f"@{scoped_configurable_name}{'()' if evaluate else ''}"

    def macro(self, macro_name: str) -> str:
        return f"%{macro_name}"


def load(
    files: list[Path],
    bindings: list[str],
    knob_values: dict[str, Any],
    trust_config: bool = False,
    seed: int | None = None,
) -> Configuration:
    """Parse files, then `--config` bindings, then the seed and the knobs, into gin's global configuration.

    Args:
      files: read in order; what they include comes first.
      bindings: gin bindings that win over the files.
      knob_values: knob → value, given as flags; these win over everything.
      trust_config: whether files of run folders may import and name anything too; see `is_foreign`.
      seed: of what is built, given as a flag; None leaves it as it is configured.
    """
    global _state
    gin.clear_config()
    configuration = _state = Configuration(sources=[knobs.shown(file) for file in files], trust_config=trust_config)
    configuration.trusted = trust_config or not any(is_foreign(file) for file in files)
    with unrecorded():  # modules make values of their own, for defaults
        importlib.import_module("packtrain.runtime.runner")  # registers Experiment, Run, Environment, Runner, …
    known: dict[str, knobs.Knob] = {}
    for file in files:
        known.update(knobs.read_knobs(file))
        _parse_file(configuration, file)
    for binding in bindings:
        _parse_text(configuration, binding, f"--config {binding!r}", None)
    if seed is not None:  # a Runner hands it to the experiment it describes
        owner = "Study" if configuration.root == "Study" else "Experiment"
        _parse_text(configuration, f"{owner}.seed = {seed}", f"--seed {seed}", None)
    configuration.comments = {knob.name: knob.comment for knob in known.values()}
    for knob in known.values():
        if knob_values.get(knob.name, knob.default) is None:  # a value of None does not say its type
            configuration.comments[knob.name] = f"{knob.comment}; type: {knob.type.__name__}"
    for name, value in knob_values.items():
        gin.bind_parameter(f"{name}/gin.macro.value", value)
        configuration.where["", name] = f"--{name}"
    return configuration


def is_foreign(path: Path) -> bool:
    """Return whether a configuration belongs to a run folder, where somebody else may have put it.

    Every command decides by this function. A file belongs to a run folder if it is called config.gin, begins as
    packtrain writes that file, lies beside checkpoints of packtrain, or lies anywhere below a folder with config.gin
    or metrics.jsonl. Both the path as it was given and the file that its links lead to count.
    """
    for place in {Path(os.path.abspath(path)), path.resolve()}:
        if place.is_relative_to(knobs.CONFIGS):
            continue
        above = [folder / name for folder in place.parents for name in (CONFIG_FILE, METRICS_FILE)]
        if place.name == CONFIG_FILE or any(os.path.lexists(part) for part in above):
            return True
        if next(place.parent.glob("checkpoints/*/manifest.json"), None) is not None:
            return True
    return knobs.read_text(path).startswith(_HEADER)


def _parse_file(configuration: Configuration, path: Path) -> None:
    if configuration.trusted and not configuration.trust_config and is_foreign(path):  # a file that another includes
        configuration.trusted = False
    with configuration.includes.inside(path):
        _parse_text(configuration, knobs.read_text(path), knobs.shown(path), path)


def _parse_text(configuration: Configuration, text: str, label: str, path: Path | None) -> None:
    """Apply the statements of one text in order; every error names the text and the line."""
    line = 1
    try:
        # Names first, so that imports are refused before anything runs; then once more with references resolved.
        for statement in config_parser.ConfigParser(text, _Names()):
            line = statement.location.line_num
            if isinstance(statement, config_parser.ImportStatement):
                folder = path.resolve().parent if path else None
                _import(configuration, statement, f"{label}:{line}" if path else label, folder)
            elif isinstance(statement, config_parser.IncludeStatement):
                if path is None:
                    raise ConfigError(f"{label}: include belongs in a file")
                _parse_file(configuration, knobs.find_include(statement.filename, path, line))
            elif isinstance(statement, config_parser.BindingStatement):
                _note_place(configuration, statement, f"{label}:{line}" if path else label)
        for statement in config_parser.ConfigParser(text, gin.config.ParserDelegate()):
            line = statement.location.line_num
            if isinstance(statement, config_parser.BindingStatement):
                _bind(statement)
    except Error:
        raise
    except (SyntaxError, tokenize.TokenError) as error:
        line = getattr(error, "lineno", None) or line
        if isinstance(error, tokenize.TokenError):
            line = error.args[1][0]
        reason = str(error.args[0]).splitlines()[0].rstrip(".")
        raise ConfigError(f"{label}{f':{line}' * bool(path)}: syntax error: {reason}") from None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{label}{f':{line}' * bool(path)}: {_unknown(str(error))}") from None


def _import(configuration: Configuration, statement: Any, place: str, folder: Path | None) -> None:
    module, trusted = statement.module, configuration.trusted
    if not trusted and not (module.startswith("packtrain.") and not statement.is_from):
        raise ConfigError(
            f"{place} imports {module!r}, and this configuration belongs to a run folder, where somebody else may have "
            "put it; --trust-config allows it"
        )
    if module.startswith("__gin__"):
        raise ConfigError(f"{place}: gin's dynamic registration is not supported; import the module and name the class")
    if trusted and folder is not None and str(folder) not in sys.path:
        sys.path.append(str(folder))  # the user's modules may lie beside the user's file
    try:
        with unrecorded():
            importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{place} imports {module!r}, which failed: {error}; is its folder on the PYTHONPATH?"
        ) from error
    if module not in configuration.imports:
        configuration.imports.append(module)


def _note_place(configuration: Configuration, statement: Any, place: str) -> None:
    if not statement.arg_name:
        configuration.where["", statement.selector] = place
        return
    owner = statement.selector.rpartition(".")[2]
    configuration.where[owner, statement.arg_name] = place
    configuration.macros.pop((owner, statement.arg_name), None)
    macro = None
    if isinstance(statement.value, str) and statement.value.startswith("%"):
        macro = configuration.macros[owner, statement.arg_name] = statement.value[1:]
    if statement.scope:
        configuration.scoped[f"{statement.scope}/{owner}", statement.arg_name] = (place, macro)


def _bind(statement: Any) -> None:
    if statement.arg_name:
        gin.bind_parameter((statement.scope, statement.selector, statement.arg_name), statement.value)
    else:
        name = f"{statement.scope}/{statement.selector}" if statement.scope else statement.selector
        gin.bind_parameter((name, "gin.macro", "value"), statement.value)


def _unknown(message: str) -> str:
    """Gin's message on an unknown name, with the nearest spelling."""
    first = message.splitlines()[0]
    if "No configurable matching" in first:
        wrong = first.split("'")[1].strip("@()").rpartition(".")[2]
        return f"nothing is called {wrong!r}{knobs.nearest(wrong, list(_signatures))}"
    if "doesn't have a parameter named" in first:
        owner, parameter = (first.split("'")[index].rpartition(".")[2] for index in (1, -2))
        return f"{owner} has no parameter {parameter!r}{knobs.nearest(parameter, list(_signatures.get(owner, ())))}"
    return first


def build(configuration: Configuration) -> Any:
    """Call the configured `Experiment`, `Runner` or `Study`, and refuse bindings of the user's that nothing used.

    A shipped knob may go unused: a `--config` binding then took the place of the line that reads it.
    """
    global _state, _building
    _state, _building = configuration, True
    try:
        built = gin.get_configurable(f"packtrain.{configuration.root}")()
    except Error as error:
        raise configuration.error or error from None
    except (TypeError, ValueError) as error:
        text = str(error).splitlines()
        raise ConfigError(f"the configuration cannot be built: {text[0]}") from error
    finally:
        _building = False
    _refuse_unused(configuration)
    return built


def _refuse_unused(configuration: Configuration) -> None:
    scopes: dict[tuple[str, str], set[str]] = {}  # in which a parameter was used
    for name in _operative():
        scope, _, rest = name.rpartition("/")
        owner, _, parameter = rest.rpartition(".")
        scopes.setdefault((owner, parameter), set()).add(scope)
    given = {key: place for key, place in configuration.where.items() if not place.startswith(knobs.SHIPPED)}
    unused = {
        key: place for key, place in given.items() if not _is_used(configuration, key, place, scopes.get(key, set()))
    }
    if unused:
        (owner, parameter), place = next(iter(unused.items()))
        name = f"{owner}.{parameter}" if owner else parameter
        more = f" (and {len(unused) - 1} more)" if len(unused) > 1 else ""
        inside = [f"{scope}/{name}" for scope in sorted(scopes.get((owner, parameter), ())) if scope]
        instead = f"; there is {', '.join(inside)}" if inside else ""
        raise ConfigError(f"{name} is set but used by nothing in this configuration{more}{instead}; set in {place}")


def _is_used(configuration: Configuration, key: tuple[str, str], place: str, used: set[str]) -> bool:
    """Whether what was set there had an effect in one of the scopes that a parameter was used in.

    That is, in one it was set for, or, set for none, in one that sets nothing of its own.
    """
    own: dict[str, str] = {}  # scope → where it sets this
    for (name, of), (where, _) in configuration.scoped.items():
        scope, _, configurable = name.rpartition("/")
        if (configurable, of) == key:
            own[scope] = where
    inside = lambda scope, outer: scope == outer or scope.startswith(f"{outer}/")  # noqa: E731
    if place in own.values():
        return any(inside(scope, outer) for outer, where in own.items() if where == place for scope in used)
    return any(not any(inside(scope, outer) for outer in own) for scope in used)


@dataclass(frozen=True)
class Travelling:
    """A configuration on its way to another process: its text, and the digest the receiver must arrive at."""

    text: str
    digest: str

    @classmethod
    def pack(cls, text: str) -> Travelling:
        """Pack a configuration's text for a child process."""
        return cls(text, _digest(text))

    def check(self) -> None:
        """Called in the child: ConfigError if what arrived does not say what was sent."""
        if _digest(self.text) != self.digest:
            raise ConfigError(
                f"a child process received another configuration than was sent (digest {self.digest[:12]})"
            )


def _digest(text: str) -> str:
    """A digest of what a text binds, whatever its layout and comments."""
    bindings = [
        f"{s.scope}/{s.selector}.{s.arg_name}={s.value!r}"
        for s in config_parser.ConfigParser(text, _Names())
        if isinstance(s, config_parser.BindingStatement)
    ]
    return hashlib.sha256("\n".join(sorted(bindings)).encode()).hexdigest()
