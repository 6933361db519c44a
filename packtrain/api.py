"""The Python API: train, load, evaluate and report in three lines of a notebook or a script.

    run = packtrain.train("ppo/cartpole", total_steps=50_000)
    policy = packtrain.load(run.path)
    action, state = policy.predict(obs)

Configurations are parsed under a lock, since gin keeps them in one place; trainings in several threads then run at the
same time. Errors are `packtrain.errors.Error` with the messages of the command line.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from packtrain import config as configurations
from packtrain import knobs
from packtrain.envs import user_code
from packtrain.envs.environment import Environment
from packtrain.envs.single import make_single
from packtrain.envs.stream import Episode, Finished
from packtrain.errors import ConfigError, DivergedError
from packtrain.metrics.reading import BOOKKEEPING, read_metrics, seed_folders
from packtrain.metrics.sinks import Sink, trackers
from packtrain.prediction import Policy, load_policy
from packtrain.runtime import eval_command, train_command
from packtrain.runtime.messages import Remote
from packtrain.runtime.open_run import TrainRequest
from packtrain.runtime.profiling import Profile

RUN_OPTIONS = {
    "runtime": "local",
    "workers": None,
    "address": None,
    "min_nodes": None,
    "inference": "worker",
    "replay_shards": None,
    "bindings": (),
    "track": (),
    "profile": False,
    "demonstrations": None,
    "progress": True,
    "fresh": False,
    "trust_config": False,
    "trace": 0,
}
"""Settings of `train` that are no knobs, with their defaults."""


@dataclass(frozen=True)
class Callbacks:
    """Functions called during a run, in the thread that called `train`. A function that returns False stops the run."""

    on_row: Callable[[dict[str, Any]], Any] | None = None  # called with each row of training metrics
    on_evaluation: Callable[[dict[str, Any]], Any] | None = None  # called with the result of each evaluation
    on_checkpoint: Callable[[int, Path], Any] | None = None  # called with step and folder of each checkpoint
    on_episode: Callable[[Episode], Any] | None = None  # called with each episode finished in training


class Metrics(dict[str, np.ndarray]):
    """Arrays over rows by metric name, with NaN for missing values; "step" and "wall_s" are among them."""

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with one line per row."""
        try:
            import pandas
        except ImportError:
            raise ConfigError("to_pandas needs the package 'pandas'; try: pip install pandas") from None
        return pandas.DataFrame(dict(self))


@dataclass(frozen=True)
class Run:
    """A run folder."""

    path: Path
    stopped: bool = False  # whether a callback ended it early

    @property
    def seeds(self) -> list[Run]:
        """The runs of its seeds, in order; itself alone where it has no folders seed_K."""
        folders = seed_folders(self.path)
        return [self if folder == self.path else Run(folder) for folder in folders]

    def metrics(self, kind: str = "train") -> Metrics:
        """Return the rows of one kind as arrays.

        Args:
          kind: train, eval, or another kind in metrics.jsonl, such as eval/NAME.
        """
        if len(self.seeds) > 1:
            raise ConfigError(f"{self.path} holds {len(self.seeds)} seeds: read run.seeds[0].metrics() and the others")
        (only,) = self.seeds
        rows = [row for row in read_metrics(only.path) if row["kind"] == kind]
        names = dict.fromkeys(name for row in rows for name, value in row.items() if _is_number(value))
        first = [name for name in BOOKKEEPING if name in names]
        order = [*first, *(name for name in names if name not in first)]
        return Metrics({name: np.array([_number(row.get(name)) for row in rows]) for name in order})

    def load(self, checkpoint: str = "latest") -> Policy:
        """Return its policy."""
        return load(self.path, checkpoint=checkpoint)

    def export(
        self, out: str | os.PathLike[str] | None = None, *, checkpoint: str | int = "latest", trust_config: bool = False
    ) -> dict[str, Any]:
        """Write the policy as `packtrain export` does; return the content of policy.json.

        Args:
          out: the folder; None: `export` in the run folder.
          checkpoint: latest, best, or a step.
          trust_config: let the run's configuration import any module.
        """
        from packtrain.export import export

        with configurations.alone(), torch.random.fork_rng(devices=[]):
            return export(self.path, None if out is None else Path(out), str(checkpoint), trust_config)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: Any) -> float:
    return float(value) if _is_number(value) else float("nan")


def _remote(options: dict[str, Any]) -> Remote | None:
    """Return where a run acts: on a cluster or in this process; ConfigError if the options do not fit each other."""
    runtime = options["runtime"]
    if runtime not in ("local", "serial", "cluster"):
        raise ConfigError(f"runtime = {runtime!r} is not one of local, serial, cluster")
    if options["inference"] not in ("worker", "learner"):
        raise ConfigError(f"inference = {options['inference']!r} is not one of worker, learner")
    if runtime == "cluster":
        nodes = 1 if options["min_nodes"] is None else options["min_nodes"]
        places = (options["workers"], options["address"], nodes, options["inference"])
        return Remote("cluster", *places, replay_shards=options["replay_shards"])
    for name in ("workers", "address", "min_nodes", "inference", "replay_shards"):
        if options[name] != RUN_OPTIONS[name]:
            raise ConfigError(f'{name} = {options[name]!r} needs runtime = "cluster"')
    return None


