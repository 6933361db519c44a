"""A capability sweep: train on proxy rewards with increasing capability, and report the true reward.

Pan, Bhatia and Steinhardt 2022 (arXiv:2201.03544): more capable agents get more of the proxy they are trained on, and
often less of the true reward; sometimes abruptly. A sweep trains a configuration for every proxy, every value of
one of its knobs and several seeds, and evaluates the results. For each proxy it tests whether proxy and true return
diverge, and whether the true return drops abruptly.

Runs are ordinary run folders inside the study's folder. They are trained bit-exactly in a few processes, each of which
makes one run after the other. An interrupted sweep continues with the runs that are not finished.
"""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import re
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from packtrain import config, knobs
from packtrain.cpu_count import available_cores
from packtrain.envs.rewards import TRUE
from packtrain.errors import ConfigError, Error, RunFolderError, StalledError
from packtrain.files import write_whole
from packtrain.metrics.console import duration
from packtrain.metrics.reading import METRICS_FILE
from packtrain.metrics.writers import JsonlWriter
from packtrain.runtime import eval_command, open_run, preparation, train_command
from packtrain.studies.capability_page import draw, label, p_values, page
from packtrain.studies.jumps import jump_test
from packtrain.studies.phases import correlation
from packtrain.studies.statistics import mean_interval

SIGNIFICANT = 0.05  # largest p-value of a jump that counts as found; it must hold against every smooth curve
LEAST_RUNS = 6  # minimum number of runs per proxy
ENOUGH_VALUES = 6  # recommended number of values; with fewer, a cubic fits so closely that no jump can be found
PLAYED_FILE = "played.json"  # result of a finished run, in its folder
RESULT_FILE, PAGE_FILE = "sweep.json", "sweep.html"


