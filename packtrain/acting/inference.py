"""Predictions for whoever asks: all questions of a round to one network are answered with one forward pass."""

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
    """Answers requests with named networks."""

    def __init__(self, networks: dict[str, nn.Module], device: torch.device | str = "cpu"):
        self.networks, self.device = networks, torch.device(device)
        self.requests = self.rows = self.passes = 0  # asked so far, and forward passes made for it

    def run(self, asking: Generator[Request, Answer, Any]) -> Any:
        """The result of one computation that asks."""
        return self.run_all([asking])[0]

    def run_all(self, computations: Sequence[Generator[Request, Answer, Any]]) -> list[Any]:
        """The results of computations that ask, in their order.

        They go on in rounds: each says what it wants to know next, or ends; then all are answered together.
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
        """An answer for each request; rows of different requests need not be equally many."""
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
            raise KeyError(f"a planner asked network {name!r}; there are {sorted(self.networks)}")
        self.rows += len(trees.front(inputs))
        self.passes += 1
        tensors = trees.map(lambda leaf: torch.from_numpy(np.ascontiguousarray(leaf)).to(self.device), inputs)
        return {head: rows.float().cpu().numpy() for head, rows in self.networks[name](tensors).items()}
