"""Atari games with the console's memory in `info`, run in processes that play several games each.

ALE's vector environment returns frames, rewards and lives, but not the 128 bytes of memory that a reward function may
need. ALE's single games provide it, but hold the interpreter's lock while they play, so threads would share one core.
Therefore B games are distributed over processes, which write their results to shared memory. Rows equal those of
`envs/atari.py` bit for bit for the same seeds: the same random no-ops, the same maximum of two frames, the same
average over areas in the same order of float32 sums.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.cpu_count import available_cores
from packtrain.envs import river_raid
from packtrain.envs.atari import FIRE, FRAMES_PER_SECOND, PLAYING_NICENESS, SCREEN, Atari, Game, find_game
from packtrain.envs.validation import Answer, Boundary
from packtrain.envs.vector_env import Outcome, Unsaved
from packtrain.errors import ConfigError, EnvError, EnvSetupError, Error

RAM_BYTES = 128
NOOP = 0
STARTUP_SECS = 180.0  # deadline for processes to import, load their games and begin
LEAVING_SECS = 5.0
RESET, STEP, DRAW = b"reset", b"step", b"draw"
SMALLEST = 11  # pixels; cv2 uses integer sums if both sides shrink by an integer factor, as for 10 and less


@dataclass(frozen=True)
class Shared:
    """Shared memory between B games and their vector environment: flat arrays that every process maps."""

    size: int
    frame_size: int
    frame_skip: int
    buffers: dict[str, Any]

    @classmethod
    def make(cls, context: Any, size: int, frame_size: int, frame_skip: int) -> Shared:
        """Allocate the arrays, filled with zeros."""
        shared = cls(size, frame_size, frame_skip, {})
        for name, (shape, dtype) in shared._fields().items():
            shared.buffers[name] = context.RawArray("B", math.prod(shape) * np.dtype(dtype).itemsize)
        return shared

    def _fields(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        size = self.size
        return {
            "seed": ((size,), np.int64),
            "action": ((size,), np.int64),
            "frame": ((size, self.frame_size, self.frame_size), np.uint8),
            "ram": ((size, RAM_BYTES), np.uint8),
            "reward": ((size, self.frame_skip), np.int32),  # per frame
            "lives": ((size,), np.int32),
            "terminated": ((size,), np.bool_),
            "truncated": ((size,), np.bool_),
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """Return views of the memory; they keep it alive."""
        return {
            name: np.frombuffer(self.buffers[name], dtype).reshape(shape)
            for name, (shape, dtype) in self._fields().items()
        }


def find_settings(name: str, atari: Atari) -> tuple[Game, Atari]:
    """Return the game and settings of an id; ConfigError for settings that are not available with console memory."""
    game = find_game(name)
    settings = atari.resolve(game)
    if not settings.idle_start and game.rom != river_raid.ROM:
        raise ConfigError(f"Atari.idle_start = False applies to River Raid only, not to {name!r}")
    if not SMALLEST <= settings.frame_size <= min(SCREEN):
        raise ConfigError(
            f"Atari.frame_size = {settings.frame_size} must lie between {SMALLEST} and {min(SCREEN)} for games with "
            "console memory"
        )
    return game, settings


class AtariRamVectorEnv(Unsaved):
    """B games in processes. Rows are single frames [84, 84]; `info` has the consoles' memory.

    `info["ram"]` is uint8 [B, 128], the console's memory at the moment of the row, `info["ram_before"]` that of the
    row acted on (in the first row of a game: of the same row), and `info["frame_rewards"]` int32 [B, frame_skip] the
    rewards of each frame of the step, whose sum is the reward.

    Args:
      name: an id in one of its two spellings, "RiverraidNoFrameskip-v4" or "ALE/Riverraid-v5".
      atari: how games are played; `num_threads` is the number of processes.
      size: B.
      seed: of the group; each game's seed is derived from it, as in `AleVectorEnv`.
      answer: handling of bad values, see `envs/validation.py`.
      groups: number of such groups that share the cores.
    """

    starting = times_itself = False
    overlaps = True
    rows_last = True  # rows are copied out of the shared memory

    def __init__(self, name: str, atari: Atari, size: int, seed: int, answer: Answer, groups: int = 1):
        game, settings = find_settings(name, atari)  # first: raises the error about a missing extra
        from ale_py import Action, ALEInterface, LoggerMode, roms

        rom = roms.get_rom_path(game.rom)
        if rom is None:
            raise EnvSetupError(f"ale-py has no ROM for {name!r}")
        ALEInterface.setLoggerMode(LoggerMode.Error)
        emulator = ALEInterface()
        emulator.loadROM(rom)
        if tuple(emulator.getScreenDims()) != SCREEN:
            raise EnvSetupError(f"{name!r} has a screen of {emulator.getScreenDims()}, not of {SCREEN}")
        legal = emulator.getLegalActionSet() if settings.full_action_space else emulator.getMinimalActionSet()
        self._name, self._size, self._seed, self._idle_start = name, size, seed, settings.idle_start
        self._life_loss, self._frame_skip = bool(settings.life_loss), settings.frame_skip
        self._serves = bool(settings.fire_reset) and legal[FIRE] == Action.FIRE
        self._up = NOOP if settings.idle_start else legal.index(Action.UP)
        self.observation_space: gym.Space = gym.spaces.Box(0, 255, (settings.frame_size,) * 2, np.uint8)
        self.action_space: gym.Space = gym.spaces.Discrete(len(legal))
        self.reward_channels: tuple[str, ...] = ("train",)
        self.busy_since: float | None = None
        self.boundary = Boundary(self.observation_space, answer, self._describe)
        self._steps = 0
        self._sent = self._fresh = False
        context = multiprocessing.get_context("spawn")  # a fork would copy locks held by other threads
        shared = Shared.make(context, size, settings.frame_size, settings.frame_skip)
        self._arrays = shared.arrays()
        self._arrays["seed"][:] = np.random.SeedSequence(seed).generate_state(size).astype(np.int64) % 2**31
        self._lives = np.zeros(size, np.int32)
        self._over = self._lost = np.zeros(size, bool)
        self._ram = np.zeros((size, RAM_BYTES), np.uint8)
        processes = min(size, settings.num_threads or max(1, available_cores() // groups))
        edges = [size * i // processes for i in range(processes + 1)]
        self._workers = [
            _Worker(context, range(since, until), (str(rom), [action.value for action in legal], settings, shared))
            for since, until in zip(edges, edges[1:], strict=False)
        ]

    def _describe(self, column: int) -> str:
        return f"environment {column} ({self._name}, group seed {self._seed}) at its step {self._steps}"

    def reset(self) -> Outcome:
        """Return the first frames; a second reset starts again from the seed."""
        if self._sent:
            self._collect("step")
        deadline = None if self._fresh else time.monotonic() + STARTUP_SECS
        self._command(RESET)
        self._collect("reset", deadline)
        self._fresh = True
        now = self._arrays
        self._lives, self._ram = now["lives"].copy(), now["ram"].copy()
        self._over = self._lost = no = np.zeros(self._size, bool)
        rewards = {"train": np.zeros(self._size, np.float32)}
        info = {"ram": self._ram, "ram_before": self._ram, "frame_rewards": now["reward"].copy()}
        return Outcome(now["frame"].copy(), ~no, rewards, no, no, None, over=no, life_over=no, info=info)

    def send(self, actions: np.ndarray) -> None:
        """Start the step in the processes. After a lost life FIRE is pressed in place of the action."""
        pressed = np.where(self._lost, FIRE, actions) if self._serves else actions
        if not self._idle_start:
            pressed = np.where(river_raid.waits(self._ram) & (pressed == NOOP), self._up, pressed)
        self._arrays["action"][:] = pressed
        self._command(STEP)

    def recv(self) -> Outcome:
        """Wait for the step and return its outcome."""
        self.busy_since = time.monotonic()
        self._collect("step")
        self.busy_since = None
        self._steps += 1
        now, first = self._arrays, self._over
        lives, ram, frame_rewards = now["lives"].copy(), now["ram"].copy(), now["reward"].copy()
        terminated, truncated = now["terminated"].copy(), now["truncated"].copy()
        over = terminated | truncated
        lost = (lives < self._lives) & (lives > 0) & ~over & ~first
        if self._life_loss:
            terminated = terminated | lost
        before = np.where(first[:, None], ram, self._ram)
        self._lives, self._over, self._lost, self._ram = lives, over, lost, ram
        rewards = {"train": frame_rewards.sum(axis=1).astype(np.float32)}
        frame, rewards, terminated, truncated = self.boundary.cross(now["frame"].copy(), rewards, terminated, truncated)
        info = {"ram": ram, "ram_before": before, "frame_rewards": frame_rewards}
        return Outcome(frame, first, rewards, terminated, truncated, None, over=over, life_over=over | lost, info=info)

    def _command(self, command: bytes) -> None:
        for worker in self._workers:
            try:
                worker.connection.send_bytes(command)
            except OSError as error:
                raise self._gone(worker) from error
        self._sent = True

    def _collect(self, call: str, deadline: float | None = None) -> None:
        """Wait until all processes have finished the call, so that later answers belong to later calls."""
        complaints: list[tuple[Exception | None, Error]] = []
        for worker in self._workers:
            try:
                if deadline is not None and not worker.connection.poll(max(0.0, deadline - time.monotonic())):
                    raise EnvSetupError(f"{self._name!r} did not begin within {STARTUP_SECS:g} s")
                answer = worker.connection.recv_bytes().decode()
            except (EOFError, OSError) as error:
                complaints.append((error, self._gone(worker)))
                continue
            if answer:
                column, _, what = answer.partition(" ")
                complaints.append((None, EnvError(f"{self._describe(int(column))} raised in {call}: {what}")))
        self._sent = False
        if complaints:
            cause, complaint = complaints[0]
            raise complaint from cause

    def _gone(self, worker: _Worker) -> EnvError:
        worker.process.join(LEAVING_SECS)
        columns = worker.columns
        return EnvError(
            f"{self._describe(columns[0])}: its process, which runs environments {columns[0]} to {columns[-1]}, ended "
            f"with exit code {worker.process.exitcode}"
        )

    def picture(self, column: int) -> np.ndarray:
        """Return the last frame in colour."""
        if self._sent:
            raise EnvSetupError(f"{self._name!r} cannot be drawn during a step")
        worker = next(worker for worker in self._workers if column in worker.columns)
        try:
            worker.connection.send_bytes(DRAW + str(column - worker.columns[0]).encode())
            return np.frombuffer(worker.connection.recv_bytes(), np.uint8).reshape(*SCREEN, 3)
        except (EOFError, OSError) as error:
            raise self._gone(worker) from error

    def pictures_per_second(self) -> float:
        """Return the real-time rate: as fast as a person plays."""
        return FRAMES_PER_SECOND / self._frame_skip

    def describe_busy(self) -> str:
        """Return a description of the first game whose process has not answered."""
        late = [worker for worker in self._workers if not worker.connection.closed and not worker.connection.poll()]
        return self._describe(late[0].columns[0] if late else 0)

    def close(self) -> None:
        """End the processes, also in the middle of a step."""
        for worker in self._workers:
            worker.connection.close()  # the process ends when its connection closes
        for worker in self._workers:
            worker.process.join(LEAVING_SECS)
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()
        self._workers = []


class _Worker:
    """One process and the games it plays."""

    def __init__(self, context: Any, columns: range, arguments: Sequence[Any]):
        self.columns = columns
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_play_games, args=(theirs, columns, *arguments), daemon=True)
        self.process.start()
        theirs.close()  # so that each side notices when the other ends


def _play_games(connection: Any, columns: range, rom: str, actions: list[int], settings: Atari, shared: Shared) -> None:
    """Main loop of a process: receive a command, run it, answer None or the failure with its environment."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, PLAYING_NICENESS)  # see atari.with_patient_threads
    arrays = {name: array[columns.start : columns.stop] for name, array in shared.arrays().items()}
    consoles: list[Console] = []
    with contextlib.suppress(EOFError, OSError):  # the parent has ended
        while True:
            command = connection.recv_bytes()
            if command.startswith(DRAW):
                connection.send_bytes(consoles[int(command.removeprefix(DRAW))].picture())
                continue
            complaint, row = b"", 0
            try:
                consoles = consoles or [Console(rom, actions, settings) for _ in columns]
                for row, console in enumerate(consoles):
                    if command == RESET:
                        console.reset(int(arrays["seed"][row]))
                    elif console.terminated or console.truncated:
                        console.reset()
                    else:
                        console.step(int(arrays["action"][row]))
                    console.write(row, arrays)
            except Exception as error:
                complaint = f"{columns[row]} {type(error).__name__}: {error}".encode()
            connection.send_bytes(complaint)


