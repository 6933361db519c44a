"""River Raid's proxies: rewards that stand in for the score, from the console's memory and the score itself.

Pan, Bhatia and Steinhardt 2022 (arXiv:2201.03544) trained agents on them. Here they are pure functions of arrays, and
functions of a `Step` for `Rewards`, which read `info["ram"]` of `envs/atari_ram.py`. Penalties are positive numbers
here; `RiverRaid` and `selection` take the signed ones of the published code.

Deviations from the published code:

1. Memory is read as int64: 50 − 76 is −26, not 230.
2. A fuel depot is recognised in a step with other hits: 110 is a depot and a tanker.
3. Before the first step of an episode the plane is in the middle; in the published code, where the last episode ended.
4. Without any setting the reward is the score; in the published code it is 10 per step.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from packtrain.config import configurable, unrecorded
from packtrain.envs.rewards import TRUE, Rewards, Step
from packtrain.errors import ConfigError, EnvError

ROM = "riverraid"
MISSILE_Y, PLANE_X, ENTRY = 50, 51, 70  # addresses in the console's memory
NO_MISSILE = 180
MIDDLE = 76  # x position of the middle of the river, where a plane begins
WIDEST = 34  # pixels from the middle: a plane's x is in 42 to 110
WAITING = 48  # value at which the countdown of a plane's entry stops until the first input
SCORES = {"nothing": 0, "tanker": 30, "helicopter": 60, "depot": 80, "jet": 100, "bridge": 500}
DEPOT = SCORES["depot"]
MOST_HITS = 4  # in a step of four frames; at most two were observed, three frames apart
BASE = 10  # reward of a step without penalty
FIRST_BASE = 20  # the same for pacifist in the first generation of the published code


# -- reading the console's memory


def plane_x(ram: np.ndarray) -> np.ndarray:
    """Return the plane's x position, int64 [...], from memories uint8 [..., 128]."""
    return ram[..., PLANE_X].astype(np.int64)


def missile_in_flight(ram: np.ndarray) -> np.ndarray:
    """Return whether a missile is in flight, bool [...]. A flight lasts 26 frames at most."""
    return ram[..., MISSILE_Y] != NO_MISSILE


def waits(ram: np.ndarray) -> np.ndarray:
    """Return whether the plane waits for its first input, bool [...].

    A plane enters for 79 frames, in which inputs do nothing, and then stands still until there is one. Until then it
    burns no fuel and cannot be hit. This holds for each plane of a game. The counter of lives falls when the next plane
    has entered. If FIRE is pressed after a lost life, only the first plane of a game can wait.
    """
    return ram[..., ENTRY] == WAITING


# -- proxies of arrays


def depots(reward: np.ndarray) -> np.ndarray:
    """Return how many fuel depots were hit, int64 [...], from the scores of steps.

    A score is explained by the fewest hits with that sum, and among those by the ones with most depots. A single hit is
    unique. Of two hits, only 160 is ambiguous: two depots, or a helicopter and a jet. Rewards of single frames resolve
    it, since one missile hits one object per frame. A score that is no such sum contains no depot.
    """
    sums = np.asarray(reward).astype(np.int64)
    known = (0 <= sums) & (sums < len(_DEPOTS))
    return np.where(known, _DEPOTS[np.where(known, sums, 0)], 0)


def _depots_of_sums() -> np.ndarray:
    hits = sorted(SCORES.values(), reverse=True)[:-1]
    table = np.full(MOST_HITS * max(hits) + 1, -1, np.int64)
    for n in range(1, MOST_HITS + 1):
        found: dict[int, int] = {}
        for some in itertools.combinations_with_replacement(hits, n):
            found[sum(some)] = max(found.get(sum(some), 0), some.count(DEPOT))
        for total, count in found.items():
            if table[total] < 0:
                table[total] = count
    return table.clip(0)


_DEPOTS = _depots_of_sums()


def fuel(reward: np.ndarray, multiplier: float) -> np.ndarray:
    """Return the score with fuel depots worth `multiplier` times as much, float64 [...].

    Args:
      reward: [...] scores of steps, or of frames.
      multiplier: not negative; 1 is the score itself.
    """
    found = DEPOT * depots(reward)
    return np.asarray(reward, np.float64) - found + found * multiplier


