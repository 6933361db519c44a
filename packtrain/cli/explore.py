"""`packtrain explore`."""

from __future__ import annotations

from pathlib import Path

from packtrain.cli.parser import Parser
from packtrain.errors import ConfigError


def run(argv: list[str]) -> int:
    """Write a page about recorded searches; return the exit code."""
    parser = Parser(
        prog="packtrain explore",
        description="Write one self-contained HTML page about the searches that `packtrain train ... --trace N` and "
        "`packtrain eval RUN --trace N` have recorded: the tree or graph of each decision, with visits, values, "
        "priors, pictures of states, the plan, and a learned model's predictions against what happened.",
    )
    parser.add_argument("run", metavar="RUN", help="run folder with traces")
    parser.add_argument("--out", metavar="FILE", help="page to write (default: explorer.html in RUN)")
    parser.add_argument("--against", metavar="RUN", help="a second run, shown side by side")
    parser.add_argument(
        "--checkpoint",
        action="append",
        type=int,
        default=[],
        metavar="STEP",
        help="show only the evaluations of this checkpoint; given twice, both are shown side by side",
    )
    arguments = parser.parse_args(argv)
    if "" in (arguments.run, arguments.out, arguments.against):
        raise ConfigError("RUN, --against and --out need a name; one of them is empty")
    steps = arguments.checkpoint
    if len(steps) > (1 if arguments.against else 2):
        limit = "one --checkpoint, which holds for both runs," if arguments.against else "two --checkpoint"
        raise ConfigError(f"at most {limit} can be given, and there are {len(steps)}: a page shows two searches")
    if any(step < 0 for step in steps):
        raise ConfigError("--checkpoint must not be negative: it is the step of a checkpoint")
    from packtrain.studies.explorer import Source, write_explorer

    runs = [Path(one).expanduser() for one in (arguments.run, arguments.against) if one is not None]
    if arguments.against or not steps:
        sources = [Source(one, steps[0] if steps else None) for one in runs]
    else:
        sources = [Source(runs[0], step) for step in steps]
    print(write_explorer(sources, Path(arguments.out).expanduser() if arguments.out else None))
    return 0
