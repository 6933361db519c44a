"""`packtrain exam`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from packtrain import files
from packtrain.cli.parser import Parser
from packtrain.errors import ConfigError


def run(argv: list[str]) -> int:
    """Train families on one-ability environments and print the score card; return the exit code."""
    text = """Train agents on ten small environments that test one ability each, and print one score card.
A score is (return - chance) / (optimum - chance): 0 is what random actions score, 1 the best policy.

CONFIG is a family of the card (impala, ppo, dqn, ...; see docs/exam.md) or any configuration of your
own, which is trained on each environment that it can act in. Without CONFIG, the whole card.
The same command goes on where it was stopped."""
    parser = Parser(prog="packtrain exam", description=text)
    parser.add_argument(
        "configs", nargs="*", metavar="CONFIG", help="families or configurations (default: all families)"
    )
    parser.add_argument("--abilities", metavar="NAME[,NAME]", help="abilities to examine (default: all)")
    parser.add_argument("--seeds", type=int, default=3, metavar="S", help="runs of each cell (default: 3)")
    parser.add_argument("--total_steps", type=int, metavar="N", help="steps of each run (default: the configuration's)")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs at the same time (default: the number of cores)")
    parser.add_argument("--out", default="runs/exam", metavar="DIR", help="folder of the exam (default: runs/exam)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    for name in ("seeds", "jobs", "total_steps"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise ConfigError(f"--{name} {value} must be at least 1")
    if not arguments.out:
        raise ConfigError("--out needs a name")
    from packtrain.studies import exam_card

    chosen = _cells(arguments.configs, [part for part in (arguments.abilities or "").split(",") if part])
    out, began = Path(arguments.out).expanduser(), time.monotonic()
    from packtrain.studies import exam

    work = exam.jobs(chosen, arguments.seeds, out, arguments.total_steps)
    processes = arguments.jobs or len(os.sched_getaffinity(0))
    progress = _Progress(len(work), quiet=arguments.json)
    outcomes = exam.run(work, min(processes, len(work)), progress.show)
    lines = exam_card.summarise(exam.scores(outcomes, chosen))
    result = _result(lines, arguments.seeds, outcomes)
    files.write_whole(out / "exam.json", (json.dumps(result, indent=1) + "\n").encode())
    files.write_whole(out / "exam.svg", exam_card.picture(lines, result["caption"]).encode())
    if arguments.json:
        print(json.dumps(result))
    else:
        written = f"{out / 'exam.json'}, {out / 'exam.svg'}  ({time.monotonic() - began:.0f} s)"
        print(f"\n{exam_card.table(lines)}\n\n{result['caption']}\n{written}")
    return 1 if any(outcome.problem and outcome.applies for outcome in outcomes) else 0


def _cells(configs: list[str], abilities: list[str]) -> list[Any]:
    """Return the cells of families of the card, and of other configurations."""
    from packtrain.studies import exam_card

    names = [config.removeprefix("exam/") for config in configs]
    families = [name for name in names if "/" not in name and not name.endswith(".gin")]
    found = exam_card.cells(families, abilities) if families or not names else []
    if abilities:
        exam_card.check_abilities(abilities)
    for name in names:
        if name not in families:
            found += [exam_card.Cell(name, ability) for ability in abilities or exam_card.ABILITIES]
    return found


class _Progress:
    """Prints one line per finished run."""

    def __init__(self, total: int, quiet: bool):
        self._total, self._quiet, self._began, self._cpu = total, quiet, time.monotonic(), 0.0

    def show(self, count: int, outcome: Any) -> None:
        """Print the outcome of a run, and how much is left."""
        if self._quiet:
            return
        from packtrain.studies.exam_card import ABILITIES

        cell, seed = outcome.job.cell, outcome.job.seed
        if outcome.value is None:
            text = f"{'failed' if outcome.applies else 'does not apply'}: {outcome.problem}"
        else:
            text = f"{ABILITIES[cell.ability].score(outcome.value):.2f}"
        left = (time.monotonic() - self._began) / count * (self._total - count)
        print(
            f"{count:>3} of {self._total}  {cell.family} {cell.ability} seed {seed}: {text}  ({left:.0f} s left)",
            flush=True,
        )


def _result(lines: list[dict[str, Any]], seeds: int, outcomes: Any) -> dict[str, Any]:
    """Return the card as JSON values."""
    from packtrain import __version__
    from packtrain.studies.digest import fingerprint
    from packtrain.studies.exam_card import ABILITIES

    found = fingerprint()
    spent = sum(outcome.secs for outcome in outcomes)
    versions = f"packtrain {__version__}, torch {found['torch']}, {time.strftime('%Y-%m-%d')}"
    caption = f"mean and 95 % interval over {seeds} seed{'s' * (seeds != 1)}; {versions}"
    return {
        "schema": 1,
        "caption": caption,
        "date": time.strftime("%Y-%m-%d"),
        "seeds": seeds,
        "cpu_seconds": round(spent, 1),
        "versions": {"packtrain": __version__, **found},
        "abilities": {
            name: {"chance": one.chance, "optimum": one.optimum, "task": one.task} for name, one in ABILITIES.items()
        },
        "scores": lines,
        "failed": [
            {"config": outcome.job.cell.config, "seed": outcome.job.seed, "problem": outcome.problem}
            for outcome in outcomes
            if outcome.problem and outcome.applies
        ],
    }
