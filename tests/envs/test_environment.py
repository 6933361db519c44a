"""The description of an environment: names, what is refused before anything starts, and what is opened."""

import sys
import time
from collections import OrderedDict

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text

from packtrain import config
from packtrain.envs.environment import Environment
from packtrain.envs.functional_vector_env import FunctionalVectorEnv
from packtrain.envs.gymnasium_vector_env import GymnasiumVectorEnv, make_gymnasium
from packtrain.errors import ConfigError, EnvError, EnvSetupError, MissingExtraError
from packtrain.testing import abilities  # noqa: F401  (registers Counting)
from packtrain.types import Spec

FAULTY = "packtrain.testing.faulty:packtrain/Faulty-v0"


@pytest.fixture
def register():
    """Registers environments under ids that are free again after the test."""
    ids = []

    def call(name, entry_point, **options):
        gym.register(name, entry_point=entry_point, disable_env_checker=True, **options)
        ids.append(name)
        return name

    yield call
    for name in ids:
        del gym.registry[name]


class Custom(gym.Env):
    """Shows a given observation."""

    def __init__(self, space=None, obs=None, action_space=None, channels=()):
        self.observation_space = space or Box(-1, 1, (2,))
        self.action_space = action_space or Discrete(2)
        self.reward_channels = channels
        self._obs = np.zeros(2, np.float32) if obs is None else obs

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if isinstance(self._obs, Exception):
            raise self._obs
        return self._obs, {}

    def step(self, action):
        return self._obs, 0.0, False, False, {}


# -- names


def test_a_class_of_a_module_is_that_class_though_one_of_ours_has_its_name():
    """Mutation: "module:Catch" is packtrain's Catch as soon as packtrain/Catch-v0 is registered."""
    environment = Environment(f"{__name__}:Catch")
    assert environment.registered_id().endswith("/Catch-v0") and environment.registered_id() != "packtrain/Catch-v0"
    assert isinstance(environment.make_one().unwrapped, Catch)
    assert environment.probe().obs.shape == (7,)
    assert Environment("packtrain.envs.catch:Catch").registered_id() == "packtrain/Catch-v0"


@pytest.mark.parametrize(
    "name, registered, functional",
    [
        ("Catch", "packtrain/Catch-v0", True),
        ("packtrain/Catch-v0", "packtrain/Catch-v0", True),
        ("Counting", "packtrain/Counting-v0", True),
        ("CartPole", "packtrain/CartPole-v0", True),
        ("CartPole-v1", "CartPole-v1", False),
        (FAULTY, "packtrain/Faulty-v0", False),
        ("packtrain.testing.abilities:Counting", "packtrain/Counting-v0", True),
    ],
)
def test_short_names_ids_and_modules(name, registered, functional):
    """Mutation: gym.spec does not know "module:id", although gym.make does."""
    environment = Environment(name)
    assert environment.registered_id() == registered
    assert environment.is_functional() == functional
    assert isinstance(environment.probe(), Spec)


@pytest.mark.parametrize(
    "name, nearest",
    [("Cacth", "'Catch'"), ("CartPole-v", "'CartPole-v1'"), ("packtrain/Catsh-v0", "'packtrain/Catch-v0'")],
)
def test_an_unknown_name_gets_the_nearest_one(name, nearest):
    with pytest.raises(EnvSetupError) as error:
        Environment(name).probe()
    text = str(error.value)
    assert text.startswith(f"unknown environment {name!r}") and nearest in text and "\n" not in text


def test_a_module_that_does_not_exist_is_named():
    with pytest.raises(EnvSetupError, match="'no_such_module:Thing-v0' cannot be imported: there is no module"):
        Environment("no_such_module:Thing-v0").probe()


