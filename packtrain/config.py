"""Load and build configurations. The only module that imports gin.

gin checks neither types nor use of values, has one global state, and executes what a file imports. This module checks
every value against the annotation of its parameter (value_types.py) and reports the line that set it, rejects bindings
that were not used in building (unused_bindings.py), and limits the imports of files that the user did not name to this
package (foreign_configs.py). run_identity.py has the values that must not change when a run is resumed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import re
import sys
import threading
import tokenize
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import gin
from gin import config_parser

from packtrain import knobs, old_names, run_identity, unused_bindings, value_types
from packtrain.errors import ConfigError, Error
from packtrain.foreign_configs import HEADER, is_foreign

T = TypeVar("T", bound=Callable)
_lock = threading.RLock()  # held by programs with several threads while a configuration is loaded and built

_signatures: dict[str, dict[str, inspect.Parameter]] = {}  # configurable → its parameters
_recording = True
_building = False  # whether `build` is running
_state: Configuration | None = None  # the one being built, in which configurables record their values


@dataclass
class Configuration:
    """One parsed configuration: the source of each binding, and the values built from it."""

    sources: list[str] = field(default_factory=list)  # names of files as the user gave them
    imports: list[str] = field(default_factory=list)
    where: dict[tuple[str, str], str] = field(default_factory=dict)  # (configurable or "", parameter or knob) → place
    macros: dict[tuple[str, str], str] = field(default_factory=dict)  # (configurable, parameter) → the knob it reads
    scoped: dict[tuple[str, str], tuple[str, str | None]] = field(default_factory=dict)
    """("scope/configurable", parameter) → the place, and the knob it reads."""
    comments: dict[str, str] = field(default_factory=dict)  # knob → its comment
    values: dict[str, str] = field(default_factory=dict)  # "Impala.entropy_cost" → repr, of everything built
    trusted: bool = True  # False if a file belongs to a run folder and `trust_config` is not set
    includes: knobs.Includes = field(default_factory=knobs.Includes)  # files being read
    trust_config: bool = False  # the user trusts files of run folders, too
    error: Error | None = None  # the first error while building
    operative: dict[str, str] | None = None  # values that were used, by name; None before it is built

    @property
    def root(self) -> str:
        """Return the configurable to build: `Study` or `Runner` if a line sets a parameter of it, else `Experiment`."""
        owners = {owner for owner, _ in self.where}
        return next((name for name in ("Study", "Runner") if name in owners), "Experiment")

    def place(self, configurable: str, parameter: str) -> str:
        """Return where a parameter's value was set, in the current scope, for messages."""
        key = (configurable, parameter)
        anywhere = (self.where.get(key, "its default"), self.macros.get(key))
        place, macro = self.scoped.get((f"{gin.current_scope_str()}/{configurable}", parameter), anywhere)
        if macro is None or ("", macro) not in self.where:
            return place
        knob = self.where["", macro]
        return knob if knob == f"--{macro}" else f"{knob} as {macro}"

    def identity(self) -> dict[str, str]:
        """Return the built values that identify this run; values that may change on resume are left out."""
        return run_identity.lasting(dict(sorted(self.values.items())))

    def difference(self, before: dict[str, str]) -> list[str]:
        """Return one line for each value that differs from an earlier identity; see `run_identity.difference`."""
        after = self.identity()
        given = {f"{owner}.{parameter}" for owner, parameter in self.where}
        return run_identity.difference(before, after, lambda name: name in given and not _is_default(name, after[name]))

    def hash(self) -> str:
        """Return a digest of `identity`."""
        return run_identity.digest(self.identity())

    def names_code(self) -> bool:
        """Return whether it imports modules outside packtrain, or names code as an environment's "module:ID" does."""
        if any(not module.startswith("packtrain.") for module in self.imports):
            return True
        texts = [text for name, text in self.values.items() if name.rpartition("/")[2].startswith("Environment.")]
        return any(":" in text or "GymV2" in text for text in texts)

    def text(self) -> str:
        """Return the operative configuration as a gin file that repeats the run: knobs, bindings, and every default."""
        bound = _operative()
        lines = [f"{HEADER} {' '.join(self.sources)}"]
        lines += [f"import {module}" for module in self.imports] + [""]
        for name in [*[n for n in self.comments if n in bound], *[n for n in bound if "." not in n]]:
            if name in bound:
                comment = self.comments.get(name, "")
                lines.append(f"{name} = {bound.pop(name)}" + f"  # {comment}" * bool(comment))
        defaults = {
            name: text for name, text in self.values.items() if name not in bound and value_types.is_literal(text)
        }
        owner = ""
        for name in sorted({*bound, *defaults}):
            if name.rpartition(".")[0] != owner:
                owner = name.rpartition(".")[0]
                lines.append("")
            lines.append(f"{name} = {bound.get(name) or defaults[name]}")
        return "\n".join(lines) + "\n"


