"""Messages and logs for errors that no command has caught."""

from __future__ import annotations

import os
from pathlib import Path

from packtrain import files
from packtrain.errors import Error


def describe(error: Exception, argv: list[str]) -> str:
    """Describe an uncaught error; its traceback is written to a log.txt, whose path is given."""
    import errno

    text = (str(error).splitlines() or [""])[0]
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        reason = "there is not enough memory" + f" ({text})" * bool(text)
    elif isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        reason = "too many files are open; raise the limit (ulimit -n), or lower num_actors"
    elif isinstance(error, OSError) and error.strerror:
        reason = f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    else:
        reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{reason} (the traceback is in {log_traceback(error, argv)})"


def log_traceback(error: Exception, argv: list[str]) -> str:
    """Write a traceback to log.txt in the run folder that a command names, or to a temporary file; return its path."""
    import tempfile
    import traceback

    if (logged := getattr(error, "logged_in", None)) is not None:
        return str(logged)
    lines = "".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace")
    runs = [Path(word.partition("=")[2] if word.startswith("--") else word) for word in argv[1:]]
    try:
        for run in runs:
            if os.path.isfile(run / "log.txt"):
                with files.open_inside(run, "log.txt", "ab") as file:
                    file.write(lines)
                return str(run / "log.txt")
    except (OSError, ValueError, Error):
        pass  # read-only, too long a name, or a link: try the next place
    try:
        path = Path(tempfile.mkdtemp(prefix="packtrain-")) / "log.txt"
        path.write_bytes(lines)
        return str(path)
    except OSError:
        return "no file: none can be written"
