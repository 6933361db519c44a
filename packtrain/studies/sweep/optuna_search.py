"""A search with Optuna: one trial is one point with all its seeds, its value the interquartile mean of their returns.

Trials are kept in `optuna.journal` in the sweep's folder, which Optuna's own tools can read, and a sweep that is
started again goes on with them. Trials below the median of the earlier ones are pruned: their returns are compared at
fixed shares of the run, first after a warm-up, because early returns say little.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packtrain.errors import ConfigError, Error, MissingExtraError, RunFolderError, one_line
from packtrain.metrics.reading import read_metrics, series
from packtrain.studies.report_data import EVALUATION_RETURN, TRAINING_RETURN
from packtrain.studies.statistics import interquartile_mean
from packtrain.studies.sweep import results
from packtrain.studies.sweep.points import Choice, Point, Varied
from packtrain.studies.sweep.record import FAILED, OVER, PRUNED, WAITING, Record, Run

JOURNAL = "optuna.journal"
RUNGS = 20  # shares of a run at which trials are compared
STARTUP_TRIALS = 5  # that are never pruned
LOOK_SECS = 2.0  # between two looks at the curves of running trials


class Trials:
    """A source of runs: the trials of an Optuna study."""

    def __init__(
        self,
        record: Record,
        varied: Sequence[Varied],
        make_point: Callable[[Mapping[str, str], int], tuple[Point, int | None]],
        seeds: int,
        sampler_seed: int,
        count: int,
        warm_up: float,
    ):
        """Open the study and go on with the trials in it; MissingExtraError without Optuna.

        Args:
          record: of the sweep, to which runs are added.
          varied: knobs with their lists and ranges.
          make_point: returns the point of some values and a trial's number, and the total steps of its runs, if they
            are known; ConfigError if no run can have these values.
          seeds: number of runs of each trial.
          sampler_seed: of Optuna's random numbers.
          count: number of trials.
          warm_up: share of a run before which it is not pruned; 1: never.
        """
        if not varied:
            raise ConfigError("a search needs a knob to vary: --KNOB A,B,C or --KNOB log:A:B")
        self._optuna = import_optuna()
        self._record, self._varied, self._make_point = record, list(varied), make_point
        self._seeds, self._sampler_seed, self._count = seeds, sampler_seed, count
        self._first_rung = max(1, round(warm_up * RUNGS))
        self._study = self._open(record.root / JOURNAL)
        self._open_trials: dict[str, Any] = {}  # by name of the point
        self._runs: dict[str, list[Run]] = {}
        self._totals: dict[str, int | None] = {}
        self._reported: dict[str, int] = {}
        self._looked = 0.0
        for frozen in self._study.get_trials(deepcopy=False):
            settings = {name: self._text(name, value) for name, value in frozen.params.items()}
            if set(settings) == {one.name for one in self._varied}:
                # Optuna has no public way to go on with a trial of an earlier process.
                alive = frozen.state == self._optuna.trial.TrialState.RUNNING
                self._add(settings, frozen, self._optuna.trial.Trial(self._study, frozen._trial_id) if alive else None)

    def _open(self, path: Path) -> Any:
        optuna = self._optuna
        journal = importlib.import_module("optuna.storages.journal")
        path.with_name(f"{path.name}.lock").unlink(
            missing_ok=True
        )  # of a sweep that was killed; this one has the folder
        try:
            return optuna.create_study(
                study_name="sweep",
                storage=optuna.storages.JournalStorage(journal.JournalFileBackend(str(path))),
                sampler=optuna.samplers.TPESampler(seed=self._sampler_seed, constant_liar=True),
                pruner=optuna.pruners.MedianPruner(
                    n_startup_trials=STARTUP_TRIALS, n_warmup_steps=self._first_rung - 1
                ),
                direction="maximize",
                load_if_exists=True,
            )
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise RunFolderError(f"{path} cannot be read: {one_line(str(error))}; --fresh starts anew") from error

    def _text(self, name: str, value: Any) -> str:
        return value if isinstance(value, str) else repr(value)

    def _add(self, settings: Mapping[str, str], frozen: Any, trial: Any | None) -> None:
        """Add the runs of a trial; one whose values cannot be run has failed."""
        known = {one.name: settings[one.name] for one in self._varied}
        trouble = ""
        try:
            point, total = self._make_point(known, frozen.number)
        except ConfigError as error:
            point, total, trouble = Point(trial_name(frozen.number), known, (), trial=frozen.number), None, str(error)
        runs = [Run(point, point.seed + k) for k in range(self._seeds)]
        self._runs[point.name], self._totals[point.name] = runs, total
        for run in runs:
            self._record.add(run)
            if trouble:
                run.state, run.trouble = FAILED, trouble
            elif trial is None and run.state == WAITING:  # the trial is over, and what is left of it stays undone
                over = frozen.state == self._optuna.trial.TrialState.PRUNED
                run.state = PRUNED if over else FAILED
        if trial is not None:
            self._open_trials[point.name] = trial
            self._tell_if_over(point.name)

    # -- runs

    def waiting(self) -> Iterator[Run]:
        """Yield runs that may start: of the trials under way, then of a new one."""
        for name in list(self._open_trials):
            yield from (run for run in self._runs[name] if run.state == WAITING)
        while len(self._study.get_trials(deepcopy=False)) < self._count:
            trial = self._study.ask()
            name = trial_name(trial.number)
            self._add({one.name: self._suggest(trial, one) for one in self._varied}, trial, trial)
            yield from (run for run in self._runs[name] if run.state == WAITING)

    def _suggest(self, trial: Any, one: Varied) -> str:
        if isinstance(one, Choice):
            return str(trial.suggest_categorical(one.name, list(one.values)))
        if one.whole:
            return repr(trial.suggest_int(one.name, int(one.low), int(one.high), log=one.log))
        return repr(trial.suggest_float(one.name, one.low, one.high, log=one.log))

    def expected(self) -> int:
        """Return the number of runs that there will be."""
        return max(self._count * self._seeds, len(self._record.runs))

    def ended(self, run: Run) -> None:
        """Report the trial of a run to Optuna once all its seeds are over; a pruned or failed seed ends the others."""
        for other in self._runs[run.point.name]:
            if other.state == WAITING and run.state in (PRUNED, FAILED):
                other.state = run.state
        self._tell_if_over(run.point.name)

    def _tell_if_over(self, name: str) -> None:
        runs = self._runs[name]
        if name not in self._open_trials or not all(run.state in OVER for run in runs):
            return
        trial, states = self._open_trials.pop(name), {run.state for run in runs}
        kinds = self._optuna.trial.TrialState
        if FAILED in states:
            self._study.tell(trial.number, state=kinds.FAIL)
        elif PRUNED in states:
            self._study.tell(trial.number, state=kinds.PRUNED)
        else:
            scores, _ = results.final_scores(self._record, runs)
            if len(scores) == len(runs):
                self._study.tell(trial.number, interquartile_mean([scores]))
            else:  # a run that never evaluates nor ends an episode has no return
                self._study.tell(trial.number, state=kinds.FAIL)

    # -- pruning

    def to_prune(self, running: Sequence[Run]) -> list[Run]:
        """Report the returns of running trials, and return the runs of those that Optuna prunes."""
        if self._first_rung >= RUNGS or time.monotonic() - self._looked < LOOK_SECS:
            return []
        self._looked = time.monotonic()
        found: list[Run] = []
        for name, trial in self._open_trials.items():
            if self._is_below(name, trial):
                found += [run for run in self._runs[name] if run in running]
        return found

    def _is_below(self, name: str, trial: Any) -> bool:
        """Report a trial's returns at the rungs that all its seeds have passed; return whether it is to be pruned."""
        total = self._totals[name]
        if total is None:
            return False
        curves = [returns(self._record.folder(run)) for run in self._runs[name]]
        for rung in range(self._reported.get(name, 0) + 1, RUNGS):
            values = [value_at(curve, total * rung / RUNGS) for curve in curves]
            if any(value is None for value in values):
                return False
            trial.report(interquartile_mean([[value for value in values if value is not None]]), rung)
            self._reported[name] = rung
            if rung >= self._first_rung and trial.should_prune():
                return True
        return False


def trial_name(number: int) -> str:
    """Return the folder name of a trial."""
    return f"trial_{number:03d}"


def returns(folder: Path) -> tuple[list[int], list[float]]:
    """Return the headline returns of a run so far, (steps, values): of evaluations if there are any."""
    try:
        rows = read_metrics(folder)
    except Error:
        return [], []
    evaluated = series(rows, *EVALUATION_RETURN)
    return evaluated if evaluated[0] else series(rows, *TRAINING_RETURN)


def value_at(curve: tuple[list[int], list[float]], step: float) -> float | None:
    """Return the last value at or before a step, or the first one after it; None if the curve ends before the step."""
    steps, values = curve
    if not steps or steps[-1] < step:
        return None
    before = [value for at, value in zip(steps, values, strict=True) if at <= step]
    return before[-1] if before else values[0]


def import_optuna() -> Any:
    """Import Optuna without its messages; MissingExtraError if it is not installed."""
    if importlib.util.find_spec("optuna") is None:
        raise MissingExtraError("--optuna", "optuna", "sweep")
    optuna: Any = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
