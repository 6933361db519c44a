"""Flags of `packtrain sweep` and `packtrain suite`."""

from __future__ import annotations

from pathlib import Path

from packtrain.cli.parser import Parser, add_trust_flag

FOLDER = Path("runs") / "sweeps"


def add_sweep_flags(parser: Parser) -> None:
    """Add the flags that say what a sweep consists of."""
    group = parser.add_argument_group("sweep")
    group.add_argument("--output_dir", metavar="DIR", help=f"folder of the sweep (default: {FOLDER}/NAME)")
    group.add_argument(
        "--fresh", action="store_true", help="start a new sweep in a new folder next to the existing one, which is kept"
    )
    group.add_argument(
        "--seeds",
        "--num_seeds",
        type=int,
        metavar="K",
        help="seeds of each point, from --seed on (default: 1; with --optuna 3)",
    )
    group.add_argument("--random", type=int, metavar="N", help="train N random combinations instead of all")
    group.add_argument(
        "--optuna",
        type=int,
        metavar="N",
        help="search with N trials of Optuna; a trial is a combination with all seeds",
    )
    group.add_argument(
        "--prune_after",
        type=float,
        default=0.33,
        metavar="X",
        help="with --optuna: share of a run after which it may be pruned; 1: never (default: 0.33)",
    )
    group.add_argument(
        "--retries", type=int, default=2, metavar="N", help="start a run that fails again up to N times (default: 2)"
    )
    group.add_argument("--dry_run", action="store_true", help="print the command of every run and do nothing")


def add_where_flags(parser: Parser) -> None:
    """Add the flags that say where runs go."""
    group = parser.add_argument_group("where runs go")
    group.add_argument(
        "--on",
        default="local",
        metavar="local|slurm|cluster",
        help="processes of this machine, jobs of Slurm, or nodes of a cluster of `packtrain node` (default: local)",
    )
    group.add_argument(
        "--jobs", type=int, metavar="N", help="runs at a time (default: processors / --cpus; on Slurm 100)"
    )
    group.add_argument(
        "--cpus", type=int, metavar="N", help="processors of a run (default: 2; with --runtime serial 1)"
    )
    group.add_argument(
        "--gpus", type=int, default=0, metavar="N", help="GPUs of a run, on Slurm or a cluster (default: 0)"
    )
    group.add_argument(
        "--device",
        default="cpu",
        metavar="D[,D]",
        help="device of the networks; several, such as cuda:0,cuda:1, are used in turn (default: cpu)",
    )
    group.add_argument(
        "--slurm",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="parameter of submitit, such as slurm_partition=gpu or timeout_min=600; may repeat",
    )
    group.add_argument("--address", metavar="HEAD:PORT", help="with --on cluster: its head (default: this machine)")
    group.add_argument(
        "--min_nodes", type=int, default=1, metavar="N", help="with --on cluster: wait for N nodes (default: 1)"
    )


def add_train_flags(parser: Parser) -> None:
    """Add flags of `packtrain train` that all runs get."""
    group = parser.add_argument_group("of all runs, as for `packtrain train`")
    group.add_argument("--runtime", metavar="local|serial", help="runtime of each run (default: local)")
    group.add_argument("--acting", metavar="thread|process", help="where environments and policy run")
    group.add_argument("--workers", type=int, metavar="N", help="number of acting processes")
    group.add_argument("--inference", metavar="worker|learner", help="where policies act")
    group.add_argument("--learners", type=int, metavar="K", help="number of processes that learn")
    group.add_argument("--env_kwargs", metavar="DICT", help="arguments of the environment")
    group.add_argument(
        "--track", metavar="NAME[,NAME]", help="send metrics to tensorboard, wandb, mlflow or trackio too"
    )
    group.add_argument("--tensorboard", action="store_true", help="the same as --track tensorboard")
    add_trust_flag(group, "trust configurations and specifications in run folders")
