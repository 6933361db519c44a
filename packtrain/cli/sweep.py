"""`packtrain sweep`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from packtrain import knobs
from packtrain.cli import train, train_flags
from packtrain.cli.parser import Parser, add_configuration_flags
from packtrain.cli.sweep_flags import FOLDER, add_sweep_flags, add_train_flags, add_where_flags
from packtrain.errors import ConfigError
from packtrain.studies.sweep import points, specification
from packtrain.studies.sweep.optuna_search import trial_name
from packtrain.studies.sweep.points import Choice, Point, Varied
from packtrain.studies.sweep.session import Search, SweepRequest, Where, run_sweep

TEXT = """Train a configuration over values of its knobs and over seeds: a comma list of values is a grid,
--learning_rate 0.001,0.003. In a random search (--random) or with Optuna (--optuna) a knob may have a
range: uniform:0.1:0.9 or log:1e-4:1e-2. SPEC.py is an mrunner specification.

The same command goes on where a sweep was stopped or killed: finished runs are skipped, others resume.
At the end there are a table, one report and sweep.json, in which every run has its state."""
PASSED = ("runtime", "acting", "workers", "inference", "learners", "env_kwargs", "track")
"""Flags of `train` that all runs get as they are."""


class Parsed(NamedTuple):
    """A `sweep` command line, or the arguments of one script with it."""

    files: list[str]
    known: dict[str, knobs.Knob]
    arguments: argparse.Namespace

    def given(self) -> dict[str, str]:
        """Return the texts of the knobs that are set."""
        texts = {name: getattr(self.arguments, name) for name in self.known}
        return {name: text for name, text in texts.items() if text is not None}


def run(argv: list[str]) -> int:
    """Run a sweep, or go on with it; return the exit code."""
    names, rest = train_flags.split_configs(argv)
    specs = [name for name in names if name.endswith(".py")]
    if len(specs) > 1:
        raise ConfigError(f"one specification at a time: {specs[0]}, {specs[1]}")
    if specs:
        return _run_specification(
            Path(specs[0]).expanduser(), [name for name in names if name not in specs], rest, argv
        )
    parsed = parse(names, rest)
    if not parsed.files:
        raise ConfigError("no CONFIG and no SPEC.py was given; `packtrain list` shows the shipped configurations")
    return run_request(request_of(parsed, argv), parsed.arguments)


def run_request(request: SweepRequest, arguments: argparse.Namespace) -> int:
    """Run a sweep, or with --dry_run print its commands; return the exit code."""
    if arguments.dry_run:
        for point in request.points:
            for seed in range(point.seed, point.seed + request.seeds):
                folder = request.root / "runs" / point.name / f"seed_{seed}"
                print(shlex.join(["packtrain", "train", *point.words, f"--seed={seed}", f"--output_dir={folder}"]))
        if request.search is not None:
            print(f"{request.search.count} trials of Optuna, whose values depend on the results before")
        return 0
    return run_sweep(request, lambda line: print(line, flush=True))


# -- flags


def parse(
    names: list[str],
    rest: list[str],
    prog: str = "sweep",
    text: str = TEXT,
    what: str = "CONFIG...|SPEC.py",
    add_own: Callable[[Parser], None] | None = None,
) -> Parsed:
    """Parse a command line whose configurations are known; ConfigError for what no flag takes.

    Args:
      names: configurations.
      rest: all other arguments.
      prog: name of the command.
      text: what the command does.
      what: its arguments, in the usage.
      add_own: adds flags that replace the knobs of the same names.
    """
    files, _, known, notes = train_flags.find_configs(names, rest)
    for note in notes:
        print(f"packtrain: {note}", file=sys.stderr)
    usage = f"packtrain {prog} {' '.join(files) or what} [--KNOB VALUE]... [FLAGS]"
    parser = Parser(prog=f"packtrain {prog}", usage=usage, description=text)
    add_configuration_flags(parser)
    add_sweep_flags(parser)
    add_where_flags(parser)
    add_train_flags(parser)
    before = {action.dest for action in parser._actions}
    if add_own is not None:
        add_own(parser)
    own = {action.dest for action in parser._actions}
    known = {name: knob for name, knob in known.items() if name not in own - before}
    if clash := own & known.keys():
        name = sorted(clash)[0]
        raise ConfigError(
            f"the knob {name!r} of {' '.join(files)} has the name of a flag of `packtrain {prog}`; "
            "sweep a configuration without it"
        )
    if known:
        train_flags.add_knobs(parser, known, types=False)
    arguments, unknown = parser.parse_known_args(rest)
    train_flags.refuse_unknown(unknown, files, [*known, *own])
    return Parsed(files, known, arguments)


def passed_on(arguments: argparse.Namespace) -> list[str]:
    """Return the flags of `train` on a sweep's command line that every run gets."""
    if arguments.runtime is not None and train.RUNTIMES.get(arguments.runtime) not in ("local", "serial"):
        raise ConfigError(
            f"--runtime {arguments.runtime!r} is not one of local, serial; --on cluster places whole runs on a cluster"
        )
    found = {name: getattr(arguments, name) for name in PASSED}
    words = [f"--{name}={value}" for name, value in found.items() if value is not None]
    return words + ["--tensorboard"] * arguments.tensorboard + ["--trust-config"] * arguments.trust_config


