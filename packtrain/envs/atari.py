"""Atari games through ALE's own vector environment: native threads, single frames, next-step autoreset.

Frames are stacked and rewards clipped by the learner, not here. A lost life is `terminated` without a reset: the game,
its return and the recurrent state continue (docs/atari.md).
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np

from packtrain import check, knobs
from packtrain.config import configurable
from packtrain.cpu_count import available_cores
from packtrain.envs.validation import Answer, Boundary
from packtrain.envs.vector_env import Outcome, Unsaved
from packtrain.errors import ConfigError, EnvError, EnvSetupError, MissingExtraError

PLAYING_NICENESS = 5
SCREEN = (210, 160)  # height, width of the console's screen
FRAMES_PER_SECOND = 60
FIRE = 1  # index of FIRE in every action set that has it
ATARI_ID = re.compile(r"ALE/\w+-v5|\w+NoFrameskip-v[04]")


class Game(NamedTuple):
    """What an environment id implies: the game's ROM and the default protocol."""

    rom: str
    protocol: Literal["classic", "sticky"]
    sticky_actions: float


@configurable
@dataclass(frozen=True)
class Atari:
    """How Atari games are played. Fields that are None follow the protocol, and the protocol follows the id.

    classic (PongNoFrameskip-v4; Mnih et al. 2015): the game's own actions, no-ops at the start, FIRE at the start and
    after each lost life, a lost life terminates, no sticky actions.
    sticky (ALE/Pong-v5; Machado et al. 2018): all 18 actions, sticky actions 0.25, full games as episodes, no actions
    at the start.
    """

    protocol: Literal["classic", "sticky"] | None = None
    sticky_actions: float | None = None  # probability that the emulator repeats the previous action; 0, or 0.25
    full_action_space: bool | None = None  # all 18 actions, or those the game uses
    life_loss: bool | None = None  # whether a lost life is a termination
    noop_max: int | None = None  # exclusive upper bound of the number of no-op frames at the start of a game
    fire_reset: bool | None = None  # press FIRE at the start of a game, and in the step after a lost life
    frame_skip: int = 4  # frames per step; observations are the maximum of the last two
    frame_size: int = 84  # height and width of observations in pixels
    max_frames: int = 108_000  # emulator frames of play after which a game is truncated: 30 minutes
    num_threads: int | None = None  # native threads, or processes, per group; None: its share of the cores
    # Let River Raid's planes wait until their first input; False: the first no-op is replaced by an input.
    idle_start: bool = True

    def __post_init__(self) -> None:
        check.at_least(self, 1, "frame_skip", "frame_size", "max_frames", "num_threads")
        if self.sticky_actions is not None and not 0 <= self.sticky_actions < 1:
            raise ConfigError(f"Atari.sticky_actions = {self.sticky_actions} must lie in [0, 1)")
        check.not_negative(self, "noop_max")

    def resolve(self, game: Game) -> Atari:
        """Return the settings with every None replaced by the protocol's value."""
        protocol = self.protocol or game.protocol
        classic = protocol == "classic"
        sticky = game.sticky_actions if classic and self.protocol is None else 0.0 if classic else 0.25
        defaults: dict[str, Any] = {
            "protocol": protocol,
            "sticky_actions": sticky,
            "full_action_space": not classic,
            "life_loss": classic,
            "noop_max": 30 if classic else 0,
            "fire_reset": classic,
        }
        return replace(self, **{name: value for name, value in defaults.items() if getattr(self, name) is None})


def is_atari(name: str) -> bool:
    """Return whether an id denotes an Atari game in one of the two spellings."""
    return ATARI_ID.fullmatch(name) is not None


def find_game(name: str) -> Game:
    """Return the game of an id; EnvSetupError with the nearest names if unknown, MissingExtraError without ALE."""
    try:
        import ale_py
    except ImportError:
        raise MissingExtraError(f"the Atari environment {name!r}", "ale-py", "atari") from None
    gym.register_envs(ale_py)
    if name not in gym.registry:
        near = knobs.nearest(name, [key for key in gym.registry if is_atari(key)])
        raise EnvSetupError(f"unknown Atari game {name!r}{near}")
    kwargs = gym.spec(name).kwargs
    return Game(kwargs["game"], "sticky" if name.startswith("ALE/") else "classic", kwargs["repeat_action_probability"])


