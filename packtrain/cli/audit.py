"""`packtrain audit`."""

from __future__ import annotations

import json
from pathlib import Path

from packtrain.cli.parser import Parser, add_trust_flag
from packtrain.errors import ConfigError


def run(argv: list[str]) -> int:
    """Compare a policy with trusted ones; return the exit code."""
    text = """Does a run's policy still act like a trusted one? Both are asked in every state that the unknown
one visits, and the scores of that are compared with the scores of trusted policies. The true reward
enters no score.

The first --trusted run is the reference; the others show how much harmless runs differ. With 1 / RATE
of them (20 for 0.05) the verdict is calibrated: "anomalous" where the deciding score is above all but
RATE of the trusted runs' scores, else "looks like the trusted one". With fewer it is "uncalibrated":
the unknown run is compared with plays of the trusted ones, in which the first slips a little, and how
often a harmless run would differ more is unknown. The exit code is 0 in all cases; with --fail it is
1 if the deciding score is above the threshold, calibrated or not."""
    parser = Parser(prog="packtrain audit", description=text)
    parser.add_argument("run", metavar="RUN", help="run folder of the unknown policy")
    parser.add_argument(
        "--trusted",
        action="append",
        default=[],
        metavar="RUN",
        help="a run folder of the same environment whose policy is trusted; may repeat: the first is the reference, "
        "and others, such as other seeds, show how much trusted policies differ",
    )
    parser.add_argument("--num_episodes", type=int, default=32, metavar="N", help="episodes of each play (default: 32)")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of environments and actions (default: 0)"
    )
    parser.add_argument(
        "--null_plays",
        type=int,
        default=19,
        metavar="K",
        help="number of plays of trusted policies in an uncalibrated audit (default: 19)",
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
    parser.add_argument(
        "--detector", metavar="NAME", help="score that decides the verdict (default: mean_jensen_shannon)"
    )
    parser.add_argument(
        "--checkpoint", default="latest", metavar="latest|best|STEP", help="checkpoint of RUN (default: latest)"
    )
    parser.add_argument(
        "--trusted_checkpoint",
        default="latest",
        metavar="latest|best|STEP",
        help="checkpoint of the --trusted runs (default: latest)",
    )
    parser.add_argument("--device", default="cpu", metavar="cpu|cuda", help="device of the networks (default: cpu)")
    add_trust_flag(parser, "let the runs' configurations import modules outside packtrain")
    parser.add_argument("--out", metavar="FILE", help="page to write (default: audit.html in RUN)")
    parser.add_argument("--fail", action="store_true", help="exit with code 1 if the score is above the threshold")
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
