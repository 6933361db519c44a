"""`packtrain eval`: play episodes with a run's checkpoint, and describe the result."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from packtrain.config import unrecorded
from packtrain.envs.exits import exits_are_faults
from packtrain.envs.picture import draw_without_screen
from packtrain.envs.stream import Episode
from packtrain.errors import EnvError, RunFolderError
from packtrain.files import write_inside
from packtrain.interfaces import LearnerSettings
from packtrain.metrics.intervals import mean_interval
from packtrain.metrics.reading import seed_folders
from packtrain.metrics.sinks import add_films
from packtrain.runtime import checkpoint
from packtrain.runtime import video as films
from packtrain.runtime.evaluation import Evaluator, Kind, Plays, open_evaluator
from packtrain.runtime.experiment import Experiment
from packtrain.runtime.preparation import find_device, prepare, refuse_no_run, refuse_traces
from packtrain.runtime.progress import schedule_epoch
from packtrain.runtime.restore_checks import refuse_ill_formed, refuse_other, restoring
from packtrain.runtime.seeds import seed_for
from packtrain.runtime.watchdog import Watchdog

MOST_LISTED = 20  # maximum number of episodes listed one by one


@dataclass(frozen=True)
class EvalRequest:
    """An `eval` command line, parsed."""

    run: Path  # the run folder
    num_episodes: int = 100  # episodes of each kind
    checkpoint: str = "latest"  # latest, best, or a step
    seed: int | None = None  # seed of the environments; None: the run's
    device: str = "cpu"  # device of the network
    trust_config: bool = False  # the configuration may import modules outside packtrain
    greedy: bool | None = None  # mode of the distribution, or samples; None: both, in the order of Evaluation.best
    video_episodes: int = 0  # number of episodes of the first kind to film
    video_format: films.Format = "png"
    trace_episodes: int = 0  # of the first kind, whose searches are recorded


def evaluate(request: EvalRequest) -> dict[str, Any]:
    """Play episodes with a run's checkpoint and write RUN/eval.json; code of the run folder is not executed."""
    run = request.run
    refuse_no_run(run)
    folder = films.folder_for(run, request.video_format) if request.video_episodes else None
    if folder is not None:
        draw_without_screen()
    configuration, experiment, spec = prepare([run / "config.gin"], [], {}, None, request.trust_config)
    step, state = checkpoint.choose(run / "checkpoints", request.checkpoint)
    refuse_ill_formed(run, state)
    refuse_other(run, state, configuration)
    refuse_traces(experiment, request.trace_episodes)
    device = find_device(request.device)
    torch.set_num_threads(1)
    seed = seed_for(experiment.seed if request.seed is None else request.seed, "eval")
    if folder is not None:
        experiment = films.for_pictures(experiment)
    kinds: list[Kind] = [] if request.greedy is None else ["greedy" if request.greedy else "sampled"]
    with unrecorded():
        settings = replace(experiment.evaluation, num_episodes=request.num_episodes, deadline_secs=math.inf)
    plays = Plays(kinds, run / "traces", request.trace_episodes, step)
    evaluator, network = open_evaluator(experiment, spec, device, seed, settings, plays=plays)
    learned = _restore(run, experiment, evaluator, network, state)
    greedy = evaluator.kind == "greedy"
    environment = experiment.streams.environment
    envs, name = [evaluator.stream.columns], f"{step}" + "_sampled" * (not greedy)
    deadlines = environment.step_deadline_secs, environment.start_deadline_secs
    with contextlib.closing(evaluator), Watchdog(envs, *deadlines, _end_at_once):
        film, analyst = None, _analyst(experiment)
        if folder is not None:
            episodes, form = request.video_episodes, request.video_format
            film = films.Film(evaluator, folder, name, episodes, form, keep=analyst is not None)
        with exits_are_faults(envs):
            result, played = _play(evaluator, learned, film)
            if request.trace_episodes:
                evaluator.finish()
    result |= {"checkpoint": step, "env": environment.id, "greedy": greedy}
    result |= {"returns": [each.returns["train"] for each in played], "lengths": [each.length for each in played]}
    if film is not None and folder is not None:
        result["videos"] = film.videos
        add_films(run, film.videos, step)
        if analyst is not None:
            analysis = analyst.analyse_episodes(network, film.steps)
            result["weights"] = films.write_analysis(folder / f"{name}_weights.json", analysis)
    if request.trace_episodes:
        result["traces"] = min(request.trace_episodes, result["episodes"])
    with contextlib.suppress(OSError):  # another user's folder may be read-only
        write_inside(run, "eval.json", json.dumps(result).encode() + b"\n")
    return result


def evaluate_seeds(request: EvalRequest) -> dict[str, Any]:
    """Evaluate a run, or every seed of a folder of seeds; each seed's folder gets its own eval.json.

    Returns:
      What `evaluate` returns; of several seeds the mean over them in `return_mean`, the half-width of its Student-t
      interval over seeds in `return_ci95`, the number of seeds in `seeds` and the result of each in `each`.
    """
    if (request.run / "config.gin").is_file() or not request.run.is_dir():
        return evaluate(request)
    try:
        folders = seed_folders(request.run)
    except RunFolderError:
        return evaluate(request)  # which says what is missing
    each = {folder.name: evaluate(replace(request, run=folder)) for folder in folders}
    mean, low, high = mean_interval([result["return_mean"] for result in each.values()])
    return {
        "return_mean": mean,
        "return_ci95": None if math.isnan(low) else (high - low) / 2,
        "episodes": sum(result["episodes"] for result in each.values()),
        "env": next(iter(each.values()))["env"],
        "seeds": len(each),
        "each": each,
    }


