"""Run the attacks and print a table: `python tests/attack [--fast] [--list] [WORD...]`; exit code 1 if one fails."""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from pathlib import Path

from cases import CASES, Case


def load() -> None:
    """Import every file of cases beside this one, which registers them."""
    for path in sorted(Path(__file__).parent.glob("*_cases.py")):
        importlib.import_module(path.stem)


def outcome(case: Case) -> tuple[str, str]:
    """Run one case: "pass", "known limit" or "FAIL", and what there is to say of it."""
    if case.known_limit is not None:
        return "known limit", case.known_limit
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as place:
        try:
            case.check(Path(place))
        except Exception as error:
            return "FAIL", f"{type(error).__name__}: {error}"
    return "pass", f"{time.monotonic() - begin:.1f} s"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python tests/attack", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="only cases with one of these words in their name")
    parser.add_argument("--fast", action="store_true", help="only those that run in CI")
    parser.add_argument("--list", action="store_true", help="list them and run nothing")
    arguments = parser.parse_args()
    load()
    chosen = [one for one in CASES.values() if not arguments.fast or one.fast]
    chosen = [one for one in chosen if not arguments.words or any(word in one.name for word in arguments.words)]
    counts: dict[str, int] = {}
    for number, one in enumerate(chosen, start=1):
        word, more = ("listed", "fast" if one.fast else "slow") if arguments.list else outcome(one)
        counts[word] = counts.get(word, 0) + 1
        print(f"{number:>3}  {word:<11}  {one.name}\n     {one.attacks} → {one.expected} [{more}]", flush=True)
    print(", ".join(f"{count} {word}" for word, count in counts.items()), f"of {len(chosen)} cases")
    return 1 if counts.get("FAIL") else 0


if __name__ == "__main__":
    sys.exit(main())
