"""`packtrain reproduce`."""

from __future__ import annotations

import subprocess
import sys

from packtrain.cli.parser import Parser
from packtrain.errors import ConfigError


def run(argv: list[str]) -> int:
    """Print what made a result, or run its commands; return the exit code."""
    text = """Print the commands of a published result with its seeds, versions, machine and date; with --run, run them.
Only packtrain's own commands on shipped configurations are run: a file of results may come from another person."""
    parser = Parser(prog="packtrain reproduce", description=text)
    parser.add_argument("result", metavar="RESULT", help="name in docs/results, or path of a .json file")
    parser.add_argument("--run", action="store_true", help="run the commands one after another")
    arguments = parser.parse_args(argv)
    from packtrain.studies import results

    result = results.load(results.find(arguments.result))
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    seeds = "unknown" if result.seeds is None else ", ".join(map(str, result.seeds))
    print(f"# {result.title}")
    if result.before is not None:
        print(f"# measured before {result.before}, and not run again since: today's code may score differently")
    facts = (("seeds", seeds), ("versions", versions), ("machine", result.machine), ("date", result.date))
    for name, fact in facts:
        print(f"# {name}: {fact or 'unknown'}")
    if not result.commands:
        raise ConfigError(f"{result.name} says nothing about its commands{f'; see {result.page}' * bool(result.page)}")
    checked = [(command, results.arguments_of(command)) for command in result.commands]
    for command, found in checked:
        print(command + (f"  # not run: {found}" if arguments.run and isinstance(found, str) else ""), flush=True)
    if not arguments.run:
        return 0
    mine = [found for _, found in checked if not isinstance(found, str)]
    if not mine:
        raise ConfigError(f"no command of {result.name} is run by packtrain itself; run them from the repository")
    for found in mine:
        print(f"\n$ packtrain {' '.join(found)}", flush=True)
        code = subprocess.run([sys.executable, "-m", "packtrain", *found], check=False).returncode
        if code:
            return code
    return 0
