"""`packtrain convert`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from packtrain import knobs
from packtrain.cli.parser import Parser
from packtrain.errors import ConfigError


def run(argv: list[str]) -> int:
    """Convert a file of an earlier system; return the exit code."""
    text = """Make a run folder of a checkpoint of TorchBeast or marltas_core, or a .gin file of a configuration of
Alpacka, trust-but-verify, STEVE or marltas_core, and print what changed."""
    parser = Parser(prog="packtrain convert", description=text)
    files = "model.tar, online_model_STEP.pkl, or a .gin, .json or .yaml file; nothing in it is executed"
    parser.add_argument("old", metavar="FILE", help=files)
    parser.add_argument(
        "configs",
        nargs="*",
        metavar="CONFIG",
        help="configurations to build on (default: impala/torchbeast for MonoBeast's network, impala/pong_deep for "
        "PolyBeast's)",
    )
    parser.add_argument(
        "--output_dir",
        metavar="DIR",
        help="run folder to create from a checkpoint; folder for NAME.gin when converting a configuration",
    )
    parser.add_argument("--out", metavar="FILE.gin", help="file to write for a configuration (default: NAME.gin)")
    parser.add_argument("--env", metavar="ID", help="environment (default: as in the file)")
    parser.add_argument(
        "--script",
        metavar="NAME",
        help="marltas training script of a .yaml file: async_rnn_train, sync_rnn_train, async_cnn_train or "
        "sync_cnn_train (default: inferred from its keys)",
    )
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="BINDING",
        help="one gin binding, which overrides the file; may repeat",
    )
    arguments = parser.parse_intermixed_args(argv)
    if "" in (arguments.output_dir, arguments.out):
        raise ConfigError("--output_dir and --out need a name; one of them is empty")
    is_yaml = arguments.old.lower().endswith((".yaml", ".yml"))
    if arguments.script is not None and not is_yaml:
        raise ConfigError(f"--script is for .yaml files of marltas_core, and {arguments.old} is not one")
    if arguments.old.lower().endswith((".yaml", ".yml", ".json", ".gin")):
        return _convert_config(arguments, is_yaml)
    if arguments.out or not arguments.output_dir:
        raise ConfigError("a checkpoint becomes a run folder: name it with --output_dir, not with --out")
    found = [knobs.find_config(name) for name in arguments.configs]
    for said in filter(None, (said for _, said in found)):
        print(f"packtrain: {said}", file=sys.stderr)
    from packtrain.convert import marltas_snapshot, torchbeast

    paths = [path for path, _ in found]
    old, output = Path(arguments.old).expanduser(), Path(arguments.output_dir).expanduser()
    reader = marltas_snapshot if old.suffix.lower() == ".pkl" else torchbeast
    print(reader.convert(old, output, paths, arguments.config, arguments.env))
    return 0


def _convert_config(arguments: argparse.Namespace, is_yaml: bool) -> int:
    path = Path(arguments.old).expanduser()
    if arguments.configs or arguments.config:
        raise ConfigError(f"{path} does not need CONFIG or --config, which apply to checkpoints")
    if arguments.out and arguments.output_dir:
        raise ConfigError("--out names the file and --output_dir its folder; give one or the other")
    from packtrain.convert import alpacka_gin, marltas_to_gin, steve_to_gin

    out = Path(arguments.out or Path(arguments.output_dir or "") / f"{path.stem}.gin").expanduser()
    if path.suffix.lower() == ".gin":
        print(alpacka_gin.convert(path, out, arguments.env))
    elif is_yaml:
        print(marltas_to_gin.convert(path, out, arguments.env, arguments.script))
    else:
        print(steve_to_gin.convert(path, out, arguments.env))
    return 0
