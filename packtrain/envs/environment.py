"""Which environment, and how it is run: the description from which groups of columns are opened."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import gymnasium as gym
import numpy as np

from packtrain import config, knobs
from packtrain.envs import ours  # noqa: F401  (registers our environments with Gymnasium)
from packtrain.envs.atari import Atari, AtariColumns, find_game, is_atari
from packtrain.envs.atari_ram import AtariRamColumns, find_settings
from packtrain.envs.atari_simulator import AtariSimulator
from packtrain.envs.boundary import Boundary, batch_of_one, check_structure, space_leaves
from packtrain.envs.columns import Columns
from packtrain.envs.deadline import START_SECS, START_SETTING, within
from packtrain.envs.envpool import EnvpoolColumns, check_options, find_task, is_envpool, probe_task
from packtrain.envs.factors import Factors, factors_of
from packtrain.envs.functional import Core, load_core
from packtrain.envs.functional_columns import FunctionalColumns
from packtrain.envs.gymnasium_columns import Factory, GymnasiumColumns, make_gymnasium, reward_channels
from packtrain.envs.handicaps import Handicap, HandicappedColumns
from packtrain.envs.picture import following_camera
from packtrain.envs.rewards import RewardedColumns, RewardedCore, Rewards
from packtrain.envs.simulator import Simulator
from packtrain.errors import ConfigError, EnvError, EnvSetupError
from packtrain.types import Spec

Result = TypeVar("Result")


@config.configurable
@dataclass(frozen=True)
class Environment:
    """One of ours by its short name ("Catch"), an Atari game, "envpool:TASK", or a Gymnasium id, "module:id" included.

    Ours are functional cores and run as arrays in this process. Atari games ("PongNoFrameskip-v4", "ALE/Pong-v5") run
    in ALE's native threads, already scaled to single grey frames: see `envs/atari.py`. Tasks of envpool run in its
    native threads: see `envs/envpool.py`. Others run as Gymnasium environments, in this process or, with `processes`,
    each in one of its own: slower for cheap environments, but it uses all cores, and one that hangs or dies is noticed
    by name.
    """

    id: str
    kwargs: dict[str, Any] = field(default_factory=dict)  # passed to the environment
    processes: bool = False
    step_deadline_secs: float = 60.0  # seconds of running time that a step may take, in a planner's search too
    atari: Atari | None = None  # how Atari games are played; None: as their ids say
    on_bad_value: Literal["raise", "drop", "clip"] = "raise"  # NaN, infinity, outside the space: see envs/boundary.py
    rewards: Rewards | None = None  # which reward is learned from; None: the environment's own
    handicap: Handicap | None = None  # of whoever acts; None: none
    start_deadline_secs: float = START_SECS  # seconds that a constructor and a first reset may take

    def __post_init__(self) -> None:
        if self.atari is None and (self.is_atari() or self.is_envpool()):
            object.__setattr__(self, "atari", Atari())
        for name in ("step_deadline_secs", "start_deadline_secs"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"Environment.{name} = {getattr(self, name)} must be above 0")
        if self.is_envpool():
            trusted = config.is_trusted()
            check_options(self.id, self.kwargs, processes=self.processes, answer=self.on_bad_value, trusted=trusted)
        else:
            config.refuse_foreign_code("Environment.id", self.id)
            config.refuse_foreign_code("Environment.kwargs", self.kwargs)  # a Simulator takes another's id
        if self.is_atari() and (self.kwargs or self.processes):
            raise ConfigError(
                f"Environment.{'kwargs' if self.kwargs else 'processes'} does not apply to {self.id!r}: Atari games "
                "run in native threads, and Atari.frame_skip and the like say how they are played"
            )
        if "core" in self.kwargs:
            raise ConfigError("Environment.kwargs may not replace 'core'; register an environment of your own instead")

    def registered_id(self) -> str:
        """The Gymnasium id meant by `id`; EnvSetupError with the nearest names if there is none."""
        module, _, name = self.id.rpartition(":")
        if self.is_atari():
            find_game(self.id)
            return self.id
        if self.is_envpool():
            find_task(self.id)
            return self.id
        try:
            if module:  # `gym.make` knows this form, `gym.spec` does not
                importlib.import_module(module)
            if f"packtrain/{name}-v0" in gym.registry:
                return f"packtrain/{name}-v0"
            gym.spec(name)
        except gym.error.Error as error:
            short = [key.removeprefix("packtrain/").removesuffix("-v0") for key in gym.registry if "packtrain/" in key]
            near = knobs.nearest(name, [*gym.registry, *short])
            raise EnvSetupError(f"unknown environment {self.id!r}{near}: {str(error).splitlines()[0]}") from None
        except ImportError as error:
            raise EnvSetupError(f"environment {self.id!r} cannot be imported: {error}") from None
        return name

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
        """Whether environments run while Python does something else."""
        return self.is_atari() or self.is_envpool() or (self.processes and not self.is_functional())

    def probe(self) -> Spec:
        """Make one environment, reset it once, check what it shows, and say what it is.

        Raises:
          EnvSetupError: it cannot be made, hangs, or breaks its own spaces.
        """
        spec = self._in_time(self._probe, "with seed 0 did not start")
        if self.handicap is not None:
            self.handicap.refuse_unless_it_fits(spec.obs, spec.action)
        return spec if self.rewards is None else replace(spec, reward_channels=self._channels(spec.reward_channels))

    def _in_time(self, call: Callable[[], Result], complaint: str) -> Result:
        """Return what a call returns; EnvSetupError if it does not within the deadline of a start."""
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
            games = AtariColumns(self.id, self._atari, 1, 0, self.on_bad_value)
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
                    f"{self.id!r} raised in its first reset: {type(error).__name__}: {error}"
                ) from error
            if wrong := check_structure(obs, env.observation_space):
                raise EnvSetupError(f"the first reset of {self.id!r} gave an observation of {wrong}")
            boundary = Boundary(env.observation_space, "raise", lambda _: f"the first reset of {self.id!r}")
            try:
                no = np.zeros(1, bool)
                boundary.cross(batch_of_one(obs, env.observation_space), {}, no, no)
            except EnvError as error:
                raise EnvSetupError(str(error).partition(";")[0]) from None
            return Spec(env.observation_space, env.action_space, reward_channels(env))
        finally:
            env.close()

    def open(
        self, size: int, seed: int, spec: Spec, travelling: config.Travelling | None = None, groups: int = 1
    ) -> Columns:
        """`size` environments side by side.

        Args:
          size: how many.
          seed: of the group; each environment's own seed follows from it.
          spec: what `probe` found.
          travelling: the configuration, checked by child processes as they start.
          groups: how many such groups share the cores.
        """
        columns = self._open(size, seed, spec, travelling, groups)
        if self.rewards is not None:
            columns = RewardedColumns(columns, self.rewards)
        if self.handicap is None or self.handicap.is_none:
            return columns
        return HandicappedColumns(columns, self.handicap, seed)

    def _wants_memory(self) -> bool:
        """Whether Atari games must tell what their consoles remember: reward functions may read it."""
        return bool(self.rewards is not None and self.rewards.functions) or not self._atari.idle_start

    def _refuse_rewards_of_another(self, rom: str) -> None:
        functions = {} if self.rewards is None else self.rewards.functions
        for name, function in functions.items():
            if getattr(function, "rom", rom) != rom:
                raise ConfigError(
                    f"Rewards.functions[{name!r}] = {function} reads the memory of {function.rom}, and Environment.id "
                    f"= {self.id!r} is another game"
                )

    def _open(
        self, size: int, seed: int, spec: Spec, travelling: config.Travelling | None = None, groups: int = 1
    ) -> Columns:
        """The same, with the environment's own rewards."""
        if self.is_atari():
            games = AtariRamColumns if self._wants_memory() else AtariColumns
            return games(self.id, self._atari, size, seed, self.on_bad_value, groups)
        if self.is_envpool():
            return EnvpoolColumns(self.id, self.kwargs, self._atari, size, seed, self.on_bad_value, groups)
        if self.is_functional():
            core = self._in_time(self._own_core, f"with group seed {seed} was not made")
            return FunctionalColumns(core, size, seed, self.on_bad_value, self.id)
        seeds = [int(s) for s in np.random.SeedSequence(seed).generate_state(size)]
        maker = self._maker()
        factories = [
            Factory(
                maker, f"environment {i} ({self.id}, seed {s})", self.on_bad_value, travelling, self.start_deadline_secs
            )
            for i, s in enumerate(seeds)
        ]
        return GymnasiumColumns(
            factories,
            seeds,
            processes=self.processes,
            deadline_secs=self.step_deadline_secs,
            answer=self.on_bad_value,
            name=self.id,
            reward_channels=spec.reward_channels if self.rewards is None else self._own_channels(),
            start_deadline_secs=self.start_deadline_secs,
        )

    def _own_channels(self) -> tuple[str, ...]:
        """Of a Gymnasium environment by itself."""
        env = self._in_time(self._maker(), "was not made")
        try:
            return reward_channels(env)
        finally:
            env.close()

    def for_pictures(self) -> Environment:
        """The same, whose columns can be drawn: Gymnasium environments are made for it, and in this process.

        Raises:
          EnvSetupError: it has no pictures.
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
    ) -> FunctionalColumns:
        """`size` environments whose states can be looked at and stepped elsewhere: for planners.

        Args:
          size: how many.
          seed: of the group.
          together: a column whose episode is over waits until all are.
          time_limit: steps until truncation; None: the environment's own.
        """
        core = self._in_time(self.core, f"with group seed {seed} was not made")
        return FunctionalColumns(core, size, seed, self.on_bad_value, self.id, together, time_limit)

    def probe_core(self) -> Spec:
        """Return what it shows and takes as a core; EnvSetupError if it cannot be made, or hangs."""
        return self._in_time(self._probe_core, "with seed 0 did not start")

    def _probe_core(self) -> Spec:
        core = self.core()
        channels = ("train", *getattr(core, "reward_channels", ()))
        factors: Factors = ()
        if self.is_functional():
            with contextlib.suppress(EnvSetupError):  # not everything is made of factors, and few ask
                factors = factors_of(core)
        return Spec(core.observation_space, core.action_space, channels, factors=factors)

    def core(self) -> Core:
        """The environment as pure functions over states, which is what a planner needs.

        Ours are that already. Atari games and Gymnasium environments that can save and restore themselves become it.

        Raises:
          EnvSetupError: it cannot be restored.
        """
        if self.handicap is not None and not self.handicap.is_none:
            raise EnvSetupError(f"Environment.handicap is for those who act without planning; {self.id!r} has one")
        core = self._own_core()
        return core if self.rewards is None else RewardedCore(core, self.rewards)

    def _own_core(self) -> Core:
        registered = self.registered_id()
        if self.is_atari():
            return AtariSimulator(self.id, self._atari)
        if self.is_envpool():
            raise EnvSetupError(f"{self.id!r} cannot be restored, which planners need: envpool saves no states")
        if self.is_functional():
            kwargs = {**gym.spec(registered).kwargs, **self.kwargs}
            return load_core(kwargs.pop("core"), **kwargs)
        return Simulator(registered, max_steps="time limit", on_bad_value=self.on_bad_value, **self.kwargs)

    def _maker(self) -> Callable[[], gym.Env]:
        """Makes one environment, in a process too that has not imported what registered it."""
        return functools.partial(make_gymnasium, gym.spec(self.registered_id()), self.kwargs, self.id)
