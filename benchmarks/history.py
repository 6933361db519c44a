"""Speed and learning figures of each release: measures this one, and writes docs/history.json and docs/history.md.

python benchmarks/history.py                     # measure, about five minutes on two idle cores
python benchmarks/history.py --only-page         # write the page from the stored figures

One entry per release; measuring again replaces the entry of the same version. Speed is what `packtrain bench NAME`
prints. Rates depend on the machine, so compare `ratio`, the rate over its bound, which was measured in the same call.
Learning is the mean score of each family on the card of `packtrain exam`, and the number of published results whose
first updates `packtrain verify --all` finds equal.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import packtrain

BENCHES = ("impala_catch", "replay", "search", "r2d2", "steve", "tbv")
KEYS = ("rate", "bound", "ratio")
DATA, PAGE, CARD = Path("docs/history.json"), Path("docs/history.md"), Path("docs/exam.json")
WORSE = 0.9  # a figure below this share of the release before is marked


def packtrain_json(*argv: str) -> Any:
    """Return the JSON that a command prints; None if it fails."""
    done = subprocess.run([sys.executable, "-m", "packtrain", *argv], capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    if not lines:
        print(f"packtrain {' '.join(argv)}: {done.stderr.strip()[-300:]}", file=sys.stderr)
        return None
    return json.loads(lines[-1])


def speed(secs: float, benches: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Return rate, bound and ratio of each bench that could be measured."""
    found = {}
    for name in benches:
        result = packtrain_json("bench", name, "--json", "--secs", str(secs))
        if result is not None:
            found[name] = {
                key: round(float(result[key]), 4) for key in KEYS if isinstance(result.get(key), int | float)
            }
            print(name, found[name], flush=True)
    return found


def card_means(card: dict[str, Any]) -> dict[str, float]:
    """Return the mean score of each family on an exam's card; without the proxy trap, into which all are to fall."""
    scores: dict[str, list[float]] = {}
    for cell in card["scores"]:
        if cell["ability"] != "proxy":
            scores.setdefault(cell["family"], []).append(cell["score"])
    return {family: round(sum(values) / len(values), 3) for family, values in scores.items()}


def verified() -> str:
    """Return how many published results have the same first updates, as "39 of 39"."""
    done = subprocess.run([sys.executable, "-m", "packtrain", "verify", "--all"], capture_output=True, text=True)
    return (done.stdout.strip().splitlines() or ["not run"])[-1]


def page(entries: list[dict[str, Any]]) -> str:
    """Return the page: a table of speed and one of learning, a column per release, newest last.

    Args:
      entries: oldest first.
    """
    names = [entry["version"] for entry in entries]
    rule = "| --- |" + " --- |" * len(names)
    benches = list(dict.fromkeys(bench for entry in entries for bench in entry["speed"]))
    families = list(dict.fromkeys(family for entry in entries for family in entry["learning"]))
    lines = [
        "# History",
        "",
        "Speed and learning figures of each release, so that a regression is seen. A figure that is",
    ]
    lines += [
        f"more than {1 - WORSE:.0%} below that of the release before is **bold**. `make history` measures this release."
    ]
    lines += [
        "",
        "## Speed",
        "",
        "Rate over its bound, both measured in one call of `packtrain bench NAME`; the rate in parentheses.",
    ]
    lines += ["Rates of different machines cannot be compared; the ratios can, with care.", ""]
    lines += ["| bench | " + " | ".join(names) + " |", rule]
    for bench in benches:
        ratios = [entry["speed"].get(bench, {}).get("ratio") for entry in entries]
        rates = [entry["speed"].get(bench, {}).get("rate") for entry in entries]
        cells = [_cell(ratios, place) + _rate(rates[place]) for place in range(len(entries))]
        lines.append(f"| `{bench}` | " + " | ".join(cells) + " |")
    lines += [
        "",
        "## Learning",
        "",
        "Mean score over the abilities of the [exam](exam.md) but the proxy trap, and `packtrain verify --all`.",
        "",
    ]
    lines += ["| family | " + " | ".join(names) + " |", rule]
    for family in families:
        scores = [entry["learning"].get(family) for entry in entries]
        lines.append(f"| {family} | " + " | ".join(_cell(scores, place) for place in range(len(entries))) + " |")
    lines.append("| published results checked | " + " | ".join(entry.get("verify", "") for entry in entries) + " |")
    lines += ["", "## Machines", ""]
    lines += [
        f"- {entry['version']}: {entry['date']}, {entry['machine']}. {entry.get('note', '')}".rstrip()
        for entry in entries
    ]
    lines += ["", "Data: [history.json](history.json).", ""]
    return "\n".join(lines)


def _cell(values: list[float | None], place: int) -> str:
    """Return a figure; bold if it is worse than the last known one before."""
    value = values[place]
    if value is None:
        return "–"
    before = next((one for one in reversed(values[:place]) if one is not None), None)
    text = f"{value:.2f}".replace("-", "−")
    return f"**{text}**" if before is not None and before > 0 and value < WORSE * before else text


def _rate(rate: float | None) -> str:
    return "" if rate is None else f" ({rate:,.0f}/s)" if rate >= 10 else f" ({rate:.3g}/s)"


def main() -> None:
    """Measure, store, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--secs", type=float, default=5.0, help="seconds per measurement")
    parser.add_argument("--benches", nargs="*", default=list(BENCHES))
    parser.add_argument("--note", default="", help="what to know about the machine")
    parser.add_argument("--no-verify", action="store_true", help="leave out `packtrain verify --all`")
    parser.add_argument("--only-page", action="store_true")
    arguments = parser.parse_args()
    entries = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else []
    if not arguments.only_page:
        card = json.loads(CARD.read_text(encoding="utf-8"))
        entry = {
            "version": packtrain.__version__,
            "date": datetime.date.today().isoformat(),
            "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, Python {platform.python_version()}, "
            f"torch {torch.__version__}",
            "speed": speed(arguments.secs, tuple(arguments.benches)),
            "learning": card_means(card) if card["versions"]["packtrain"] == packtrain.__version__ else {},
            "verify": "not run" if arguments.no_verify else verified(),
            "note": arguments.note,
        }
        entries = [one for one in entries if one["version"] != entry["version"]] + [entry]
        DATA.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(entries), encoding="utf-8")


if __name__ == "__main__":
    main()