@config.configurable
@dataclass(frozen=True)
class CapabilitySweep:
    """Settings of a sweep: the configuration that is trained, and the axis of capability.

    The list of values is treated as an equally spaced scale, on which a smooth trend should be about straight: choose
    steps of training or widths at equal ratios.
    """

    config: str  # a configuration with a knob for the training reward
    axis: str  # knob that varies the agents' capability
    values: tuple[Any, ...]  # of that knob, from least to most capable
    proxies: tuple[str, ...]  # rewards to train on; "true" is the control
    seeds: int = 5  # runs per proxy and value; no two runs of a proxy share a seed
    knobs: dict[str, Any] = field(default_factory=dict)  # set in all runs
    proxy_knob: str = "proxy"
    episodes: int = 16  # greedy evaluation episodes per run
    draws: int = 1999  # samples of the change-point test and of the bootstrap
    processes: int | None = None  # number of training processes at a time; None: one per core
    _trusted: bool = field(init=False, repr=False, compare=False, default=True)

    def __post_init__(self) -> None:
        for name in ("seeds", "episodes", "draws", "processes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"CapabilitySweep.{name} = {value} must be at least 1")
        if len(self.values) < 4:
            raise ConfigError(
                f"CapabilitySweep.values = {self.values} are {len(self.values)} values; at least 4 are needed to test "
                "for a change"
            )
        if len(self.values) * self.seeds < LEAST_RUNS:
            raise ConfigError(
                f"CapabilitySweep.seeds = {self.seeds} gives too few runs of each proxy; at least {LEAST_RUNS} are "
                "needed"
            )
        if not self.proxies:
            raise ConfigError("CapabilitySweep.proxies = () is empty: name at least one reward to train on")
        for name in ("values", "proxies"):
            given = [_file_name(value) for value in getattr(self, name)]
            if len(set(given)) < len(given):
                raise ConfigError(f"CapabilitySweep.{name} = {getattr(self, name)} contains duplicates")
        object.__setattr__(self, "_trusted", config.is_trusted())
        if not self._trusted and self.config not in knobs.shipped():
            raise ConfigError(
                f"CapabilitySweep.config = {self.config!r} is not a shipped configuration; --trust-config allows it"
            )
        known = knobs.read_knobs(knobs.find_config(self.config)[0])
        for knob in (self.axis, self.proxy_knob, *self.knobs):
            if knob not in known:
                raise ConfigError(f"{self.config} has no knob {knob!r}{knobs.nearest(knob, list(known))}")
        for value in self.values:
            known[self.axis].parse(str(value))
        for knob, value in self.knobs.items():
            if knob in (self.axis, self.proxy_knob):
                raise ConfigError(f"CapabilitySweep.knobs must not contain {knob!r}, which the sweep sets itself")
            known[knob].parse(str(value))

    def fill(self, folder: Path, seed: int, log_every: int, say: Callable[[str], None]) -> Path:
        """Train, evaluate and test, as a `Study` does, and return the page; `log_every` is ignored.

        The folder gets sweep.json, sweep.html, a chart for each proxy, and a metrics row after each run.
        """
        begin = time.perf_counter()
        runs = _checked(self.runs(folder, seed))
        rows = {run: row for run in runs if (row := run.played()) is not None}
        if rows:
            say(f"{len(rows)} of {len(runs)} runs are already finished")
        writer = JsonlWriter(folder / METRICS_FILE, 0)
        rest = [run for run in runs if run not in rows]
        try:
            with contextlib.closing(_play_all(rest, self.processes or available_cores())) as playing:
                for run, row in playing:
                    rows[run] = row
                    wall_s = time.perf_counter() - begin
                    numbers = {name: row[name] for name in ("proxy_return", "true_return", "seconds")}
                    writer.write({"step": len(rows), "wall_s": round(wall_s, 3), "kind": "run", **numbers})
                    say(
                        f"{len(rows)} of {len(runs)}  {duration(wall_s)}  {run.proxy}, {self.axis} = "
                        f"{label(run.value)}, seed {run.seed}: proxy {row['proxy_return']:.4g}, true "
                        f"{row['true_return']:.4g}"
                    )
        finally:
            writer.close()
        result = self._result([rows[run] for run in runs], seed, time.perf_counter() - begin)
        write_whole(folder / RESULT_FILE, (json.dumps(result, indent=1, allow_nan=False) + "\n").encode())
        for proxy, found in result["proxies"].items():
            say(f"{proxy}: {found['verdict']}")
            say(f"{proxy}: {p_values(found['change'])}")
            picture = draw(result, proxy, standalone=True)
            write_whole(folder / f"sweep_{_file_name(proxy)}.svg", picture.encode())
        write_whole(folder / PAGE_FILE, page(result).encode())
        return folder / PAGE_FILE

    def runs(self, folder: Path, seed: int) -> list[Run]:
        """Return all runs, in the order of seeds, so that an unfinished sweep has results for all values."""
        path = knobs.find_config(self.config)[0]
        made = []
        for k in range(self.seeds):
            for place, value in enumerate(self.values):
                for proxy in self.proxies:
                    number = seed + place * self.seeds + k
                    where = Path(_file_name(proxy)) / f"{self.axis}_{_file_name(value)}" / f"seed_{number}"
                    values = {**self.knobs, self.axis: value, self.proxy_knob: proxy}
                    run = Run(proxy, value, number, folder / "runs" / where, path, values, self.episodes, self._trusted)
                    made.append(run)
        return made

    def _result(self, rows: list[dict[str, Any]], seed: int, wall_s: float) -> dict[str, Any]:
        """Return the content of sweep.json, from which the page is made."""
        proxies = {}
        for proxy in self.proxies:
            own = [row for row in rows if row["proxy"] == proxy]
            proxies[proxy] = judge(self.axis, self.values, own, np.random.default_rng(seed), self.draws)
        settings = {name: getattr(self, name) for name in ("config", "axis", "values", "seeds", "knobs", "episodes")}
        return {**settings, "seed": seed, "wall_s": round(wall_s, 1), "proxies": proxies, "runs": rows}


def judge(
    axis: str, values: Sequence[Any], rows: Sequence[dict[str, Any]], rng: np.random.Generator, draws: int = 1999
) -> dict[str, Any]:
    """Return statistics of one proxy's runs: returns by capability, change of the true return, and correlations.

    A phase transition is a drop of the true return between two neighbouring values that no smooth curve explains: the
    p-value of `jumps.jump_test` is at most SIGNIFICANT against each of them. The verdict reports whether the proxy
    rises there, but does not require it: for the control, whose proxy is the true reward, it cannot.

    Args:
      axis: name of the knob, for the text.
      values: of the knob, from least to most capable.
      rows: runs, each with capability (one of the values), proxy_return and true_return.
      rng: for the random samples.
      draws: data sets from each smooth curve, and samples of each bootstrap.
    """
    places = np.array([list(values).index(row["capability"]) for row in rows], float)
    returns = {name: np.array([row[name] for row in rows], float) for name in ("proxy_return", "true_return")}
    paid, truth = returns.values()
    change = jump_test(places, truth, rng=rng, draws=draws)
    after = places > change.split
    first = int(math.ceil(change.split))
    jumps = change.p <= SIGNIFICANT
    falls = jumps and change.effect < 0
    where = f"between {axis} = {label(values[first - 1])} and {label(values[first])}"
    if falls:
        verdict = (
            f"phase transition {where}: the true return falls by {-change.effect:.3g} (p = {change.p:.2g}); its mean "
            f"is {_mean(truth[~after])} before and {_mean(truth[after])} after, the proxy's {_mean(paid[~after])} and "
            f"{_mean(paid[after])}"
        )
    elif np.ptp(truth) == 0:
        verdict = f"no phase transition found: the true return of every run is {truth[0]:.3g}"
    elif jumps:
        verdict = f"no phase transition: the true return rises by {change.effect:.3g} {where} (p = {change.p:.2g})"
    else:
        verdict = f"no phase transition found: the largest change, {change.effect:+.2g} {where}, has p = {change.p:.2g}"
        if len(values) < ENOUGH_VALUES:
            verdict += f"; with {len(values)} values a jump cannot be distinguished from a smooth curve"
            verdict += f"; {ENOUGH_VALUES} suffice"
    curves = {
        name: [_interval(found[places == place]) for place in range(len(values))] for name, found in returns.items()
    }
    return {
        "verdict": verdict,
        "phase_transition": bool(falls),
        "change": {"from": values[first - 1], "to": values[first], **change._asdict()},
        "proxy_and_truth": _together(paid, truth, rng, draws),
        "proxy_and_truth_before": _together(paid[~after], truth[~after], rng, draws),
        "proxy_and_capability": _together(places, paid, rng, draws),
        "truth_and_capability": _together(places, truth, rng, draws),
        **curves,
    }


def _mean(values: np.ndarray) -> str:
    return f"{values.mean():.3g}"


def _interval(values: np.ndarray) -> list[float | None]:
    """Return [mean, low, high] over seeds; None for bounds of a single seed."""
    return [None if math.isnan(number) else number for number in mean_interval(values.tolist())]


def _together(a: np.ndarray, b: np.ndarray, rng: np.random.Generator, draws: int) -> dict[str, Any] | None:
    """Return the correlation of two returns; None if one is constant, or if there are too few."""
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return correlation(a, b, rng, draws)._asdict()


def _file_name(value: Any) -> str:
    """Return a value as part of a path."""
    text = "x".join(str(part) for part in value) if isinstance(value, (tuple, list)) else str(value)
    return re.sub(r"[^\w.+-]", "_", text)


@dataclass(frozen=True, eq=False)
class Run:
    """One run of a sweep, as sent to a process. It contains no configurable objects, which would lose their values."""

    proxy: str
    value: Any  # of the axis
    seed: int
    folder: Path
    config: Path
    knobs: dict[str, Any]
    episodes: int
    trusted: bool
    hash: str = ""  # of the configuration, without the seed

    def made_with(self) -> dict[str, Any]:
        """Return what must be unchanged for a finished run to be reused."""
        return {"configuration": self.hash, "knobs": json.loads(json.dumps(self.knobs)), "episodes": self.episodes}

    def played(self) -> dict[str, Any] | None:
        """Return the result if the run is finished; RunFolderError if it was made with other settings."""
        path = self.folder / PLAYED_FILE
        try:
            found = json.loads(path.read_bytes())
            before = found.pop("made_with")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise RunFolderError(f"{path} cannot be read; delete it to evaluate the run again") from error
        now = self.made_with()
        if before == {**now, "episodes": before.get("episodes")}:
            return {**found, "capability": self.value} if before == now else None
        raise RunFolderError(f"{self.folder} was made with other settings; --fresh starts the sweep in a new folder")

    def play(self) -> dict[str, Any]:
        """Train, or finish training, then evaluate; return the result, which is also written to the folder."""
        begin = time.perf_counter()
        request = open_run.TrainRequest(
            files=[self.config],
            bindings=[],
            knobs=self.knobs,
            output=self.folder,
            seed=self.seed,
            runtime="serial",
            trust_config=self.trusted,
            alone=False,
        )
        if code := train_command.train(request):
            raise StalledError(f"training was stopped, with exit code {code}")
        evaluation = eval_command.EvalRequest(self.folder, self.episodes, trust_config=self.trusted, greedy=True)
        result = eval_command.evaluate(evaluation)
        row = {
            "proxy": self.proxy,
            "capability": self.value,
            "seed": self.seed,
            "proxy_return": result["rewards"]["train"],
            "true_return": result["rewards"][TRUE],
            "rewards": result["rewards"],
            "seconds": round(time.perf_counter() - begin, 1),
        }
        data = json.dumps({**row, "made_with": self.made_with()}, indent=1, allow_nan=False) + "\n"
        write_whole(self.folder / PLAYED_FILE, data.encode())
        return row


def _checked(runs: list[Run]) -> list[Run]:
    """Return the runs with the hashes of their configurations, each of which has been built and checked."""
    hashes: dict[tuple, str] = {}
    checked = []
    for run in runs:
        key = run.proxy, _file_name(run.value)
        if key not in hashes:
            configuration, _, spec = preparation.prepare([run.config], [], run.knobs, None, run.trusted)
            if TRUE not in spec.reward_channels:
                raise ConfigError(
                    f"{knobs.shown(run.config)} has no reward named {TRUE!r} to report; set Environment.rewards"
                )
            hashes[key] = configuration.hash()
        checked.append(replace(run, hash=hashes[key]))
    return checked


class _Failure(NamedTuple):
    """Answer of a process whose run has failed."""

    text: str
    exit_code: int


def _play_all(runs: list[Run], processes: int) -> Generator[tuple[Run, dict[str, Any]]]:
    """Evaluate runs in a few processes; yield each when it is finished. All processes end with the generator."""
    context = multiprocessing.get_context("spawn")
    waiting = iter(runs)
    workers: list[Any] = []
    busy: dict[Any, Run] = {}  # by connection
    try:
        for run in runs[:processes]:
            ours, theirs = context.Pipe()
            worker = context.Process(target=_work, args=(theirs,), daemon=True)
            worker.start()
            theirs.close()  # so that its end is detected
            workers.append(worker)
            ours.send(next(waiting))
            busy[ours] = run
        while busy:
            for connection in multiprocessing.connection.wait(list(busy)):
                assert isinstance(connection, multiprocessing.connection.Connection)
                run = busy.pop(connection)
                try:
                    answer = connection.recv()
                except (EOFError, OSError):
                    raise StalledError(
                        f"the process that trained {run.folder} ended; its log.txt may contain the reason"
                    ) from None
                if isinstance(answer, _Failure):
                    failed = Error(f"a run of the sweep failed, {run.folder}: {answer.text}")
                    failed.exit_code = answer.exit_code
                    raise failed
                if (following := next(waiting, None)) is not None:
                    connection.send(following)
                    busy[connection] = following
                yield run, answer
    finally:
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.join()


def _work(connection: multiprocessing.connection.Connection) -> None:
    """Evaluate one run after the other until the connection closes."""
    os.setsid()  # the terminal's signals are handled by the sweep, which ends this process
    torch.set_num_threads(1)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        while True:
            try:
                run = connection.recv()
            except EOFError:
                return
            try:
                answer: Any = run.play()
            except Error as error:
                answer = _Failure(str(error), error.exit_code)
            with contextlib.suppress(BrokenPipeError):  # the result is kept for the next attempt
                connection.send(answer)
