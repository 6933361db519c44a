"""Sinks of metric rows besides metrics.jsonl: TensorBoard, Weights & Biases, MLflow, trackio, callbacks.

A sink receives everything a run writes. Trackers are optional packages, and a tracker that fails is a warning: the run
goes on, and metrics.jsonl has every row.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
import math
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from packtrain import knobs
from packtrain.errors import ConfigError, MissingExtraError, RunFolderError, Seldom, warn
from packtrain.files import list_inside, read_inside, write_inside

if TYPE_CHECKING:  # `packtrain train --help` imports this module, and must not import NumPy or Gymnasium
    from packtrain.envs.stream import Finished

BOOKKEEPING = ("step", "wall_s", "kind")  # keys of a row that are no metrics
IDENTITIES = "trackers.json"
"""File of a run folder: the run's id in each tracker, so that a resumed run goes on there as one run."""
_MOST_IDENTITY = 200  # characters of an id
PROJECT = "packtrain"  # name of the project in a tracker, unless the tracker's own variable has another


class About(NamedTuple):
    """Information about the run that a sink receives before the first row."""

    name: str  # name of the run folder, as given
    folder: Path
    config: str  # text of config.gin
    settings: dict[str, Any]  # every parameter of the configuration: name → value as text


class Sink:
    """Base of sinks: every method does nothing."""

    def for_seed(self) -> Sink:
        """Return a sink of the same kind for one of several seeds; called before `begin`."""
        return copy.copy(self)

    def opened(self, training: Any) -> None:
        """Receive the `Training` that writes to this sink, before it acts."""

    def begin(self, about: About) -> None:
        """Receive the run's name and configuration, before the first row."""

    def update(self) -> None:
        """Called after each call that makes updates of a learner, in the learner's thread."""

    def write(self, row: dict[str, Any]) -> None:
        """Receive a row of metrics."""

    def episodes(self, finished: Finished) -> None:
        """Receive episodes that finished in training."""

    def checkpoint(self, step: int, folder: Path) -> None:
        """Receive the folder of a checkpoint that has been written."""

    def close(self) -> None:
        """Flush and close."""


def numbers(row: dict[str, Any]) -> dict[str, float]:
    """Return the finite metrics of a row as "KIND/NAME"."""
    return {
        f"{row['kind']}/{name}": float(value)
        for name, value in row.items()
        if name not in BOOKKEEPING and isinstance(value, (int, float)) and math.isfinite(value)
    }


def known_identity(folder: Path, tracker: str) -> str | None:
    """Return the id that a run has in a tracker from before; None for a new run.

    Args:
      folder: of the run; a file in it that is not as packtrain writes it counts as none.
      tracker: name of the tracker.
    """
    try:
        found = json.loads(read_inside(folder, IDENTITIES)).get(tracker)
    except (OSError, RunFolderError, ValueError, AttributeError, RecursionError):
        return None
    fits = isinstance(found, str) and 0 < len(found) <= _MOST_IDENTITY and found.isprintable()
    return found if fits else None


def note_identity(folder: Path, tracker: str, identity: str) -> None:
    """Record the id that a run has in a tracker."""
    known = {name: known_identity(folder, name) for name in TRACKERS}
    known = {name: value for name, value in {**known, tracker: identity}.items() if value is not None}
    write_inside(folder, IDENTITIES, json.dumps(known).encode())


def folder_outside(run: Path, wanted: Path) -> Path:
    """Return `wanted`, or the run folder's parent if it lies in the run folder, where trackers must not put links."""
    run, wanted = run.resolve(), wanted.resolve()
    return run.parent if wanted == run or run in wanted.parents else wanted


