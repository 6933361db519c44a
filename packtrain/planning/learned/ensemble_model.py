"""A learned ensemble as a model for planners: it predicts where actions lead and how much its members disagree.

A state is an observation together with the members of the ensemble that its environment uses in this episode. So
environments explore by different predictions. Real transitions may replace predictions (`verified_edges`), and
predictions are kept until the network learns (`cache`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np

from packtrain import trees
from packtrain.arrays import longer
from packtrain.config import configurable
from packtrain.envs.categorical_factors import factors_of
from packtrain.envs.functional import Core
from packtrain.errors import ConfigError, EnvSetupError
from packtrain.hashing import observation_keys, state_action_keys
from packtrain.networks.world_model import Predicts
from packtrain.planning.counter_rng import chance
from packtrain.planning.learned.ensemble_decoding import (
    MOST_CACHED,
    Answer,
    CellDecoder,
    ClassDecoder,
    Decoder,
    DeltaDecoder,
    Guess,
)
from packtrain.planning.learned.transition_table import TransitionTable
from packtrain.planning.model import Asking, Stepped
from packtrain.planning.nodes import NO_NODE, HashTable
from packtrain.trees import Tree
from packtrain.types import Request

NETWORK = "model"
Verified = Literal["graph", "episode", "run"]
_FIRST_ROOM = 1024


@configurable
@dataclass(frozen=True)
class LearnedModel:
    """Settings of an ensemble as a model.

    `verified_edges` says what a real step changes at once, before the network learns from it. "graph", as published:
    where the step leads, in the graph of its own environment and episode; the disagreement about it stays. "episode":
    that disagreement is also set to 0. "run": all environments use the transition, in all later episodes.
    """

    members: int = 8
    mask_size: int | None = 4  # members that an environment uses in an episode; None: all
    verified_edges: Verified = "graph"
    cache: bool = True  # cache predictions until the network learns
    factored: bool = True  # round the coordinates of a factor together; False: one by one, as published
    scaled: bool = False  # divide the disagreement about a coordinate by its range; for models of changes

    def __post_init__(self) -> None:
        if self.members < 1:
            raise ConfigError(f"LearnedModel.members = {self.members} must be at least 1")
        if self.mask_size is not None and not 1 <= self.mask_size <= self.members:
            raise ConfigError(f"LearnedModel.mask_size = {self.mask_size} must lie between 1 and {self.members}")
        if self.verified_edges not in get_args(Verified):
            choices = ", ".join(map(repr, get_args(Verified)))
            raise ConfigError(f"LearnedModel.verified_edges = {self.verified_edges!r} is not one of {choices}")

    def build(
        self, core: Core, seed: int, predicts: Predicts = "changes", runs: int = 1, columns: int = 0
    ) -> EnsembleModel:
        """Return the model; EnvSetupError unless observations fit what the network predicts and actions are discrete.

        Args:
          core: the environment that is modelled; only its spaces and factors are used.
          seed: of random choices.
          predicts: what the network predicts: changes of bounded vectors, classes of factors, or cells of boards.
          runs: number of runs that share the model, each with a network of its own.
          columns: number of environments of all runs together; not needed for one run.
        """
        if not isinstance(core.action_space, gym.spaces.Discrete):
            raise EnvSetupError(f"a learned model needs discrete actions, not {core.action_space}")
        return EnsembleModel(self, core.action_space, self._decoder(core, predicts), seed, runs, columns)

    def _decoder(self, core: Core, predicts: Predicts) -> Decoder:
        space = core.observation_space
        if predicts == "cells":
            _check_boards(core)
            return CellDecoder()
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise EnvSetupError(f"this learned model needs vector observations, not {space}; boards need BoardModel")
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise EnvSetupError(f"a learned model predicts whole numbers between bounds, and {space} has none")
        if predicts == "classes":
            return ClassDecoder(factors_of(core))
        factors = getattr(core, "factors", ()) if self.factored else ()
        return DeltaDecoder(space.low, space.high, factors, self.scaled)


def _check_boards(core: Core) -> None:
    """Raise an EnvSetupError unless each cell of a start observation is of exactly one class."""
    start = np.asarray(core.observe(core.initial(1, np.random.default_rng(0))))
    if start.ndim != 4 or not np.isin(start, (0, 1)).all() or (start.sum(axis=-1) != 1).any():
        raise EnvSetupError(
            f"a model of boards needs observations [height, width, classes] with a single 1 in each cell, and those of "
            f"{type(core).__name__} are different"
        )


class EnsembleModel:
    """Predictions by the mean of some members, for the environments of one run or of several."""

    deterministic = True  # while the network does not learn, equal inputs give equal predictions
    gives_bonus = True

    def __init__(
        self,
        settings: LearnedModel,
        action_space: gym.Space[Any],
        decoder: Decoder,
        seed: int,
        runs: int = 1,
        columns: int = 0,
    ):
        self.action_space: gym.Space[Any] = action_space
        self.runs = runs
        self._each = columns // runs if runs > 1 else 0  # environments per run
        self._decoder = decoder
        self._members = settings.members
        self._size = settings.members if settings.mask_size is None else settings.mask_size
        self._seed = seed
        self._masks = np.zeros((0, self._size), np.int64)
        self.answers = PredictionCache(decoder.prepare, decoder.most_cached) if settings.cache else None
        self.clears_bonus = settings.verified_edges != "graph"  # real steps remove the bonus of their edge
        self.verified = TransitionTable() if settings.verified_edges == "run" else None
        self._version = -1

    def use(self, version: int) -> None:
        """Use the network's weights of this version from now on."""
        if version != self._version and self.answers is not None:
            self.answers.forget()
        self._version = version

    def begin(self, columns: np.ndarray, epoch: int) -> None:
        """Sample the members for new episodes: `mask_size` of them, without replacement."""
        if len(columns) and columns.max() >= len(self._masks):
            more = np.zeros((int(columns.max()) + 1 - len(self._masks), self._size), np.int64)
            self._masks = np.concatenate([self._masks, more])
        drawn = chance(self._seed, epoch, columns[:, None], np.arange(self._members))
        self._masks[columns] = np.sort(drawn.argsort(axis=1)[:, : self._size], axis=1)

    def roots(self, columns: np.ndarray, obs: np.ndarray) -> Tree:
        """Return the model's states for the observations of environments."""
        obs = np.asarray(obs, np.float32)
        return self._states(obs, self._masks[columns], self.run_of(columns))

    def run_of(self, columns: np.ndarray) -> np.ndarray:
        """Return the run that environments [R] belong to, [R]."""
        return columns // self._each if self._each else np.zeros(len(columns), np.int64)

    def _states(self, obs: np.ndarray, masks: np.ndarray, run: np.ndarray) -> dict[str, np.ndarray]:
        return {"obs": obs, "mask": masks, "key": observation_keys(obs), "run": run}

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> Asking[Stepped]:
        """Return the real transition of each state and action if it is known, else the prediction."""
        actions = np.asarray(actions)
        keys = state_action_keys(states["key"], actions, states["run"])
        known = None if self.verified is None else self.verified.find(keys)
        if known is None or (known == NO_NODE).all():
            return self._stepped(states, (yield from self._guess(states, actions, keys)))
        blank = (np.zeros(len(actions), dtype) for dtype in (np.float32, bool, np.float32))
        guess = Guess(np.empty(states["obs"].shape, np.float32), *blank)
        unknown = (known == NO_NODE).nonzero()[0]
        if len(unknown):
            some = {name: leaf[unknown] for name, leaf in states.items()}
            for whole, part in zip(guess, (yield from self._guess(some, actions[unknown], keys[unknown])), strict=True):
                whole[unknown] = part
        sure = (known != NO_NODE).nonzero()[0]
        assert self.verified is not None
        real = self.verified.take(known[sure])
        for whole, known_part in zip(guess, (real.after, real.reward, real.terminated, 0.0), strict=True):
            whole[sure] = known_part
        return self._stepped(states, guess)

    def guess(self, states: Tree, actions: Any) -> Asking[Stepped]:
        """Return the ensemble's prediction for each state and action, even if the real transition is known."""
        actions = np.asarray(actions)
        keys = state_action_keys(states["key"], actions, states["run"])
        return self._stepped(states, (yield from self._guess(states, actions, keys)))

    def _guess(self, states: Tree, actions: np.ndarray, keys: np.ndarray) -> Asking[Guess]:
        inputs: Tree = {"obs": states["obs"], "action": actions}
        if self.runs > 1:
            inputs = {"inputs": inputs, "run": states["run"]}
        if self.answers is not None:
            kept, rows = yield from self.answers.ask(NETWORK, keys, inputs)
        else:
            kept, rows = self._decoder.prepare((yield Request(NETWORK, inputs))), np.arange(len(keys))
        return self._decoder.decode(states["obs"], kept, rows, states["mask"])

    def _stepped(self, states: Tree, guess: Guess) -> Stepped:
        after = self._states(guess.obs, states["mask"], states["run"])
        solved = guess.terminated & (guess.reward > 0)
        return Stepped(after, guess.reward, guess.terminated, solved, guess.bonus)

    def observe(self, states: Tree) -> Tree:
        """Return the observations, with their runs if there are several."""
        return states["obs"] if self.runs == 1 else {"inputs": states["obs"], "run": states["run"]}

    def keys(self, states: Tree) -> np.ndarray:
        """Return digests of the observations; the members are the same within an environment's episode."""
        keys: np.ndarray = states["key"]
        return keys

    def legal(self, states: Tree) -> np.ndarray | None:
        """Return None: the model predicts no legal actions."""
        return None


class PredictionCache:
    """The network's predictions by 64-bit keys of their inputs. The owner clears it when the network learns."""

    def __init__(self, prepare: Callable[[Answer], Answer], most: int = MOST_CACHED):
        """Create an empty cache.

        Args:
          prepare: returns the part of an answer to keep.
          most: number of predictions kept; when there are more, all are dropped.
        """
        self._prepare, self._most = prepare, most
        self.asked = self.passed_on = 0  # predictions requested so far, and those that the network had to make
        self.forget()

    def forget(self) -> None:
        """Drop all predictions."""
        self._table = HashTable()
        self._known: Answer = {}
        self._count = self._room = 0

    def ask(self, network: str, keys: np.ndarray, inputs: Tree) -> Asking[tuple[Answer, np.ndarray]]:
        """Return the predictions for M inputs; only new inputs are sent to the network, each once.

        Args:
          network: its name.
          keys: [M] uint64, equal for equal inputs.
          inputs: [M, ...].

        Returns:
          All prepared predictions, {name: [..., ...]}; [M] the rows of those that were asked for.
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
            except BaseException:  # no answer: the keys are in the table already and would count as answered
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
