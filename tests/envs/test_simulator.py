"""Simulator: your own environment by two methods, Gymnasium's own by none; what cannot be restored is refused."""

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest

import packtrain.envs.registration  # noqa: F401  (registers)
from packtrain import trees
from packtrain.envs.functional_vector_env import FunctionalVectorEnv
from packtrain.envs.simulator import Simulator, digest
from packtrain.errors import EnvError, EnvSetupError
from packtrain.planning.model import CoreModel

GYMNASIUM = [
    ("CartPole-v1", {}),
    ("Acrobot-v1", {}),
    ("MountainCar-v0", {}),
    ("MountainCarContinuous-v0", {}),
    ("Pendulum-v1", {}),
    ("FrozenLake-v1", {"is_slippery": False}),
    ("CliffWalking-v1", {}),
    ("Taxi-v4", {}),
]
MUJOCO = [("HalfCheetah-v5", {}), ("Hopper-v5", {}), ("Humanoid-v5", {}), ("Reacher-v5", {})]


class Ledge(gym.Env):
    """A walk on the cells 0 … 5: action 1 goes right, 0 left. At 5 it is solved, below 0 lost."""

    observation_space = gym.spaces.Dict(
        {"cell": gym.spaces.Box(-1, 5, (1,), np.float32), "far": gym.spaces.Discrete(2)}
    )
    action_space = gym.spaces.Discrete(2)
    reward_channels = ("steps",)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = int(self.np_random.integers(1, 4))
        self.total = 0.0
        return self.look(), {}

    def step(self, action):
        self.cell += 2 * int(action) - 1
        self.total += self.cell
        terminated = self.cell in (-1, 5)
        info = {"solved": self.cell == 5, "reward/steps": 1}
        return self.look(), float(self.cell), terminated, False, info

    def look(self):
        return {"cell": np.array([self.cell], np.float32), "far": int(self.cell > 2)}

    def snapshot(self):
        return (self.cell, self.total)

    def restore(self, snapshot):
        self.cell, self.total = snapshot


def play(env, seed, actions):
    """Rewards and the last observation of an episode, without clocks."""
    env.reset(seed=seed)
    rewards = []
    for action in actions:
        observation, reward, terminated, *_ = env.step(action)
        rewards.append(reward)
        if terminated:
            break
    return rewards, observation


def assert_same(left, right):
    trees.map(lambda a, b: np.testing.assert_array_equal(a, b), left, right)


def row(tree, i):
    return trees.map(lambda leaf: leaf[i], tree)


def assert_plays_like_the_environment(env_id, kwargs, steps=60):
    """Four games interleaved in one simulator against the same games played one after the other."""
    core, env = Simulator(env_id, **kwargs), gym.make(env_id, **kwargs).unwrapped
    core.action_space.seed(1)
    actions = [np.stack([core.action_space.sample() for _ in range(4)]) for _ in range(steps)]
    rng = np.random.default_rng(2)
    states, seeds, over = core.initial(4, rng), np.random.default_rng(2).integers(2**31, size=4), np.zeros(4, bool)
    rewards = [[] for _ in range(4)]
    for batch in actions:
        alive = np.flatnonzero(~over)
        states, paid, over, _ = core.step(states, batch, rng)
        for i in alive:
            rewards[i].append(paid[i])
    for i in range(4):
        expected, last = play(env, int(seeds[i]), [batch[i] for batch in actions])
        np.testing.assert_array_equal(rewards[i], np.array(expected, np.float32))
        np.testing.assert_array_equal(core.observe(states)[i], last)


@pytest.mark.parametrize(("env_id", "kwargs"), GYMNASIUM, ids=lambda value: str(value))
def test_gymnasiums_own_play_as_they_do(env_id, kwargs):
    """Fails if an attribute that steps depend on is left out: CartPole pays 0 for a fall it remembers too well."""
    assert_plays_like_the_environment(env_id, kwargs)


@pytest.mark.parametrize(("env_id", "kwargs"), MUJOCO, ids=lambda value: str(value))
def test_mujoco_plays_as_it_does(env_id, kwargs, tmp_path, monkeypatch):
    """To the last bit. Humanoid fails if the derived positions are not saved beside the state."""
    pytest.importorskip("mujoco")
    pytest.importorskip("imageio")  # Gymnasium's MuJoCo environments import it
    monkeypatch.chdir(tmp_path)  # where MuJoCo writes its log
    assert_plays_like_the_environment(env_id, kwargs, steps=8)


