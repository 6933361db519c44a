"""`packtrain watch`."""

from __future__ import annotations

from pathlib import Path

from packtrain.cli.parser import Parser, add_report_arguments
from packtrain.errors import ConfigError


def run(argv: list[str]) -> int:
    """Serve a page about runs until Ctrl-C; return the exit code."""
    parser = Parser(
        prog="packtrain watch",
        description="Serve the report of running or finished runs to a browser on this machine. The page updates "
        "itself. The server listens on 127.0.0.1 only, and its address contains a random token.",
    )
    add_report_arguments(parser)
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="port to listen on; 0: any free one (default: 0)"
    )
    parser.add_argument(
        "--every", type=float, default=5.0, metavar="S", help="seconds between two updates of the page (default: 5)"
    )
    arguments = parser.parse_args(argv)
    if not 0 <= arguments.port < 65536:
        raise ConfigError(f"--port {arguments.port} must lie between 0 and 65535")
    if not 0.1 <= arguments.every <= 86400:
        raise ConfigError(f"--every {arguments.every} must lie between 0.1 and 86400 seconds")
    from packtrain.studies.watch import watch

    runs = [Path(run).expanduser().resolve() for run in arguments.runs]
    return watch(runs, arguments.compare, arguments.port, arguments.every)
