"""`packtrain verify`."""

from __future__ import annotations

import json

from packtrain.cli.parser import Parser
from packtrain.errors import ConfigError, Error, one_line


def run(argv: list[str]) -> int:
    """Run the first updates of results again; return 1 if one differs."""
    text = """Run the first serial updates of published results again, and compare them with the stored digests: bit for
bit on equal versions and an equal processor, else checked scalars within a tolerance. A pass shows that
the code still computes what it computed; it does not show that a whole run reaches the published score."""
    parser = Parser(prog="packtrain verify", description=text)
    parser.add_argument("results", nargs="*", metavar="RESULT", help="name in docs/results, or path of a .json file")
    parser.add_argument("--all", action="store_true", help="verify every result of docs/results")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    if arguments.all == bool(arguments.results):
        raise ConfigError("give one or more RESULTs, or --all")
    from packtrain.studies import results

    chosen = [results.FOLDER / f"{name}.json" for name in results.names(results.FOLDER)] if arguments.all else []
    paths = chosen or [results.find(name) for name in arguments.results]
    if not paths:
        raise ConfigError(f"there is no folder {results.FOLDER} with results here; give the path of a file")
    verdicts, failed, without = [], 0, []
    for path in paths:
        try:
            result = results.load(path)
        except Error as error:
            if not arguments.all:
                raise
            failed += 1
            print(f"FAIL  {one_line(str(error))}", flush=True)
            continue
        if not result.runs:
            without.append(result.name)
            continue
        from packtrain.studies.verify import verify

        for verdict in verify(result):
            verdicts.append(verdict._asdict())
            failed += not verdict.passed
            if not arguments.json:
                print(verdict.line(), flush=True)
    if arguments.json:
        print(json.dumps({"ok": not failed and bool(verdicts), "verdicts": verdicts, "without_digest": without}))
    else:
        passed = len(verdicts) - sum(not verdict["passed"] for verdict in verdicts)
        print(f"{passed} of {len(verdicts)} passed" + f"; no digest: {', '.join(without)}" * bool(without))
    return 1 if failed or not verdicts else 0
