"""Redirects MuJoCo's warnings about a model during compilation, which concern the model's authors, to the log.

MuJoCo would print them once per environment, and write them to a file in the current folder.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections.abc import Iterator
from typing import Any

log = logging.getLogger("packtrain")


@contextlib.contextmanager
def remarks_logged(entry_point: Any = "mujoco") -> Iterator[None]:
    """Log the warnings at debug level while a MuJoCo environment is made; do nothing for others."""
    if "mujoco" not in str(entry_point) or importlib.util.find_spec("mujoco") is None:
        yield
        return
    import mujoco

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda remark: log.debug("MuJoCo: %s", remark))
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)
