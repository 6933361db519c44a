"""Simulate how often the capability sweep's jump test finds a jump: where there is none, and where there is one.

python benchmarks/phase_tests.py --sets 1000 --draws 199

Every data set has 7 values and 5 runs of each, as the shipped sweep. Smooth truths have Gaussian noise of 0.05 and 0.15
of their range; jumps are three standard deviations of the noise high. Prints two tables in Markdown: the share of data
sets in which a jump is found at p ≤ 0.05.
"""

import argparse
from collections.abc import Callable

import numpy as np

from packtrain.studies.capability import SIGNIFICANT
from packtrain.studies.jumps import jump_test

VALUES, SEEDS = 7, 5
PLACES = np.arange(VALUES, dtype=float)
T = PLACES / 3 - 1  # from −1 to 1

SMOOTH: dict[str, np.ndarray] = {
    "straight: −t": -T,
    "quadratic: −t²": -(T**2),
    "quadratic: −(t + 1)²": -((T + 1) ** 2),
    "cubic: −t³": -(T**3),
    "cubic: t³ − 3 t": T**3 - 3 * T,
    "cubic: t³ − 0.6 t": T**3 - 0.6 * T,
    "exponential: exp(−x / 1.5)": np.exp(-PLACES / 1.5),
    "exponential: exp(−x / 3)": np.exp(-PLACES / 3),
    "logistic: scale 1 around 3": 1 / (1 + np.exp(PLACES - 3)),
    "logistic: scale 1 around 2": 1 / (1 + np.exp(PLACES - 2)),
    "logistic: scale 1 around 4.5": 1 / (1 + np.exp(PLACES - 4.5)),
    "logistic: scale 1.5 around 3": 1 / (1 + np.exp((PLACES - 3) / 1.5)),
    "steeper than the null: logistic, scale 0.6 around 3": 1 / (1 + np.exp((PLACES - 3) / 0.6)),
    "steeper than the null: logistic, scale 0.6 around 2.5": 1 / (1 + np.exp((PLACES - 2.5) / 0.6)),
    "steeper than the null: exponential, exp(−x)": np.exp(-PLACES),
}
JUMP = 3.0  # standard deviations of the noise
SLOPE = 0.45  # standard deviations of the noise per gap, upward, under some of the jumps


def found(
    make: Callable[[np.random.Generator], np.ndarray], sets: int, draws: int, rng: np.random.Generator
) -> tuple[float, dict[str, float]]:
    """Return the share of data sets [VALUES, SEEDS] in which a jump is found, and that of each null rejected."""
    results = [jump_test(np.repeat(PLACES, SEEDS), make(rng).ravel(), rng=rng, draws=draws).nulls for _ in range(sets)]
    rejected = {name: float(np.mean([p[name] <= SIGNIFICANT for p in results])) for name in results[0]}
    return float(np.mean([max(p.values()) <= SIGNIFICANT for p in results])), rejected


def noisy(truth: np.ndarray, size: float) -> Callable[[np.random.Generator], np.ndarray]:
    """Return a maker of data sets around a truth [VALUES]."""
    return lambda rng: truth[:, None] + size * rng.normal(size=(VALUES, SEEDS))


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=1000, help="data sets for each truth")
    parser.add_argument("--draws", type=int, default=199, help="draws from each smooth curve")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    print(f"| truth | noise 0.05 | noise 0.15 |\n| {' | '.join(['---'] * 3)} |")
    for name, truth in SMOOTH.items():
        shares = [found(noisy(truth, size * np.ptp(truth)), given.sets, given.draws, rng)[0] for size in (0.05, 0.15)]
        print(f"| {name} | {' | '.join(f'{share:.3f}' for share in shares)} |", flush=True)
    probability = SMOOTH["logistic: scale 1 around 3"]
    share, _ = found(
        lambda rng: (rng.random((VALUES, SEEDS)) < probability[:, None]).astype(float), given.sets, given.draws, rng
    )
    print(f"| each run 0 or 1, probability logistic | {share:.3f} | |")
    print(f"\n| jump of 3 | {' | '.join(f'gap {gap + 1}' for gap in range(VALUES - 1))} |")
    print(f"| {' | '.join(['---'] * VALUES)} |")
    lines: list[dict[str, float]] = []
    for slope in (0.0, SLOPE, -SLOPE):
        shares = []
        for gap in range(VALUES - 1):
            share, rejected = found(noisy(slope * PLACES - JUMP * (PLACES > gap), 1.0), given.sets, given.draws, rng)
            shares.append(share)
            if slope == 0:
                lines.append(rejected)
        words = "on a level" if slope == 0 else f"on a slope of {slope:+.2f} a gap"
        print(f"| {words} | {' | '.join(f'{share:.3f}' for share in shares)} |", flush=True)
    for name in lines[0]:
        print(f"| on a level, {name} rejected | {' | '.join(f'{line[name]:.3f}' for line in lines)} |")


if __name__ == "__main__":
    main()
