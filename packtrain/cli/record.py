"""`packtrain record`."""

from __future__ import annotations

from pathlib import Path

from packtrain.cli.parser import Parser, add_trust_flag


def run(argv: list[str]) -> int:
    """Write episodes of a run's policy as a data set; return the exit code."""
    parser = Parser(
        prog="packtrain record",
        description="Play episodes with a run's policy and write them as a data set of Minari, which `packtrain train "
        "--demonstrations DIR` puts into the replay of SAC, TD3, DDPG, STEVE, DQN and R2D2.",
    )
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the data set, which must not exist")
    parser.add_argument("--num_episodes", type=int, default=100, metavar="N", help="episodes (default: 100)")
    parser.add_argument("--checkpoint", default="latest", metavar="latest|best|STEP", help="(default: latest)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the first episode (default: 0)")
    parser.add_argument("--sampled", action="store_true", help="sample actions, as in training, instead of greedy ones")
    add_trust_flag(parser, "let the run's configuration import modules outside packtrain")
    arguments = parser.parse_args(argv)
    from packtrain.record import record

    about = record(
        Path(arguments.run).expanduser(),
        Path(arguments.out).expanduser(),
        arguments.num_episodes,
        checkpoint=arguments.checkpoint,
        seed=arguments.seed,
        sampled=arguments.sampled,
        trust_config=arguments.trust_config,
    )
    print(
        f"{arguments.out}: {about['total_episodes']:,} episodes, {about['total_steps']:,} steps, mean return "
        f"{about['return_mean']:.3f}"
    )
    return 0
