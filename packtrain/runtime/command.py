"""`train` and `eval` from a parsed request to an exit code; what can be checked is, before anything is written."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from packtrain import __version__, config, knobs, trees
from packtrain.devices.compiled import refuse_unless_possible
from packtrain.devices.queues import use_all_queues
from packtrain.envs.boundary import space_leaves
from packtrain.envs.exits import exits_are_faults
from packtrain.envs.picture import draw_without_screen
from packtrain.envs.stream import Episode
from packtrain.errors import CheckpointError, ConfigError, DivergedError, EnvError, Error, RunFolderError
from packtrain.files import refuse_links, write_inside, write_whole
from packtrain.memory.replay import Replay
from packtrain.memory.segments import SEGMENT_ROWS
from packtrain.memory.sequences import Sequences
from packtrain.memory.unroll import Unrolls
from packtrain.metrics.console import amount, duration, never_failing_terminal, open_console
from packtrain.metrics.writers import TensorBoardWriter
from packtrain.networks.control import ControlNetwork
from packtrain.runtime import checkpoint, local, serial, together
from packtrain.runtime import film as films
from packtrain.runtime.branching import branch
from packtrain.runtime.evaluation import Evaluator, Kind
from packtrain.runtime.experiment import Experiment
from packtrain.runtime.folder import RunFolder, claim, point_latest
from packtrain.runtime.learned_rewards import say_rewards
from packtrain.runtime.parts import open_evaluator, try_out
from packtrain.runtime.seeds import seed_for
from packtrain.runtime.training import Training, schedule_epoch
from packtrain.runtime.watchdog import Watchdog
from packtrain.types import Spec

log = logging.getLogger("packtrain")
MANY_GAMES = 32  # from which on opening them takes long enough to say so
MOST_LISTED = 20  # episodes of an evaluation that are named one by one
_TRAINING_BYTES = 100 * 2**20  # what a run takes beside memories and networks, as measured on small ones
RUNTIMES = {"local": local.run, "serial": serial.run}
Saved = tuple[int, dict[str, Any]] | None  # a checkpoint


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
    device: str = "cpu"
    fresh: bool = False
    start_from: Path | None = None  # a run to begin from; with several seeds, a folder of them
    tensorboard: bool = False
    trust_config: bool = False  # a configuration of a run folder may import anything
    alone: bool = True  # it has the terminal for itself
    latest_in: Path | None = None  # the folder whose link `latest` should point to this run
    home: Path = field(default_factory=Path.cwd)  # what paths are relative to, wherever an environment goes


def output_folder(output_dir: str | None, savedir: str | None, xpid: str | None, config_name: str) -> Path:
    """The run folder a command line means."""
    if output_dir is not None:
        return Path(output_dir).expanduser()
    root = Path(savedir or "runs").expanduser()
    if xpid is not None:
        return root / xpid
    path = Path(config_name)
    name = str(path.with_suffix("")) if config_name in knobs.shipped() else path.stem
    return root / name / time.strftime("%Y%m%d-%H%M%S")


def train(request: TrainRequest) -> int:
    """Train one seed, or several; returns the exit code."""
    with never_failing_terminal():
        return _train(request)


def _train(request: TrainRequest) -> int:
    if request.num_seeds is None:
        with _prepared(request) as opened:
            if opened is None:
                return 0
            with _signals([opened.training]) as received:
                RUNTIMES[request.runtime](opened.training)
                opened.training.save(required=True)
            return opened.close(received)
    _, experiment, _ = _prepare(request)
    root = request.output
    if request.fresh:
        root = root.with_name(claim(request.home / root).name)
    refuse_links(request.home / root)
    requests = []
    for k in range(request.num_seeds):
        one = replace(
            request, output=root / f"seed_{k}", seed=experiment.seed + k, num_seeds=None, latest_in=None, fresh=False
        )
        one = replace(one, alone=not together.can_share(experiment))
        if request.start_from is not None:
            one = replace(one, start_from=request.start_from / f"seed_{k}")
        requests.append(one)
    code = _train_together(requests) if together.can_share(experiment) else 0
    if not together.can_share(experiment):
        for one in requests:
            code = _train(one)
            if code:
                return code
    if request.latest_in is not None and not code:
        point_latest(request.home / request.latest_in, request.home / root)
    return code


def _train_together(requests: list[TrainRequest]) -> int:
    """Several seeds at once, in this process."""
    with contextlib.ExitStack() as stack:
        found = _together_from(requests)
        each = [None if one is None else stack.enter_context(_prepared(*one)) for one in found]
        opened = [one for one in each if one is not None]
        if not opened:
            return 0
        with _signals([one.training for one in opened]) as received:
            runs = [None if one is None else one.training for one in each]
            diverged = together.run(runs, overlaps=requests[0].runtime == "local")
            left = {place: one.training for place, one in enumerate(each) if one is not None and place not in diverged}
            diverged |= together.save_all(left, required=True)
        codes = [one.close(received) for place, one in enumerate(each) if one is not None and place not in diverged]
        for place, why in diverged.items():
            print(f"packtrain: error: {requests[place].output}: {why}", file=sys.stderr, flush=True)
        behind = [one.output for one, known in zip(requests, found, strict=True) if known is None]
        for output in behind:
            line = f"{output} diverged before and was left out; the same command goes on with it"
            print(f"packtrain: error: {line} when the others are finished", file=sys.stderr, flush=True)
        incomplete = DivergedError.exit_code if diverged or behind else 0
        return next(iter(codes), 0) or incomplete


def _together_from(requests: list[TrainRequest]) -> list[tuple[TrainRequest, Saved] | None]:
    """Where each of several seeds goes on: runs that learn together, from the same update.

    None stands for a run that has diverged while others that are not finished went on.
    """
    folders = [RunFolder(one.output, one.home).checkpoints for one in requests]
    newest = [checkpoint.load_newest(folder) if folder.is_dir() else None for folder in folders]
    for folder, saved in zip(folders, newest, strict=True):
        if saved is not None:
            refuse_ill_formed(folder.parent, saved[1])
    _, experiment, _ = _prepare(requests[0])
    under_way = [k for k, saved in enumerate(newest) if saved is None or finished(experiment, saved[1]["run"]) is None]
    behind = [k for k in under_way if together.left_behind(folders[k].parent)]
    if len(behind) == len(under_way):
        behind = []
    under_way = [k for k in under_way if k not in behind]
    if experiment.by_ratio and under_way:
        for k, saved in zip(under_way, together.same_updates([folders[k] for k in under_way]), strict=True):
            newest[k] = saved
    pairs = zip(requests, newest, strict=True)
    return [None if k in behind else pair for k, pair in enumerate(pairs)]


def _prepare(request: TrainRequest) -> tuple[config.Configuration, Experiment, Spec]:
    """Load and try what a command line describes, with paths relative to where it was typed."""
    with contextlib.chdir(request.home):
        return prepare(request.files, request.bindings, request.knobs, request.seed, request.trust_config)


@dataclass
class _Opened:
    """A run that has been opened, and how it is ended."""

    training: Training
    folder: RunFolder
    console: Any

    def close(self, received: list[signal.Signals]) -> int:
        """Say how it ended; the exit code."""
        training = self.training
        self.console.close()
        if received:
            print(
                f"stopped by {received[0].name}: {self.folder.shown} saved at step {training.step:,}; the same command "
                "goes on"
            )
            log.info("stopped by %s at step %d", received[0].name, training.step)
            return 128 + int(received[0])
        log.info("finished at step %d", training.step)
        rate = f"{amount(training.step / max(1e-9, training.log.wall_s()))} steps/s"
        print(f"finished {training.step:,} steps in {duration(training.log.wall_s())} ({rate}): {self.folder.shown}")
        return 0


@contextlib.contextmanager
def _prepared(request: TrainRequest, saved: Saved | str = "newest") -> Iterator[_Opened | None]:
    """A run with its folder open, ready to start; None if it is finished already.

    Args:
      request: the command line.
      saved: the checkpoint to go on from, None to begin; or the "newest" that its folder has.
    """
    other = None
    if request.start_from is not None:
        with contextlib.chdir(request.home):
            refuse_no_run(request.start_from)
            _, other, _ = prepare([request.start_from / "config.gin"], [], {}, None, request.trust_config)
    configuration, experiment, spec = _prepare(request)
    device = find_device(request.device)
    refuse_too_large(experiment, spec, device)
    for use in experiment.learners.values():
        refuse_unless_possible(device, getattr(use.learner, "compile", None))
    if request.tensorboard:
        TensorBoardWriter.available()
    folder = RunFolder(request.output, request.home, request.fresh)
    folder.check_writable()
    refuse_links(folder.path)
    folder.refuse_other_kind(folder.study)
    if not checkpoint.steps(folder.checkpoints):  # a run made before something was refused may go on
        for use in experiment.learners.values():
            if (refuse := getattr(use.learner, "refuse_ignored", None)) is not None:
                refuse(experiment.policy)
    text, begun = configuration.text(), None
    if other is not None and (request.fresh or not checkpoint.steps(folder.checkpoints)):
        assert request.start_from is not None
        with contextlib.chdir(request.home):
            begun = _branch(request.start_from, other, configuration, text)
    folder.open()
    console = None
    try:
        if isinstance(saved, str):
            saved = checkpoint.load_newest(folder.checkpoints)
        if saved is not None:
            refuse_ill_formed(folder.path, saved[1])
            refuse_other(folder.shown, saved[1], configuration)
            if (end := finished(experiment, saved[1]["run"])) is not None:
                print(f"{folder.shown} is finished: {end}")
                yield None
                return
            _log_changes(saved[1]["run"]["values"], configuration)
            anew = "" if "actor" in saved[1] else "; the environments begin new episodes"
            print(f"{folder.shown}: going on from step {saved[0]:,}{anew}")
        elif begun is not None:
            saved = begun[:2]
            write_whole(folder.metrics, begun[2])
            print(f"{folder.shown}: beginning from step {saved[0]:,} of {request.start_from}")
        folder.write_config(text)
        together.take_up(folder.path)
        if request.latest_in is not None:
            point_latest(request.home / request.latest_in, folder.path)
        log.info(
            "packtrain %s, torch %s, %s runtime on %s, configuration %s",
            __version__,
            torch.__version__,
            request.runtime,
            device,
            configuration.hash()[:12],
        )
        line = describe_plan(plan_memory(experiment, spec, device))
        log.info("%s", line)
        if request.alone:
            print(line, flush=True)
        for line in say_rewards(experiment):
            print(line, flush=True)
            log.info("%s", line)
        if request.runtime == "serial" and any(use.slack is not None for use in experiment.learners.values()):
            line = "slack is not used: in the serial runtime acting and learning take turns"
            print(line, flush=True)
            log.warning("%s", line)
        total, warm_up = experiment.total_steps, experiment.warm_up
        if experiment.by_ratio and warm_up >= total:
            line = f"nothing is learned: all {total:,} steps are random, of a warm-up of {warm_up:,}"
            print(line, flush=True)
            log.warning("%s", line)
        if spec.frames_per_step > 1 and experiment.streams.num_actors >= MANY_GAMES:
            print(f"opening {experiment.streams.num_actors} games, about a tenth of a second each", flush=True)
        console = open_console(str(folder.shown), experiment.total_steps, experiment.epochs, alone=request.alone)
        exact = request.runtime == "serial"
        with restoring(folder.path, saved is not None), exits_are_faults():
            training = Training(
                experiment, spec, folder, configuration, device, console, saved, request.tensorboard, exact=exact
            )
        with contextlib.closing(training):
            yield _Opened(training, folder, console)
    except Error as error:
        log.error("%s", error, exc_info=error.__cause__)  # an environment's own traceback is the cause
        raise
    except torch.OutOfMemoryError as error:
        log.error("%s", error)
        raise ConfigError(
            f"the memory of {device} is full: {str(error).splitlines()[0]} "
            "Lower batch_size, unroll_length or num_actors; a checkpoint that was written stands"
        ) from error
    except Exception as error:
        log.exception("the run failed")
        setattr(error, "logged_in", folder.path / "log.txt")  # noqa: B010  (mypy)
        raise
    finally:
        if console is not None:
            console.close()
        folder.close()


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
        try_out(experiment, spec)
    except RuntimeError as error:  # torch's word for a size that does not fit
        raise ConfigError(f"the network cannot be built: {str(error).splitlines()[0]}; lower hidden_size") from error
    return configuration, experiment, spec


def refuse_too_large(experiment: Experiment, spec: Spec, device: torch.device) -> None:
    """ConfigError if the memories would not fit; they are the one part whose size is a product of knobs."""
    row = _row_bytes(spec)
    columns, on_gpu = experiment.streams.num_actors, device.type == "cuda"
    host = psutil.virtual_memory().available
    free = torch.cuda.mem_get_info(device)[0] if on_gpu else host
    where = f" on {device}" if on_gpu else ""
    memories = experiment.memories.values()
    queues = [memory for memory in memories if isinstance(memory, Unrolls)]
    replays = [memory for memory in memories if isinstance(memory, Replay)]
    sequences = [memory for memory in memories if isinstance(memory, Sequences)]
    _refuse(
        sum(memory.bytes_needed(columns, row) for memory in queues),
        free,
        f"the unroll queue would take {{}} and {{}} are free{where}; "
        "lower num_actors, num_buffers, batch_size or unroll_length",
    )
    used = [min(1.0, experiment.total_steps / memory.capacity) for memory in replays]  # a replay grows as it is filled
    _refuse(
        sum(share * memory.bytes_needed(columns, row) for share, memory in zip(used, replays, strict=True)),
        free,
        f"the replay would take {{}} and {{}} are free{where}; lower replay_size",
    )
    on_device, on_host = (
        sum(getattr(memory, name)(columns, row) for memory in sequences)
        for name in ("bytes_needed", "host_bytes_needed")
    )
    line = "the replay would take {} and {} are free"
    more = "; lower replay_size, or set storage to host or disk"
    _refuse(on_device if on_gpu else on_device + on_host, free, f"{line}{where}{more}")
    _refuse(on_host, host, f"{line}{more}")


def _row_bytes(spec: Spec) -> int:
    """Bytes of one row of one environment, about."""
    leaves = trees.flatten([space_leaves(spec.obs), space_leaves(spec.action)])
    return sum(math.prod(leaf.shape or (1,)) * np.dtype(leaf.dtype or np.int64).itemsize for leaf in leaves) + 32


def plan_memory(experiment: Experiment, spec: Spec, device: torch.device) -> dict[str, float]:
    """Estimate the bytes that a run will take at its peak; what planners search in is not counted.

    Returns:
      "host" of this process and, on a GPU, "device": all of it; "memories" and "networks": their parts of that. The
      host also holds what a checkpoint copies of the memories while it is written.
    """
    columns, row, on_gpu = experiment.streams.num_actors, _row_bytes(spec), device.type == "cuda"
    memories = host_memories = copied = 0.0
    for memory in experiment.memories.values():
        share = min(1.0, experiment.total_steps / getattr(memory, "capacity", math.inf))
        filled = 1.0 if isinstance(memory, (Sequences, Unrolls)) else share  # these take their place at once
        size = filled * memory.bytes_needed(columns, row)
        memories += size
        if isinstance(memory, Sequences):
            host_memories += memory.host_bytes_needed(columns, row)
            copied += min((size + host_memories) / 4, 256 * 2**20)  # notes and a segment, as measured
        elif isinstance(memory, Replay):
            copied += min(size, size / max(filled, 1e-9) * SEGMENT_ROWS / memory.capacity)  # a segment, written or not
    weights = sum(leaf.nbytes for leaf in experiment.policy.build(spec).state_dict().values())
    # A learner has weights, gradients and two averages of them; actors and evaluations have copies.
    networks = float(weights * (4 * len(experiment.learners) + 2))
    found = {"memories": memories + host_memories, "networks": networks}
    host = psutil.Process().memory_info().rss + _TRAINING_BYTES + host_memories
    if on_gpu:
        return {**found, "host": host + copied, "device": memories + networks}
    return {**found, "host": host + memories + networks + copied}


def describe_plan(plan: dict[str, float]) -> str:
    """Return the estimate of a run's memory as one line for people."""
    sizes = {name: f"{size / 2**30:,.2f} GiB" for name, size in plan.items()}
    where = f" and {sizes['device']} on the GPU" if "device" in plan else ""
    return (
        f"memory at its peak: about {sizes['host']}{where} ({sizes['memories']} replay or queue, {sizes['networks']} "
        "networks and optimisers)"
    )


