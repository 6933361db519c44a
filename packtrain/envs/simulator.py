"""Adapts Gymnasium environments that can save and restore their state to functional cores, for planners.

Add two methods to your environment, `snapshot() → anything` and `restore(snapshot)`, and all planners and vector
environments can use it. Gymnasium's classic control, toy text and MuJoCo environments need no change: their saving is
in `gymnasium_state.py`.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np

from packtrain import knobs, trees
from packtrain.envs import options
from packtrain.envs.failures import Failures, log_repeated
from packtrain.envs.gymnasium_guard import reward_channels
from packtrain.envs.gymnasium_state import find_saving
from packtrain.envs.mujoco_warnings import remarks_logged
from packtrain.envs.picture import PICTURES_PER_SECOND
from packtrain.envs.user_code import place_of
from packtrain.envs.validation import Answer, batch_of_one, check_structure, space_leaves
from packtrain.errors import EnvError, EnvSetupError
from packtrain.trees import Tree

CHECKED_STEPS = 10
Result = TypeVar("Result")


class Simulator:
    """A core over one environment, which steps all N states one after the other.

    States are {"state": snapshots, object [N]; "obs": the observations [N, ...], stored since some environments have
    outdated observations after a restore; "over": bool [N]; "key": uint64 [N], a digest of the snapshot, or of the
    observation if a snapshot is more than arrays, bytes and numbers in dicts, lists and tuples}. Finished states do not
    change.

    Only terminations end an episode. `truncated` is ignored, also that of a time limit around the environment: the
    limit is `max_steps`. An environment that counts its own steps and saves the count has states that never recur.

    On construction a simulator saves a start, plays a few random actions, restores, plays them again and compares.

    Args:
      env: a Gymnasium environment, or the id of one, which is then made without its wrappers.
      max_steps: steps until truncation, 1 or more; None for no limit; "time limit" for that of the environment's
        wrapper, which most ids have, and no limit if there is none.
      stochastic: whether steps use `self.np_random` of the environment. It is then replaced by the caller's generator,
        so
        that snapshots need not contain one and a search does not foresee the random numbers. None: known for
        Gymnasium's own environments, and assumed to be false for all others.
      on_bad_value: handling of an observation of the wrong dtype, shape or structure. "raise" is an EnvError.
        "clip" casts it to the dtype of its space, and is an EnvError for other faults. "drop" keeps the state before
        the
        step, with the reward NaN, which the caller must handle.
      restarts: how often in a row an environment that raises is made again; the call that failed is repeated from the
        saved state, so nothing is lost. 0: never. Needs an id.
      **kwargs: for making the environment, if `env` is an id.
    """

    changing = ("key", "over")  # leaves that distinguish states
    savable = False  # snapshots may contain any objects

    def __init__(
        self,
        env: gym.Env | str,
        max_steps: int | str | None = "time limit",
        stochastic: bool | None = None,
        on_bad_value: Answer = "raise",
        restarts: int = 0,
        **kwargs: Any,
    ):
        self._name = env if isinstance(env, str) else _name_of(env)
        options.one_of("Simulator", "stochastic", stochastic, (None, False, True))
        if kwargs and not isinstance(env, str):
            raise EnvSetupError(
                f"Simulator({', '.join(kwargs)}=...): options of an environment require an id instead of an environment"
            )
        made = _make(env, kwargs) if isinstance(env, str) else env
        limit = time_limit(made) if max_steps == "time limit" else max_steps
        self.max_steps = None if limit is None else options.whole_number("Simulator", "max_steps", limit, least=1)
        self._env: gym.Env = made.unwrapped if isinstance(env, str) else made
        self._source = (env, kwargs) if isinstance(env, str) else None  # to make a copy that can be drawn
        self._failures = Failures(0, restarts if self._source is not None else 0)
        self._steps, self._broken = 0, False  # since the latest failure; and whether the environment is to be replaced
        self._pictured: gym.Env | None = None
        self._saving = find_saving(self._env, self._name)
        self.stochastic = self._saving.stochastic if stochastic is None else stochastic
        self.observation_space: gym.Space = self._env.observation_space
        self.action_space: gym.Space = self._env.action_space
        self.reward_channels = reward_channels(self._env)[1:]
        self.pictures_per_second = float(self._env.metadata.get("render_fps") or PICTURES_PER_SECOND)
        for space, what in ((self.observation_space, "observation"), (self.action_space, "action")):
            try:
                space_leaves(space)
            except EnvSetupError as error:
                raise EnvSetupError(f"the {what} space of {self._name}: {error}") from None
        self._answer = on_bad_value
        self.busy_since: float | None = None  # start of the latest state's step: a watchdog times states, not batches
        self._tells_solved = False
        self._digests_snapshots = True
        self._check()

    def initial(self, n: int, rng: np.random.Generator) -> Tree:
        """Return N states after resets, with seeds from `rng`."""
        states = self._empty(n)
        for i, seed in enumerate(rng.integers(2**31, size=n).tolist()):
            observation, _ = self._persist("reset", rng, functools.partial(self._reset, seed))
            if wrong := check_structure(observation, self.observation_space):
                raise EnvError(f"{self._name} returned an observation of {wrong} from reset")
            self._save(states, i, observation)
        return states

    def step(self, states: Tree, actions: Any, rng: np.random.Generator) -> tuple[Tree, Any, Any, dict[str, Any]]:
        """Restore, step and save, one state after the other; extras have "solved" if the environment reports it."""
        snapshots, n = states["state"], len(states["over"])
        states = trees.map(np.copy, states)
        rewards, solved = np.zeros(n, np.float32), np.zeros(n, bool)
        channels = {channel: np.zeros(n, np.float32) for channel in self.reward_channels}
        for i in np.flatnonzero(~states["over"]).tolist():
            action = trees.map(lambda leaf, i=i: leaf[i], actions)
            answer = self._persist("step", rng, functools.partial(self._replay, snapshots[i], action, rng))
            observation, rewards[i], over, info = answer
            self._steps += 1
            if wrong := check_structure(observation, self.observation_space):
                if self._answer == "drop":
                    rewards[i] = np.nan
                    continue
                observation = self._cast(observation, wrong)
            states["over"][i] = over
            solved[i] = info.get("solved", False)
            for channel, values in channels.items():
                values[i] = info[f"reward/{channel}"]
            self._save(states, i, observation)
        extras: dict[str, Any] = {f"reward/{channel}": values for channel, values in channels.items()}
        if self._tells_solved:
            extras["solved"] = solved
        return states, rewards, states["over"].copy(), extras

    def observe(self, states: Tree) -> Tree:
        """Return the observations that are stored with the states."""
        return trees.map(np.copy, states["obs"])

    def render(self, states: Tree, mode: str) -> Any:
        """Return the environment's own image of state 0; an environment passed as object must support it."""
        env, saving = self._env, self._saving
        if env.render_mode != mode:
            if self._source is None:
                raise EnvSetupError(
                    f"{self._name} was made with render_mode={env.render_mode!r} and cannot render {mode!r}"
                )
            if self._pictured is None or self._pictured.render_mode != mode:
                env_id, kwargs = self._source
                self._pictured = _make(env_id, {**kwargs, "render_mode": mode}).unwrapped
                self._pictured.reset(seed=0)
            env, saving = self._pictured, find_saving(self._pictured, self._name)
        saving.restore(states["state"][0])
        return env.render()

    @property
    def replaced(self) -> int:
        """Return how often the environment failed and was made again."""
        return self._failures.total

    def _persist(self, what: str, rng: np.random.Generator, call: Callable[[], Result]) -> Result:
        """Return the result of a call; if it raises, make the environment again and repeat the call."""
        while True:
            self.busy_since = time.monotonic()
            try:
                if self._broken:
                    self._remake(rng)
                return call()
            except Exception as error:
                if not self._failures.allowed:
                    raise
                message = f"{self._name} raised in {what}: {type(error).__name__}: {error}{place_of(error)}"
                self._failures.note(message, "".join(traceback.format_exception(error)), self._steps)
                log_repeated(self._failures)
                self._steps, self._broken = 0, True

    def _remake(self, rng: np.random.Generator) -> None:
        """Replace the environment; what it does before a state is restored into it does not matter."""
        assert self._source is not None
        time.sleep(self._failures.delay)
        self.busy_since = time.monotonic()
        env_id, kwargs = self._source
        self._env = _make(env_id, kwargs).unwrapped
        self._env.reset(seed=int(rng.integers(2**31)))
        self._saving = find_saving(self._env, self._name)
        self._broken = False

    def _reset(self, seed: int) -> tuple[Any, dict]:
        return self._env.reset(seed=seed)

    def _replay(self, snapshot: Any, action: Any, rng: np.random.Generator) -> tuple[Any, float, bool, dict]:
        self._saving.restore(snapshot)
        return self._play(action, rng)

    def _play(self, action: Any, rng: np.random.Generator) -> tuple[Any, float, bool, dict]:
        if self.stochastic:
            self._env.unwrapped.np_random = rng
        observation, reward, terminated, _, info = self._env.step(action)
        return observation, float(reward), bool(terminated), info or {}

    def _cast(self, observation: Any, wrong: str) -> Any:
        """Return an observation of the wrong dtype as one of the right dtype, if bad values are clipped."""
        castable = isinstance(observation, np.ndarray) and observation.shape == self.observation_space.shape
        if self._answer != "clip" or not castable:
            raise EnvError(f"{self._name} returned an observation of {wrong}")
        return observation.astype(self.observation_space.dtype)

    def _empty(self, n: int) -> Tree:
        obs = trees.map(lambda space: np.zeros((n, *space.shape), space.dtype), space_leaves(self.observation_space))
        return {"state": np.empty(n, object), "obs": obs, "over": np.zeros(n, bool), "key": np.zeros(n, np.uint64)}

    def _save(self, states: Tree, i: int, observation: Any) -> None:
        """Write the environment's current state into row i.

        Rows are copies: some environments return their own arrays.
        """
        states["state"][i] = snapshot = self._saving.snapshot()
        obs = batch_of_one(observation, self.observation_space)
        for leaf, row in zip(trees.flatten(states["obs"]), trees.flatten(obs), strict=True):
            leaf[i] = row[0]
        states["key"][i] = digest(self._saving.identity(snapshot) if self._digests_snapshots else obs)

    def _check(self) -> None:
        """Raise an EnvSetupError unless a restored environment repeats the same steps."""
        try:
            observation, _ = self._env.reset(seed=0)
        except Exception as error:
            raise EnvSetupError(
                f"{self._name} raised in its first reset: {type(error).__name__}: {_line(error)}"
            ) from error
        if wrong := check_structure(observation, self.observation_space):
            raise EnvSetupError(f"the first reset of {self._name} returned an observation of {wrong}")
        try:
            snapshot = self._saving.snapshot()
            try:
                digest(self._saving.identity(snapshot))
            except TypeError:
                self._digests_snapshots = False
            first = self._rehearse()
            self._saving.restore(snapshot)
            again = self._rehearse()
            self._saving.restore(snapshot)
            self._rehearse(steps=1)
            # After one step too: some faults are invisible after an even number of steps.
            self._saving.restore(snapshot)
            third = self._rehearse()
        except Exception as error:
            what = f"{type(error).__name__}: {_line(error)}"
            raise EnvSetupError(f"{self._name} raised while it was saved, stepped and restored: {what}") from error
        for step, answers in enumerate(zip(first, again, third, strict=False), start=1):
            different = _first_difference(answers)
            if different is not None:
                raise EnvSetupError(
                    f"{self._name} behaves differently after a restore: at step {step} the {different} differs; a "
                    "snapshot must contain all that steps depend on, and an environment that uses self.np_random "
                    "needs Simulator(stochastic=True)"
                )

    def _rehearse(self, steps: int = CHECKED_STEPS) -> list[dict[str, np.ndarray]]:
        """Return the environment's results for the same few actions, step by step, until it ends."""
        rng, answers = np.random.default_rng(0), []
        actions = copy.deepcopy(self.action_space)  # a copy, so that seeding it has no effect elsewhere
        actions.seed(0)
        for _ in range(steps):
            observation, reward, terminated, info = self._play(actions.sample(), rng)
            self._tells_solved |= "solved" in info
            obs = trees.map(np.array, batch_of_one(observation, self.observation_space))
            parts = trees.named_leaves(obs, "observation")
            answers.append({**parts, "reward": np.array(reward), "terminated": np.array(terminated)})
            if terminated:
                break
        return answers


