"""ε-greedy policies: each environment has its own ε and bandit arm; intrinsic rewards are computed while acting.

The state of a group apart from its network's recurrent state is in `own`, tensors that are updated in place: the
embeddings of an episode are too large to be copied at every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from packtrain import check, trees
from packtrain.acting import actor_errors, embedding_versions
from packtrain.acting.actor_errors import ActorErrors, ErrorNumbers
from packtrain.acting.actor_state import RandomSwitch, RowActorState
from packtrain.acting.arms import Arms, Bandit
from packtrain.acting.embedding_versions import EmbeddingVersions
from packtrain.acting.epsilons import Epsilons
from packtrain.config import configurable
from packtrain.envs.stream import Stream
from packtrain.equations.bandit import (
    Window,
    add_episode,
    agent57_scores,
    arm_statistics,
    choose_arm,
    ucb1_tuned_scores,
)
from packtrain.equations.novelty import (
    MeanDistance,
    Moments,
    add_to_moments,
    episodic_novelty,
    forget,
    ngu_reward,
    rnd_reward,
)
from packtrain.equations.q_learning import combined_q
from packtrain.errors import ConfigError
from packtrain.interfaces import ActingPlace, ActorState, Decision, Policy, PolicySettings
from packtrain.networks.action_values import ActingNetwork, ActionValuesNetwork, ActionValuesSizes, Novelty
from packtrain.networks.q_network import QNetwork
from packtrain.trees import Tree
from packtrain.types import Row, Spec

INTRINSIC = "intrinsic"  # reward channel of intrinsic rewards
OF_AN_EPISODE = ("memory", "number", "returns", "begun")  # entries of `own` that belong to unfinished episodes
OF_AN_EPISODE_TOO = (embedding_versions.PREFIX, actor_errors.PREFIX)  # prefixes of further such entries


@configurable
@dataclass(frozen=True)
class ActionValues(PolicySettings):
    """An ε-greedy policy over Q values, optionally with intrinsic rewards and bandit arms."""

    mixed_precision: ClassVar[bool] = True
    network: QNetwork = QNetwork()
    epsilons: Epsilons = Epsilons()
    novelty: Novelty | None = None
    arms: Arms | None = None
    novelty_weight: float = 0.3  # β if there are no arms
    rescaling: float | None = 1e-3  # ε of h, by which values are rescaled; None: no rescaling

    def __post_init__(self) -> None:
        check.positive(self, "rescaling", end=", or None")
        wanted = self.arms.count if self.arms is not None else 0
        if self.network.arms not in (0, wanted):
            raise ConfigError(f"QNetwork.arms = {self.network.arms} must equal Arms.count = {wanted}")
        if self.novelty is None:
            for name in ("use_last_intrinsic", "separate_intrinsic"):
                if getattr(self.network, name):
                    raise ConfigError(f"QNetwork.{name} = True needs intrinsic rewards: set ActionValues.novelty")
            if self.arms is not None:
                raise ConfigError("Arms are weights of the intrinsic reward: set ActionValues.novelty")

    def build_network(self, spec: Spec) -> ActionValuesNetwork:
        """Return the module for an environment; weights are sampled from torch's global generator."""
        sizes = ActionValuesSizes(self.network, self.novelty, self.rescaling)
        if self.arms is None:
            return ActionValuesNetwork(sizes, spec, torch.tensor([self.novelty_weight]), None)
        return ActionValuesNetwork(sizes, spec, self.arms.weights(), self.arms.own_discounts())

    def acting_network(self, network: ActionValuesNetwork) -> ActingNetwork:
        """Return all networks but the target network."""
        return network.acting

    def build_policy(self, network: ActionValuesNetwork, place: ActingPlace) -> EpsilonGreedyPolicy:
        """Return the policy that acts with a network."""
        return EpsilonGreedyPolicy(self, network, place.seed, place.num_envs, place.greedy, place.first_env)

    @property
    def takes_demonstrations(self) -> bool:
        """Whether there are no intrinsic rewards, which demonstrations lack."""
        return self.novelty is None

    def demonstrated_state(self, network: ActionValuesNetwork, size: int) -> tuple[Tree, dict[str, Any]]:
        """Return an empty recurrent state, which the burn-in replaces, and extras of a deterministic policy."""
        extras = {"behaviour_prob": np.ones(size, np.float32), "arm": np.zeros(size, np.int64)}
        return network.acting.values.initial_carry(size), extras


