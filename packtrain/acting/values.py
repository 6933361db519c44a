"""Who acts by the values of actions: ε-greedy, each column with its own ε and arm, judging what is new as it goes.

What a group has found out beside what its network carries lies in `own`, tensors that are changed in place: the
embeddings of an episode are too many to be copied at every step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from packtrain import trees
from packtrain.acting import actor_errors, embedding_versions
from packtrain.acting.actor_errors import ActorErrors, ErrorNumbers
from packtrain.acting.control import ActsAtRandom
from packtrain.acting.embedding_versions import EmbeddingVersions
from packtrain.acting.seat import Decision, Seat
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
from packtrain.networks.action_values import ActingNetwork, ActionValues, ActionValuesNetwork, Bandit, Novelty
from packtrain.trees import Tree
from packtrain.types import Row

INTRINSIC = "intrinsic"  # the channel of rewards for novelty
OF_AN_EPISODE = ("memory", "number", "returns", "begun")  # what `own` holds of the episodes under way, …
OF_AN_EPISODE_TOO = (embedding_versions.PREFIX, actor_errors.PREFIX)  # … and whose names begin with these


class ValuePolicy(ActsAtRandom):
    """The policy of all groups: networks, a generator, and ε of every column."""

    def __init__(
        self,
        description: ActionValues,
        network: ActionValuesNetwork,
        seed: int,
        columns: int,
        greedy: bool = False,
    ):
        """Nobody is seated yet.

        Args:
          description: of what is built.
          network: asked for values.
          seed: of what is random.
          columns: of all groups together.
          greedy: act as in evaluations: with arm 0 and an ε of its own.
        """
        super().__init__(network.device)
        self.description, self.network, self.greedy = description, network, greedy
        self.context = network.context
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.columns = columns
        self.epsilons = torch.empty(columns, device=self.device)
        self.weights_version = torch.zeros((), dtype=torch.int64, device=self.device)  # where a decision reads it
        self._seated = 0
        self._groups: list[GroupPolicy] = []
        self._version: int | None = None
        self.version = 0
        self.error_numbers: ErrorNumbers | None = None  # of the TD errors that it gives; None: it gives none

    @property
    def version(self) -> int:
        """Updates that the weights have seen."""
        return self._version or 0

    @version.setter
    def version(self, version: int) -> None:
        settings = self.description.epsilons
        if self._version is None or (settings.moves and version != self._version):
            if self.greedy:
                self.epsilons.fill_(settings.evaluation)
            else:
                self.epsilons.copy_(settings.after(version, self.columns))
        if version != self._version:
            self.weights_version.fill_(version)
        self._version = version

    @property
    def is_random(self) -> Tensor:
        """Whether actions are uniformly random, where a captured decision reads it."""
        return self._flag

    def seat(self, stream: Stream) -> Seat:
        """The seat of the next group: its columns follow those of the group before."""
        begin, self._seated = self._seated % self.columns, self._seated + stream.size
        group = GroupPolicy(self, begin, stream.size)
        self._groups.append(group)
        return ValueSeat(group, stream.size)

    def row(self) -> dict[str, float]:
        """How it acts now, for the metrics: the mean ε, and with arms the mean weight of novelty and the usual arm."""
        found = {"epsilon": float(self.epsilons.mean())}
        if self.description.arms is not None:
            arms = torch.cat([group.own["arm"] for group in self._groups])
            found |= {"arm": float(arms.mode().values), "arm_weight": float(self._groups[0].weights[arms].mean())}
        return found


class ValueSeat(Seat):
    """Rewards for novelty become a channel of the row that they are for."""

    def act(self, row: Row) -> Decision:
        """Decide for the next row."""
        decision = super().act(row)
        if INTRINSIC not in decision.extras:
            return decision
        extras = dict(decision.extras)  # a captured decision gives the same dictionary every time
        rewards = {**decision.row.last_reward, INTRINSIC: extras.pop(INTRINSIC)}
        return decision._replace(row=decision.row._replace(last_reward=rewards), extras=extras)

    def knowledge(self) -> dict[str, Any]:
        """Return the scales of novelty."""
        return {"own": self.lasting()}

    def know(self, snapshot: dict[str, Any]) -> None:
        """Measure novelty as the columns of another seat have come to."""
        assert isinstance(self._policy, GroupPolicy)
        self._policy.measure_like(snapshot.get("own", {}))


class GroupPolicy:
    """The policy of one group, with what only its columns have seen."""

    def __init__(self, policy: ValuePolicy, begin: int, size: int):
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
        """Forget everything."""
        for name, leaf in self._blank().items():
            self.own[name].copy_(leaf)
        for part in (self._embeddings, self._errors):
            if part is not None:
                part.begin()

    def initial_carry(self, batch: int) -> Tree:
        """The network's carry before the first row."""
        return self._acting.values.initial_carry(batch)

    @torch.inference_mode()
    def act(self, rows: Row, carry: Tree) -> tuple[Tree, Tree, dict[str, Tensor]]:
        """Actions, the carry after the last row, and extras.

        `behaviour_prob` is the probability of what was chosen, `arm` the column's arm; `intrinsic`, where novelty
        counts, the reward for having come to this row; `priority`, where the policy gives errors, the absolute TD error
        of the step n rows ago.

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
        output = values(
            trees.map(lambda leaf: leaf[front:], rows.obs),
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
        action, probability = self._choose(q)
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

    def _choose(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """ε-greedy actions [B] for values [B, A], and how likely they were."""
        actions = q.shape[-1]
        chance = torch.empty(2, len(q), device=self.device).uniform_(generator=self.generator)
        any_action = (chance[1] * actions).long().clamp(max=actions - 1)
        epsilon = torch.where(self._policy.is_random, 1.0, self._epsilon)
        greedy = q.argmax(-1)
        action = torch.where(chance[0] < epsilon, any_action, greedy)
        return action, epsilon / actions + (1 - epsilon) * (action == greedy)

    # -- arms

    def _keep_score(self, first: Tensor, reward: Tensor) -> None:
        """Sum returns; where an episode begins, tell the bandit of the one before and ask it for an arm."""
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
        """The reward for novelty of the last row, [B]; 0 where a reset made it. The row is remembered."""
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
            # Before the first update no scale of observations is known, and errors are of another size than later.
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
        if self.device.type == "cpu":  # look no further than anything was put
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

    def measure_like(self, own: dict[str, Tensor]) -> None:
        """Take over the scales of novelty that another group has come to; of its columns' distances, the mean."""
        for name, leaf in own.items():
            if name in self.own and name.startswith(("error_", "distance_")):
                self.own[name].copy_(leaf.mean().to(self.device))

    # -- saving

    def snapshot(self, episodes: bool = True) -> dict[str, Any]:
        """What it has found out; without that of the episodes under way, if they do not go on."""
        kept = {
            name: leaf
            for name, leaf in self.own.items()
            if episodes or not (name in OF_AN_EPISODE or name.startswith(OF_AN_EPISODE_TOO))
        }
        if "memory" in kept:
            kept["memory"] = kept["memory"][:, : int(self.own["number"].max())]
        return {name: leaf.clone() for name, leaf in kept.items()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go on from a snapshot."""
        self.begin()
        for name, leaf in snapshot.items():
            (self.own[name][:, : leaf.shape[1]] if name == "memory" else self.own[name]).copy_(leaf)
