"""Images of environments; if an environment cannot be drawn, a one-line error names the missing part."""

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

PICTURES_PER_SECOND = 10.0  # default of environments without a frame rate
_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")
_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}  # libraries with which MuJoCo can draw without a screen
_OF_OPENGL = re.compile(r"GL|gl[A-Z]|[Oo][Ss][Mm]esa")  # eglGetError, OpenGL, MUJOCO_GL, …


def draw_without_screen() -> None:
    """Set up MuJoCo and pygame, before their import, to draw without a screen; existing settings are kept."""
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
    """Return the image that a call draws, uint8 [H, W, 3]; EnvSetupError of one line if it fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # problems are also raised as errors
            picture = draw()
    except Error:
        raise
    except gym.error.DependencyNotInstalled as error:
        what = reason(error).partition(": ")[2]
        extra = "video" if "pygame" in what else "mujoco" if "mujoco" in what.lower() else None
        package = {"video": "pygame", "mujoco": "mujoco"}.get(extra or "")
        what = f"that takes the package {package!r}; try: pip install 'packtrain[{extra}]'" if extra else what
        raise EnvSetupError(f"{name!r} cannot be drawn: {what}") from None
    except Exception as error:  # each OpenGL library has its own errors
        raise EnvSetupError(f"{name!r} cannot be drawn: {reason(error)}") from error
    if not (isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.ndim == 3 and picture.size):
        raise EnvSetupError(f"{name!r} cannot be drawn: it returned {_kind(picture)} instead of an image")
    if picture.shape[2] not in (3, 4):
        raise EnvSetupError(f"{name!r} cannot be drawn: the image has shape {picture.shape}, not [H, W, 3]")
    return picture[:, :, :3]


def _kind(thing: Any) -> str:
    return f"{thing.dtype} {list(thing.shape)}" if isinstance(thing, np.ndarray) else type(thing).__name__


def following_camera(env: gym.Env) -> dict[str, str]:
    """Return the option for a camera that follows the robot of a MuJoCo environment, if it has one.

    Without it the robot soon leaves the image: from version 1.4 on Gymnasium's default camera does not move.
    """
    model = getattr(env.unwrapped, "model", None)
    if not hasattr(env.unwrapped, "mujoco_renderer") or model is None:
        return {}
    names = {model.camera(index).name for index in range(model.ncam)}
    return {"camera_name": "track"} if "track" in names else {}


def reason(error: Exception) -> str:
    """Return an error in one line; for OpenGL errors, which MuJoCo reports without details, with advice."""
    what = f"{type(error).__name__}: {(str(error).splitlines() or ['no reason given'])[0]}"
    if not _OF_OPENGL.search(what):
        return what
    setting = os.environ.get("MUJOCO_GL")
    return (
        f"OpenGL does not work with {f'MUJOCO_GL={setting}' if setting else 'MUJOCO_GL unset'} ({what}); without a "
        "screen it takes the library libEGL and MUJOCO_GL=egl, or libOSMesa and MUJOCO_GL=osmesa"
    )
