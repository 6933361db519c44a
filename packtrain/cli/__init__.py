"""The command line. Each command is a module of this package with a function `run(argv) -> exit code`.

Modules of commands are imported when they are called, and import torch only when they must.
"""

from __future__ import annotations

import codecs
import importlib
import io
import sys
from typing import NamedTuple

from packtrain import __version__, knobs
from packtrain.errors import ConfigError, EnvSetupError, Error, one_line


class Command(NamedTuple):
    """One command: its module in this package and its line in the overview."""

    module: str
    arguments: str
    help: str


COMMANDS = {
    "train": Command("train", "CONFIG...", "train an agent; the same command again resumes"),
    "eval": Command("evaluate", "RUN", "play episodes with a run's checkpoint"),
    "list": Command("list_configs", "[WORD...]", "the shipped configurations, or those with every word in their name"),
    "show-config": Command("show_config", "CONFIG...", "the configuration that would run"),
    "sweep": Command(
        "sweep", "CONFIG|SPEC.py", "train over values of knobs and over seeds; runs mrunner's specifications"
    ),
    "suite": Command(
        "suite", "NAME CONFIG", "train on the games of atari5, atari10 or atari57, and compare the scores"
    ),
    "report": Command("report", "RUN...", "one HTML page with the curves of one or more runs"),
    "explore": Command("explore", "RUN", "a page of recorded searches: trees, plans, predictions; see --trace"),
    "watch": Command("watch", "RUN...", "the same page live, in a browser on this machine"),
    "audit": Command(
        "audit", "RUN --trusted T", "does a run's policy still act like a trusted one? a verdict and a page"
    ),
    "exam": Command("exam", "[CONFIG...]", "ten one-ability environments, one score card"),
    "export": Command("export", "RUN", "write a policy for programs without packtrain"),
    "record": Command("record", "RUN --out DIR", "write a policy's episodes as demonstrations, a data set of Minari"),
    "convert": Command(
        "convert",
        "FILE",
        "a checkpoint or a configuration of TorchBeast, Alpacka, STEVE or marltas_core in our format",
    ),
    "bench": Command("bench", "NAME", "throughput beside its own limits"),
    "verify": Command("verify", "RESULT...|--all", "run the first updates of published results again, and compare"),
    "reproduce": Command("reproduce", "RESULT", "the commands of a published result"),
    "node": Command("node", "--head|--address", "this machine as the head of a cluster, or as one more node of it"),
    "doctor": Command("doctor", "", "versions, devices, limits, and what is missing"),
}

PLAIN = "packtrain.plain"  # name of `_plain` among Python's encoding error handlers
ASCII = {
    **{"–": "-", "—": "-", "−": "-", "…": "...", "±": "+-", "→": "->", "×": "x", "·": "*", "≥": ">=", "≤": "<="},
    **{"’": "'", "“": '"', "”": '"', "ε": "epsilon", "λ": "lambda", "τ": "tau", "π": "pi", "γ": "gamma", "∞": "inf"},
}
"""How a terminal without these characters shows them."""


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that a stream cannot show: by ASCII text where there is one, else by an escape."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    wrong = error.object[error.start : error.end]
    return "".join(
        ASCII.get(letter) or letter.encode("ascii", "backslashreplace").decode() for letter in wrong
    ), error.end


codecs.register_error(PLAIN, _plain)


def usage() -> str:
    """Return the overview of all commands."""
    lines = [f"  {f'{name} {command.arguments}':<22} {command.help}" for name, command in COMMANDS.items()]
    head = "usage: packtrain COMMAND [ARGUMENTS]      (packtrain COMMAND --help says more)"
    return "\n".join([head, "", *lines, ""])


def main(argv: list[str] | None = None) -> int:
    """Run one command; return the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAIN)  # paths may contain invalid UTF-8
    try:
        if not argv or argv[0] in ("-h", "--help", "help"):
            print(usage(), end="")
            return 0 if argv else 2
        if argv[0] in ("-V", "--version"):
            print(f"packtrain {__version__}")
            return 0
        if argv[0] not in COMMANDS:
            known = list(COMMANDS)
            raise ConfigError(
                f"unknown command {argv[0]!r}{knobs.nearest(argv[0], known)}; there are {', '.join(known)}"
            )
        command = importlib.import_module(f"packtrain.cli.{COMMANDS[argv[0]].module}")
        return int(command.run(argv[1:]))
    except Error as error:
        print(f"packtrain: error: {one_line(str(error))}{_traceback_of(error, argv)}", file=sys.stderr, flush=True)
        return error.exit_code
    except BrokenPipeError:
        return 141
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # an error in packtrain, or a machine without memory or file handles
        from packtrain.cli import last_resort

        print(f"packtrain: error: {one_line(last_resort.describe(error, argv))}", file=sys.stderr, flush=True)
        return 1


def _traceback_of(error: Error, argv: list[str]) -> str:
    """Return the log with the traceback of the user's own code, if an error has one that no run has logged."""
    if not isinstance(error, EnvSetupError) or error.__cause__ is None:
        return ""
    from packtrain.cli import last_resort

    return f"; the traceback is in {last_resort.log_traceback(error, [])}"
