"""Versions of an embedding that the episodes under way use: an episode is measured with the weights it began with.

NGU (Badia et al. 2020, arXiv:2002.06038) compares an observation with the earlier ones of its episode. Embeddings made
with different weights differ even for equal observations, so an episode must not change weights. A group of
environments holds a bounded number of versions. An environment takes the newest weights at `first`, if the group holds
them or has a slot whose version no other environment uses, which is overwritten. Else it takes the newest version that
the group holds.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from packtrain import trees
from packtrain.devices.precision import without_tf32
from packtrain.networks.embedding import ControllableEmbeddingNetwork
from packtrain.trees import Tree

PREFIX = "embedding_"


class EmbeddingVersions:
    """The versions that one group of environments holds, and which one each environment uses.

    All tensors stay in place, so that a decision can be captured on a GPU. They are in `state`, by names that begin
    with `embedding_`:

        embedding_slot     [B] int64    the slot of each environment's version; −1 before its first row
        embedding_version  [V] int64    the version in each slot; −1 where there is none
        embedding_leaf_i   [V, ...]     the weights in each slot, leaf by leaf
    """

    def __init__(self, newest: ControllableEmbeddingNetwork, size: int, slots: int):
        """No environment has a version yet.

        Args:
          newest: the embedding whose weights change from time to time, in place.
          size: B, environments of the group.
          slots: V, versions that are held at most.
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
        """All tensors by name; they are changed in place."""
        leaves = {f"{PREFIX}leaf_{i}": stack for i, stack in enumerate(self._stacks)}
        return {f"{PREFIX}slot": self._slot, f"{PREFIX}version": self._version, **leaves}

    def begin(self) -> None:
        """Forget all versions: every environment takes the newest with its next row."""
        self._slot.fill_(-1)
        self._version.fill_(-1)

    def begin_episodes(self, first: Tensor, version: Tensor) -> Tensor:
        """Let environments whose episode begins take the newest version they can.

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
        """Choose a slot for those that begin, and fill it if its version is neither the newest nor used by others.

        Nothing here waits for a GPU.
        """
        going_on = torch.where(begins, -1, self._slot)
        used = (going_on.unsqueeze(1) == self._numbers).any(0)  # [V]
        known = self._version == version
        # First the slot that holds the newest version, then any that is free, then the newest that is held.
        rank = torch.where(known, 2, torch.where(used, 0, 1)) * (1 << 48) + torch.where(used, self._version, 0)
        place = rank.argmax(0, keepdim=True)  # [1]; an index without dimensions would be read by the host
        takes = begins.any() & ~known[place] & ~used[place]
        for stack, leaf in zip(self._stacks, self._newest, strict=True):
            taken = torch.where(takes.view(-1, *[1] * leaf.ndim), leaf.unsqueeze(0), stack[place])
            stack.index_copy_(0, place, taken)
        self._version.index_copy_(0, place, torch.where(takes, version, self._version[place]))
        self._slot.copy_(torch.where(begins, place, self._slot))

    def embed(self, obs: Tree, first: Tensor) -> Tensor:
        """The embedding [B, D] of the last row, each environment's by its own version, in float32.

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
        """The same with every version for every row: in a captured decision no shape may depend on data."""
        with without_tf32():
            each = torch.stack([network.embed(obs, first)[0] for network in self._networks])  # [V, B, D]
        return each[self._slot, torch.arange(len(self._slot), device=first.device)]
