"""Read configurations of the original STEVE project (JSON).

A file names others that it inherits, merged in order, and its own updates, merged last. A group written "*name" is a
ghost: an inheriting file takes it only if it already has `name`. Missing keys are False. Unknown keys are rejected
here; the original ignored them. Nothing in a file is executed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from packtrain import knobs
from packtrain.convert.gin_file import short
from packtrain.errors import ConfigError
from packtrain.files import read_text

WHOLE, NUMBER, FLAG, TEXT, ANYTHING = "a whole number", "a number", "true or false", "a text", "anything"

_ENSEMBLE = dict.fromkeys(("ensemble_size", "train_sample_count", "eval_sample_count"), WHOLE)
_EXPANSION = {
    "rollout_len": WHOLE,
    "lambda_return": NUMBER,
    **dict.fromkeys(("tdk_trick", "mean_k_return", "steve_reweight", "covariances"), FLAG),
}
_LEARNER = {
    **dict.fromkeys(("batch_size", "replay_size", "frames_before_learning", "pretrain_n"), WHOLE),
    **dict.fromkeys(("log_every_n", "epoch_every_n", "backup_every_n"), WHOLE),
    "frames_per_update": NUMBER,
    "keep_all_replay_buffers": FLAG,
}
_WORKERS = dict.fromkeys(("count", "batch_size", "reload_every_n", "full_random_n"), WHOLE)
KEYS: dict[str, Any] = {
    **dict.fromkeys(("output_root", "save_model_path", "log_path"), TEXT),
    "keep_all_replay_buffers": FLAG,
    "env": {
        "name": TEXT,
        **dict.fromkeys(("obs_dims", "action_dim"), ANYTHING),
        **dict.fromkeys(("reward_scale", "discount"), NUMBER),
        "max_frames": WHOLE,
    },
    "agent_config": _WORKERS,
    "evaluator_config": _WORKERS,
    "policy_config": {
        **_LEARNER,
        "algo": ANYTHING,
        "hidden_dim": WHOLE,
        **dict.fromkeys(("explore_chance", "ddpg_explore_chance"), NUMBER),
        "bayesian": _ENSEMBLE,
        "value_expansion": _EXPANSION,
    },
    "model_config": {
        **_LEARNER,
        **dict.fromkeys(("transition_hidden_dim", "aux_hidden_dim"), WHOLE),
        "bayesian": {"transition": _ENSEMBLE, "reward": _ENSEMBLE},
    },
    "value_expansion": _EXPANSION,  # in files that have it outside of policy_config
}
"""Schema of a merged configuration: a group of keys, or the allowed values."""


class Group(dict[str, Any]):
    """A group of settings; a ghost is one that was written "*name"."""

    def __init__(self, ghost: bool = False):
        super().__init__()
        self.ghost = ghost

    def find(self, place: str) -> Any:
        """Return the value of "group.key"; False if it is missing."""
        found: Any = self
        for name in place.split("."):
            found = found.get(name, False) if isinstance(found, Group) else False
        return found


def read(path: Path) -> tuple[Group, list[str]]:
    """Return a configuration with everything it inherits, and remarks on errors that were repaired."""
    remarks: list[str] = []
    if not _is_file(path):
        raise ConfigError(f"{path} does not exist or is not a file")
    try:
        return _resolve(path, (), {}, remarks), remarks
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply to be a configuration") from None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # an invalid file name
        return False


def _resolve(path: Path, above: tuple[Path, ...], done: dict[Path, Group], remarks: list[str]) -> Group:
    """Return one file with its inherited settings; a file that is inherited twice is read once."""
    real = path.resolve()
    if real in above:
        chain = " → ".join(file.name for file in [*above[above.index(real) :], real])
        raise ConfigError(f"{path} inherits itself: {chain}")
    if real in done:
        return done[real]
    inherits, updates = _load(path)
    merged = Group()
    for name in inherits:
        found = _find(name, path, remarks)
        _merge(merged, _resolve(found, (*above, real), done, remarks), own=False)
    _merge(merged, updates, own=True)
    done[real] = merged
    return merged


def _load(path: Path) -> tuple[list[str], Group]:
    """Return the inherited files and the updates of one file, with keys and values checked."""
    text = ""
    try:
        text = read_text(path)
        content = json.loads(text, parse_constant=_refuse_constant)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        if text.startswith("ROOT GPU"):
            raise ConfigError(
                f"{path} is a run's record of its settings, which is not JSON; convert the file that the run was "
                "started with"
            ) from None
        raise ConfigError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a STEVE configuration: it must be an object with 'inherits' and 'updates'")
    for key in content:
        if key not in ("inherits", "updates"):
            near = knobs.nearest(key, ["inherits", "updates"])
            raise ConfigError(f"{path}: unknown key {short(key)}{near}; the keys are 'inherits' and 'updates'")
    inherits, updates = content.get("inherits", False), content.get("updates", False)
    inherits = [] if inherits is False else inherits
    updates = {} if updates is False else updates
    if not isinstance(inherits, list) or not all(isinstance(name, str) for name in inherits):
        raise ConfigError(f"{path}: inherits = {short(inherits)} must be a list of paths")
    if not isinstance(updates, dict):
        raise ConfigError(f"{path}: updates = {short(updates)} must be an object")
    return inherits, _checked(updates, KEYS, path, "")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _find(name: str, inheriting: Path, remarks: list[str]) -> Path:
    """Return the file of an entry of `inherits`: from the current folder, or from one above the inheriting file."""
    for ending in ("", ".json"):
        for folder in [Path(), *inheriting.resolve().parents]:
            found = folder / f"{name}{ending}"
            if not _is_file(found):
                continue
            if ending:
                remarks.append(
                    f"{inheriting.name} inherits {short(name)} without .json, and could not load there; read with it"
                )
            return found
    raise ConfigError(
        f"{inheriting} inherits {short(name)}, which is neither below the current folder nor below one above the file"
    )


def _checked(given: dict[str, Any], known: dict[str, Any], path: Path, place: str) -> Group:
    """Return one level of `updates`; ConfigError with the first invalid key or value."""
    group = Group()
    for key, value in given.items():
        name = key.removeprefix("*")
        is_ghost = name != key
        if name not in known:
            raise ConfigError(f"{path}: unknown key {short(place + name)}{knobs.nearest(name, list(known))}")
        if isinstance(value, dict) and isinstance(known[name], dict):
            inner = _checked(value, known[name], path, f"{place}{name}.")
            inner.ghost = is_ghost
            _merge(group, {name: inner}, own=True)
        elif is_ghost or (isinstance(known[name], dict) and value is not False):
            raise ConfigError(f"{path}: {place}{key} = {short(value)} must be an object")
        else:
            group[name] = False if value is False else _value(value, known[name], path, place + name)
    return group


def _value(value: Any, kind: str, path: Path, place: str) -> Any:
    """Return a value of its kind; whole numbers as int."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15
    fits = {
        WHOLE: is_number and value == int(value),
        NUMBER: is_number,
        FLAG: isinstance(value, bool),
        TEXT: isinstance(value, str),
        ANYTHING: True,
    }
    if not fits[kind]:
        also = "" if kind == FLAG else ", or false"
        raise ConfigError(f"{path}: {place} = {short(value)} must be {kind}{also}")
    return int(value) if kind == WHOLE else value


def _merge(receiver: Group, given: dict[str, Any], own: bool) -> None:
    """Merge settings into others, key by key; inherited ghosts only if their name is present."""
    for key, value in given.items():
        if not isinstance(value, Group):
            receiver[key] = value
            continue
        there = receiver.get(key)
        if not isinstance(there, Group):
            if value.ghost and not own:
                continue
            there = receiver[key] = Group(value.ghost)
        there.ghost &= value.ghost
        _merge(there, value, own)
