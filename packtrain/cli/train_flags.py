"""The command line of `train` and `show-config`: configuration names, knobs and flags."""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from packtrain import knobs
from packtrain.cli.parser import Parser, add_configuration_flags, add_trust_flag
from packtrain.errors import ConfigError

DESCRIPTIONS = {
    "train": "Train an agent, or resume the run in --output_dir.",
    "show-config": "Print the configuration that `packtrain train` would run, with every default; nothing is run.",
}


def _parser(known: dict[str, knobs.Knob], title: str, program: str) -> Parser:
    """Return the parser of `train` or `show-config`, with the knobs of the given configurations."""
    usage = f"packtrain {program} {title or 'CONFIG...'} [--KNOB VALUE]... [FLAGS]"
    epilog = None if title else "With a CONFIG, --help prints its knobs too. `packtrain list` prints the names."
    parser = Parser(prog=f"packtrain {program}", usage=usage, description=DESCRIPTIONS[program], epilog=epilog)
    add_configuration_flags(parser)
    parser.add_argument(
        "--env_kwargs", metavar="DICT", help="arguments of the environment, such as \"{'size': 5}\" or '{\"size\": 5}'"
    )
    if program == "train":
        _add_run_flags(parser)
    else:
        add_trust_flag(parser, "let a configuration in a run folder import anything")
    if known:
        add_knobs(parser, known)
    return parser


def _add_run_flags(parser: Parser) -> None:
    """Add the flags of `train` alone."""
    group = parser.add_argument_group("run")
    group.add_argument("--output_dir", metavar="DIR", help="run folder (default: runs/CONFIG/TIME)")
    group.add_argument("--savedir", metavar="DIR", help="folder in which run folders are created (default: runs)")
    group.add_argument("--xpid", metavar="NAME", help="name of the run folder in --savedir")
    group.add_argument(
        "--fresh", action="store_true", help="start a new run in a new folder next to the existing one, which is kept"
    )
    group.add_argument(
        "--start_from",
        metavar="RUN",
        help="continue from another run's latest checkpoint in a new folder, if its stages so far are the same",
    )
    group.add_argument(
        "--demonstrations",
        metavar="DIR",
        help="put a data set of Minari into the replay of a run that begins (SAC, TD3, DDPG, STEVE, DQN, R2D2)",
    )
    group.add_argument(
        "--num_seeds",
        type=int,
        default=None,
        metavar="S",
        help="number of seeds to run, in folders seed_0, seed_1, ... (default: a single run)",
    )
    group.add_argument(
        "--runtime",
        metavar="local|serial|cluster",
        help="local: acting and learning overlap; serial: they alternate, bit-exactly repeatable; cluster: acting on "
        "Ray workers (default: local)",
    )
    group.add_argument(
        "--acting",
        metavar="thread|process",
        help="where environments and policy run: in this process, or in processes of their own, which helps Python "
        "environments that compete with the learner for the interpreter (default: thread)",
    )
    group.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="number of acting processes (default: 1 with --acting process, one per NUMA node on a cluster)",
    )
    group.add_argument(
        "--inference",
        default="worker",
        metavar="worker|learner",
        help="where policies act: in the workers, or on the learner's device while workers only step environments "
        "(default: worker)",
    )
    group.add_argument(
        "--address",
        metavar="HEAD:PORT",
        help="address of a cluster started with `packtrain node --head` (default: a private one on this machine)",
    )
    group.add_argument("--min_nodes", type=int, metavar="N", help="wait until the cluster has N nodes (default: 1)")
    group.add_argument(
        "--replay_shards",
        type=int,
        metavar="N",
        help="number of Ray actors that hold the replay of sequences, for one that does not fit into the learner's "
        "machine (default: the learner's process holds it)",
    )
    group.add_argument(
        "--learners",
        type=int,
        default=1,
        metavar="K",
        help="number of processes among which each batch is divided, one per GPU from --device on (default: 1)",
    )
    group.add_argument(
        "--device", default="cpu", metavar="cpu|cuda|cuda:1", help="device of the networks (default: cpu)"
    )
    group.add_argument("--tensorboard", action="store_true", help="the same as --track tensorboard")
    group.add_argument(
        "--track",
        metavar="NAME[,NAME]",
        help="send metrics to tensorboard, wandb, mlflow or trackio too; a tracker that fails is a warning",
    )
    group.add_argument(
        "--profile",
        "--write_profiler_trace",
        action="store_true",
        help="write a trace of ten updates, and of what acts meanwhile, to RUN/profile for chrome://tracing",
    )
    group.add_argument(
        "--trace",
        type=int,
        default=0,
        metavar="N",
        help="record the searches of up to N episodes, spread over the run, for `packtrain explore` (default: 0)",
    )
    add_trust_flag(group, "let a configuration in a run folder import anything")
    group.add_argument(
        "--restarts", type=int, metavar="N", help="start the command again up to N times after a fault (default: 0)"
    )
    group.add_argument(
        "--mrunner",
        action="store_true",
        help="the last --config is an mrunner specification (.py), whose first experiment runs; see `packtrain sweep`",
    )
    for later in ("--mode", "--num_episodes"):
        group.add_argument(later, help=argparse.SUPPRESS)
    group.add_argument("--video", action="store_true", help=argparse.SUPPRESS)


