"""CUDA graphs: GPU work captured once and then launched in one call, so that hundreds of kernels cost one launch.

Captured work reads and writes the same memory every time, so its inputs are copied into place before each launch. What
depends on data that only the host could look at (an LSTM cut at resets) cannot be captured.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from packtrain import trees
from packtrain.trees import Tree

log = logging.getLogger("packtrain")
WARM_UP = 3  # calls before the capture, so that libraries have chosen kernels and optimisers have created their state
_CAPTURING = threading.Lock()  # one at a time in a process


class Captured:
    """A call without arguments, captured as a CUDA graph after a few calls. On a CPU it is called as usual."""

    def __init__(
        self,
        call: Callable[[], None],
        device: torch.device,
        name: str,
        generators: Sequence[torch.Generator] = (),
        urgent: bool = False,
    ):
        """Store the function; nothing runs yet.

        Args:
          call: reads and writes tensors that never move.
          device: of these tensors.
          name: for the log.
          generators: whose numbers it draws.
          urgent: whether its kernels go before those of others that wait.
        """
        self._call, self._name, self._generators = call, name, generators
        self._left = WARM_UP if device.type == "cuda" else -1
        # Kernels keep the priority of the stream in which they are captured, wherever they are launched.
        self._stream = torch.cuda.Stream(device, priority=-urgent) if device.type == "cuda" else None
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Run the call, as a CUDA graph where that is possible."""
        if self._graph is not None:
            self._graph.replay()
        elif self._stream is None or self._left < 0:
            self._call()
        # run in the stream that will be captured, because gradients belong to the stream of their creation
        elif self._left > 0:
            self._left -= 1
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                self._call()
            torch.cuda.current_stream().wait_stream(self._stream)
        else:
            self._capture()
            self()

    def _capture(self) -> None:
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        for generator in self._generators:
            graph.register_generator_state(generator)
        try:
            # thread_local: other threads may allocate and launch during the capture
            with _CAPTURING, torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._call()
        except RuntimeError as error:
            torch.cuda.set_stream(before)  # a failed capture does not restore the stream
            log.warning("%s runs kernel by kernel: it could not be captured: %s", self._name, str(error).split("\n")[0])
            self._left = -1
            return
        log.info("%s is captured as one launch", self._name)
        self._graph = graph


class CapturedFunction:
    """A function of tensors, captured as a CUDA graph: inputs are copied to fixed tensors, and results are copies."""

    def __init__(self, function: Callable[..., dict[str, Tensor]], device: torch.device, name: str):
        """Store the function; nothing runs yet.

        Args:
          function: (*trees of tensors) → tensors by name. It must not look at values on the host.
          device: of all tensors.
          name: for the log.
        """
        self._function, self._device, self._name = function, device, name
        self._inputs: Tree = None  # what the captured function reads
        self._numbers: list[str] = []  # names of results with one element …
        self._packed: Tensor | None = None  # … which are copied together
        self._others: dict[str, Tensor] = {}
        self.captured: Captured | None = None

    def __call__(self, *inputs: Tree) -> dict[str, Tensor]:
        """Return what the function returns; results with one element are float32."""
        if self.captured is None:
            self._inputs = trees.map(torch.clone, inputs)
            self.captured = Captured(self._run, self._device, self._name)
        trees.map(lambda mine, given: mine.copy_(given), self._inputs, inputs)
        self.captured()
        assert self._packed is not None
        numbers = dict(zip(self._numbers, self._packed.clone().unbind(), strict=True))
        return numbers | {name: leaf.clone() for name, leaf in self._others.items()}

    def _run(self) -> None:
        results = self._function(*self._inputs)
        self._numbers = [name for name, leaf in results.items() if leaf.ndim == 0]
        others = {name: leaf for name, leaf in results.items() if leaf.ndim}
        packed = torch.stack([results[name].float() for name in self._numbers])
        if self._packed is None:
            self._packed, self._others = packed, others
        self._packed.copy_(packed)
        for name, leaf in others.items():
            self._others[name].copy_(leaf)
