"""Run every command and every Python snippet of the README and the docs, page by page, and print a table.

python benchmarks/docs_commands.py                        # an hour or more
python benchmarks/docs_commands.py docs/sweeps.md --secs 10

Commands of a page run in its order in one empty folder, so that a later one finds the runs of an earlier one. A command
that is not over after `--secs` seconds receives Ctrl-C, on which packtrain saves and ends: that counts as executed.
What cannot run here is marked, with its reason:

- GPU: it names a CUDA device;
- cluster: it needs other machines, Slurm or a head node;
- files: it reads a file or a run that only the reader has;
- install: it changes the environment, or is not a command of packtrain;
- CI: a snippet that a test runs as it stands, `<!-- test: … -->`, or a script of docs/tasks.

The exit code is 1 if a command failed, else 0.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
OTHER_MACHINES = re.compile(r"--address|--on (slurm|cluster)|--runtime cluster|RayBatchStepper|\bnode\b|HEAD:|ray ")
NEEDS_FILE = re.compile(
    r"does not exist|is not a file|no run|cannot be read|no such|not a run folder|neither a shipped|not found", re.I
)


class Outcome(NamedTuple):
    """What happened to a command or snippet."""

    page: str
    text: str
    result: str  # executed, stopped, FAILED, or a mark
    why: str = ""


def reader():
    """Return the module that finds the commands of a page."""
    spec = importlib.util.spec_from_file_location("docs_reader", ROOT / "tests" / "test_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mark(line: str) -> str:
    """Return why a command cannot run here; empty if it can."""
    if "cuda" in line or "nvidia" in line:
        return "GPU"
    if OTHER_MACHINES.search(line):
        return "cluster"
    return ""


def run(argv: list[str], folder: Path, secs: float) -> tuple[int, str, bool]:
    """Run a command; return its exit code, the end of what it said, and whether it was stopped."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(folder / ".state")}
    process = subprocess.Popen(
        argv, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        said, _ = process.communicate(timeout=secs)
        return process.returncode, said[-400:], False
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        said, _ = process.communicate(timeout=90)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        return 1, f"it did not end after Ctrl-C: {said[-300:]}", True
    return process.returncode, said[-400:], True


def command(page: str, line: str, argv: list[str], folder: Path, secs: float) -> Outcome:
    """Run one call of packtrain."""
    text = f"packtrain {shlex.join(argv)}"
    if reason := mark(line):
        return Outcome(page, text, reason)
    code, said, stopped = run([sys.executable, "-m", "packtrain", *argv], folder, secs)
    last = (said.strip().splitlines() or [""])[-1]
    if code == 0 or (stopped and code in (130, -signal.SIGINT)):
        return Outcome(page, text, "stopped" if stopped else "executed")
    if code == 2 and NEEDS_FILE.search(last):
        return Outcome(page, text, "files", last)
    return Outcome(page, text, "FAILED", last)


def snippets(page: Path, folder: Path, secs: float) -> list[Outcome]:
    """Run the Python snippets of a page that no test runs, in order, as one program that grows."""
    found, before = [], ""
    name = str(page.relative_to(ROOT))
    for match in re.finditer(r"(<!-- test: [^>]*-->\n)?^```python[^\n]*\n(.*?)^```", page.read_text(), re.M | re.S):
        marked, content = match.groups()
        title = content.strip().splitlines()[0] if content.strip() else ""
        if marked:
            found.append(Outcome(name, title, "CI"))
        elif reason := mark(content):
            found.append(Outcome(name, title, reason))
        else:
            code, said, stopped = run([sys.executable, "-c", before + content], folder, secs)
            last = (said.strip().splitlines() or [""])[-1]
            if code == 0 and not stopped:
                before += content
            result = "stopped" if stopped else "executed" if code == 0 else "FAILED"
            if result == "FAILED" and (NEEDS_FILE.search(last) or "NameError" in last or "ModuleNotFound" in last):
                result = "files"
            found.append(Outcome(name, title, result, "" if result == "executed" else last))
    return found


def run_page(page: Path, secs: float) -> list[Outcome]:
    """Run everything of a page in an empty folder."""
    found, docs = [], reader()
    name = str(page.relative_to(ROOT))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for line in docs.command_lines(page.read_text(encoding="utf-8")):
            calls = docs.packtrain_calls(line)
            found += [command(name, line, argv, folder, secs) for argv in calls]
            if not calls and line.strip():
                found.append(Outcome(name, line.strip(), "install"))
        found += snippets(page, folder, secs)
    return found


def main() -> int:
    """Run the pages, and print one line per command and a summary."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, help="default: README.md and all of docs/")
    parser.add_argument("--secs", type=float, default=30.0, help="seconds before Ctrl-C (default: 30)")
    arguments = parser.parse_args()
    pages = [page.resolve() for page in arguments.pages] or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    counts: collections.Counter[str] = collections.Counter()
    for page in pages:
        for outcome in run_page(page, arguments.secs):
            counts[outcome.result] += 1
            why = f"  {outcome.why}" if outcome.why else ""
            print(f"{outcome.result:<9} {outcome.page}: {outcome.text[:110]}{why[:200]}", flush=True)
    print(", ".join(f"{count} {result}" for result, count in sorted(counts.items())))
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
