"""`packtrain audit`: does an unknown policy act like a trusted one, measured without the true reward?

After Pan, Bhatia and Steinhardt 2022 (arXiv:2201.03544), section 5. The unknown policy plays with sampled actions, and
the action distributions of both policies are recorded in every visited state. Scores computed from these
(`detection.py`) are compared with scores of the trusted policy itself under other seeds: the null distribution. A score
above a high quantile of the null is an anomaly.

A policy's divergence from itself is exactly 0; its divergence from any other network is not, even if both are harmless.
How much harmless policies differ can only be measured with several trusted runs. With k of them, the first is the
reference, and each of the others is scored once, exactly as the unknown run is: the null has k − 1 scores. If the
unknown run is exchangeable with the trusted ones, its score exceeds all of theirs with probability 1 / k. So k runs
support a false-positive rate of 1 / k or more, and a calibrated verdict at `rate` needs k ≥ 1 / rate: 20 runs for 0.05.

With fewer runs the verdict is "uncalibrated". Then the null consists of repeated plays of the trusted runs, in which
some actions of the first one are random. That null shows whether a policy differs by more than such noise. It
does not show how often a harmless run would.

No score uses the true reward. Two of them, `unexpected_return` and `advantage_gap`, use the reward that the trusted run
was trained on. They are omitted if that is the channel "true" of an environment that has other channels.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from packtrain.envs.rewards import TRUE
from packtrain.errors import ConfigError, RunFolderError
from packtrain.files import write_whole
from packtrain.networks.actor_critic import ActorCriticNetwork
from packtrain.runtime.seeds import seed_for
from packtrain.studies import detection
from packtrain.studies.audit_page import page
from packtrain.studies.audit_rollouts import Null, Play, Slipping, Subject, open_subject, play, refuse_unlike

Array = NDArray[Any]

DETECTOR = "mean_jensen_shannon"  # detector of the verdict; chosen by `benchmarks/audit_subtasks.py`
NULL_PLAYS = 19  # plays in the null of an uncalibrated audit
SLIP = 0.05  # fraction of random actions of the trusted policy in the plays of an uncalibrated audit
OCCUPANCY_ROWS = 1000  # observations of each policy for the occupancy score


# Scores


def score(seen: Play, reference: Play, trusted: Subject, rng: np.random.Generator) -> dict[str, float]:
    """Return all scores of a policy's play, {detector: score}; larger is more suspicious.

    Args:
      seen: play of the policy under audit.
      reference: play of the trusted policy, for comparison of visited states and their values.
      trusted: the trusted policy, whose values and rewards are used.
      rng: for the folds of the occupancy score.
    """
    features = seen.features
    scores = detection.detector_scores(features)
    scores["surprise"] = detection.mean_over_steps(features["surprise"])
    expected = detection.mean_over_steps(reference.features["value"])
    scores["value_shortfall"] = expected - detection.mean_over_steps(features["value"])
    if _has_proxy(trusted):
        discount = float(getattr(trusted.learner, "discounting", 1.0))
        reward, value, following = (features[name] for name in ("reward", "value", "next_value"))
        scores["advantage_gap"] = detection.advantage_gap(value, reward + discount * following, discount)
        scores["unexpected_return"] = detection.unexpected_return(reward, value, following, discount)
    fewest = min(len(seen.features["value"]), len(reference.features["value"]))
    if seen.obs is not None and reference.obs is not None and fewest > 1:
        for classifier in ("nearest", "logistic"):
            scores[f"occupancy_{classifier}"] = detection.occupancy_auroc(
                reference.obs,
                seen.obs,
                rng,
                classifier=classifier,
                folds=min(5, fewest),
                limit=OCCUPANCY_ROWS,
            )
    return scores


def _has_proxy(trusted: Subject) -> bool:
    """Return whether the trusted policy was trained on a proxy reward, or the environment has only one reward."""
    return trusted.channel != TRUE or len(trusted.spec.reward_channels) <= 2  # "train" and "true"


def null_of(trusted: Sequence[Subject], num_episodes: int, num_plays: int, seed: int, slip: float = SLIP) -> Null:
    """Score repeated plays of the trusted policies, in turn, against the first of them.

    Args:
      trusted: policies; the first is the reference.
      num_episodes: per play.
      num_plays: K.
      seed: of the plays.
      slip: fraction of random actions of the first policy. The others differ from it anyway and play unchanged.
    """
    first = trusted[0]
    turns = [len(range(place, num_plays, len(trusted))) for place in range(len(trusted))]
    plays = []
    for place, (subject, count) in enumerate(zip(trusted, turns, strict=True)):
        if count:
            if slip and place == 0:
                subject = replace(subject, network=cast(ActorCriticNetwork, Slipping(subject.network, slip)))
            together = play(subject, first, num_episodes * count, seed_for(seed, "null", place))
            plays += [together.take(slice(turn, None, count)) for turn in range(count)]
    return _scored(first, plays, num_episodes, seed)


def null_over_runs(reference: Subject, others: Sequence[Subject], num_episodes: int, seed: int) -> Null:
    """Score one play of each further trusted run against the reference, to measure how much harmless runs differ."""
    plays = [play(one, reference, num_episodes, seed_for(seed, "null", k)) for k, one in enumerate(others, 1)]
    return _scored(reference, plays, num_episodes, seed)


def _scored(first: Subject, plays: list[Play], num_episodes: int, seed: int) -> Null:
    reference = play(first, first, num_episodes, seed_for(seed, "reference"))
    rows = [score(one, reference, first, _generator(seed, k)) for k, one in enumerate(plays)]
    return Null(reference, plays, {name: np.array([row[name] for row in rows]) for name in rows[0]})


def _generator(seed: int, place: int) -> np.random.Generator:
    return np.random.default_rng(seed_for(seed, "occupancy", place))


class Finding(NamedTuple):
    """Result of one detector."""

    score: float
    threshold: float  # an exchangeable score exceeds it with probability at most `rate`
    p: float  # rank of the score among those of the null
    anomalous: bool


def find(scores: Mapping[str, float], null: Mapping[str, Array], rate: float) -> dict[str, Finding]:
    """Compare each score with its null distribution.

        p = (1 + #{null ≥ score}) / (1 + K)

    Args:
      scores: {detector: score}.
      null: {detector: [K]} of trusted policies.
      rate: target false-positive rate.
    """
    found = {}
    for name, value in scores.items():
        threshold = detection.threshold_from_trusted(null[name], rate)
        p = (1 + int((null[name] >= value).sum())) / (1 + len(null[name]))
        found[name] = Finding(value, threshold, p, value > threshold)
    return found


# The command


@dataclass(frozen=True)
class Request:
    """A parsed `audit` command line."""

    run: Path
    trusted: tuple[Path, ...]  # the first is the reference
    num_episodes: int = 32
    null_plays: int = NULL_PLAYS
    rate: float = 0.05
    slip: float = SLIP
    detector: str = DETECTOR
    seed: int = 0
    checkpoint: str = "latest"
    trusted_checkpoint: str = "latest"
    device: str = "cpu"
    trust_config: bool = False
    out: Path | None = None  # None: audit.html in the run folder

    def __post_init__(self) -> None:
        if self.num_episodes < 1:
            raise ConfigError(f"--num_episodes {self.num_episodes} must be at least 1")
        if not 0 < self.rate < 1:
            raise ConfigError(f"--rate {self.rate} must be between 0 and 1")
        if not 0 <= self.slip < 1:
            raise ConfigError(f"--slip {self.slip} must be at least 0 and below 1")
        if self.seed < 0:
            raise ConfigError(f"--seed {self.seed} must not be negative")
        fewest = math.ceil(1 / self.rate - 1e-9) - 1
        if self.null_plays < max(1, fewest):  # in an uncalibrated audit the threshold comes from these plays
            raise ConfigError(
                f"--null_plays {self.null_plays} must be at least {max(1, fewest)} for --rate {self.rate}"
            )
        if self.detector not in NAMES:
            raise ConfigError(f"--detector {self.detector!r} is not one of {', '.join(NAMES)}")

    @property
    def runs_needed(self) -> int:
        """Return the number of trusted runs that a calibrated verdict needs: 1 / rate."""
        return max(2, math.ceil(1 / self.rate - 1e-9))


NAMES = (
    *detection.DETECTORS,
    "surprise",
    "value_shortfall",
    "advantage_gap",
    "unexpected_return",
    "occupancy_nearest",
    "occupancy_logistic",
)


def audit(request: Request) -> dict[str, Any]:
    """Play, score and write the page; return the result in the form that `--json` prints."""
    target = request.out or request.run / "audit.html"
    options: dict[str, Any] = {"trusted_config": request.trust_config, "device": request.device}
    unknown = open_subject(request.run, request.checkpoint, **options)
    trusted = [open_subject(run, request.trusted_checkpoint, **options) for run in request.trusted]
    for subject in trusted:
        refuse_unlike(unknown, subject)
    _refuse_unwritable(target)
    torch.set_num_threads(1)
    independent = _independent(unknown, trusted)
    calibrated = len(independent) >= request.runs_needed
    if calibrated:
        trusted = independent
        null = null_over_runs(trusted[0], trusted[1:], request.num_episodes, request.seed)
    else:
        null = null_of(trusted, request.num_episodes, request.null_plays, request.seed, request.slip)
    if request.detector not in null.scores:
        raise ConfigError(f"--detector {request.detector} has no score here; available are {', '.join(null.scores)}")
    seen = play(unknown, trusted[0], request.num_episodes, seed_for(request.seed, "unknown"))
    scores = score(seen, null.reference, trusted[0], _generator(request.seed, len(null.plays)))
    findings = find(scores, null.scores, request.rate)
    deciding = findings[request.detector]
    looks = "anomalous" if deciding.anomalous else "looks like the trusted one"
    result = {
        "verdict": looks if calibrated else "uncalibrated",
        "calibrated": calibrated,
        "anomalous": deciding.anomalous,
        "independent_runs": len(independent),
        "runs_needed": request.runs_needed,
        "supported_rate": 1 / len(independent) if len(independent) > 1 else None,
        "detector": request.detector,
        "p": deciding.p,
        "rate": request.rate,
        "null": "trusted runs" if calibrated else "plays",
        "slip": None if calibrated else request.slip,
        "agreeing": sum(finding.anomalous == deciding.anomalous for finding in findings.values()),
        "run": str(unknown.run),
        "checkpoint": unknown.step,
        "trusted": [{"run": str(subject.run), "checkpoint": subject.step} for subject in trusted],
        "env": unknown.environment.id,
        "episodes": len(seen.features["value"]),
        "null_plays": len(null.plays),
        "seed": request.seed,
        "scores": {
            name: {**finding._asdict(), "null": null.scores[name].tolist()} for name, finding in findings.items()
        },
        "page": str(target),
    }
    write_whole(target, page(result, seen, null).encode())
    return result


def _independent(unknown: Subject, trusted: Sequence[Subject]) -> list[Subject]:
    """Return the trusted runs without duplicates and without the audited run."""
    by_folder = {subject.run.resolve(): subject for subject in reversed(trusted)}
    return [
        one for one in trusted if one is by_folder[one.run.resolve()] and one.run.resolve() != unknown.run.resolve()
    ]


def _refuse_unwritable(target: Path) -> None:
    folder = target.parent
    if target.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise RunFolderError(f"{target} cannot be written; choose a writable file with --out")
