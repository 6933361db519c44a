"""The learning side of a run: memories, learners, and the weights that they publish to actors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from packtrain.accelerate.precision import choose_precision, use_tf32
from packtrain.errors import CheckpointError, ConfigError
from packtrain.interfaces import Learner, Memory, MemorySettings, UpdateResult
from packtrain.runtime.audit_alarm import build_alarm
from packtrain.runtime.divergence import Divergence
from packtrain.runtime.experiment import Experiment
from packtrain.runtime.order_log import Event
from packtrain.runtime.seeds import seed_for
from packtrain.runtime.weights import Weights
from packtrain.types import Spec

BuildMemory = Callable[[MemorySettings, list[int], int, torch.device], Memory]
"""Builds a memory from its settings; the other arguments are those of `MemorySettings.build`."""


class LearningSide:
    """Memories by name, learners by name, and their published weights."""

    def __init__(
        self,
        experiment: Experiment,
        spec: Spec,
        memories: dict[str, Memory],
        learners: dict[str, Learner],
        precision: torch.dtype | None = None,
    ):
        """Publish version 0 of the weights; nothing else starts.

        Args:
          experiment: says which learner publishes what and uses which memory.
          spec: of the environment, to build fresh networks.
          memories: by name.
          learners: by name; those of one run may share a network.
          precision: of the networks' large layers; None: float32.
        """
        self._experiment, self._spec, self.memories, self.learners = experiment, spec, memories, learners
        self._acting_network, self._by_ratio = experiment.policy.acting_network, experiment.by_ratio
        # Encloses what another thread must not come between while the order of events is recorded.
        self.event: Event = contextlib.nullcontext
        self.divergence = Divergence(experiment.run.on_diverged, None)
        self.alarm = build_alarm(experiment.run.alarm)
        self.weights = Weights()
        self.precision = precision
        self._published = [(learners[name], use.publishes) for name, use in experiment.learners.items()]
        self.publish(0)

    @property
    def updates(self) -> int:
        """Total number of updates over all learners; also the version of the weights."""
        return sum(learner.updates for learner in self.learners.values())

    def memory_of(self, name: str) -> Memory:
        """Return the memory that a learner samples from."""
        return self.memories[self._experiment.learners[name].memory]

    def learn(self, name: str, count: int) -> UpdateResult | None:
        """Make updates of one learner, at most `max_updates`, and publish its weights; None: too little to sample."""
        result = self.divergence.learn(name, self.learners[name], self.memory_of(name), count)
        if result is not None:
            if self.alarm is not None:
                self.alarm.observe(self.learners[name], result)  # may restore earlier weights
            with self.event("publish"):
                self.publish_after(name)
        return result

    def publish_after(self, name: str) -> None:
        """Publish the weights after a learner's updates; with an update ratio, only if the actors' weights changed."""
        due = self._experiment.learners[name].publishes and self.learners[name].publish_due
        if due or not self._by_ratio:
            self.publish(self.updates)

    def publish(self, version: int) -> None:
        """Make the learners' weights the newest version."""
        for learner, names in self._published:
            for name in names:
                self.weights.publish(name, self._acting_network(learner.network), version)

    def moved(self) -> None:
        """Look up the learners' weights again after they have moved in memory."""
        for learner, _ in self._published:
            self.weights.forget(self._acting_network(learner.network))

    def renew(self, name: str, epoch: int) -> None:
        """Replace a learner's weights by fresh ones, sampled for this epoch, and clear its memory."""
        torch.manual_seed(seed_for(self._experiment.seed, "weights", epoch))
        learner = self.learners[name]
        learner.reset(self._experiment.policy.build_network(self._spec).state_dict())
        self.memory_of(name).clear()
        learner.updates += 1  # new weights get a new version number
        self.publish(self.updates)

    def state(self) -> dict[str, Any]:
        """Return weights and learners as a tree, without memories."""
        learners = {name: learner.state_dict() for name, learner in self.learners.items()}
        weights = {name: learner.pop("network") for name, learner in learners.items()}
        state: dict[str, Any] = {"weights": weights, "learners": learners}
        lags = any(learner.saves_acting_weights for learner in self.learners.values())
        if lags and self.weights.version("policy") != self.updates:
            state["acting"] = self.weights.snapshot("policy")
        return state

    def memory_states(self, with_episodes: bool) -> dict[str, Any]:
        """Return the memories' states; without unfinished episodes, only the states that are useful without them."""
        kept = (name for name, memory in self.memories.items() if with_episodes or memory.outlives_episodes)
        return {name: self.memories[name].snapshot() for name in kept}

    def restore(self, state: dict[str, Any], same_episodes: bool) -> None:
        """Load a saved run's learners and memories.

        A run that was branched off another one may have learners and memories that the other did not: they begin.
        """
        branched = state["run"].get("branched", False)
        for name, learner in self.learners.items():
            if branched and name not in state["learners"]:
                continue
            weights = state["weights"][name]
            if branched:
                own = learner.network.state_dict()
                weights = {**own, **{key: leaf for key, leaf in weights.items() if key in own}}
            try:
                learner.load_state_dict({**state["learners"][name], "network": weights})
            except RuntimeError as error:  # torch lists every tensor with another shape
                reason = " ".join(str(error).split()[:40])
                raise CheckpointError(
                    f"the checkpoint's weights of learner {name!r} do not fit the network of this version: {reason} …; "
                    "--fresh starts a new run beside it"
                ) from error
        self.publish(self.updates)
        if "acting" in state:
            self.weights.restore("policy", state["acting"])
        for name, memory in self.memories.items():
            if same_episodes and (not branched or name in state["memories"]):
                memory.restore(state["memories"][name])
            elif not same_episodes and memory.outlives_episodes and name in state.get("memories", {}):
                memory.restore(state["memories"][name], same_episodes=False)


