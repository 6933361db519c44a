"""From a parsed `train` command line to a run that is ready to start; checks come before any file is written."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from packtrain import __version__, own_runs
from packtrain.accelerate.compilation import refuse_unless_possible
from packtrain.config import Configuration
from packtrain.envs.demonstrations import read, rows_of
from packtrain.envs.exits import exits_are_faults
from packtrain.errors import ConfigError, Error
from packtrain.files import refuse_links, write_whole
from packtrain.metrics.console import SilentConsole, amount, duration, open_console
from packtrain.metrics.sinks import Sink
from packtrain.runtime import checkpoint, multi_seed
from packtrain.runtime.central_acting import refuse_central
from packtrain.runtime.experiment import Experiment
from packtrain.runtime.folder import RunFolder, point_latest
from packtrain.runtime.learner_group import refuse_learners
from packtrain.runtime.messages import Remote
from packtrain.runtime.preflight import describe_plan, plan_memory, refuse_too_large
from packtrain.runtime.preparation import find_device, finished, prepare, refuse_no_run, refuse_traces
from packtrain.runtime.regrouping import saved_envs
from packtrain.runtime.remote_setup import check_remote
from packtrain.runtime.restore_checks import log_changes, refuse_ill_formed, refuse_other, restoring
from packtrain.runtime.reward_summary import say_rewards
from packtrain.runtime.training import RunSetup, Training
from packtrain.runtime.warm_start import branch
from packtrain.types import Row, Spec

log = logging.getLogger("packtrain")
MANY_GAMES = 32  # number of games from which opening takes long enough to announce it
Saved = tuple[int, dict[str, Any]]
"""The step and the state of a checkpoint."""


@dataclass(frozen=True)
class TrainRequest:
    """A `train` command line, parsed."""

    files: list[Path]
    bindings: list[str]
    knobs: dict[str, Any]
    output: Path
    seed: int | None = None
    num_seeds: int | None = None
    runtime: str = "local"
    remote: Remote | None = None  # processes that act; None: a thread of this process
    learners: int = 1  # number of processes that learn, each from its part of a batch
    device: str = "cpu"
    fresh: bool = False
    start_from: Path | None = None  # a run to begin from; with several seeds, a folder of them
    sinks: tuple[Sink, ...] = ()  # receivers of rows besides metrics.jsonl
    quiet: bool = False  # print nothing but warnings
    trust_config: bool = False  # a configuration of a run folder may import anything
    alone: bool = True  # no other run prints to the terminal
    trace: int = 0  # episodes whose searches are recorded
    latest_in: Path | None = None  # the folder whose link `latest` should point to this run
    demonstrations: Path | None = None  # a data set of Minari for the replay of a run that begins
    notes: tuple[str, ...] = ()  # lines about the configuration's files, for stderr
    home: Path = field(default_factory=Path.cwd)  # what paths are relative to, wherever an environment goes

    @property
    def shards(self) -> bool:
        """Whether the replay is in other processes."""
        return self.remote is not None and self.remote.replay_shards is not None


@dataclass
class OpenRun:
    """A run that is ready to start."""

    training: Training
    folder: RunFolder
    console: Any
    quiet: bool = False  # print nothing

    def close(self, received: list[signal.Signals]) -> int:
        """Print how the run ended, and return the exit code.

        Args:
          received: signals that asked the run to stop.
        """
        step, wall_s = self.training.progress.step, self.training.log.wall_s()
        self.console.close()
        say = (lambda _: None) if self.quiet else print
        if received:
            name = received[0].name
            say(f"stopped by {name}: {self.folder.shown} saved at step {step:,}; the same command goes on")
            log.info("stopped by %s at step %d", name, step)
            return 128 + int(received[0])
        log.info("finished at step %d", step)
        rate = f"{amount(step / max(1e-9, wall_s))} steps/s"
        say(f"finished {step:,} steps in {duration(wall_s)} ({rate}): {self.folder.shown}")
        return 0


def prepare_request(request: TrainRequest) -> tuple[Configuration, Experiment, Spec]:
    """Load and check what a command line describes, with paths relative to the folder where it was typed."""
    with contextlib.chdir(request.home):
        return prepare(request.files, request.bindings, request.knobs, request.seed, request.trust_config)


@contextlib.contextmanager
def open_run(request: TrainRequest, saved: Saved | str | None = "newest") -> Iterator[OpenRun | None]:
    """Open a run's folder and build the run; yield None if it is finished already.

    Args:
      request: the command line.
      saved: the checkpoint to resume from, None for a new run; or the "newest" in the run's folder.
    """
    source = _load_source(request)
    configuration, experiment, spec = prepare_request(request)
    device = find_device(request.device)
    folder = _check_start(request, experiment, spec, device)
    demonstrations = () if checkpoint.steps(folder.checkpoints) else _demonstrations(request, spec)
    begun = None
    if source is not None and (request.fresh or not checkpoint.steps(folder.checkpoints)):
        assert request.start_from is not None
        with contextlib.chdir(request.home):
            begun = _branch(request.start_from, source, configuration)
    folder.open()
    console = None
    try:
        if isinstance(saved, str):
            saved = checkpoint.load_newest(folder.checkpoints)
        saved = _find_start(request, folder, configuration, experiment, saved, begun)
        if saved is _FINISHED:
            yield None
            return
        folder.write_config(configuration.text())
        own_runs.remember(configuration.text(), configuration.names_code())
        multi_seed.take_up(folder.path)
        if request.latest_in is not None:
            point_latest(request.home / request.latest_in, folder.path)
        _announce(request, configuration, experiment, spec, device)
        console = (
            SilentConsole()
            if request.quiet
            else open_console(str(folder.shown), experiment.total_steps, experiment.epochs, alone=request.alone)
        )
        if demonstrations and saved is None:
            line = f"the replay begins with {len(demonstrations):,} rows of {request.demonstrations}"
            _say(request, line)
            log.info("%s", line)
        with restoring(folder.path, saved is not None), exits_are_faults():
            parts = (experiment, spec, folder, configuration, device, console)
            exact = request.runtime == "serial"
            given = () if saved is not None else demonstrations
            how = (request.sinks, exact, request.remote, request.learners, request.trace, given)
            training = Training(RunSetup(*parts, *how), saved)
        with contextlib.closing(training):
            for sink in request.sinks:
                sink.opened(training)
            yield OpenRun(training, folder, console, request.quiet)
    except BaseException as error:
        _raise_logged(error, folder, device)
    finally:
        if console is not None:
            console.close()
        folder.close()


def _load_source(request: TrainRequest) -> Experiment | None:
    """Return the experiment of the run that `--start_from` names; None without that flag."""
    if request.start_from is None:
        return None
    with contextlib.chdir(request.home):
        refuse_no_run(request.start_from)
        return prepare([request.start_from / "config.gin"], [], {}, None, request.trust_config)[1]


def _check_start(request: TrainRequest, experiment: Experiment, spec: Spec, device: torch.device) -> RunFolder:
    """Raise an error if the run cannot start; return its folder, not opened. Nothing is written."""
    refuse_too_large(experiment, spec, device, request.shards)
    for use in experiment.learners.values():
        refuse_unless_possible(device, getattr(use.learner, "compile", None))
    refuse_learners(request.learners, experiment, device)
    if request.remote is not None:
        check_remote(request.remote, experiment)
        if request.remote.inference == "learner":
            refuse_central(experiment)
    refuse_traces(experiment, request.trace)
    _refuse_demonstrations(request, experiment)
    folder = RunFolder(request.output, request.home, request.fresh)
    folder.check_writable()
    refuse_links(folder.path)
    folder.refuse_other_kind(folder.study)
    if not checkpoint.steps(folder.checkpoints):  # old runs may be resumed although new ones of this kind are refused
        for use in experiment.learners.values():
            use.check_new_run(experiment.policy)
    return folder


def _demonstrations(request: TrainRequest, spec: Spec) -> tuple[Row, ...]:
    """Return the rows of the demonstrations; none without the flag."""
    if request.demonstrations is None:
        return ()
    with contextlib.chdir(request.home):
        episodes = read(request.demonstrations, spec)
    return tuple(rows_of(episodes, spec))


def _refuse_demonstrations(request: TrainRequest, experiment: Experiment) -> None:
    """Raise a ConfigError if a run cannot begin with demonstrations."""
    if request.demonstrations is None:
        return
    if not any(memory.preloads for memory in experiment.memories.values()):
        raise ConfigError("--demonstrations needs a replay: SAC, TD3, DDPG, STEVE, DQN and R2D2 have one")
    if request.shards:
        raise ConfigError("--demonstrations and --replay_shards cannot be combined; leave one of them out")
    if not experiment.policy.takes_demonstrations:
        raise ConfigError("--demonstrations does not fit intrinsic rewards, which demonstrations lack: use DQN or R2D2")


def _branch(run: Path, source: Experiment, configuration: Configuration) -> tuple[Saved, bytes]:
    """Return another run's checkpoint to start from, and its metrics, which become the first rows of this run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.gin"
        path.write_text(configuration.text(), encoding="utf-8")
        _, written, _ = prepare([path], [], {}, None, trust_config=True)  # with all defaults, as in the other's
    with restoring(run):
        step, state, metrics = branch(run, source, written, configuration)
    return (step, state), metrics


