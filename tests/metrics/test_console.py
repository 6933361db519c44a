"""What a person sees may break; what is printed then is left out, and nothing else happens."""

import errno
import io
import logging
import os
import sys

import pytest

from packtrain.metrics.console import PlainConsole, RichConsole, never_failing_terminal

ROW = {"kind": "train", "step": 10, "wall_s": 1.0, "episode_return": 1.0, "steps_per_second": 5.0}


class Broken(io.StringIO):
    """A pipe whose reader is gone, or a terminal that was closed."""

    def __init__(self, number, tty):
        super().__init__()
        self.number, self.tty, self.tries = number, tty, 0

    def write(self, text):
        self.tries += 1
        raise OSError(self.number, os.strerror(self.number))

    def flush(self):
        raise OSError(self.number, os.strerror(self.number))

    def isatty(self):
        return self.tty


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO, errno.ENOSPC, errno.EBADF])
@pytest.mark.parametrize("kind", [PlainConsole, RichConsole])
def test_a_console_that_cannot_be_written_ends_nothing(monkeypatch, caplog, number, kind):
    """Mutation: rich's own answer to a broken pipe, which is SystemExit."""
    broken = Broken(number, kind is RichConsole)
    monkeypatch.setattr(sys, "stdout", broken)
    with caplog.at_level(logging.WARNING, "packtrain"), never_failing_terminal():
        console = kind("run", 100)
        console.show(ROW)
        console.pulse(20, 2.0, lambda: "updates")
        print("hello", flush=True)
        console.close()
    assert broken.tries and sys.stdout is broken
    assert len([r for r in caplog.records if "stdout cannot be written" in r.message]) == 1


def test_what_cannot_be_flushed_at_the_end_is_thrown_away(tmp_path, monkeypatch):
    """Python would leave with code 120 otherwise."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:  # closing flushes
        monkeypatch.setattr(sys, "stdout", pipe)
        with never_failing_terminal():
            print("never read")


def test_without_a_terminal_nothing_is_printed(monkeypatch):
    """As where file descriptor 1 was closed before Python began."""
    from packtrain.metrics.console import open_console

    monkeypatch.setattr(sys, "stdout", None)
    with never_failing_terminal():
        open_console("run", 100).show(ROW)
    assert sys.stdout is None


def test_what_works_is_printed_as_before(capsys):
    with never_failing_terminal():
        print("to stdout")
        print("to stderr", file=sys.stderr)
    assert capsys.readouterr() == ("to stdout\n", "to stderr\n")


def test_a_folders_name_is_no_markup(monkeypatch):
    """Mutation: a title given as text, which rich reads for [tags]."""
    from rich import get_console

    from packtrain.metrics.console import RichConsole

    monkeypatch.setattr(get_console(), "_file", io.StringIO())  # `file` would be restored to a fixed stream
    console = RichConsole("runs/[/red]x", 100)
    console.show({"kind": "train", "step": 3, "wall_s": 1.0})
    console.close()
    assert "[/red]x" in get_console().file.getvalue()