@pytest.mark.parametrize("name", ["ALE/Pong-v5", "PongNoFrameskip-v4"])
def test_atari_without_its_package_names_the_extra(name, monkeypatch):
    """Asked for what it is, and for the columns themselves. Mutation: the package imported before it is looked for."""
    monkeypatch.setitem(sys.modules, "ale_py", None)
    spec = Spec(Box(0, 255, (84, 84), np.uint8), Discrete(6))
    for ask in (Environment(name).probe, Environment(name).registered_id, lambda: Environment(name).open(1, 0, spec)):
        with pytest.raises(MissingExtraError, match=r"'ale-py'; try: pip install 'packtrain\[atari\]'") as error:
            ask()
        assert error.value.exit_code == 2


# -- trust


@pytest.fixture
def untrusted(monkeypatch):
    monkeypatch.setattr(config, "_state", config.Configuration(trusted=False))


@pytest.mark.parametrize("name", ["os:Thing-v0", FAULTY, "GymV21Environment-v0", "GymV26Environment-v0"])
def test_ids_that_run_foreign_code_need_trust(untrusted, name):
    """X3. Mutation: a run folder's configuration could import any module through an id."""
    with pytest.raises(ConfigError, match=r"names code outside packtrain.*--trust-config"):
        Environment(name)


@pytest.mark.parametrize(
    "kwargs",
    [{"env": "os:Thing-v0"}, {"env": "GymV21Environment-v0"}, {"env": "CartPole-v1", "nested": [{"id": FAULTY}]}],
)
def test_ids_in_options_that_run_foreign_code_need_trust(untrusted, kwargs):
    """A Simulator takes another environment's id. Mutation: looking at `Environment.id` alone."""
    with pytest.raises(ConfigError, match=r"Environment.kwargs = .* names code outside packtrain.*--trust-config"):
        Environment("Simulator", kwargs)


def test_plain_ids_need_no_trust(untrusted):
    assert Environment("Catch").registered_id() == "packtrain/Catch-v0"
    assert Environment("CartPole-v1").registered_id() == "CartPole-v1"


class Catch(gym.Env):
    """A user's class with the name of one of ours."""

    observation_space, action_space = Box(-1, 1, (7,), np.float32), Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(7, np.float32), {}

    def step(self, action):
        return np.zeros(7, np.float32), 1.0, True, False, {}


@pytest.mark.parametrize("name", ["Catch", "CartPole-v1"])
def test_the_core_cannot_be_replaced(name):
    """Mutation: kwargs = {'core': 'os:system'} would be imported and called."""
    with pytest.raises(ConfigError, match="must not contain 'core'"):
        Environment(name, {"core": "packtrain.envs.catch:Catch"})


@pytest.mark.parametrize("seconds", [0, -1.0])
def test_deadlines_are_above_zero(seconds):
    with pytest.raises(ConfigError, match=r"Environment\.step_deadline_secs = .* must be above 0"):
        Environment("Catch", step_deadline_secs=seconds)


def test_answers_are_checked():
    with pytest.raises(
        ConfigError, match=r"Environment\.on_bad_value = 'ignore' is not one of 'raise', 'drop', 'clip'"
    ):
        Environment("Catch", on_bad_value="ignore")


# -- probe


def test_the_probe_says_what_the_environment_is(register):
    name = register("Test/Custom-v0", Custom, kwargs={"channels": ("true", "proxy")})
    spec = Environment(name).probe()
    assert spec.obs == Box(-1, 1, (2,)) and spec.action == Discrete(2)
    assert spec.reward_channels == ("train", "true", "proxy")
    assert Environment("Catch").probe().reward_channels[0] == "train"


def test_kwargs_reach_the_environment():
    spec = Environment("Counting", {"tree": True}).probe()
    assert isinstance(spec.obs, Dict)
    columns = Environment("Counting", {"length": 2}).open(1, 0, Environment("Counting").probe())
    columns.reset()
    ends = []
    for _ in range(3):
        columns.send(np.zeros(1, np.int64))
        ends.append(bool(columns.recv().terminated[0]))
    assert ends == [False, True, False]


