"""Check, build and write the .gin file of a converted configuration."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from packtrain import config
from packtrain.errors import ConfigError
from packtrain.files import write_whole


def short(value: Any) -> str:
    """Return a value's text for error messages, at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def checked_environment(name: str, source: str) -> str:
    """Return the environment's name from a foreign file; ConfigError if it may name a module.

    A module named by a file would be imported when the run begins.

    Args:
      name: as in the file.
      source: the file's name in messages.
    """
    if not re.fullmatch(r"[\w./-]+", name, re.ASCII):
        raise ConfigError(f"{source}: env.name = {short(name)} is not the name of an environment; set it with --env")
    return name


def check_target(out: Path, env: str | None) -> None:
    """Raise a ConfigError unless `out` is a new .gin file and the user's `env` can be an environment's name."""
    if out.suffix != ".gin":
        raise ConfigError(f"{out} must end in .gin; choose another --out")
    if os.path.lexists(out):
        raise ConfigError(f"{out} already exists; choose another --out")
    if env is not None and not re.fullmatch(r"[\w./:-]+", env, re.ASCII):
        raise ConfigError(f"--env {short(env)} is not the name of an environment")


def check_builds(path: Path, files: list[Path], bindings: dict[str, str], values: dict[str, Any]) -> None:
    """Raise a ConfigError with the foreign file's name if its translation cannot be built."""
    lines = [f"{name} = {value}" for name, value in bindings.items()]
    try:
        config.build(config.load(files, lines, values))
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be converted: {str(error).partition('; set in')[0]}") from None


def write(out: Path, text: str) -> None:
    """Write the .gin file completely or not at all."""
    try:
        write_whole(out, text.encode())
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}; choose another --out") from None
