"""`packtrain train`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from packtrain.cli import evaluate
from packtrain.cli.train_flags import parse
from packtrain.errors import ConfigError
from packtrain.metrics.sinks import Sink
from packtrain.runtime.messages import Remote

RUNTIMES = {
    "local": "local",
    "serial": "serial",
    "cluster": "cluster",
    "RayBatchStepper": "cluster",  # Alpacka's names
    "LocalBatchStepper": "local",
    "": "local",
}


def run(argv: list[str]) -> int:
    """Train, or resume; return the exit code."""
    paths, values, arguments, names = parse(argv)
    if arguments.runtime is not None and arguments.runtime not in RUNTIMES:
        raise ConfigError(f"--runtime {arguments.runtime!r} is not one of local, serial, cluster")
    if arguments.restarts is not None:
        return _supervised(argv, arguments)
    if arguments.video and arguments.mode not in ("test", "eval", "test_render"):
        raise ConfigError("--video is an option of `packtrain eval RUN --video`, after training")
    if arguments.mode not in (None, "train", "test", "eval", "test_render"):
        raise ConfigError(f"--mode {arguments.mode!r} is not one of train, test, eval")
    if arguments.trace < 0:
        raise ConfigError(f"--trace {arguments.trace} must not be negative: a number of episodes; 0 records none")
    if "" in (arguments.output_dir, arguments.savedir, arguments.xpid):
        raise ConfigError("--output_dir, --savedir and --xpid need a name; one of them is empty")
    if arguments.num_seeds is not None and arguments.num_seeds < 1:
        raise ConfigError(f"--num_seeds {arguments.num_seeds} must be at least 1")
    if arguments.output_dir and (arguments.savedir or arguments.xpid):
        raise ConfigError("give either --output_dir or --savedir and --xpid, not both")
    from packtrain import config
    from packtrain.metrics.sinks import trackers
    from packtrain.runtime import open_run, train_command

    output = train_command.output_folder(arguments.output_dir, arguments.savedir, arguments.xpid, names[-1])
    if arguments.mode in ("test", "eval", "test_render"):
        if arguments.output_dir is None and arguments.xpid is None:
            output = Path(arguments.savedir or "runs").expanduser() / "latest"
        video = ["--video"] * (arguments.video or arguments.mode == "test_render")
        same = " ".join(["packtrain eval", str(output), *video])
        print(f"packtrain: --mode {arguments.mode} is `{same}`", file=sys.stderr)
        passed = {name: getattr(arguments, name) for name in ("num_episodes", "seed", "device", *values)}
        flags = [f"--{name}={value}" for name, value in passed.items() if value is not None]
        flags += ["--trust-config"] * arguments.trust_config + [f"--trace={arguments.trace}"] * bool(arguments.trace)
        return evaluate.run([str(output), *video, *flags])
    loaded = config.load(paths, arguments.config, values, arguments.trust_config)
    runtime = RUNTIMES[arguments.runtime or config.bound_name("Runner.batch_stepper_class")]
    remote = remote_of(arguments, runtime)
    request = open_run.TrainRequest(
        files=paths,
        bindings=arguments.config,
        knobs=values,
        output=output,
        seed=arguments.seed,
        num_seeds=arguments.num_seeds,
        runtime=runtime,
        remote=remote,
        learners=arguments.learners,
        device=arguments.device,
        fresh=arguments.fresh or (arguments.output_dir is None and arguments.xpid is None),  # a new name is chosen
        start_from=Path(arguments.start_from).expanduser() if arguments.start_from else None,
        sinks=(*trackers(trackers_of(arguments)), *_profile(arguments, runtime)),
        trust_config=arguments.trust_config,
        demonstrations=Path(arguments.demonstrations).expanduser() if arguments.demonstrations else None,
        notes=arguments.notes,
        trace=arguments.trace,
        latest_in=None if arguments.output_dir else Path(arguments.savedir or "runs").expanduser(),
    )
    if loaded.root == "Study":
        from packtrain.studies import study

        return study.train(request)
    code = train_command.train(request)
    if code == 0:
        _say_next(request.output, arguments)
    return code


def _say_next(run: Path, arguments: argparse.Namespace) -> None:
    """Print a summary over seeds, and on a terminal the commands that come next."""
    if not run.is_dir():  # --fresh has chosen another name
        return
    if arguments.num_seeds is not None and not arguments.fresh:
        from packtrain.studies.seed_summary import describe_seeds

        print(describe_seeds(run))
    if sys.stdout is not None and sys.stdout.isatty():
        first = run / "seed_0" if arguments.num_seeds is not None else run
        print(f"next: packtrain eval {first}    packtrain report {run}    packtrain export {first}")


def _profile(arguments: argparse.Namespace, runtime: str) -> list[Sink]:
    """Return the sink that writes a trace, if the command line requests one."""
    if not arguments.profile:
        return []
    if runtime == "cluster":
        raise ConfigError("--profile traces this process: use it with --runtime local or serial")
    from packtrain.runtime.profiling import Profile

    return [Profile()]


def trackers_of(arguments: argparse.Namespace) -> list[str]:
    """Return the names of all trackers that a command line requests."""
    names = [] if arguments.track is None else [name.strip() for name in arguments.track.split(",")]
    return [*names, *(["tensorboard"] if arguments.tensorboard else [])]


def _supervised(argv: list[str], arguments: argparse.Namespace) -> int:
    """Run the same command without --restarts in a child process, again after a fault; return the exit code."""
    if arguments.restarts < 0:
        raise ConfigError(f"--restarts {arguments.restarts} must be at least 0")
    if arguments.fresh or (arguments.output_dir is None and arguments.xpid is None):
        raise ConfigError(
            "--restarts needs --output_dir or --xpid, without --fresh: a restart repeats the same command to resume"
        )
    from packtrain.runtime.supervise import supervise

    place = next(k for k, word in enumerate(argv) if word.partition("=")[0] == "--restarts")
    rest = argv[:place] + argv[place + (1 if "=" in argv[place] else 2) :]
    command = [sys.executable, "-m", "packtrain", "train", *rest]
    return supervise(command, arguments.restarts, say=lambda text: print(f"packtrain: {text}", file=sys.stderr))


def remote_of(arguments: argparse.Namespace, runtime: str) -> Remote | None:
    """Return the settings of acting processes on a command line; ConfigError if its flags do not fit each other."""
    cluster = runtime == "cluster"
    if arguments.acting not in (None, "thread", "process"):
        raise ConfigError(f"--acting {arguments.acting!r} is not one of thread, process")
    if cluster and arguments.acting is not None:
        raise ConfigError("--acting is for --runtime local and serial; on a cluster, Ray actors act")
    if not cluster and (arguments.address is not None or arguments.min_nodes is not None):
        raise ConfigError("--address and --min_nodes need --runtime cluster")
    if not cluster and arguments.replay_shards is not None:
        raise ConfigError("--replay_shards needs --runtime cluster")
    if arguments.workers is not None and arguments.workers < 1:
        raise ConfigError(f"--workers {arguments.workers} must be at least 1")
    if arguments.inference not in ("worker", "learner"):
        raise ConfigError(f"--inference {arguments.inference!r} is not one of worker, learner")
    if cluster:
        nodes = 1 if arguments.min_nodes is None else arguments.min_nodes
        places = (arguments.workers, arguments.address, nodes, arguments.inference)
        return Remote("cluster", *places, replay_shards=arguments.replay_shards)
    if arguments.inference == "learner":
        if arguments.acting == "thread":
            raise ConfigError("--inference learner steps environments in other processes; leave --acting thread out")
        return Remote("process", arguments.workers, inference="learner")
    if arguments.acting == "process":
        if runtime == "serial" and (arguments.workers or 1) > 1:
            raise ConfigError("--workers: the serial runtime repeats exactly, which it can with one worker only")
        return Remote("process", arguments.workers)
    if arguments.workers is not None:
        raise ConfigError("--workers needs --acting process, --inference learner or --runtime cluster")
    return None