def test_two_methods_are_enough():
    core, rng = Simulator(Ledge()), np.random.default_rng(0)
    states = core.initial(40, rng)
    assert set(states["obs"]["cell"][:, 0]) == {1, 2, 3}, "starts differ with the seeds drawn"
    assert_same(states, core.initial(40, np.random.default_rng(0)))
    cells, over = states["obs"]["cell"][:, 0], np.zeros(40, bool)
    for _ in range(30):
        actions = rng.integers(2, size=40)
        following, rewards, terminated, extras = core.step(states, actions, rng)
        expected = np.where(over, cells, cells + 2 * actions - 1)
        np.testing.assert_array_equal(following["obs"]["cell"][:, 0], expected)
        np.testing.assert_array_equal(rewards, np.where(over, 0, expected))
        np.testing.assert_array_equal(terminated, (expected < 0) | (expected > 4))
        np.testing.assert_array_equal(extras["solved"], (expected == 5) & ~over)
        np.testing.assert_array_equal(extras["reward/steps"], ~over)
        np.testing.assert_array_equal(following["obs"]["far"], expected > 2)
        states, cells, over = following, expected, terminated
    assert over.mean() > 0.8


def test_searching_leaves_states_as_they_were():
    """Fails if a step writes into its argument, or if a snapshot is shared with the environment and changes later."""
    core, rng = Simulator("MountainCarContinuous-v0"), np.random.default_rng(0)
    root = core.initial(3, rng)
    kept = copy.deepcopy(root)
    states = root
    for _ in range(20):
        states, *_ = core.step(states, rng.uniform(-1, 1, (3, 1)).astype(np.float32), rng)
        core.observe(states)[:] = 7
    assert [pickle.dumps(one) for one in root["state"]] == [pickle.dumps(one) for one in kept["state"]]
    assert_same({**root, "state": 0}, {**kept, "state": 0})
    actions = np.ones((3, 1), np.float32)
    assert_same(core.step(root, actions, rng)[0]["obs"], core.step(kept, actions, rng)[0]["obs"])
    assert not np.shares_memory(core.observe(root), root["obs"])


def test_alpackas_names_and_wrappers_with_a_state_of_their_own():
    class Cloned(Ledge):
        snapshot = restore = None

        def clone_state(self):
            return self.cell

        def restore_state(self, state):
            self.cell, self.total = state, 0.0
            return self.look()

    class Doubled(gym.Wrapper):
        """Pays double in every other step."""

        def reset(self, **kwargs):
            self.odd = False
            return super().reset(**kwargs)

        def step(self, action):
            observation, reward, *rest = super().step(action)
            self.odd = not self.odd
            return observation, reward * (1 + self.odd), *rest

    class Saved(Doubled):
        def snapshot(self):
            return self.odd, self.env.clone_state()

        def restore(self, snapshot):
            self.odd = snapshot[0]
            self.env.restore_state(snapshot[1])

    core, rng = Simulator(Cloned()), np.random.default_rng(0)
    assert core.initial(1, rng)["state"][0] in (1, 2, 3)
    core = Simulator(Saved(Cloned()))
    states = core.initial(1, rng)
    after_one = core.step(states, np.array([1]), rng)
    after_two = core.step(after_one[0], np.array([0]), rng)
    again = core.step(states, np.array([1]), rng)
    cell = states["obs"]["cell"][0, 0]
    assert (after_one[1], after_two[1], again[1]) == (2 * (cell + 1), cell, 2 * (cell + 1))
    with pytest.raises(EnvSetupError, match="at step 1 the reward differs"):
        Simulator(Doubled(Cloned()))


def test_what_cannot_be_restored_is_refused_in_one_line():
    class Plain(Ledge):
        snapshot = restore = None

    with pytest.raises(
        EnvSetupError, match=r"^Plain cannot be restored: a planner needs the methods snapshot\(\) and restore\("
    ):
        Simulator(Plain())
    with pytest.raises(EnvSetupError, match=r"^Blackjack-v1 cannot be restored"):
        Simulator("Blackjack-v1")


