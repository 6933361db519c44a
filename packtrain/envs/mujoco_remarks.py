"""What MuJoCo remarks on a model while it is compiled, which is for those who wrote the model.

It would be printed once for every environment, and written to a file in the folder where one stands.
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
    """While an environment is made, if it is one of MuJoCo's: remarks are lines of the log, for those who debug."""
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
