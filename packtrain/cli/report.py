"""`packtrain report`."""

from __future__ import annotations

from pathlib import Path

from packtrain.cli.parser import Parser, add_report_arguments


def run(argv: list[str]) -> int:
    """Write a page about runs; return the exit code."""
    parser = Parser(
        prog="packtrain report",
        description="Write one self-contained HTML page about runs: curves, results, statistics over seeds, settings. "
        "Each environment is a section. Open the page in any browser; it loads nothing from elsewhere.",
    )
    add_report_arguments(parser)
    parser.add_argument("--out", metavar="FILE", help="page to write (default: report.html in the first RUN)")
    arguments = parser.parse_args(argv)
    from packtrain.studies.report import write_report

    print(write_report(arguments.runs, Path(arguments.out) if arguments.out else None, arguments.compare))
    return 0
