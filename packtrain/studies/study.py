"""`packtrain train` for a study: an experiment without actors that takes about a minute and fills a run folder.

A study has no agent and no checkpoints. An interrupted study starts over. A finished one has study.json, written last,
which records its configuration.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from packtrain import __version__, config
from packtrain.errors import ConfigError, Error, RunFolderError, SaveError
from packtrain.files import refuse_links, write_whole
from packtrain.metrics.console import duration
from packtrain.runtime.folder import RunFolder, claim, point_latest
from packtrain.runtime.open_run import TrainRequest
from packtrain.runtime.restore_checks import refuse_other

log = logging.getLogger("packtrain")


class Procedure(Protocol):
    """The work of a study."""

    def fill(self, folder: Path, seed: int, log_every: int, say: Callable[[str], None]) -> Path:
        """Run from the beginning and write metrics.jsonl and the results to a folder; return the main image.

        Args:
          folder: output folder; files of an earlier attempt are replaced.
          seed: of all randomness.
          log_every: interval in steps between metrics rows.
          say: called with lines of progress.
        """


@config.configurable
@dataclass(frozen=True)
class Study:
    """What `packtrain train` runs if a configuration does not describe an experiment of actors and learners."""

    experiment: Procedure
    seed: int = 0
    log_every: int = 50  # steps between metrics rows

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ConfigError(f"Study.seed = {self.seed} must not be negative")
        if self.log_every < 1:
            raise ConfigError(f"Study.log_every = {self.log_every} must be at least 1")


def train(request: TrainRequest) -> int:
    """Run a study once, or with several seeds in sequence; return the exit code."""
    _refuse_flags(request)
    if request.num_seeds is None:
        return _train_one(request)
    _, study = _build(request)
    root = request.output
    if request.fresh:
        root = root.with_name(claim(request.home / root).name)
    refuse_links(request.home / root)
    for k in range(request.num_seeds):
        one = replace(request, output=root / f"seed_{k}", seed=study.seed + k, latest_in=None, fresh=False)
        if code := _train_one(one):
            return code
    if request.latest_in is not None:
        point_latest(request.home / request.latest_in, request.home / root)
    return 0


def _refuse_flags(request: TrainRequest) -> None:
    """Raise a ConfigError for a flag that does not apply to studies."""
    given = {
        f"--runtime {request.runtime}": request.runtime != "local",
        f"--device {request.device}": request.device != "cpu",
        f"--start_from {request.start_from}": request.start_from is not None,
        "--track": bool(request.sinks),
    }
    for flag, is_given in given.items():
        if is_given:
            raise ConfigError(f"{flag} does not apply to a study, which runs by itself on the CPU; omit it")


def _build(request: TrainRequest) -> tuple[config.Configuration, Study]:
    configuration = config.load(request.files, request.bindings, request.knobs, request.trust_config, request.seed)
    return configuration, config.build(configuration)


def _train_one(request: TrainRequest) -> int:
    configuration, study = _build(request)
    folder = RunFolder(request.output, request.home, request.fresh)
    folder.check_writable()
    refuse_links(folder.path)
    folder.refuse_other_kind(folder.checkpoints)
    folder.open()
    try:
        if folder.study.exists():
            found = _read(folder.study)
            refuse_other(folder.shown, {"run": found}, configuration)
            print(f"{folder.shown} is finished; its image is {folder.shown / found['picture']}")
            return 0
        if folder.metrics.exists():
            print(f"{folder.shown} was not finished: starting over")
        folder.write_config(configuration.text())
        if request.latest_in is not None:
            point_latest(request.home / request.latest_in, folder.path)
        log.info("packtrain %s, NumPy %s, configuration %s", __version__, np.__version__, configuration.hash()[:12])
        return _run(study, folder, configuration)
    except Error as error:
        log.error("%s", error)
        raise
    except BrokenPipeError:  # the output is no longer read
        raise
    except OSError as error:
        log.error("%s", error)
        raise SaveError(
            f"{folder.shown} cannot be written: {error.strerror}; repeat the command to start over"
        ) from error
    except Exception:
        log.exception("the study failed")
        raise
    finally:
        folder.close()


def _run(study: Study, folder: RunFolder, configuration: config.Configuration) -> int:
    """Run the study, print the result, and return the exit code."""
    begin = time.perf_counter()
    try:
        with _stopped_by_signals():
            picture = study.experiment.fill(folder.path, study.seed, study.log_every, _say)
            done = {"identity": configuration.identity(), "picture": str(picture.relative_to(folder.path))}
            write_whole(folder.study, (json.dumps(done, indent=1) + "\n").encode())
    except _Stopped as stopped:
        print(f"stopped by {stopped.signal.name}: {folder.shown} is not finished; repeat the command to start over")
        log.info("stopped by %s", stopped.signal.name)
        return 128 + int(stopped.signal)
    log.info("finished")
    picture = folder.shown / picture.relative_to(folder.path)
    print(f"finished in {duration(time.perf_counter() - begin)}: {folder.shown}; the image is {picture}")
    return 0


def _say(line: str) -> None:
    print(line, flush=True)
    log.info("%s", line)


def _read(path: Path) -> dict[str, Any]:
    """Return the record of a finished study."""
    try:
        found = json.loads(path.read_bytes())
        return {"identity": dict(found["identity"]), "picture": str(found["picture"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{path} cannot be read; --fresh starts in a new folder next to {path.parent}") from error


class _Stopped(BaseException):
    """A signal requested the end of the study."""

    def __init__(self, number: int):
        super().__init__(number)
        self.signal = signal.Signals(number)


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Let SIGINT and SIGTERM raise `_Stopped` inside."""

    def stop(number: int, _: Any) -> None:
        raise _Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
