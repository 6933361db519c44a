"""Pictures of environments, for people; where nothing can be drawn, one line that says what is missing."""

from __future__ import annotations

import ctypes.util
import os
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.errors import EnvSetupError, Error

PICTURES_PER_SECOND = 10.0  # of an environment that does not say
_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")
_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}  # what MuJoCo can draw with where there is no screen
_OF_OPENGL = re.compile(r"GL|gl[A-Z]|[Oo][Ss][Mm]esa")  # eglGetError, OpenGL, MUJOCO_GL, …


def draw_without_screen() -> None:
    """Let MuJoCo and pygame draw where there is no screen, before they are imported; what is set already stands."""
    if sys.platform != "linux" or any(os.environ.get(name) for name in _SCREENS):
        return
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if "MUJOCO_GL" in os.environ:
        return
    for name, library in _LIBRARIES.items():
        if ctypes.util.find_library(library):
            os.environ["MUJOCO_GL"] = name
            return


def drawn(name: str, draw: Callable[[], Any]) -> np.ndarray:
    """What a call draws, uint8 [H, W, 3]; EnvSetupError, in one line, if it does not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is wrong comes as an error too
            picture = draw()
    except Error:
        raise
    except gym.error.DependencyNotInstalled as error:
        what = reason(error).partition(": ")[2]
        extra = "video" if "pygame" in what else "mujoco" if "mujoco" in what.lower() else None
        package = {"video": "pygame", "mujoco": "mujoco"}.get(extra or "")
        what = f"that takes the package {package!r}; try: pip install 'packtrain[{extra}]'" if extra else what
        raise EnvSetupError(f"{name!r} cannot be drawn: {what}") from None
    except Exception as error:  # each OpenGL library has errors of its own
        raise EnvSetupError(f"{name!r} cannot be drawn: {reason(error)}") from error
    if not (isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.ndim == 3 and picture.size):
        raise EnvSetupError(f"{name!r} cannot be drawn: it gave {_kind(picture)} for a picture")
    if picture.shape[2] not in (3, 4):
        raise EnvSetupError(f"{name!r} cannot be drawn: a picture of shape {picture.shape} is not [H, W, 3]")
    return picture[:, :, :3]


def _kind(thing: Any) -> str:
    return f"{thing.dtype} {list(thing.shape)}" if isinstance(thing, np.ndarray) else type(thing).__name__


def following_camera(env: gym.Env) -> dict[str, str]:
    """The option with which a MuJoCo environment of Gymnasium is seen by a camera that follows it, if it has one.

    Without it the robot soon runs out of the picture: from 1.4 on Gymnasium's own choice stays where it is.
    """
    model = getattr(env.unwrapped, "model", None)
    if not hasattr(env.unwrapped, "mujoco_renderer") or model is None:
        return {}
    names = {model.camera(index).name for index in range(model.ncam)}
    return {"camera_name": "track"} if "track" in names else {}


def reason(error: Exception) -> str:
    """An error in one line, with what to try if it is about OpenGL: MuJoCo, imported or drawing, hardly says."""
    what = f"{type(error).__name__}: {(str(error).splitlines() or ['no reason given'])[0]}"
    if not _OF_OPENGL.search(what):
        return what
    setting = os.environ.get("MUJOCO_GL")
    return (
        f"OpenGL does not work with {f'MUJOCO_GL={setting}' if setting else 'MUJOCO_GL unset'} ({what}); without a "
        "screen it takes the library libEGL and MUJOCO_GL=egl, or libOSMesa and MUJOCO_GL=osmesa"
    )
