"""`packtrain bench`."""

from __future__ import annotations

import json
from pathlib import Path

from packtrain import knobs
from packtrain.cli.parser import Parser
from packtrain.errors import ConfigError


def run(argv: list[str]) -> int:
    """Measure throughput; return the exit code."""
    files = (Path(__file__).parent.parent / "bench").glob("[!_]*.py")
    names = sorted(path.stem for path in files if "\ndef run(" in path.read_text(encoding="utf-8"))
    parser = Parser(prog="packtrain bench", description=f"Throughput beside its own limits. NAME: {', '.join(names)}")
    parser.add_argument("name", metavar="NAME", help="benchmark to run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--secs", type=float, default=10.0, metavar="S", help="seconds for each measurement (default: 10)"
    )
    parser.add_argument("--device", default="cpu", metavar="D", help="device to measure (default: cpu)")
    arguments = parser.parse_args(argv)
    if not 0 < arguments.secs < float("inf"):
        raise ConfigError(f"--secs {arguments.secs} must be above 0, and finite")
    if arguments.name not in names:
        near = knobs.nearest(arguments.name, names)
        raise ConfigError(f"unknown bench {arguments.name!r}{near}; there are {', '.join(names)}")
    import importlib

    from packtrain.runtime.preparation import find_device

    find_device(arguments.device)  # raises an error with the reason if the device cannot be used
    result = importlib.import_module(f"packtrain.bench.{arguments.name}").run(arguments.secs, arguments.device)
    if arguments.json:
        print(json.dumps(result))
    else:
        from packtrain.bench.measure import table

        print(table(result))
    return 0
