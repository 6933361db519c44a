"""Films of the first episodes of an evaluation, and what a value expansion makes of every step that they show."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from packtrain.algorithms.value_expansion import ValueExpansion, ValueRule, expand
from packtrain.envs.stream import Episode
from packtrain.errors import EnvSetupError, RunFolderError
from packtrain.metrics.animation import Packed, animated_png, fitted, mp4, need_mp4, write_film
from packtrain.networks.control import ControlNetwork
from packtrain.runtime.evaluation import Evaluator
from packtrain.runtime.experiment import Experiment, Planning

Format = Literal["png", "mp4"]
MOST_PICTURES = 601  # of a film, the start among them; of longer episodes it shows every second step, or every fourth …
MOST_BYTES = 4_000_000  # of an animated PNG; a larger one is made again at half its size
FASTEST = 50.0  # pictures a second: browsers slow down what is much faster
HOLD_SECS = 1.0  # how long the last picture stays
BUCKETS = 10  # of weights between 0 and 1


def folder_for(run: Path, form: Format) -> Path:
    """Where a run's films go; an error if they could not be encoded or written."""
    if form == "mp4":
        need_mp4()
    folder = run / "videos"
    if not os.access(folder if folder.exists() else run, os.W_OK | os.X_OK):
        raise RunFolderError(f"{folder} cannot be written: no permission; copy the run folder, and film the copy")
    return folder


def for_pictures(experiment: Experiment) -> Experiment:
    """The same, evaluated in environments that can be drawn; EnvSetupError if they cannot be."""
    if isinstance(experiment.policy, Planning):  # it plays in cores, which need not be made for it
        return experiment
    environment = experiment.evaluation.environment or experiment.streams.environment
    return replace(experiment, evaluation=replace(experiment.evaluation, environment=environment.for_pictures()))


