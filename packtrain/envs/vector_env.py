"""The interface of groups of environments that are stepped together.

Functional cores are in `functional_vector_env.py`, Gymnasium environments in `gymnasium_vector_env.py`, Atari games in
`atari.py`. All use Gymnasium's next-step autoreset: the step after an end ignores its action and returns reward 0 and
the first observation of the next episode. `first` marks those rows, so final observations need not be taken from
`info`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np

from packtrain.envs.validation import Boundary
from packtrain.trees import Tree


class Outcome(NamedTuple):
    """The results of B environments for B actions, as NumPy arrays. Valid until the next send, unless `rows_last`."""

    obs: Tree  # [B, ...]
    first: np.ndarray  # [B] bool
    rewards: dict[str, np.ndarray]  # {channel: [B] float32}, "train" first
    terminated: np.ndarray  # [B] bool
    truncated: np.ndarray  # [B] bool
    solved: np.ndarray | None  # [B] bool, where the environment reports it
    over: np.ndarray | None = None  # [B] bool, a reset follows; None: where terminated or truncated
    life_over: np.ndarray | None = None  # [B] bool, a life ended, including the last of a game; None: no lives
    waiting: np.ndarray | None = None  # [B] bool, its episode is over and it waits for the others; None: none waits
    info: dict[str, Any] = {}  # {name: [B, ...]} further information from the environment
    dropped: np.ndarray | None = None  # [B] bool, the environment failed: the episode ends here and is not counted


class VectorEnv(Protocol):
    """B environments in a fixed order."""

    observation_space: gym.Space
    action_space: gym.Space
    reward_channels: tuple[str, ...]
    boundary: Boundary

    @property
    def savable(self) -> bool:
        """Return whether `snapshot` returns a state."""

    overlaps: bool  # whether environments run while Python executes other code
    rows_last: bool  # whether an outcome's arrays stay valid after the next send
    starting: bool  # whether the current call is a first reset, which may take longer than a step
    times_itself: bool  # whether this class enforces deadlines itself

    @property
    def busy_since(self) -> float | None:
        """Return `time.monotonic()` when the current call began, for the watchdog; None: there is no current call."""

    def reset(self) -> Outcome:
        """Return the first rows; a second reset starts again from the seed."""

    def send(self, actions: Tree) -> None:
        """Start one step."""

    def recv(self) -> Outcome:
        """Wait for that step and return its outcome."""

    def snapshot(self) -> Tree | None:
        """Return the complete state, as arrays and JSON values; None if the environments cannot be saved."""

    def restore(self, snapshot: Tree) -> None:
        """Restore a snapshot; the next call is send."""

    def describe_busy(self) -> str:
        """Return which environment the current call is waiting for, as far as it is known."""

    def picture(self, column: int) -> np.ndarray:
        """Return an image of one environment, uint8 [H, W, 3]; the first request must be between reset and send.

        Raises:
          EnvSetupError: it cannot be drawn.
        """

    def pictures_per_second(self) -> float:
        """Return the frame rate for films in steps per second."""

    def close(self) -> None:
        """Free all resources."""


class Unsaved:
    """Vector environment that cannot be saved: a resumed run begins new episodes."""

    savable = False

    def snapshot(self) -> None:
        """Return None."""

    def restore(self, snapshot: Any) -> None:
        """Raise a NotImplementedError: there is no snapshot."""
        raise NotImplementedError(f"{type(self).__name__} cannot be restored")
