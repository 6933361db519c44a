"""Settings of an environment: which one, and how it is run. Groups of environments are opened from them."""

from __future__ import annotations

import contextlib
import difflib
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import gymnasium as gym
import numpy as np

from packtrain import check, config, knobs
from packtrain.envs import registration  # noqa: F401  (registers the built-in environments with Gymnasium)
from packtrain.envs.atari import AleVectorEnv, Atari, find_game, is_atari
from packtrain.envs.atari_ram import AtariRamVectorEnv, find_settings
from packtrain.envs.atari_simulator import AtariSimulator
from packtrain.envs.categorical_factors import Factors, factors_of
from packtrain.envs.deadline import START_SECS, START_SETTING, within
from packtrain.envs.envpool import EnvpoolVectorEnv, check_options, find_task, is_envpool, probe_task
from packtrain.envs.failures import RESTARTS
from packtrain.envs.functional import Core, load_core
from packtrain.envs.functional_vector_env import FunctionalVectorEnv
from packtrain.envs.gymnasium_guard import reward_channels
from packtrain.envs.gymnasium_vector_env import Factory, GymnasiumVectorEnv, make_gymnasium
from packtrain.envs.handicaps import Handicap, HandicappedVectorEnv
from packtrain.envs.picture import following_camera
from packtrain.envs.rewards import RewardedCore, RewardedVectorEnv, Rewards
from packtrain.envs.simulator import Simulator
from packtrain.envs.user_code import SESSION, cast_floats, id_of_member, import_module, is_made_by, place_of
from packtrain.envs.validation import Boundary, batch_of_one, check_structure, space_leaves
from packtrain.envs.vector_env import VectorEnv
from packtrain.errors import ConfigError, EnvError, EnvSetupError
from packtrain.types import Spec

Result = TypeVar("Result")


