"""Several rewards for the same steps: which one is learned from, which are reported, for every kind of environment."""

import gymnasium as gym
import numpy as np
import pytest

from packtrain.envs.environment import Environment
from packtrain.envs.functional import register
from packtrain.envs.rewards import RewardedCore, Rewards, Step
from packtrain.envs.stream import Stream
from packtrain.errors import ConfigError, EnvError, EnvSetupError


def paddle(step: Step) -> np.ndarray:
    """Pays for the place of Catch's paddle, and looks at all there is to see."""
    assert len(step.before) == len(step.after) == len(step.action) == len(step.begins)
    return step.after[:, 0, -1].argmax(1).astype(np.float64)


def doubled(step: Step) -> np.ndarray:
    return 2 * step.reward + step.begins


def played(environment, steps=40, columns=3, seed=5):
    """{channel: [steps, B]}, first [steps, B], and the rewards of the environment alone for the same actions."""
    spec = environment.probe()
    stream = Stream(environment.open(columns, seed, spec), columns)
    rng = np.random.default_rng(1)
    rows = [stream.start()]
    for _ in range(steps):
        stream.send(
            rng.integers(0, int(spec.action.n), columns)
            if isinstance(spec.action, gym.spaces.Discrete)
            else rng.uniform(-1, 1, (columns, *spec.action.shape)).astype(np.float32)
        )
        rows.append(stream.recv())
        rows[-1] = rows[-1]._replace(last_reward={name: r.copy() for name, r in rows[-1].last_reward.items()})
    first = np.stack([np.array(row.first) for row in rows])
    rewards = {name: np.stack([row.last_reward[name] for row in rows]) for name in rows[1].last_reward}
    finished = stream.drain_finished()
    stream.columns.close()
    return spec, rewards, first, finished


FUNCTIONS = {"paddle": paddle, "doubled": doubled}


def test_a_core_has_its_own_reward_and_those_of_functions():
    """Mutations: rewards at resets; `begins` a row late; the channel that is learned from not the one named."""
    plain = played(Environment("Catch"))[1]
    spec, found, first, finished = played(Environment("Catch", rewards=Rewards("paddle", FUNCTIONS)))
    assert spec.reward_channels == ("train", "true", "paddle", "doubled") == tuple(found)
    np.testing.assert_array_equal(found["true"], plain["train"])
    np.testing.assert_array_equal(found["train"], found["paddle"])
    assert not found["paddle"][first].any() and found["paddle"][~first].any()
    begins = np.concatenate([np.zeros((1, 3), bool), first[:-1]])
    np.testing.assert_array_equal(found["doubled"], np.where(first, 0, 2 * plain["train"] + begins))
    total = {name: sum(one.returns[name].sum() for one in finished) for name in spec.reward_channels}
    assert total["true"] == pytest.approx(plain["train"].sum()) and total["paddle"] == total["train"] > total["true"]


def test_the_true_reward_can_be_learned_from_with_others_beside_it():
    _, found, *_ = played(Environment("Catch", rewards=Rewards(functions={"paddle": paddle})))
    np.testing.assert_array_equal(found["train"], found["true"])
    assert found["paddle"].any()


class Told(gym.Env):
    """Counts; reports a channel of its own, and says what it did in `info`."""

    observation_space, action_space = gym.spaces.Box(-99, 99, (1,)), gym.spaces.Discrete(2)
    reward_channels = ("steps",)

    def __init__(self, render_mode=None):
        self.count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        obs = np.full(1, self.count, np.float32)
        return obs, float(action), self.count == 7, False, {"reward/steps": 1.0, "pressed": float(action) * 3}


def pressed(step):
    return step.info["pressed"]


def test_reward_functions_get_the_info_of_a_gymnasium_environment():
    """Mutation: `info` left out; the environment's own channel lost."""
    gym.register("ToldForTests-v0", Told)
    rewards = Rewards("pressed", {"pressed": pressed})
    spec, found, first, _ = played(Environment("ToldForTests-v0", rewards=rewards), steps=20)
    assert spec.reward_channels == ("train", "true", "steps", "pressed")
    np.testing.assert_array_equal(found["train"], 3 * found["true"])
    np.testing.assert_array_equal(found["steps"][1:], ~first[1:])
    gym.registry.pop("ToldForTests-v0")


def test_a_function_sees_what_was_there_before_a_gymnasium_environment_wrote_over_it():
    """Mutation: keeping the environments' own buffer, in which before is after."""
    gym.register("ToldForTests-v0", Told)
    rewards = Rewards("moved", {"moved": lambda step: (step.after - step.before)[:, 0]})
    _, found, first, _ = played(Environment("ToldForTests-v0", rewards=rewards), steps=20)
    np.testing.assert_array_equal(found["moved"][1:], ~first[1:])
    gym.registry.pop("ToldForTests-v0")