def train(
    config: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    env: Any = None,
    env_kwargs: dict[str, Any] | None = None,
    output_dir: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    num_seeds: int | None = None,
    device: str = "cpu",
    callbacks: Callbacks | None = None,
    **settings: Any,
) -> Run:
    """Train an agent, or resume the run in `output_dir`, and return the run.

    Args:
      config: a shipped configuration such as "ppo/cartpole", or the path of a .gin file; several are read in order.
      env: an id, a Gymnasium class, a function that makes an environment, or an instance, which is copied.
      env_kwargs: arguments of the environment.
      output_dir: the run folder; None: a new one, runs/CONFIG/TIME.
      seed: of everything random; None: the configuration's.
      num_seeds: number of seeds to train, from `seed` on, in folders seed_0, seed_1, …; None: a single run.
      device: cpu, cuda or cuda:N.
      callbacks: functions to call while it goes on; False stops all seeds.
      settings: knobs of the configuration, such as total_steps=50_000; and runtime ("local", "serial" or "cluster"),
        workers, address, min_nodes, inference and replay_shards for a cluster, bindings (a list of gin bindings),
        track (names of trackers), profile (write a trace), demonstrations (a data set of Minari),
        progress (False prints nothing), fresh, trust_config,
        trace (number of episodes whose searches are recorded).

    Raises:
      Error: as on the command line.
      KeyboardInterrupt: after Ctrl-C, when the run has been saved.
    """
    names = [config] if isinstance(config, (str, os.PathLike)) else list(config)
    if not names:
        raise ConfigError("train needs a configuration; packtrain.list_configs() returns the shipped ones")
    options = {name: settings.pop(name, default) for name, default in RUN_OPTIONS.items()}
    remote = _remote(options)
    if isinstance(options["track"], str):
        options["track"] = options["track"].split(",")
    if env is not None:
        settings["env"] = user_code.id_of(env)
    paths, values = _read(names, settings)
    bindings = [*options["bindings"]]
    if env_kwargs is not None:
        bindings.append(f"Environment.kwargs = {env_kwargs!r}")
    calls = _CallbackSink(callbacks or Callbacks())
    named = None if output_dir is None else os.fspath(output_dir)
    request = TrainRequest(
        files=paths,
        bindings=bindings,
        knobs=values,
        output=train_command.output_folder(named, None, None, os.fspath(names[-1])),
        seed=seed,
        num_seeds=num_seeds,
        runtime=options["runtime"],
        remote=remote,
        device=device,
        fresh=options["fresh"] or output_dir is None,
        trust_config=options["trust_config"],
        quiet=not options["progress"],
        demonstrations=None if options["demonstrations"] is None else Path(options["demonstrations"]),
        sinks=(*trackers(options["track"]), *([Profile()] if options["profile"] else []), calls),
        trace=options["trace"],
    )
    if num_seeds is not None and num_seeds < 1:
        raise ConfigError(f"num_seeds = {num_seeds} must be at least 1")
    if num_seeds is None:
        folder, code = train_command.train_one(request, _building)
    else:
        folder, code = train_command.train_seeds(request, num_seeds, _building)
    if code == DivergedError.exit_code:
        raise DivergedError(f"seeds of {folder} have diverged; the others are finished, see the lines on stderr")
    if code and not calls.stopped:
        raise KeyboardInterrupt(f"{folder} was saved; the same call goes on")
    return Run(folder, calls.stopped)


def _read(names: Sequence[str | os.PathLike[str]], settings: dict[str, Any]) -> tuple[list[Path], dict[str, Any]]:
    """Return configuration files and knob values; ConfigError for a name that is not a knob."""
    paths = [knobs.find_config(os.fspath(name))[0] for name in names]
    known = {name: knob for path in paths for name, knob in knobs.read_knobs(path).items()}
    for name in settings:
        if name not in known:
            near = knobs.nearest(name, [*known, *RUN_OPTIONS, "output_dir", "env_kwargs", "callbacks"])
            raise ConfigError(f"unknown knob {name!r}{near} of {' '.join(str(each) for each in names)}")
    return paths, {name: known[name].accept(value) for name, value in settings.items()}


@contextlib.contextmanager
def _building() -> Iterator[None]:
    """Context in which configurations are parsed and runs are built: one thread at a time, nothing is left of it."""
    with configurations.alone(), torch.random.fork_rng(devices=[]):  # weights are drawn from torch's own generator
        yield


class _StopRequested(Exception):
    """Raised to end a run early because a callback returned False."""


