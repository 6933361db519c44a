"""How Gymnasium environments are saved and restored: by methods of their own, or by what is known of them here.

A planner restores the same state many times and leaves the random numbers alone. A run that goes on after a pause needs
them too, and whatever wrappers remember.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from packtrain.envs.functional import FunctionalEnv
from packtrain.errors import EnvSetupError

METHOD_NAMES = (("snapshot", "restore"), ("clone_state", "restore_state"))  # ours, and Alpacka's
# What MuJoCo derives from its state in a step and Gymnasium's environments read before the next: it lags behind the
# state by one integration, so that deriving it again after a restore would change rewards.
DERIVED_BY_MUJOCO = (
    *("xpos", "xquat", "xmat", "xipos", "ximat", "geom_xpos", "site_xpos", "subtree_com"),
    *("cinert", "cvel", "cfrc_ext", "qfrc_actuator", "qfrc_constraint", "actuator_force", "sensordata"),
)
# Wrappers whose only memory is a clock, if any: what they wrap is all there is to save.
_FORGETFUL = (
    *(gym.wrappers.OrderEnforcing, gym.wrappers.PassiveEnvChecker, gym.wrappers.TimeLimit),
    *(gym.wrappers.ClipAction, gym.wrappers.RescaleAction, gym.wrappers.TransformAction),
    *(gym.wrappers.DtypeObservation, gym.wrappers.FlattenObservation, gym.wrappers.RescaleObservation),
    *(gym.wrappers.ReshapeObservation, gym.wrappers.ClipReward, gym.wrappers.TransformReward),
)
_KNOWN = ("gymnasium.envs.classic_control.", "gymnasium.envs.toy_text.", "gymnasium.envs.mujoco.")


class Saving(NamedTuple):
    """How an environment is saved and restored."""

    snapshot: Callable[[], Any]
    restore: Callable[[Any], Any]
    identity: Callable[[Any], Any] = lambda snapshot: snapshot  # the part of a snapshot that tells states apart
    stochastic: bool = False  # whether steps draw from env.np_random, which snapshots leave out


def find_saving(env: gym.Env, name: str) -> Saving:
    """How this environment is saved, its own methods first; EnvSetupError if there is no way."""
    if isinstance(env.unwrapped, FunctionalEnv):
        raise EnvSetupError(f"{name} is a functional core: planners take it as it is, without a Simulator")
    layer: Any = env
    while True:  # wrappers may save more than what they wrap
        for save, restore in METHOD_NAMES:
            if callable(getattr(layer, save, None)) and callable(getattr(layer, restore, None)):
                return Saving(getattr(layer, save), getattr(layer, restore))
        if not isinstance(layer, gym.Wrapper):
            break
        layer = layer.env
    bases = [base.__module__ + "." for base in type(layer).__mro__]
    if any(base.startswith("gymnasium.envs.classic_control.") for base in bases):
        noisy = bool(getattr(layer, "torque_noise_max", 0))
        return _attributes(layer, ("state", "steps_beyond_terminated", "last_u"), ("state",), noisy)
    if any(base.startswith("gymnasium.envs.toy_text.") for base in bases) and hasattr(layer, "P"):
        branching = any(len(outcomes) > 1 for moves in layer.P.values() for outcomes in moves.values())
        drawing = branching or bool(getattr(layer, "fickle_passenger", False))
        return _attributes(layer, ("s", "lastaction", "fickle_step", "taxi_orientation"), ("s", "fickle_step"), drawing)
    if "gymnasium.envs.mujoco.mujoco_env." in bases:
        return _physics(layer)
    raise EnvSetupError(f"{name} cannot be restored: a planner needs snapshot() and restore(snapshot)")


def exact_saving(env: gym.Env) -> Saving | None:
    """How to go on from here in another process as if nothing had happened; None if there is no way.

    Snapshots are arrays and JSON values. An environment's own methods are asked to save its random numbers too;
    `np_random` is saved here for those of Gymnasium. A time limit's count is the caller's to save.
    """
    layer = env
    while isinstance(layer, gym.Wrapper):
        if type(layer) not in _FORGETFUL and not getattr(layer, "forgetful", False):
            return None
        layer = layer.env
    own: Any = layer
    if hasattr(own, "snapshot") and hasattr(own, "restore"):
        return Saving(own.snapshot, own.restore)
    if not type(own).__module__.startswith(_KNOWN):  # what inherits from these may have more to remember
        return None
    try:
        inner = find_saving(own, str(own.spec and own.spec.id))
    except EnvSetupError:
        return None

    def snapshot() -> dict[str, Any]:
        return {"state": _plain(inner.snapshot()), "rng": own.np_random.bit_generator.state}

    def restore(snapshot: dict[str, Any]) -> None:
        inner.restore(_scalars(snapshot["state"]))
        own.np_random.bit_generator.state = snapshot["rng"]

    return Saving(snapshot, restore)


def _plain(state: Any) -> Any:
    """NumPy's numbers as arrays, so that they come back with their types."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    return np.asarray(state) if isinstance(state, np.generic) else state


def _scalars(state: Any) -> Any:
    """The reverse."""
    if isinstance(state, dict):
        return {name: _scalars(value) for name, value in state.items()}
    return state[()] if isinstance(state, np.ndarray) and state.ndim == 0 else state


def _attributes(env: Any, names: tuple[str, ...], telling: tuple[str, ...], stochastic: bool) -> Saving:
    """An environment whose state is a few attributes, those that it has, of which `telling` tell states apart."""

    def snapshot() -> dict[str, Any]:
        return {name: copy.copy(getattr(env, name)) for name in names if hasattr(env, name)}

    def restore(snapshot: dict[str, Any]) -> None:
        for name, value in snapshot.items():
            setattr(env, name, copy.copy(value))

    def identity(snapshot: dict[str, Any]) -> list:
        return [np.asarray(snapshot[name], np.float64) for name in telling if name in snapshot]  # ints, tuples, arrays

    return Saving(snapshot, restore, identity, stochastic)


def _physics(env: Any) -> Saving:
    """A MuJoCo environment: all that its integration depends on, and what was derived in the last step."""
    import mujoco

    model, data, parts = env.model, env.data, mujoco.mjtState.mjSTATE_INTEGRATION
    size = mujoco.mj_stateSize(model, parts)

    def snapshot() -> tuple[np.ndarray, ...]:
        state = np.empty(size)
        mujoco.mj_getState(model, data, state, parts)
        return (state, *(getattr(data, name).copy() for name in DERIVED_BY_MUJOCO))

    def restore(snapshot: tuple[np.ndarray, ...]) -> None:
        state, *derived = snapshot
        mujoco.mj_setState(model, data, state, parts)
        for name, values in zip(DERIVED_BY_MUJOCO, derived, strict=True):
            getattr(data, name)[:] = values

    return Saving(snapshot, restore, lambda snapshot: snapshot[0][1:])  # its first number is the time
