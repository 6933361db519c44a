"""Start a run from another run's checkpoint, if both would have been identical so far.

Random data and pre-training depend on the seed, the environment and the model, not on the planner that searches in it.
They are made once, by a run that ends there; every variant begins from its checkpoint: `train CONFIG --start_from RUN`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from packtrain.config import Configuration
from packtrain.errors import CheckpointError, RunFolderError
from packtrain.files import open_inside
from packtrain.runtime import checkpoint
from packtrain.runtime.experiment import Collect, Experiment, Repeat, Update


def branch(
    run: Path, before: Experiment, experiment: Experiment, configuration: Configuration
) -> tuple[int, dict[str, Any], bytes]:
    """Return the newest checkpoint of a run as the first of another experiment, and the metrics up to it.

    Args:
      run: its folder.
      before: its experiment.
      experiment: the one that continues from that checkpoint.
      configuration: that experiment's.
    """
    saved = checkpoint.load_newest(run / "checkpoints")
    if saved is None:
        raise RunFolderError(f"--start_from {run}: it has no checkpoint to begin from")
    step, state = saved
    repeats = state["run"]["repeats"]
    problem = difference(before, experiment, repeats)
    if problem:
        raise CheckpointError(f"--start_from {run}: {problem}; the run's results so far depend on it")
    padded = [repeats[i] if i < len(repeats) else 0 for i in range(len(experiment.schedule))]
    identity = {"identity": configuration.identity(), "values": dict(configuration.values)}
    for part in ("weights", "learners"):  # parts of learners that have not begun
        state[part] = {name: own for name, own in state[part].items() if name in experiment.learners}
    state["run"] |= {**identity, "branched": True, "repeats": padded, "next_eval": 0, "last_eval": -1, "more_evals": {}}
    experiment.policy.complete_warm_start(state)
    kept = state["run"]["metrics_bytes"]
    with open_inside(run, "metrics.jsonl") as file:
        metrics = file.read(kept)
    return step, state, metrics


def difference(before: Experiment, experiment: Experiment, repeats: list[int]) -> str | None:
    """Return the first setting that would have changed the finished stages; None if there is none."""
    policies = before.policy.warm_start_settings(), experiment.policy.warm_start_settings()
    if policies[0] is None or policies[1] is None:
        return "only planning runs can be begun from another one"
    begun = [index for index, count in enumerate(repeats) if count]
    if any(index >= len(experiment.schedule) for index in begun):
        return "it has more stages"
    used: set[str] = set()
    learned: set[str] = set()
    for index in begun:
        mine, other = experiment.schedule[index], before.schedule[index]
        if mine != other or not isinstance(other, Repeat) or repeats[index] != other.times:
            return f"stage {index + 1} of its schedule is another one, or not over"
        for stage in other.stages:
            if isinstance(stage, Collect) and stage.policy != "random":
                return "its planner has played already"
            if isinstance(stage, Update):
                learned.add(stage.learner)
            else:
                used |= set(stage.memories)
    pairs: dict[str, tuple[Any, Any]] = {
        "seed": (before.seed, experiment.seed),
        "environments": (before.streams, experiment.streams),
    }
    pairs |= {name: (policies[0].get(name), policies[1].get(name)) for name in {**policies[0], **policies[1]}}
    pairs |= {f"learner {n!r}": tuple(_teaching(e, n) for e in (before, experiment)) for n in learned}
    pairs |= {f"memory {n!r}": (before.memories.get(n), experiment.memories.get(n)) for n in used}
    for name, (mine, other) in pairs.items():
        if mine != other:
            return f"its {name} differs ({_first_difference(mine, other)})"
    return None


def _teaching(experiment: Experiment, name: str) -> Any:
    """Return a learner's settings and memory; acting weights are irrelevant before the planner plays."""
    use = experiment.learners.get(name)
    return None if use is None else (use.learner, use.memory)


def _first_difference(mine: Any, other: Any) -> str:
    fields = getattr(mine, "__dataclass_fields__", {})
    if type(mine) is type(other) and fields:
        for name in fields:
            if getattr(mine, name) != getattr(other, name):
                return f"{name}: {_first_difference(getattr(mine, name), getattr(other, name))}"
    return f"{mine!r}, here {other!r}"
