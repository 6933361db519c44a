"""`packtrain eval`."""

from __future__ import annotations

import json
from pathlib import Path

from packtrain import knobs
from packtrain.cli.parser import Parser, add_trust_flag
from packtrain.errors import ConfigError


def run(argv: list[str]) -> int:
    """Play episodes; return the exit code."""
    parser = Parser(
        prog="packtrain eval",
        description="Play episodes with a run's checkpoint. A policy that outputs a distribution over actions (IMPALA, "
        "PPO) plays greedily and sampled; the run's Evaluation.best says which of the two comes first.",
        epilog="A knob of the run's configuration may be given as --KNOB VALUE; it must be what the run has.",
    )
    parser.add_argument(
        "run", metavar="RUN", help="run folder, or folder of seeds: each seed is evaluated and averaged"
    )
    parser.add_argument(
        "--num_episodes",
        type=int,
        default=100,
        metavar="N",
        help="episodes of each kind, greedy or sampled (default: 100)",
    )
    parser.add_argument(
        "--checkpoint", default="latest", metavar="latest|best|STEP", help="checkpoint to evaluate (default: latest)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the environments (default: the run's)")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--greedy", action="store_true", help="play greedy episodes only")
    kinds.add_argument("--sampled", action="store_true", help="play only episodes with sampled actions, as in training")
    parser.add_argument("--device", default="cpu", metavar="cpu|cuda", help="device of the networks (default: cpu)")
    add_trust_flag(parser, "let the run's configuration import modules outside packtrain")
    parser.add_argument("--video", action="store_true", help="film the first episodes and write them to RUN/videos")
    parser.add_argument("--video_episodes", type=int, metavar="N", help="number of episodes to film (default: 1)")
    parser.add_argument(
        "--video_format",
        metavar="png|mp4",
        help="animated PNG, or MP4 with the extra video; browsers play both (default: png)",
    )
    parser.add_argument(
        "--trace",
        type=int,
        default=0,
        metavar="N",
        help="record the searches of the first N episodes in RUN/traces, for `packtrain explore` (default: 0)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments, others = parser.parse_known_args(argv)
    if arguments.num_episodes < 1:
        raise ConfigError(f"--num_episodes {arguments.num_episodes} must be at least 1")
    _refuse_other_knobs(arguments.run, others)
    filmed = 1 if arguments.video_episodes is None else arguments.video_episodes
    if not 1 <= filmed <= arguments.num_episodes:
        raise ConfigError(f"--video_episodes {filmed} must lie between 1 and --num_episodes {arguments.num_episodes}")
    if not 0 <= arguments.trace <= arguments.num_episodes:
        raise ConfigError(f"--trace {arguments.trace} must lie between 0 and --num_episodes {arguments.num_episodes}")
    if arguments.video_format not in (None, "png", "mp4"):
        raise ConfigError(f"--video_format {arguments.video_format!r} is not one of png, mp4")
    for flag in ("video_episodes", "video_format"):
        if getattr(arguments, flag) is not None and not arguments.video:
            raise ConfigError(f"--{flag} needs --video")
    from packtrain.runtime import eval_command

    request = eval_command.EvalRequest(
        Path(arguments.run),
        arguments.num_episodes,
        arguments.checkpoint,
        seed=arguments.seed,
        device=arguments.device,
        trust_config=arguments.trust_config,
        greedy=arguments.greedy if arguments.greedy or arguments.sampled else None,
        video_episodes=filmed if arguments.video else 0,
        video_format=arguments.video_format or "png",
        trace_episodes=arguments.trace,
    )
    result = eval_command.evaluate_seeds(request)
    if arguments.json:
        print(json.dumps(result))
    elif "seeds" in result:
        print(eval_command.describe_seeds(arguments.run, result))
    else:
        print(eval_command.describe_evaluation(arguments.run, result))
    return 0


def _refuse_other_knobs(run: str, flags: list[str]) -> None:
    """Raise a ConfigError for a flag that is not a knob of a run's configuration, or has another value than the run."""
    if not flags:
        return
    path = Path(run) / "config.gin"
    if not path.is_file() and (Path(run) / "seed_0" / "config.gin").is_file():
        path = Path(run) / "seed_0" / "config.gin"
    is_run = path.is_file()  # if not, that is said elsewhere, but what is no knob at all is said here
    files = [path] if is_run else [knobs.CONFIGS / f"{name}.gin" for name in knobs.shipped()]
    known = {name: knob for file in files for name, knob in knobs.read_knobs(file).items()}
    parser = Parser(prog="packtrain eval", add_help=False)
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
