"""What a person sees while a run goes on: a live panel on a terminal, plain lines in a pipe."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TextIO

log = logging.getLogger("packtrain")
QUIET_SECS = 30.0  # after so long without a line, one says how far a run is


def amount(value: float | None, digits: int = 3) -> str:
    """A number for people: 12.3K, 0.482, –."""
    if value is None:
        return "–"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= limit * 0.9995:
            return f"{value / limit:.{digits}g}{unit}"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def duration(seconds: float) -> str:
    """1:02:03 or 2:03."""
    minutes, secs = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


class Console(Protocol):
    """Shows a person how a run gets on."""

    def show(self, row: dict[str, Any]) -> None:
        """A metric row has been written."""

    def pulse(self, step: int, wall_s: float, doing: Callable[[], str]) -> None:
        """Something has been done since; called often.

        Args:
          step: how far it is.
          wall_s: seconds of training.
          doing: says in words what is going on, if anybody wants to know.
        """


class PlainConsole:
    """One line for every row, at most one every few seconds; of what goes on between rows, one in half a minute."""

    def __init__(
        self, name: str, total_steps: int, epochs: int | None = None, every_secs: float = 5.0, alone: bool = True
    ):
        self._total, self._epochs, self._every, self._last = total_steps, epochs, every_secs, 0.0
        self._head = "" if alone else f"{name}: "
        self._quiet, self._spoke = QUIET_SECS if alone else 2 * QUIET_SECS, time.monotonic()

    def show(self, row: dict[str, Any]) -> None:
        """Print a row if it is time; evaluations are always printed."""
        now = time.monotonic()
        if row["kind"] == "planning" or (row["kind"] == "train" and now - self._last < self._every):
            return
        self._last = self._spoke = now
        print(self._head + line(row, self._total, self._epochs), flush=True)

    def pulse(self, step: int, wall_s: float, doing: Callable[[], str]) -> None:
        """Between two rows: a line if there was none for a while."""
        now = time.monotonic()
        if now - self._spoke > self._quiet:
            self._spoke = now
            print(f"{self._head}{_head(step, wall_s, self._total)}  {doing()}", flush=True)

    def close(self) -> None:
        """Nothing is held."""


class RichConsole:
    """A panel with a progress bar and the newest numbers, redrawn in place."""

    def __init__(self, name: str, total_steps: int, epochs: int | None = None):
        from rich.console import Group
        from rich.live import Live
        from rich.panel import Panel
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.table import Table
        from rich.text import Text

        self._table, self._group, self._total, self._epochs = Table, Group, total_steps, epochs
        self._progress = Progress(
            TextColumn("[bold]{task.fields[steps]}"),
            BarColumn(None),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._task = self._progress.add_task(name, total=epochs or total_steps, steps="0")
        self._panel = lambda body: Panel(
            Group(self._progress, body),
            title=Text(name),  # a folder's name is no markup
            title_align="left",
        )
        self._newest: dict[str, dict[str, Any]] = {}
        self._doing, self._drawn = "", 0.0
        self._live = Live(self._panel(""), refresh_per_second=4)
        self._live.start()

    def show(self, row: dict[str, Any]) -> None:
        """Redraw with a new row."""
        self._newest[row["kind"]], self._doing = row, ""
        if "epoch" in row:
            of = "" if self._epochs is None else f"/{self._epochs}"
            self._progress.update(self._task, completed=row["epoch"], steps=f"{row['epoch']}{of} epochs")
        elif row["kind"] == "train":
            self._advance(row["step"])
        self._draw()

    def pulse(self, step: int, wall_s: float, doing: Callable[[], str]) -> None:
        """Between two rows: the bar and a line of what is going on, four times a second."""
        if time.monotonic() - self._drawn > 0.25:
            self._advance(step)
            self._doing = doing()
            self._draw()

    def _advance(self, step: int) -> None:
        text = f"{amount(step)}/{amount(self._total)} steps"
        self._progress.update(self._task, completed=min(step, self._total), steps=text)

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        train, evaluated = self._newest.get("train", {}), self._newest.get("eval", {})
        lag = train.get("policy_lag_mean")
        table = self._table.grid(padding=(0, 3))
        table.add_row(
            f"return [bold]{amount(train.get('episode_return'))}[/]",
            *([f"solved [bold]{amount(train['solved'])}[/]"] if "solved" in train else []),
            f"evaluated [bold]{amount(evaluated.get('return_mean'))}[/]",
            f"{amount(train.get('steps_per_second'))} steps/s",
            f"actor {100 * (train.get('actor_busy') or 0):.0f} % busy",
            f"learner {100 * (train.get('learner_busy') or 0):.0f} % busy",
            *([f"policy lag {amount(lag)} (max {train['policy_lag_max']})"] if lag is not None else []),
        )
        self._live.update(self._panel(self._group(table, self._doing) if self._doing else table))

    def close(self) -> None:
        """Leave the last panel on the screen."""
        self._live.stop()


def line(row: dict[str, Any], total_steps: int, epochs: int | None = None) -> str:
    """A row as one line of text."""
    if "epoch" in row:
        of = "" if epochs is None else f" of {epochs:,}"
        head = f"epoch {row['epoch']:>5,}{of}  step {row['step']:>9,}  {duration(row['wall_s'])}"
    else:
        head = _head(row["step"], row["wall_s"], total_steps)
    if row["kind"].partition("/")[0] == "eval":
        name = row["kind"].partition("/")[2]
        episodes = f"{row['episodes']} episode{'s' * (row['episodes'] != 1)}"
        if row.get("episodes_truncated"):
            episodes += f", {row['episodes_truncated']} cut off"
        spread = f", standard deviation {amount(row['return_std'])} over {episodes}"
        solved = f", solved {amount(row['solved'])}" if "solved" in row else ""
        kinds = [kind for kind in ("greedy", "sampled") if f"return_{kind}_mean" in row]
        each = "".join(f", {kind} {amount(row[f'return_{kind}_mean'])}" for kind in kinds)
        label = f"evaluation {name}" if name else "evaluation"
        return f"{head}  {label}: return {amount(row['return_mean'])}{solved}{spread}{each}"
    if "epoch" in row:
        solved = f"  solved {amount(row['solved'])}" if "solved" in row else ""
        loss = f"  loss {amount(row['total_loss'])}" if "total_loss" in row else ""
        return (
            f"{head}  return {amount(row.get('episode_return'))}{solved}  length {amount(row.get('episode_length'))}"
            f"{loss}  {amount(row.get('steps_per_second'))} steps/s"
        )
    lag = row.get("policy_lag_mean")
    return (
        f"{head}  return {amount(row.get('episode_return'))}  {amount(row.get('steps_per_second'))} steps/s  "
        f"actor {100 * (row.get('actor_busy') or 0):.0f} %  learner {100 * (row.get('learner_busy') or 0):.0f} %"
        f"{'' if lag is None else f'  lag {amount(lag)}'}"
    )


def _head(step: int, wall_s: float, total_steps: int) -> str:
    return f"step {step:>9,} of {total_steps:,}  {duration(wall_s)}"


def open_console(
    name: str, total_steps: int, epochs: int | None = None, alone: bool = True
) -> PlainConsole | RichConsole:
    """The panel on a terminal, lines elsewhere; of runs that are not alone there, lines with their names."""
    if alone and sys.stdout is not None and sys.stdout.isatty():
        return RichConsole(name, total_steps, epochs)
    return PlainConsole(name, total_steps, epochs, 5.0 if alone else 30.0, alone)


class _NeverFails(io.TextIOBase):
    """Wrapper around stdout or stderr that drops what cannot be written instead of raising an error."""

    def __init__(self, inner: TextIO, name: str):
        self._inner, self._name, self._refused = inner, name, False

    def write(self, text: str) -> int:
        """Write, or do nothing."""
        try:
            return self._inner.write(text)
        except (OSError, ValueError, RuntimeError) as error:  # closed, or a signal came while it was written to
            return self._note(error) or len(text)

    def flush(self) -> None:
        """Flush, or do nothing."""
        try:
            self._inner.flush()
        except (OSError, ValueError, RuntimeError) as error:
            self._note(error)

    def _note(self, error: Exception) -> int:
        if not self._refused:
            self._refused = True
            log.warning(
                "%s cannot be written: %s; the run goes on, and metrics.jsonl shows its progress", self._name, error
            )
        return 0

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        try:
            return self._inner.isatty()
        except ValueError:
            return False

    def writable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """Its file descriptor, if it has one."""
        return self._inner.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """How text becomes bytes."""
        return self._inner.encoding

    def leave(self) -> None:
        """Flush for the last time; drop what cannot be written, so that Python does not exit with code 120."""
        try:
            self._inner.flush()
        except ValueError:
            return
        except OSError:
            with contextlib.suppress(OSError, ValueError):
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, self._inner.fileno())
                os.close(nothing)
                self._inner.flush()


@contextlib.contextmanager
def never_failing_terminal() -> Iterator[None]:
    """Replace stdout and stderr by wrappers whose failures are ignored: closed pipes and terminals, full disks."""
    before = sys.stdout, sys.stderr
    around = [
        None if one is None else _NeverFails(one, f"std{n}") for one, n in zip(before, ("out", "err"), strict=True)
    ]
    sys.stdout, sys.stderr = around
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for one in around:
            if one is not None:
                one.leave()
