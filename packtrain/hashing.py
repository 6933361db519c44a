"""64-bit digests of states, and keys of state-action pairs, for many states in one call."""

from __future__ import annotations

import numpy as np

from packtrain import trees
from packtrain.trees import Tree

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / the golden ratio: multiples of it make different inputs of `mix`


def mix(words: np.ndarray) -> np.ndarray:
    """Return the splitmix64 finaliser of each word: every bit of the result depends on every bit of the word."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def digest(states: Tree) -> np.ndarray:
    """Return a 64-bit digest of each of N states, uint64 [N]: the sum over its 8-byte words of a mix of word and place.

    Two different states share a digest with a probability of about 2^-64; among a million states any two do with
    3 · 10^-8.
    """
    leaves = [np.ascontiguousarray(leaf) for leaf in trees.flatten(states)]
    total = np.zeros(len(leaves[0]), np.uint64)
    place = 0
    for leaf in leaves:
        rows = leaf.reshape(len(leaf), -1)  # [N, ...] → [N, size]
        raw = rows.view(np.uint8).reshape(len(leaf), -1) if rows.size else np.zeros((len(leaf), 0), np.uint8)
        words = -(-raw.shape[1] // 8)
        padded = np.zeros((len(leaf), 8 * words), np.uint8) if raw.shape[1] % 8 else raw
        if padded is not raw:
            padded[:, : raw.shape[1]] = raw
        mixed = padded.view(np.uint64) + GOLDEN * np.arange(place + 1, place + words + 1, dtype=np.uint64)
        total += mix(mixed).sum(axis=1, dtype=np.uint64)
        place += words
    return mix(total)


def observation_keys(obs: np.ndarray) -> np.ndarray:
    """Return a key of each observation, uint64 [M]; −0 and 0 are the same."""
    return digest(obs + np.float32(0))


def state_action_keys(keys: np.ndarray, action: np.ndarray, run: np.ndarray) -> np.ndarray:
    """Return a key of each triple of a state (given by its key), an action and a run, uint64 [M]."""
    number = np.asarray(action).astype(np.uint64) + np.uint64(1) + (run.astype(np.uint64) << np.uint64(32))
    return mix(keys + GOLDEN * number)


def own_keys(columns: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return keys that also differ between environments."""
    return mix(keys + GOLDEN * (columns.astype(np.uint64) + np.uint64(1)))