class Console:
    """One game, played as ALE's vector environment plays it.

    A game begins with random no-ops, sampled as in C++; the first of them is FIRE with `fire_reset`. A step lasts
    `frame_skip` frames, or fewer at the end of a game or of its time limit. The observation is the maximum of the last
    two frames. The very last frame of a game is not part of an observation: the maximum is over the frames before it.
    """

    def __init__(self, rom: str, actions: list[int], settings: Atari):
        from ale_py import Action, ALEInterface, LoggerMode

        ALEInterface.setLoggerMode(LoggerMode.Error)
        self._ale = ALEInterface()
        self._ale.setFloat("repeat_action_probability", settings.sticky_actions or 0.0)
        self._rom, self._actions, self._noop_max = rom, actions, settings.noop_max or 0
        self._frame_skip, self._max_frames = settings.frame_skip, settings.max_frames
        self._fire = Action.FIRE.value if settings.fire_reset and Action.FIRE.value in actions else None
        self._draws = np.random.RandomState(0)
        self._frames = 0  # frames of play, without those of the start
        self._screens = np.zeros((2, *SCREEN), np.uint8)
        self._shrink = AreaMean(SCREEN, settings.frame_size)  # one game at a time: larger batches do not fit the cache
        self._rewards = np.zeros(self._frame_skip, np.int32)
        self.terminated = self.truncated = False

    def reset(self, seed: int | None = None) -> None:
        """Begin a new game; with a seed, as if it were the first one. The first call needs a seed."""
        if seed is not None:
            self._ale.setInt("random_seed", seed)
            self._ale.loadROM(self._rom)  # only loading a ROM seeds the emulator
            self._draws = np.random.RandomState(seed)  # the generator that C++ calls mt19937
        self._ale.reset_game()
        if self._fire is not None:
            self._ale.act(self._fire)
        for _ in range(draw_below(max(1, self._noop_max), self._draws) - (self._fire is not None)):
            self._ale.act(NOOP)
            if self._ale.game_over():
                self._ale.reset_game()
        self._ale.getScreenGrayscale(self._screens[0])
        self._screens[1] = 0
        self._rewards[:] = 0
        self._frames = 0
        self.terminated = self.truncated = False

    def step(self, action: int) -> None:
        """Hold an action for `frame_skip` frames."""
        self._rewards[:] = 0
        held = self._actions[action]
        for frame in range(self._frame_skip):
            self._rewards[frame] = self._ale.act(held)
            self._frames += 1
            self.terminated = self._ale.game_over()
            self.truncated = self._frames >= self._max_frames and not self.terminated
            if self.terminated or self.truncated:
                break
            if frame >= self._frame_skip - 2:
                self._ale.getScreenGrayscale(self._screens[self._frame_skip - 1 - frame])
        if self._frame_skip > 1:
            np.maximum(self._screens[0], self._screens[1], out=self._screens[0])

    def write(self, row: int, arrays: dict[str, np.ndarray]) -> None:
        """Write the results of the step into one row of the arrays."""
        arrays["frame"][row] = self._shrink(self._screens[0])
        self._ale.getRAM(arrays["ram"][row])
        arrays["reward"][row] = self._rewards
        arrays["lives"][row] = self._ale.lives()
        arrays["terminated"][row], arrays["truncated"][row] = self.terminated, self.truncated

    def picture(self) -> bytes:
        """Return the screen in colour, [210, 160, 3]."""
        return self._ale.getScreenRGB().tobytes()


