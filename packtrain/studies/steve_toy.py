"""STEVE's toy experiment: value expansion in policy evaluation, with a perfect and with a noisy model.

Buckman et al. 2018 (arXiv:1807.01675), figure 1. A chain of states 0 … 100 is followed by a terminal state. Each step
moves on by one and has reward −1, the step out of state 100 has reward 100, and the discount is 1. So state s has value
s. Six learners fill tables of values by overwriting entries with their targets. A target starts with a real step, and
some continue with a model, which is exact or predicts a random state one time in ten.

Runs are columns of the same arrays, and a rollout does not depend on the tables: rollouts are sampled in blocks, and
one step of a learner over all runs is about a dozen NumPy calls. Within a step all members use the tables as they were
before it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.files import write_whole
from packtrain.metrics.reading import METRICS_FILE
from packtrain.metrics.writers import JsonlWriter
from packtrain.studies.chart import Curve, line_chart

EPSILON = 1e-8  # added to variances before they are inverted
OLD_NAMES = {"basic_q": "baseline"}  # names in the published CSV files, if they differ
TABLE_STEPS = (1, 500, 1000, 2000, 3000, 5000, 7500, 10_000)  # steps of the published errors
FLOOR = 1e-6  # smallest error that the chart shows
_BLOCK = 100  # steps that are sampled at once; changing it changes results for a seed
_MOST = 1_000_000  # maximum number of array elements per step of a learner; a block of them takes 2.4 GB


@configurable
@dataclass(frozen=True)
class Toy:
    """The published settings."""

    last_state: int = 100  # also the reward for leaving it
    steps: int = 10_000
    members: int = 8  # tables of an ensemble, each updated once per step
    rollouts: int = 8  # of the noisy model, for each update
    horizon: int = 5  # model steps after the real one
    noise: float = 0.1  # probability that the noisy model predicts a uniformly random state
    runs: int = 10

    def __post_init__(self) -> None:
        for name in ("last_state", "steps", "members", "rollouts", "horizon", "runs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"Toy.{name} = {getattr(self, name)} must be at least 1")
        if not 0 <= self.noise <= 1:
            raise ConfigError(f"Toy.noise = {self.noise} must be between 0 and 1")
        size = self.runs * self.members * max(self.rollouts * (self.horizon + 1), self.last_state + 2)
        if size > _MOST:
            raise ConfigError(
                f"Toy with runs = {self.runs}, members = {self.members}, rollouts = {self.rollouts}, horizon = "
                f"{self.horizon} and last_state = {self.last_state} needs {size:,} numbers per step, more than the "
                f"maximum of {_MOST:,}; lower one of them"
            )

    def fill(self, folder: Path, seed: int, log_every: int, say: Callable[[str], None]) -> Path:
        """Run the experiment in a folder, as a `Study` does, and return its chart."""
        return fill_folder(self, folder, seed, log_every, say)


PUBLISHED = Toy()


@dataclass(frozen=True)
class Learner:
    """How one of the six learners computes its targets."""

    label: str
    target: Literal["td", "mve", "steve"]
    ensemble: bool = True  # an ensemble of tables; False: one table
    noisy: bool = False  # whether its model is the noisy one


LEARNERS = {
    "basic_q": Learner("basic Q", "td", ensemble=False),
    "ensemble_q": Learner("ensemble Q", "td"),
    "mve_oracle": Learner("MVE, exact model", "mve"),
    "mve_noisy": Learner("MVE, noisy model", "mve", noisy=True),
    "steve_oracle": Learner("STEVE, exact model", "steve"),
    "steve_noisy": Learner("STEVE, noisy model", "steve", noisy=True),
}
# Published mean over 10 runs of the published settings; one column for each of TABLE_STEPS.
EXPECTED = {
    "basic_q": ("1,670 ± 84", "1,290", "1,090", "921", "799", "645", "476", "58 ± 86"),
    "ensemble_q": ("962 ± 35", "761", "656", "514", "430", "376", "293", "34 ± 13"),
    "mve_oracle": ("963", "326", "198", "8.7", "0.004", "under 1e-11", "0", "0"),
    "mve_noisy": ("961", "598", "752", "1,110", "1,450", "1,740", "1,890", "1,880 ± 90"),
    "steve_oracle": ("962", "432", "334", "220", "0.008", "under 1e-15", "about 0", "about 0"),
    "steve_noisy": ("962", "581", "555", "591", "579", "251", "0.93", "1e-5"),
}


class Record(NamedTuple):
    """State of the learners after a step."""

    step: int
    error: dict[str, np.ndarray]  # by learner, [runs] mean over states of (mean table − value)²
    model_use: dict[str, float]  # for learners that weight depths: mean of 1 − weight of depth 0 since the last record


@dataclass(frozen=True)
class Curves:
    """What `run` returns."""

    toy: Toy
    steps: np.ndarray  # [P]
    error: dict[str, np.ndarray]  # by learner, [P, runs]
    model_use: dict[str, np.ndarray] = field(default_factory=dict)  # by learner, [P]


class Rollouts(NamedTuple):
    """A block of T steps: the updated states, and rollouts of the model from there."""

    start: np.ndarray  # [T, runs, members] states to update
    path: np.ndarray  # [T, runs, members, rollouts, depths] x_0, which is real, … x_H
    gained: np.ndarray  # same shape: sum of rewards up to and including the step to that state


def draw_rollouts(
    toy: Toy, rng: np.random.Generator, length: int, members: int, rollouts: int, horizon: int, noise: float
) -> Rollouts:
    """Sample uniform start states, one real step, and `horizon` steps of a model with this noise probability.

    A terminal state stays terminal. The reward is that of the true step, whatever state the model predicts.
    """
    terminal = toy.last_state + 1
    following = np.minimum(np.arange(terminal + 1) + 1, terminal)
    reward = np.append(np.full(terminal, -1.0), 0.0)
    reward[toy.last_state] = toy.last_state
    start = rng.integers(terminal, size=(length, toy.runs, members))
    path = np.empty((*start.shape, rollouts, horizon + 1), np.int64)
    gained = np.empty(path.shape)
    path[..., 0] = following[start][..., None]
    gained[..., 0] = reward[start][..., None]
    for depth in range(horizon):
        here = path[..., depth]
        there = following[here]
        if noise:
            lost = (rng.random(here.shape) < noise) & (here != terminal)
            there[lost] = rng.integers(terminal, size=int(lost.sum()))
        path[..., depth + 1] = there
        gained[..., depth + 1] = gained[..., depth] + reward[here]
    return Rollouts(start, path, gained)


class Tables:
    """The tables of one learner in all runs, with their mean and variance over members."""

    def __init__(self, toy: Toy, learner: Learner, initial: np.ndarray, rng: np.random.Generator):
        """Copy as many of the initial tables, [members, runs, states], as the learner has members."""
        self._toy, self._learner, self._rng = toy, learner, rng
        self._members = toy.members if learner.ensemble else 1
        self._horizon = 0 if learner.target == "td" else toy.horizon
        self._rollouts = toy.rollouts if learner.noisy else 1
        self._noise = toy.noise if learner.noisy else 0.0
        self.q = np.pad(initial[: self._members], [(0, 0), (0, 0), (0, 1)])  # the terminal state has value 0
        self.mean, self.variance = self.q.mean(0), self.q.var(0)  # [runs, states+1]
        self._row = np.arange(toy.runs)[:, None]  # [runs, 1]
        self._member = np.arange(self._members)
        self._at = _BLOCK
        self._block: Rollouts

    def step(self) -> float:
        """Update one entry of every table; return how much the targets used the model, NaN without depth weights."""
        if self._at == _BLOCK:
            self._block = draw_rollouts(
                self._toy, self._rng, _BLOCK, self._members, self._rollouts, self._horizon, self._noise
            )
            # Index of a state in the flattened tables: one index is faster than two.
            columns = np.arange(self._toy.runs)[:, None, None, None] * self.mean.shape[1]
            self._places = self._block.path + columns
            self._at = 0
        start = self._block.start[self._at]  # [runs, members]
        target, use = self.targets(self._places[self._at], self._block.gained[self._at])
        self._at += 1
        self.q[self._member, self._row, start] = target
        touched = self.q[:, self._row, start]  # [members, runs, members]
        self.mean[self._row, start] = touched.mean(0)
        if self._learner.target == "steve":
            self.variance[self._row, start] = touched.var(0)
        return use

    def targets(self, places: np.ndarray, gained: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the new entries, [runs, members], from rollouts that end at these indices of the flattened tables.

        Samples are pairs of a rollout and a member; means over members and rollouts are computed separately, as in
        `equations.value_expansion`.
        """
        if self._learner.target != "steve":
            return (gained[..., -1] + self.mean.take(places[..., -1])).mean(-1), math.nan
        estimate = gained + self.mean.take(places)  # [runs, members, rollouts, depths]
        mean = estimate.mean(2)
        variance = self.variance.take(places).mean(2)
        if self._rollouts > 1:
            variance += np.square(estimate - mean[:, :, None]).mean(2)
        weight = 1 / (variance + EPSILON)
        weight /= weight.sum(-1, keepdims=True)
        return (weight * mean).sum(-1), 1 - float(weight[..., 0].mean())

    def error(self) -> np.ndarray:
        """Return the mean over states of (mean table − value)², [runs]."""
        return np.square(self.mean[:, :-1] - np.arange(self._toy.last_state + 1)).mean(-1)


