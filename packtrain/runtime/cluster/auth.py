"""The token that protects a Ray cluster: its file, whether it exists, and its permissions.

Ray executes the code it receives, so anyone who has the token can run code on every node. Only the owner can read the
file of a token. Ray's own rule decides which token is used: the variable RAY_AUTH_TOKEN, the file that
RAY_AUTH_TOKEN_PATH names, or the file `.ray/auth_token` in the home folder.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from packtrain.errors import ClusterError


def token_path() -> Path:
    """Return the path from which Ray reads the token, whether it exists or not."""
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def has_token() -> bool:
    """Return whether Ray would find a token."""
    return bool(os.environ.get("RAY_AUTH_TOKEN") or _read(token_path()))


def require_token(address: str) -> None:
    """Switch token authentication on for this process and its children; ClusterError if there is no token."""
    os.environ["RAY_AUTH_MODE"] = "token"
    if os.environ.get("RAY_AUTH_TOKEN"):
        return
    path = token_path()
    if not _read(path):
        raise ClusterError(
            f"there is no token for {address}: copy the file that `packtrain node --head` named there to {path} here, "
            "or set RAY_AUTH_TOKEN"
        )
    protect(path)


def ensure_token() -> tuple[str, bool]:
    """Find the token, or create one that only its owner can read; switch token authentication on.

    Returns:
      Where the token is, in words, and whether it has just been created.
    """
    os.environ["RAY_AUTH_MODE"] = "token"
    if os.environ.get("RAY_AUTH_TOKEN"):
        return "the variable RAY_AUTH_TOKEN", False
    path = token_path()
    created = not _read(path)
    if created:
        create_token(path)
    else:
        protect(path)
    return str(path), created


def create_token(path: Path) -> None:
    """Write a new random token to a file of mode 600; ClusterError if that cannot be done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.unlink(missing_ok=True)  # an empty file counts as no token
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(32))
    except OSError as error:
        raise ClusterError(f"the token cannot be written to {path}: {error.strerror}") from None


def protect(path: Path) -> None:
    """Restrict access to a token's file to its owner; ClusterError if that cannot be done."""
    try:
        mode = path.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            path.chmod(0o600)
    except OSError as error:
        raise ClusterError(f"others can read the token in {path}: {error.strerror}; try: chmod 600 {path}") from None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
