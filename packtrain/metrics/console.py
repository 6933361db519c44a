"""Progress of a run for people: a live panel on a terminal, plain lines in a pipe."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TextIO

from packtrain.metrics.bottleneck import bottleneck

log = logging.getLogger("packtrain")
NARROW = 70  # terminal columns; a narrower terminal has no progress bar
BORDER = 4  # terminal columns of the frame and its padding
CHANNELS = ("reward/", "episode_return/")  # prefixes of the metrics of reward channels
QUIET_SECS = 30.0  # after this time without a line, the progress is logged


def amount(value: float | None, digits: int = 3) -> str:
    """Return a short text of a number: 12.3K, 0.482, –."""
    if value is None:
        return "–"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= limit * 0.9995:
            return f"{value / limit:.{digits}g}{unit}"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def duration(seconds: float) -> str:
    """Return a duration as 1:02:03 or 2:03."""
    minutes, secs = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


class Console(Protocol):
    """Shows the progress of a run."""

    def show(self, row: dict[str, Any]) -> None:
        """Show a metric row."""

    def pulse(self, step: int, wall_s: float, doing: Callable[[], str]) -> None:
        """Show progress between metric rows; called often.

        Args:
          step: steps so far.
          wall_s: seconds of training.
          doing: returns a description of the current activity.
        """


class SilentConsole:
    """Shows nothing."""

    def show(self, row: dict[str, Any]) -> None:
        """Do nothing."""

    def pulse(self, step: int, wall_s: float, doing: Callable[[], str]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class PlainConsole:
    """Prints one line per row, at most one every few seconds; between rows, one every half a minute."""

    def __init__(
        self, name: str, total_steps: int, epochs: int | None = None, every_secs: float = 5.0, alone: bool = True
    ):
        self._total, self._epochs, self._every, self._last = total_steps, epochs, every_secs, 0.0
        self._head = "" if alone else f"{name}: "
        self._quiet, self._spoke = QUIET_SECS if alone else 2 * QUIET_SECS, time.monotonic()

    def show(self, row: dict[str, Any]) -> None:
        """Print a row if enough time has passed; evaluations are always printed."""
        now = time.monotonic()
        if row["kind"] == "planning" or (row["kind"] == "train" and now - self._last < self._every):
            return
        self._last = self._spoke = now
        print(self._head + line(row, self._total, self._epochs), flush=True)

    def pulse(self, step: int, wall_s: float, doing: Callable[[], str]) -> None:
        """Print a line between two rows if there was none for a while."""
        now = time.monotonic()
        if now - self._spoke > self._quiet:
            self._spoke = now
            print(f"{self._head}{_head(step, wall_s, self._total)}  {doing()}", flush=True)

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class RichConsole:
    """A panel with a progress bar and the newest numbers, redrawn in place."""

    def __init__(self, name: str, total_steps: int, epochs: int | None = None):
        from rich.console import Group
        from rich.live import Live
        from rich.panel import Panel
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.text import Text

        self._text, self._group, self._total, self._epochs = Text, Group, total_steps, epochs
        self._live = Live(refresh_per_second=4)
        steps, share = TextColumn("[bold]{task.fields[steps]}"), TextColumn("{task.percentage:>3.0f} %")
        times = [TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()]
        is_narrow = self._live.console.width < NARROW
        self._progress = (
            Progress(steps, share, times[-1]) if is_narrow else Progress(steps, BarColumn(None), share, *times)
        )
        self._task = self._progress.add_task(name, total=epochs or total_steps, steps="0")
        self._panel = lambda body: Panel(
            Group(self._progress, body),
            title=Text(name),  # a folder's name is not rich markup
            title_align="left",
        )
        self._newest: dict[str, dict[str, Any]] = {}
        self._doing, self._drawn = "", 0.0
        self._live.update(self._panel(""))
        self._live.start()

    def show(self, row: dict[str, Any]) -> None:
        """Redraw the panel with a new row."""
        self._newest[row["kind"]], self._doing = row, ""
        if "epoch" in row:
            of = "" if self._epochs is None else f"/{self._epochs}"
            self._progress.update(self._task, completed=row["epoch"], steps=f"{row['epoch']}{of} epochs")
        elif row["kind"] == "train":
            self._advance(row["step"])
        self._draw()

    def pulse(self, step: int, wall_s: float, doing: Callable[[], str]) -> None:
        """Update the bar and the line of the current activity, four times per second."""
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
        cells = [
            f"return {amount(train.get('episode_return'))}",
            *([f"solved {amount(train['solved'])}"] if "solved" in train else []),
            f"evaluated {amount(evaluated.get('return_mean'))}",
            *(f"{name} {amount(value)}" for name, value in reward_channels(train).items()),
            *(f"evaluated {name} {amount(value)}" for name, value in reward_channels(evaluated).items()),
            f"{amount(train.get('steps_per_second'))} steps/s",
            f"actor {100 * (train.get('actor_busy') or 0):.0f} % busy",
            f"learner {100 * (train.get('learner_busy') or 0):.0f} % busy",
        ]
        if (lag := train.get("policy_lag_mean")) is not None:
            cells.append(f"policy lag {amount(lag)} (max {train['policy_lag_max']})")
        lines = "\n".join(laid_out(cells, self._live.console.width - BORDER))
        body = self._text(lines)
        below = [self._text(text) for text in (self._doing, bottleneck(train)) if text]
        self._live.update(self._panel(self._group(body, *below) if below else body))

    def close(self) -> None:
        """Leave the last panel on the screen."""
        self._live.stop()


def reward_channels(row: dict[str, Any]) -> dict[str, Any]:
    """Return the mean returns of a row in reward channels other than the one that is learned from."""
    named = {name: value for name, value in row.items() if name.startswith(CHANNELS) and not name.endswith("/train")}
    return {name[name.index("/") + 1 :]: value for name, value in named.items()}


def laid_out(cells: list[str], width: int, gap: str = "   ") -> list[str]:
    """Return lines of at most `width` characters with as many cells as fit on each."""
    lines: list[str] = []
    for cell in cells:
        if lines and len(lines[-1]) + len(gap) + len(cell) <= width:
            lines[-1] += gap + cell
        else:
            lines.append(cell)
    return lines


def line(row: dict[str, Any], total_steps: int, epochs: int | None = None) -> str:
    """Return a row as one line of text."""
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
        each += "".join(f", {name} {amount(value)}" for name, value in reward_channels(row).items())
        return f"{head}  {label}: return {amount(row['return_mean'])}{solved}{spread}{each}"
    limit = f"  {name}" if (name := bottleneck(row).partition(":")[0]) else ""
    if "epoch" in row:
        solved = f"  solved {amount(row['solved'])}" if "solved" in row else ""
        loss = f"  loss {amount(row['total_loss'])}" if "total_loss" in row else ""
        return (
            f"{head}  return {amount(row.get('episode_return'))}{solved}  length {amount(row.get('episode_length'))}"
            f"{loss}  {amount(row.get('steps_per_second'))} steps/s{limit}"
        )
    lag = row.get("policy_lag_mean")
    channels = "".join(f"  {name} {amount(value)}" for name, value in reward_channels(row).items())
    return (
        f"{head}  return {amount(row.get('episode_return'))}{channels}  {amount(row.get('steps_per_second'))} steps/s  "
        f"actor {100 * (row.get('actor_busy') or 0):.0f} %  learner {100 * (row.get('learner_busy') or 0):.0f} %"
        f"{'' if lag is None else f'  lag {amount(lag)}'}{limit}"
    )


def _head(step: int, wall_s: float, total_steps: int) -> str:
    return f"step {step:>9,} of {total_steps:,}  {duration(wall_s)}"


def open_console(
    name: str, total_steps: int, epochs: int | None = None, alone: bool = True
) -> PlainConsole | RichConsole:
    """Return a panel on a terminal, lines elsewhere; for several runs together, lines with their names."""
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
        except (OSError, ValueError, RuntimeError) as error:  # the output was closed, or a signal interrupted the write
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
        """Return whether it is a terminal."""
        try:
            return self._inner.isatty()
        except ValueError:
            return False

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return its file descriptor, if it has one."""
        return self._inner.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return its text encoding."""
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
