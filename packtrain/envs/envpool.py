"""Environments of the package envpool by "envpool:TASK": native threads, next-step autoreset, fixed order.

Its Atari games are played as `Atari` says, with the observations of `envs/atari.py`: single grey frames, raw rewards, a
lost life `terminated` without a reset. `_atari_options` lists the differences.
"""

from __future__ import annotations

import math
import time
import warnings
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain import knobs, trees
from packtrain.cpu_count import available_cores
from packtrain.envs.atari import FIRE, FRAMES_PER_SECOND, Atari, Game, with_patient_threads
from packtrain.envs.validation import Answer, Boundary, space_leaves
from packtrain.envs.vector_env import Outcome, Unsaved
from packtrain.errors import ConfigError, EnvError, EnvSetupError, MissingExtraError
from packtrain.trees import Tree
from packtrain.types import Spec

PREFIX = "envpool:"
# Options for the task, the number of environments and the seed are set by packtrain; users may set all others.
RESERVED = (
    "task_id env_type num_envs batch_size seed env_seed max_num_players gym_reset_return_info task render_mode".split()
)
# Games whose own action set has another action in FIRE's place; envpool does not report the meaning of its actions.
WITHOUT_FIRE = frozenset(
    "Asterix-v5 Backgammon-v5 CrazyClimber-v5 Freeway-v5 Frogger-v5 JourneyEscape-v5 Koolaid-v5 KungFuMaster-v5 "
    "LostLuggage-v5 MsPacman-v5 Pacman-v5 Skiing-v5 Surround-v5 Tutankham-v5 VideoCheckers-v5".split()
)


def is_envpool(name: str) -> bool:
    """Return whether an id denotes a task of envpool."""
    return name.startswith(PREFIX)


def check_options(name: str, kwargs: dict[str, Any], *, processes: bool, answer: Answer, trusted: bool) -> None:
    """Raise a ConfigError for settings that envpool does not support, as far as possible without the package."""
    for key in RESERVED:
        if key in kwargs:
            raise ConfigError(f"Environment.kwargs must not contain {key!r} for {name!r}: packtrain sets it")
    threads = kwargs.get("num_threads", 1)
    if type(threads) is not int or threads < 1:
        raise ConfigError(f"Environment.kwargs: num_threads = {threads!r} must be a whole number of at least 1")
    # Some options name files that envpool reads, writes or, for Doom, executes; all of them are strings.
    if not trusted and (texts := [key for key, value in kwargs.items() if not _is_number(value)]):
        raise ConfigError(
            f"Environment.kwargs: {texts[0]!r} is not a number, and this configuration belongs to a run folder, whose "
            "content may be untrusted; --trust-config allows it"
        )
    if processes:
        raise ConfigError(f"Environment.processes does not apply to {name!r}: envpool runs in native threads")
    if answer == "drop":
        raise ConfigError(
            f"Environment.on_bad_value = 'drop' does not apply to {name!r}: envpool cannot end an episode early; use "
            "'raise' or 'clip'"
        )


def find_task(name: str) -> str:
    """Return the task of an id; EnvSetupError with the nearest name if unknown, MissingExtraError without envpool."""
    try:
        import envpool
    except ImportError:
        raise MissingExtraError(f"the environment {name!r}", "envpool", "envpool") from None
    task = name.removeprefix(PREFIX)
    tasks = envpool.list_all_envs()
    if task not in tasks:
        raise EnvSetupError(f"envpool has no task {task!r}{knobs.nearest(task, tasks)}")
    return task


def probe_task(name: str, kwargs: dict[str, Any], atari: Atari) -> Spec:
    """Make one environment, reset it once, validate its observation, and return its description."""
    columns = EnvpoolVectorEnv(name, kwargs, atari, 1, 0, "raise")
    try:
        columns.reset()
    except EnvError as error:
        raise EnvSetupError(f"the first reset of {name!r}: {str(error).partition(';')[0]}") from None
    finally:
        columns.close()
    return Spec(columns.observation_space, columns.action_space, frames_per_step=columns.frames_per_step)