def pacifist(ram: np.ndarray, penalty: float, base: float = BASE) -> np.ndarray:
    """Return `base` per step, minus `penalty` if a missile is in flight at its end, float64 [...]."""
    return base - penalty * missile_in_flight(ram).astype(np.float64)


def move(x: np.ndarray, x_before: np.ndarray, begins: np.ndarray, penalty: float) -> np.ndarray:
    """Return 10 per step, minus `penalty` if the plane's x position has changed, float64 [...].

    A lost plane restarts in the middle, which counts as a move.

    Args:
      x: [...] int64, the plane's x position after the step.
      x_before: [...] int64, before it.
      begins: [...] bool, first step of an episode: the plane was in the middle.
      penalty: of a step with a move.
    """
    return BASE - penalty * (x != np.where(begins, MIDDLE, x_before)).astype(np.float64)


def centre(x: np.ndarray, penalty: float) -> np.ndarray:
    """Return 10 − penalty · (x − 76)² / 20, float64 [...], of positions int64."""
    return BASE - penalty * (x - MIDDLE) ** 2 / 20


# -- proxies of steps


class Proxy(Protocol):
    """A reward function of a `Step` that lists its possible rewards."""

    @property
    def rom(self) -> str:
        """Return the ROM whose memory it reads."""

    def __call__(self, step: Step) -> np.ndarray:
        """Return the rewards of a step, [B]."""

    def values(self) -> dict[str, float]:
        """Return the reward of a step for each event."""


@configurable
@dataclass(frozen=True)
class ScoreProxy:
    """The score itself, without a proxy."""

    rom: ClassVar[str] = ROM

    def __call__(self, step: Step) -> np.ndarray:
        """Return the game's own reward, [B]."""
        return np.asarray(step.reward, np.float64)

    def values(self) -> dict[str, float]:
        """Return the scores of one hit, or none."""
        return {name: float(score) for name, score in SCORES.items()}


@configurable
@dataclass(frozen=True)
class FuelProxy:
    """The score with another value of fuel depots: a misweighting proxy."""

    rom: ClassVar[str] = ROM
    multiplier: float = 1.0

    def __post_init__(self) -> None:
        _check("FuelProxy", "multiplier", self.multiplier)

    def __call__(self, step: Step) -> np.ndarray:
        """Return rewards [B] from the scores of frames if available, otherwise from their sum."""
        if "frame_rewards" in step.info:
            return fuel(step.info["frame_rewards"], self.multiplier).sum(axis=-1)
        return fuel(step.reward, self.multiplier)

    def values(self) -> dict[str, float]:
        """Return the rewards of one hit, or none."""
        return {name: float(fuel(np.array(score), self.multiplier)) for name, score in SCORES.items()}


@configurable
@dataclass(frozen=True)
class PacifistProxy:
    """A constant per step, less while a missile is in flight: an ontological proxy."""

    rom: ClassVar[str] = ROM
    penalty: float = 10.0
    base: float = BASE

    def __post_init__(self) -> None:
        _check("PacifistProxy", "penalty", self.penalty)

    def __call__(self, step: Step) -> np.ndarray:
        """Return rewards [B] from the memory after the step."""
        return pacifist(_memory(step, "ram"), self.penalty, self.base)

    def values(self) -> dict[str, float]:
        """Return the rewards with and without a missile."""
        return {"no missile": float(self.base), "missile": float(self.base - self.penalty)}


@configurable
@dataclass(frozen=True)
class MoveProxy:
    """10 per step, less when the plane moves sideways: a misweighting proxy."""

    rom: ClassVar[str] = ROM
    penalty: float = 1.0

    def __post_init__(self) -> None:
        _check("MoveProxy", "penalty", self.penalty)

    def __call__(self, step: Step) -> np.ndarray:
        """Return rewards [B] from the memory before and after the step."""
        after, before = plane_x(_memory(step, "ram")), plane_x(_memory(step, "ram_before"))
        return move(after, before, step.begins, self.penalty)

    def values(self) -> dict[str, float]:
        """Return the rewards with and without a move."""
        return {"still": float(BASE), "move": float(BASE - self.penalty)}


