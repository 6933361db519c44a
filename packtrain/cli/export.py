"""`packtrain export`."""

from __future__ import annotations

from pathlib import Path

from packtrain.cli.parser import Parser, add_trust_flag


def run(argv: list[str]) -> int:
    """Write a bundle of a run's policy; return the exit code."""
    parser = Parser(
        prog="packtrain export",
        description="Write a run's policy for programs without packtrain: weights as safetensors, spaces, "
        "configuration, and a torch.export program where the greedy action depends on the current observation alone.",
    )
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("--out", metavar="DIR", help="folder to write (default: RUN/export)")
    parser.add_argument("--checkpoint", default="latest", metavar="latest|best|STEP", help="(default: latest)")
    add_trust_flag(parser, "let the run's configuration import modules outside packtrain")
    arguments = parser.parse_args(argv)
    from packtrain.export import export

    out = Path(arguments.out) if arguments.out else None
    about = export(Path(arguments.run), out, arguments.checkpoint, arguments.trust_config)
    print(f"{out or Path(arguments.run) / 'export'}: weights, spaces and configuration of {about['network']}")
    print("policy.pt2: a torch.export program" if about["program"] else f"no program: {about['no_program_because']}")
    return 0