class EpsilonGreedyPolicy(RandomSwitch, Policy):
    """The policy of all groups: networks, a random generator, and the ε of every environment."""

    def __init__(
        self,
        description: ActionValues,
        network: ActionValuesNetwork,
        seed: int,
        columns: int,
        greedy: bool = False,
        first: int = 0,
    ):
        """Create the policy, without groups.

        Args:
          description: settings of the policy.
          network: computes the values.
          seed: of the random generator.
          columns: number of environments of all acting sides.
          greedy: act as in evaluations: with arm 0 and the evaluation's ε.
          first: index of the first environment of this acting side.
        """
        super().__init__(network.device)
        self.description, self.network, self.greedy = description, network, greedy
        self.context = network.context
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.columns = columns
        self.epsilons = torch.empty(columns, device=self.device)
        self.weights_version = torch.zeros((), dtype=torch.int64, device=self.device)  # read by captured decisions
        self._assigned = first
        self._groups: list[GroupPolicy] = []
        self._version: int | None = None
        self._moves = description.epsilons.moves
        self.version = 0
        # Parameters of the TD errors that actors compute; None: they compute none.
        self.error_numbers: ErrorNumbers | None = None

    @property
    def version(self) -> int:
        """Return the number of updates of the current weights."""
        return self._version or 0

    @version.setter
    def version(self, version: int) -> None:
        settings = self.description.epsilons
        if self._version is None or (self._moves and version != self._version):
            if self.greedy:
                self.epsilons.fill_(settings.evaluation)
            else:
                self.epsilons.copy_(settings.after(version, self.columns))
        if version != self._version:
            self.weights_version.fill_(version)
        self._version = version

    @property
    def is_random(self) -> Tensor:
        """Return whether actions are uniformly random, as a tensor that captured decisions read."""
        return self._flag

    def actor_state(self, stream: Stream) -> ActorState:
        """Return the acting state of the next group, whose environments follow those of the previous group."""
        begin, self._assigned = self._assigned % self.columns, self._assigned + stream.size
        group = GroupPolicy(self, begin, stream.size)
        self._groups.append(group)
        return EpsilonGreedyState(group, stream.size)

    def row(self) -> dict[str, float]:
        """Return the mean ε; with arms also the mean novelty weight and the most frequent arm."""
        found = {"epsilon": float(self.epsilons.mean())}
        if self.description.arms is not None:
            arms = torch.cat([group.own["arm"] for group in self._groups])
            found |= {"arm": float(arms.mode().values), "arm_weight": float(self._groups[0].weights[arms].mean())}
        return found


class EpsilonGreedyState(RowActorState):
    """Acting state of one group; intrinsic rewards become a reward channel of the row that they belong to."""

    def __init__(self, policy: GroupPolicy, size: int):
        super().__init__(policy, size)
        self._group = policy

    def act(self, row: Row) -> Decision:
        """Choose actions for the next row."""
        decision = super().act(row)
        if INTRINSIC not in decision.extras:
            return decision
        extras = dict(decision.extras)  # a captured decision returns the same dictionary every time
        rewards = {**decision.row.last_reward, INTRINSIC: extras.pop(INTRINSIC)}
        return decision._replace(row=decision.row._replace(last_reward=rewards), extras=extras)

    def evaluation_state(self) -> dict[str, Any]:
        """Return the novelty statistics."""
        return {"own": self.lasting_state()}

    def load_evaluation_state(self, state: dict[str, Any]) -> None:
        """Load the novelty statistics of training."""
        self._group.load_novelty_scales(state.get("own", {}))