class _CallbackSink(Sink):
    """Calls the functions of `Callbacks`. The sinks of several seeds share what has been stopped."""

    def __init__(self, callbacks: Callbacks, trainings: list[Any] | None = None):
        self._callbacks = callbacks
        self._trainings: list[Any] = [] if trainings is None else trainings

    @property
    def stopped(self) -> bool:
        """Return whether a callback has ended the run."""
        return any(isinstance(training.progress.stop, _StopRequested) for training in self._trainings)

    def for_seed(self) -> _CallbackSink:
        """Return the sink of one of several seeds."""
        return _CallbackSink(self._callbacks, self._trainings)

    def opened(self, training: Any) -> None:
        """Note what to stop; a run that is opened after another one was stopped is stopped too."""
        if self.stopped:
            training.progress.stop = _StopRequested()
        self._trainings.append(training)

    def write(self, row: dict[str, Any]) -> None:
        """Pass a row to the callback."""
        is_evaluation = row["kind"].partition("/")[0] == "eval"
        self._call(self._callbacks.on_evaluation if is_evaluation else self._callbacks.on_row, dict(row))

    def episodes(self, finished: Finished) -> None:
        """Pass episodes to the callback, one by one."""
        if self._callbacks.on_episode is not None:
            for episode in finished.episodes():
                self._call(self._callbacks.on_episode, episode)

    def checkpoint(self, step: int, folder: Path) -> None:
        """Pass a checkpoint to the callback."""
        self._call(self._callbacks.on_checkpoint, step, folder)

    def _call(self, function: Callable[..., Any] | None, *arguments: Any) -> None:
        if function is not None and function(*arguments) is False:
            for training in self._trainings:
                training.progress.stop = training.progress.stop or _StopRequested()


def load(
    run: str | os.PathLike[str] | Run,
    *,
    checkpoint: str | int = "latest",
    device: str = "cpu",
    env: Any = None,
    trust_config: bool = False,
) -> Policy:
    """Return the policy of a run.

    Args:
      run: the run folder.
      checkpoint: latest, best, or a step.
      device: of the network.
      env: the environment again, for a run of another Python session whose environment had no name to import it by.
      trust_config: let the run's configuration import any module.
    """
    if env is not None:
        user_code.id_of(env)
    with configurations.alone(), torch.random.fork_rng(devices=[]):
        return load_policy(_folder(run), str(checkpoint), device, trust_config)


def evaluate(
    run: str | os.PathLike[str] | Run,
    num_episodes: int = 100,
    *,
    checkpoint: str | int = "latest",
    seed: int | None = None,
    device: str = "cpu",
    greedy: bool | None = None,
    trust_config: bool = False,
    trace: int = 0,
) -> dict[str, Any]:
    """Play episodes with a run's policy; return what `packtrain eval --json` prints.

    Args:
      run: the run folder; of a folder of seeds each is evaluated, and the result is the mean over them.
      num_episodes: of each kind.
      checkpoint: latest, best, or a step.
      seed: of the environments; None: the run's.
      device: of the network.
      greedy: True or False plays one kind only; None: all kinds that the policy has.
      trust_config: let the run's configuration import any module.
      trace: number of first episodes whose searches are recorded, for `explore`.
    """
    if num_episodes < 1:
        raise ConfigError(f"num_episodes = {num_episodes} must be at least 1")
    if not 0 <= trace <= num_episodes:
        raise ConfigError(f"trace = {trace} must lie between 0 and num_episodes = {num_episodes}")
    parts = (_folder(run), num_episodes, str(checkpoint), seed, device, trust_config, greedy)
    request = eval_command.EvalRequest(*parts, trace_episodes=trace)
    with configurations.alone(), torch.random.fork_rng(devices=[]):
        return eval_command.evaluate_seeds(request)


def report(
    *runs: str | os.PathLike[str] | Run, out: str | os.PathLike[str] | None = None, compare: str | None = None
) -> Path:
    """Write one HTML page about runs; return its path.

    Args:
      runs: run folders.
      out: the page; None: report.html in the first run's folder.
      compare: a knob or setting; runs of one value are one curve.
    """
    from packtrain.studies.report import write_report

    folders = [str(_folder(run)) for run in runs]
    return Path(write_report(folders, None if out is None else Path(out), compare))


def explore(
    run: str | os.PathLike[str] | Run,
    against: str | os.PathLike[str] | Run | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
) -> Path:
    """Write one HTML page about the searches that a run has recorded; return its path.

    Args:
      run: the run folder.
      against: a second run, shown side by side.
      out: the page; None: explorer.html in the run folder.
    """
    from packtrain.studies.explorer import Source, write_explorer

    sources = [Source(_folder(one)) for one in (run, against) if one is not None]
    return write_explorer(sources, None if out is None else Path(out))


def make_env(env: Any, **kwargs: Any) -> gym.Env:
    """Return one Gymnasium environment for anything that `train` accepts: a built-in name, id, class or factory."""
    with configurations.alone():
        return make_single(Environment(id=user_code.id_of(env), kwargs=kwargs))


def list_configs(*words: str) -> list[str]:
    """Return the names of the shipped configurations that have all these words in their names."""
    return [name for name in knobs.shipped() if all(word in name for word in words)]


def _folder(run: str | os.PathLike[str] | Run) -> Path:
    return run.path if isinstance(run, Run) else Path(run).expanduser()
