"""Side streams: GPU work that may run concurrently with what is launched after it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import torch


class SideStream:
    """A second CUDA stream that begins after the work of the current one. On a CPU, calls run one after another.

        other = SideStream(device)
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
        """Launch work inside this context on the second stream, concurrently with later launches."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Let the current stream wait for the second one."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


@functools.cache
def _second_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the same second stream in each call, since torch caches memory for each stream."""
    return torch.cuda.Stream(device)


def settle_gpu() -> None:
    """Wait for the GPU before one thread uses results of another thread's CUDA stream."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