class TensorBoard(Sink):
    """Event files under RUN/tensorboard: scalars, the configuration as text, and hyper-parameters with final scores."""

    package, extra = "tensorboard", "tensorboard"

    def begin(self, about: About) -> None:
        """Open the event files and write the configuration."""
        self._path, self._settings = about.folder / "tensorboard", about.settings
        self._last: dict[str, float] = {}
        self._writer: Any = self._open()
        self._writer.add_text("config", "    " + about.config.replace("\n", "\n    "))

    def _open(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self._path))

    def write(self, row: dict[str, Any]) -> None:
        """Add every number of a row as KIND/NAME; after an error of the disk, in another file."""
        found = numbers(row)
        try:
            self._writer = self._writer or self._open()
            for name, value in found.items():
                self._writer.add_scalar(name, value, row["step"])
        except OSError:
            # the writer stopped with the error; TensorBoard reads all files of the folder, so a new one continues
            self._writer = None
            raise
        self._last = {**self._last, **{f"final/{name}": found[name] for name in found if name.endswith("/return_mean")}}

    def close(self) -> None:
        """Write hyper-parameters with the last evaluation's results, and close the files."""
        if self._writer is None:
            return
        if self._last:
            from torch.utils.tensorboard.summary import hparams

            settings = {name: str(value)[:200] for name, value in self._settings.items()}
            for summary in hparams(settings, self._last):
                self._writer.file_writer.add_summary(summary)
            for name, value in self._last.items():
                self._writer.add_scalar(name, value)
        self._writer.close()


def add_films(run: Path, videos: Sequence[dict[str, Any]], step: int) -> None:
    """Add animated PNGs of episodes to a run's TensorBoard files, as images that browsers animate.

    Does nothing where the run has no folder `tensorboard`; errors are warnings.

    Args:
      run: its folder.
      videos: as `Film.videos` returns them; other formats than PNG are left out, which TensorBoard cannot show.
      step: of the checkpoint that was filmed.
    """
    shown = [video for video in videos if video["file"].endswith(".png")]
    try:
        has_folder = "tensorboard" in list_inside(run)
        if not shown or not has_folder or importlib.util.find_spec("tensorboard") is None:
            return
        list_inside(run, "tensorboard")  # refuses a link
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard import SummaryWriter

        with contextlib.closing(SummaryWriter(str(run / "tensorboard"), filename_suffix=".films")) as writer:
            for video in shown:
                data = read_inside(run, video["file"])
                image = Summary.Image(
                    encoded_image_string=data, colorspace=3, height=video["height"], width=video["width"]
                )
                value = Summary.Value(tag=f"films/episode_{video['episode']}", image=image)
                event_file: Any = writer.file_writer
                event_file.add_summary(Summary(value=[value]), step)
    except (OSError, RunFolderError) as error:
        warn(f"tensorboard: {error}; the films are in {run / 'videos'}")