class Forgetful(Ledge):
    """Breaks one promise in the fourth step after a restore, and from then on."""

    def __init__(self, fault):
        self.fault, self.steps, self.restores = fault, 0, 0

    def restore(self, snapshot):
        super().restore(snapshot)
        self.steps, self.restores = 0, self.restores + 1

    def step(self, action):
        self.cell = 2
        observation, reward, terminated, truncated, info = super().step(action)
        self.steps += 1
        if self.steps >= 4 and self.restores > 0:
            if self.fault == "reward":
                reward += 1e-6
            elif self.fault == "terminated":
                terminated = True
            elif self.fault == "observation/far":
                observation["far"] = 1 - observation["far"]
            elif self.fault == "observation/cell":
                observation["cell"] += 1
        return observation, reward, terminated, truncated, info


@pytest.mark.parametrize("fault", ["reward", "terminated", "observation/far", "observation/cell"])
def test_a_restore_that_changes_the_future_is_named(fault):
    with pytest.raises(EnvSetupError, match=rf"^Forgetful behaves .* at step 4 the {fault} differs; ") as error:
        Simulator(Forgetful(fault))
    assert "\n" not in str(error.value)
    Simulator(Forgetful("nothing"))


def test_a_snapshot_that_lacks_something_is_found():
    class Deep(Ledge):
        """Pays for all cells so far, and forgets to save their sum."""

        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, self.total, *rest

        def restore(self, snapshot):
            self.cell = snapshot[0]

    with pytest.raises(EnvSetupError, match="at step 1 the reward differs"):
        Simulator(Deep())


def test_draws_need_the_word_stochastic():
    class Windy(Ledge):
        def step(self, action):
            return super().step(action if self.np_random.random() < 0.5 else 1 - action)

    with pytest.raises(EnvSetupError, match=r"observation/cell differs.*Simulator\(stochastic=True\)"):
        Simulator(Windy())
    core = Simulator(Windy(), stochastic=True)
    assert not CoreModel(core).deterministic and CoreModel(Simulator(Ledge())).deterministic
    states = core.initial(2000, np.random.default_rng(0))
    rng, again = np.random.default_rng(1), np.random.default_rng(1)
    following, *_ = core.step(states, np.ones(2000, int), rng)
    right = following["obs"]["cell"] > states["obs"]["cell"]
    assert abs(right.mean() - 0.5) < 0.05  # fails if all states meet the same wind
    assert_same(core.step(states, np.ones(2000, int), again)[0]["obs"], following["obs"])


def test_slippery_ice_draws_from_the_generator_it_is_given():
    """Fails if the simulator foresees where the ice carries: thirds must come out, and single states as the batch."""
    core = Simulator("FrozenLake-v1")
    assert core.stochastic and not Simulator("FrozenLake-v1", is_slippery=False).stochastic
    assert not Simulator("Taxi-v4").stochastic and Simulator("Taxi-v4", fickle_passenger=True).stochastic
    states = core.initial(1500, np.random.default_rng(0))
    rng, rng_of_singles = np.random.default_rng(1), np.random.default_rng(1)
    following, *_ = core.step(states, np.full(1500, 1), rng)
    shares = [np.mean(core.observe(following) == cell) for cell in (0, 1, 4)]  # down: left (wall), right or down
    np.testing.assert_allclose(shares, 1 / 3, atol=0.05)
    for i in range(20):
        alone, *_ = core.step(trees.map(lambda leaf, i=i: leaf[i : i + 1], states), np.array([1]), rng_of_singles)
        assert alone["obs"][0] == following["obs"][i]


def test_keys_know_a_state_again():
    """Fails if a key depends on how a state was reached, on the time, or on the kind of number it is held in."""
    core, rng = Simulator("FrozenLake-v1", is_slippery=False), np.random.default_rng(0)
    model, left, down, right, up = CoreModel(core), 0, 1, 2, 3

    def after(*actions):
        states = core.initial(1, rng)
        for action in actions:
            states, *_ = core.step(states, np.array([action]), rng)
        return model.keys(states)[0]

    assert after(right, down, down) != after(right, right, down)
    assert after(right, left) == after(up) == after()
    assert len({after(*[right] * steps) for steps in range(4)}) == 4