def where_of(arguments: argparse.Namespace) -> Where:
    """Return where runs go, from the flags."""
    options = {}
    for text in arguments.slurm:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"--slurm {text!r} is not KEY=VALUE, such as slurm_partition=gpu")
        options[key] = value
    serial = train.RUNTIMES.get(arguments.runtime or "") == "serial"
    return Where(
        on=arguments.on,
        jobs=arguments.jobs,
        cpus=arguments.cpus if arguments.cpus is not None else 1 if serial else 2,
        gpus=arguments.gpus,
        devices=tuple(device.strip() for device in arguments.device.split(",")),
        slurm=options,
        address=arguments.address,
        min_nodes=arguments.min_nodes,
    )


def seeds_of(arguments: argparse.Namespace, default: int) -> int:
    """Return the number of seeds of every point."""
    count = default if arguments.seeds is None else arguments.seeds
    if count < 1:
        raise ConfigError(f"--seeds {count} must be at least 1")
    if arguments.retries < 0:
        raise ConfigError(f"--retries {arguments.retries} must be at least 0")
    return count


def folder_of(arguments: argparse.Namespace, name: str) -> Path:
    """Return the folder of a sweep: --output_dir, or one that the same command finds again."""
    if arguments.output_dir == "":
        raise ConfigError("--output_dir needs a name; it is empty")
    return Path(arguments.output_dir).expanduser() if arguments.output_dir is not None else FOLDER / name


# -- sweeps over knobs


