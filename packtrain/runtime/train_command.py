"""`packtrain train`: one seed, or several, from a parsed command line to an exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from packtrain import knobs
from packtrain.errors import DivergedError
from packtrain.files import refuse_links
from packtrain.metrics.console import never_failing_terminal
from packtrain.runtime import checkpoint, local, multi_seed, serial
from packtrain.runtime.experiment import Experiment
from packtrain.runtime.folder import RunFolder, claim, point_latest
from packtrain.runtime.open_run import OpenRun, Saved, TrainRequest, open_run, prepare_request
from packtrain.runtime.preparation import finished
from packtrain.runtime.restore_checks import refuse_ill_formed
from packtrain.runtime.training import Training

RUNTIMES = {"local": local.run, "serial": serial.run, "cluster": local.run}


def output_folder(output_dir: str | None, savedir: str | None, xpid: str | None, config_name: str) -> Path:
    """Return the run folder that a command line names."""
    if output_dir is not None:
        return Path(output_dir).expanduser()
    root = Path(savedir or "runs").expanduser()
    if xpid is not None:
        return root / xpid
    path = Path(config_name)
    name = str(path.with_suffix("")) if config_name in knobs.shipped() else path.stem
    return root / name / time.strftime("%Y%m%d-%H%M%S")


Guard = Callable[[], AbstractContextManager[Any]]
"""Makes a context in which configurations are loaded and runs are built."""


def train(request: TrainRequest) -> int:
    """Train one seed, or several; return the exit code."""
    with never_failing_terminal():
        if request.num_seeds is not None:
            return train_seeds(request, request.num_seeds)[1]
        return train_one(request)[1]


def train_one(request: TrainRequest, guard: Guard = contextlib.nullcontext) -> tuple[Path, int]:
    """Train one seed; return the run folder and the exit code.

    Args:
      request: what to train.
      guard: context for what must not happen in two threads at once.
    """
    with contextlib.ExitStack() as stack:
        with guard():
            opened = stack.enter_context(open_run(request))
        if opened is None:  # it was finished already
            return request.home / request.output, 0
        code = carry_out(request, opened)
        return opened.folder.path, code


def carry_out(request: TrainRequest, opened: OpenRun) -> int:
    """Train an open run to its end, or until it is asked to stop; return the exit code."""
    with _signals([opened.training]) as received:
        RUNTIMES[request.runtime](opened.training)
        opened.training.saver.save(required=True)
    opened.training.saver.report_checkpoints()
    return opened.close(received)


def train_seeds(request: TrainRequest, num_seeds: int, guard: Guard = contextlib.nullcontext) -> tuple[Path, int]:
    """Train several seeds, at once where they can share updates, else one after another.

    Args:
      request: what to train.
      num_seeds: number of seeds, from the request's on.
      guard: as in `train_one`.

    Returns:
      The folder of the seeds' folders, and the exit code.
    """
    with guard():
        _, experiment, _ = prepare_request(request)
    root = request.output
    if request.fresh:
        root = root.with_name(claim(request.home / root).name)
    refuse_links(request.home / root)
    shared = _shares(request, experiment)
    requests = []
    for k in range(num_seeds):
        output, start = root / f"seed_{k}", request.start_from and request.start_from / f"seed_{k}"
        one = replace(request, output=output, start_from=start, seed=experiment.seed + k, alone=not shared)
        one = replace(one, notes=request.notes if k == 0 else (), sinks=tuple(s.for_seed() for s in request.sinks))
        requests.append(replace(one, num_seeds=None, latest_in=None, fresh=False))
    code = _train_together(requests, guard) if shared else 0
    for number, one in enumerate([] if shared else requests, 1):
        if not request.quiet:
            print(f"seed {number} of {num_seeds}: {one.output}", flush=True)
        if code := train_one(one, guard)[1]:
            break  # at the first failure
    if request.latest_in is not None and not code:
        point_latest(request.home / request.latest_in, request.home / root)
    return request.home / root, code


def _shares(request: TrainRequest, experiment: Experiment) -> bool:
    """Return whether several seeds run in one loop, which needs their environments and learners in this process."""
    here = request.remote is None and request.learners == 1 and not request.trace
    return here and multi_seed.can_share(experiment)


def _train_together(requests: list[TrainRequest], guard: Guard) -> int:
    """Train several seeds at once in this process; return the exit code."""
    with contextlib.ExitStack() as stack:
        with guard():
            found = _together_from(requests)
            each = [None if one is None else stack.enter_context(open_run(*one)) for one in found]
        opened = [one for one in each if one is not None]
        if not opened:
            return 0
        with _signals([one.training for one in opened]) as received:
            runs = [None if one is None else one.training for one in each]
            diverged = multi_seed.run(runs, overlaps=requests[0].runtime == "local")
            left = {place: one.training for place, one in enumerate(each) if one is not None and place not in diverged}
            diverged |= multi_seed.save_all(left, required=True)
        codes = [one.close(received) for place, one in enumerate(each) if one is not None and place not in diverged]
        for place, why in diverged.items():
            print(f"packtrain: error: {requests[place].output}: {why}", file=sys.stderr, flush=True)
        behind = [one.output for one, known in zip(requests, found, strict=True) if known is None]
        for output in behind:
            line = f"{output} diverged before and was left out; the same command goes on with it"
            print(f"packtrain: error: {line} when the others are finished", file=sys.stderr, flush=True)
        incomplete = DivergedError.exit_code if diverged or behind else 0
        return next(iter(codes), 0) or incomplete


def _together_from(requests: list[TrainRequest]) -> list[tuple[TrainRequest, Saved | None] | None]:
    """Return the checkpoint that each of several seeds resumes from; joint training needs equal update counts.

    None stands for a run that diverged before while others, which are not finished yet, went on.
    """
    folders = [RunFolder(one.output, one.home).checkpoints for one in requests]
    newest = [checkpoint.load_newest(folder) if folder.is_dir() else None for folder in folders]
    for folder, saved in zip(folders, newest, strict=True):
        if saved is not None:
            refuse_ill_formed(folder.parent, saved[1])
    _, experiment, _ = prepare_request(requests[0])
    under_way = [k for k, saved in enumerate(newest) if saved is None or finished(experiment, saved[1]["run"]) is None]
    behind = [k for k in under_way if multi_seed.left_behind(folders[k].parent)]
    if len(behind) == len(under_way):
        behind = []
    under_way = [k for k in under_way if k not in behind]
    if experiment.by_ratio and under_way:
        for k, saved in zip(under_way, multi_seed.same_updates([folders[k] for k in under_way]), strict=True):
            newest[k] = saved
    pairs = zip(requests, newest, strict=True)
    return [None if k in behind else pair for k, pair in enumerate(pairs)]


@contextlib.contextmanager
def _signals(trainings: list[Training]) -> Iterator[list[signal.Signals]]:
    """Save and end the runs at the first SIGINT, SIGTERM or SIGHUP, and end the process at once at the second.

    A closed terminal sends SIGHUP, and its shell may send a second one, which is ignored. Where SIGHUP is ignored from
    the start, as under `nohup`, it stays ignored.
    """
    received: list[signal.Signals] = []
    if threading.current_thread() is not threading.main_thread():  # Python delivers signals only to the main thread
        yield received
        return

    def handle(number: int, _: Any) -> None:
        if received and number == signal.SIGHUP:
            return
        if received:
            os.write(2, b"\npacktrain: left at once: nothing was saved since the last checkpoint\n")
            os._exit(128 + number)
        received.append(signal.Signals(number))
        for training in trainings:
            training.progress.stop = KeyboardInterrupt()
        print(
            f"\n{signal.Signals(number).name}: saving, then leaving; once more leaves at once, without saving",
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
