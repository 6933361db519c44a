"""Checks of a loaded checkpoint: well formed, same configuration, and restored without unexpected errors."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from packtrain import config, trees
from packtrain.errors import CheckpointError, Error

log = logging.getLogger("packtrain")


def refuse_ill_formed(path: Path, state: dict[str, Any]) -> None:
    """Raise a CheckpointError if a checkpoint lacks what every command reads, or its weights are not finite.

    Args:
      path: its run folder, for the message.
      state: what was loaded.
    """
    run, weights = state.get("run"), state.get("weights")
    if not isinstance(run, dict) or not isinstance(weights, dict) or not isinstance(state.get("learners"), dict):
        raise CheckpointError(f"the checkpoint of {path} lacks its run, weights or learners: it is not packtrain's")
    kinds: dict[str, Callable[[Any], bool]] = {
        **dict.fromkeys(("step", "env_steps", "metrics_bytes"), _is_count),
        "wall_s": lambda value: isinstance(value, (int, float)) and math.isfinite(value),
        **dict.fromkeys(("next_eval", "last_eval"), lambda value: type(value) is int),
        **dict.fromkeys(("identity", "values"), _is_texts),
    }
    newer = {
        **dict.fromkeys(
            ("repeats", "groups", "lives"),
            lambda value: isinstance(value, (list, tuple)) and all(map(_is_count, value)),
        ),
        **dict.fromkeys(("random_steps", "counted"), _is_count),
        "solved_at": lambda value: value is None or _is_count(value),
    }
    kinds |= {name: fits for name, fits in newer.items() if name in run}  # unknown to earlier versions
    for name, fits in kinds.items():
        if not fits(run.get(name)):
            raise CheckpointError(f"the checkpoint of {path} has {name} = {run.get(name)!r:.60}: it is not packtrain's")
    for name, tree in weights.items():
        leaves: list[Any] = trees.flatten(tree) if isinstance(tree, dict) else [None]
        if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            raise CheckpointError(f"the checkpoint of {path} has weights {name!r:.60} that are no arrays")
        if not all(bool(torch.isfinite(leaf).all()) for leaf in leaves if leaf.is_floating_point()):
            raise CheckpointError(
                f"the checkpoint of {path} has weights {name!r:.60} that are not finite; --checkpoint names another"
            )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in [*value, *value.values()])


@contextlib.contextmanager
def restoring(path: Path, from_checkpoint: bool = True) -> Iterator[None]:
    """Convert errors of a state that does not fit into a one-line CheckpointError; the traceback is logged.

    Args:
      path: the run folder, for the message.
      from_checkpoint: False where nothing is restored: errors stay as they are.
    """
    try:
        yield
    except (Error, MemoryError, OSError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if not from_checkpoint:
            raise
        log.info("a checkpoint does not fit", exc_info=True)
        reason = (str(error).splitlines() or [""])[0]
        raise CheckpointError(
            f"the checkpoint of {path} does not fit its configuration ({type(error).__name__}: {reason}); --fresh "
            "starts a new run beside it"
        ) from error


def refuse_other(path: Path, state: dict[str, Any], configuration: config.Configuration) -> None:
    """Raise a CheckpointError that names the first difference if the configuration is not the checkpoint's."""
    changed = configuration.difference(state["run"]["identity"])
    if changed:
        more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        raise CheckpointError(
            f"{path} was made with another configuration: {changed[0]}{more}; "
            "--fresh starts a new run beside it, or choose another --output_dir"
        )


def log_changes(before: dict[str, str], configuration: config.Configuration) -> None:
    """Log which settings changed that may change: run length, logging, evaluation, device and runtime."""
    lasting = configuration.identity()
    for name, text in sorted(configuration.values.items()):
        if name not in lasting and before.get(name) != text:
            log.info("now %s = %s, before %s", name, text, before.get(name, "absent"))