def build_learning(
    experiment: Experiment,
    spec: Spec,
    device: torch.device,
    group_sizes: list[int],
    context: int,
    exact: bool = False,
    build_memory: BuildMemory | None = None,
) -> LearningSide:
    """Build networks, memories and learners; no update is made.

    Args:
      experiment: what to build.
      spec: of its environment.
      device: where networks and memories live.
      group_sizes: number of environments in each group that fills the memories.
      context: rows that the policy needs in front of the one it acts on.
      exact: choose nothing by measured speed, so that the same run gives the same numbers.
      build_memory: builds memories outside this process; None: they are built here.
    """
    seed = experiment.seed
    # shapes of batches are constant: let cuDNN measure which kernels are fastest
    torch.backends.cudnn.benchmark = not exact
    torch.backends.cudnn.deterministic = exact
    if experiment.by_ratio:
        use_tf32(experiment.run.precision, device)
    torch.manual_seed(seed_for(seed, "weights"))
    network = experiment.policy.build_network(spec).to(device)
    precision = network_precision(experiment, network, spec, device, exact)
    build = build_memory or (lambda settings, *place: settings.build(*place))
    memories = {name: build(memory, group_sizes, context, device) for name, memory in experiment.memories.items()}
    for name, memory in memories.items():
        memory.reseed(seed_for(seed, "memory", name))
        if exact:
            memory.take_turns()
    for use in experiment.learners.values():
        use.prepare_memory(memories[use.memory])
    experiment.policy.build_network(spec)  # sampled like the actor's, before learners use torch's generator
    total = experiment.total_steps
    learners: dict[str, Learner] = {
        name: use.learner.build(network, total) for name, use in experiment.learners.items()
    }
    for name, learner in learners.items():
        learner.reseed(seed_for(seed, "updates", name))
    return LearningSide(experiment, spec, memories, learners, precision)


def network_precision(
    experiment: Experiment, network: Any, spec: Spec, device: torch.device, exact: bool
) -> torch.dtype | None:
    """Choose the precision of a network's large layers, and set it if the policy allows a choice."""
    if not experiment.policy.mixed_precision:
        return None
    wanted = experiment.run.precision or ("float32" if exact and device.type == "cpu" else None)
    chosen = choose_precision(wanted, network, spec, device)
    network.precision = chosen
    return chosen


def nothing_to_learn_from() -> ConfigError:
    """Return the error for a learner whose updates are due although its memory cannot supply a batch."""
    return ConfigError("there is no whole sequence to learn from yet: more steps must be collected before")