def request_of(parsed: Parsed, argv: Sequence[str]) -> SweepRequest:
    """Return the sweep over knobs that a command line describes, after every point has been checked."""
    arguments = parsed.arguments
    kinds = [kind for kind in ("random", "optuna") if getattr(arguments, kind) is not None]
    if len(kinds) > 1:
        raise ConfigError("--random and --optuna exclude each other")
    kind = kinds[0] if kinds else "grid"
    if kinds and getattr(arguments, kind) < 1:
        raise ConfigError(f"--{kind} {getattr(arguments, kind)} must be at least 1")
    if not 0 <= arguments.prune_after <= 1:
        raise ConfigError(f"--prune_after {arguments.prune_after} must lie in [0, 1]")
    fixed, varied = divide(parsed)
    words = [*parsed.files, *(f"--config={line}" for line in arguments.config), *passed_on(arguments), *fixed]
    texts = {one.name: parsed.given()[one.name] for one in varied}
    title = "+".join(Path(file).with_suffix("").as_posix().strip("./").replace("/", "-") for file in parsed.files)
    seeds, seed = seeds_of(arguments, 3 if kind == "optuna" else 1), arguments.seed or 0
    space = None if kind == "grid" else {**texts, "seed": str(seed)}
    name = (
        f"{title}-{points.digest(kind, *words, *(f'{key}={text}' for key, text in texts.items()), str(arguments.seed))}"
    )
    about = {
        "kind": kind,
        "name": title,
        "configs": parsed.files,
        "varied_names": list(texts),
        "space": space,
        "tags": [],
        "command": ["packtrain", "sweep", *argv],
    }
    checker = Checker()
    found: list[Point] = []
    search = None
    if kind == "optuna":
        make = _maker(words, parsed, checker)
        search = Search(tuple(varied), make, arguments.optuna, arguments.prune_after, seed)
        first = points.sampled(varied, 1, seed)
        make(first[0], 0)  # what is wrong with all of them is said before anything starts
    else:
        settings = points.grid(varied) if kind == "grid" else points.sampled(varied, arguments.random, seed)
        folders = points.folder_names(settings, "run")
        for folder, values in zip(folders, settings, strict=True):
            whole = (*words, *_flags(values))
            found.append(Point(folder, values, whole, seed=checker.check(whole, arguments.seed).seed))
    where = where_of(arguments)
    return SweepRequest(
        folder_of(arguments, name), about, found, seeds, where, arguments.retries, arguments.fresh, search
    )


def divide(parsed: Parsed) -> tuple[list[str], list[Varied]]:
    """Return the flags of knobs with one value, and the knobs that vary."""
    fixed, varied = [], []
    for name, text in parsed.given().items():
        value = points.parse_value(parsed.known[name], text)
        if isinstance(value, Choice) and len(value.values) == 1:
            fixed += _flags({name: value.values[0]})
        else:
            varied.append(value)
    return fixed, varied


def _flags(values: Mapping[str, str]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]


def _maker(
    words: Sequence[str], parsed: Parsed, checker: Checker
) -> Callable[[Mapping[str, str], int], tuple[Point, int | None]]:
    """Return what makes a point of Optuna's values and the number of a trial."""

    def make(values: Mapping[str, str], number: int) -> tuple[Point, int | None]:
        for name, value in values.items():
            parsed.known[name].parse(value)
        whole = (*words, *_flags(values))
        checked = checker.check(whole, parsed.arguments.seed)
        return Point(trial_name(number), dict(values), whole, seed=checked.seed, trial=number), checked.total_steps

    return make


class Checked(NamedTuple):
    """What is known about a run before it starts."""

    total_steps: int | None  # None: it is not counted in steps
    seed: int


class Checker:
    """Checks points as `packtrain train` would, without a run folder."""

    def __init__(self) -> None:
        self._probed: set[str] = set()

    def check(self, words: Sequence[str], seed: int | None) -> Checked:
        """Raise the error with which `train` would refuse these arguments; each environment is opened once.

        Args:
          words: arguments of `train`.
          seed: of the command line; None: the configuration's.
        """
        from packtrain import config
        from packtrain.metrics.sinks import trackers

        paths, values, arguments, _ = train_flags.parse(list(words))
        trackers(train.trackers_of(arguments))
        loaded = config.load(paths, arguments.config, values, arguments.trust_config, seed)
        runtime = train.RUNTIMES[arguments.runtime or config.bound_name("Runner.batch_stepper_class")]
        train.remote_of(arguments, runtime)
        built = config.build(loaded)
        if loaded.root == "Study":
            return Checked(None, built.seed)
        if (environment := repr(built.streams.environment)) not in self._probed:
            built.probe()
            self._probed.add(environment)
        return Checked(None if built.by_epochs else int(built.total_steps), built.seed)


# -- specifications


