"""Demonstrations as data sets of Minari, which are read into a replay before a run learns; `record.py` writes them.

A data set is a folder DIR with data/main_data.hdf5 and data/metadata.json, as Minari (0.5) reads and writes it: a group
episode_K for each episode, with T + 1 observations, T actions, rewards, terminations and truncations. Dict and Tuple
spaces are groups. Files may be untrusted: links, external storage, compound types and sizes beyond a bound are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from packtrain import trees
from packtrain.envs.stream import ActionScale
from packtrain.envs.validation import space_leaves
from packtrain.errors import ConfigError, MissingExtraError
from packtrain.files import open_bounded
from packtrain.trees import Tree
from packtrain.types import Row, Spec

MOST_BYTES = 4 * 2**30  # of a file, and of the arrays in it
MOST_EPISODES = 1_000_000
FLAGS = ("terminations", "truncations")


class Episode(NamedTuple):
    """One episode of T steps."""

    obs: Tree  # [T + 1, ...]
    action: Tree  # [T, ...], as the environment takes it
    reward: np.ndarray  # [T] float32
    terminated: np.ndarray  # [T] bool
    truncated: np.ndarray  # [T] bool


def import_h5py() -> Any:
    """Return the module h5py; MissingExtraError if it is not installed."""
    try:
        import h5py
    except ImportError:
        raise MissingExtraError("a data set of demonstrations", "h5py", "demonstrations") from None
    return h5py


# Writing


def stacked(values: Sequence[Any], space: Tree) -> Tree:
    """Return values of a space as one tree with an axis in front."""
    if isinstance(space, dict):
        return {key: stacked([value[key] for value in values], inner) for key, inner in space.items()}
    if isinstance(space, tuple):
        return tuple(stacked([value[k] for value in values], inner) for k, inner in enumerate(space))
    return np.stack([np.asarray(value, space.dtype) for value in values])


def write_tree(group: Any, name: str, tree: Tree) -> None:
    """Write a tree of arrays into a group, Dict and Tuple spaces as groups."""
    if isinstance(tree, dict):
        for key, inner in tree.items():
            write_tree(group.require_group(name), key, inner)
    elif isinstance(tree, tuple):
        for place, inner in enumerate(tree):
            write_tree(group.require_group(name), f"_index_{place}", inner)
    else:
        group.create_dataset(name, data=tree)


def describe_space(space: gym.Space) -> dict[str, Any]:
    """Return a space as Minari serialises it; ConfigError for kinds that it does not know."""
    kind = type(space).__name__
    if isinstance(space, gym.spaces.Box):
        ends = {"low": space.low.tolist(), "high": space.high.tolist()}
        return {"type": kind, "dtype": str(space.dtype), "shape": list(space.shape), **ends}
    if isinstance(space, gym.spaces.Discrete):
        return {"type": kind, "dtype": "int64", "start": int(space.start), "n": int(space.n)}
    if isinstance(space, gym.spaces.MultiDiscrete):
        parts = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"type": kind, "dtype": str(space.dtype), **parts}
    if isinstance(space, gym.spaces.MultiBinary):
        return {"type": kind, "n": space.n}
    if isinstance(space, gym.spaces.Dict):
        return {"type": kind, "subspaces": {key: describe_space(inner) for key, inner in space.spaces.items()}}
    if isinstance(space, gym.spaces.Tuple):
        return {"type": kind, "subspaces": [describe_space(inner) for inner in space.spaces]}
    raise ConfigError(f"a space {space} cannot be described in a data set")


# Reading


def read(path: Path, spec: Spec) -> list[Episode]:
    """Return the episodes of a data set, checked against the spaces of an environment.

    Args:
      path: the data set's folder, or its file main_data.hdf5.
      spec: of the environment.

    Raises:
      ConfigError: it cannot be read, or does not fit the environment.
    """
    h5py = import_h5py()
    if path.is_dir():
        inner = [folder / "main_data.hdf5" for folder in (path / "data", path)]
        path = next((file for file in inner if file.is_file()), inner[0])
    try:
        with open_bounded(path, MOST_BYTES) as raw, h5py.File(raw, "r") as file:
            return _Reader(h5py, path, spec).episodes(file)
    except ConfigError:
        raise
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise ConfigError(f"demonstrations {path} cannot be read: {reason}") from None


class _Reader:
    """Reads one file and counts the bytes of its arrays."""

    def __init__(self, h5py: Any, path: Path, spec: Spec):
        self._h5py, self._path, self._bytes = h5py, path, 0
        self._obs, self._action = space_leaves(spec.obs), space_leaves(spec.action)

    def episodes(self, file: Any) -> list[Episode]:
        """Return all episodes in the order of their numbers."""
        names = [name for name in file if name.startswith("episode_") and name[8:].isdecimal()]
        if not names or len(names) > MOST_EPISODES:
            raise self._error(f"it has {len(names):,} episodes, and between 1 and {MOST_EPISODES:,} are read")
        return [self._episode(self._member(file, name), name) for name in sorted(names, key=lambda one: int(one[8:]))]

    def _episode(self, group: Any, name: str) -> Episode:
        reward = self._array(self._member(group, "rewards"), f"{name}/rewards", (), "fiu").astype(np.float32)
        steps = len(reward)
        ends = [self._array(self._member(group, flag), f"{name}/{flag}", (), "biu").astype(bool) for flag in FLAGS]
        obs = self._tree(group, "observations", self._obs, name)
        action = self._tree(group, "actions", self._action, name)
        lengths = [len(leaf) - 1 for leaf in trees.flatten(obs)] + [len(leaf) for leaf in trees.flatten(action)]
        if steps < 1 or {*lengths, *map(len, ends)} != {steps}:
            raise self._error(f"{name} has {steps} rewards, and arrays of other lengths")
        if not np.isfinite(reward).all():
            raise self._error(f"{name}/rewards has numbers that are not finite")
        return Episode(obs, action, reward, *ends)

    def _tree(self, group: Any, name: str, space: Tree, where: str) -> Tree:
        place = f"{where}/{name}"
        found = self._member(group, name)
        if isinstance(space, (dict, tuple)):
            if not isinstance(found, self._h5py.Group):
                raise self._error(f"{place} is one array, and the environment has several")
            if isinstance(space, dict):
                return {key: self._tree(found, key, inner, place) for key, inner in space.items()}
            return tuple(self._tree(found, f"_index_{k}", inner, place) for k, inner in enumerate(space))
        kinds = "fiu" if space.dtype.kind == "f" else "biu"
        array = self._array(found, place, space.shape, kinds).astype(space.dtype)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise self._error(f"{place} has numbers that are not finite")
        if isinstance(space, gym.spaces.Discrete):
            inside = (array >= space.start) & (array < space.start + space.n)
        elif isinstance(space, gym.spaces.MultiDiscrete):
            inside = (array >= space.start) & (array < space.start + space.nvec)
        else:
            inside = np.ones((), bool)
        if not inside.all():
            raise self._error(f"{place} has numbers outside {space}")
        return array

    def _member(self, group: Any, name: str) -> Any:
        """Return a member of a group; links to other places and files are refused."""
        if not isinstance(group, self._h5py.Group) or name not in group:
            raise self._error(f"{name} is missing")
        if not isinstance(group.get(name, getlink=True), self._h5py.HardLink):
            raise self._error(f"{name} is a link, which is not followed")
        return group[name]

    def _array(self, data: Any, place: str, shape: tuple[int, ...], kinds: str) -> np.ndarray:
        """Return a stored array [N, *shape] of a numeric type that lies in this file."""
        if not isinstance(data, self._h5py.Dataset) or data.external or data.is_virtual:
            raise self._error(f"{place} is no array in this file")
        if data.dtype.kind not in kinds or data.ndim != 1 + len(shape) or data.shape[1:] != tuple(shape):
            raise self._error(
                f"{place} has type {data.dtype} and shape {data.shape}, and the environment needs (N, "
                f"{', '.join(map(str, shape))})"
            )
        self._bytes += data.nbytes
        if self._bytes > MOST_BYTES:
            raise self._error(f"its arrays have more than {MOST_BYTES:,} bytes")
        return np.asarray(data[()])

    def _error(self, text: str) -> ConfigError:
        return ConfigError(f"demonstrations {self._path}: {text}")


def rows_of(episodes: Sequence[Episode], spec: Spec) -> Iterator[Row]:
    """Return the rows [1, ...] that one environment would give while it plays these episodes.

    Args:
      episodes: as read.
      spec: of the environment; every reward channel gets the recorded reward.
    """
    spaces = trees.flatten(space_leaves(spec.action))
    for episode in episodes:
        leaves = zip(spaces, trees.flatten(episode.action), strict=True)
        action = trees.pack(episode.action, [ActionScale(space).from_env(leaf) for space, leaf in leaves])
        for t in range(len(episode.reward) + 1):
            before = max(t - 1, 0)
            began = np.array([t == 0])
            reward = np.where(began, 0, episode.reward[before : before + 1]).astype(np.float32)
            channels: Any = {channel: reward for channel in spec.reward_channels}
            started: Any = began
            last = trees.map(lambda leaf, k=before: leaf[k : k + 1], action)
            yield Row(
                trees.map(lambda leaf, k=t: leaf[k : k + 1], episode.obs),
                started,
                trees.map(lambda leaf, zero=t == 0: np.zeros_like(leaf) if zero else leaf, last),
                channels,
                ~began & episode.terminated[before : before + 1],
                ~began & episode.truncated[before : before + 1],
            )