class WeightsAndBiases(Sink):
    """A run of Weights & Biases in the project WANDB_PROJECT, or "packtrain"; WANDB_MODE=offline needs no account.

    Its files go to WANDB_DIR, or to the folder `wandb` of the current folder. Run folders contain no links, and
    wandb makes some.
    """

    package, extra = "wandb", "wandb"

    def begin(self, about: About) -> None:
        """Start the run with every parameter as its config, or go on with it."""
        import wandb

        known = known_identity(about.folder, "wandb")
        identity = known or secrets.token_hex(8)
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=about.name,
            id=identity,
            resume="allow",
            dir=str(folder_outside(about.folder, Path(os.environ.get("WANDB_DIR") or os.getcwd()))),
            config=about.settings,
            reinit="create_new",
        )
        if known is None:
            note_identity(about.folder, "wandb", identity)

    def write(self, row: dict[str, Any]) -> None:
        """Log a row at its step."""
        self._run.log({**numbers(row), "step": row["step"]})

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class MlFlow(Sink):
    """A run of MLflow in the experiment MLFLOW_EXPERIMENT_NAME, or "packtrain", at MLFLOW_TRACKING_URI."""

    package, extra = "mlflow", "mlflow"

    def begin(self, about: About) -> None:
        """Start the run with every parameter, or go on with it."""
        from mlflow.tracking import MlflowClient

        self._client: Any = MlflowClient()
        known = known_identity(about.folder, "mlflow")
        if known is not None and self._goes_on(known):
            self._run: str = known
            return
        project = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        experiment = self._client.get_experiment_by_name(project)
        number = experiment.experiment_id if experiment else self._client.create_experiment(project)
        self._run = self._client.create_run(number, run_name=about.name).info.run_id
        for name, value in about.settings.items():
            self._client.log_param(self._run, name.replace("/", "."), str(value)[:500])
        note_identity(about.folder, "mlflow", self._run)

    def _goes_on(self, identity: str) -> bool:
        """Open a run of before again; return False where this tracking server does not have it."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.update_run(identity, status="RUNNING")
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False
        return True

    def write(self, row: dict[str, Any]) -> None:
        """Log every number of a row at its step."""
        for name, value in numbers(row).items():
            self._client.log_metric(self._run, name, value, step=row["step"])

    def close(self) -> None:
        """End the run."""
        self._client.set_terminated(self._run)


class Trackio(Sink):
    """A run of trackio in the project "packtrain", on this machine. Its name identifies the run."""

    package, extra = "trackio", "trackio"

    def begin(self, about: About) -> None:
        """Start the run, or go on with it."""
        import trackio

        known = known_identity(about.folder, "trackio")
        name = known or f"{about.name} {secrets.token_hex(3)}"
        self._run: Any = trackio.init(project=PROJECT, name=name, resume="allow", config=about.settings)
        if known is None:
            note_identity(about.folder, "trackio", name)

    def write(self, row: dict[str, Any]) -> None:
        """Log a row at its step."""
        self._run.log(numbers(row), step=row["step"])

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


TRACKERS: dict[str, Any] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MlFlow,
    "trackio": Trackio,
}


def trackers(names: Sequence[str]) -> list[Sink]:
    """Return the trackers of these names, which have not begun yet.

    Raises:
      ConfigError: there is no tracker of that name.
      MissingExtraError: its package is not installed.
    """
    found: list[Sink] = []
    for name in dict.fromkeys(names):
        if name not in TRACKERS:
            near = knobs.nearest(name, list(TRACKERS))
            raise ConfigError(f"--track {name!r} is not one of {', '.join(TRACKERS)}{near}")
        kind = TRACKERS[name]
        try:
            missing = importlib.util.find_spec(kind.package) is None
        except ValueError:  # a module without a spec, as tests have
            missing = False
        if missing:
            raise MissingExtraError(f"--track {name}", kind.package, kind.extra)
        found.append(Forgiving(name, kind()))
    return found


class Forgiving(Sink):
    """A tracker whose failures are warnings, at most one a minute. If `begin` fails, it is skipped."""

    def __init__(self, name: str, inner: Sink):
        self._name, self._inner = name, inner
        self._begun, self._warnings = False, Seldom()

    def for_seed(self) -> Sink:
        """Return another one around a tracker of the same kind."""
        return Forgiving(self._name, self._inner.for_seed())

    def begin(self, about: About) -> None:
        """Begin; if that fails, drop all later calls."""
        self._begun = self._try("begin", about)

    def write(self, row: dict[str, Any]) -> None:
        """Pass a row on."""
        self._begun and self._try("write", row)

    def episodes(self, finished: Finished) -> None:
        """Pass episodes on."""
        self._begun and self._try("episodes", finished)

    def checkpoint(self, step: int, folder: Path) -> None:
        """Pass a checkpoint on."""
        self._begun and self._try("checkpoint", step, folder)

    def close(self) -> None:
        """Close the tracker."""
        self._begun and self._try("close")

    def _try(self, method: str, *arguments: Any) -> bool:
        try:
            getattr(self._inner, method)(*arguments)
        except Exception as error:
            text = (str(error).splitlines() or [""])[0]
            self._warnings.warn(f"{self._name}: {type(error).__name__}: {text}; the run goes on without it")
            return False
        return True