@pytest.mark.parametrize(
    "fault, text",
    [
        ("nan_obs", "returned an observation with NaN that is outside its space"),
        ("inf_obs", "returned an observation with infinity"),
        ("out_of_space", "returned an observation with a value that is outside its space"),
        ("wrong_dtype", "returned an observation of dtype int64, space says float32"),
        ("wrong_shape", r"returned an observation of shape \(4,\), space says \(3,\)"),
        ("raise", "raised in its first reset: RuntimeError: Faulty raised"),
    ],
)
@pytest.mark.parametrize("answer", ["raise", "drop", "clip"])
def test_a_first_reset_that_breaks_is_refused_before_the_run(fault, text, answer):
    """Whatever the answer to later values: who begins like this is not meant to be trained in."""
    with pytest.raises(EnvSetupError, match=text) as error:
        Environment(FAULTY, {"fault": fault, "at_step": 0}, on_bad_value=answer).probe()
    assert repr(FAULTY) in str(error.value) and "\n" not in str(error.value)


def test_a_sound_environment_passes_whatever_kind_of_dict_it_uses(register):
    """Mutation: flattening an OrderedDict in its own order puts its leaves against each other's bounds."""
    space = Dict(a=Box(0, 1, (1,)), b=Box(5, 6, (1,)))
    obs = OrderedDict(b=np.array([5.5], np.float32), a=np.array([0.5], np.float32))
    name = register("Test/Ordered-v0", Custom, kwargs={"space": space, "obs": obs})
    for answer in ("raise", "drop", "clip"):
        environment = Environment(name, on_bad_value=answer)
        columns = environment.open(2, 0, environment.probe())
        columns.reset()
        columns.send(np.zeros(2, np.int64))
        outcome = columns.recv()
        assert outcome.obs["a"].tolist() == [[0.5], [0.5]] and outcome.obs["b"].tolist() == [[5.5], [5.5]]
        assert columns.boundary.dropped == columns.boundary.clipped == 0


@pytest.mark.parametrize(
    "options, text",
    [
        ({"space": Text(4), "obs": "text"}, "the observation space of 'Test/Custom-v0': a Text space"),
        ({"space": Dict(a=Text(4)), "obs": {"a": "text"}}, "the observation space of 'Test/Custom-v0': a Text space"),
        ({"space": Box(0, 1, (0,)), "obs": np.zeros(0)}, r"the observation space of .*shape \(0,\) has no elements"),
        ({"action_space": Text(4)}, "the action space of 'Test/Custom-v0': a Text space"),
    ],
    ids=["text", "text inside", "empty", "action"],
)
def test_spaces_that_cannot_be_stored_are_refused(register, options, text):
    name = register("Test/Custom-v0", Custom, kwargs=options)
    with pytest.raises(EnvSetupError, match=text):
        Environment(name).probe()


def test_an_environment_that_cannot_be_made_is_named(register):
    with pytest.raises(
        EnvSetupError, match="'CartPole-v1' has no parameter 'no_such_option', which Environment.kwargs"
    ):
        Environment("CartPole-v1", {"no_such_option": 1}).probe()

    def breaks():
        raise TypeError("f() got an unexpected keyword argument 'x'")  # of something else

    with pytest.raises(EnvSetupError, match="'Test/Breaks-v0' cannot be made: TypeError: f"):
        Environment(register("Test/Breaks-v0", lambda: breaks())).probe()

    def needs_a_package():
        raise gym.error.DependencyNotInstalled("box2d is not installed")

    name = register("Test/Needy-v0", lambda: needs_a_package())
    with pytest.raises(
        MissingExtraError, match="'Test/Needy-v0' needs the package .box2d.; try: pip install .packtrain.box2d"
    ):
        Environment(name).probe()


SET = r"within 0\.2 s; Environment\.start_deadline_secs sets the deadline"


def test_an_environment_that_does_not_start_is_given_up(register):
    name = register("Test/Sleepy-v0", lambda: time.sleep(30))
    with pytest.raises(EnvSetupError, match=f"'Test/Sleepy-v0' with seed 0 did not start {SET}"):
        Environment(name, start_deadline_secs=0.2).probe()


