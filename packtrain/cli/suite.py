"""`packtrain suite`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from packtrain import knobs
from packtrain.cli import sweep, train_flags
from packtrain.cli.parser import Parser
from packtrain.errors import ConfigError
from packtrain.studies import atari_suite
from packtrain.studies.sweep import points
from packtrain.studies.sweep.points import Point
from packtrain.studies.sweep.session import SweepRequest

PROTOCOLS, ACTION_SETS = ("classic", "sticky"), ("minimal", "full")
TEXT = """Train a configuration for Atari on the games of a suite, with several seeds, as a sweep. At the end
there are human-normalised scores, the Atari-5 and Atari-10 estimates of the median over 57 games, and
published scores beside them. Knobs have one value each, for all games.

classic: PongNoFrameskip-v4, the game's own actions. sticky: ALE/Pong-v5, all actions, each repeated
with probability 0.25. The same command goes on where it was stopped, as for `packtrain sweep`."""


def run(argv: list[str]) -> int:
    """Run a suite, or go on with it; return the exit code."""
    names, rest = train_flags.split_configs(argv)
    known = ", ".join(atari_suite.SUITES)
    if names and names[0] not in atari_suite.SUITES:
        raise ConfigError(f"unknown suite {names[0]!r}{knobs.nearest(names[0], list(atari_suite.SUITES))}: {known}")
    parsed = sweep.parse(names[1:], rest, "suite", TEXT, f"{known.replace(', ', '|')} CONFIG", _add_flags)
    if not names:
        raise ConfigError(f"no suite was given: one of {known}, and then a CONFIG such as impala/atari")
    if not parsed.files:
        raise ConfigError(f"no CONFIG was given: packtrain suite {names[0]} impala/atari")
    return sweep.run_request(request_of(names[0], parsed, argv), parsed.arguments)


def _add_flags(parser: Parser) -> None:
    group = parser.add_argument_group("suite")
    group.add_argument(
        "--protocol", default="classic", metavar="classic|sticky", help="protocol of all games (default: classic)"
    )
    group.add_argument(
        "--action_set", metavar="minimal|full", help="actions of all games (default: those of the protocol)"
    )
    group.add_argument(
        "--frames", type=float, metavar="N", help="emulator frames per run, 4 per step (default: the configuration's)"
    )


def request_of(suite: str, parsed: sweep.Parsed, argv: Sequence[str]) -> SweepRequest:
    """Return the sweep over the games of a suite, after every game has been checked."""
    arguments = parsed.arguments
    if arguments.protocol not in PROTOCOLS:
        raise ConfigError(f"--protocol {arguments.protocol!r} is not one of {', '.join(PROTOCOLS)}")
    if arguments.action_set is not None and arguments.action_set not in ACTION_SETS:
        raise ConfigError(f"--action_set {arguments.action_set!r} is not one of {', '.join(ACTION_SETS)}")
    if arguments.random is not None or arguments.optuna is not None:
        raise ConfigError("--random and --optuna are not for a suite; search with `packtrain sweep` on one game first")
    if "env" not in parsed.known:
        raise ConfigError(f"{' '.join(parsed.files)} has no knob 'env', by which a suite sets the game")
    if arguments.env is not None:
        raise ConfigError("--env is set by the suite")
    fixed, varied = sweep.divide(parsed)
    if varied:
        raise ConfigError(f"--{varied[0].name} has several values; in a suite each knob has one")
    if arguments.frames is not None:
        fixed += _steps(parsed)
    base = [*parsed.files, *(f"--config={line}" for line in arguments.config), *sweep.passed_on(arguments), *fixed]
    if arguments.action_set is not None:
        full = arguments.action_set == "full"
        base += ["--config=Environment.atari = @Atari()", f"--config=Atari.full_action_space = {full}"]
    games = atari_suite.SUITES[suite]
    checker = sweep.Checker()
    found = []
    for game in games:
        words = (*base, *_game_words(game, arguments.protocol, "protocol" in _all_knobs(parsed)))
        found.append(Point(game, {"game": game}, words, seed=checker.check(words, arguments.seed).seed))
    title = f"{suite}-{'+'.join(Path(file).with_suffix('').as_posix().replace('/', '-') for file in parsed.files)}"
    name = f"{title}-{points.digest(arguments.protocol, *base, str(arguments.seed))}"
    about = {
        "kind": "suite",
        "name": title,
        "configs": parsed.files,
        "varied_names": ["game"],
        "space": None,
        "tags": [arguments.protocol],
        "command": ["packtrain", "suite", *argv],
    }
    said = f"{suite}, {' '.join(parsed.files)}, {arguments.protocol} protocol, "
    said += f"{arguments.action_set} actions, " if arguments.action_set else ""
    said += f"{arguments.frames:,.0f} frames a run" if arguments.frames else "frames as configured"
    return SweepRequest(
        root=sweep.folder_of(arguments, name),
        about=about,
        points=found,
        seeds=sweep.seeds_of(arguments, 1),
        where=sweep.where_of(arguments),
        retries=arguments.retries,
        fresh=arguments.fresh,
        finish=lambda record: atari_suite.describe(record, games, said),
    )


def _steps(parsed: sweep.Parsed) -> list[str]:
    """Return the flag for the number of frames, in steps."""
    arguments = parsed.arguments
    if "total_steps" not in parsed.known:
        raise ConfigError(f"--frames: {' '.join(parsed.files)} has no knob 'total_steps'")
    if arguments.total_steps is not None:
        raise ConfigError("--frames and --total_steps say the same thing in different units; give one")
    steps = arguments.frames / atari_suite.FRAMES_PER_STEP
    if not 1 <= steps < 2**53:
        raise ConfigError(f"--frames {arguments.frames:g} must be at least {atari_suite.FRAMES_PER_STEP}")
    return [f"--total_steps={int(steps)}"]


def _all_knobs(parsed: sweep.Parsed) -> set[str]:
    """Return the knobs of the configurations, also those that the suite's own flags hide."""
    return {name for file in parsed.files for name in knobs.read_knobs(knobs.find_config(file)[0])}


def _game_words(game: str, protocol: str, has_knob: bool) -> list[str]:
    """Return the arguments that set the game; the protocol follows from its id, if the game has one of the protocol."""
    name = atari_suite.env_id(game, protocol)
    words = [f"--env={name}"]
    if protocol == "classic" and name.startswith("ALE/"):
        classic = ["--config=Environment.atari = @Atari()", "--config=Atari.protocol = 'classic'"]
        words += ["--protocol=classic"] if has_knob else classic
    return words
