"""Groups of environments stepped together: the face that streams see, whatever stands behind it.

Functional cores are in `functional_columns.py`, Gymnasium environments in `gymnasium_columns.py`, Atari games in
`atari.py`. All keep Gymnasium's next-step autoreset: the step after an end drops its action, gives reward 0 and the
first observation of the next episode. `first` marks those rows, so nobody needs to look for final observations in
`info`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np

from packtrain.envs.boundary import Boundary
from packtrain.trees import Tree


class Outcome(NamedTuple):
    """What B environments answered to B actions, as NumPy arrays. Valid until the next send, unless rows last."""

    obs: Tree  # [B, ...]
    first: np.ndarray  # [B] bool
    rewards: dict[str, np.ndarray]  # {channel: [B] float32}, "train" first
    terminated: np.ndarray  # [B] bool
    truncated: np.ndarray  # [B] bool
    solved: np.ndarray | None  # [B] bool, where the environment reports it
    over: np.ndarray | None = None  # [B] bool, a reset follows; None: wherever terminated or truncated
    life_over: np.ndarray | None = None  # [B] bool, a life ended, the last of a game included; None: no lives
    waiting: np.ndarray | None = None  # [B] bool, its episode is over and it waits for the others; None: nobody waits
    info: dict[str, Any] = {}  # {name: [B, ...]} what the environment tells beside


class Columns(Protocol):
    """B environments side by side, always in the same order."""

    observation_space: gym.Space
    action_space: gym.Space
    reward_channels: tuple[str, ...]
    boundary: Boundary

    @property
    def savable(self) -> bool:
        """Whether `snapshot` gives anything."""

    overlaps: bool  # whether environments run while Python does something else
    rows_last: bool  # whether an outcome is sure to outlive the next send
    starting: bool  # whether the call under way is a first reset, which may take longer than a step
    times_itself: bool  # whether waits for environments have deadlines of their own

    @property
    def busy_since(self) -> float | None:
        """`time.monotonic()` when the call under way began, for the watchdog; None: no call is under way."""

    def reset(self) -> Outcome:
        """The first rows, from the seed: a second reset begins the same stream again."""

    def send(self, actions: Tree) -> None:
        """Start one step."""

    def recv(self) -> Outcome:
        """Wait for that step."""

    def snapshot(self) -> Tree | None:
        """Everything needed to go on from here, as arrays and JSON values; None if the environments cannot."""

    def restore(self, snapshot: Tree) -> None:
        """Go back to a snapshot; the next call is send."""

    def describe_busy(self) -> str:
        """Who the call under way is waiting for, as far as that can be told from outside."""

    def picture(self, column: int) -> np.ndarray:
        """What a person would see of one environment now, uint8 [H, W, 3]; first asked for between reset and send.

        Raises:
          EnvSetupError: it cannot be drawn.
        """

    def pictures_per_second(self) -> float:
        """How fast steps go by when a person looks on."""

    def close(self) -> None:
        """Free what is held."""


class Unsaved:
    """What columns are that cannot be saved: a run that goes on begins new episodes."""

    savable = False

    def snapshot(self) -> None:
        """There is none."""

    def restore(self, snapshot: Any) -> None:
        """Never called: there is no snapshot."""
        raise NotImplementedError(f"{type(self).__name__} cannot be restored")