def _refuse(planned: float, free: float, line: str) -> None:
    if planned > 0.8 * free:
        raise ConfigError(line.format(*(f"{size / 2**30:,.1f} GiB" for size in (planned, free))))


def finished(experiment: Experiment, run: dict[str, Any]) -> str | None:
    """Why a run that was saved like this has nothing left to do; None if it has."""
    if run["step"] >= experiment.total_steps:
        return f"{run['step']:,} of {experiment.total_steps:,} steps"
    if experiment.by_epochs and experiment.epochs is not None and sum(run["repeats"]) >= experiment.epochs:
        return f"{sum(run['repeats']):,} of {experiment.epochs:,} epochs"
    if experiment.run.until_solved and run.get("solved_at") is not None:
        return f"solved at step {run['solved_at']:,}"
    return None


def find_device(name: str) -> torch.device:
    """The torch device; ConfigError if it is not there or does not open."""
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
            torch.cuda.set_device(device.index or 0)  # events and streams that name no device mean this one
        except RuntimeError as error:  # full, broken, or lent to somebody else alone
            why = str(error).strip().split("\n")[0]
            raise ConfigError(f"--device {name!r} does not open: {why}; nvidia-smi shows who uses it") from None
        return torch.device("cuda", device.index or 0)  # "cuda" alone is not equal to the device of a tensor on it
    return device


