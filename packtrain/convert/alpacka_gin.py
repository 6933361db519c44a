"""Translate gin files of Alpacka, Shoot Tree Search and trust-but-verify into packtrain's.

The file is parsed by gin's parser into names and literals; no module is imported and nothing is called. Names are
looked up in `alpacka_names.py`. A binding without a counterpart is left out, and the printed diff says so.
"""

from __future__ import annotations

import re
import tokenize
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from packtrain import config
from packtrain.convert import alpacka_names, gin_file
from packtrain.convert.gin_file import short
from packtrain.errors import ConfigError
from packtrain.files import read_text

MOST_BINDINGS = 2_000
TARGETS = {"value": "value", "quality": "quality", "qualities": "quality"}  # a single target → head of the network
OPTIMISERS = {"rmsprop": "rmsprop", "adam": "adam", "sgd": "sgd"}


class Reference(NamedTuple):
    """`@scope/module.Name` or `@Name()`."""

    name: str  # without scope and module
    scope: str


class Macro(NamedTuple):
    """`%name`."""

    name: str


class Binding(NamedTuple):
    """One line of the file of old."""

    scope: str
    owner: str  # without modules; empty: a macro
    parameter: str
    value: Any  # literals, References and Macros

    @property
    def name(self) -> str:
        """Return the name as it is written in a file."""
        inside = f"{self.owner}.{self.parameter}" if self.owner else self.parameter
        return f"{self.scope}/{inside}" if self.scope else inside


def _reference(scoped_name: str) -> Reference:
    scope, _, name = scoped_name.rpartition("/")
    return Reference(name.rpartition(".")[2], scope)


