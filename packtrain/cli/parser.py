"""Parts of argument parsers that several commands share."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from packtrain.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors and no abbreviations."""

    def __init__(self, **kwargs: Any):
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raise a ConfigError, which `main` prints in one line."""
        raise ConfigError(message)


def add_configuration_flags(parser: argparse.ArgumentParser) -> None:
    """Add --config, --config_file and --seed."""
    group = parser.add_argument_group("configuration")
    group.add_argument("--config", action="append", default=[], metavar="BINDING", help="one gin binding; may repeat")
    group.add_argument(
        "--config_file", action="append", default=[], metavar="FILE", help="configuration file, like CONFIG; may repeat"
    )
    group.add_argument(
        "--seed", type=int, metavar="N", help="seed of all random numbers (default: the configuration's, 0)"
    )


def add_trust_flag(parser: Any, text: str) -> None:
    """Add --trust-config with this help text."""
    parser.add_argument("--trust-config", "--trust_config", dest="trust_config", action="store_true", help=text)


def add_report_arguments(parser: Parser) -> None:
    """Add RUN... and --compare."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="run folder (one with seed_K folders is one curve), or a folder that holds run folders",
    )
    parser.add_argument(
        "--compare",
        metavar="KNOB",
        help="pool all runs that have the same value of this knob, or of any setting such as Environment.id, and draw "
        "one curve per value",
    )