def train(toy: Toy, seed: int, every: int = 50, learners: tuple[str, ...] = tuple(LEARNERS)) -> Iterator[Record]:
    """Train the learners together; yield a record after the first step, at regular intervals, and after the last.

    All begin with the same tables. Each has its own random stream: results do not depend on the other learners or on
    the interval of records.
    """
    if seed < 0:
        raise ConfigError(f"seed = {seed} must be at least 0")
    if every < 1:
        raise ConfigError(f"every = {every} must be at least 1")
    for name in learners:
        if name not in LEARNERS:
            raise ConfigError(f"learner {name!r} must be one of: {', '.join(LEARNERS)}")
    return _train(toy, seed, every, learners)


def _train(toy: Toy, seed: int, every: int, learners: tuple[str, ...]) -> Iterator[Record]:
    size = (toy.members, toy.runs, toy.last_state + 1)
    initial = np.random.default_rng(seed).integers(toy.last_state + 1, size=size).astype(float)
    streams = {name: np.random.default_rng([seed, index]) for index, name in enumerate(LEARNERS, 1)}
    tables = {name: Tables(toy, LEARNERS[name], initial, streams[name]) for name in learners}
    uses: dict[str, list[float]] = {name: [] for name in learners if LEARNERS[name].target == "steve"}
    for step in range(1, toy.steps + 1):
        for name, table in tables.items():
            use = table.step()
            if name in uses:
                uses[name].append(use)
        if step == 1 or step % every == 0 or step == toy.steps:
            errors = {name: table.error() for name, table in tables.items()}
            yield Record(step, errors, {name: sum(values) / len(values) for name, values in uses.items()})
            uses = {name: [] for name in uses}


