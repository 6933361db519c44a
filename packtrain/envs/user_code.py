"""Environments that are a user's own code: "module:Class" ids, objects of a Python session, and their errors.

Gymnasium creates environments by registered ids. A class, a function or an instance is registered here under a new id,
so that the rest of the code, and other processes, handle only ids.
"""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import os
import re
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs.functional import register
from packtrain.errors import ConfigError, EnvSetupError, MissingExtraError, Seldom

SESSION = "session/"  # prefix of ids that exist only in the process that registered them
EXTRAS = {
    "box2d": ("box2d", "Box2D", "swig"),
    "mujoco": ("mujoco", "MuJoCo"),
    "atari": ("ale_py", "ale-py", "atari"),
    "video": ("pygame",),
}
"""Extra → words in another library's message that it is missing."""

_library_folders = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_casts = Seldom(every_secs=1e9)


def import_module(name: str, environment: str) -> Any:
    """Import the module of an environment id, from the current folder too.

    Raises:
      EnvSetupError: it is not found, or raises while it is imported.
    """
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.partition(".")[0] == error.name.partition(".")[0]:
            raise EnvSetupError(
                f"environment {environment!r} cannot be imported: there is no module {error.name!r} in the current "
                f"folder {os.getcwd()} nor on the PYTHONPATH"
            ) from None
        raise EnvSetupError(f"environment {environment!r} cannot be imported: {error}{place_of(error)}") from error
    except Exception as error:
        raise EnvSetupError(
            f"environment {environment!r} cannot be imported: {type(error).__name__}: {error}{place_of(error)}"
        ) from error


def id_of_member(module: Any, name: str) -> str | None:
    """Return the Gymnasium id of "module:name" after registering it; None if the module has no such class."""
    found = getattr(module, name, None)
    if not callable(found):
        return None
    return _registered(found, f"{module.__name__}:{name}", f"{module.__name__.replace('.', '-')}/{name}-v0")


def is_made_by(env_id: str, maker: Any) -> bool:
    """Return whether an id is registered with Gymnasium for this class or factory, and not for one of the same name."""
    if env_id not in gym.registry:
        return False
    spec = gym.registry[env_id]
    path = spec.kwargs.get("core", spec.entry_point)  # "module:Class" of a core or of an environment
    return path in (maker, f"{getattr(maker, '__module__', '')}:{getattr(maker, '__qualname__', '')}")


def id_of(environment: Any) -> str:
    """Return the id for an environment that a Python program gives as an id, a class, a factory or an instance."""
    if isinstance(environment, str):
        return environment
    module, name = getattr(environment, "__module__", None), getattr(environment, "__qualname__", "")
    if callable(environment) and _is_importable(environment, module, name):
        return f"{module}:{name}"
    if isinstance(environment, gym.Env) and environment.spec is not None and environment.spec.id in gym.registry:
        if environment.spec.kwargs == gym.registry[environment.spec.id].kwargs:
            return environment.spec.id
    maker, name = environment, name
    if isinstance(environment, gym.Env):
        name, maker = type(environment.unwrapped).__name__, functools.partial(_copy_of, environment)
    if not callable(maker):
        raise ConfigError(f"env = {environment!r:.80} is not an id, a Gymnasium class, a factory or an instance")
    label = re.sub(r"\W", "_", name.rpartition(".")[2] or type(environment).__name__)
    known = (f"{SESSION}{label}{number}-v0" for number in ["", *range(2, 10_000)])
    env_id = next(one for one in known if one not in gym.registry or _made_by(one) is environment)
    if env_id not in gym.registry:
        _sources[env_id] = environment
        _registered(maker, None, env_id)
    return env_id


_sources: dict[str, Any] = {}  # session id → the object it was registered for


def _made_by(env_id: str) -> Any:
    return _sources.get(env_id)


def _is_importable(thing: Any, module: str | None, name: str) -> bool:
    """Whether another process finds the same object by module and name."""
    if not module or module == "__main__" or not name.isidentifier():
        return False
    found = sys.modules.get(module)
    return found is not None and getattr(found, name, None) is thing and importlib.util.find_spec(module) is not None


def _copy_of(environment: gym.Env, **kwargs: Any) -> gym.Env:
    if kwargs:
        raise ConfigError("env_kwargs need a class, a factory or an id; an instance has been built already")
    try:
        return copy.deepcopy(environment)
    except Exception as error:
        raise EnvSetupError(
            f"an instance of {type(environment.unwrapped).__name__} cannot be copied ({type(error).__name__}: "
            f"{error}): pass its class or a function that makes one"
        ) from error


def _registered(maker: Any, path: str | None, env_id: str) -> str:
    """Register a class or factory under an id, unless it is; functional cores as such."""
    if env_id in gym.registry:
        return env_id
    if path is not None and all(callable(getattr(maker, name, None)) for name in ("initial", "step", "observe")):
        register(env_id, path)
        return env_id
    gym.register(env_id, entry_point=path or maker)
    return env_id


def refuse_missing_extra(name: str, error: Exception) -> None:
    """Raise a MissingExtraError that names our extra, if a library's message says that one of ours is missing."""
    text = str(error)
    for extra, words in EXTRAS.items():
        if any(word in text for word in words):
            package = {"box2d": "box2d", "mujoco": "mujoco", "atari": "ale-py", "video": "pygame-ce"}[extra]
            raise MissingExtraError(f"environment {name!r}", package, extra) from None


def place_of(error: BaseException) -> str:
    """Return " (FILE:LINE)" of the user's code that raised, or of the deepest frame; empty without a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({_short(error.filename)}:{error.lineno})"
    own = [frame for frame in frames if not frame.filename.startswith((*_library_folders, _OURS, "<frozen"))]
    if not own:
        return ""
    return f" ({_short(own[-1].filename)}:{own[-1].lineno})"


_OURS = str(Path(__file__).parent.parent)  # packtrain's own folder


def _short(filename: str) -> str:
    here = os.getcwd() + os.sep
    return filename.removeprefix(here)


def cast_floats(obs: Any, space: gym.Space, label: str) -> Any:
    """Return an observation whose float64 arrays are cast where its space has float32; the first time with a warning.

    Args:
      obs: of one environment.
      space: its space.
      label: of the environment, for the warning.
    """
    if isinstance(space, gym.spaces.Dict) and isinstance(obs, dict):
        return {
            key: cast_floats(value, space[key], label) if key in space.spaces else value for key, value in obs.items()
        }
    if isinstance(space, gym.spaces.Tuple) and isinstance(obs, tuple) and len(obs) == len(space.spaces):
        return tuple(cast_floats(value, inner, label) for value, inner in zip(obs, space.spaces, strict=True))
    is_other = isinstance(obs, np.ndarray) and obs.dtype == np.float64
    if is_other and isinstance(space, gym.spaces.Box) and space.dtype == np.float32:
        _casts.warn(
            f"{label} gives float64 observations where its space says float32: they are cast; "
            "`.astype(np.float32)` in the environment saves the work"
        )
        return obs.astype(np.float32)
    return obs
