"""One line about the seeds of a run: the mean of their last scores, and its interval."""

from __future__ import annotations

import math
from pathlib import Path

from packtrain.errors import RunFolderError
from packtrain.metrics.reading import read_metrics, seed_folders
from packtrain.studies.statistics import mean_interval


def describe_seeds(run: Path) -> str:
    """Return the mean over seeds of the last evaluation, or of the last return in training where there is none."""
    try:
        folders = seed_folders(run)
    except RunFolderError as error:
        return str(error)
    rows = [read_metrics(folder) for folder in folders]
    for kind, name, what in (("eval", "return_mean", "evaluation"), ("train", "episode_return", "training")):
        found = [[row[name] for row in own if row["kind"] == kind and row.get(name) is not None] for own in rows]
        if all(found):
            finals = [float(values[-1]) for values in found]
            mean, low, high = mean_interval(finals)
            interval = "" if math.isnan(low) else f" (95 % interval {low:.1f} to {high:.1f})"
            each = ", ".join(f"{value:.1f}" for value in finals)
            return f"{len(finals)} seeds, return in the last {what}: mean {mean:.1f}{interval}; each: {each}"
    return f"{len(folders)} seeds: no return was recorded in all of them"