def run(toy: Toy | None = None, seed: int = 0, every: int = 50, learners: tuple[str, ...] = tuple(LEARNERS)) -> Curves:
    """Run the experiment, by default with the published settings."""
    toy = toy or PUBLISHED
    return collect(toy, list(train(toy, seed, every, learners)))


def collect(toy: Toy, records: list[Record]) -> Curves:
    """Return records as curves."""
    return Curves(
        toy,
        np.array([record.step for record in records]),
        {name: np.stack([record.error[name] for record in records]) for name in records[0].error},
        {name: np.array([record.model_use[name] for record in records]) for name in records[0].model_use},
    )


def table(curves: Curves) -> dict[str, dict[int, tuple[float, float]]]:
    """Return mean and standard deviation over runs, by learner and step, for the recorded steps of TABLE_STEPS."""
    rows = {int(step): index for index, step in enumerate(curves.steps) if step in TABLE_STEPS}
    return {
        name: {step: (float(error[index].mean()), float(error[index].std())) for step, index in rows.items()}
        for name, error in curves.error.items()
    }


def draw(curves: Curves) -> str:
    """Return the error curves as an SVG image: the mean over runs, and a band from minimum to maximum."""
    drawn = []
    for name, error in curves.error.items():
        mean, low, high = (
            np.log10(np.maximum(part, FLOOR)).tolist() for part in (error.mean(1), error.min(1), error.max(1))
        )
        drawn.append(Curve(LEARNERS[name].label, curves.steps.tolist(), mean, low, high))
    runs = "1 run" if curves.toy.runs == 1 else f"mean of {curves.toy.runs} runs, band from the best to the worst"
    floor = round(math.log10(FLOOR))
    return line_chart(
        drawn,
        "Policy evaluation on a chain",
        "steps, one update of each table",
        f"log10 of the mean squared error, {floor} for anything smaller; {runs}",
        width=720,
        height=440,
        standalone=True,
    )


