"""Pictures of planned episodes: one episode step by step, and transitions that the learned model predicted wrongly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packtrain import trees
from packtrain.config import configurable
from packtrain.envs.picture import drawn
from packtrain.errors import ConfigError, Error, Seldom
from packtrain.hashing import digest
from packtrain.metrics.contact_sheet import Tile, contact_sheet
from packtrain.metrics.heat_map import write_png
from packtrain.planning.learned.action_predictions import ActionPredictions
from packtrain.trees import Tree

ERRORS = ("false_reward", "false_loop", "wrong")  # flags of a step that have pictures: see `PlannerPolicy.marks`
WORDS = {"wrong": "wrong", "false_loop": "false loop", "false_reward": "false reward", "verified": "verified"}
WORDS |= {"random": "random"}
LONGEST = 200  # steps of a pictured episode; later ones are left out


@partial(configurable, module="packtrain")
@dataclass(frozen=True)
class PictureCallback:
    """Writes pictures of planned episodes, and of the learned model's errors, to RUN/pictures."""

    rollout_every: int = 0  # epochs between pictures of an episode of the first environment, step by step; 0: none
    errors_every: int = 0  # epochs between pictures of wrongly predicted transitions; 0: none
    most: int = 50  # transitions of one picture of errors, those that occurred first

    def __post_init__(self) -> None:
        for name, least in (("rollout_every", 0), ("errors_every", 0), ("most", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"PictureCallback.{name} = {getattr(self, name)} must be at least {least}")


class Seen(NamedTuple):
    """The first environment in one step of the pictured episode."""

    picture: np.ndarray
    action: int
    predicted: ActionPredictions | None  # of the learned model in this state
    words: list[str]  # flags of the step


class EpisodePictures:
    """Collects the steps of an epoch, and writes its pictures when all of its episodes have ended."""

    def __init__(self, settings: PictureCallback, core: Any, folder: Path):
        self._settings, self._folder, self._core = settings, folder, core
        if not hasattr(core, "render"):
            name = type(getattr(core, "unwrapped", core)).__name__
            raise ConfigError(f"PictureCallback: {name} cannot be drawn, because it has no method render(states, mode)")
        self._before: tuple[Tree, np.ndarray] | None = None  # states, actions
        self._names = tuple(getattr(core, "action_names", ()))
        self._refused = Seldom()
        self.begin_epoch(0)

    def begin_epoch(self, epoch: int) -> None:
        """Collect the steps of another epoch, whose number among all epochs of the run is given."""
        self._epoch, self._episode, self._recording = epoch, list[Seen](), False
        self._errors: dict[str, dict[tuple[int, int], list[Any]]] = {name: {} for name in ERRORS}

    @property
    def follows(self) -> bool:
        """Whether an episode of this epoch is pictured, with the predictions for all actions."""
        return self._due(self._settings.rollout_every)

    def _due(self, every: int) -> bool:
        return every > 0 and self._epoch % every == 0

    def look(
        self,
        states: Tree,
        first: np.ndarray,
        acted: np.ndarray,
        actions: np.ndarray,
        marks: Mapping[str, np.ndarray],
        predicted: ActionPredictions | None,
    ) -> None:
        """Record a step of B environments.

        Args:
          states: [B, ...] of the simulator.
          first: [B] bool, whether an episode begins there.
          acted: [B] bool, whether a step of an episode led there.
          actions: [B] that are taken there.
          marks: {name: bool [B]} flags of the step that led there.
          predicted: predictions for all actions before that step, in the first environment; None: none.
        """
        before, self._before = self._before, (states, np.array(actions))
        if before is not None:
            self._note(before, states, acted, marks, predicted)
        if self.follows:
            self._follow(states, bool(first[0]), int(actions[0]))

    def _note(
        self,
        before: tuple[Tree, np.ndarray],
        states: Tree,
        acted: np.ndarray,
        marks: Mapping[str, np.ndarray],
        predicted: ActionPredictions | None,
    ) -> None:
        """Store the flags of a step: of the pictured episode, and of transitions that were wrongly predicted."""
        if self._recording and self._episode and acted[0]:
            words = [word for name, word in WORDS.items() if name in marks and marks[name][0]]
            self._episode[-1] = self._episode[-1]._replace(words=words, predicted=predicted)
        if not self._due(self._settings.errors_every):
            return
        for name in ERRORS:
            for column in np.flatnonzero(marks[name] & acted) if name in marks else ():
                one, after = (trees.map(lambda leaf, c=column: leaf[c : c + 1], tree) for tree in (before[0], states))
                key = (int(digest(one)[0]), int(before[1][column]))
                known = self._errors[name]
                if key in known:
                    known[key][2] += 1
                elif len(known) < self._settings.most:
                    known[key] = [one, after, 1]

    def _follow(self, states: Tree, first: bool, action: int) -> None:
        """Append the state of the first environment, from the first row of its first episode of the epoch on."""
        self._recording = self._recording or (first and not self._episode)
        if self._recording and len(self._episode) < LONGEST and not (first and self._episode):
            self._episode.append(Seen(self._picture(trees.map(lambda leaf: leaf[:1], states)), action, None, []))
        elif self._episode:
            self._recording = False

    def write(self) -> None:
        """Write the pictures of the epoch, and forget its steps."""
        sheets = {"rollout": [self._step_tile(number, seen) for number, seen in enumerate(self._episode)]}
        for name, known in self._errors.items():
            sheets[name] = [self._error_tile(action, *parts) for (_, action), parts in known.items()]
        for name, tiles in sheets.items():
            if tiles:
                try:
                    self._folder.mkdir(parents=True, exist_ok=True)
                    write_png(self._folder / f"{name}-{self._epoch}.png", contact_sheet(tiles))
                except (OSError, Error) as error:
                    self._refused.warn(f"{error}; the run goes on without that picture")
        self._before = None
        self.begin_epoch(self._epoch)

    def _step_tile(self, number: int, seen: Seen) -> Tile:
        words = [f"{number} {self._name(seen.action)}", *seen.words]
        if seen.predicted is not None:
            loop, rewards, ended, bonus = seen.predicted
            for action, reward in enumerate(rewards):
                doubt = [] if bonus is None else [f"{bonus[action]:.2f}"]
                flags = ["loop"] * bool(loop[action]) + ["reward"] * bool(reward > 0) + ["end"] * bool(ended[action])
                words.append(" ".join([self._name(action), *doubt, *flags]))
        return Tile([seen.picture], words)

    def _error_tile(self, action: int, before: Tree, after: Tree, count: int) -> Tile:
        return Tile([self._picture(before), self._picture(after)], [f"{self._name(action)} {count}"])

    def _name(self, action: int) -> str:
        return self._names[action].replace("→", "-") if self._names else str(action)

    def _picture(self, state: Tree) -> np.ndarray:
        return drawn(type(self._core).__name__, lambda: self._core.render(state, "rgb_array"))