_FINISHED: Saved = (-1, {})


def _find_start(
    request: TrainRequest,
    folder: RunFolder,
    configuration: Configuration,
    experiment: Experiment,
    saved: Saved | None,
    begun: tuple[Saved, bytes] | None,
) -> Saved | None:
    """Return the checkpoint to resume from, None to begin, or `_FINISHED`; print which it is.

    Args:
      request: the command line.
      folder: of the run.
      configuration: of the run.
      experiment: built from the configuration.
      saved: the run's own checkpoint.
      begun: another run's checkpoint and metrics, where the run has none of its own.
    """
    if saved is not None:
        refuse_ill_formed(folder.path, saved[1])
        refuse_other(folder.shown, saved[1], configuration)
        if (end := finished(experiment, saved[1]["run"])) is not None:
            _say(request, f"{folder.shown} is finished: {end}")
            return _FINISHED
        log_changes(saved[1]["run"]["values"], configuration)
        new_episodes = "" if "actor" in saved[1] else "; the environments begin new episodes"
        _say(request, f"{folder.shown}: going on from step {saved[0]:,}{new_episodes}")
        before, envs = saved_envs(saved[1]), experiment.streams.num_actors
        if before is not None and before != envs:
            line = f"num_actors: {before} -> {envs}; the environments begin new episodes"
            _say(request, line)
            log.info("%s", line)
        return saved
    if begun is not None:
        saved, metrics = begun
        write_whole(folder.metrics, metrics)
        _say(request, f"{folder.shown}: beginning from step {saved[0]:,} of {request.start_from}")
    return saved