def _operative() -> dict[str, str]:
    """Return the parameters that gin reports as used: "entropy_cost" or "Impala.entropy_cost" → text of the value."""
    lines = gin.operative_config_str(max_line_length=10_000).splitlines()
    parts = [line.partition(" = ") for line in lines if " = " in line and not line.startswith("#")]
    return {name: value for name, _, value in parts}


def _is_default(name: str, text: str) -> bool:
    """Return whether a parameter, such as "Impala.entropy_cost", has its default value."""
    owner, _, parameter = name.rpartition(".")
    known = _signatures.get(owner, {}).get(parameter)
    return known is not None and known.default is not known.empty and value_types.written(known.default) == text


def configurable(target: T, module: str | None = None) -> T:
    """Register a class or function with gin under its own name, with values checked against its annotations.

    Args:
      target: the class or function.
      module: optional prefix of the name in configurations; "packtrain.agents" for planners, as in Alpacka, otherwise
        "packtrain".
    """
    name = target.__name__
    module = module or ("packtrain.agents" if target.__module__.startswith("packtrain.planning") else "packtrain")
    _signatures[name] = dict(inspect.signature(target).parameters)
    if inspect.isclass(target):
        hints = target if is_dataclass(target) else None
        setattr(target, "__init__", _checked(target.__init__, name, hints=hints))  # noqa: B010  (mypy)
        return typing.cast(T, gin.configurable(name, module=module)(target))
    return typing.cast(T, gin.configurable(name, module=module)(_checked(target, name, is_function=True)))


def bind(target: Callable, **given: Any) -> Any:
    """Call a configurable with some parameters given by code, which are not recorded as configured."""
    result = target(**given)
    if _state is not None:
        for parameter in given:
            _state.values.pop(f"{target.__name__}.{parameter}", None)
    return result


def scope() -> str:
    """Return the gin scope of the configurable that is being called; empty outside of any."""
    return gin.current_scope_str()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Context in which one thread may load and build a configuration; gin's global state is restored afterwards."""
    global _state
    with _lock:
        before, _state = _state, None
        gin.clear_config()
        try:
            yield
        finally:
            _state = before
            gin.clear_config()


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """Context in which built objects are not recorded as configured values: they follow from recorded ones."""
    global _recording
    before, _recording = _recording, False
    try:
        yield
    finally:
        _recording = before