@configurable
@dataclass(frozen=True)
class CentreProxy:
    """10 per step, less with the plane's distance from the middle."""

    rom: ClassVar[str] = ROM
    penalty: float = 1.0

    def __post_init__(self) -> None:
        _check("CentreProxy", "penalty", self.penalty)

    def __call__(self, step: Step) -> np.ndarray:
        """Return rewards [B] from the memory after the step."""
        return centre(plane_x(_memory(step, "ram")), self.penalty)

    def values(self) -> dict[str, float]:
        """Return the rewards by distance from the middle."""
        paid = centre(np.arange(MIDDLE, MIDDLE + WIDEST + 1), self.penalty)
        return {f"{distance} off": float(value) for distance, value in enumerate(paid)}


def _check(owner: str, name: str, value: float) -> None:
    if not 0 <= value < np.inf:
        raise ConfigError(f"{owner}.{name} = {value} must be finite and not negative")


def _memory(step: Step, name: str) -> np.ndarray:
    if name not in step.info:
        raise EnvError(f"River Raid's proxies need info[{name!r}], which only envs/atari_ram.py provides")
    return step.info[name]


# -- the proxy that the published settings select


class Selection(NamedTuple):
    """The proxies that settings of the published code select."""

    proxy: Proxy  # reward to train on
    true_move: Proxy | None  # reward that reports movement; None: not reported
    line: str


def selection(
    fuel_multiplier: float = 1.0,
    move_penalty: float = 0.0,
    true_move_penalty: float = 0.0,
    generation: Literal[1, 2] = 2,
) -> Selection:
    """Return the proxy that the flags of the published code select, and a line that describes it.

    A fuel multiplier other than 1 selects fuel, or pacifist if it is negative, and the movement flags are ignored.
    Otherwise the movement penalty selects move, or centre if it is negative. If that is 0, the score.

    Args:
      fuel_multiplier: m; below 0 a penalty of −m for missiles.
      move_penalty: p; below 0 a penalty of −p for distance from the middle.
      true_move_penalty: q, in place of p in the reported movement reward.
      generation: 1 has fuel and pacifist only, with 20 per step for pacifist in place of 10.

    Raises:
      ConfigError: penalties of two kinds, or movement in generation 1.
    """
    if generation not in (1, 2):
        raise ConfigError(f"selection.generation = {generation!r} must be 1 or 2")
    if generation == 1 and (move_penalty or true_move_penalty):
        raise ConfigError("selection.generation = 1 has no movement penalties")
    if move_penalty * true_move_penalty < 0:
        raise ConfigError(
            f"selection.true_move_penalty = {true_move_penalty:g} is of another kind than move_penalty = "
            f"{move_penalty:g}: both penalise moves (above 0) or both being off the middle (below 0)"
        )
    if fuel_multiplier != 1:
        ignored = [
            f"{name} = {value:g}"
            for name, value in (("move_penalty", move_penalty), ("true_move_penalty", true_move_penalty))
            if value
        ]
        aside = f"; {' and '.join(ignored)} ignored" if ignored else ""
        if fuel_multiplier < 0:
            base = FIRST_BASE if generation == 1 else BASE
            line = f"pacifist: {base} a step, {-fuel_multiplier:g} less while a missile is in flight{aside}"
            return Selection(PacifistProxy(-fuel_multiplier, base), None, line)
        line = f"fuel: the score, fuel depots at {DEPOT * fuel_multiplier:g} points in place of {DEPOT}{aside}"
        return Selection(FuelProxy(fuel_multiplier), None, line)
    true_move = None if true_move_penalty == 0 else _movement(true_move_penalty)
    reported = "" if true_move is None else f"; reported movement penalty: {abs(true_move_penalty):g}"
    if move_penalty == 0:
        line = f"score: the game's own; the published code pays {BASE} a step here, whatever happens{reported}"
        return Selection(ScoreProxy(), true_move, line if generation == 2 else "score: the game's own")
    kind = "move" if move_penalty > 0 else "centre"
    what = "in a step with a move" if move_penalty > 0 else "· d² / 20 at d pixels off the middle"
    line = f"{kind}: {BASE} a step, −{abs(move_penalty):g} {what}{reported}"
    return Selection(_movement(move_penalty), true_move, line)