def _announce(
    request: TrainRequest, configuration: Configuration, experiment: Experiment, spec: Spec, device: torch.device
) -> None:
    """Print and log what starts, and which flags have no effect."""
    for note in () if request.quiet else request.notes:
        print(f"packtrain: {note}", file=sys.stderr, flush=True)
    versions = f"packtrain {__version__}, torch {torch.__version__}"
    text = "%s, %s runtime on %s, configuration %s"
    log.info(text, versions, request.runtime, device, configuration.hash()[:12])
    line = describe_plan(plan_memory(experiment, spec, device, request.shards))
    log.info("%s", line)
    if request.alone:
        _say(request, line)
    if (batch := _batch_steps(experiment)) * 20 > experiment.total_steps:
        ends = f"the run ends with the batch that reaches total_steps = {experiment.total_steps:,}"
        _say(request, f"one batch is {batch:,} steps: {ends}")
    for line in say_rewards(experiment):
        _say(request, line)
        log.info("%s", line)
    if request.runtime == "serial" and any(use.slack is not None for use in experiment.learners.values()):
        _warn("slack is not used: in the serial runtime acting and learning take turns")
    total, warm_up = experiment.total_steps, experiment.warm_up
    if experiment.by_ratio and warm_up >= total:
        _warn(f"nothing is learned: all {total:,} steps are random, of a warm-up of {warm_up:,}")
    if spec.frames_per_step > 1 and experiment.streams.num_actors >= MANY_GAMES:
        _say(request, f"opening {experiment.streams.num_actors} games, about a tenth of a second each")


def _batch_steps(experiment: Experiment) -> int:
    """Return the steps of the largest batch of a run that learns from batches in turn, else 0."""
    if experiment.by_ratio or experiment.by_epochs:
        return 0
    return max((memory.batch_steps for memory in experiment.memories.values()), default=0)


def _say(request: TrainRequest, line: str) -> None:
    if not request.quiet:
        print(line, flush=True)


def _warn(line: str) -> None:
    print(line, flush=True)
    log.warning(line)


def _raise_logged(error: BaseException, folder: RunFolder, device: torch.device) -> None:
    """Write an error to the run's log, and raise it again; out-of-memory errors become a ConfigError."""
    if isinstance(error, Error):
        log.error("%s", error, exc_info=error.__cause__)  # the cause contains the environment's own traceback
    elif isinstance(error, torch.OutOfMemoryError):
        log.error("%s", error)
        raise ConfigError(
            f"the memory of {device} is full: {str(error).splitlines()[0]} "
            "Lower batch_size, unroll_length or num_actors; a checkpoint that was written stands"
        ) from error
    elif isinstance(error, Exception):
        log.error("the run failed", exc_info=error)
        setattr(error, "logged_in", folder.path / "log.txt")  # noqa: B010  (mypy)
    raise error