def test_a_later_constructor_has_the_deadline_of_the_first(register):
    """Mutation: a deadline of the probe alone, after which the same constructor may hang."""
    made = []

    def make():
        made.append(1)
        if len(made) > 2:
            time.sleep(30)
        return gym.make("CartPole-v1")

    environment = Environment(register("Test/Later-v0", make), start_deadline_secs=0.2)
    with pytest.raises(EnvSetupError, match=rf"environment 1 \(Test/Later-v0, seed \d+\) was not made {SET}"):
        environment.open(3, 0, environment.probe())


@pytest.mark.parametrize("call", ["make", "initial", "observe"])
def test_a_core_that_does_not_start_is_given_up(call):
    """Mutation: a core to plan in that is made without a deadline."""
    kwargs = {"fault": "hang", "call": call}
    environment = Environment("packtrain.testing.sleepy:packtrain/Sleepy-v0", kwargs, start_deadline_secs=0.2)
    with pytest.raises(EnvSetupError, match=f"Sleepy-v0' with seed 0 did not start {SET}"):
        environment.probe()
    if call == "make":
        for start in (environment.probe_core, lambda: environment.open_core(2, 7)):
            with pytest.raises(EnvSetupError, match=f"Sleepy-v0' with .*seed .* {SET}"):
                start()


def test_deadlines_are_refused_unless_positive():
    for name in ("step_deadline_secs", "start_deadline_secs"):
        with pytest.raises(ConfigError, match=f"Environment.{name} = 0 must be above 0"):
            Environment("Catch", **{name: 0})


# -- open


def test_ours_run_as_arrays_and_others_as_gymnasium_environments():
    ours, other = Environment("Catch"), Environment("CartPole-v1")
    assert isinstance(ours.open(3, 0, ours.probe()), FunctionalVectorEnv)
    columns = other.open(3, 0, other.probe())
    assert isinstance(columns, GymnasiumVectorEnv) and not columns.overlaps
    assert columns.reset().obs.shape == (3, 4)


@pytest.mark.parametrize("name", ["Counting", "CartPole-v1"])
def test_the_seed_decides_everything(name):
    environment = Environment(name)
    spec = environment.probe()
    one, same, other = (environment.open(3, seed, spec).reset().obs for seed in (5, 5, 6))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
    assert len(np.unique(one[:, 0])) == 3


def test_faults_under_way_name_id_seed_and_step():
    environment = Environment(FAULTY, {"fault": "raise", "at_step": 7}, restarts=0)
    columns = environment.open(2, 0, environment.probe())
    columns.reset()
    with pytest.raises(
        EnvError, match=r"environment 0 \(packtrain\.testing\.faulty:\S+, seed \d+\) at its step 7 raised"
    ):
        for _ in range(10):
            columns.send(np.zeros(2, np.int64))
            columns.recv()


def test_processes_find_environments_that_only_the_parent_registered():
    environment = Environment(FAULTY, {"length": 3}, processes=True)
    columns = environment.open(2, 0, environment.probe())
    try:
        assert columns.overlaps
        columns.reset()
        steps = []
        for _ in range(5):
            columns.send(np.zeros(2, np.int64))
            steps.append(columns.recv().obs[:, 0].tolist())
        assert steps == [[1, 1], [2, 2], [3, 3], [0, 0], [1, 1]]
    finally:
        columns.close()


def test_remarks_on_a_model_go_neither_to_the_terminal_nor_to_a_file(tmp_path, monkeypatch, capfd, caplog):
    """HalfCheetah's model uses an old word. Mutations: MuJoCo's own ways; its remarks lost, or kept off for good."""
    mujoco = pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)
    before = mujoco.get_mju_user_warning()
    with caplog.at_level("DEBUG", "packtrain"):
        make_gymnasium(gym.spec("HalfCheetah-v5"), {}, "HalfCheetah-v5").close()
    assert capfd.readouterr().err == "" and not list(tmp_path.iterdir())
    assert "MuJoCo: " in caplog.text and mujoco.get_mju_user_warning() is before
