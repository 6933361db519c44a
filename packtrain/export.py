"""A trained policy as a folder for programs without packtrain: weights, spaces, configuration, torch.export program.

    weights.safetensors   every tensor of the network by its name
    policy.json           family of the network, observation and action space, how actions are scaled, what was left out
    config.gin            the configuration of the run
    policy.pt2            torch.export program: observations [B, ...] → greedy actions of the action space

The program is written where the greedy action depends on the current observation alone. It is compared with the policy
before it is kept; a policy with memory, a frame stack or several inputs has no program, and policy.json says why.
"""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from packtrain.errors import ConfigError, RunFolderError
from packtrain.files import write_whole
from packtrain.networks.action_values import ActionValuesNetwork
from packtrain.networks.actor_critic import ActorCriticNetwork
from packtrain.networks.control import ControlNetwork
from packtrain.prediction import Policy, load_policy

CHECKED_STEPS = 16  # random observations with which a program is compared


def export(run: Path, out: Path | None = None, which: str = "latest", trust_config: bool = False) -> dict[str, Any]:
    """Write the bundle of a run; return the content of policy.json.

    Args:
      run: the run folder.
      out: the folder to make; None: RUN/export.
      which: the checkpoint: latest, best, or a step.
      trust_config: let the run's configuration import any module.
    """
    out = run / "export" if out is None else out
    if out.exists() and not (out.is_dir() and ((out / "policy.json").is_file() or not any(out.iterdir()))):
        raise RunFolderError(f"{out} exists and is no earlier export; choose another --out")
    policy = load_policy(run, which, "cpu", trust_config)
    if not list(policy.network.parameters()):
        raise ConfigError(f"{run} has no network: a planner with the true model has nothing to export")
    out.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {
        "network": type(policy.network).__name__,
        "environment": policy.environment.id,
        "observation_space": describe_space(policy.observation_space),
        "action_space": describe_space(policy.action_space),
    }
    program, reason = build_program(policy)
    if program is None:
        (out / "policy.pt2").unlink(missing_ok=True)
        about["program"], about["no_program_because"] = None, reason
    else:
        torch.export.save(program, out / "policy.pt2")
        about["program"] = "policy.pt2: observations [B, ...] -> greedy actions [B, ...] of the action space"
    weights = {name: leaf.detach().contiguous().clone() for name, leaf in policy.network.state_dict().items()}
    save_file(weights, out / "weights.safetensors")
    shutil.copyfile(run / "config.gin", out / "config.gin")
    write_whole(out / "policy.json", json.dumps(about, indent=1).encode() + b"\n")
    return about


def describe_space(space: gym.Space) -> dict[str, Any]:
    """Return a space as JSON values."""
    about: dict[str, Any] = {"kind": type(space).__name__}
    if isinstance(space, gym.spaces.Dict):
        return {**about, "spaces": {name: describe_space(inner) for name, inner in space.spaces.items()}}
    if isinstance(space, gym.spaces.Tuple):
        return {**about, "spaces": [describe_space(inner) for inner in space.spaces]}
    about |= {"shape": list(space.shape or ()), "dtype": str(space.dtype)}
    if isinstance(space, gym.spaces.Box):
        bounds = {"low": space.low, "high": space.high}
        about |= {name: [_finite(x) for x in np.ravel(bound).tolist()] for name, bound in bounds.items()}
    elif isinstance(space, gym.spaces.Discrete):
        about |= {"n": int(space.n), "start": int(space.start)}
    elif isinstance(space, gym.spaces.MultiDiscrete):
        about["nvec"] = space.nvec.tolist()
    return about


def _finite(x: float) -> float | str:
    return x if np.isfinite(x) else str(x)


class _Greedy(nn.Module):
    """Observations [B, ...] → greedy actions [B, ...] in the units of the action space."""

    middle: Tensor
    width: Tensor

    def __init__(self, policy: Policy):
        super().__init__()
        network = policy.network
        self.network = network.acting.values if isinstance(network, ActionValuesNetwork) else network
        space = policy.action_space
        self.is_box = isinstance(space, gym.spaces.Box)
        low = np.where(np.isfinite(space.low), space.low, -1.0) if isinstance(space, gym.spaces.Box) else np.zeros(1)
        high = np.where(np.isfinite(space.high), space.high, 1.0) if isinstance(space, gym.spaces.Box) else np.zeros(1)
        self.register_buffer("middle", torch.from_numpy((high + low) / 2).float())
        self.register_buffer("width", torch.from_numpy((high - low) / 2).float())
        self.start = int(space.start) if isinstance(space, gym.spaces.Discrete) else 0

    def forward(self, obs: Tensor) -> Tensor:
        network = self.network
        if isinstance(network, ControlNetwork):
            return self._scaled(network.act(network.policy, obs.unsqueeze(0))[0])
        rows = obs.unsqueeze(0)
        first = torch.ones(rows.shape[:2], dtype=torch.bool)
        none = torch.zeros(rows.shape[:2])
        if isinstance(network, ActorCriticNetwork):
            action = none.long() if not self.is_box else torch.zeros(*rows.shape[:2], *self.middle.shape)
            greedy = network.distribution.mode(network(rows, first, action, none, ()).parameters[0])
        else:
            greedy = network(rows, first, none.long(), none, ())[0][0].argmax(-1)
        return self._scaled(greedy) if self.is_box else greedy + self.start

    def _scaled(self, action: Tensor) -> Tensor:
        return (self.middle + self.width * action.clamp(-1, 1)).detach()


def build_program(policy: Policy) -> tuple[Any, str]:
    """Return the torch.export program of the greedy policy, or None and the reason why there is none."""
    if not isinstance(policy.network, (ActorCriticNetwork, ControlNetwork, ActionValuesNetwork)):
        return None, f"{type(policy.network).__name__} is not one network from observation to action"
    if not isinstance(policy.observation_space, gym.spaces.Box):
        return None, "the observation is not a single array"
    if isinstance(policy.action_space, gym.spaces.Box) and not policy.action_space.is_bounded():
        return None, "the action space has no bounds"
    examples = _observations(policy.observation_space)
    module = _Greedy(policy).eval()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            batch = {0: torch.export.Dim("batch", min=1, max=65_536)}
            program = torch.export.export(module, (torch.from_numpy(examples),), dynamic_shapes=(batch,))
            found = program.module()(torch.from_numpy(examples)).numpy()
    except Exception as error:  # torch.export has many kinds of refusals
        return None, f"torch.export refused: {(str(error).splitlines() or [type(error).__name__])[0]}"
    state, expected = None, []
    for obs in examples:  # one episode: what depends on earlier steps differs
        action, state = policy.predict(obs, state, reward=1.0)
        expected.append(action)
    if not np.allclose(found, np.stack(expected), atol=1e-4):
        return (
            None,
            "the greedy action depends on more than the current observation: memory, last action or last reward",
        )
    return program, ""


def _observations(space: gym.spaces.Box) -> np.ndarray:
    """Return random observations inside the space, near 0 in unbounded dimensions."""
    rng = np.random.default_rng(0)
    low, high = (np.clip(bound.astype(np.float64), -2, 255) for bound in (space.low, space.high))
    return rng.uniform(low, np.maximum(low, np.minimum(high, low + 255)), (CHECKED_STEPS, *space.shape)).astype(
        space.dtype
    )
