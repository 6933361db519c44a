"""The command line: what was asked for, checked, and handed on. Imports torch only when it must."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from packtrain import __version__, files, knobs
from packtrain.errors import ConfigError, Error, one_line

USAGE = """usage: packtrain COMMAND [ARGUMENTS]      (packtrain COMMAND --help says more)

  train CONFIG...        train an agent; the same command again resumes
  eval RUN               play episodes with a run's checkpoint
  list [WORD...]         the shipped configurations, all or those whose name has every word in it
  show-config CONFIG...  the configuration that would run
  report RUN...          one HTML page with the curves of one or more runs
  audit RUN --trusted T  does a run's policy still act like a trusted one? a verdict and a page
  convert FILE           a TorchBeast checkpoint as a run folder, a STEVE or marltas_core configuration as a .gin file
  bench NAME             throughput beside its own limits
  doctor                 versions, devices, limits, and what is missing
"""

LATER = {"sweep": "sweeps", "explore": "the explorer"}


class _Parser(argparse.ArgumentParser):
    """argparse with one-line errors and no abbreviations."""

    def __init__(self, **kwargs: Any):
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # paths may hold bytes that are no text
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": _train,
        "eval": _eval,
        "list": _list,
        "show-config": _show_config,
        "report": _report,
        "audit": _audit,
        "convert": _convert,
        "bench": _bench,
        "doctor": _doctor,
    }
    try:
        if not argv or argv[0] in ("-h", "--help", "help"):
            print(USAGE, end="")
            return 0 if argv else 2
        if argv[0] in ("-V", "--version"):
            print(f"packtrain {__version__}")
            return 0
        if argv[0] in LATER:
            raise ConfigError(f"`packtrain {argv[0]}` is not there yet: {LATER[argv[0]]} come with a later release")
        if argv[0] not in commands:
            known = list(commands)
            raise ConfigError(
                f"unknown command {argv[0]!r}{knobs.nearest(argv[0], known)}; there are {', '.join(known)}"
            )
        return commands[argv[0]](argv[1:])
    except Error as error:
        print(f"packtrain: error: {one_line(str(error))}", file=sys.stderr, flush=True)
        return error.exit_code
    except BrokenPipeError:
        return 141
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # a fault of packtrain, or a machine without memory or file handles
        print(f"packtrain: error: {one_line(_last_resort(error, argv))}", file=sys.stderr, flush=True)
        return 1


def _last_resort(error: Exception, argv: list[str]) -> str:
    """Describe an error that nothing has caught, its traceback written to a log.txt, which is named."""
    import errno

    text = (str(error).splitlines() or [""])[0]
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        reason = "there is not enough memory" + f" ({text})" * bool(text)
    elif isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        reason = "too many files are open; raise the limit (ulimit -n), or lower num_actors"
    elif isinstance(error, OSError) and error.strerror:
        reason = f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    else:
        reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{reason} (the traceback is in {_log_traceback(error, argv)})"


def _log_traceback(error: Exception, argv: list[str]) -> str:
    """Write a traceback to the log.txt of the run folder that a command names, or to a temporary one; its path."""
    import tempfile
    import traceback

    if (logged := getattr(error, "logged_in", None)) is not None:
        return str(logged)
    lines = "".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace")
    runs = [Path(word.partition("=")[2] if word.startswith("--") else word) for word in argv[1:]]
    try:
        for run in runs:
            if os.path.isfile(run / "log.txt"):
                with files.open_inside(run, "log.txt", "ab") as file:
                    file.write(lines)
                return str(run / "log.txt")
    except (OSError, ValueError, Error):
        pass  # read-only, too long a name, a link: somewhere else then
    try:
        path = Path(tempfile.mkdtemp(prefix="packtrain-")) / "log.txt"
        path.write_bytes(lines)
        return str(path)
    except OSError:
        return "no file: none can be written"


# -- train


def _configuration_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("configuration")
    group.add_argument("--config", action="append", default=[], metavar="BINDING", help="one gin binding; may repeat")
    group.add_argument("--config_file", action="append", default=[], metavar="FILE", help="like CONFIG; may repeat")
    group.add_argument("--seed", type=int, metavar="N", help="of everything random (default: the configuration's, 0)")


def _trust_flag(parser: Any, text: str) -> None:
    parser.add_argument("--trust-config", "--trust_config", dest="trust_config", action="store_true", help=text)


def _train_parser(known: dict[str, knobs.Knob], title: str) -> _Parser:
    parser = _Parser(prog="packtrain train", usage=f"packtrain train {title or 'CONFIG...'} [--KNOB VALUE]... [FLAGS]")
    _configuration_flags(parser)
    group = parser.add_argument_group("run")
    group.add_argument("--output_dir", metavar="DIR", help="the run folder (default: runs/CONFIG/TIME)")
    group.add_argument("--savedir", metavar="DIR", help="the folder that holds run folders (default: runs)")
    group.add_argument("--xpid", metavar="NAME", help="the run folder's name in --savedir")
    group.add_argument("--fresh", action="store_true", help="start anew beside an existing run; deletes nothing")
    group.add_argument(
        "--start_from", metavar="RUN", help="begin where another run stands, if its stages so far are the same"
    )
    group.add_argument(
        "--num_seeds", type=int, default=None, metavar="S", help="runs with S seeds, into seed_K folders"
    )
    group.add_argument(
        "--runtime", default="local", metavar="local|serial", help="overlapped, or bit-exact (default: local)"
    )
    group.add_argument(
        "--device", default="cpu", metavar="cpu|cuda|cuda:1", help="where the networks live (default: cpu)"
    )
    group.add_argument("--tensorboard", action="store_true", help="write RUN/tensorboard too")
    _trust_flag(group, "let a configuration in a run folder import anything")
    for later in ("--address", "--restarts", "--mode", "--num_episodes"):
        group.add_argument(later, help=argparse.SUPPRESS)
    group.add_argument("--video", action="store_true", help=argparse.SUPPRESS)
    if known:
        group = parser.add_argument_group("knobs")
        for knob in known.values():
            text = f"{knob.comment} (default: {knob.default!r})".replace("%", "%%")
            option = {"nargs": "?", "const": "true"} if knob.type is bool else {}
            group.add_argument(f"--{knob.name}", metavar=knob.type.__name__, help=text, **option)  # type: ignore[arg-type]
    return parser


def _split_configs(argv: list[str]) -> tuple[list[str], list[str]]:
    """CONFIG arguments and the rest. A word after a flag is its value, unless it names a configuration."""
    switches = {"--fresh", "--tensorboard", "--trust-config", "--trust_config", "--video", "--help", "-h"}
    takes_path = {"--config_file", "--config", "--output_dir", "--savedir", "--xpid", "--start_from", "--agent"}
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


def _parse(argv: list[str]) -> tuple[list[Path], dict[str, Any], argparse.Namespace, list[str]]:
    """Files, knob values, flags and configuration names of a `train` or `show-config` command line."""
    names, rest = _split_configs(argv)
    files: list[str] = [*names]
    for index, word in enumerate(rest):
        if word == "--config_file" and index + 1 < len(rest):
            files.append(rest[index + 1])
        elif word.startswith("--config_file="):
            files.append(word.partition("=")[2])
    paths, known = [], {}
    for name in files:
        path, said = knobs.find_config(name)
        if said:
            print(f"packtrain: {said}", file=sys.stderr)
        paths.append(path)
        known.update(knobs.read_knobs(path))
    parser = _train_parser(known, " ".join(files))
    arguments, unknown = parser.parse_known_args(rest)
    if unknown:
        flags = [*known, *knobs.PROGRAM_FLAGS]
        wrong = unknown[0].partition("=")[0].lstrip("-")
        where = f"of {' '.join(files)}" if files else "(no CONFIG was given)"
        near = knobs.nearest(wrong, flags)
        raise ConfigError(f"unknown flag {unknown[0]!r}{near}: neither a flag of the program nor a knob {where}")
    if not files:
        raise ConfigError("no CONFIG was given; `packtrain list` shows the shipped ones")
    values = {
        name: knob.parse(getattr(arguments, name))
        for name, knob in known.items()
        if getattr(arguments, name) is not None
    }
    return paths, values, arguments, files


def _train(argv: list[str]) -> int:
    paths, values, arguments, names = _parse(argv)
    if arguments.runtime == "cluster" or arguments.address is not None:
        raise ConfigError("the cluster runtime (--runtime cluster, --address) is not there yet; use --runtime local")
    if arguments.runtime not in ("local", "serial"):
        raise ConfigError(f"--runtime {arguments.runtime!r} is not one of local, serial")
    if arguments.restarts:
        raise ConfigError("--restarts is not there yet; leave it out")
    if arguments.video and arguments.mode not in ("test", "eval", "test_render"):
        raise ConfigError("--video belongs to `packtrain eval RUN --video`, when there is something to see")
    if arguments.mode not in (None, "train", "test", "eval", "test_render"):
        raise ConfigError(f"--mode {arguments.mode!r} is not one of train, test, eval")
    if "" in (arguments.output_dir, arguments.savedir, arguments.xpid):
        raise ConfigError("--output_dir, --savedir and --xpid need a name; one of them is empty")
    if arguments.num_seeds is not None and arguments.num_seeds < 1:
        raise ConfigError(f"--num_seeds {arguments.num_seeds} must be at least 1")
    if arguments.output_dir and (arguments.savedir or arguments.xpid):
        raise ConfigError("--output_dir says all of what --savedir and --xpid say; give one or the other")
    from packtrain import config
    from packtrain.runtime import command

    output = command.output_folder(arguments.output_dir, arguments.savedir, arguments.xpid, names[-1])
    if arguments.mode in ("test", "eval", "test_render"):
        if arguments.output_dir is None and arguments.xpid is None:
            output = Path(arguments.savedir or "runs").expanduser() / "latest"
        video = ["--video"] * (arguments.video or arguments.mode == "test_render")
        same = " ".join(["packtrain eval", str(output), *video])
        print(f"packtrain: --mode {arguments.mode} is `{same}`", file=sys.stderr)
        passed = {name: getattr(arguments, name) for name in ("num_episodes", "seed", "device", *values)}
        flags = [f"--{name}={value}" for name, value in passed.items() if value is not None]
        flags += ["--trust-config"] * arguments.trust_config
        return _eval([str(output), *video, *flags])
    request = command.TrainRequest(
        files=paths,
        bindings=arguments.config,
        knobs=values,
        output=output,
        seed=arguments.seed,
        num_seeds=arguments.num_seeds,
        runtime=arguments.runtime,
        device=arguments.device,
        fresh=arguments.fresh or (arguments.output_dir is None and arguments.xpid is None),  # a name of its own
        start_from=Path(arguments.start_from).expanduser() if arguments.start_from else None,
        tensorboard=arguments.tensorboard,
        trust_config=arguments.trust_config,
        latest_in=None if arguments.output_dir else Path(arguments.savedir or "runs").expanduser(),
    )
    if config.load(request.files, request.bindings, request.knobs, request.trust_config).root == "Study":
        from packtrain.studies import study

        return study.train(request)
    return command.train(request)


# -- the others


def _eval(argv: list[str]) -> int:
    parser = _Parser(
        prog="packtrain eval",
        description="Play episodes with a run's checkpoint. A policy that outputs a distribution over actions (IMPALA, "
        "PPO) plays greedily and sampled; the run's Evaluation.best says which of the two comes first.",
        epilog="A knob of the run's configuration may be given as --KNOB VALUE; it must be what the run has.",
    )
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--num_episodes", type=int, default=100, metavar="N", help="of each kind (default: 100)")
    parser.add_argument("--checkpoint", default="latest", metavar="latest|best|STEP", help="(default: latest)")
    parser.add_argument("--seed", type=int, metavar="N", help="of the environments (default: the run's)")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--greedy", action="store_true", help="play greedily only")
    kinds.add_argument("--sampled", action="store_true", help="only draw actions from the policy, as while training")
    parser.add_argument("--device", default="cpu", metavar="cpu|cuda", help="(default: cpu)")
    _trust_flag(parser, "let the run's configuration import modules outside packtrain")
    parser.add_argument("--video", action="store_true", help="film the first episodes, into RUN/videos")
    parser.add_argument("--video_episodes", type=int, metavar="N", help="how many are filmed (default: 1)")
    parser.add_argument(
        "--video_format",
        metavar="png|mp4",
        help="animated PNG, or MP4 with the extra video; browsers play both (default: png)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments, others = parser.parse_known_args(argv)
    if arguments.num_episodes < 1:
        raise ConfigError(f"--num_episodes {arguments.num_episodes} must be at least 1")
    _refuse_other_knobs(arguments.run, others)
    filmed = 1 if arguments.video_episodes is None else arguments.video_episodes
    if not 1 <= filmed <= arguments.num_episodes:
        raise ConfigError(f"--video_episodes {filmed} must lie between 1 and --num_episodes {arguments.num_episodes}")
    if arguments.video_format not in (None, "png", "mp4"):
        raise ConfigError(f"--video_format {arguments.video_format!r} is not one of png, mp4")
    for flag in ("video_episodes", "video_format"):
        if getattr(arguments, flag) is not None and not arguments.video:
            raise ConfigError(f"--{flag} says how to film, and nothing is filmed without --video")
    from packtrain.runtime import command

    result = command.evaluate(
        Path(arguments.run),
        arguments.num_episodes,
        arguments.checkpoint,
        seed=arguments.seed,
        device=arguments.device,
        trust_config=arguments.trust_config,
        greedy=arguments.greedy if arguments.greedy or arguments.sampled else None,
        video_episodes=filmed if arguments.video else 0,
        video_format=arguments.video_format or "png",
    )
    if arguments.json:
        print(json.dumps(result))
    else:
        print(command.describe_evaluation(arguments.run, result))
    return 0


def _refuse_other_knobs(run: str, flags: list[str]) -> None:
    """ConfigError for a flag that is no knob of a run's configuration, or not what the run has."""
    if not flags:
        return
    path = Path(run) / "config.gin"
    is_run = path.is_file()  # if not, that is said elsewhere, but what is no knob at all is said here
    files = [path] if is_run else [knobs.CONFIGS / f"{name}.gin" for name in knobs.shipped()]
    known = {name: knob for file in files for name, knob in knobs.read_knobs(file).items()}
    parser = _Parser(prog="packtrain eval", add_help=False)
    for knob in known.values():
        option = {"nargs": "?", "const": "true"} if knob.type is bool else {}
        parser.add_argument(f"--{knob.name}", **option)  # type: ignore[arg-type]
    given, unknown = parser.parse_known_args(flags)
    if unknown:
        near = knobs.nearest(unknown[0].partition("=")[0].lstrip("-"), [*known, *knobs.PROGRAM_FLAGS])
        raise ConfigError(f"unknown flag {unknown[0]!r}{near}: neither a flag of `packtrain eval` nor a knob of {run}")
    for name, text in vars(given).items():
        if is_run and text is not None and (value := known[name].parse(text)) != known[name].default:
            raise ConfigError(
                f"--{name} {value!r} is not what was trained: {run} has {name} = {known[name].default!r}, and an "
                "evaluation plays that"
            )


