"""Work that a GPU may do at the same time as what follows it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import torch


class Beside:
    """A second stream that begins where the current one stands. On a CPU, one thing comes after another.

        other = Beside(device)
        with other.work():
            a = long()
        b = as_long()
        other.join()  # from here on `a` can be used

    It may be captured: the two are two branches of the same launch then.
    """

    def __init__(self, device: torch.device):
        self._stream = _second_stream(device) if device.type == "cuda" else None

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """What is launched here may run beside what comes after."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """What is launched from now on comes after both."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


@functools.cache
def _second_stream(device: torch.device) -> torch.cuda.Stream:
    """Always the same one: memory is kept for each stream."""
    return torch.cuda.Stream(device)