def refuse_ill_formed(path: Path, state: dict[str, Any]) -> None:
    """CheckpointError if a checkpoint lacks what every command reads, or its weights are not finite.

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
        "repeats": lambda value: isinstance(value, (list, tuple)) and all(map(_is_count, value)),
        **dict.fromkeys(("random_steps", "counted"), _is_count),
        "solved_at": lambda value: value is None or _is_count(value),
    }
    kinds |= {name: fits for name, fits in newer.items() if name in run}  # not known to earlier versions
    for name, fits in kinds.items():
        if not fits(run.get(name)):
            raise CheckpointError(
                f"the checkpoint of {path} says {name} = {run.get(name)!r:.60}: it is not packtrain's"
            )
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
    """Turn errors of a state that does not fit into a CheckpointError of one line; the traceback goes to the log.

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
            "starts anew beside it"
        ) from error


def refuse_other(path: Path, state: dict[str, Any], configuration: config.Configuration) -> None:
    """CheckpointError with the first difference if a checkpoint was made with another configuration."""
    changed = configuration.difference(state["run"]["identity"])
    if changed:
        more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        raise CheckpointError(
            f"{path} was made with another configuration: {changed[0]}{more}; "
            "--fresh starts anew beside it, or choose another --output_dir"
        )


def _log_changes(before: dict[str, str], configuration: config.Configuration) -> None:
    """Note in the log what was changed that may be: run length, logging, evaluation, how the machine is used."""
    lasting = configuration.identity()
    for name, text in sorted(configuration.values.items()):
        if name not in lasting and before.get(name) != text:
            log.info("now %s = %s, before %s", name, text, before.get(name, "absent"))


