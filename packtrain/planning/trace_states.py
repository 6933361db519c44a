"""The states of a recorded episode: numbers, arrays, texts, small pictures, and what the environment itself would do.

Real states and states of the model are the same node if the model gives them the same key. In a learned model a state
is its observation. Where the environment is deterministic and small, its exact graph says which predictions are right.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from packtrain import trees
from packtrain.envs.functional import Core
from packtrain.envs.picture import drawn
from packtrain.envs.state_graph import StateGraph
from packtrain.errors import ConfigError, EnvSetupError, Error
from packtrain.hashing import digest, observation_keys, state_action_keys
from packtrain.planning.learned import EnsembleModel
from packtrain.planning.model import Model
from packtrain.planning.nodes import NO_NODE
from packtrain.trees import Tree

STATE_BYTES = 1 << 26  # of one episode; model steps after that are left out: pictures are large
PICTURE_SIDE = 96  # pixels of the longer side
TEXT_LENGTH = 4_000  # characters of a state's text
_MOST_EXACT = 200_000  # states of an environment whose exact graph is computed


class View(NamedTuple):
    """How the states of a run are identified, drawn and checked."""

    keys: Callable[[Tree], np.ndarray]  # of states as the model sees them: equal for equal states
    learned: EnsembleModel | None = None
    text: Callable[[Tree], str] | None = None  # of a simulator state [1, ...]
    picture: Callable[[Tree], np.ndarray] | None = None  # uint8 [H, W, 3]
    truth: Truth | None = None  # None: predictions are compared with the steps of the episode only
    actions: tuple[str, ...] = ()  # names of actions, if the environment has them


def plain_keys(states: Tree) -> np.ndarray:
    """Return digests of all leaves that are not objects, [N]; the number of states N tells them apart without any."""
    plain = [leaf for leaf in trees.flatten(states) if leaf.dtype != object]
    return digest(plain) if plain else np.zeros(len(trees.front(states)), np.uint64)


def view_of(core: Core, model: Model, texts: bool, pictures: bool, lenient: bool, name: str) -> View:
    """Return the view of a run that plans in a model of an environment.

    Args:
      core: the environment.
      model: that searches step.
      texts: write states as the environment renders them as text.
      pictures: write small pictures.
      lenient: leave out what the environment cannot render; False: raise a ConfigError.
      name: of the environment, for errors.
    """
    learned = model if isinstance(model, EnsembleModel) else None
    render = getattr(core, "render", None)
    for kind, wanted in (("texts", texts), ("pictures", pictures)):
        if wanted and render is None and not lenient:
            what = "text rendering" if kind == "texts" else "pictures"
            raise ConfigError(f"TraceCallback.{kind} = True: {name} has no {what}")
    text = picture = None
    if render is not None and texts:

        def text(states: Tree) -> str:
            return str(render(states, "ansi"))

    if render is not None and pictures:

        def picture(states: Tree) -> np.ndarray:
            return drawn(name, lambda: render(states, "rgb_array"))

    keys = plain_keys if learned is None else learned.keys
    truth = None if learned is None else Truth(core)
    return View(keys, learned, text, picture, truth, tuple(getattr(core, "action_names", ())))


class Truth:
    """The exact transitions of a small deterministic environment, by observations."""

    def __init__(self, core: Core):
        self._core = core

    @cached_property
    def _graph(self) -> StateGraph | None:
        """Return the graph; None if the environment is random, has several starts or is too large."""
        try:
            graph = StateGraph(self._core, _MOST_EXACT)
            graph.from_observations(self._core.observe(trees.map(lambda leaf: leaf[:1], graph.states)))
        except EnvSetupError:
            return None
        return graph

    def simulator_state(self, obs: np.ndarray) -> Tree | None:
        """Return the simulator's state [1, ...] with this observation; None if there is none or it is unknown."""
        if self._graph is None:
            return None
        number = int(self._numbers(self._graph, obs[None])[0])
        return None if number == NO_NODE else trees.map(lambda leaf: leaf[number : number + 1], self._graph.states)

    def _numbers(self, graph: StateGraph, obs: np.ndarray) -> np.ndarray:
        return graph.from_observations(obs.astype(self._core.observation_space.dtype) + 0)  # −0 becomes 0

    def after(self, obs: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return what actions really lead to from observations [M]; None if the environment has no small graph.

        Returns:
          [M] bool, whether the observation exists; [M, ...] the next observations; [M] bool, whether the episode ends.
        """
        if self._graph is None or not len(obs):
            return None
        number = self._numbers(self._graph, obs)
        to = self._graph.edges[np.maximum(number, 0), actions]
        after = self._core.observe(trees.map(lambda leaf: leaf[to], self._graph.states))
        return number != NO_NODE, np.asarray(after, np.float32), self._graph.terminated[to]


@dataclass
class EpisodeStates:
    """Numbered states of one episode. Equal states have one number."""

    view: View
    numbers: dict[int, int] = field(default_factory=dict)  # key → number
    kept: dict[int, Tree] = field(default_factory=dict)  # number → state [1, ...], as the model sees it
    real: dict[int, Tree] = field(default_factory=dict)  # number → the simulator's state [1, ...]
    bytes: int = 0

    @property
    def full(self) -> bool:
        """Return whether the limit of bytes is reached."""
        return self.bytes >= STATE_BYTES

    def add(self, key: int, states: Tree, index: int, simulator: Tree = None) -> int:
        """Return the number of a state, which is added if it is new.

        Args:
          key: of the state.
          states: [N, ...] as the model sees them.
          index: of the state.
          simulator: [N, ...] the simulator's states, where they are known.
        """
        number = self.numbers.setdefault(key, len(self.numbers))
        if number not in self.kept:
            self.kept[number] = one = _one(states, index)
            self.bytes += sum(leaf.nbytes for leaf in trees.flatten(one) if leaf.dtype != object)
        if simulator is not None and number not in self.real:
            self.real[number] = _one(simulator, index)
        return number

    def arrays(self, number: int) -> dict[str, np.ndarray]:
        """Return the arrays of a state by their names, without objects and what a learned model adds."""
        state = self.kept[number]
        state = {"obs": state["obs"]} if self.view.learned is not None else state
        leaves = trees.named_leaves(trees.map(lambda leaf: leaf[0], state))
        return {name or "state": leaf for name, leaf in leaves.items() if np.asarray(leaf).dtype != object}

    def simulator_state(self, number: int) -> Tree | None:
        """Return the simulator's state [1, ...]; None where it is unknown, or no state has this observation."""
        if number in self.real:
            return self.real[number]
        if self.view.learned is None:
            return self.kept.get(number)
        if self.view.truth is None or number not in self.kept:
            return None
        return self.view.truth.simulator_state(self.kept[number]["obs"][0])

    def text(self, number: int) -> str | None:
        """Return the text of a state, if there is one."""
        state = self.simulator_state(number) if self.view.text is not None else None
        return None if state is None or self.view.text is None else self.view.text(state)[:TEXT_LENGTH]

    def picture(self, number: int) -> str | None:
        """Return a small PNG of a state in base64, if there is one."""
        state = self.simulator_state(number) if self.view.picture is not None else None
        if state is None or self.view.picture is None:
            return None
        try:
            return base64.b64encode(small_png(self.view.picture(state))).decode()
        except Error:  # such as a missing package; a trace without pictures is a trace
            self.view = self.view._replace(picture=None)
            return None

    def check_edges(self, source: np.ndarray, target: np.ndarray, action: np.ndarray) -> dict[str, list[Any]]:
        """Return what is known about edges of a learned model [E]: {} in the environment itself.

        Args:
          source: [E] numbers of states, NO_NODE: unknown.
          target: [E] likewise.
          action: [E].

        Returns:
          "verified": whether the real transition replaces the prediction in all episodes; and "truth": the number of
          the state that the action really leads to, None where that is unknown.
        """
        learned, found = self.view.learned, dict[str, list[Any]]()
        known = np.flatnonzero(source != NO_NODE)
        if learned is None or not len(known):
            return found
        obs = np.concatenate([self.kept[number]["obs"] for number in source[known].tolist()])
        taken = np.asarray(action)[known]
        if learned.verified is not None:
            keys = state_action_keys(observation_keys(obs), taken, np.zeros(len(taken), np.int64))
            verified = np.zeros(len(source), bool)
            verified[known] = learned.verified.find(keys) != NO_NODE
            found["verified"] = verified.tolist()
        after = None if self.view.truth is None else self.view.truth.after(obs, taken)
        if after is not None:
            exists, seen, _ = after
            keys, states = observation_keys(seen), {"obs": seen}
            truth: list[int | None] = [None] * len(source)
            for place, edge in enumerate(known.tolist()):
                if exists[place]:
                    truth[edge] = self.add(int(keys[place]), states, place)
            found["truth"] = truth
        return found


def _one(states: Tree, index: int) -> Tree:
    return trees.map(lambda leaf: leaf[index : index + 1].copy(), states)


def small_png(picture: np.ndarray) -> bytes:
    """Return an image uint8 [H, W, 3] as a PNG of at most PICTURE_SIDE pixels a side; equal blocks become pixels."""
    for block in (16, 8, 4, 2):
        if not (picture.shape[0] % block or picture.shape[1] % block):
            small = picture[::block, ::block]
            if np.array_equal(small.repeat(block, axis=0).repeat(block, axis=1), picture):
                picture = small
                break
    step = -(-max(picture.shape[:2]) // PICTURE_SIDE)
    rows = np.ascontiguousarray(picture[::step, ::step])
    height, width = rows.shape[:2]
    raw = np.zeros((height, 1 + 3 * width), np.uint8)
    raw[:, 1:] = rows.reshape(height, -1)
    header = np.array([width, height], ">u4").tobytes() + bytes([8, 2, 0, 0, 0])
    chunks: Sequence[tuple[bytes, bytes]] = (
        (b"IHDR", header),
        (b"IDAT", zlib.compress(raw.tobytes(), 9)),
        (b"IEND", b""),
    )
    parts = [b"\x89PNG\r\n\x1a\n"]
    for name, data in chunks:
        check = zlib.crc32(name + data).to_bytes(4, "big")
        parts += [len(data).to_bytes(4, "big"), name, data, check]
    return b"".join(parts)