def fill_folder(toy: Toy, folder: Path, seed: int, every: int, say: Callable[[str], None]) -> Path:
    """Run the experiment in a folder: metrics.jsonl during the run, the results at its end; return the chart.

    Args:
      toy: the settings.
      folder: created; existing files of the same names are replaced.
      seed: of all randomness.
      every: interval in steps between metrics rows and points of the curves.
      say: called with progress, ten times, and with the final errors next to the published ones.
    """
    training = train(toy, seed, every)  # checks the arguments before anything is written
    folder.mkdir(parents=True, exist_ok=True)
    begin, told, records = time.perf_counter(), 0, []
    writer = JsonlWriter(folder / METRICS_FILE, 0)
    try:
        for record in training:
            wall_s = time.perf_counter() - begin
            records.append(record)
            writer.write(metrics_row(record, wall_s))
            if record.step * 10 // toy.steps > told:
                told = record.step * 10 // toy.steps
                errors = ", ".join(f"{name} {_short(error.mean())}" for name, error in record.error.items())
                say(f"step {record.step:,} of {toy.steps:,}  {wall_s:.0f} s  error: {errors}")
    finally:
        writer.close()
    curves = collect(toy, records)
    content = _content(curves, seed, time.perf_counter() - begin)
    write_whole(folder / "toy.json", (json.dumps(content, indent=1) + "\n").encode())
    for name, error in curves.error.items():
        write_whole(folder / "Toy-v1" / f"{OLD_NAMES.get(name, name)}.csv", csv(curves.steps, error).encode())
    write_whole(folder / "toy.svg", draw(curves).encode())
    for line in closing_lines(curves):
        say(line)
    return folder / "toy.svg"


def closing_lines(curves: Curves) -> list[str]:
    """Return one line per learner: its last error, and the published one if the settings are the published ones."""
    last = int(curves.steps[-1])
    same = ("last_state", "members", "rollouts", "horizon", "noise")
    known = last in TABLE_STEPS and all(getattr(curves.toy, name) == getattr(PUBLISHED, name) for name in same)
    lines = []
    for name, error in curves.error.items():
        expected = f"  (expected {EXPECTED[name][TABLE_STEPS.index(last)]})" if known else ""
        mean, std = _short(error[-1].mean()), _short(error[-1].std())
        lines.append(f"{LEARNERS[name].label:<18}  error after {last:,} steps: {mean} ± {std}{expected}")
    return lines


def csv(steps: np.ndarray, error: np.ndarray) -> str:
    """Return one learner's errors, [P, runs], in the published format: `step,step,step,error`, run by run."""
    return "".join(
        f"{step},{step},{step},{value!r}\n" for run in error.T.tolist() for step, value in zip(steps, run, strict=True)
    )


def _short(error: float) -> str:
    return f"{error:,.0f}" if error >= 100 else f"{error:.2g}"


def metrics_row(record: Record, wall_s: float) -> dict[str, Any]:
    """Return a record as a row of metrics.jsonl: means over runs."""
    row: dict[str, Any] = {"step": record.step, "wall_s": round(wall_s, 3), "kind": "train"}
    row |= {f"error/{name}": float(error.mean()) for name, error in record.error.items()}
    return row | {f"model_use/{name}": use for name, use in record.model_use.items()}


def _content(curves: Curves, seed: int, wall_s: float) -> dict[str, Any]:
    learners = {}
    for name, error in curves.error.items():
        learners[name] = {
            "label": LEARNERS[name].label,
            "error_mean": error.mean(1).tolist(),
            "error_std": error.std(1).tolist(),
            "final_errors": error[-1].tolist(),
        }
        if name in curves.model_use:
            learners[name]["model_use"] = curves.model_use[name].tolist()
    published = {name: {str(step): list(cell) for step, cell in cells.items()} for name, cells in table(curves).items()}
    return {
        "study": "steve/toy",
        "settings": asdict(curves.toy),
        "seed": seed,
        "wall_s": round(wall_s, 3),
        "steps": curves.steps.tolist(),
        "learners": learners,
        "table": published,
    }