def _list(argv: list[str]) -> int:
    parser = _Parser(prog="packtrain list", description="The shipped configurations, one a line.")
    parser.add_argument("words", nargs="*", metavar="WORD", help="only those whose name has every such word in it")
    words = parser.parse_args(argv).words
    names = [name for name in knobs.shipped() if all(word in name for word in words)]
    if not names:
        raise ConfigError(f"no shipped configuration has {' and '.join(map(repr, words))} in its name")
    width = max(len(name) for name in names)
    for name in names:
        path = knobs.CONFIGS / f"{name}.gin"
        known = knobs.read_knobs(path)
        own = [knob.name for knob in known.values() if knob.where.startswith(f"configs/{name}.gin:")]
        shown = ", ".join(f"{name}={known[name].default!r}" for name in own[:4])
        rest = len(known) - len(own[:4])
        more = [f"{rest} {'more ' * bool(shown)}knobs"] if rest else []
        print(f"{name:<{width}}  {knobs.headline(path)}  [{' and '.join([shown] * bool(shown) + more)}]")
    return 0


def _show_config(argv: list[str]) -> int:
    paths, values, arguments, _ = _parse(argv)
    from packtrain import config

    configuration = config.load(paths, arguments.config, values, arguments.trust_config, arguments.seed)
    config.build(configuration)
    print(configuration.text(), end="")
    return 0