def _branch(
    run: Path, other: Experiment, configuration: config.Configuration, text: str
) -> tuple[int, dict[str, Any], bytes]:
    """Another run's checkpoint to begin from, and its metrics, which become the beginning of this run's."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.gin"
        path.write_text(text, encoding="utf-8")
        _, written, _ = prepare([path], [], {}, None, trust_config=True)  # defaults spelt out, as in the other's
    with restoring(run):
        return branch(run, other, written, configuration)


def refuse_no_run(run: Path) -> None:
    """RunFolderError, with a hint, unless a folder is that of a run and none of its parts is a link."""
    if not run.is_dir():
        raise RunFolderError(f"{run} is not a run folder: it does not exist")
    seeds = sorted(run.glob("seed_*"), key=lambda path: path.name)
    if not (run / "config.gin").is_file():
        hint = f"it holds {len(seeds)} seeds: name one of them, such as {seeds[0]}" if seeds else "it has no config.gin"
        if (run / "model.tar").is_file():
            hint = f"it holds a TorchBeast checkpoint: packtrain convert {run / 'model.tar'} --output_dir ... makes one"
        raise RunFolderError(f"{run} is not a run folder: {hint}")
    refuse_links(run)


@contextlib.contextmanager
def _signals(trainings: list[Training]) -> Iterator[list[signal.Signals]]:
    """The first SIGINT, SIGTERM or SIGHUP asks the runs to save and leave; the second leaves at once.

    A closed terminal sends SIGHUP, and its shell may send a second one, which is ignored. Where SIGHUP is ignored from
    the start, as under `nohup`, it stays ignored.
    """
    received: list[signal.Signals] = []

    def handle(number: int, _: Any) -> None:
        if received and number == signal.SIGHUP:
            return
        if received:
            os._exit(128 + number)
        received.append(signal.Signals(number))
        for training in trainings:
            training.stop = KeyboardInterrupt()
        print(
            f"\n{signal.Signals(number).name}: saving, then leaving; once more leaves at once",
            file=sys.stderr,
            flush=True,
        )

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- eval


def evaluate(
    run: Path,
    num_episodes: int,
    which: str,
    *,
    seed: int | None,
    device: str,
    trust_config: bool,
    greedy: bool | None = None,
    video_episodes: int = 0,
    video_format: films.Format = "png",
) -> dict[str, Any]:
    """Play episodes with a run's checkpoint; also left in RUN/eval.json. Nothing in the folder can run code.

    Args:
      run: the run folder.
      num_episodes: of each kind.
      which: the checkpoint: latest, best, or a step.
      seed: of the environments; None: the run's.
      device: of the network.
      trust_config: whether the configuration may import modules outside packtrain.
      greedy: whether actions are the mode of the distribution or samples; None: both kinds, if the policy has both,
        and the run's `Evaluation.best` goes by the plain names.
      video_episodes: how many of the first kind are filmed.
      video_format: of the films.
    """
    refuse_no_run(run)
    folder = films.folder_for(run, video_format) if video_episodes else None
    if folder is not None:
        draw_without_screen()
    configuration, experiment, spec = prepare([run / "config.gin"], [], {}, None, trust_config)
    step, state = checkpoint.choose(run / "checkpoints", which)
    refuse_ill_formed(run, state)
    refuse_other(run, state, configuration)
    place = find_device(device)
    torch.set_num_threads(1)
    root = seed_for(experiment.seed if seed is None else seed, "eval")
    if folder is not None:
        experiment = films.for_pictures(experiment)
    kinds: list[Kind] = [] if greedy is None else ["greedy" if greedy else "sampled"]
    evaluator, network = open_evaluator(experiment, spec, place, num_episodes, root, kinds=kinds)
    greedy = evaluator.kind == "greedy"
    with restoring(run):
        repeats = state["run"].get("repeats", [0] * len(experiment.schedule))
        for policy in evaluator.policies:
            policy.begin_epoch(schedule_epoch(experiment, repeats), sum(repeats))
        for weights in state["weights"].values():  # none where nothing learns
            network.load_state_dict({**network.state_dict(), **weights})
        known = (
            state["actor"]["seats"][0] if "actor" in state else {"own": state["seats"][0]} if "seats" in state else {}
        )

    def on_hang(error: EnvError) -> None:
        print(f"packtrain: error: {error}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)

    environment = experiment.streams.environment
    columns = [evaluator.stream.columns]
    deadlines = environment.step_deadline_secs, environment.start_deadline_secs
    with contextlib.closing(evaluator), Watchdog(columns, *deadlines, on_hang):
        name = f"{step}" + "_sampled" * (not greedy)
        film, expansion = None, films.expansion_of(experiment)
        if folder is not None:
            film = films.Film(evaluator, folder, name, video_episodes, video_format, keep=expansion is not None)
        with exits_are_faults(columns):
            played, episodes = _play(evaluator, known, film)
    result = {**played, "checkpoint": step, "env": environment.id, "greedy": greedy}
    result |= {"returns": [each.returns["train"] for each in episodes], "lengths": [each.length for each in episodes]}
    if film is not None and folder is not None:
        result["videos"] = film.videos
        if expansion is not None:
            assert isinstance(network, ControlNetwork)
            result["weights"] = films.weigh(network, expansion, film, folder / f"{name}_weights.json")
    with contextlib.suppress(OSError):  # somebody else's folder may be read-only
        write_inside(run, "eval.json", json.dumps(result).encode() + b"\n")
    return result


def _play(evaluator: Evaluator, known: dict[str, Any], film: films.Film | None) -> tuple[dict[str, Any], list[Episode]]:
    """All episodes, those of the first kind apart; on a terminal, with a line that counts them."""
    shown = time.monotonic()
    evaluator.begin(known)
    result, episodes = None, evaluator.episodes
    while result is None:
        if film is not None and evaluator.plays_first_kind:
            film.look()
        result = evaluator.tick()
        if evaluator.plays_first_kind:
            episodes = evaluator.episodes
        if sys.stderr.isatty() and time.monotonic() - shown > 1:
            shown = time.monotonic()
            print(f"\r{evaluator.played} episodes", end="", file=sys.stderr, flush=True)
    if film is not None and evaluator.plays_first_kind:
        film.look()
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return result, [episode for column in episodes for episode in column]


def describe_evaluation(run: str, result: dict[str, Any]) -> str:
    """The result as a line or two for people."""
    interval = _half_width(result["return_ci95"]) + " (95 % interval)" * (result["return_ci95"] is not None)
    solved = f", solved {result['solved']:.3f}" if "solved" in result else ""
    cut = f", {result['episodes_truncated']} cut off" if result["episodes_truncated"] else ""
    text = (
        f"{run} at step {result['checkpoint']:,}: return {result['return_mean']:.3f}{interval}{solved} "
        f"({result['episodes']} episode{'s' * (result['episodes'] != 1)} of {result['length_mean']:.1f} steps{cut})"
    )
    if 1 < result["episodes"] <= MOST_LISTED:
        each = zip(result["returns"], result["lengths"], strict=True)
        text += "\n  episodes: " + ", ".join(f"{value:.1f} ({length:,} steps)" for value, length in each)
    each_kind = [
        f"{kind} {result[f'return_{kind}_mean']:.3f}" + _half_width(result[f"return_{kind}_ci95"])
        for kind in ("greedy", "sampled")
        if f"return_{kind}_mean" in result
    ]
    if each_kind:
        text += f"\n  {', '.join(each_kind)} ({result['episodes']} of each; above {_kind(result)})"
    others = {name: value for name, value in result["rewards"].items() if name != "train"}
    text += "".join(f"\n  {name}: {value:.3f}" for name, value in others.items())
    if "videos" in result:
        text += "\n" + films.describe(run, result["videos"], result.get("weights"))
    return text


def _half_width(value: float | None) -> str:
    return "" if value is None else f" ± {value:.3f}"


def _kind(result: dict[str, Any]) -> str:
    return "greedy" if result["greedy"] else "sampled"