def _first_difference(answers: Sequence[dict[str, np.ndarray]]) -> str | None:
    """Return what differs between the results of one step; None if nothing does."""
    for name in answers[0]:
        if any(not np.array_equal(answers[0][name], other[name], equal_nan=True) for other in answers[1:]):
            return name
    return None


def time_limit(env: gym.Env) -> int | None:
    """Return the steps after which a wrapper around this environment truncates; None if none does."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit):
            return env._max_episode_steps
        env = env.env
    return None


def digest(tree: Any) -> int:
    """Return a 64-bit hash of arrays, bytes, text, numbers and None in dicts, lists and tuples; else TypeError."""
    hashed = hashlib.blake2b(digest_size=8)
    _feed(hashed.update, tree)
    return int.from_bytes(hashed.digest(), "little")


def _feed(update: Callable[[bytes], None], tree: Any) -> None:
    if isinstance(tree, np.generic):
        tree = tree.item()  # environments mix NumPy's numbers with Python's
    if isinstance(tree, np.ndarray) and not tree.dtype.hasobject:
        update(f"{tree.dtype.str}{tree.shape}".encode() + tree.tobytes())
    elif isinstance(tree, bytes | bytearray):
        update(b"bytes%d:" % len(tree) + tree)
    elif tree is None or isinstance(tree, str | int | float | complex):
        update(f"{type(tree).__name__}{tree!r};".encode())
    elif isinstance(tree, dict):
        update(b"dict%d:" % len(tree))
        for key in sorted(tree, key=repr):
            _feed(update, key)
            _feed(update, tree[key])
    elif isinstance(tree, list | tuple):
        update(b"list%d:" % len(tree))
        for part in tree:
            _feed(update, part)
    else:
        raise TypeError(f"cannot compute a digest of a {type(tree).__name__}")


def _make(env_id: str, kwargs: dict[str, Any]) -> gym.Env:
    try:
        with remarks_logged(gym.spec(env_id).entry_point):
            return gym.make(env_id, **kwargs)
    except gym.error.UnregisteredEnv as error:
        raise EnvSetupError(f"unknown environment {env_id!r}{knobs.nearest(env_id, list(gym.registry))}") from error
    except Exception as error:
        raise EnvSetupError(f"{env_id!r} cannot be made: {type(error).__name__}: {_line(error)}") from error


def _name_of(env: gym.Env) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def _line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else "no reason given"