def test_keys_of_snapshots_that_are_objects_come_from_observations():
    class Opaque(Ledge):
        def snapshot(self):
            box = object.__new__(type("Box", (), {}))
            box.cell, box.total = self.cell, self.total
            return box

        def restore(self, snapshot):
            self.cell, self.total = snapshot.cell, snapshot.total

    rng = np.random.default_rng(0)
    kinds = {}
    for core in (Simulator(Opaque()), Simulator(Ledge())):
        states = core.initial(30, rng)
        there, *_ = core.step(states, np.ones(30, int), rng)
        back, *_ = core.step(there, np.zeros(30, int), rng)
        kinds[type(core._env)] = states["key"], back["key"], back["over"]
        assert len(np.unique(states["key"])) == 3
    opaque, open_ = kinds[Opaque], kinds[Ledge]
    assert (opaque[0] == opaque[1])[~opaque[2]].all()
    assert (open_[0] != open_[1])[~open_[2]].all(), "this one saves the total too, which is not the same again"


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, 2),
        (np.zeros(3), np.zeros(4)),
        (np.zeros(2, np.float32), np.zeros(1, np.float64)),
        ((1, (2, 3)), ((1, 2), 3)),
        ({"a": 1}, {"b": 1}),
        (b"ab", b"ac"),
        ((b"a", b"b"), (b"ab", b"")),
        (None, 0),
        ("1", 1),
        ((True, 1.5), (False, 1.5)),
    ],
)
def test_digests_differ(left, right):
    assert digest(left) != digest(right)
    assert digest(left) == digest(copy.deepcopy(left))


def test_digests_of_the_same_numbers():
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest((np.int64(3), 1)) == digest((3, 1))
    assert digest(np.arange(6).reshape(2, 3)[:, ::-1]) == digest(np.array([[2, 1, 0], [5, 4, 3]]))
    for refused in (object(), [{}, {"x": object()}], np.array([None])):
        with pytest.raises(TypeError):
            digest(refused)


def test_the_clock_is_the_cores_and_never_part_of_a_state():
    """Fails if a time limit ends a search, or if ids lose the one they have."""
    assert Simulator("CartPole-v1").max_steps == 500
    assert Simulator("CartPole-v1", max_steps=7).max_steps == 7
    assert Simulator("CartPole-v1", max_steps=None).max_steps is None
    limited = gym.wrappers.TimeLimit(Ledge(), 3)
    core, rng = Simulator(limited), np.random.default_rng(0)
    assert core.max_steps == 3 and Simulator(Ledge()).max_steps is None
    states = core.initial(1, rng)
    for step in range(12):
        states, _, terminated, _ = core.step(states, np.array([step % 2]), rng)
        assert not terminated[0]


def test_streams_run_on_it():
    core = Simulator(Ledge(), max_steps=4)
    columns = FunctionalVectorEnv(core, 6, 0, "raise", "Ledge")
    assert not columns.savable and columns.snapshot() is None
    columns.reset()
    ends = 0
    for _ in range(12):
        columns.send(np.ones(6, int))
        outcome = columns.recv()
        assert outcome.rewards["steps"].tolist() == (~outcome.first).astype(float).tolist()
        ends += outcome.solved[outcome.terminated].sum()
    assert ends >= 12


def test_it_has_an_id():
    env = gym.make("packtrain/Simulator-v0", env="CartPole-v1", max_steps=5, sutton_barto_reward=True)
    env.reset(seed=3)
    answers = [env.step(1) for _ in range(5)]
    assert [answer[1] for answer in answers] == [0.0] * 5, "options reach the environment"
    assert [answer[3] for answer in answers] == [False] * 4 + [True]


def test_pictures_are_the_environments_own():
    core, rng = Simulator("FrozenLake-v1", is_slippery=False), np.random.default_rng(0)
    start = core.initial(1, rng)
    moved, *_ = core.step(start, np.array([2]), rng)
    pictures = [core.render(states, "ansi") for states in (start, moved, start)]
    assert pictures[0] == pictures[2] != pictures[1]
    with pytest.raises(EnvSetupError, match="Ledge was made with render_mode=None and cannot render 'ansi'"):
        Simulator(Ledge()).render(start, "ansi")


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (lambda: Simulator("CartPole-v1", max_steps=0), r"Simulator\(max_steps=0\)"),
        (lambda: Simulator("CartPole-v1", max_steps="forever"), r"Simulator\(max_steps='forever'\)"),
        (lambda: Simulator("CartPole-v1", stochastic=1), r"Simulator\(stochastic=1\)"),
        (lambda: Simulator(Ledge(), rows=3), r"Simulator\(rows=\.\.\.\): options .* require an id"),
        (lambda: Simulator("CartPol-v1"), "unknown environment 'CartPol-v1' .*did you mean 'CartPole-v1'"),
        (lambda: Simulator("CartPole-v1", colour=1), "'CartPole-v1' cannot be made: TypeError"),
        (lambda: Simulator("packtrain/Catch-v0"), "packtrain/Catch-v0 is a functional core"),
    ],
)
def test_options_that_cannot_be_meant(build, what):
    with pytest.raises(EnvSetupError, match=what) as error:
        build()
    assert "\n" not in str(error.value)


