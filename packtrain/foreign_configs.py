"""Which configuration files may be of another person: those that belong to a run folder."""

from __future__ import annotations

import os
from pathlib import Path

from packtrain import knobs, own_runs
from packtrain.metrics.reading import CONFIG_FILE, METRICS_FILE

HEADER = "# the configuration of this run, from:"  # beginning of the files that packtrain writes


def is_foreign(path: Path) -> bool:
    """Return whether a configuration belongs to a run folder, whose content may be untrusted.

    Every command uses this function. A file belongs to a run folder if it is called config.gin, begins like files that
    packtrain writes, is next to checkpoints of packtrain, or is anywhere below a folder with config.gin
    or metrics.jsonl. Both the path as given and the file that its links lead to count. A configuration that
    this user trained with on this machine is not foreign: see `own_runs.py`.
    """
    if path.name == CONFIG_FILE and own_runs.is_own(path):
        return False
    for place in {Path(os.path.abspath(path)), path.resolve()}:
        if place.is_relative_to(knobs.CONFIGS):
            continue
        above = [folder / name for folder in place.parents for name in (CONFIG_FILE, METRICS_FILE)]
        if place.name == CONFIG_FILE or any(os.path.lexists(part) for part in above):
            return True
        if next(place.parent.glob("checkpoints/*/manifest.json"), None) is not None:
            return True
    return knobs.read_text(path).startswith(HEADER)
