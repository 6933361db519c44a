"""River Raid's proxies: rewards that stand in for the score, from the console's memory and the score itself.

Pan, Bhatia and Steinhardt 2022 (arXiv:2201.03544) trained agents on them. Here they are pure functions of arrays, and
functions of a `Step` for `Rewards`, which read `info["ram"]` of `envs/atari_ram.py`. Penalties are positive numbers
here; `RiverRaid` and `selection` take the signed ones of the published code.

Where ours differ from the published code:

1. Memory is read as int64: 50 − 76 is −26, not 230.
2. A fuel depot is recognised in a step with other hits: 110 is a depot and a tanker.
3. The plane's place before the first step of an episode is the middle, not where the last episode left it.
4. Without any setting the reward is the score. There it is 10 a step, whatever happens.
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
MISSILE_Y, PLANE_X, ENTRY = 50, 51, 70  # places in the memory
NO_MISSILE = 180
MIDDLE = 76  # of the river, where a plane begins
WIDEST = 34  # pixels from the middle: 42 to 110 is where a plane can be
WAITING = 48  # where the count-down of a plane's entry stops until somebody plays
SCORES = {"nothing": 0, "tanker": 30, "helicopter": 60, "depot": 80, "jet": 100, "bridge": 500}
DEPOT = SCORES["depot"]
MOST_HITS = 4  # a step of four frames; in play two were the most, three frames apart
BASE = 10  # what a step pays that is not penalised
FIRST_BASE = 20  # the same for pacifists in the first generation of the published code


# -- what the memory says


def plane_x(ram: np.ndarray) -> np.ndarray:
    """Where the plane is, int64 [...], of memories uint8 [..., 128]."""
    return ram[..., PLANE_X].astype(np.int64)


def missile_in_flight(ram: np.ndarray) -> np.ndarray:
    """Whether a missile is in flight, bool [...]. One stays for 26 frames at most."""
    return ram[..., MISSILE_Y] != NO_MISSILE


def waits(ram: np.ndarray) -> np.ndarray:
    """Whether the plane waits for its first input, bool [...].

    A plane enters for 79 frames, in which inputs do nothing, and then stands still until there is one: no fuel is
    burnt and nothing can hit it, for ever. So it is with each plane of a game; the counter of lives falls when the
    next has entered, and where FIRE is pressed after a lost life only the first of a game can wait.
    """
    return ram[..., ENTRY] == WAITING


# -- proxies of arrays


def depots(reward: np.ndarray) -> np.ndarray:
    """How many fuel depots were hit, int64 [...], by the sum of scores of a step.

    A sum is taken as the fewest hits that give it, and among those as the ones with most depots. One hit is certain.
    Of two hits, 160 alone is ambiguous: two depots, or a helicopter and a jet. Rewards of single frames settle it,
    since one missile hits one thing in a frame. What is no such sum has no depot in it.
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
    """The score, with fuel depots worth `multiplier` times as much, float64 [...].

    Args:
      reward: [...] scores of steps, or of frames.
      multiplier: not negative; 1 is the score itself.
    """
    found = DEPOT * depots(reward)
    return np.asarray(reward, np.float64) - found + found * multiplier


def pacifist(ram: np.ndarray, penalty: float, base: float = BASE) -> np.ndarray:
    """`base` a step, less `penalty` while a missile is in flight at its end, float64 [...]."""
    return base - penalty * missile_in_flight(ram).astype(np.float64)


def move(x: np.ndarray, x_before: np.ndarray, begins: np.ndarray, penalty: float) -> np.ndarray:
    """10 a step, less `penalty` if the plane is not where it was, float64 [...].

    A plane that is lost comes back in the middle, which counts as a move.

    Args:
      x: [...] int64, the plane's place after the step.
      x_before: [...] int64, before it.
      begins: [...] bool, the step is an episode's first: the plane was in the middle.
      penalty: of a step with a move.
    """
    return BASE - penalty * (x != np.where(begins, MIDDLE, x_before)).astype(np.float64)


def centre(x: np.ndarray, penalty: float) -> np.ndarray:
    """10 − penalty · (x − 76)² / 20, float64 [...], of places int64."""
    return BASE - penalty * (x - MIDDLE) ** 2 / 20


# -- proxies of steps


class Proxy(Protocol):
    """A reward function of a `Step`, which knows what it can pay."""

    @property
    def rom(self) -> str:
        """Whose memory it reads."""

    def __call__(self, step: Step) -> np.ndarray:
        """[B] Of a step."""

    def values(self) -> dict[str, float]:
        """What a step pays, by what happens in it."""


@configurable
@dataclass(frozen=True)
class ScoreProxy:
    """The score: no proxy at all."""

    rom: ClassVar[str] = ROM

    def __call__(self, step: Step) -> np.ndarray:
        """[B] The game's own reward."""
        return np.asarray(step.reward, np.float64)

    def values(self) -> dict[str, float]:
        """Of one hit, or none."""
        return {name: float(score) for name, score in SCORES.items()}


@configurable
@dataclass(frozen=True)
class FuelProxy:
    """The score with another price of fuel depots: misweighting."""

    rom: ClassVar[str] = ROM
    multiplier: float = 1.0

    def __post_init__(self) -> None:
        _check("FuelProxy", "multiplier", self.multiplier)

    def __call__(self, step: Step) -> np.ndarray:
        """[B] By the rewards of frames if the environment tells them, else by their sum."""
        if "frame_rewards" in step.info:
            return fuel(step.info["frame_rewards"], self.multiplier).sum(axis=-1)
        return fuel(step.reward, self.multiplier)

    def values(self) -> dict[str, float]:
        """Of one hit, or none."""
        return {name: float(fuel(np.array(score), self.multiplier)) for name, score in SCORES.items()}


