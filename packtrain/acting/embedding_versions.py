"""Versions of an embedding that unfinished episodes use: an episode's novelty uses the weights at its start.

NGU (Badia et al. 2020, arXiv:2002.06038) compares an observation with the earlier ones of its episode. Embeddings made
with different weights differ even for equal observations, so an episode must not change weights. A group of
environments holds a bounded number of versions. At `first`, an environment takes the newest weights if the group holds
them, or if a slot can be overwritten because no other environment uses its version. Otherwise it takes the newest
version that the group holds.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from packtrain import trees
from packtrain.accelerate.precision import without_tf32
from packtrain.networks.embedding import ControllableEmbeddingNetwork
from packtrain.trees import Tree

PREFIX = "embedding_"


class EmbeddingVersions:
    """The versions that one group of environments holds, and the version that each environment uses.

    All tensors stay in place, so that a decision can be captured on a GPU. They are in `state`, by names that begin
    with `embedding_`:

        embedding_slot     [B] int64    the slot of each environment's version; −1 before its first row
        embedding_version  [V] int64    the version in each slot; −1 if it is empty
        embedding_leaf_i   [V, ...]     the weights in each slot, leaf by leaf
    """

    def __init__(self, newest: ControllableEmbeddingNetwork, size: int, slots: int):
        """Allocate the slots; no environment has a version yet.

        Args:
          newest: the embedding, whose weights are updated in place from time to time.
          size: B, environments of the group.
          slots: V, maximum number of versions.
        """
        self.context = newest.context
        self._newest = [leaf.detach() for leaf in newest.state_dict().values()]
        self._networks = [copy.deepcopy(newest).requires_grad_(False) for _ in range(slots)]
        self._stacks = [leaf.new_zeros(slots, *leaf.shape) for leaf in self._newest]
        for slot, network in enumerate(self._networks):
            for leaf, stack in zip(network.state_dict(keep_vars=True).values(), self._stacks, strict=True):
                leaf.data = stack[slot]  # the network computes with the slot's row of the stack
        device = newest.device
        self._slot = torch.full((size,), -1, device=device)
        self._version = torch.full((slots,), -1, device=device)
        self._numbers = torch.arange(slots, device=device)

    @property
    def state(self) -> dict[str, Tensor]:
        """Return all tensors by name; they are updated in place."""
        leaves = {f"{PREFIX}leaf_{i}": stack for i, stack in enumerate(self._stacks)}
        return {f"{PREFIX}slot": self._slot, f"{PREFIX}version": self._version, **leaves}

    def begin(self) -> None:
        """Clear all versions: every environment takes the newest one at its next row."""
        self._slot.fill_(-1)
        self._version.fill_(-1)

    def begin_episodes(self, first: Tensor, version: Tensor) -> Tensor:
        """Assign to environments whose episode begins the newest version available to them.

        Args:
          first: [B] bool.
          version: [] int64, the number of the newest weights.

        Returns:
          [B] bool, the environments that begin: those of `first`, and those that have had no row yet.
        """
        begins = first | (self._slot < 0)
        if begins.device.type != "cpu" or bool(begins.any()):
            self._take_newest(begins, version)
        return begins

    def _take_newest(self, begins: Tensor, version: Tensor) -> None:
        """Choose a slot for the environments that begin, and overwrite it if its version is old and unused by others.

        The function does not synchronise with the GPU.
        """
        going_on = torch.where(begins, -1, self._slot)
        used = (going_on.unsqueeze(1) == self._numbers).any(0)  # [V]
        known = self._version == version
        # Order of preference: the slot that holds the newest version, a free slot, the slot with the newest version
        # held.
        rank = torch.where(known, 2, torch.where(used, 0, 1)) * (1 << 48) + torch.where(used, self._version, 0)
        place = rank.argmax(0, keepdim=True)  # [1]; an index without dimensions would be read by the host
        takes = begins.any() & ~known[place] & ~used[place]
        for stack, leaf in zip(self._stacks, self._newest, strict=True):
            taken = torch.where(takes.view(-1, *[1] * leaf.ndim), leaf.unsqueeze(0), stack[place])
            stack.index_copy_(0, place, taken)
        self._version.index_copy_(0, place, torch.where(takes, version, self._version[place]))
        self._slot.copy_(torch.where(begins, place, self._slot))

    def embed(self, obs: Tree, first: Tensor) -> Tensor:
        """Return the embedding [B, D] of the last row, each computed with its environment's version, in float32.

        Args:
          obs: [C+1, B, ...], C the context of the embedding.
          first: [C+1, B] bool.
        """
        if first.device.type != "cpu":
            return self._embed_by_all(obs, first)
        used = self._slot.unique().tolist()
        if len(used) == 1:
            return self._networks[used[0]].embed(obs, first)[0]
        found = torch.empty(len(self._slot), self._networks[0].size)
        for slot in used:
            mine = self._slot == slot
            own_rows = trees.map(lambda leaf, mine=mine: leaf[:, mine], obs)
            found[mine] = self._networks[slot].embed(own_rows, first[:, mine])[0]
        return found

    def _embed_by_all(self, obs: Tree, first: Tensor) -> Tensor:
        """Compute every version's embedding of every row: in a captured decision, no shape may depend on data."""
        with without_tf32():
            each = torch.stack([network.embed(obs, first)[0] for network in self._networks])  # [V, B, D]
        return each[self._slot, torch.arange(len(self._slot), device=first.device)]