def test_environments_that_fail_are_named():
    class Broken(Ledge):
        def __init__(self, where):
            self.where = where

        def reset(self, **kwargs):
            assert self.where != "reset", "no floor"
            observation, info = super().reset(**kwargs)
            return (observation["cell"] if self.where == "structure" else observation), info

        def snapshot(self):
            assert self.where != "snapshot", "no camera"
            return super().snapshot()

    for where, what in {
        "reset": "Broken raised in its first reset: AssertionError: no floor",
        "snapshot": "Broken raised while it was saved, stepped and restored: AssertionError: no camera",
        "structure": "the first reset of Broken returned an observation of keys ndarray",
    }.items():
        with pytest.raises(EnvSetupError, match=what):
            Simulator(Broken(where))


class Rotting(Ledge):
    """Right for as long as it is looked at before use, then wrong in one way."""

    observation_space = gym.spaces.Box(-1, 5, (1,), np.float32)

    def __init__(self, fault=None):
        self.fault, self.rotten = fault, False

    def look(self):
        obs = np.array([self.cell], np.float32)
        if self.rotten and self.fault == "shape":
            obs = np.append(obs, obs)
        return obs.astype(np.float64) if self.rotten and self.fault == "dtype" else obs

    def step(self, action):
        *answer, info = super().step(action)
        return *answer, None if self.rotten and self.fault == "info" else info


def rotting(fault, answer):
    env = Rotting(fault)
    core, rng = Simulator(env, on_bad_value=answer), np.random.default_rng(0)
    states = core.initial(2, rng)
    env.rotten = True
    return core, states, rng


@pytest.mark.parametrize("fault, text", [("shape", r"shape \(2,\)"), ("dtype", "dtype float64")])
def test_a_wrong_structure_in_a_step_is_refused(fault, text):
    """Mutation: an observation of another shape that NumPy spreads over the row of the state."""
    core, states, rng = rotting(fault, "raise")
    with pytest.raises(EnvError, match=f"Rotting returned an observation of {text}, space says"):
        core.step(states, np.ones(2, np.int64), rng)
    with pytest.raises(EnvError, match=f"Rotting returned an observation of {text}.* from reset"):
        core.initial(1, rng)


def test_a_wrong_dtype_in_a_step_is_cast_where_bad_values_are_clipped():
    core, states, rng = rotting("dtype", "clip")
    assert core.step(states, np.ones(2, np.int64), rng)[0]["obs"].dtype == np.float32
    core, states, rng = rotting("shape", "clip")
    with pytest.raises(EnvError, match="returned an observation of shape"):
        core.step(states, np.ones(2, np.int64), rng)


def test_a_wrong_structure_ends_the_episode_where_bad_values_are_dropped():
    """A NaN for the reward is how a core says so: columns drop the episode, and searches the step."""
    core, states, rng = rotting("shape", "drop")
    after, rewards, terminated, _ = core.step(states, np.ones(2, np.int64), rng)
    assert np.isnan(rewards).all() and not terminated.any()
    assert np.array_equal(after["obs"], states["obs"]) and np.array_equal(after["key"], states["key"])
    columns = FunctionalVectorEnv(core, 2, 0, "drop", "Rotting")
    core._env.rotten = False
    columns.reset()
    core._env.rotten = True
    columns.send(np.ones(2, np.int64))
    assert columns.recv().truncated.all() and columns.boundary.dropped == 2


def test_no_info_in_a_step_is_no_fault():
    class Silent(Rotting):
        reward_channels = ()

    env = Silent("info")
    core, rng = Simulator(env), np.random.default_rng(0)
    states = core.initial(1, rng)
    env.rotten = True
    assert core.step(states, np.ones(1, np.int64), rng)[1].shape == (1,)


def test_the_time_of_each_state_is_measured_separately():
    """Mutation: one time for a whole batch, so that many slow states look like one that hangs."""
    seen = []

    class Timed(Rotting):
        def step(self, action):
            if self.rotten:
                seen.append(core.busy_since)
            return super().step(action)

    env = Timed()
    core, rng = Simulator(env), np.random.default_rng(0)
    states = core.initial(3, rng)
    env.rotten = True
    core.step(states, np.ones(3, np.int64), rng)
    assert len(seen) == 3 and seen == sorted(set(seen))
