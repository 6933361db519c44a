"""Saving and restoring Gymnasium environments: by their own methods, or by rules for known classes.

A planner restores the same state many times and does not restore random numbers. Resuming a run restores them too, and
the state of wrappers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from packtrain.envs.functional import FunctionalEnv
from packtrain.errors import EnvSetupError

METHOD_NAMES = (("snapshot", "restore"), ("clone_state", "restore_state"))  # packtrain's and Alpacka's names
# Quantities that MuJoCo derives from its state in a step and Gymnasium's environments read before the next. They lag
# behind the state by one integration, so computing them again after a restore would change rewards.
DERIVED_BY_MUJOCO = (
    *("xpos", "xquat", "xmat", "xipos", "ximat", "geom_xpos", "site_xpos", "subtree_com"),
    *("cinert", "cvel", "cfrc_ext", "qfrc_actuator", "qfrc_constraint", "actuator_force", "sensordata"),
)
# Wrappers whose only state is a step counter, if any: saving what they wrap is enough.
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
    identity: Callable[[Any], Any] = lambda snapshot: snapshot  # the part of a snapshot that distinguishes states
    stochastic: bool = False  # whether steps use env.np_random, which snapshots omit


def find_saving(env: gym.Env, name: str) -> Saving:
    """Return how this environment is saved, preferably by its own methods; EnvSetupError if it cannot be."""
    if isinstance(env.unwrapped, FunctionalEnv):
        raise EnvSetupError(f"{name} is a functional core: planners use it directly, without a Simulator")
    layer: Any = env
    while True:  # wrappers may save more than the wrapped environment
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
    raise EnvSetupError(f"{name} cannot be restored: a planner needs the methods snapshot() and restore(snapshot)")


def exact_saving(env: gym.Env) -> Saving | None:
    """Return how to save an environment exactly, to continue in another process; None if it cannot be.

    Snapshots are arrays and JSON values. An environment's own methods must save its random numbers too; for Gymnasium's
    environments `np_random` is saved here. The caller saves the counter of a time limit.
    """
    layer = env
    while isinstance(layer, gym.Wrapper):
        if type(layer) not in _FORGETFUL and not getattr(layer, "forgetful", False):
            return None
        layer = layer.env
    own: Any = layer
    if hasattr(own, "snapshot") and hasattr(own, "restore"):
        return Saving(own.snapshot, own.restore)
    if not type(own).__module__.startswith(_KNOWN):  # subclasses of these may have more state
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
    """Return NumPy's numbers as arrays, so that they are restored with their types."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    return np.asarray(state) if isinstance(state, np.generic) else state


def _scalars(state: Any) -> Any:
    """Invert `_plain`."""
    if isinstance(state, dict):
        return {name: _scalars(value) for name, value in state.items()}
    return state[()] if isinstance(state, np.ndarray) and state.ndim == 0 else state


def _attributes(env: Any, names: tuple[str, ...], telling: tuple[str, ...], stochastic: bool) -> Saving:
    """Return the saving of an environment by some attributes, of which `telling` distinguish states."""

    def snapshot() -> dict[str, Any]:
        return {name: copy.copy(getattr(env, name)) for name in names if hasattr(env, name)}

    def restore(snapshot: dict[str, Any]) -> None:
        for name, value in snapshot.items():
            setattr(env, name, copy.copy(value))

    def identity(snapshot: dict[str, Any]) -> list:
        return [np.asarray(snapshot[name], np.float64) for name in telling if name in snapshot]  # ints, tuples, arrays

    return Saving(snapshot, restore, identity, stochastic)


def _physics(env: Any) -> Saving:
    """Return the saving of a MuJoCo environment: the integrator's state, and quantities derived in the last step."""
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

    return Saving(snapshot, restore, lambda snapshot: snapshot[0][1:])  # without the first number, the time