def _run_specification(path: Path, names: list[str], rest: list[str], argv: list[str]) -> int:
    """Run the experiments of an mrunner specification."""
    specified = specification.load(path, trust="--trust-config" in rest or "--trust_config" in rest)
    first = specified[0]
    parsed_by_script: dict[tuple[str, ...], Parsed] = {}
    settings = points.varied_settings([one.parameters for one in specified])
    if len({one.name for one in specified}) > 1:
        settings = [{"experiment": one.name, **values} for one, values in zip(specified, settings, strict=True)]
    found: list[Point] = []
    checker = Checker()
    dropped = list(dict.fromkeys(word for one in specified for word in one.dropped))
    neptune = any(one.with_neptune for one in specified)
    for one, values, folder in zip(specified, settings, points.folder_names(settings, first.name), strict=True):
        key = tuple(one.words)
        if key not in parsed_by_script:
            own, more = train_flags.split_configs(one.words)
            parsed_by_script[key] = _parse_script([*own, *names], [*more, *rest])
        parsed = parsed_by_script[key]
        words = _words(one, parsed, neptune)
        sys.path += [part for part in one.env.get("PYTHONPATH", "").split(os.pathsep) if part and part not in sys.path]
        seed = checker.check(words, parsed.arguments.seed).seed
        found.append(Point(folder, values, words, one.env, seed))
    unique = points.refuse_duplicates(found)
    for line in _remarks(path, specified, dropped, neptune, len(found) - len(unique)):
        print(f"packtrain: {line}", file=sys.stderr)
    arguments = next(iter(parsed_by_script.values())).arguments
    title = points.slug(first.name)[: points.LONGEST_NAME]
    about = {
        "kind": "mrunner",
        "name": first.name,
        "configs": list(dict.fromkeys(file for each in parsed_by_script.values() for file in each.files)),
        "varied_names": list(dict.fromkeys(name for values in settings for name in values)),
        "space": None,
        "tags": first.tags,
        "command": ["packtrain", "sweep", *argv],
    }
    seeds, where = seeds_of(arguments, 1), where_of(arguments)
    request = SweepRequest(folder_of(arguments, title), about, unique, seeds, where, arguments.retries, arguments.fresh)
    return run_request(request, arguments)


def _parse_script(names: list[str], rest: list[str]) -> Parsed:
    """Parse a script's arguments with those of the command line after them; ConfigError for a second grid."""
    parsed = parse(names, rest)
    arguments = parsed.arguments
    if arguments.random is not None or arguments.optuna is not None:
        raise ConfigError("--random and --optuna are not for a specification, which lists its experiments itself")
    if not parsed.files:
        raise ConfigError("the specification's script names no --config_file; give a CONFIG after SPEC.py")
    if varied := divide(parsed)[1]:
        raise ConfigError(f"--{varied[0].name} has several values; a specification has its grid in params_grid")
    return parsed


def _words(one: specification.Specified, parsed: Parsed, neptune: bool) -> tuple[str, ...]:
    """Return the arguments of one experiment's runs: what comes last wins."""
    arguments = parsed.arguments
    bindings = [f"--config={line}" for line in (*one.bindings, *arguments.config)]
    track = ["--track=trackio"] if neptune and arguments.track is None and _has_trackio() else []
    return (*parsed.files, *bindings, *passed_on(arguments), *track, *divide(parsed)[0])


def _has_trackio() -> bool:
    import importlib.util

    return importlib.util.find_spec("trackio") is not None


def _remarks(
    path: Path, specified: Sequence[specification.Specified], dropped: list[str], neptune: bool, repeated: int
) -> list[str]:
    """Return one line about each thing in a specification that is different here."""
    lines = []
    if dropped:
        lines.append(f"{path}: {' '.join(dropped)} is not used: each run has a folder of its own in the sweep's")
    if neptune:
        goes = "trackio and to metrics.jsonl" if _has_trackio() else "metrics.jsonl"
        lines.append(f"Neptune's service has closed: metrics go to {goes} in each run folder")
    if repeated:
        lines.append(f"{path}: {repeated} of {len(specified)} experiments repeat another one and run once")
    return lines
