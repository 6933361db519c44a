"""Atari games to plan in: an emulator with save and restore, as a functional core.

`envs/atari.py` plays games in parallel and fast, but cannot restore states. Here one emulator steps all N states one
after the other. Observations are the same: grey frames, the maximum of the last two, shrunk by averaging areas.
"""

from __future__ import annotations

import time
from dataclasses import fields, replace
from typing import Any

import gymnasium as gym
import numpy as np

from packtrain.envs import options
from packtrain.envs.atari import FIRE, FRAMES_PER_SECOND, Atari, find_game
from packtrain.envs.simulator import digest
from packtrain.errors import EnvSetupError
from packtrain.trees import Tree

NOOP = 0


class AtariSimulator:
    """One Atari game as a core.

    States are {"ale": the emulator's own states, object [N]; "frames": uint8 [N, frame_stack, size, size], newest last;
    "lives": int32 [N]; "serve": bool [N], FIRE comes next; "over": bool [N]; "key": uint64 [N], a digest of the
    console's memory}. Frames are kept with the states, because the emulator's screen is not part of its state: after a
    restore it still shows the previous screen. Observations are the frames, [size, size] if `frame_stack` is 1. A step
    that ends the game before its last two frames shows the very last. Rewards are the game's own, summed over the
    frames of a step. A finished game does not change any more.

    With sticky actions the emulator's generator is part of a state: the same actions from the same state meet the same
    randomness, so a search foresees it. Keys are then those of paths, since memory does not determine later randomness.

    A terminated core is finished. So a lost life ends an episode only if `life_loss` is set, and the next episode is a
    new game; the protocol is ignored here. The other settings are those of `Atari`, and fields that are None follow the
    id. After a lost life the next step presses FIRE, if `fire_reset` is set.

    Args:
      game: an id in one of its two spellings, "PongNoFrameskip-v4" or "ALE/Pong-v5".
      atari: how it is played; None for `Atari` as configured.
      frame_stack: number of frames in an observation; a start repeats its first.
      **settings: fields of `Atari` that replace those of `atari`.
    """

    changing = ("key", "over", "serve")  # leaves that distinguish states
    savable = False  # the emulator's states cannot be written to files

    def __init__(self, game: str, atari: Atari | None = None, frame_stack: int = 1, **settings: Any):
        found = find_game(game)  # first: raises the error about a missing extra
        from ale_py import Action, ALEInterface, LoggerMode, roms

        try:
            atari = replace(Atari() if atari is None else atari, **settings)
        except TypeError:
            known = ", ".join(field.name for field in fields(Atari))
            raise EnvSetupError(f"AtariSimulator({', '.join(settings)}=...): the settings are {known}") from None
        self.settings = replace(atari.resolve(found), life_loss=bool(atari.life_loss))
        self.frame_stack = options.whole_number("AtariSimulator", "frame_stack", frame_stack, least=1)
        self.frame_size, self.frame_skip = self.settings.frame_size, self.settings.frame_skip
        self.sticky_actions, self.noop_max = self.settings.sticky_actions or 0.0, self.settings.noop_max or 0
        self.max_steps: int | None = -(-self.settings.max_frames // self.frame_skip)
        self.pictures_per_second = FRAMES_PER_SECOND / self.frame_skip
        ALEInterface.setLoggerMode(LoggerMode.Error)
        self._ale = ALEInterface()
        self._ale.setFloat("repeat_action_probability", self.sticky_actions)
        rom = roms.get_rom_path(found.rom)
        if rom is None:
            raise EnvSetupError(f"ale-py has no ROM for {game!r}")
        self._rom = rom
        self.busy_since: float | None = None  # start of the latest state's step: a watchdog times states, not batches
        self._power_on(0)
        everything = self.settings.full_action_space
        self._actions = self._ale.getLegalActionSet() if everything else self._ale.getMinimalActionSet()
        self._fire = Action.FIRE if self.settings.fire_reset and self._actions[FIRE] == Action.FIRE else None
        height, width = self._ale.getScreenDims()
        if self.frame_size > min(height, width):
            problem = f"frame_size must be at most {min(height, width)}"
            raise EnvSetupError(f"AtariSimulator(frame_size={self.frame_size}): {problem}")
        self._screens = np.empty((2, height, width), np.uint8)
        self._rows, self._columns = area_weights(height, self.frame_size), area_weights(width, self.frame_size).T
        self._start, self._first_frame = self._ale.cloneState(), self._look()
        shape = (self.frame_stack, self.frame_size, self.frame_size)[self.frame_stack == 1 :]
        self.observation_space: gym.Space = gym.spaces.Box(0, 255, shape, np.uint8)
        self.action_space: gym.Space = gym.spaces.Discrete(len(self._actions))

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return N new games after their no-op frames; with sticky actions each has its own seed."""
        size = self.frame_size
        states = {
            "ale": np.empty(n, object),
            "frames": np.empty((n, self.frame_stack, size, size), np.uint8),
            "lives": np.zeros(n, np.int32),
            "serve": np.zeros(n, bool),
            "over": np.zeros(n, bool),
            "key": np.zeros(n, np.uint64),
        }
        seeds = rng.integers(2**31, size=n).tolist()
        waits = rng.integers(max(self.noop_max, 1), size=n).tolist()
        for i, (seed, wait) in enumerate(zip(seeds, waits, strict=True)):
            self.busy_since = time.monotonic()
            frame = self._begin(seed)
            for _ in range(wait):
                self._ale.act(NOOP)
            if self._ale.game_over():  # over without any input: then start without no-ops
                frame = self._begin(seed)
            if self._fire is not None:
                self._ale.act(self._fire)
            if self._ale.getEpisodeFrameNumber():
                frame = self._look()
            states["frames"][i] = frame
            self._save(states, i, seed)
        return states

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Restore, play `frame_skip` frames and save, one state after the other."""
        emulated, lives, origins = states["ale"], states["lives"], states["key"]
        states = {name: leaf.copy() for name, leaf in states.items()}
        rewards = np.zeros(len(lives), np.float32)
        for i in np.flatnonzero(~states["over"]).tolist():
            self.busy_since = time.monotonic()
            self._ale.restoreState(emulated[i])
            rewards[i], frame = self._play(self._fire if states["serve"][i] else self._actions[actions[i]])
            states["frames"][i, :-1] = states["frames"][i, 1:]
            states["frames"][i, -1] = frame
            self._save(states, i, int(origins[i]))
            lost = states["lives"][i] < lives[i]
            states["over"][i] = self._ale.game_over() or (lost and self.settings.life_loss)
            states["serve"][i] = lost and self._fire is not None and not states["over"][i]
        return states, rewards, states["over"].copy(), {}

    def observe(self, states: Tree) -> Tree:
        """Return the frames that are stored with the states."""
        return states["frames"][:, 0].copy() if self.frame_stack == 1 else states["frames"].copy()

    def render(self, states: Tree, mode: str) -> Any:
        """Return the newest frame of state 0, in grey: uint8 [size, size, 3]."""
        options.one_of("AtariSimulator", "render_mode", mode, ("rgb_array",))
        return states["frames"][0, -1][:, :, None].repeat(3, axis=2)

    def _power_on(self, seed: int) -> None:
        self._ale.setInt("random_seed", seed)
        self._ale.loadROM(self._rom)
        self._ale.reset_game()

    def _begin(self, seed: int) -> np.ndarray:
        """Begin a new game and return its first frame."""
        if self.sticky_actions:
            self._power_on(seed)  # slow, a tenth of a second: only loading a ROM seeds the emulator
            return self._look()
        self._ale.restoreState(self._start)
        return self._first_frame

    def _look(self) -> np.ndarray:
        self._ale.getScreenGrayscale(self._screens[0])
        return self._shrink(self._screens[0])

    def _play(self, action: Any) -> tuple[float, np.ndarray]:
        """Return the sum of rewards and the observation after `frame_skip` frames, or fewer if the game ends."""
        reward, shown = 0.0, 0
        for left in reversed(range(self.frame_skip)):
            reward += self._ale.act(action)
            over = self._ale.game_over()
            if left < 2 or over:
                self._ale.getScreenGrayscale(self._screens[shown])
                shown += 1
            if over:
                break
        return reward, self._shrink(self._screens[:shown].max(axis=0))

    def _shrink(self, screen: np.ndarray) -> np.ndarray:
        return np.rint(self._rows @ screen.astype(np.float32) @ self._columns).astype(np.uint8)

    def _save(self, states: Tree, i: int, origin: int) -> None:
        """Write the emulator's state into row i; `origin` is the key of the previous state, or the game's seed."""
        luck = self.sticky_actions > 0
        states["ale"][i] = self._ale.cloneState(include_rng=luck)
        states["lives"][i] = self._ale.lives()
        memory = self._ale.getRAM()
        states["key"][i] = digest((memory, origin) if luck else memory)


def area_weights(size: int, small: int) -> np.ndarray:
    """Return weights [small, size] that average areas: output i is the mean over [i, i + 1) · size / small."""
    edges = np.arange(small + 1) * (size / small)
    cells = np.arange(size)
    covered = np.minimum(edges[1:, None], cells + 1) - np.maximum(edges[:-1, None], cells)  # [small, size]
    return (np.clip(covered, 0, None) * (small / size)).astype(np.float32)
