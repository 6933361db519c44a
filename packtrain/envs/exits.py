"""Convert `sys.exit()` and KeyboardInterrupt raised inside an environment into environment faults."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterable, Iterator

from packtrain.envs.vector_env import VectorEnv
from packtrain.errors import EnvError


@contextlib.contextmanager
def exits_are_faults(columns: Iterable[VectorEnv] = ()) -> Iterator[None]:
    """Run code of environments; SystemExit, KeyboardInterrupt and the like become an EnvError.

    A user's own Ctrl-C passes through. It raises KeyboardInterrupt only in the main thread, and only while Python's
    own signal handler is installed.

    Args:
      columns: the environments that may run; the message names the one that is being stepped.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and ctrl_c_raises():
            raise
        busy = next((one for one in columns if one.busy_since is not None), None)
        who = "an environment" if busy is None else busy.describe_busy()
        said = f": {error}" if str(error) else ""
        raise EnvError(
            f"{who} raised {type(error).__name__}{said}, which would end the program; an environment ends an episode "
            "with terminated or truncated"
        ) from error


def ctrl_c_raises() -> bool:
    """Return whether a user's Ctrl-C would raise KeyboardInterrupt in this thread."""
    main = threading.current_thread() is threading.main_thread()
    return main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
