"""A learned ensemble behind the planners' face: it guesses where actions lead, and says how much its members disagree.

A state is an observation, and the members that this column listens to in this episode, which travel with it: so columns
explore by different opinions, and no opinion is shared by accident. What has really been seen may go before what is
guessed (`verified_edges`), and answers are kept until the network learns something new (`cache`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np

from packtrain.config import configurable
from packtrain.envs.factors import factors_of
from packtrain.envs.functional import Core
from packtrain.errors import ConfigError, EnvSetupError
from packtrain.planning.answers import Answers
from packtrain.planning.chance import chance
from packtrain.planning.decoders import ClassDecoder, Decoder, DeltaDecoder, Guess
from packtrain.planning.model import Asking, Stepped
from packtrain.planning.table import NOBODY
from packtrain.planning.verified import VerifiedEdges, observation_keys, questions
from packtrain.trees import Tree
from packtrain.types import Request

NETWORK = "model"
Verified = Literal["graph", "episode", "run"]


@configurable
@dataclass(frozen=True)
class LearnedModel:
    """How an ensemble's guesses become states.

    `verified_edges` says what a real step teaches at once, before the network learns from it. "graph", the published
    way: where the step led, in the graph of its own column and episode; the disagreement about it stays. "episode":
    that disagreement is cleared too. "run": all columns know it, in all episodes to come.
    """

    members: int = 8
    mask_size: int | None = 4  # members that a column listens to in an episode; None: all
    verified_edges: Verified = "graph"
    cache: bool = True  # keep answers until the network learns
    factored: bool = True  # round coordinates that belong together, together; False: one by one, as published
    scaled: bool = False  # disagreement about a coordinate as a share of its range; of models of changes

    def __post_init__(self) -> None:
        if self.members < 1:
            raise ConfigError(f"LearnedModel.members = {self.members} must be at least 1")
        if self.mask_size is not None and not 1 <= self.mask_size <= self.members:
            raise ConfigError(f"LearnedModel.mask_size = {self.mask_size} must lie between 1 and {self.members}")
        if self.verified_edges not in get_args(Verified):
            choices = ", ".join(map(repr, get_args(Verified)))
            raise ConfigError(f"LearnedModel.verified_edges = {self.verified_edges!r} is not one of {choices}")

    def build(self, core: Core, seed: int, classes: bool = False, runs: int = 1, columns: int = 0) -> EnsembleModel:
        """The model; EnvSetupError unless observations are bounded vectors and actions are a choice.

        Args:
          core: the world that is modelled: only what it shows is looked at.
          seed: of what is drawn.
          classes: the network guesses classes of factors, not changes.
          runs: how many runs share it, each with a network of its own.
          columns: of all runs together; not needed for one.
        """
        space = core.observation_space
        bounded = isinstance(space, gym.spaces.Box) and len(space.shape) == 1
        if not bounded or not isinstance(core.action_space, gym.spaces.Discrete):
            raise EnvSetupError(
                f"a learned model needs a vector to look at and a choice of actions, not {space} and "
                f"{core.action_space}"
            )
        assert isinstance(space, gym.spaces.Box)
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise EnvSetupError(f"a learned model guesses whole numbers between bounds, and {space} has none")
        decoder: Decoder
        if classes:
            decoder = ClassDecoder(factors_of(core))
        else:
            factors = getattr(core, "factors", ()) if self.factored else ()
            decoder = DeltaDecoder(space.low, space.high, factors, self.scaled)
        return EnsembleModel(self, core.action_space, decoder, seed, runs, columns)


class EnsembleModel:
    """Guesses by the mean of some members, for the columns of one run or of several."""

    deterministic = True  # as long as nobody trains it: within an episode it says the same twice
    gives_bonus = True

    def __init__(
        self,
        settings: LearnedModel,
        action_space: gym.Space,
        decoder: Decoder,
        seed: int,
        runs: int = 1,
        columns: int = 0,
    ):
        self.action_space: gym.Space = action_space
        self.runs = runs
        self._each = columns // runs if runs > 1 else 0  # columns of a run
        self._decoder = decoder
        self._members = settings.members
        self._size = settings.members if settings.mask_size is None else settings.mask_size
        self._seed = seed
        self._masks = np.zeros((0, self._size), np.int64)
        self.answers = Answers(decoder.prepare) if settings.cache else None
        self.clears_bonus = settings.verified_edges != "graph"  # of what was tried
        self.verified = VerifiedEdges() if settings.verified_edges == "run" else None
        self._version = -1

    def use(self, version: int) -> None:
        """The network is of this version from now on."""
        if version != self._version and self.answers is not None:
            self.answers.forget()
        self._version = version

    def begin(self, columns: np.ndarray, epoch: int) -> None:
        """New episodes listen to new members: `mask_size` of them, without replacement."""
        if len(columns) and columns.max() >= len(self._masks):
            more = np.zeros((int(columns.max()) + 1 - len(self._masks), self._size), np.int64)
            self._masks = np.concatenate([self._masks, more])
        drawn = chance(self._seed, epoch, columns[:, None], np.arange(self._members))
        self._masks[columns] = np.sort(drawn.argsort(axis=1)[:, : self._size], axis=1)

    def roots(self, columns: np.ndarray, obs: np.ndarray) -> Tree:
        """The states in which columns are, as the model sees them."""
        obs = np.asarray(obs, np.float32)
        return self._states(obs, self._masks[columns], self.run_of(columns))

    def run_of(self, columns: np.ndarray) -> np.ndarray:
        """Which run columns belong to, [R]."""
        return columns // self._each if self._each else np.zeros(len(columns), np.int64)

    def _states(self, obs: np.ndarray, masks: np.ndarray, run: np.ndarray) -> dict[str, np.ndarray]:
        return {"obs": obs, "mask": masks, "key": observation_keys(obs), "run": run}

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> Asking[Stepped]:
        """What is known of each state and action, else a guess."""
        actions = np.asarray(actions)
        keys = questions(states["key"], actions, states["run"])
        known = None if self.verified is None else self.verified.find(keys)
        if known is None or (known == NOBODY).all():
            return self._stepped(states, (yield from self._guess(states, actions, keys)))
        count, width = states["obs"].shape
        blank = (np.zeros(count, dtype) for dtype in (np.float32, bool, np.float32))
        guess = Guess(np.empty((count, width), np.float32), *blank)
        unknown = (known == NOBODY).nonzero()[0]
        if len(unknown):
            some = {name: leaf[unknown] for name, leaf in states.items()}
            for whole, part in zip(guess, (yield from self._guess(some, actions[unknown], keys[unknown])), strict=True):
                whole[unknown] = part
        sure = (known != NOBODY).nonzero()[0]
        assert self.verified is not None
        edges = self.verified.take(known[sure])
        for whole, real in zip(guess, (edges.after, edges.reward, edges.terminated, 0.0), strict=True):
            whole[sure] = real
        return self._stepped(states, guess)

    def guess(self, states: Tree, actions: Any) -> Asking[Stepped]:
        """What the ensemble says of each state and action, whatever is known of them."""
        actions = np.asarray(actions)
        keys = questions(states["key"], actions, states["run"])
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
        """States are observations."""
        return states["obs"] if self.runs == 1 else {"inputs": states["obs"], "run": states["run"]}

    def keys(self, states: Tree) -> np.ndarray:
        """A digest of the observation: within a column and an episode the members are the same."""
        return states["key"]

    def legal(self, states: Tree) -> np.ndarray | None:
        """Nobody knows."""
        return None