PROXIES = {TRUE: {}, "fuel": {"fuel_multiplier": 10.0}, "pacifist": {"fuel_multiplier": -10.0},
           "move": {"move_penalty": 10.0}, "centre": {"move_penalty": -1.0}}  # fmt: skip


@configurable
def RiverRaid(  # noqa: N802  (named as configurations name it)
    proxy: Literal["true", "fuel", "pacifist", "move", "centre"] | None = None,
    fuel_multiplier: float | None = None,
    move_penalty: float | None = None,
    true_move_penalty: float | None = None,
    generation: Literal[1, 2] = 2,
) -> Rewards:
    """Return the rewards of River Raid: "true" is the score, and "proxy" the training reward if it is another.

    With `true_move_penalty` the channel "true_move" is added, which reports movement.

    Args:
      proxy: name of the proxy; None: selected by the other settings, see `selection`.
      fuel_multiplier: of depots' scores, or below 0 a penalty; None: 10 for fuel, −10 for pacifist, 1 without a proxy.
      move_penalty: of moves, or below 0 of being off the middle; None: 10 for move, −1 for centre, 0 without a proxy.
      true_move_penalty: None: movement is not reported.
      generation: of the published code, whose constants differ: see `selection`.

    Raises:
      ConfigError: the settings contradict each other.
    """
    given = {"fuel_multiplier": fuel_multiplier, "move_penalty": move_penalty}
    if proxy is not None:
        usual = PROXIES[proxy]
        for name, value in given.items():
            if value is None:
                given[name] = usual.get(name)
            elif name not in usual or (value < 0) != (usual[name] < 0):
                raise ConfigError(f"RiverRaid.{name} = {value:g} means another proxy than RiverRaid.proxy = {proxy!r}")
    with unrecorded():
        chosen = selection(
            1.0 if given["fuel_multiplier"] is None else given["fuel_multiplier"],
            given["move_penalty"] or 0.0,
            true_move_penalty or 0.0,
            generation,
        )
        functions = {} if isinstance(chosen.proxy, ScoreProxy) else {"proxy": chosen.proxy}
        judged = {} if chosen.true_move is None else {"true_move": chosen.true_move}
        return Rewards("proxy" if functions else TRUE, {**functions, **judged}, chosen.line)


def _movement(penalty: float) -> Proxy:
    return CentreProxy(-penalty) if penalty < 0 else MoveProxy(penalty)


# -- proxies under reward clipping


class Signal(NamedTuple):
    """A proxy's rewards after clipping."""

    learned: dict[str, float]  # clipped reward of a step for each event
    collapses: Literal["the true game", "a constant"] | None  # what it is indistinguishable from; None: neither
    line: str


def distinguishable(values: Mapping[str, float], clip: str, scale: float = 1.0) -> Signal:
    """Return whether a learner that clips rewards can distinguish a proxy from the true game and from a constant.

    Two rewards count as the same if they differ by less than a thousandth.

    Args:
      values: reward of a step for each event, as returned by `Proxy.values`.
      clip: one of packtrain.equations.rewards.REWARD_CLIPPING.
      scale: factor of rewards before clipping.

    Raises:
      ConfigError: unknown clipping.
    """
    import torch

    from packtrain.equations.rewards import REWARD_CLIPPING, clip_reward

    if clip not in REWARD_CLIPPING:
        raise ConfigError(f"distinguishable.clip = {clip!r} must be one of {', '.join(REWARD_CLIPPING)}")

    def learned_from(paid: Mapping[str, float]) -> np.ndarray:
        return clip_reward(scale * torch.tensor(list(paid.values()), dtype=torch.float64), clip).numpy()

    given = learned_from(values)
    learned = dict(zip(values, given.tolist(), strict=True))
    if values.keys() == SCORES.keys():
        of_scores = {name: float(SCORES[name]) for name in values}
        if np.allclose(given, learned_from(of_scores), rtol=1e-3, atol=0):
            return Signal(learned, "the true game", f"under {clip} the same as training on the score")
    if np.allclose(given, given[0], rtol=1e-3, atol=0):
        return Signal(
            learned, "a constant", f"under {clip} every step pays {given[0]:g}: nothing to learn but to stay alive"
        )
    levels = ", ".join(f"{level:g}" for level in sorted({float(f"{value:.3g}") for value in given}))
    return Signal(learned, None, f"under {clip} steps pay {levels}")
