"""`packtrain doctor`."""

from __future__ import annotations

from packtrain.cli.parser import Parser


def run(argv: list[str]) -> int:
    """Check this machine; return the exit code."""
    parser = Parser(prog="packtrain doctor", description="Versions, devices, limits, and what is missing.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--address", metavar="HEAD:PORT", help="check the nodes of this cluster, too")
    arguments = parser.parse_args(argv)
    from packtrain.doctor import run_doctor

    return run_doctor(arguments.json, arguments.address)
