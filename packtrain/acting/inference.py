"""Batched predictions for planners: all requests of a round to one network are answered in one forward pass."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from packtrain import trees
from packtrain.types import Request

Answer = dict[str, np.ndarray]


class Inference:
    """Answers prediction requests with named networks."""

    def __init__(self, networks: dict[str, nn.Module], device: torch.device | str = "cpu"):
        self.networks, self.device = networks, torch.device(device)
        self.requests = self.rows = self.passes = 0  # totals of requests, their rows, and forward passes

    def run(self, asking: Generator[Request, Answer, Any]) -> Any:
        """Run one computation that yields requests, and return its result."""
        return self.run_all([asking])[0]

    def run_all(self, computations: Sequence[Generator[Request, Answer, Any]]) -> list[Any]:
        """Run several computations that yield requests, and return their results in order.

        They advance in rounds: each one yields its next request or returns; then all requests are answered together.
        """
        results: list[Any] = [None] * len(computations)
        waiting: dict[int, Answer | None] = dict.fromkeys(range(len(computations)))
        while waiting:
            asked: dict[int, Request] = {}
            for index, answer in waiting.items():
                try:
                    asked[index] = computations[index].send(answer)  # type: ignore[arg-type]
                except StopIteration as end:
                    results[index] = end.value
            waiting = dict(zip(asked, self.answer(list(asked.values())), strict=True))
        return results

    def answer(self, requests: list[Request]) -> list[Answer]:
        """Return an answer for each request; requests may have different numbers of rows."""
        answers: list[Answer] = [{}] * len(requests)
        for name in dict.fromkeys(request.network for request in requests):
            which = [index for index, request in enumerate(requests) if request.network == name]
            inputs = [requests[index].inputs for index in which]
            together = inputs[0] if len(inputs) == 1 else trees.map(lambda *rows: np.concatenate(rows), *inputs)
            outputs = self._predict(name, together)
            ends = np.cumsum([len(trees.front(one)) for one in inputs])
            for index, begin, end in zip(which, [0, *ends[:-1]], ends, strict=True):
                answers[index] = {head: rows[begin:end] for head, rows in outputs.items()}
            self.requests += len(which)
        return answers

    @torch.inference_mode()
    def _predict(self, name: str, inputs: Any) -> Answer:
        if name not in self.networks:
            raise KeyError(
                f"a planner requested a prediction of network {name!r}, but the networks are {sorted(self.networks)}"
            )
        self.rows += len(trees.front(inputs))
        self.passes += 1
        tensors = trees.map(lambda leaf: torch.from_numpy(np.ascontiguousarray(leaf)).to(self.device), inputs)
        return {head: rows.float().cpu().numpy() for head, rows in self.networks[name](tensors).items()}
