"""`packtrain show-config`."""

from __future__ import annotations

import sys

from packtrain.cli.train_flags import parse


def run(argv: list[str]) -> int:
    """Print a configuration; return the exit code."""
    paths, values, arguments, _ = parse(argv, program="show-config")
    from packtrain import config

    configuration = config.load(paths, arguments.config, values, arguments.trust_config, arguments.seed)
    config.build(configuration)
    for note in arguments.notes:
        print(f"packtrain: {note}", file=sys.stderr)
    print(configuration.text(), end="")
    return 0
