"""Inference with a trained policy in a user's program: observations in, actions out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from packtrain import trees
from packtrain.envs.environment import Environment
from packtrain.envs.stream import ActionScale
from packtrain.envs.validation import space_leaves
from packtrain.errors import ConfigError
from packtrain.interfaces import ActingPlace, PolicySettings
from packtrain.trees import Tree
from packtrain.types import Row, Spec


class PolicyState(NamedTuple):
    """Acting state between two calls of `predict`; None at the beginning of an episode."""

    actor: dict[str, Any]  # recurrent state and frame window
    last_action: Tree  # [B, ...] as the policy gave it


class Policy:
    """A trained policy. `network` is a plain `torch.nn.Module`; its class documents `forward`."""

    def __init__(self, settings: PolicySettings, network: nn.Module, spec: Spec, environment: Environment, seed: int):
        """Wrap a network that has its weights.

        Args:
          settings: of the policy.
          network: with trained weights.
          spec: of the environment.
          environment: that it was trained in.
          seed: of sampled actions.
        """
        self.network, self.environment = network, environment
        self.observation_space, self.action_space = spec.obs, spec.action
        self._settings, self._spec, self._seed = settings, spec, seed
        self._device = next((leaf.device for leaf in network.parameters()), torch.device("cpu"))
        self._obs_spaces, self._action_spaces = space_leaves(spec.obs), space_leaves(spec.action)
        self._scales = [ActionScale(space) for space in trees.flatten(self._action_spaces)]
        self._actors: dict[tuple[int, bool], Any] = {}
        self._fresh: dict[tuple[int, bool], dict[str, Any]] = {}

    def predict(
        self,
        obs: Any,
        state: PolicyState | None = None,
        *,
        deterministic: bool = True,
        reward: Any = 0.0,
        episode_start: Any = None,
    ) -> tuple[Any, PolicyState]:
        """Return actions for one observation or a batch, and the state for the next call.

        Args:
          obs: one observation of the observation space, or a batch of them with one more axis in front.
          state: what the last call returned; None: all episodes begin.
          deterministic: act as in greedy evaluations; False: as in training, by chance.
          reward: of the last step; some networks read it (recurrent Q-networks, IMPALA).
          episode_start: [B] bool, which episodes of a batch begin now; None: those of a new state.

        Returns:
          The action, or a batch of actions, of the action space; and the new state.
        """
        rows, single = self._batch(obs)
        size = len(trees.front(rows))
        if state is not None and len(trees.front(state.last_action)) != size:
            before = len(trees.front(state.last_action))
            raise ConfigError(
                f"predict got {size} observations and the state of {before}; pass state=None to start new episodes"
            )
        actor, fresh = self._actor(size, deterministic)
        starts = np.ones(size, bool) if state is None else np.zeros(size, bool)
        if episode_start is not None:
            starts = starts | np.broadcast_to(np.asarray(episode_start, bool), (size,))
        actor.restore(fresh if state is None else state.actor)
        zeros = trees.map(lambda space: np.zeros((size, *space.shape), _dtype(space)), self._action_spaces)
        last = zeros if state is None else state.last_action
        last = trees.map(lambda leaf: leaf * ~starts.reshape(-1, *[1] * (leaf.ndim - 1)), last)
        rewards = np.where(starts, 0, np.broadcast_to(np.asarray(reward, np.float32), (size,))).astype(np.float32)
        channels = {name: rewards for name in self._spec.reward_channels}
        no = np.zeros(size, bool)
        decision = actor.act(Row(rows, starts, last, channels, no, no))  # type: ignore[arg-type]
        action = trees.map(np.copy, decision.action)
        after = PolicyState(actor.snapshot(), action)
        return self._to_env(action, single), after

    def make_env(self, **kwargs: Any) -> gym.Env:
        """Return one environment like those that the policy was trained in."""
        from packtrain.envs.single import make_single

        return make_single(self.environment, **kwargs)

    def _batch(self, obs: Any) -> tuple[Tree, bool]:
        """Return observations as arrays [B, ...] of the space's types, and whether the input was a single one."""
        spaces = trees.flatten(self._obs_spaces)
        try:
            obs = trees.map(lambda space, leaf: _array(leaf, space), self._obs_spaces, _plain(obs, self._obs_spaces))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"predict got an observation that is no array of numbers: {error}") from None
        shapes = [leaf.shape for leaf in trees.flatten(obs)]
        single = all(shape == tuple(space.shape) for shape, space in zip(shapes, spaces, strict=True))
        if not single and not all(shape[1:] == tuple(space.shape) for shape, space in zip(shapes, spaces, strict=True)):
            raise ConfigError(
                f"predict got an observation of shape {shapes[0]}; the space has {tuple(spaces[0].shape)}, and a "
                "batch one more axis in front"
            )
        return (trees.map(lambda leaf: leaf[None], obs) if single else obs), single

    def _actor(self, size: int, deterministic: bool) -> tuple[Any, dict[str, Any]]:
        """Return the acting state for this many environments, and its initial value."""
        key = size, deterministic
        if key not in self._actors:
            if self._settings.env_access == "states":
                raise ConfigError(
                    "a planner acts on states of its simulator, not on observations: packtrain.evaluate plays episodes"
                )
            settings = self._settings.for_evaluation(None) if deterministic else self._settings
            place = ActingPlace(self._device, self._seed, size, greedy=deterministic)
            policy = settings.build_policy(self.network, place)
            self._actors[key] = policy.actor_state(SimpleNamespace(size=size))
            self._actors[key].begin()
            self._fresh[key] = self._actors[key].snapshot()
        return self._actors[key], self._fresh[key]

    def _to_env(self, action: Tree, single: bool) -> Any:
        leaves = zip(self._scales, trees.flatten(action), strict=True)
        scaled = trees.pack(self._action_spaces, [scale.to_env(leaf) for scale, leaf in leaves])
        return trees.map(lambda leaf: leaf[0], scaled) if single else scaled