def read(path: Path) -> tuple[list[Binding], list[str]]:
    """Return the bindings of a file, and the modules that it would have imported; ConfigError if it is not gin."""
    try:
        text = read_text(path, "utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(f"{path} cannot be read: {reason}") from None
    found: list[Binding] = []
    modules: list[str] = []
    try:
        for statement in config.statements(text, _reference, Macro):
            if statement.kind == "include":
                raise ConfigError(f"{path} includes {short(statement.name)}; put its lines into one file first")
            if statement.kind == "import":
                modules.append(statement.name)
            else:
                owner = statement.name.rpartition(".")[2] if statement.parameter else ""
                parameter = statement.parameter or statement.name
                found.append(Binding(statement.scope, owner, parameter, statement.value))
            if len(found) > MOST_BINDINGS:
                raise ConfigError(f"{path} has more than {MOST_BINDINGS:,} bindings")
    except (SyntaxError, ValueError, TypeError, tokenize.TokenError, RecursionError, MemoryError) as error:
        is_deep = isinstance(error, (RecursionError, MemoryError))
        first = "it is nested too deeply" if is_deep else (str(next(iter(error.args), "")).splitlines() or [""])[0]
        raise ConfigError(f"{path} is not a gin file: {first:.200}") from None
    if not any(binding.owner == "Runner" for binding in found):
        raise ConfigError(f"{path} is not a configuration of Alpacka: it sets no parameter of Runner")
    return found, modules


@dataclass
class Translation:
    """Bindings of the new file, and the diff."""

    bindings: dict[str, str] = field(default_factory=dict)  # name → text
    origins: dict[str, str] = field(default_factory=dict)  # name → binding of old
    dropped: list[tuple[str, str]] = field(default_factory=list)  # (binding of old, reason)
    meanings: list[str] = field(default_factory=list)

    def text(self, name: str) -> str:
        """Return the file's text.

        Args:
          name: of the file of old.
        """
        title = "".join(letter for letter in name if letter.isprintable())
        lines = [f"# Planning, after {title} of Alpacka (packtrain convert)"]
        lines += [f"#   left out: {binding}: {reason}" for binding, reason in self.dropped]
        macros = [key for key in self.bindings if "." not in key]
        for key in [*macros, *sorted(set(self.bindings) - set(macros))]:
            lines.append(f"{key} = {self.bindings[key]}")
        return "\n".join(lines) + "\n"

    def diff(self) -> str:
        """Return what changed: renamed, left out, and other meanings."""
        lines = []
        for name, value in self.bindings.items():
            old = self.origins.get(name, "")
            if old != f"{name} = {value}":
                lines.append(f"  {old or '(not in the file)'}  →  {name} = {value}")
        kept = len(self.bindings) - len(lines)
        lines += [f"  {old}  →  left out: {reason}" for old, reason in self.dropped]
        head = f"{kept} bindings as they were; {len(lines)} changed:"
        return "\n".join([head, *lines, "What means something else:", *[f"  {line}" for line in self.meanings]])


def translate(found: list[Binding], modules: list[str], env: str | None) -> Translation:
    """Return the translation of a file.

    Args:
      found: from `read`.
      modules: that the file imports.
      env: replaces the environment; None: as in the file.
    """
    result = Translation()
    planner = next((item.value for item in found if (item.owner, item.parameter) == ("Runner", "agent_class")), None)
    for module in modules:
        if not module.startswith("alpacka"):
            result.dropped.append((f"import {module}", "nothing is imported; name a module of yours in the new file"))
    for binding in found:
        _translate_one(result, binding, _class(planner.name) if isinstance(planner, Reference) else "")
    if env is not None:
        for name in [name for name in result.bindings if name == "Runner.env_class"]:
            del result.bindings[name]
        result.bindings |= {"Runner.env_class": "@Environment", "Environment.id": repr(env)}
    if "Runner.model_class" in result.bindings:
        _complete_model(result)
    for name, meaning in alpacka_names.MEANINGS:
        always = not name and result.bindings.get("Runner.trainer_class", "@DummyTrainer") != "@DummyTrainer"
        if always or (name and name in result.bindings):
            result.meanings.append(f"{name}: {meaning}" if name else meaning)
    return result


def _translate_one(result: Translation, old: Binding, planner: str) -> None:
    """Add one binding, or the reason why it is left out.

    Args:
      result: receives it.
      old: the binding.
      planner: the configured agent, which has the parameters that belonged to value traits and accumulators.
    """
    shown = f"{old.name} = {_shown(old.value)}"
    if not old.owner:
        result.bindings[old.parameter] = _literal(old.value)
        result.origins[old.parameter] = shown
        return
    owner, parameter, scope = _ours(old)
    if old.owner.startswith(alpacka_names.OF_PLANNERS) and parameter in config._signatures.get(planner, {}):
        owner = planner
    if (owner, parameter) in alpacka_names.GONE:
        result.dropped.append((shown, alpacka_names.GONE[owner, parameter]))
        return
    if parameter not in config._signatures.get(owner, {}):
        known = owner in config._signatures
        result.dropped.append((shown, f"{owner} has no such parameter here" if known else f"there is no {owner} here"))
        return
    text = _value(owner, parameter, old.value)
    if text is None:
        result.dropped.append((shown, "its value has no counterpart"))
        return
    name = f"{scope}/{owner}.{parameter}" if scope else f"{owner}.{parameter}"
    result.bindings[name], result.origins[name] = text, shown


def _ours(old: Binding) -> tuple[str, str, str]:
    """Return our owner, parameter and scope of a binding."""
    scope = "" if old.scope in ("agent", "model") else old.scope
    inner = "model/" if old.scope == "model" else ""
    owner, parameter = _class(old.owner), old.parameter
    if old.owner.lower() in OPTIMISERS and parameter in ("learning_rate", "lr"):
        return ("WorldModelLearning" if inner else "ExpertIteration"), "learning_rate", scope
    if f"{inner}{owner}" in alpacka_names.MODEL_TRAINERS:
        return "WorldModelTrainer", parameter, scope
    if "ModelEnv" in old.owner or old.owner.startswith("Trainable"):
        renamed = {"ensemble_size": "members", "n_networks": "members", "ensemble_mask_size": "mask_size"}
        if parameter in renamed:
            return "LearnedModel", renamed[parameter], scope
    for key in ((f"{inner}{old.owner}", parameter), (f"{inner}{owner}", parameter), (owner, parameter)):
        if key in alpacka_names.PARAMETERS:
            return *alpacka_names.PARAMETERS[key], scope
    return owner, parameter, scope


def _class(name: str) -> str:
    """Return our name of a configurable."""
    renamed = alpacka_names.OWNERS.get(name, name)
    for prefix in ("Trainable", "ActionNoise"):
        if renamed.startswith(prefix) and renamed.removeprefix(prefix) in config._signatures:
            renamed = renamed.removeprefix(prefix)
    return renamed


def _value(owner: str, parameter: str, value: Any) -> str | None:
    """Return the text of a value; None if it names something that does not exist here."""
    table = alpacka_names.VALUES.get((owner, parameter))
    if isinstance(value, Reference) and table is not None:
        found = table.get(value.name, table.get("*"))
        if found is not None:
            return found or None
    if (owner, parameter) == ("SupervisedTrainer", "targets"):
        return _targets(value)
    if (owner, parameter) == ("ExpertIteration", "losses"):
        return None  # each head has the loss that belongs to it
    if parameter == "optimiser":
        name = (value.name if isinstance(value, Reference) else str(value)).lower()
        return repr(OPTIMISERS[name]) if name in OPTIMISERS else None
    if parameter == "callback_classes":
        return _callbacks(value)
    if isinstance(value, Reference):
        return _named(owner, parameter, value)
    return _literal(value)


def _named(owner: str, parameter: str, value: Reference) -> str | None:
    """Return a reference to a class, or the text that names a function."""
    annotation = str(config._signatures[owner][parameter].annotation)
    name = _class(value.name)
    if name in config._signatures:
        scope = f"{value.scope}/" if value.scope not in ("", "agent", "model") else ""
        called = "()" if (owner, parameter) in alpacka_names.CALLED else ""
        return f"@{scope}{name}{called}"
    is_class = parameter.endswith("_class") or "Callable" in annotation
    return None if is_class else repr(alpacka_names.FUNCTIONS.get(value.name, value.name))


def _callbacks(value: Any) -> str | None:
    known = [item for item in _items(value) if isinstance(item, Reference) and item.name in config._signatures]
    if not known:
        return None
    texts = [f"@{item.scope}/{item.name}" if item.scope else f"@{item.name}" for item in known]
    return f"({', '.join(texts)},)"


def _items(value: Any) -> list[Any]:
    """Return the items of a list or tuple; of anything else, a list with it."""
    is_many = isinstance(value, (list, tuple)) and not isinstance(value, (Reference, Macro))
    return list(value) if is_many else [value]


def _targets(value: Any) -> str | None:
    """Return {head: target}: one target, or those of (value, policy)."""
    items = _items(value)
    names = [item.name.removeprefix("target_") for item in items if isinstance(item, Reference)]
    if len(names) != len(items) or not 1 <= len(names) <= 2 or any("model" in name for name in names):
        return None
    heads = dict(zip((TARGETS.get(names[0], "value"), "logits"), names, strict=False))
    return repr(heads)


def _literal(value: Any) -> str:
    """Return a literal's text; macros stay, references lose their modules."""
    if isinstance(value, Macro):
        owner, _, name = value.name.rpartition(".")
        return repr(name.lower()) if owner else f"%{value.name}"  # %ToyMRMaps.FULL_MAP: a constant
    if isinstance(value, Reference):
        return f"@{_class(value.name)}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        items = ", ".join(_literal(item) for item in value)
        return f"[{items}]" if isinstance(value, list) else f"({items},)" if len(value) == 1 else f"({items})"
    return repr(value)


def _shown(value: Any) -> str:
    text = f"@{value.name}" if isinstance(value, Reference) else _literal(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _complete_model(result: Translation) -> None:
    """Add the bindings of a learned model that one class had there and several have here."""
    rate = result.bindings.get("ExpertIteration.learning_rate")
    origin = result.origins.get("ExpertIteration.learning_rate", "").partition(".")[0]
    if rate is not None and "/" not in origin:  # one optimiser for both networks
        result.bindings.setdefault("WorldModelLearning.learning_rate", rate)
    members = result.bindings.get("EnsembleMlp.members") or result.bindings.get("LearnedModel.members")
    added = {"WorldModel.ensemble": "@EnsembleMlp()", "Runner.model_network_class": "@WorldModel"}
    added["Runner.model_trainer_class"] = "@WorldModelTrainer"
    if members is not None:
        owners = ("EnsembleMlp", "LearnedModel", "WorldModelTrainer")
        added |= {f"{owner}.members": members for owner in owners}
    result.bindings |= added


def check(path: Path, result: Translation) -> None:
    """Build the translation; bindings that nothing uses are left out, as a build would refuse them.

    Raises:
      ConfigError: it cannot be built for another reason.
    """
    for _ in range(MOST_BINDINGS):
        try:
            gin_file.check_builds(path, [], result.bindings, {})
        except ConfigError as error:
            unused = re.search(r"cannot be converted: (\S+) is set but not used", str(error))
            names = [name for name in result.bindings if unused and name.rpartition("/")[2] == unused[1]]
            if not names:
                raise
            for name in names:
                value = result.bindings.pop(name)
                shown = result.origins.get(name, f"{name} = {value}")
                result.dropped.append((shown, "nothing in this configuration uses it"))
        else:
            return


def convert(path: Path, out: Path, env: str | None) -> str:
    """Write the translation of a file; return the diff and the command that trains with it."""
    gin_file.check_target(out, env)
    config.load([], [], {})  # registers everything that a Runner may name
    found, modules = read(path)
    result = translate(found, modules, env)
    if "Runner.env_class" not in result.bindings:
        lost = next((value for value in result.dropped if value[0].startswith("Runner.env_class")), None)
        if lost is not None:
            raise ConfigError(f"{path}: {lost[0]}: there is no such environment here; name another with --env")
    check(path, result)
    gin_file.write(out, result.text(path.name))
    return f"{result.diff()}\n{out}: train with `packtrain train {out} --output_dir runs/{out.stem}`"
