"""Step 3 of the walk, for learning between episodes: stores whole episodes, samples single steps with hindsight.

Environments play in rounds: each plays one episode, and when the last is over, all are stored. Every step is
stored with the outcome of its episode (`return`, `discounted_return`, `solved`) and the results of its search.

Episodes can be stored in buckets by outcome: with `sampling_hierarchy = ('solved',)` half of every batch comes from
solved episodes as soon as there is one, however rare they are. A fraction of every bucket's episodes may be held out
(`validation_share`): they are never sampled for training, and serve for validation.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from packtrain import check, trees
from packtrain.config import configurable
from packtrain.errors import ConfigError
from packtrain.interfaces import Memory, MemoryBytes, MemorySettings, View, Writer
from packtrain.memory.ring import Ring
from packtrain.trees import Tree
from packtrain.types import CarryRows, Row, Sample, Trajectory

ATTRIBUTES = ("solved", "terminated", "truncated")
HINDSIGHT = ("return", "discounted_return", "solved")
VALIDATION_ROOM = 10  # held-out steps have a tenth of the room of the others


@configurable
@dataclass(frozen=True)
class Episodes(MemorySettings):
    """Sizes of an episode memory, and which data it stores."""

    capacity: int = 1_000_000  # steps kept in each bucket; memory is allocated as needed
    batch_size: int = 64  # steps in a batch
    sampling_hierarchy: tuple[str, ...] = ()  # attributes that define the buckets: solved, terminated, truncated
    extras: tuple[str, ...] = ()  # search results to store: value, qualities, action_histogram, …
    discount: float = 0.99  # γ of discounted_return and of n-step returns
    # also return n-step returns and their bootstrap rows; math.inf: to the end of the episode
    n_step: int | None = None
    priority_exponent: float = 0.0  # 0: uniform within a bucket; else in proportion to priority ** priority_exponent
    seed: int = 0
    validation_share: float = 0.0  # fraction of episodes in each bucket that is held out; they get a tenth of the room

    def __post_init__(self) -> None:
        if not 0 <= self.validation_share <= 0.5:
            raise ConfigError(f"Episodes.validation_share = {self.validation_share} must lie in [0, 0.5]")
        check.at_least(self, 1, "capacity", "batch_size", "n_step")
        check.share(self, "discount", "priority_exponent")
        for name in self.sampling_hierarchy:
            if name not in ATTRIBUTES:
                raise ConfigError(
                    f"Episodes.sampling_hierarchy = {self.sampling_hierarchy}: episodes have no {name!r}; "
                    f"they have {', '.join(ATTRIBUTES)}"
                )

    def build(self, groups: list[int], context: int, device: torch.device) -> EpisodeMemory:
        """Return a memory for groups of environments of the given sizes."""
        return EpisodeMemory(self, groups, device)

    def plan_bytes(self, num_envs: int, row_bytes: int, total_steps: int) -> MemoryBytes:
        """Estimate the fraction of one bucket that the run fills."""
        share = min(1.0, total_steps / self.capacity)
        return MemoryBytes(share * self.bytes_needed(num_envs, row_bytes), limited=False)

    def bytes_needed(self, columns: int, row: int) -> int:
        """Return the approximate bytes of one full bucket."""
        return self.capacity * row


class EpisodeMemory(Memory):
    """Episodes in buckets. Actors add through `writer`, learners call `sample`."""

    replays = outlives_episodes = True  # sampled steps stay in the memory

    def __init__(self, sizes: Episodes, groups: list[int], device: torch.device):
        self._sizes, self._device = sizes, device
        self._buckets: dict[tuple[bool, ...], Ring] = {}
        self._held_out: dict[tuple[bool, ...], Ring] = {}
        self._kept: dict[tuple[bool, ...], int] = {}  # number of episodes of each kind since the beginning
        self._rng = np.random.default_rng(sizes.seed)
        self.dropped = 0  # episodes longer than the capacity
        self.episodes = 0  # kept since the beginning
        self.writers = [_GroupWriter(self, size) for size in groups]

    def __len__(self) -> int:
        """Return the number of steps that can be sampled."""
        return sum(len(ring) for ring in self._buckets.values())

    def reseed(self, seed: int) -> None:
        """Sample from another random stream; `Episodes.seed` still distinguishes two memories of one run."""
        self._rng = np.random.default_rng([seed, self._sizes.seed])

    def report(self) -> dict[str, float]:
        """Return the number of steps in each bucket."""
        return {
            "bucket_" + "_".join(str(value) for value in key) + "_size": len(ring)
            for key, ring in sorted(self._buckets.items())
            if key
        }

    # -- used by the learner

    def ready(self) -> bool:
        """Return whether a batch can be sampled."""
        return len(self) > 0

    def sample(
        self,
        batch_size: int | None = None,
        count: int | None = None,
        *,
        holdout: bool = False,
        version: int | None = None,
    ) -> Sample | None:
        """Sample B steps with replacement, as a trajectory [1, B]; None if there are none.

        Args:
          batch_size: B; None: `Episodes.batch_size`.
          count: must be None.
          holdout: changes nothing, since held-out episodes are never sampled.
          version: changes nothing, since steps have no policy lag here.
        """
        self.refuse(count=count)
        if not self.ready():
            return None
        size = self._sizes.batch_size if batch_size is None else batch_size
        alpha = self._sizes.priority_exponent
        keys = sorted(self._buckets)
        counts = self._rng.multinomial(size, bucket_chances(keys))
        drawn = [
            (self._buckets[key], *self._buckets[key].draw(int(count), self._rng, alpha))
            for key, count in zip(keys, counts, strict=True)
            if count
        ]
        ends = np.cumsum([0, *[len(rows) for _, rows, _ in drawn]])
        spans = [slice(a, b) for a, b in itertools.pairwise(ends)]
        self._drawn = [(ring, rows, span) for (ring, rows, _), span in zip(drawn, spans, strict=True)]
        trajectory = self._trajectory(drawn)
        if alpha:
            # Sampling probability relative to uniform within the bucket. The equal shares of buckets are not corrected.
            chance = np.concatenate([chances * len(ring) for ring, _, chances in drawn])
            weight = torch.from_numpy((chance.min() / chance).astype(np.float32)).to(self._device)
            trajectory.extras["importance_weight"] = weight[None]
        return Sample(trajectory, size)

    def view(self, which: View, *, most: int | None = None, steps: int = 1, holdout: bool = False) -> Sample | None:
        """Return held-out steps, equally many of each bucket and evenly spaced, as a trajectory [1, M].

        Args:
          which: "held_out"; there are no other views.
          most: M is at most this; None: all that there are.
          steps: must be 1.
          holdout: changes nothing.
        """
        if which != "held_out":
            return None
        rings = [ring for _, ring in sorted(self._held_out.items()) if len(ring)]
        if not rings:
            return None
        share = max(len(ring) for ring in rings) if most is None else max(1, most // len(rings))
        chosen = [(ring, ring.spread(share)) for ring in rings]
        trajectory = self._trajectory([(ring, rows, np.ones(len(rows))) for ring, rows in chosen])
        return Sample(trajectory, sum(len(rows) for _, rows in chosen))

    def update_priorities(self, keys: Tensor | None, priorities: Tensor) -> None:
        """Set the priorities [B] of the steps of the latest sample."""
        values = priorities.cpu().numpy()
        for ring, rows, part in self._drawn:
            ring.priority[rows] = np.maximum(values[part], 1e-6)

    def _trajectory(self, drawn: list[tuple[Ring, np.ndarray, np.ndarray]]) -> Trajectory:
        def gather(name: str, offset: int = 0) -> Tree:
            parts = [ring.take(name, rows, offset) for ring, rows, _ in drawn]
            whole = parts[0] if len(parts) == 1 else trees.map(lambda *leaves: np.concatenate(leaves), *parts)
            return trees.map(lambda leaf: torch.from_numpy(leaf).to(self._device), whole)

        def one(tree: Tree) -> Tree:  # [B, ...] → [1, B, ...]
            return trees.map(lambda leaf: leaf[None], tree)

        obs = trees.map(lambda *leaves: torch.stack(leaves), gather("obs"), gather("obs", 1))
        extras = {name: one(gather(name)) for name in (*HINDSIGHT, *self._sizes.extras)}
        if self._sizes.n_step:
            rows = [(ring, rows + ring.fields["bootstrap_offset"][rows], chance) for ring, rows, chance in drawn]
            extras |= {name: one(gather(name)) for name in ("n_step_return", "bootstrap_discount")}
            parts = [ring.take("obs", ring.wrapped(where), 0) for ring, where, _ in rows]
            whole = parts[0] if len(parts) == 1 else trees.map(lambda *leaves: np.concatenate(leaves), *parts)
            extras["bootstrap_obs"] = one(trees.map(lambda leaf: torch.from_numpy(leaf).to(self._device), whole))
        size = sum(len(rows) for _, rows, _ in drawn)
        first = torch.zeros(2, size, dtype=torch.bool, device=self._device)
        action = gather("action")
        zeros = torch.zeros(1, size, device=self._device)
        return Trajectory(
            obs=obs,
            first=first,
            action=one(action),
            reward=one(gather("reward")),
            terminated=one(gather("terminated")),
            truncated=one(gather("truncated")),
            last_action=trees.map(lambda leaf: torch.zeros_like(leaf)[None], action),
            last_reward={"train": zeros},
            carry=(),
            extras=extras,
        )

    # -- used by the actor

    def writer(self, group: int) -> _GroupWriter:
        """Return the writer of one group of environments."""
        return self.writers[group]

    def release(self, group: int) -> None:
        """Drop the episodes of a group's current round: its next rows begin a round."""
        self.writers[group].begin()

    def chunk_carries(self, rows: int) -> CarryRows:
        """Return "none": episodes are stored without recurrent states."""
        return "none"

    def add_episode(self, episode: dict[str, Tree]) -> None:
        """Store one episode of L steps.

        Args:
          episode: "obs" [L+1, ...]; "action", "reward", "terminated", "truncated" and the search's extras [L, ...];
            "solved" a bool.
        """
        length = len(episode["reward"])
        if length + 1 > self._sizes.capacity:
            self.dropped += 1
            return
        attributes = {
            "solved": bool(episode["solved"]),
            "terminated": bool(episode["terminated"][-1]),
            "truncated": bool(episode["truncated"][-1]),
        }
        key = tuple(attributes[name] for name in self._sizes.sampling_hierarchy)
        discount, reward = self._sizes.discount, episode["reward"].astype(np.float64)
        fields: dict[str, Tree] = {name: episode[name] for name in ("action", "reward", "terminated", "truncated")}
        fields |= {name: episode[name] for name in self._sizes.extras}
        fields |= {
            "return": rewards_to_go(reward, 1.0).astype(np.float32),
            "discounted_return": rewards_to_go(reward, discount).astype(np.float32),
            "solved": np.full(length, attributes["solved"], np.float32),
        }
        if self._sizes.n_step:
            fields |= n_step_parts(reward, attributes["terminated"], self._sizes.n_step, discount)
        self._kept[key] = number = self._kept.get(key, 0) + 1
        share, room = self._sizes.validation_share, self._sizes.capacity // VALIDATION_ROOM
        held_out = math.floor(number * share + 1e-9) > math.floor((number - 1) * share + 1e-9)
        if held_out and length + 1 <= room:
            self._held_out.setdefault(key, Ring(room)).add(episode["obs"], fields)
        else:
            self._buckets.setdefault(key, Ring(self._sizes.capacity)).add(episode["obs"], fields)
        self.episodes += 1

    def clear(self) -> None:
        """Remove all episodes."""
        self._buckets, self._held_out = {}, {}

    # -- checkpoints

    def snapshot(self) -> dict[str, Any]:
        """Return all buckets, without unfinished episodes, and the generator; valid until episodes are added."""
        return {
            "buckets": [{"key": list(key), "ring": ring.snapshot()} for key, ring in sorted(self._buckets.items())],
            "rng": self._rng.bit_generator.state,
            "dropped": self.dropped,
            "episodes": self.episodes,
            "held_out": [{"key": list(key), "ring": ring.snapshot()} for key, ring in sorted(self._held_out.items())],
            "kept": [{"key": list(key), "count": count} for key, count in sorted(self._kept.items())],
        }

    def restore(self, snapshot: dict[str, Any], same_episodes: bool = True) -> None:
        """Continue from a snapshot, which contains no unfinished episodes."""
        self._buckets = _rings(snapshot["buckets"], self._sizes.capacity)
        self._held_out = _rings(snapshot.get("held_out", []), self._sizes.capacity // VALIDATION_ROOM)
        self._kept = {_key(kind): int(kind["count"]) for kind in snapshot.get("kept", [])}
        self._rng.bit_generator.state = snapshot["rng"]
        self.dropped, self.episodes = int(snapshot["dropped"]), int(snapshot["episodes"])
        for writer in self.writers:
            writer.begin()


class _GroupWriter(Writer):
    """Writer of one group of environments; its episodes are stored when the last one of a round is over.

    extras["solved"] says whether the row ended an episode well.
    """

    def __init__(self, memory: EpisodeMemory, size: int):
        self._memory, self._size = memory, size
        self.begin()

    def begin(self) -> None:
        """Drop unfinished episodes."""
        self._rows: list[Row] = []  # rows of the current round, time first
        self._extras: list[dict[str, Any]] = []
        self._begin = np.full(self._size, -1)  # row at which the current episode of each environment began
        self._end = np.full(self._size, -1)  # the row after its last action
        self._solved = np.zeros(self._size, bool)

    def add(self, row: Row, carry: Tree, extras: dict[str, Any]) -> None:
        """Store one row of all environments; environments whose episode is over are ignored."""
        time = len(self._rows)
        missing = [name for name in self._memory._sizes.extras if name not in extras]
        if missing and np.asarray(row.first).any():  # rows after the last episode of the round are ignored
            told = ", ".join(sorted(set(extras) - {"solved", "weights_version"})) or "nothing"
            raise ConfigError(
                f"{missing[0]!r} is a training target, and the planner does not report it; it reports {told}"
            )
        self._rows.append(Row(*(trees.map(np.array, part) for part in row)))
        self._extras.append({name: np.array(extras[name]) for name in self._memory._sizes.extras if name in extras})
        self._begin[np.asarray(row.first)] = time
        over = (np.asarray(row.terminated) | np.asarray(row.truncated)) & (self._end < 0) & (self._begin >= 0)
        self._end[over] = time
        if extras.get("solved") is not None:
            self._solved |= over & np.asarray(extras["solved"], bool)
        if (self._end >= 0).all():
            self._keep()

    def _keep(self) -> None:
        rows = Row(*(trees.stack(parts) for parts in zip(*self._rows, strict=True)))
        wanted = self._memory._sizes.extras
        extras = {name: np.stack([one[name] for one in self._extras[:-1]]) for name in wanted}
        for column in range(self._size):
            begin, end = int(self._begin[column]), int(self._end[column])
            steps = slice(begin + 1, end + 1)  # the results of an action are in the row after it
            self._memory.add_episode(
                {
                    "obs": trees.map(lambda leaf: leaf[begin : end + 1, column], rows.obs),  # noqa: B023
                    "action": trees.map(lambda leaf: leaf[steps, column], rows.last_action),  # noqa: B023
                    "reward": rows.last_reward["train"][steps, column],
                    "terminated": rows.terminated[steps, column],
                    "truncated": rows.truncated[steps, column],
                    "solved": self._solved[column],
                    **{name: extras[name][begin:end, column] for name in wanted},
                }
            )
        self.begin()


def _key(kind: dict[str, Any]) -> tuple[bool, ...]:
    return tuple(bool(value) for value in kind["key"])


def _rings(kinds: list[dict[str, Any]], capacity: int) -> dict[tuple[bool, ...], Ring]:
    """Return rings by kind of episode from their snapshots."""
    rings = {}
    for kind in kinds:
        rings[_key(kind)] = Ring(capacity)
        rings[_key(kind)].restore(kind["ring"])
    return rings


def bucket_chances(keys: list[tuple[bool, ...]]) -> np.ndarray:
    """Return each bucket's probability: at every level of the hierarchy, existing branches are equally likely."""
    chances = np.ones(len(keys))
    for index, key in enumerate(keys):
        for depth in range(len(key)):
            siblings = {other[depth] for other in keys if other[:depth] == key[:depth]}
            chances[index] /= len(siblings)
    return chances


def rewards_to_go(reward: np.ndarray, discount: float) -> np.ndarray:
    """Return Σ_{k≥t} discount^(k−t) · reward_k for every t of one episode [L]."""
    result = np.empty_like(reward)
    total = 0.0
    for t in reversed(range(len(reward))):
        total = reward[t] + discount * total
        result[t] = total
    return result


def n_step_parts(reward: np.ndarray, terminated: bool, n: int, discount: float) -> dict[str, np.ndarray]:
    """Return the components of an n-step target for every step t of one episode [L].

        target_t = Σ_{k < m} discount^k · reward_{t+k} + bootstrap_discount_t · V(obs_{t+m}),   m = min(n, L − t)

    with bootstrap_discount_t = discount^m, or 0 where the window reaches the end of an episode that terminated.
    """
    length = len(reward)
    windows = np.minimum(n, length - np.arange(length))
    powers = discount ** np.arange(min(n, length))
    sums = np.array([math.fsum(powers[:m] * reward[t : t + m]) for t, m in enumerate(windows)])
    ends = terminated & (np.arange(length) + windows == length)
    return {
        "n_step_return": sums.astype(np.float32),
        "bootstrap_discount": np.where(ends, 0.0, discount**windows).astype(np.float32),
        "bootstrap_offset": windows.astype(np.int64),
    }