def split_configs(argv: list[str]) -> tuple[list[str], list[str]]:
    """Return CONFIG arguments and the rest. A word after a flag is its value, unless it names a configuration."""
    switches = {
        "--fresh",
        "--tensorboard",
        "--profile",
        "--write_profiler_trace",
        "--trust-config",
        "--trust_config",
        "--video",
        "--mrunner",
        "--dry_run",
        "--help",
        "-h",
    }
    takes_path = {
        "--config_file",
        "--config",
        "--env_kwargs",
        "--output_dir",
        "--savedir",
        "--xpid",
        "--start_from",
        "--demonstrations",
        "--agent",
    }
    shipped = set(knobs.shipped())
    configs, rest, index = [], [], 0
    while index < len(argv):
        word = argv[index]
        if not word.startswith("--") and word != "-h":
            configs.append(word)
        else:
            rest.append(word)
            following = argv[index + 1] if index + 1 < len(argv) else None
            is_value = following is not None and not following.startswith("--")
            if is_value and word not in takes_path and (following in shipped or str(following).endswith(".gin")):
                is_value = False
            if "=" not in word and word not in switches and is_value:
                rest.append(str(following))
                index += 1
        index += 1
    return configs, rest


def find_configs(
    names: list[str], rest: list[str]
) -> tuple[list[str], list[Path], dict[str, knobs.Knob], tuple[str, ...]]:
    """Return the configurations of a command line as given, their files, their knobs, and lines to print about them.

    Args:
      names: CONFIG arguments.
      rest: the other arguments, in which --config_file names further ones.
    """
    files: list[str] = [*names]
    for index, word in enumerate(rest):
        if word == "--config_file" and index + 1 < len(rest):
            files.append(rest[index + 1])
        elif word.startswith("--config_file="):
            files.append(word.partition("=")[2])
    paths: list[Path] = []
    known: dict[str, knobs.Knob] = {}
    given = {word.partition("=")[0].removeprefix("--") for word in rest if word.startswith("--")}
    notes = []
    for name in files:
        path, said = knobs.find_config(name, given)
        notes += [said] if said else []
        paths.append(path)
        known.update(knobs.read_knobs(path))
    return files, paths, known, tuple(notes)


def add_knobs(parser: Parser, known: dict[str, knobs.Knob], types: bool = True) -> None:
    """Add a flag for each knob; with `types` the help names the type of its value, else "VALUES"."""
    group = parser.add_argument_group("knobs")
    for knob in known.values():
        text = f"{knob.comment} (default: {knob.default!r})".replace("%", "%%")
        option = {"nargs": "?", "const": "true"} if knob.type is bool else {}
        metavar = knob.type.__name__ if types else "VALUES"
        group.add_argument(f"--{knob.name}", metavar=metavar, help=text, **option)  # type: ignore[arg-type]


def refuse_unknown(unknown: list[str], files: list[str], flags: list[str]) -> None:
    """Raise a ConfigError with the nearest flag if a command line has arguments that nothing has taken."""
    if unknown:
        wrong = unknown[0].partition("=")[0].lstrip("-")
        where = f"of {' '.join(files)}" if files else "(no CONFIG was given)"
        near = knobs.nearest(wrong, flags)
        raise ConfigError(f"unknown flag {unknown[0]!r}{near}: neither a flag of the program nor a knob {where}")


def parse(argv: list[str], program: str = "train") -> tuple[list[Path], dict[str, Any], argparse.Namespace, list[str]]:
    """Return files, knob values, flags and configuration names of a `train` or `show-config` command line."""
    names, rest = split_configs(argv)
    files, paths, known, notes = find_configs(names, rest)
    parser = _parser(known, " ".join(files), program)
    arguments, unknown = parser.parse_known_args(rest)
    refuse_unknown(unknown, files, [*known, *knobs.PROGRAM_FLAGS])
    if not files:
        raise ConfigError("no CONFIG was given; `packtrain list` shows the shipped ones")
    if program == "train" and arguments.mrunner:
        arguments.config = _specified(arguments.config, arguments.trust_config)
    values = {
        name: knob.parse(getattr(arguments, name))
        for name, knob in known.items()
        if getattr(arguments, name) is not None
    }
    arguments.notes = notes
    if arguments.env_kwargs is not None:
        arguments.config.append(f"Environment.kwargs = {_env_kwargs(arguments.env_kwargs)!r}")
    return paths, values, arguments, files


def _specified(bindings: list[str], trust: bool) -> list[str]:
    """Return the bindings of a command line with --mrunner, whose last --config is an mrunner specification.

    Those of the command line come last, and so win.
    """
    if not bindings:
        raise ConfigError("--mrunner needs --config SPEC.py: the last --config is the specification")
    from packtrain.studies.sweep import specification

    path = Path(bindings[-1]).expanduser()
    found, count = specification.first_bindings(path, trust)
    if count > 1:
        print(
            f"packtrain: {path} has {count} experiments, and this is the first; `packtrain sweep {path}` runs all",
            file=sys.stderr,
        )
    return [*found, *bindings[:-1]]


def _env_kwargs(text: str) -> dict[str, Any]:
    """Return the keyword arguments in a text, a Python dict or JSON; ConfigError for anything else."""
    found: Any = None
    for read in (ast.literal_eval, json.loads):
        with contextlib.suppress(ValueError, SyntaxError):
            found = read(text)
            break
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ConfigError(f"--env_kwargs {text!r} is not a dict of names and values, such as \"{{'size': 5}}\"")
    return found