@configurable
@dataclass(frozen=True)
class PacifistProxy:
    """So much a step, less while a missile is in flight: ontological."""

    rom: ClassVar[str] = ROM
    penalty: float = 10.0
    base: float = BASE

    def __post_init__(self) -> None:
        _check("PacifistProxy", "penalty", self.penalty)

    def __call__(self, step: Step) -> np.ndarray:
        """[B] By the memory after the step."""
        return pacifist(_memory(step, "ram"), self.penalty, self.base)

    def values(self) -> dict[str, float]:
        """With a missile and without."""
        return {"no missile": float(self.base), "missile": float(self.base - self.penalty)}


@configurable
@dataclass(frozen=True)
class MoveProxy:
    """10 a step, less when the plane moves sideways: misweighting."""

    rom: ClassVar[str] = ROM
    penalty: float = 1.0

    def __post_init__(self) -> None:
        _check("MoveProxy", "penalty", self.penalty)

    def __call__(self, step: Step) -> np.ndarray:
        """[B] By the memory before and after the step."""
        after, before = plane_x(_memory(step, "ram")), plane_x(_memory(step, "ram_before"))
        return move(after, before, step.begins, self.penalty)

    def values(self) -> dict[str, float]:
        """With a move and without."""
        return {"still": float(BASE), "move": float(BASE - self.penalty)}


@configurable
@dataclass(frozen=True)
class CentreProxy:
    """10 a step, less the farther the plane is from the middle."""

    rom: ClassVar[str] = ROM
    penalty: float = 1.0

    def __post_init__(self) -> None:
        _check("CentreProxy", "penalty", self.penalty)

    def __call__(self, step: Step) -> np.ndarray:
        """[B] By the memory after the step."""
        return centre(plane_x(_memory(step, "ram")), self.penalty)

    def values(self) -> dict[str, float]:
        """By distance from the middle."""
        paid = centre(np.arange(MIDDLE, MIDDLE + WIDEST + 1), self.penalty)
        return {f"{distance} off": float(value) for distance, value in enumerate(paid)}


def _check(owner: str, name: str, value: float) -> None:
    if not 0 <= value < np.inf:
        raise ConfigError(f"{owner}.{name} = {value} must be finite and not negative")


def _memory(step: Step, name: str) -> np.ndarray:
    if name not in step.info:
        raise EnvError(f"River Raid's proxies need info[{name!r}], which envs/atari_ram.py tells and others do not")
    return step.info[name]


# -- which proxy the published settings mean


class Selection(NamedTuple):
    """What settings of the published code mean."""

    proxy: Proxy  # to learn from
    true_move: Proxy | None  # to judge movement by; None: nothing is judged
    line: str


def selection(
    fuel_multiplier: float = 1.0,
    move_penalty: float = 0.0,
    true_move_penalty: float = 0.0,
    generation: Literal[1, 2] = 2,
) -> Selection:
    """The proxy that the flags of the published code choose, and a line that says so.

    A fuel multiplier other than 1 chooses fuel, or pacifist if it is negative, and the movement flags are ignored.
    Otherwise the movement penalty chooses: move, or centre if it is negative. If that is 0, the score.

    Args:
      fuel_multiplier: m; below 0 a penalty of −m for missiles.
      move_penalty: p; below 0 a penalty of −p for being off the middle.
      true_move_penalty: q, in place of p in the reward that movement is judged by.
      generation: 1 knows fuel and pacifist alone, with 20 a step for pacifists in place of 10.

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
    judged = "" if true_move is None else f"; movement is judged at {abs(true_move_penalty):g}"
    if move_penalty == 0:
        line = f"score: the game's own; the published code pays {BASE} a step here, whatever happens{judged}"
        return Selection(ScoreProxy(), true_move, line if generation == 2 else "score: the game's own")
    kind = "move" if move_penalty > 0 else "centre"
    what = "in a step with a move" if move_penalty > 0 else "· d² / 20 at d pixels off the middle"
    line = f"{kind}: {BASE} a step, −{abs(move_penalty):g} {what}{judged}"
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
    """The rewards of River Raid: what is learned from, "proxy" where it is not the score, and "true".

    With `true_move_penalty` there is a channel "true_move" too, by which movement is judged.

    Args:
      proxy: which one; None: the one that the other settings mean, see `selection`.
      fuel_multiplier: of depots' scores, or below 0 a penalty; None: 10 for fuel, −10 for pacifist, 1 without a proxy.
      move_penalty: of moves, or below 0 of being off the middle; None: 10 for move, −1 for centre, 0 without a proxy.
      true_move_penalty: None: nothing is judged.
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


# -- what a learner can tell apart


class Signal(NamedTuple):
    """What is left of a proxy where rewards are clipped."""

    learned: dict[str, float]  # what a step pays the learner, by what happens in it
    collapses: Literal["the true game", "a constant"] | None  # what it cannot be told from; None: it is something else
    line: str


def distinguishable(values: Mapping[str, float], clip: str, scale: float = 1.0) -> Signal:
    """Whether a learner that clips rewards can tell a proxy from the true game, or from a constant.

    Two rewards count as the same if they differ by less than a thousandth.

    Args:
      values: what a step pays, by what happens in it, as `Proxy.values` says.
      clip: one of packtrain.equations.rewards.REWARD_CLIPPING.
      scale: what rewards are multiplied by before.

    Raises:
      ConfigError: there is no such way to clip.
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