def _plain(obs: Any, spaces: Tree) -> Tree:
    """Return an observation with the structure of its space: plain dicts with sorted keys, and tuples."""
    if isinstance(spaces, dict):
        if not isinstance(obs, dict) or set(obs) != set(spaces):
            raise ConfigError(f"predict needs an observation with the keys {sorted(spaces)}")
        return {key: _plain(obs[key], inner) for key, inner in spaces.items()}
    if isinstance(spaces, tuple):
        if not isinstance(obs, (tuple, list)) or len(obs) != len(spaces):
            raise ConfigError(f"predict needs an observation of {len(spaces)} parts, a tuple")
        return tuple(_plain(one, inner) for one, inner in zip(obs, spaces, strict=True))
    if isinstance(obs, dict):
        raise ConfigError(f"predict got a dict with the keys {sorted(map(str, obs))}, and the space is {spaces}")
    return obs


def _dtype(space: gym.Space) -> type:
    return np.float32 if isinstance(space, gym.spaces.Box) else np.int64


def _array(leaf: Any, space: gym.Space) -> np.ndarray:
    """Return a leaf of an observation as an array of the space's type."""
    if leaf is None:
        raise TypeError("it is None")
    return np.require(np.asarray(leaf), space.dtype, "C")


def load_policy(run: Path, checkpoint_name: str, device: str, trust_config: bool) -> Policy:
    """Return the policy of a run folder; see `packtrain.load`."""
    from packtrain.runtime import checkpoint
    from packtrain.runtime.preparation import find_device, prepare, refuse_no_run
    from packtrain.runtime.restore_checks import refuse_ill_formed, refuse_other, restoring
    from packtrain.runtime.seeds import seed_for

    refuse_no_run(run)
    configuration, experiment, spec = prepare([run / "config.gin"], [], {}, None, trust_config)
    _, state = checkpoint.choose(run / "checkpoints", checkpoint_name)
    refuse_ill_formed(run, state)
    refuse_other(run, state, configuration)
    network = experiment.policy.build_network(spec).to(find_device(device))
    with restoring(run), torch.no_grad():
        for weights in state["weights"].values():  # none where nothing learns
            network.load_state_dict({**network.state_dict(), **weights})
    network.eval()
    seed = seed_for(experiment.seed, "predict")
    return Policy(experiment.policy, network, spec, experiment.streams.environment, seed)
