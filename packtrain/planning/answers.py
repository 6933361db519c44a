"""A network's answers by question, kept as long as the network stays as it is: states are met again and again."""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np

from packtrain import trees
from packtrain.arrays import longer
from packtrain.planning.table import Table
from packtrain.trees import Tree
from packtrain.types import Request

Answer = dict[str, np.ndarray]
_FIRST_ROOM = 1024


class Answers:
    """What a network has answered, by 64-bit keys of the questions. The owner says when to forget: when it learns."""

    def __init__(self, prepare: Callable[[Answer], Answer], most: int = 400_000):
        """Nothing is known.

        Args:
          prepare: makes of an answer what is kept of it.
          most: questions kept; when there are more, all are forgotten.
        """
        self._prepare, self._most = prepare, most
        self.asked = self.passed_on = 0  # questions put so far, and those that the network had to answer
        self.forget()

    def forget(self) -> None:
        """The network has learned something: what it said before is worth nothing."""
        self._table = Table()
        self._known: Answer = {}
        self._count = self._room = 0

    def ask(
        self, network: str, keys: np.ndarray, inputs: Tree
    ) -> Generator[Request, Answer, tuple[Answer, np.ndarray]]:
        """The answers to M questions; only new ones are put to the network, each once.

        Args:
          network: its name.
          keys: [M] uint64, equal for equal questions.
          inputs: [M, ...].

        Returns:
          What is kept of all answers, {name: [..., ...]}; [M] the rows of it that are the answers wanted.
        """
        if self._count + len(keys) > self._most:
            self.forget()
        found, places = self._table.enter(keys)
        new = (found < 0).nonzero()[0]
        self.asked += len(keys)
        if len(new):
            first = ~found.take(new)
            made = new.compress(first == new)
            self.passed_on += len(made)
            try:
                answer = yield Request(network, trees.map(lambda leaf: leaf.take(made, axis=0), inputs))
                rows = self._store(self._prepare(answer), len(made))
            except BaseException:  # nobody answered: the questions are entered, and would count as answered
                self.forget()
                raise
            self._table.give(places.take(made), rows)
            found[made] = rows
            found[new] = found.take(first)
        return self._known, found

    def _store(self, answer: Answer, count: int) -> np.ndarray:
        end = self._count + count
        if end > self._room:
            self._room = max(end, 2 * self._room, _FIRST_ROOM)
            blank = self._known or {head: np.empty((0, *rows.shape[1:]), rows.dtype) for head, rows in answer.items()}
            self._known = {head: longer(values, self._room) for head, values in blank.items()}
        rows = np.arange(self._count, end)
        for head, values in answer.items():
            self._known[head][rows] = values
        self._count = end
        return rows
