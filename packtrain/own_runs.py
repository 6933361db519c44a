"""Record of the runs that this user trained on this machine: their configurations are trusted.

A configuration in a run folder may come from another person, so by default it may import only packtrain's modules. When
a run begins, the digest of its config.gin and the folders of the modules it needs are recorded outside the run folder,
below XDG_STATE_HOME (by default ~/.local/state/packtrain). A configuration with that digest was used on this machine; a
changed or foreign one has another digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from pathlib import Path

from packtrain.files import MOST_CONFIG, read_bounded, write_whole

MOST_NOTES = 10_000  # the oldest beyond are deleted


def folder() -> Path:
    """Return the folder of the records."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "packtrain" / "own_runs"


def _note(text: bytes) -> Path:
    return folder() / f"{hashlib.sha256(text).hexdigest()}.json"


def remember(text: str, needs_modules: bool) -> None:
    """Record a configuration that is about to be trained.

    Args:
      text: of its config.gin.
      needs_modules: whether it names code outside packtrain; others need no trust and are not noted.
    """
    if not needs_modules:
        return
    path = _note(text.encode())
    with contextlib.suppress(OSError):  # a home that is read-only or full: --trust-config remains
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        here = [each or os.getcwd() for each in sys.path]
        folders = [each for each in dict.fromkeys(here) if os.path.isdir(each)]
        write_whole(path, json.dumps({"sys_path": folders}).encode())
        _clear_old(path.parent)


def _clear_old(notes: Path) -> None:
    known = sorted(notes.glob("*.json"), key=lambda each: each.stat().st_mtime)
    for old in known[:-MOST_NOTES]:
        old.unlink(missing_ok=True)


def is_own(config: Path) -> bool:
    """Return whether a config.gin is one that this user trained with here; its modules can be imported then."""
    try:
        note = _note(read_bounded(config, MOST_CONFIG))
        if not note.is_file() or note.stat().st_uid != os.getuid():
            return False
        folders = json.loads(read_bounded(note))["sys_path"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    sys.path += [each for each in folders if isinstance(each, str) and each not in sys.path]
    return True