class EnvpoolVectorEnv(Unsaved):
    """B environments in one pool, all stepped at once."""

    starting = times_itself = False
    overlaps = True
    rows_last = True  # envpool makes new arrays for every step

    def __init__(
        self, name: str, kwargs: dict[str, Any], atari: Atari, size: int, seed: int, answer: Answer, groups: int = 1
    ):
        self._task = find_task(name)  # first: raises the error about a missing extra
        self._name, self._size, self._seed = name, size, seed
        self.frames_per_step = 1
        self._has_lives = self._life_loss = self._serves = False
        frame: gym.Space | None = None
        threads = None
        if self._is_game():
            # The protocol that is closest to envpool's own defaults.
            settings = atari.resolve(Game(self._task, "classic", 0.0))
            options = _atari_options(settings)
            if doubled := sorted((options.keys() | {"num_threads"}) & kwargs.keys()):
                raise ConfigError(
                    f"Environment.kwargs must not contain {doubled[0]!r} for {name!r}: use Atari.frame_skip and the "
                    "like"
                )
            kwargs, threads = {**kwargs, **options}, settings.num_threads
            self.frames_per_step = settings.frame_skip
            self._has_lives, self._life_loss = True, bool(settings.life_loss)
            has_fire = settings.full_action_space or self._task not in WITHOUT_FIRE
            self._serves = bool(settings.fire_reset and has_fire)
            frame = gym.spaces.Box(0, 255, (settings.frame_size, settings.frame_size), np.uint8)
        self._options = {"num_threads": min(size, threads or max(1, available_cores() // groups)), **kwargs}
        self._envs = self._make()
        self._used = False
        observation_space, action_space = self._envs.observation_space, self._envs.action_space
        if self._envs.config["max_num_players"] != 1 or isinstance(action_space, gym.spaces.Dict):
            raise EnvSetupError(f"{name!r} is a task for several players; packtrain supports one")
        self.observation_space: gym.Space = frame or _without_sentinels(observation_space)
        self.action_space: gym.Space = _countable(_without_sentinels(action_space))
        self._leaves = _leaves(self.observation_space, f"the observation space of {name!r}")
        _leaves(self.action_space, f"the action space of {name!r}")
        self.reward_channels: tuple[str, ...] = ("train",)
        self.busy_since: float | None = None
        self.boundary = Boundary(self.observation_space, answer, self._describe)
        self._lives = np.zeros(size, np.int32)
        self._elapsed = np.zeros(size, np.int32)  # steps of the current episode
        self._over = np.zeros(size, bool)
        self._lost = np.zeros(size, bool)
        self._shown: Tree = None  # the latest observations
        self._steps = 0

    def _is_game(self) -> bool:
        """Return whether the task is an Atari game: only those have sticky actions and lives."""
        import envpool

        try:
            fields = envpool.make_spec(self._task).config._fields
        except Exception as error:  # such as a missing system library
            raise self._cannot_be_made(error) from error
        return {"repeat_action_probability", "episodic_life"} <= set(fields)

    def _make(self) -> Any:
        import envpool

        # Every pool creates its spaces at its first step, with bounds in float64 and a warning for each.
        warnings.filterwarnings("ignore", message=".*precision lowered by casting")
        seeds = np.random.SeedSequence(self._seed).generate_state(self._size) % 2**31  # envpool takes C ints
        try:
            return with_patient_threads(
                envpool.make,
                self._task,
                env_type="gymnasium",
                num_envs=self._size,
                seed=seeds.tolist(),
                **self._options,
            )
        except Exception as error:
            raise self._cannot_be_made(error) from error

    def _cannot_be_made(self, error: Exception) -> EnvSetupError:
        first = (str(error).splitlines() or [""])[0]
        return EnvSetupError(f"{self._name!r} cannot be made: {type(error).__name__}: {first}")

    def _describe(self, column: int) -> str:
        return f"environment {column} ({self._name}, group seed {self._seed}) at its step {self._steps}"

    def reset(self) -> Outcome:
        """Return the first rows; again from the seed, which envpool uses only when a pool is created."""
        if self._used:
            self._envs = self._make()  # without a deadline: many games take long to load
        self._used = True
        self.starting, self.busy_since = True, time.monotonic()
        obs, info = self._envs.reset()
        self.starting, self.busy_since = False, None
        obs, info = _in_order((obs, info), info["env_id"])
        self._elapsed = info["elapsed_step"]
        if self._has_lives:
            self._lives = info["lives"]
        self._over = self._lost = no = np.zeros(self._size, bool)
        rewards = {"train": np.zeros(self._size, np.float32)}
        obs, rewards, *_ = self.boundary.cross(self._fit(obs), rewards, no, no)
        lives: dict[str, Any] = {"over": no, "life_over": no} if self._has_lives else {}
        self._shown = obs
        return Outcome(obs, ~no, rewards, no, no, None, **lives)

    def send(self, actions: np.ndarray) -> None:
        """Start the step in envpool's threads. After a lost life FIRE is pressed in place of the action."""
        self._envs.send(np.where(self._lost, FIRE, actions) if self._serves and self._lost.any() else actions)

    def recv(self) -> Outcome:
        """Wait for the step and return its outcome."""
        self.busy_since = time.monotonic()
        try:
            obs, reward, ended, truncated, info = self._envs.recv()
        except Exception as error:
            raise EnvError(f"{self._describe(0)} raised in step: {type(error).__name__}: {error}") from error
        self.busy_since = None
        self._steps += 1
        obs, reward, ended, truncated, info = _in_order((obs, reward, ended, truncated, info), info["env_id"])
        first, elapsed = self._over, info["elapsed_step"]
        # Its step counter shows every reset.
        if np.any(wrong := np.where(first, elapsed != 0, elapsed < self._elapsed)):
            what = "did not begin a new episode after the last one" if first[wrong][0] else "began a new episode unsaid"
            raise EnvError(f"{self._describe(int(np.nonzero(wrong)[0][0]))} {what}")
        rewards = {"train": np.where(first, 0, reward).astype(np.float32)}
        self._elapsed, self._over = elapsed, ended | truncated
        terminated, more = ended, {}
        if self._has_lives:
            lives = info["lives"]
            lost = (lives < self._lives) & (lives > 0) & ~self._over & ~first  # a lost life while the game continues
            terminated = ended | lost if self._life_loss else ended
            more = {"over": self._over, "life_over": self._over | lost}
            self._lives, self._lost = lives, lost
        obs, rewards, terminated, truncated = self.boundary.cross(self._fit(obs), rewards, terminated, truncated)
        self._shown = obs
        return Outcome(obs, first, rewards, terminated, truncated, None, **more)

    def _fit(self, obs: Tree) -> Tree:
        """Return observations with the shapes and dtypes of their spaces, from which envpool's differ."""

        def fit(space: gym.Space, leaf: np.ndarray) -> np.ndarray:
            return leaf.reshape(self._size, *space.shape or ()).astype(space.dtype, copy=False)

        try:
            return trees.map(fit, self._leaves, obs)
        except ValueError as error:  # another size or structure
            raise EnvError(f"{self._describe(0)} returned an observation that is not in its space: {error}") from None

    def picture(self, column: int) -> np.ndarray:
        """Return the grey frame that the policy observes, for Atari games; other tasks cannot be drawn."""
        if not self._has_lives:
            raise EnvSetupError(f"{self._name!r} cannot be drawn: envpool supports this only for Atari games")
        return self._shown[column][:, :, None].repeat(3, axis=2)

    def pictures_per_second(self) -> float:
        """Return the real-time rate: as fast as a person plays."""
        return FRAMES_PER_SECOND / self.frames_per_step

    def describe_busy(self) -> str:
        """Return a description of the whole group, since its threads share the work."""
        return self._describe(0)

    def close(self) -> None:
        """Delete the pool, which ends its threads."""
        del self._envs


def _atari_options(settings: Atari) -> dict[str, Any]:
    """Return the Atari settings as envpool's options. Three things differ from ALE's own vector environment.

    A game begins with at least one frame of no-op or FIRE, and FIRE counts among the no-ops. The time limit counts
    whole steps. The last frame of a lost game may be mixed with an older one.
    """
    assert settings.noop_max is not None
    return {
        "stack_num": 1,
        "frame_skip": settings.frame_skip,
        "noop_max": max(1, settings.noop_max),  # with 0, envpool's reset never returns
        "use_fire_reset": settings.fire_reset,
        "img_height": settings.frame_size,
        "img_width": settings.frame_size,
        "gray_scale": True,
        "full_action_space": settings.full_action_space,
        "repeat_action_probability": settings.sticky_actions,
        "max_episode_steps": math.ceil(settings.max_frames / settings.frame_skip),
        "episodic_life": False,
        "zero_discount_on_life_loss": False,
        "reward_clip": False,
    }


def _in_order(answer: Any, env_id: np.ndarray) -> Any:
    """Return an answer of B environments with environment b at index b."""
    if np.array_equal(env_id, np.arange(len(env_id))):
        return answer
    order = np.argsort(env_id)
    if not np.array_equal(env_id[order], np.arange(len(env_id))):
        raise EnvError(f"envpool answered for the environments {env_id.tolist()}, not once for each of {len(env_id)}")
    return trees.map(lambda leaf: leaf[order], answer)


def _leaves(space: gym.Space, where: str) -> Tree:
    try:
        return space_leaves(space)
    except EnvSetupError as error:
        raise EnvSetupError(f"{where}: {error}") from None


def _without_sentinels(space: gym.Space) -> gym.Space:
    """Return the space with infinite bounds where envpool uses the limits of the dtype.

    For the lower bound it uses C++'s numeric_limits::min, the smallest positive number: LunarLander would be rejected.
    """
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({key: _without_sentinels(inner) for key, inner in space.spaces.items()})
    if not isinstance(space, gym.spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        return space
    ends = np.finfo(space.dtype)
    low = np.where((space.low == ends.tiny) | (space.low == ends.min), -np.inf, space.low)
    high = np.where(space.high == ends.max, np.inf, space.high)
    return gym.spaces.Box(low.astype(space.dtype), high.astype(space.dtype), space.shape, space.dtype.type)


def _countable(space: gym.Space) -> gym.Space:
    """Return several whole numbers as MultiDiscrete; envpool declares them as a Box."""
    if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.integer):
        return gym.spaces.MultiDiscrete(space.high.astype(np.int64) - space.low + 1, start=space.low.astype(np.int64))
    return space


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, list | tuple) and all(_is_number(v) for v in value))