@config.configurable
@dataclass(frozen=True)
class Environment:
    """A built-in environment ("Catch"), an Atari game, "envpool:TASK", or a Gymnasium id, "module:id" included.

    Built-in environments are functional cores and run as arrays in this process. Atari games ("PongNoFrameskip-v4",
    "ALE/Pong-v5") run in ALE's native threads, already scaled to single grey frames: see `envs/atari.py`. Tasks of
    envpool run in its native threads: see `envs/envpool.py`. Others run as Gymnasium environments, in this process or,
    with `processes`, each in its own process: slower for cheap environments, but it uses all cores, and an environment
    that hangs or dies is detected by name.
    """

    id: str
    kwargs: dict[str, Any] = field(default_factory=dict)  # keyword arguments of the environment
    processes: bool = False
    step_deadline_secs: float = 60.0  # limit of a step in seconds of running time, also in a planner's search
    atari: Atari | None = None  # how Atari games are played; None: as their ids imply
    # Handling of NaN, infinity and values outside the space: see envs/validation.py.
    on_bad_value: Literal["raise", "drop", "clip"] = "raise"
    rewards: Rewards | None = None  # reward to train on; None: the environment's own
    handicap: Handicap | None = None  # handicap of the agent; None: none
    start_deadline_secs: float = START_SECS  # limit for a constructor and a first reset in seconds
    restarts: int = RESTARTS  # replacements in a row of a Gymnasium environment that fails; 0: the run stops

    def __post_init__(self) -> None:
        if self.atari is None and (self.is_atari() or self.is_envpool()):
            object.__setattr__(self, "atari", Atari())
        check.positive(self, "step_deadline_secs", "start_deadline_secs")
        check.not_negative(self, "restarts", end="; 0: the first failure stops")
        if self.is_envpool():
            trusted = config.is_trusted()
            check_options(self.id, self.kwargs, processes=self.processes, answer=self.on_bad_value, trusted=trusted)
        else:
            config.refuse_foreign_code("Environment.id", self.id)
            config.refuse_foreign_code("Environment.kwargs", self.kwargs)  # a Simulator takes another environment's id
        if self.is_atari() and (self.kwargs or self.processes):
            raise ConfigError(
                f"Environment.{'kwargs' if self.kwargs else 'processes'} does not apply to {self.id!r}: Atari games "
                "run in native threads and are configured by Atari.frame_skip and the like"
            )
        if "core" in self.kwargs:
            raise ConfigError("Environment.kwargs must not contain 'core'; register your own environment instead")

    def registered_id(self) -> str:
        """Return the Gymnasium id of `id`; EnvSetupError with the nearest names if there is none."""
        module, _, name = self.id.rpartition(":")
        if self.is_atari():
            find_game(self.id)
            return self.id
        if self.is_envpool():
            find_task(self.id)
            return self.id
        if module:  # `gym.make` accepts this form, `gym.spec` does not
            found = import_module(module, self.id)
            known = name in gym.registry or is_made_by(f"packtrain/{name}-v0", getattr(found, name, None))
            if not known and (own := id_of_member(found, name)) is not None:
                return own
        if f"packtrain/{name}-v0" in gym.registry:
            return f"packtrain/{name}-v0"
        try:
            gym.spec(name)
        except gym.error.Error as error:
            raise EnvSetupError(
                f"unknown environment {self.id!r}{self._hint(module, name)}: {str(error).splitlines()[0]}"
            ) from None
        return name

    def _hint(self, module: str, name: str) -> str:
        """Return a suggestion of the nearest known name: registered ids, Atari games, or classes of its module."""
        if name.startswith(SESSION) or self.id.startswith(SESSION):
            return ", which was registered in another Python session; pass the environment itself again"
        if module:
            members = [key for key, value in vars(sys.modules[module]).items() if isinstance(value, type)]
            return knobs.nearest(name, [*members, *gym.registry])
        with contextlib.suppress(ImportError):
            import ale_py

            gym.register_envs(ale_py)
        names = {key: key for key in gym.registry}  # what is compared → what is suggested
        names |= {key.removeprefix("packtrain/").removesuffix("-v0"): key for key in names if "packtrain/" in key}
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
        if not close:
            names = {
                key.rpartition("/")[2].partition("-v")[0].lower(): key for key in sorted(gym.registry, reverse=True)
            }
            close = difflib.get_close_matches(name.partition("-v")[0].lower(), names, n=1, cutoff=0.6)
        if not close:
            return ""
        found = names[close[0]]
        if "packtrain/" in found and "packtrain/" not in name:
            found = found.removeprefix("packtrain/").removesuffix("-v0")
        return f" (did you mean {found!r}?)"

    def is_atari(self) -> bool:
        """Whether the environment is an Atari game."""
        return is_atari(self.id)

    def is_envpool(self) -> bool:
        """Whether the environment is a task of envpool."""
        return is_envpool(self.id)

    def is_functional(self) -> bool:
        """Whether the environment is a functional core."""
        return not self.is_envpool() and "core" in gym.spec(self.registered_id()).kwargs

    @property
    def _atari(self) -> Atari:
        assert self.atari is not None
        return self.atari

    def overlaps(self) -> bool:
        """Return whether environments run while Python executes other code."""
        return self.is_atari() or self.is_envpool() or (self.processes and not self.is_functional())

    def probe(self) -> Spec:
        """Make one environment, reset it once, validate its observation, and return its description.

        Raises:
          EnvSetupError: it cannot be made, hangs, or violates its own spaces.
        """
        spec = self._in_time(self._probe, "with seed 0 did not start")
        if self.handicap is not None:
            self.handicap.refuse_unless_it_fits(spec.obs, spec.action)
        return spec if self.rewards is None else replace(spec, reward_channels=self._channels(spec.reward_channels))

    def _in_time(self, call: Callable[[], Result], complaint: str) -> Result:
        """Return what a call returns; EnvSetupError if it exceeds the start deadline."""
        return within(self.start_deadline_secs, call, f"environment {self.id!r} {complaint}", START_SETTING)

    def _channels(self, given: tuple[str, ...]) -> tuple[str, ...]:
        assert self.rewards is not None
        try:
            return self.rewards.channels(given)
        except EnvSetupError as error:
            raise EnvSetupError(f"{self.id!r}: {error}") from None

    def _probe(self) -> Spec:
        if self.is_atari():
            if self._wants_memory():
                game, _ = find_settings(self.id, self._atari)
                self._refuse_rewards_of_another(game.rom)
            games = AleVectorEnv(self.id, self._atari, 1, 0, self.on_bad_value)
            return Spec(games.observation_space, games.action_space, frames_per_step=self._atari.frame_skip)
        if self.is_envpool():
            return probe_task(self.id, self.kwargs, self._atari)
        env = self._maker()()
        try:
            for space, what in ((env.observation_space, "observation"), (env.action_space, "action")):
                try:
                    space_leaves(space)
                except EnvSetupError as error:
                    raise EnvSetupError(f"the {what} space of {self.id!r}: {error}") from None
            try:
                obs, _ = env.reset(seed=0)
            except Exception as error:
                raise EnvSetupError(
                    f"{self.id!r} raised in its first reset: {type(error).__name__}: {error}{place_of(error)}"
                ) from error
            obs = cast_floats(obs, env.observation_space, self.id)
            if wrong := check_structure(obs, env.observation_space):
                raise EnvSetupError(f"the first reset of {self.id!r} returned an observation of {wrong}")
            boundary = Boundary(env.observation_space, "raise", lambda _: f"the first reset of {self.id!r}")
            try:
                no = np.zeros(1, bool)
                boundary.cross(batch_of_one(obs, env.observation_space), {}, no, no)
            except EnvError as error:
                raise EnvSetupError(str(error).partition(";")[0]) from None
            return Spec(env.observation_space, env.action_space, reward_channels(env))
        finally:
            env.close()

    def open(self, size: int, seed: int, spec: Spec, groups: int = 1) -> VectorEnv:
        """Open `size` environments as one vector environment.

        Args:
          size: number of environments.
          seed: of the group; each environment's own seed is derived from it.
          spec: result of `probe`.
          groups: number of such groups that share the cores.
        """
        columns = self._open(size, seed, spec, groups)
        if self.rewards is not None:
            columns = RewardedVectorEnv(columns, self.rewards)
        if self.handicap is None or self.handicap.is_none:
            return columns
        return HandicappedVectorEnv(columns, self.handicap, seed)

    def _wants_memory(self) -> bool:
        """Return whether Atari games must provide their consoles' memory, which reward functions may read."""
        return bool(self.rewards is not None and self.rewards.functions) or not self._atari.idle_start

    def _refuse_rewards_of_another(self, rom: str) -> None:
        functions = {} if self.rewards is None else self.rewards.functions
        for name, function in functions.items():
            if getattr(function, "rom", rom) != rom:
                raise ConfigError(
                    f"Rewards.functions[{name!r}] = {function} reads the memory of {function.rom}, but Environment.id "
                    f"= {self.id!r} is another game"
                )

    def _open(self, size: int, seed: int, spec: Spec, groups: int) -> VectorEnv:
        """Open the environments with their own rewards only."""
        if self.is_atari():
            games = AtariRamVectorEnv if self._wants_memory() else AleVectorEnv
            return games(self.id, self._atari, size, seed, self.on_bad_value, groups)
        if self.is_envpool():
            return EnvpoolVectorEnv(self.id, self.kwargs, self._atari, size, seed, self.on_bad_value, groups)
        if self.is_functional():
            core = self._in_time(self._own_core, f"with group seed {seed} was not made")
            return FunctionalVectorEnv(core, size, seed, self.on_bad_value, self.id)
        seeds = [int(s) for s in np.random.SeedSequence(seed).generate_state(size)]
        maker = self._maker()
        factories = [
            Factory(maker, f"environment {i} ({self.id}, seed {s})", self.on_bad_value, self.start_deadline_secs)
            for i, s in enumerate(seeds)
        ]
        return GymnasiumVectorEnv(
            factories,
            seeds,
            processes=self.processes,
            deadline_secs=self.step_deadline_secs,
            answer=self.on_bad_value,
            name=self.id,
            reward_channels=spec.reward_channels if self.rewards is None else self._own_channels(),
            start_deadline_secs=self.start_deadline_secs,
            restarts=self.restarts,
        )

    def _own_channels(self) -> tuple[str, ...]:
        """Return the reward channels of a Gymnasium environment itself."""
        env = self._in_time(self._maker(), "was not made")
        try:
            return reward_channels(env)
        finally:
            env.close()

    def for_pictures(self) -> Environment:
        """Return settings whose environments can be drawn: Gymnasium environments are made for it, in this process.

        Raises:
          EnvSetupError: it cannot be drawn.
        """
        if self.is_atari() or self.is_envpool() or self.is_functional():
            return self
        env = self._in_time(self._maker(), "was not made")
        modes = list(env.metadata.get("render_modes") or ())
        camera = {} if {"camera_name", "camera_id"} & self.kwargs.keys() else following_camera(env)
        env.close()
        if "rgb_array" not in modes:
            raise EnvSetupError(f"{self.id!r} cannot be drawn: its render modes are {modes}, without 'rgb_array'")
        return replace(self, kwargs={**camera, **self.kwargs, "render_mode": "rgb_array"}, processes=False)

    def open_core(
        self, size: int, seed: int, together: bool = False, time_limit: int | None = None
    ) -> FunctionalVectorEnv:
        """Open `size` environments whose states can be read and stepped in a search: for planners.

        Args:
          size: number of environments.
          seed: of the group.
          together: an environment whose episode is over waits until all are.
          time_limit: steps until truncation; None: the environment's own.
        """
        core = self._in_time(self.core, f"with group seed {seed} was not made")
        return FunctionalVectorEnv(core, size, seed, self.on_bad_value, self.id, together, time_limit)

    def probe_core(self) -> Spec:
        """Return its description as a core; EnvSetupError if it cannot be made, or hangs."""
        return self._in_time(self._probe_core, "with seed 0 did not start")

    def _probe_core(self) -> Spec:
        core = self.core()
        channels = ("train", *getattr(core, "reward_channels", ()))
        factors: Factors = ()
        if self.is_functional():
            # Not every environment has factors, and only some models need them.
            with contextlib.suppress(EnvSetupError):
                factors = factors_of(core)
        return Spec(core.observation_space, core.action_space, channels, factors=factors)

    def core(self) -> Core:
        """Return the environment as pure functions over states, as planners need it.

        Built-in environments are already such cores. Atari games and Gymnasium environments that can save and restore
        their state are adapted.

        Raises:
          EnvSetupError: it cannot be restored.
        """
        if self.handicap is not None and not self.handicap.is_none:
            raise EnvSetupError(f"Environment.handicap applies to agents without planning; {self.id!r} has one")
        core = self._own_core()
        return core if self.rewards is None else RewardedCore(core, self.rewards)

    def _own_core(self) -> Core:
        registered = self.registered_id()
        if self.is_atari():
            return AtariSimulator(self.id, self._atari)
        if self.is_envpool():
            raise EnvSetupError(f"{self.id!r} cannot be restored, which planners need: envpool does not save states")
        if self.is_functional():
            kwargs = {**gym.spec(registered).kwargs, **self.kwargs}
            return load_core(kwargs.pop("core"), **kwargs)
        settings = {"on_bad_value": self.on_bad_value, "restarts": self.restarts, **self.kwargs}
        return Simulator(registered, max_steps="time limit", **settings)

    def make_one(self) -> gym.Env:
        """Make one Gymnasium environment, for a loop of one's own."""
        return self._in_time(self._maker(), "was not made")

    def _maker(self) -> Callable[[], gym.Env]:
        """Return a function that makes one environment, also in a process that has not imported its registration."""
        return functools.partial(make_gymnasium, gym.spec(self.registered_id()), self.kwargs, self.id)
