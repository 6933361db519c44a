"""`packtrain record`: episodes of a run's policy as a data set of Minari."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain import __version__
from packtrain.envs.demonstrations import FLAGS, Episode, describe_space, import_h5py, stacked, write_tree
from packtrain.envs.validation import space_leaves
from packtrain.errors import ConfigError
from packtrain.files import write_whole
from packtrain.prediction import load_policy


def record(
    run: Path,
    out: Path,
    num_episodes: int = 100,
    *,
    checkpoint: str = "latest",
    seed: int = 0,
    sampled: bool = False,
    trust_config: bool = False,
) -> dict[str, Any]:
    """Play episodes with a run's policy and write them as a data set; return its metadata.

    Args:
      run: run folder.
      out: folder of the data set, which must not exist.
      num_episodes: how many.
      checkpoint: latest, best, or a step.
      seed: of the first episode; episode k has seed + k.
      sampled: act by chance, as in training, instead of greedily.
      trust_config: let the run's configuration import any module.
    """
    h5py = import_h5py()
    if num_episodes < 1:
        raise ConfigError(f"--num_episodes {num_episodes} must be at least 1")
    if out.exists():
        raise ConfigError(f"{out} exists already; choose another --out")
    policy = load_policy(run, checkpoint, "cpu", trust_config)
    spaces = {
        "observation_space": describe_space(policy.observation_space),
        "action_space": describe_space(policy.action_space),
    }
    env, total, returns = policy.make_env(), 0, []
    (out / "data").mkdir(parents=True)
    with h5py.File(out / "data" / "main_data.hdf5", "x", track_order=True) as file:
        for k in range(num_episodes):
            group = file.create_group(f"episode_{k}")
            episode = _play(policy, env, seed + k, deterministic=not sampled)
            group.attrs.update({"id": k, "seed": seed + k, "total_steps": len(episode.reward)})
            write_tree(group, "observations", episode.obs)
            write_tree(group, "actions", episode.action)
            for name, values in zip(("rewards", *FLAGS), episode[2:], strict=True):
                group.create_dataset(name, data=values)
            total += len(episode.reward)
            returns.append(float(episode.reward.sum(dtype=np.float64)))
    env.close()
    about = {
        "dataset_id": f"packtrain/{policy.environment.id.rpartition(':')[2]}-v0",
        "total_episodes": num_episodes,
        "total_steps": total,
        "data_format": "hdf5",
        "minari_version": "0.5.3",
        "jpeg_encoding": False,
        "algorithm_name": f"packtrain {__version__}",
        **{name: json.dumps(space) for name, space in spaces.items()},
    }
    write_whole(out / "data" / "metadata.json", json.dumps(about, indent=1).encode() + b"\n")
    return {**about, "return_mean": sum(returns) / len(returns)}


def _play(policy: Any, env: gym.Env, seed: int, deterministic: bool) -> Episode:
    """Play one episode."""
    obs, _ = env.reset(seed=seed)
    seen, steps, state, over = [obs], [], None, False
    reward: Any = 0.0
    while not over:
        action, state = policy.predict(obs, state, deterministic=deterministic, reward=reward)
        obs, reward, terminated, truncated, _ = env.step(action)
        seen.append(obs)
        steps.append((action, reward, terminated, truncated))
        over = terminated or truncated
    actions, rewards, ends, cuts = zip(*steps, strict=True)
    spaces = space_leaves(policy.observation_space), space_leaves(policy.action_space)
    return Episode(
        stacked(seen, spaces[0]), stacked(actions, spaces[1]), np.array(rewards, np.float32), np.array(ends, bool),
        np.array(cuts, bool),
    )  # fmt: skip
