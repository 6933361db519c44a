"""The identity of a run: the configured values that must not change when the run is resumed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

_CHANGEABLE = (
    *("Run.", "Evaluation.", "EvaluationCallback.", "TraceCallback.", "ExplorationCallback.", "PictureCallback."),
    *("Runner.n_epochs", "Runner.total_steps", "Runner.callback_classes"),
    *("Streams.num_actors", "Streams.groups", "Runner.n_envs"),
)
_CHANGEABLE_ENDS = (
    ".compile",
    ".slack",
    ".calibration_period",
    ".step_deadline_secs",
    ".start_deadline_secs",
    ".restarts",
)
"""Parameters that may differ on resume: run length, logging, evaluation, diagnostics, number of environments, use
of the machine.

Device and runtime are program flags.
"""


def lasting(values: dict[str, str]) -> dict[str, str]:
    """Return the built values that must not change on resume."""
    return {
        name: text
        for name, text in values.items()
        if not name.startswith(_CHANGEABLE) and not name.endswith(_CHANGEABLE_ENDS)
    }


def difference(before: dict[str, str], after: dict[str, str], is_set: Callable[[str], bool]) -> list[str]:
    """Return one line for each value in which two identities differ.

    Args:
      before: the earlier identity.
      after: the present one.
      is_set: whether a parameter has another value than its default. A parameter that is missing in the earlier
        identity is new in this version; the earlier run used its default.
    """
    before = lasting(before)
    return [
        f"{name}: {before.get(name, 'absent')} → {after.get(name, 'absent')}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name) and (name in before or is_set(name))
    ]


def digest(identity: dict[str, str]) -> str:
    """Return the SHA-256 digest of an identity."""
    lines = "\n".join(f"{name} = {text}" for name, text in identity.items())
    return hashlib.sha256(lines.encode()).hexdigest()
