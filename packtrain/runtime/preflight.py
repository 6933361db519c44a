"""Checks before a run starts: settings that do not fit each other, and insufficient memory."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import psutil
import torch

from packtrain import trees
from packtrain.envs.stream import Stream
from packtrain.envs.validation import space_leaves
from packtrain.errors import ConfigError
from packtrain.interfaces import ActingPlace, MemoryBytes
from packtrain.runtime.experiment import Experiment
from packtrain.types import Spec

_TRAINING_BYTES = 100 * 2**20  # memory of a run without replay memories and networks, measured on small runs


def check_parts(experiment: Experiment, spec: Spec) -> None:
    """Build networks, policies and learners once; ConfigError if they do not fit each other."""
    settings = experiment.policy
    network = settings.build_network(spec)
    place = ActingPlace(torch.device("cpu"), 0, experiment.streams.num_actors)
    policy = settings.build_policy(network, place)
    if settings.env_access == "states":  # planners check whether they can plan in a model when they get their simulator
        stream = Stream(experiment.streams.environment.open_core(1, 0), 1)
        evaluated = [settings.for_evaluation(evaluation.agent) for evaluation in experiment.evaluations.values()]
        greedy = place._replace(greedy=True, num_envs=1)
        for each in (policy, *(one.build_policy(network, greedy) for one in evaluated)):
            each.actor_state(stream)
    for memory in experiment.memories.values():
        memory.check(experiment.streams.num_actors, policy.context, experiment.warm_up)
    for use in experiment.learners.values():
        memory = experiment.memories[use.memory]
        use.check(memory, settings)
        use.prepare_policy(policy, memory)
        use.learner.build(network, experiment.total_steps)


def refuse_too_large(experiment: Experiment, spec: Spec, device: torch.device, elsewhere: bool = False) -> None:
    """Raise a ConfigError if the memories would not fit; their size is a product of several knobs.

    Args:
      experiment: of the run.
      spec: of its environment.
      device: of the memories.
      elsewhere: the memories are in other processes, which may be on other machines.
    """
    on_gpu = device.type == "cuda"
    host = psutil.virtual_memory().available
    free = torch.cuda.mem_get_info(device)[0] if on_gpu else host
    where = f" on {device}" if on_gpu else ""
    plans = _plans(experiment, spec, elsewhere)
    sizes: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for plan in plans:
        if plan.limited:
            size = sizes[plan.name, plan.advice]
            size[0] += plan.device if on_gpu else plan.device + plan.host
            size[1] += plan.host
    for (name, advice), (here, on_host) in sizes.items():
        for planned, available, place in ((here, free, where), (on_host, host, "")):
            if planned > 0.8 * available:
                raise ConfigError(
                    f"{name} would take {planned / 2**30:,.1f} GiB and {available / 2**30:,.1f} GiB are free{place}; "
                    f"{advice}"
                )


def row_bytes(spec: Spec) -> int:
    """Return the approximate bytes of one row of one environment."""
    leaves = trees.flatten([space_leaves(spec.obs), space_leaves(spec.action)])
    return sum(math.prod(leaf.shape or (1,)) * np.dtype(leaf.dtype or np.int64).itemsize for leaf in leaves) + 32


def _plans(experiment: Experiment, spec: Spec, elsewhere: bool) -> list[MemoryBytes]:
    """Return the estimated sizes of the memories of this process."""
    return [
        memory.plan_bytes(experiment.streams.num_actors, row_bytes(spec), experiment.total_steps)
        for memory in experiment.memories.values()
        if not elsewhere
    ]


def plan_memory(experiment: Experiment, spec: Spec, device: torch.device, elsewhere: bool = False) -> dict[str, float]:
    """Estimate the peak memory of a run in bytes, without models that planners search in.

    Args:
      experiment: of the run.
      spec: of its environment.
      device: of the networks.
      elsewhere: as in `refuse_too_large`.

    Returns:
      "host" of this process and, on a GPU, "device": all of it; "memories" and "networks": their parts of that. The
      host also holds what a checkpoint copies of the memories while it is written.
    """
    on_gpu = device.type == "cuda"
    plans = _plans(experiment, spec, elsewhere)
    memories, host_memories = sum(plan.device for plan in plans), sum(plan.host for plan in plans)
    copied = sum(plan.copied for plan in plans)
    weights = sum(leaf.nbytes for leaf in experiment.policy.build_network(spec).state_dict().values())
    # A learner has weights, gradients and two averages of each; actors and evaluations have copies.
    networks = float(weights * (4 * len(experiment.learners) + 2))
    found = {"memories": memories + host_memories, "networks": networks}
    host = psutil.Process().memory_info().rss + _TRAINING_BYTES + host_memories
    if on_gpu:
        return {**found, "host": host + copied, "device": memories + networks}
    return {**found, "host": host + memories + networks + copied}


def describe_plan(plan: dict[str, float]) -> str:
    """Return the estimate of a run's memory as one line of text."""
    sizes = {name: f"{size / 2**30:,.2f} GiB" for name, size in plan.items()}
    where = f" and {sizes['device']} on the GPU" if "device" in plan else ""
    return (
        f"memory at its peak: about {sizes['host']}{where} ({sizes['memories']} replay or queue, {sizes['networks']} "
        "networks and optimisers)"
    )
