"""`packtrain list`."""

from __future__ import annotations

from packtrain import knobs
from packtrain.cli.parser import Parser
from packtrain.errors import ConfigError

FAMILIES = {
    "ppo": "clipped policy gradients, discrete and continuous actions",
    "sac": "soft actor-critic, continuous actions",
    "td3": "twin delayed DDPG, continuous actions",
    "ddpg": "deterministic policy gradients, continuous actions",
    "dqn": "DQN from prioritised replay, discrete actions",
    "impala": "V-trace, acting and learning at the same time",
    "r2d2": "recurrent Q-learning from replayed sequences",
    "ngu": "exploration by novelty: NGU and Agent57",
    "planning": "search in the true model, and networks that learn from it",
    "tbv": "trust, but verify: search in a learned model; its baselines",
    "steve": "value expansion in a learned model: DDPG, MVE, STEVE, SAC, PETS",
    "misspecification": "learning from a proxy while the true reward is watched",
    "abilities": "small tests of one ability each",
    "exam": "the runs of `packtrain exam`",
}
"""Families in the order in which they are listed."""


def run(argv: list[str]) -> int:
    """Print the shipped configurations; return the exit code."""
    parser = Parser(prog="packtrain list", description="Print the shipped configurations by family.")
    parser.add_argument(
        "words",
        nargs="*",
        metavar="WORD",
        help="list only configurations with all of these words in name or description",
    )
    parser.add_argument("--all", action="store_true", help="also list base files, which others include")
    parser.add_argument("--knobs", action="store_true", help="print the knobs that each configuration sets itself")
    arguments = parser.parse_args(argv)
    words = [word.lower() for word in arguments.words]
    described = {name: knobs.headline(knobs.CONFIGS / f"{name}.gin") for name in knobs.shipped()}
    found = {name: text for name, text in described.items() if all(word in f"{name} {text}".lower() for word in words)}
    if not arguments.all:
        shown = {name: text for name, text in found.items() if not name.endswith("base")}
        found = shown or found
    if not found:
        known = sorted({part for name in described for part in name.replace("_", "/").split("/")})
        near = knobs.nearest(words[0], known)
        raise ConfigError(
            f"no shipped configuration has {' and '.join(map(repr, arguments.words))} in its name or description{near}"
        )
    if not (words or arguments.all):
        found = {name: text for name, text in found.items() if not name.startswith("exam/")}
    order = [*FAMILIES, *sorted({name.partition("/")[0] for name in found} - set(FAMILIES))]
    width = max(len(name) for name in found)
    for family in order:
        members = {name: text for name, text in found.items() if name.startswith(f"{family}/")}
        if not members:
            continue
        print(f"{family}: {FAMILIES.get(family, '')}".rstrip(": "))
        for name, text in members.items():
            own = f"  [{_own_knobs(name)}]" if arguments.knobs else ""
            print(f"  {name:<{width}}  {text}{own}".rstrip())
    if not (words or arguments.all):
        print("exam: the runs of `packtrain exam`; `packtrain list exam` prints them")
    print("\n`packtrain train NAME` runs one, `packtrain train NAME --help` prints its knobs")
    return 0


def _own_knobs(name: str) -> str:
    """Return the first knobs that a configuration sets itself, and their total number."""
    known = knobs.read_knobs(knobs.CONFIGS / f"{name}.gin")
    own = [knob.name for knob in knobs.own_knobs(name)][:4]
    shown = [f"{knob}={known[knob].default!r}" for knob in own]
    return ", ".join([*shown, f"{len(known)} knobs in all"])