def _report(argv: list[str]) -> int:
    parser = _Parser(prog="packtrain report", description="One self-contained HTML page with the curves of runs.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders; folders of seeds become one curve each")
    parser.add_argument("--out", metavar="FILE", help="(default: report.html in the first RUN)")
    arguments = parser.parse_args(argv)
    from packtrain.studies.report import write_report

    print(write_report(arguments.runs, Path(arguments.out) if arguments.out else None))
    return 0


def _audit(argv: list[str]) -> int:
    text = """Does a run's policy still act like a trusted one? Both are asked in every state that the unknown
one visits, and the scores of that are compared with the scores of trusted policies. The true reward
enters no score.

The first --trusted run is the reference; the others show how much harmless runs differ. With 1 / RATE
of them (20 for 0.05) the verdict is calibrated: "anomalous" where the deciding score is above all but
RATE of the trusted runs' scores, else "looks like the trusted one". With fewer it is "uncalibrated":
the unknown run is compared with plays of the trusted ones, in which the first slips a little, and how
often a harmless run would differ more is unknown. The exit code is 0 in all cases; with --fail it is
1 if the deciding score is above the threshold, calibrated or not."""
    parser = _Parser(prog="packtrain audit", description=text)
    parser.add_argument("run", metavar="RUN", help="the run folder of the unknown policy")
    parser.add_argument(
        "--trusted",
        action="append",
        default=[],
        metavar="RUN",
        help="a run folder of the same environment whose policy is trusted; may repeat: the first is the reference, "
        "and others, such as other seeds, show how much trusted policies differ",
    )
    parser.add_argument("--num_episodes", type=int, default=32, metavar="N", help="of each play (default: 32)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of environments and actions (default: 0)")
    parser.add_argument(
        "--null_plays",
        type=int,
        default=19,
        metavar="K",
        help="plays of trusted policies in an uncalibrated audit (default: 19)",
    )
    parser.add_argument(
        "--rate", type=float, default=0.05, metavar="P", help="target false-positive rate (default: 0.05)"
    )
    parser.add_argument(
        "--slip",
        type=float,
        default=0.05,
        metavar="P",
        help="share of the trusted policy's actions that is random in its plays in an uncalibrated audit; with 0 any "
        "difference counts (default: 0.05)",
    )
    parser.add_argument("--detector", metavar="NAME", help="the score that decides (default: mean_jensen_shannon)")
    parser.add_argument("--checkpoint", default="latest", metavar="latest|best|STEP", help="of RUN (default: latest)")
    parser.add_argument(
        "--trusted_checkpoint", default="latest", metavar="latest|best|STEP", help="of --trusted (default: latest)"
    )
    parser.add_argument("--device", default="cpu", metavar="cpu|cuda", help="(default: cpu)")
    _trust_flag(parser, "let the runs' configurations import modules outside packtrain")
    parser.add_argument("--out", metavar="FILE", help="the page (default: audit.html in RUN)")
    parser.add_argument(
        "--fail", action="store_true", help="leave with exit code 1 if the score is above the threshold"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    if not arguments.trusted:
        raise ConfigError("an audit needs --trusted RUN: the policy to compare with")
    if "" in (arguments.run, arguments.out, *arguments.trusted):
        raise ConfigError("RUN, --trusted and --out need a name; one of them is empty")
    from packtrain.studies import audit, audit_page

    result = audit.audit(
        audit.Request(
            run=Path(arguments.run).expanduser(),
            trusted=tuple(Path(run).expanduser() for run in arguments.trusted),
            num_episodes=arguments.num_episodes,
            null_plays=arguments.null_plays,
            rate=arguments.rate,
            slip=arguments.slip,
            detector=arguments.detector or audit.DETECTOR,
            seed=arguments.seed,
            checkpoint=arguments.checkpoint,
            trusted_checkpoint=arguments.trusted_checkpoint,
            device=arguments.device,
            trust_config=arguments.trust_config,
            out=Path(arguments.out).expanduser() if arguments.out else None,
        )
    )
    print(json.dumps(result) if arguments.json else audit_page.describe(result))
    return 1 if arguments.fail and result["anomalous"] else 0


def _convert(argv: list[str]) -> int:
    text = "Make a run folder of a TorchBeast checkpoint, or a .gin file of a configuration of STEVE or marltas_core."
    parser = _Parser(prog="packtrain convert", description=text)
    parser.add_argument("old", metavar="FILE", help="model.tar, or a .json or .yaml file; nothing in it can run")
    parser.add_argument(
        "configs",
        nargs="*",
        metavar="CONFIG",
        help="what to build on (default: impala/torchbeast for MonoBeast's network, impala/pong_deep for PolyBeast's)",
    )
    parser.add_argument(
        "--output_dir",
        metavar="DIR",
        help="the run folder, which must not exist; of a configuration: where NAME.gin goes",
    )
    parser.add_argument("--out", metavar="FILE.gin", help="of a configuration (default: NAME.gin)")
    parser.add_argument("--env", metavar="ID", help="the environment (default: what the file says)")
    parser.add_argument(
        "--script",
        metavar="NAME",
        help="that a .yaml file is for: async_rnn_train, sync_rnn_train, async_cnn_train, sync_cnn_train "
        "(default: what its keys say)",
    )
    parser.add_argument(
        "--config", action="append", default=[], metavar="BINDING", help="one gin binding; may repeat; wins"
    )
    arguments = parser.parse_intermixed_args(argv)
    if "" in (arguments.output_dir, arguments.out):
        raise ConfigError("--output_dir and --out need a name; one of them is empty")
    is_yaml = arguments.old.lower().endswith((".yaml", ".yml"))
    if arguments.script is not None and not is_yaml:
        raise ConfigError(f"--script is for .yaml files of marltas_core, and {arguments.old} is none")
    if is_yaml or arguments.old.lower().endswith(".json"):
        return _convert_config(arguments, is_yaml)
    if arguments.out or not arguments.output_dir:
        raise ConfigError("a checkpoint becomes a run folder: name it with --output_dir, not with --out")
    found = [knobs.find_config(name) for name in arguments.configs]
    for said in filter(None, (said for _, said in found)):
        print(f"packtrain: {said}", file=sys.stderr)
    from packtrain.runtime import torchbeast

    files = [path for path, _ in found]
    output = Path(arguments.output_dir).expanduser()
    print(torchbeast.convert(Path(arguments.old).expanduser(), output, files, arguments.config, arguments.env))
    return 0


def _convert_config(arguments: argparse.Namespace, is_yaml: bool) -> int:
    path = Path(arguments.old).expanduser()
    if arguments.configs or arguments.config:
        raise ConfigError(f"{path} says itself what to build on; CONFIG and --config are for checkpoints")
    if arguments.out and arguments.output_dir:
        raise ConfigError("--out names the file and --output_dir its folder; give one or the other")
    from packtrain.runtime import marltas_configs, steve_configs

    out = Path(arguments.out or Path(arguments.output_dir or "") / f"{path.stem}.gin").expanduser()
    if is_yaml:
        print(marltas_configs.convert(path, out, arguments.env, arguments.script))
    else:
        print(steve_configs.convert(path, out, arguments.env))
    return 0


def _bench(argv: list[str]) -> int:
    files = (Path(__file__).parent / "bench").glob("[!_]*.py")
    names = sorted(path.stem for path in files if "\ndef run(" in path.read_text(encoding="utf-8"))
    parser = _Parser(prog="packtrain bench", description=f"Throughput beside its own limits. NAME: {', '.join(names)}")
    parser.add_argument("name", metavar="NAME", help="which bench")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--secs", type=float, default=10.0, metavar="S", help="seconds for each measurement (default: 10)"
    )
    parser.add_argument("--device", default="cpu", metavar="D", help="cpu, cuda, cuda:N (default: cpu)")
    arguments = parser.parse_args(argv)
    if not 0 < arguments.secs < float("inf"):
        raise ConfigError(f"--secs {arguments.secs} must be above 0, and finite")
    if arguments.name not in names:
        near = knobs.nearest(arguments.name, names)
        raise ConfigError(f"unknown bench {arguments.name!r}{near}; there are {', '.join(names)}")
    import importlib

    from packtrain.runtime.command import find_device

    find_device(arguments.device)  # or one line that says why not, whatever is measured there
    result = importlib.import_module(f"packtrain.bench.{arguments.name}").run(arguments.secs, arguments.device)
    if arguments.json:
        print(json.dumps(result))
    else:
        from packtrain.bench.measure import table

        print(table(result))
    return 0


def _doctor(argv: list[str]) -> int:
    parser = _Parser(prog="packtrain doctor", description="Versions, devices, limits, and what is missing.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    from packtrain.doctor import run_doctor

    return run_doctor(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