def _checked(function: Callable, name: str, is_function: bool = False, hints: type | None = None) -> Callable:
    """Return a function that checks its arguments against annotations and records them as configured values.

    Args:
      function: the function to wrap.
      name: of the configurable.
      is_function: record values only while a configuration is built, since a run may call it too.
      hints: the class whose annotations apply, including those of its bases; None: the function's own.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        types_of = typing.get_type_hints(hints or function)
        bound = signature.bind(*args, **kwargs)
        for parameter, value in bound.arguments.items():
            if parameter in types_of and not value_types.fits(value, types_of[parameter]):
                raise ConfigError(
                    f"{name}.{parameter} = {value!r} is not {value_types.describe(types_of[parameter])}; "
                    f"set in {_state.place(name, parameter) if _state else 'code'}"
                )
        if _state is not None and _recording and (_building or not is_function):
            bound.apply_defaults()
            scope = gin.current_scope_str()
            for parameter, value in bound.arguments.items():
                if parameter != "self":
                    _state.values[f"{scope}/" * bool(scope) + f"{name}.{parameter}"] = value_types.written(value)
        return function(*args, **kwargs)

    @functools.wraps(function)
    def remember_errors(*args: Any, **kwargs: Any) -> Any:
        # gin re-raises a copy with its own remarks appended to the text; `build` raises the original kept here.
        try:
            return call(*args, **kwargs)
        except Error as error:
            if _state is not None and _state.error is None:
                _state.error = _with_place(error, name)
            raise

    return remember_errors


def _with_place(error: Error, name: str) -> Error:
    """Add to an error where the parameter in its message was set."""
    text = str(error)
    if _state is not None and "; set in " not in text:
        for owner, parameter in _state.where:
            if owner == name and f"{name}.{parameter} " in f"{text} ":
                return ConfigError(f"{text}; set in {_state.place(name, parameter)}")
    return error


def is_trusted() -> bool:
    """Return whether the configuration being built was named by the user and may import anything."""
    return _state is None or _state.trusted


def refuse_foreign_code(what: str, value: Any) -> None:
    """Raise a ConfigError if an untrusted configuration names code, as an environment's "module:ID" does.

    Args:
      what: the parameter, for the message.
      value: its value; every text in lists and dicts counts.
    """
    if is_trusted():
        return
    if isinstance(value, str) and (":" in value or value.startswith("GymV2")):
        raise ConfigError(
            f"{what} = {value!r} names code outside packtrain, but this configuration belongs to a run folder, whose "
            "content may be untrusted; --trust-config allows it"
        )
    inner = [*value, *value.values()] if isinstance(value, dict) else value
    for part in inner if isinstance(inner, (list, tuple)) else ():
        refuse_foreign_code(what, part)


class _Names(config_parser.ParserDelegate):
    """Reads references as text: for parsing a file without resolving anything."""

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> str:
        return f"@{scoped_configurable_name}{'()' if evaluate else ''}"

    def macro(self, macro_name: str) -> str:
        return f"%{macro_name}"


class Statement(typing.NamedTuple):
    """A line of a gin file that was only parsed."""

    kind: typing.Literal["binding", "import", "include"]
    name: str  # the configurable or macro, the module, or the file
    scope: str = ""
    parameter: str = ""  # empty: a macro
    value: Any = None


def statements(text: str, reference: Callable[[str], Any], macro: Callable[[str], Any]) -> Iterator[Statement]:
    """Yield the lines of a gin file as names and literals; nothing is imported, looked up or called.

    Args:
      text: of the file.
      reference: "scope/module.Name" → what stands for `@scope/module.Name` in values.
      macro: "name" → what stands for `%name`.

    Raises:
      SyntaxError, ValueError, tokenize.TokenError: it is not a gin file.
    """

    class Names(config_parser.ParserDelegate):
        def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Any:
            return reference(scoped_configurable_name)

        def macro(self, macro_name: str) -> Any:
            return macro(macro_name)

    for one in config_parser.ConfigParser(text, Names()):
        if isinstance(one, config_parser.IncludeStatement):
            yield Statement("include", one.filename)
        elif isinstance(one, config_parser.ImportStatement):
            yield Statement("import", one.module)
        elif isinstance(one, config_parser.BindingStatement):
            yield Statement("binding", one.selector, one.scope, one.arg_name, one.value)


def load(
    files: list[Path],
    bindings: list[str],
    knob_values: dict[str, Any],
    trust_config: bool = False,
    seed: int | None = None,
) -> Configuration:
    """Parse files, then `--config` bindings, then the seed and the knobs, into gin's global configuration.

    Args:
      files: read in order; files that they include come first.
      bindings: gin bindings that override the files.
      knob_values: knob → value, given as flags; these override everything.
      trust_config: whether files of run folders may import anything too; see `is_foreign`.
      seed: given as a flag; None: as configured.
    """
    global _state
    gin.clear_config()
    configuration = _state = Configuration(sources=[knobs.shown(file) for file in files], trust_config=trust_config)
    configuration.trusted = trust_config or not any(is_foreign(file) for file in files)
    with unrecorded():  # modules create objects for default values
        importlib.import_module("packtrain.configurables")  # Experiment, Run, Environment, Runner, …
    known: dict[str, knobs.Knob] = {}
    for file in files:
        known.update(knobs.read_knobs(file))
        _parse_file(configuration, file)
    for binding in bindings:
        _parse_text(configuration, binding, f"--config {binding!r}", None)
    if seed is not None:  # a Runner passes it to its experiment
        owner = "Study" if configuration.root == "Study" else "Experiment"
        _parse_text(configuration, f"{owner}.seed = {seed}", f"--seed {seed}", None)
    configuration.comments = {knob.name: knob.comment for knob in known.values()}
    for knob in known.values():
        if knob_values.get(knob.name, knob.default) is None:  # None does not show the knob's type
            configuration.comments[knob.name] = f"{knob.comment}; type: {knob.type.__name__}"
    for name, value in knob_values.items():
        gin.bind_parameter(f"{name}/gin.macro.value", value)
        configuration.where["", name] = f"--{name}"
    return configuration


def import_again(modules: Iterable[str]) -> None:
    """Import in another process the modules that a configuration imported; they may register environments."""
    with unrecorded():
        for module in modules:
            importlib.import_module(module)


def bound_name(parameter: str) -> str:
    """Return the configurable, such as `RayBatchStepper`, that a parameter of the loaded files refers to; or ""."""
    try:
        value = gin.query_parameter(parameter)
    except ValueError:
        return ""
    return str(getattr(value, "selector", "")).rpartition(".")[2]


def _parse_file(configuration: Configuration, path: Path) -> None:
    if configuration.trusted and not configuration.trust_config and is_foreign(path):  # a file included by another
        configuration.trusted = False
    with configuration.includes.inside(path):
        _parse_text(configuration, knobs.read_text(path), knobs.shown(path), path)


def _parse_text(configuration: Configuration, text: str, label: str, path: Path | None) -> None:
    """Apply the statements of one text in order; every error names the text and the line."""
    line = 1
    try:
        # Names first, so that imports are rejected before anything runs; then again with references resolved.
        for statement in config_parser.ConfigParser(text, _Names()):
            line = statement.location.line_num
            if isinstance(statement, config_parser.ImportStatement):
                folder = path.resolve().parent if path else None
                _import(configuration, statement, f"{label}:{line}" if path else label, folder)
            elif isinstance(statement, config_parser.IncludeStatement):
                if path is None:
                    raise ConfigError(f"{label}: include is allowed in files only")
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
        if path is None and re.fullmatch(r"[\w./@]+", text.strip()):
            example = f"'{text.strip()} = 0.5'"
            raise ConfigError(f"{label} has no value; a binding is NAME = VALUE, such as {example}") from None
        raise ConfigError(f"{label}{f':{line}' * bool(path)}: syntax error: {reason}") from None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{label}{f':{line}' * bool(path)}: {_unknown(str(error))}") from None


def _import(configuration: Configuration, statement: Any, place: str, folder: Path | None) -> None:
    module, trusted = old_names.MODULES.get(statement.module, statement.module), configuration.trusted
    if not trusted and not (module.startswith("packtrain.") and not statement.is_from):
        raise ConfigError(
            f"{place} imports {module!r}, but this configuration belongs to a run folder, whose content may be "
            "untrusted; --trust-config allows it"
        )
    if module.startswith("__gin__"):
        raise ConfigError(f"{place}: gin's dynamic registration is not supported; import the module and name the class")
    if trusted and folder is not None and str(folder) not in sys.path:
        sys.path.append(str(folder))  # the user's modules may be in the folder of the user's file
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
    """Return gin's message on an unknown name, with the nearest spelling."""
    first = message.splitlines()[0]
    if "No configurable matching" in first:
        wrong = first.split("'")[1].strip("@()").rpartition(".")[2]
        return f"nothing is called {wrong!r}{knobs.nearest(wrong, list(_signatures))}"
    if "doesn't have a parameter named" in first:
        owner, parameter = (first.split("'")[index].rpartition(".")[2] for index in (1, -2))
        return f"{owner} has no parameter {parameter!r}{knobs.nearest(parameter, list(_signatures.get(owner, ())))}"
    return first


def build(configuration: Configuration) -> Any:
    """Build the configured `Experiment`, `Runner` or `Study`, and reject bindings of the user that were not used.

    A shipped knob may be unused if a `--config` binding replaced the line that reads it.
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
    configuration.operative = _operative()
    unused_bindings.refuse(configuration, configuration.operative)
    return built