def draw_below(n: int, rng: np.random.RandomState) -> int:
    """Return a whole number in [0, n), as libstdc++'s uniform_int_distribution computes it from mt19937.

    Lemire 2019 (arXiv:1805.10941): the upper half of a product of 32-bit numbers, sampled again where that would be
    biased. Other C++ libraries may differ, and then no-ops differ from those of `AleVectorEnv`.
    """
    while True:
        product = int(rng.randint(2**32, dtype=np.uint32)) * n
        if product % 2**32 >= 2**32 % n:
            return product // 2**32


class AreaMean:
    """Shrinks images by averaging areas, bit for bit like cv2.resize with INTER_AREA.

    An output is a weighted sum of the pixels that its area overlaps, along rows first, in float32, left to right and
    top to bottom. The order decides how ties are rounded, and ties are frequent: for 84 pixels, the exact means are
    multiples of 1/200.

    Args:
      shape: height and width of images.
      size: height and width of results.
    """

    def __init__(self, shape: tuple[int, int], size: int):
        (self._rows, row_weights), (self._columns, self._column_weights) = (area_taps(one, size) for one in shape)
        self._row_weights = row_weights[:, :, None]

    def __call__(self, picture: np.ndarray) -> np.ndarray:
        """Return an image uint8 [H, W] as uint8 [size, size]."""
        lines = picture[:, self._columns[0]] * self._column_weights[0]  # [H, size] float32
        for columns, weights in zip(self._columns[1:], self._column_weights[1:], strict=True):
            lines += picture[:, columns] * weights
        means = lines[self._rows[0]] * self._row_weights[0]  # [size, size]
        for rows, weights in zip(self._rows[1:], self._row_weights[1:], strict=True):
            means += lines[rows] * weights
        return np.rint(means, out=means).astype(np.uint8)


def area_taps(size: int, small: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the inputs that each output overlaps and their weights: int and float32 [taps, small].

    Output i covers [i, i + 1) · size / small. Outputs with fewer inputs than others are padded with weights of 0.
    """
    width = size / small
    inputs: list[list[int]] = []
    weights: list[list[float]] = []
    for i in range(small):
        since, until = i * width, min((i + 1) * width, size)
        touched = [j for j in range(math.floor(since), math.ceil(until)) if _overlap(j, since, until) > 1e-3]
        inputs.append(touched)
        weights.append([_overlap(j, since, until) / width for j in touched])
    taps = max(map(len, inputs))
    padded = [touched + [0] * (taps - len(touched)) for touched in inputs]
    shares = [share + [0.0] * (taps - len(share)) for share in weights]
    return np.array(padded).T, np.array(shares, np.float32).T


def _overlap(cell: int, since: float, until: float) -> float:
    return min(cell + 1, until) - max(cell, since)