class Pressed(Told):
    """Ends on demand, so that environments begin at different times."""

    def step(self, action):
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, bool(action), truncated, info


def test_what_a_function_says_of_a_reset_is_not_looked_at():
    """There `info` has zeros, of which one may not take the inverse. Mutation: a check of those too."""
    gym.register("ToldForTests-v0", Pressed)
    with np.errstate(divide="ignore"):
        rewards = Rewards("near", {"near": lambda step: 1 / step.info.get("reward/steps", np.zeros(len(step.reward)))})
        _, found, first, _ = played(Environment("ToldForTests-v0", rewards=rewards), steps=20)
    np.testing.assert_array_equal(found["near"][1:], ~first[1:])
    assert (first.any(1) & ~first.all(1)).any(), "some columns begin while others go on"
    gym.registry.pop("ToldForTests-v0")


def test_planners_search_for_the_reward_that_is_learned_from():
    core = Environment("Catch", rewards=Rewards("paddle", {"paddle": paddle})).core()
    assert isinstance(core, RewardedCore) and core.reward_channels == ("true", "paddle") and core.rows == 10
    rng = np.random.default_rng(0)
    states = core.initial(4, rng)
    _, reward, _, extras = core.step(states, np.full(4, 2), rng)
    assert (
        reward.tolist() == [3.0] * 4 == extras["reward/paddle"].tolist() and extras["reward/true"].tolist() == [0.0] * 4
    )
    picked = Environment("Catch", rewards=Rewards()).core()
    assert picked.step(states, np.full(4, 2), rng)[1].tolist() == [0.0] * 4


class Proxied:
    """A core that reports a reward called "true" itself: that is the truth then."""

    reward_channels = ("true", "other")
    max_steps = 5
    observation_space, action_space = gym.spaces.Box(0, 9, (1,), np.float32), gym.spaces.Discrete(2)

    def initial(self, n, rng):
        return np.zeros(n)

    def step(self, states, actions, rng):
        one = np.ones(len(states), np.float32)
        extras = {"reward/true": 2 * one, "reward/other": 3 * one}
        return states + 1, one, np.zeros(len(states), bool), extras

    def observe(self, states):
        return states[:, None].astype(np.float32)


def test_an_environment_may_say_what_is_true():
    register("packtrain/ProxiedForTests-v0", f"{__name__}:Proxied")
    gym.spec("packtrain/ProxiedForTests-v0").kwargs["core"] = Proxied
    environment = Environment("ProxiedForTests", rewards=Rewards("other"))
    core = RewardedCore(Proxied(), environment.rewards)
    _, reward, _, extras = core.step(np.zeros(2), np.zeros(2), None)
    assert reward.tolist() == [3, 3] and extras["reward/true"].tolist() == [2, 2]
    gym.registry.pop("packtrain/ProxiedForTests-v0")


def test_a_saved_run_looks_back_at_the_same_step():
    """Mutation: the observation before the next step not saved."""
    environment = Environment(
        "Catch", rewards=Rewards("moved", {"moved": lambda s: (s.before != s.after).sum((1, 2, 3))})
    )
    spec = environment.probe()
    one, other = (Stream(environment.open(2, 3, spec), 2) for _ in range(2))
    one.start()
    for _ in range(4):
        one.send(np.zeros(2, np.int64))
        one.recv()
    other.restore(one.snapshot())
    for stream in (one, other):
        stream.send(np.array([2, 1]))
    first, second = one.recv(), other.recv()
    for name in first.last_reward:
        np.testing.assert_array_equal(first.last_reward[name], second.last_reward[name])


@pytest.mark.parametrize(
    ("make", "error", "line"),
    [
        (lambda: Rewards(functions={"train": paddle}), ConfigError, "has 'train', which is not a valid channel name"),
        (lambda: Rewards(functions={"a": 3}), ConfigError, r"Rewards.functions\['a'\] = 3 is not a function"),
        (
            lambda: Environment("Catch", rewards=Rewards("fuel")).probe(),
            EnvSetupError,
            r"'Catch': Rewards.train = 'fuel' is not a reward of this environment: \['true'\]",
        ),
        (
            lambda: played(Environment("Catch", rewards=Rewards(functions={"a": lambda step: np.zeros(7)}))),
            EnvError,
            r"returned an array of shape \(7,\) for 3 steps",
        ),
        (
            lambda: played(Environment("Catch", rewards=Rewards(functions={"a": lambda step: step.reward / 0}))),
            EnvError,
            r"Rewards.functions\['a'\] returned nan as a reward",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_what_does_not_fit_is_one_line(make, error, line):
    with pytest.raises(error, match=line) as caught:
        make()
    assert "\n" not in str(caught.value).removesuffix(f"\n  In call to configurable 'Rewards' ({Rewards})")