class GroupPolicy:
    """The policy of one group, with the state of its environments."""

    def __init__(self, policy: EpsilonGreedyPolicy, begin: int, size: int):
        description = policy.description
        self._policy, self._size = policy, size
        self.context, self.device, self.generator = policy.context, policy.device, policy.generator
        self._acting: ActingNetwork = policy.network.acting
        self._epsilon = policy.epsilons[begin : begin + size]
        wanted = not policy.greedy or description.network.use_last_intrinsic
        self._judges = description.novelty is not None and wanted
        arms = description.arms
        self._bandit: Bandit | None = None if arms is None or policy.greedy else arms.bandit
        weights = policy.network.arm_weights
        self.weights = torch.zeros_like(weights) if arms is None and policy.greedy else weights
        columns = torch.arange(begin, begin + size, device=self.device)
        alone = arms is None or policy.greedy or self._bandit is not None
        self._first_arm = torch.zeros_like(columns) if alone else columns % len(self.weights)
        self._embeddings: EmbeddingVersions | None = None
        if self._judges and description.novelty is not None and self._acting.embedding is not None:
            self._embeddings = EmbeddingVersions(self._acting.embedding, size, description.novelty.versions)
        self._errors: ActorErrors | None = None
        if policy.error_numbers is not None:
            separate = self._acting.values.intrinsic is not None
            self._errors = ActorErrors(policy.error_numbers, size, self.device, description.rescaling, separate)
        self.own: dict[str, Tensor] = self._blank()
        if self._errors is not None:
            self.own |= self._errors.state
        if self._embeddings is not None:
            self.own |= self._embeddings.state

    def _blank(self) -> dict[str, Tensor]:
        size, device = self._size, self.device
        own = {
            "arm": self._first_arm.clone(),
            "returns": torch.zeros(size, dtype=torch.float64, device=device),
            "begun": torch.zeros(size, dtype=torch.bool, device=device),
        }
        if self._bandit is not None:
            own["window_arm"] = torch.zeros(size, self._bandit.window, dtype=torch.int64, device=device)
            own["window_value"] = torch.zeros(size, self._bandit.window, dtype=torch.float64, device=device)
            own["window_number"] = torch.zeros(size, dtype=torch.int64, device=device)
        novelty = self._policy.description.novelty
        if novelty is not None and self._judges:
            if self._acting.embedding is not None:
                own["memory"] = torch.zeros(size, novelty.memory, self._acting.embedding.size, device=device)
                own["number"] = torch.zeros(size, dtype=torch.int64, device=device)
                own["distance_number"], own["distance_mean"] = (torch.zeros(size, device=device) for _ in range(2))
            if self._acting.distillation is not None:
                for name in Moments._fields:
                    own[f"error_{name}"] = torch.zeros((), dtype=torch.float64, device=device)
        return own

    def begin(self) -> None:
        """Clear all state."""
        for name, leaf in self._blank().items():
            self.own[name].copy_(leaf)
        for part in (self._embeddings, self._errors):
            if part is not None:
                part.begin()

    def initial_carry(self, batch: int) -> Tree:
        """Return the network's carry before the first row."""
        return self._acting.values.initial_carry(batch)

    @torch.inference_mode()
    def act(self, rows: Row, carry: Tree) -> tuple[Tree, Tree, dict[str, Tensor]]:
        """Return actions, the carry after the last row, and extras.

        `behaviour_prob` is the probability of the chosen action, `arm` the environment's arm. With intrinsic rewards,
        `intrinsic` is the reward for arriving in this row. If the policy computes TD errors, `priority` is the absolute
        error of the step n rows ago.

        Args:
          rows: the context and the row to act on, [C+1, B, ...], on the policy's device.
          carry: before the row to act on.
        """
        first, reward = rows.first[-1], rows.last_reward["train"][-1]
        self._keep_score(first, reward)
        arm = self.own["arm"]
        intrinsic = self._judge(rows, first) if self._judges else None
        values = self._acting.values
        front = self.context - values.context
        latest = slice(self.context, None)
        obs = trees.map(lambda leaf: leaf[front:], rows.obs)
        output = values(
            obs,
            rows.first[front:],
            rows.last_action[latest],
            rows.last_reward["train"][latest],
            carry,
            None if intrinsic is None else intrinsic.unsqueeze(0),
            arm.unsqueeze(0) if values.sizes.arms else None,
        )
        q = output.values[0]
        if output.intrinsic_values is not None:
            q = combined_q(q, output.intrinsic_values[0], self.weights[arm], self._policy.description.rescaling)
        allowed = values.allowed(obs)
        action, probability = self._choose(q, None if allowed is None else allowed[-1])
        extras = {"behaviour_prob": probability, "arm": arm.clone()}
        if intrinsic is not None and not self._policy.greedy:
            extras[INTRINSIC] = intrinsic
        if self._errors is not None:
            discounts = self._policy.network.arm_discounts
            extras["priority"] = self._errors.step(
                first,
                rows.terminated[-1],
                reward,
                intrinsic,
                output,
                q.argmax(-1),
                action,
                self.weights[arm],
                None if discounts is None else discounts[arm],
            )
        return action, output.carry, extras

    def _choose(self, q: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return ε-greedy actions [B] for values [B, A], and their probabilities.

        Args:
          q: values of all actions.
          allowed: [B, A] bool, the actions to choose from; None: all.
        """
        actions: Any = q.shape[-1]
        chance = torch.empty(2, len(q), device=self.device).uniform_(generator=self.generator)
        if allowed is None:
            any_action = (chance[1] * actions).long().clamp(max=actions - 1)
        else:
            actions = allowed.sum(-1)
            place = (chance[1] * actions).long().minimum(actions - 1)  # among the allowed ones
            any_action = (allowed.cumsum(-1) > place.unsqueeze(-1)).long().argmax(-1)
        epsilon = torch.where(self._policy.is_random, 1.0, self._epsilon)
        greedy = q.argmax(-1)
        action = torch.where(chance[0] < epsilon, any_action, greedy)
        return action, epsilon / actions + (1 - epsilon) * (action == greedy)

    # -- arms

    def _keep_score(self, first: Tensor, reward: Tensor) -> None:
        """Sum up returns; at an episode's first row, update the bandit with the last return and choose a new arm."""
        own = self.own
        if self._bandit is not None and (self.device.type != "cpu" or bool(first.any())):
            self._change_arms(first, self._bandit)
        own["begun"].logical_or_(first)
        own["returns"].copy_(torch.where(first, 0.0, own["returns"] + reward))

    def _change_arms(self, first: Tensor, bandit: Bandit) -> None:
        own, arms = self.own, len(self.weights)
        window = Window(own["window_arm"], own["window_value"], own["window_number"])
        window = add_episode(window, own["arm"], own["returns"], first & own["begun"])
        for name, leaf in zip(("window_arm", "window_value", "window_number"), window, strict=True):
            own[name].copy_(leaf)
        if bandit.rule == "ucb1_tuned":
            scores = ucb1_tuned_scores(arm_statistics(window, arms))
        else:
            scores = agent57_scores(arm_statistics(window, arms, scaled=False), bandit.exploration)
        noise = torch.empty(len(first), arms + 1, device=self.device).uniform_(generator=self.generator)
        chosen = choose_arm(scores, noise[:, -1] < bandit.explore, noise[:, :-1].to(scores.dtype))
        own["arm"].copy_(torch.where(first, chosen, own["arm"]))

    # -- novelty

    def _judge(self, rows: Row, first: Tensor) -> Tensor:
        """Compute the intrinsic reward of the last row, [B], 0 after a reset, and store the row's embedding."""
        own, acting = self.own, self._acting
        novelty = self._policy.description.novelty
        assert novelty is not None
        step = (~first).float()
        reward = step
        if self._embeddings is not None:
            first = self._embeddings.begin_episodes(first, self._policy.weights_version)
            front = self.context - self._embeddings.context
            embedding = self._embeddings.embed(trees.map(lambda leaf: leaf[front:], rows.obs), rows.first[front:])
            reward = self._episodic(embedding, first, novelty)
        if acting.distillation is not None:
            error = acting.distillation_error(rows.obs[-1])
            moments = Moments(*(own[f"error_{name}"] for name in Moments._fields))
            # Before the first update observations cannot be normalised yet, and errors have another scale than later.
            known = acting.obs_moments.number > 0
            updated = add_to_moments(forget(moments, novelty.window), error, step * known)
            for old, new in zip(moments, updated, strict=True):
                old.copy_(new)
            if acting.embedding is None:
                return step * rnd_reward(error, moments)
            reward = torch.where(known, ngu_reward(reward, error, moments, novelty.largest), reward)
        return reward

    def _episodic(self, embedding: Tensor, first: Tensor, novelty: Novelty) -> Tensor:
        own = self.own
        own["number"].masked_fill_(first, 0)
        memory = own["memory"]
        if self.device.type == "cpu":  # only the part of the memory that is filled
            memory = memory[:, : max(novelty.neighbours, int(own["number"].max()))]
        reward, scale = episodic_novelty(
            embedding,
            memory,
            own["number"],
            (~first).float(),
            MeanDistance(own["distance_number"], own["distance_mean"]),
            neighbours=novelty.neighbours,
            decay=novelty.decay,
            epsilon=novelty.epsilon,
            cluster_distance=novelty.cluster_distance,
            pseudo_count=novelty.pseudo_count,
            most_similar=novelty.most_similar,
        )
        own["distance_number"].copy_(scale.number)
        own["distance_mean"].copy_(scale.mean)
        place = (own["number"] % novelty.memory).view(-1, 1, 1).expand(-1, 1, embedding.shape[-1])
        own["memory"].scatter_(1, place, embedding.unsqueeze(1))
        own["number"].add_(1)
        return reward

    def load_novelty_scales(self, own: dict[str, Tensor]) -> None:
        """Load the novelty statistics of another group; each environment gets the mean of its distances."""
        for name, leaf in own.items():
            if name in self.own and name.startswith(("error_", "distance_")):
                self.own[name].copy_(leaf.mean().to(self.device))

    # -- saving

    def snapshot(self, episodes: bool = True) -> dict[str, Any]:
        """Return the policy's own state; per-episode state is left out if `episodes` is False."""
        kept = {name: leaf for name, leaf in self.own.items() if episodes or not _is_of_an_episode(name)}
        if "memory" in kept:
            kept["memory"] = kept["memory"][:, : int(self.own["number"].max())]
        return {name: leaf.clone() for name, leaf in kept.items()}

    def adopt(self, own: Sequence[dict[str, Tensor]], sizes: Sequence[int], envs: Any) -> None:
        """Take over bandits and novelty scales of other groups; arms that depend on the env index are recomputed.

        Args:
          own: of each of these groups.
          sizes: number of environments in each.
          envs: [B] index of the environment among them that each environment follows.
        """
        self.begin()
        which = torch.as_tensor(envs, dtype=torch.int64)
        group = int((torch.tensor(sizes).cumsum(0) <= which[0]).sum())
        for name, leaf in self.own.items():
            if _is_of_an_episode(name) or (name == "arm" and self._bandit is None) or name not in own[group]:
                continue
            leaf.copy_(torch.cat([one[name].cpu() for one in own])[which] if leaf.ndim else own[group][name])

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self.begin()
        for name, leaf in snapshot.items():
            (self.own[name][:, : leaf.shape[1]] if name == "memory" else self.own[name]).copy_(leaf)


def _is_of_an_episode(name: str) -> bool:
    """Return whether an entry of `own` belongs to unfinished episodes."""
    return name in OF_AN_EPISODE or name.startswith(OF_AN_EPISODE_TOO)