def describe_seeds(run: str, result: dict[str, Any]) -> str:
    """Return the result of several seeds as text."""
    interval = _half_width(result["return_ci95"]) + " (95 % interval over seeds)" * (result["return_ci95"] is not None)
    head = f"{run}: {result['seeds']} seeds, return {result['return_mean']:.3f}{interval}"
    return "\n".join([head, *(describe_evaluation(f"{run}/{name}", one) for name, one in result["each"].items())])


def _restore(
    run: Path, experiment: Experiment, evaluator: Evaluator, network: torch.nn.Module, state: dict[str, Any]
) -> dict[str, Any]:
    """Load a checkpoint into an evaluator; return the actor state that evaluations need."""
    with restoring(run):
        repeats = state["run"].get("repeats", [0] * len(experiment.schedule))
        for policy in evaluator.policies:
            policy.begin_epoch(schedule_epoch(experiment, repeats), sum(repeats))
        for weights in state["weights"].values():  # empty for runs without learners
            network.load_state_dict({**network.state_dict(), **weights})
        if "actor" in state:
            sides = state["actor"].get("workers", [state["actor"]])  # one per process that acted
            return dict(sides[0]["seats"][0])
        return {"own": state["seats"][0]} if "seats" in state else {}


def _analyst(experiment: Experiment) -> LearnerSettings | None:
    """Return the first learner that analyses filmed episodes; None if there is none."""
    learners: Iterable[Any] = (use.learner for use in experiment.learners.values())
    return next((learner for learner in learners if getattr(learner, "analyses_episodes", False)), None)


def _end_at_once(error: EnvError) -> None:
    """End the process at once, because an environment hangs and cannot be interrupted."""
    print(f"packtrain: error: {error}", file=sys.stderr, flush=True)
    os._exit(error.exit_code)


def _play(
    evaluator: Evaluator, learned: dict[str, Any], film: films.Film | None
) -> tuple[dict[str, Any], list[Episode]]:
    """Play all episodes; return the result and the episodes of the first kind. A terminal shows the count."""
    shown = time.monotonic()
    evaluator.begin(learned)
    result, episodes = None, evaluator.episodes
    while result is None:
        if film is not None and evaluator.plays_first_kind:
            film.look()
        result = evaluator.tick()
        if evaluator.plays_first_kind:
            episodes = evaluator.episodes
        if sys.stderr.isatty() and time.monotonic() - shown > 1:
            shown = time.monotonic()
            print(f"\r{evaluator.played} episodes", end="", file=sys.stderr, flush=True)
    if film is not None and evaluator.plays_first_kind:
        film.look()
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return result, [episode for column in episodes for episode in column]


def describe_evaluation(run: str, result: dict[str, Any]) -> str:
    """Return the result as one or several lines of text."""
    interval = _half_width(result["return_ci95"]) + " (95 % interval)" * (result["return_ci95"] is not None)
    solved = f", solved {result['solved']:.3f}" if "solved" in result else ""
    cut = f", {result['episodes_truncated']} cut off" if result["episodes_truncated"] else ""
    text = (
        f"{run} at step {result['checkpoint']:,}: return {result['return_mean']:.3f}{interval}{solved} "
        f"({result['episodes']} episode{'s' * (result['episodes'] != 1)} of {result['length_mean']:.1f} steps{cut})"
    )
    if 1 < result["episodes"] <= MOST_LISTED:
        each = zip(result["returns"], result["lengths"], strict=True)
        text += "\n  episodes: " + ", ".join(f"{value:.1f} ({length:,} steps)" for value, length in each)
    each_kind = [
        f"{kind} {result[f'return_{kind}_mean']:.3f}" + _half_width(result[f"return_{kind}_ci95"])
        for kind in ("greedy", "sampled")
        if f"return_{kind}_mean" in result
    ]
    if each_kind:
        text += f"\n  {', '.join(each_kind)} ({result['episodes']} of each; above {_kind(result)})"
    others = {name: value for name, value in result["rewards"].items() if name != "train"}
    text += "".join(f"\n  {name}: {value:.3f}" for name, value in others.items())
    if "videos" in result:
        text += "\n" + films.describe(run, result["videos"])
    if "traces" in result:
        text += f"\n  searches of {result['traces']} episodes: {run}/traces; packtrain explore {run} shows them"
    if "weights" in result:
        text += "\n" + "\n".join(result["weights"]["lines"])
        text += f"; every step's weights: {run}/{result['weights']['file']}"
    return text


def _half_width(value: float | None) -> str:
    return "" if value is None else f" ± {value:.3f}"


def _kind(result: dict[str, Any]) -> str:
    return "greedy" if result["greedy"] else "sampled"