class Film:
    """Looks on while an evaluator plays, and writes an episode's film when it is over.

    Episode k is the first of column k; where there are more than columns, the second ones follow.
    """

    def __init__(
        self, evaluator: Evaluator, folder: Path, name: str, episodes: int, form: Format = "png", keep: bool = False
    ):
        """Begin before the evaluation does.

        Args:
          evaluator: to be looked at.
          folder: for the films, made with the first.
          name: of the files, before the number of the episode.
          episodes: how many are filmed, the first ones.
          form: of the files.
          keep: whether to keep all observations of filmed episodes; of games they would be many.
        """
        self._keep = keep
        self._evaluator, self._columns = evaluator, evaluator.stream.columns
        self._folder, self._name, self._form = folder, name, form
        self._size, self._speed = evaluator.stream.size, self._columns.pictures_per_second()
        self._wanted = [episodes // self._size + (c < episodes % self._size) for c in range(self._size)]
        self._reels: dict[int, _Reel] = {}  # of columns whose episode is being filmed
        self._finished: dict[int, tuple[dict[str, Any], _Reel]] = {}

    def look(self) -> None:
        """After an evaluation has begun, and after each of its ticks. The first look says whether there are pictures.

        Raises:
          EnvSetupError: the environment cannot be drawn.
        """
        row, first = self._evaluator.row, self._evaluator.stream.first
        for column, wanted in enumerate(self._wanted):
            played = self._evaluator.episodes[column]
            if first[column]:
                if len(played) >= wanted:
                    continue
                self._reels[column] = _Reel(len(played), every=max(1, math.ceil(self._speed / FASTEST)))
            elif column in self._reels:
                reward, terminated = float(row.last_reward["train"][column]), bool(row.terminated[column])
                after = np.array(row.obs[column]) if self._keep else None
                self._reels[column].steps.append(Step(after, reward, terminated))
            else:
                continue
            reel = self._reels[column]
            over = len(played) > reel.number
            if len(reel.steps) % reel.every == 0 or over:  # the last one is always shown
                self._draw(reel, column)
            if over:
                self._finish(self._reels.pop(column), column, played[reel.number])

    @property
    def videos(self) -> list[dict[str, Any]]:
        """What has been written, in the order of episodes."""
        return [self._finished[k][0] for k in sorted(self._finished)]

    @property
    def steps(self) -> dict[int, list[Step]]:
        """What happened in each filmed episode, by its number, from 1 on."""
        return {k: self._finished[k][1].steps for k in sorted(self._finished)}

    def _draw(self, reel: _Reel, column: int) -> None:
        picture = fitted(self._columns.picture(column))
        try:
            reel.pictures.add(picture)
        except ValueError as error:
            raise EnvSetupError(f"no film can be made: {error}") from None
        if len(reel.pictures) > MOST_PICTURES:
            reel.pictures.halve()
            reel.every *= 2

    def _finish(self, reel: _Reel, column: int, episode: Episode) -> None:
        number = 1 + column + reel.number * self._size
        path = self._folder / f"{self._name}_episode_{number}.{self._form}"
        self._folder.mkdir(exist_ok=True)
        halved_from = None
        count, seconds = len(reel.pictures), reel.every / self._speed
        if self._form == "mp4":
            data = mp4(reel.pictures, seconds, HOLD_SECS, self._folder)
        else:
            shown = [seconds] * (count - 1) + [max(seconds, HOLD_SECS)]
            data = animated_png(reel.pictures, shown)
            if len(data) > MOST_BYTES:
                reel.pictures, halved_from = reel.pictures.smaller(), len(data)
                data = animated_png(reel.pictures, shown)
        write_film(path, data)
        height, width, _ = reel.pictures.shape
        video = {
            "episode": number,
            "length": episode.length,
            "return": episode.returns["train"],
            "file": f"{self._folder.name}/{path.name}",
            "pictures": count,
            "every": reel.every,  # steps between two of them
            "per_second": 1 / seconds,
            "width": width,
            "height": height,
            "bytes": len(data),
            "halved_from": halved_from,  # bytes at twice the size, where those were too many
        }
        reel.pictures = Packed()
        self._finished[number] = (video, reel)


class Step(NamedTuple):
    """What an action led to."""

    after: Any  # the observation, where it is kept
    reward: float
    terminated: bool


@dataclass
class _Reel:
    """An episode being filmed: pictures of every so many steps, the first row's before them."""

    number: int  # of its column's episodes, from 0 on
    every: int
    pictures: Packed = field(default_factory=Packed)
    steps: list[Step] = field(default_factory=list)


# -- the weights of depths


def expansion_of(experiment: Experiment) -> ValueExpansion | None:
    """The learner whose critic looks into a model, if there is one."""
    learners = [use.learner for use in experiment.learners.values() if isinstance(use.learner, ValueExpansion)]
    return next((learner for learner in learners if learner.target.horizon), None)


def depth_weights(network: ControlNetwork, settings: ValueExpansion, steps: list[Step], seed: int = 0) -> np.ndarray:
    """How the target of each real step would be mixed of depths 0 … H: float64 [T, H + 1], rows sum to 1."""
    device = network.log_temperature.device
    batch = {
        "after": torch.from_numpy(np.stack([step.after for step in steps])).float(),  # [T, D]
        "reward": torch.tensor([step.reward for step in steps]),
        "terminated": torch.tensor([float(step.terminated) for step in steps]),
    }
    rule = ValueRule(replace(settings, batch_size=len(steps)), network)
    noise = rule.draws(1, torch.Generator(device).manual_seed(seed))
    _, targets = expand(network, settings, {**{name: leaf[None].to(device) for name, leaf in batch.items()}, **noise})
    return targets.weight[0, :, 0].T.double().cpu().numpy()  # [S, H+1, R, T] → [T, H+1]


def weight_histogram(weights: np.ndarray) -> np.ndarray:
    """The share of steps whose weight falls into each bucket of a tenth, the highest first: [10, H + 1].

    Columns sum to 1. Weights below 0 or above 1, which covariances can give, count in the outermost buckets.
    """
    bucket = np.clip(np.floor(weights * BUCKETS + 1e-9), 0, BUCKETS - 1).astype(np.int64)  # [T, H+1]
    return np.stack([(bucket == b).mean(axis=0) for b in reversed(range(BUCKETS))])


def weigh(network: ControlNetwork, settings: ValueExpansion, film: Film, path: Path) -> dict[str, Any]:
    """The weights of all filmed steps, written to a file; what there is to say about all of them together."""
    each = {number: depth_weights(network, settings, steps) for number, steps in film.steps.items()}
    together = np.concatenate(list(each.values()))
    summary = {
        "steps": len(together),
        "model_use": float(1 - together[:, 0].mean()),
        "mean": together.mean(axis=0).tolist(),
        "histogram": weight_histogram(together).tolist(),  # rows from 0.9 … 1 down to 0 … 0.1, columns are depths
    }
    episodes = [{"episode": number, "weights": weights.round(6).tolist()} for number, weights in each.items()]
    write_film(path, json.dumps({**summary, "episodes": episodes}).encode() + b"\n")
    return {**summary, "file": f"{path.parent.name}/{path.name}"}


# -- what people read


def describe(run: str, videos: list[dict[str, Any]], weights: dict[str, Any] | None) -> str:
    """Lines about films and weights."""
    lines = []
    for video in videos:
        size = f"{video['width']}×{video['height']}"
        facts = [_FORMS[video["file"].rpartition(".")[2]], f"{video['pictures']} pictures of {size}"]
        if video["every"] > 1:
            facts.append(f"one every {video['every']} steps")
        facts += [f"{video['per_second']:.3g} a second", _size(video["bytes"])]
        if video["halved_from"]:
            facts.append(f"at twice the size it would be {_size(video['halved_from'])}")
        lines.append(f"episode {video['episode']}: {video['length']:,} steps, return {_amount(video['return'])}")
        lines.append(f"  {run}/{video['file']}: {', '.join(facts)}")
    if weights is not None:
        lines.append(f"weight of each depth in the target, over {weights['steps']:,} steps (share of steps):")
        lines.append(f"  {'weight':<11}" + "".join(f"{f'depth {d}':>9}" for d in range(len(weights["mean"]))))
        for place, row in enumerate(weights["histogram"]):
            low = (BUCKETS - 1 - place) / BUCKETS
            lines.append(f"  {low:.1f} to {low + 1 / BUCKETS:.1f} " + "".join(f"{share:9.3f}" for share in row))
        lines.append(f"  {'mean':<11}" + "".join(f"{mean:9.3f}" for mean in weights["mean"]))
        lines.append(f"  model use {weights['model_use']:.3f}; every step's weights: {run}/{weights['file']}")
    return "\n".join(lines)


_FORMS = {"png": "animated PNG", "mp4": "MP4"}


def _amount(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