class AleVectorEnv(Unsaved):
    """B games in one AtariVectorEnv. Rows are single frames [84, 84]."""

    starting = times_itself = False
    overlaps = True
    rows_last = True  # ALE makes new arrays for every step

    def __init__(self, name: str, atari: Atari, size: int, seed: int, answer: Answer, groups: int = 1):
        game = find_game(name)  # first: raises the error about a missing extra
        from ale_py import Action
        from ale_py.vector_env import AtariVectorEnv

        settings = atari.resolve(game)
        self._name, self._size, self._seed, self._life_loss = name, size, seed, bool(settings.life_loss)
        self._frame_skip = settings.frame_skip

        def play(**shown: Any) -> Any:
            return with_patient_threads(
                AtariVectorEnv,
                game.rom,
                size,
                # More threads than cores, over all groups, cost a fifth of the speed: idle threads spin for a while.
                num_threads=min(size, settings.num_threads or max(1, available_cores() // groups)),
                max_num_frames_per_episode=settings.max_frames,
                repeat_action_probability=settings.sticky_actions,
                full_action_space=settings.full_action_space,
                autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP,
                stack_num=1,
                frameskip=settings.frame_skip,
                maxpool=settings.frame_skip > 1,
                noop_max=settings.noop_max,
                episodic_life=False,
                life_loss_info=False,  # lives are counted here, where it is also decided whether a lost life terminates
                reward_clipping=False,
                use_fire_reset=settings.fire_reset,
                **shown,
            )

        self._play = play
        try:
            self._envs = play(img_height=settings.frame_size, img_width=settings.frame_size)
        except Exception as error:
            what = str(error).splitlines()[0] if str(error) else "no reason given"
            raise EnvSetupError(f"{name!r} cannot be made: {type(error).__name__}: {what}") from error
        frame = (settings.frame_size, settings.frame_size)
        self.observation_space: gym.Space = gym.spaces.Box(0, 255, frame, np.uint8)
        self.action_space = self._envs.single_action_space
        self.reward_channels: tuple[str, ...] = ("train",)
        self.busy_since: float | None = None
        self.boundary = Boundary(self.observation_space, answer, self._describe)
        self._lives = np.zeros(size, np.int32)
        self._frames = np.zeros(size, np.int32)  # frames of the current game
        self._over = np.zeros(size, bool)
        self._lost = np.zeros(size, bool)
        self._serves = bool(settings.fire_reset) and Action.FIRE == self._envs.ale.get_action_set()[FIRE]
        self._steps = 0
        self._seeds = np.random.SeedSequence(seed).generate_state(size).astype(np.int64) % 2**31  # ALE takes C ints
        self._twin: Any = None  # the same games in colour, created when pictures are first requested
        self._screens: np.ndarray | None = None  # [B, H, W, 3]
        self._under_way = True  # no reset yet, or steps since the last one

    def _describe(self, column: int) -> str:
        return f"environment {column} ({self._name}, group seed {self._seed}) at its step {self._steps}"

    def reset(self) -> Outcome:
        """Return the first frames; a second reset starts again from the seed."""
        self._under_way = False
        obs, info = self._envs.reset(seed=self._seeds)  # loads every ROM again and may take long, so it has no deadline
        if self._twin is not None:
            self._screens = self._twin.reset(seed=self._seeds)[0][:, 0]
        self._lives, self._frames = info["lives"], info["episode_frame_number"]
        self._over = self._lost = no = np.zeros(self._size, bool)
        return Outcome(obs[:, 0], ~no, {"train": np.zeros(self._size, np.float32)}, no, no, None, over=no, life_over=no)

    def send(self, actions: np.ndarray) -> None:
        """Start the step in ALE's threads. After a lost life FIRE is pressed in place of the action."""
        self._under_way = True
        pressed = np.where(self._lost, FIRE, actions) if self._serves and self._lost.any() else actions
        self._envs.send(pressed)
        if self._twin is not None:
            self._twin.send(pressed)

    def recv(self) -> Outcome:
        """Wait for the step and return its outcome."""
        self.busy_since = time.monotonic()
        try:
            obs, reward, terminated, truncated, info = self._envs.recv()
            if self._twin is not None:
                self._follow(reward, info)
        except Exception as error:
            raise EnvError(f"{self._describe(0)} raised in step: {type(error).__name__}: {error}") from error
        self.busy_since = None
        self._steps += 1
        first, lives = self._over, info["lives"]
        frames = info["episode_frame_number"]
        if np.any(unannounced := (frames < self._frames) & ~first):  # the emulator's frame counter shows every reset
            column = int(np.nonzero(unannounced)[0][0])
            raise EnvError(f"{self._describe(column)} began a new game without reporting the end of the last one")
        over = terminated | truncated
        lost = (lives < self._lives) & (lives > 0) & ~over & ~first
        if self._life_loss:
            terminated = terminated | lost
        self._lives, self._frames, self._over, self._lost = lives, frames, over, lost
        rewards = {"train": reward.astype(np.float32)}
        frame, rewards, terminated, truncated = self.boundary.cross(obs[:, 0], rewards, terminated, truncated)
        return Outcome(frame, first, rewards, terminated, truncated, None, over=over, life_over=over | lost)

    def _follow(self, reward: np.ndarray, info: dict[str, Any]) -> None:
        """Make the same step in the games in colour."""
        screens, same_reward, *_, same_info = self._twin.recv()
        clocks = [one["episode_frame_number"] for one in (info, same_info)]
        if not (np.array_equal(reward, same_reward) and np.array_equal(*clocks)):
            raise RuntimeError("the copy of the games that is drawn in colour diverged from the original")
        self._screens = screens[:, 0]

    def picture(self, column: int) -> np.ndarray:
        """Return the screen in colour.

        ALE's vector environment has a single kind of observation. A second one plays the same games, from the same
        seeds with the same actions, and returns colour.
        """
        if self._screens is None:
            if self._under_way:
                raise EnvSetupError(
                    f"{self._name!r} cannot be drawn in the middle of a game: request pictures right after a reset"
                )
            self._twin = self._play(img_height=SCREEN[0], img_width=SCREEN[1], grayscale=False)
            self._screens = self._twin.reset(seed=self._seeds)[0][:, 0]
        return self._screens[column]

    def pictures_per_second(self) -> float:
        """Return the real-time rate: as fast as a person plays."""
        return FRAMES_PER_SECOND / self._frame_skip

    def describe_busy(self) -> str:
        """Return a description of the whole group, since its threads share the work."""
        return self._describe(0)

    def close(self) -> None:
        """End the threads; ALE does so when the object goes."""
        del self._envs
        self._twin = None


def with_patient_threads(make: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Create an object whose threads run at lower priority than those of this process.

    Games keep every core busy. An actor that has to queue for a core between two batches delays all games, so the
    threads of the games run at a lower priority, which they inherit from the thread that creates them.
    """

    def give_way() -> None:
        if sys.platform == "linux":  # only there a priority belongs to a thread
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), PLAYING_NICENESS)

    with ThreadPoolExecutor(1, initializer=give_way) as maker:
        return maker.submit(make, *arguments, **options).result()
