"""From a command line to a checked experiment: configuration, device, run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from packtrain import config, knobs
from packtrain.accelerate.hw_queues import use_all_queues
from packtrain.errors import ConfigError, RunFolderError
from packtrain.files import refuse_links
from packtrain.runtime.experiment import Experiment
from packtrain.runtime.preflight import check_parts
from packtrain.types import Spec


def prepare(
    files: list[Path], bindings: list[str], values: dict[str, Any], seed: int | None, trust_config: bool = False
) -> tuple[config.Configuration, Experiment, Spec]:
    """Load, build and try a configuration: after this, its environment has been reset once and its network built."""
    configuration = config.load(files, bindings, values, trust_config, seed)
    if configuration.root == "Study":
        raise ConfigError(
            f"{knobs.shown(files[-1])} is a study: it has no agent and no checkpoint; "
            "`packtrain report` shows what a finished one has found"
        )
    experiment = config.build(configuration)
    spec = experiment.probe()
    try:
        check_parts(experiment, spec)
    except RuntimeError as error:  # torch's error for shapes that do not fit
        raise ConfigError(f"the network cannot be built: {str(error).splitlines()[0]}; lower hidden_size") from error
    return configuration, experiment, spec


def finished(experiment: Experiment, run: dict[str, Any]) -> str | None:
    """Return why a saved run has nothing left to do; None if it has."""
    if run["step"] >= experiment.total_steps:
        return f"{run['step']:,} of {experiment.total_steps:,} steps"
    if experiment.by_epochs and experiment.epochs is not None and sum(run["repeats"]) >= experiment.epochs:
        return f"{sum(run['repeats']):,} of {experiment.epochs:,} epochs"
    if experiment.run.until_solved and run.get("solved_at") is not None:
        return f"solved at step {run['solved_at']:,}"
    if experiment.run.alarm is not None and run.get("audit_stopped") is True:
        return f"an audit alarm ended it at step {run['step']:,}"
    return None


def find_device(name: str) -> torch.device:
    """Return the torch device; ConfigError if it does not exist or cannot be opened."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"--device {name!r} is not one of cpu, cuda, cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device {name!r} is not one of cpu, cuda, cuda:N")
    if device.type == "cuda":
        use_all_queues()
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise ConfigError(f"--device {name!r}: torch sees {count} CUDA devices here; try --device cpu")
        try:
            torch.cuda.set_device(device.index or 0)  # events and streams without a device use this one
        except RuntimeError as error:  # full, broken, or reserved for another process
            why = str(error).strip().split("\n")[0]
            raise ConfigError(f"--device {name!r} does not open: {why}; nvidia-smi shows who uses it") from None
        return torch.device("cuda", device.index or 0)  # "cuda" is not equal to the device of a tensor on it
    return device


def refuse_traces(experiment: Experiment, episodes: int) -> None:
    """Raise a ConfigError if searches should be recorded and the policy does not search."""
    if episodes and not experiment.policy.records_searches:
        kind = type(experiment.policy).__name__
        raise ConfigError(
            f"--trace {episodes} records searches, and the policy of this configuration ({kind}) has none"
        )


def refuse_no_run(run: Path) -> None:
    """Raise a RunFolderError, with a hint, unless a folder is a run folder without symbolic links."""
    if not run.is_dir():
        raise RunFolderError(f"{run} is not a run folder: it does not exist")
    seeds = sorted(run.glob("seed_*"), key=lambda path: path.name)
    if not (run / "config.gin").is_file():
        hint = f"it holds {len(seeds)} seeds: name one of them, such as {seeds[0]}" if seeds else "it has no config.gin"
        if (run / "model.tar").is_file():
            hint = f"it holds a TorchBeast checkpoint: packtrain convert {run / 'model.tar'} --output_dir ... makes one"
        raise RunFolderError(f"{run} is not a run folder: {hint}")
    refuse_links(run)
