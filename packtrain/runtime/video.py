"""Films of the first episodes of an evaluation."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from packtrain.envs.stream import Episode
from packtrain.errors import EnvSetupError, RunFolderError
from packtrain.interfaces import EpisodeAnalysis, ObservedStep
from packtrain.metrics.animation import Packed, animated_png, fitted, mp4, need_mp4, need_png, write_film
from packtrain.runtime.evaluation import Evaluator
from packtrain.runtime.experiment import Experiment

Format = Literal["png", "mp4"]
MOST_PICTURES = 601  # pictures of a film with the start; longer episodes show every second step, or every fourth …
MOST_BYTES = 4_000_000  # maximum size of an animated PNG; a larger one is made again at half the resolution
FASTEST = 50.0  # pictures per second; browsers slow down faster films
HOLD_SECS = 1.0  # display time of the last picture


def folder_for(run: Path, form: Format) -> Path:
    """Return the folder of a run's films; raises an error if films cannot be encoded or written."""
    need_mp4() if form == "mp4" else need_png()
    folder = run / "videos"
    if not os.access(folder if folder.exists() else run, os.W_OK | os.X_OK):
        raise RunFolderError(f"{folder} cannot be written: no permission; copy the run folder, and film the copy")
    return folder


def for_pictures(experiment: Experiment) -> Experiment:
    """Return the experiment with environments that can be drawn; EnvSetupError if they cannot."""
    if experiment.policy.env_access == "states":  # planners play in functional cores, which can always be rendered
        return experiment
    environment = experiment.evaluation.environment or experiment.streams.environment
    return replace(experiment, evaluation=replace(experiment.evaluation, environment=environment.for_pictures()))


class Film:
    """Records an evaluator's episodes, and writes an episode's film when it is over.

    Episode k is the first one of environment k; if more episodes are requested than there are environments, the second
    episode of each environment follows.
    """

    def __init__(
        self, evaluator: Evaluator, folder: Path, name: str, episodes: int, form: Format = "png", keep: bool = False
    ):
        """Create a recorder; call this before the evaluation begins.

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
        self._reels: dict[int, _Reel] = {}  # films in progress, by environment
        self._finished: dict[int, tuple[dict[str, Any], _Reel]] = {}

    def look(self) -> None:
        """Record the current state; call this after the evaluation begins and after each tick.

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
                self._reels[column].steps.append(ObservedStep(after, reward, terminated))
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
        """Files that have been written, in the order of episodes."""
        return [self._finished[k][0] for k in sorted(self._finished)]

    @property
    def steps(self) -> dict[int, list[ObservedStep]]:
        """Steps of each filmed episode, by its number, counted from 1."""
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
            "every": reel.every,  # steps between two pictures
            "per_second": 1 / seconds,
            "width": width,
            "height": height,
            "bytes": len(data),
            "halved_from": halved_from,  # bytes at twice the size, if that was too large
        }
        reel.pictures = Packed()
        self._finished[number] = (video, reel)


@dataclass
class _Reel:
    """An episode that is being filmed: a picture every few steps, beginning with the first row."""

    number: int  # index of the episode in its environment, from 0
    every: int
    pictures: Packed = field(default_factory=Packed)
    steps: list[ObservedStep] = field(default_factory=list)


def write_analysis(path: Path, analysis: EpisodeAnalysis) -> dict[str, Any]:
    """Write the analysis of all filmed episodes to a file; return its summary, file name and lines to print."""
    write_film(path, json.dumps({**analysis.summary, "episodes": analysis.episodes}).encode() + b"\n")
    return {**analysis.summary, "file": f"{path.parent.name}/{path.name}", "lines": analysis.lines}


# -- texts


def describe(run: str, videos: list[dict[str, Any]]) -> str:
    """Return lines about films."""
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
    return "\n".join(lines)


_FORMS = {"png": "animated PNG", "mp4": "MP4"}


def _amount(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
