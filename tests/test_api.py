"""The Python API, as a notebook uses it: train, load, act in a loop of one's own, evaluate, report, compare."""

import subprocess
import sys
import threading

import gymnasium as gym
import numpy as np
import pytest
import torch

import packtrain
from packtrain.cli import main
from packtrain.errors import ConfigError, EnvSetupError, Error
from packtrain.metrics.reading import read_metrics

SMALL = {
    "total_steps": 600,
    "num_actors": 4,
    "eval_every": 300,
    "eval_episodes": 2,
    "log_every": 200,
    "progress": False,
}
PPO = {**SMALL, "unroll_length": 16, "batch_size": 4, "minibatches": 2}


@pytest.fixture(autouse=True)
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Chase(gym.Env):
    """Two numbers, three actions, five steps; the reward is the action."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, size=5):
        self.size, self.steps = size, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(2, 0.5, np.float32), float(action), False, self.steps >= self.size, {}


def test_importing_the_package_imports_neither_torch_nor_gymnasium():
    code = "import sys, packtrain; packtrain.__version__; print('torch' in sys.modules, 'gymnasium' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False False\n"


def test_every_public_name_exists():
    for name in packtrain.__all__:
        assert getattr(packtrain, name) is not None and name in dir(packtrain)
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        packtrain.trian  # noqa: B018


def test_a_notebook(tmp_path):
    """Train two algorithms on two seeds, read metrics, act, evaluate, compare, report."""
    runs = {
        "ppo/cartpole": [packtrain.train("ppo/cartpole", output_dir=f"p{k}", seed=k, **PPO) for k in range(2)],
        "dqn/cartpole": [
            packtrain.train("dqn/cartpole", output_dir=f"d{k}", seed=k, **{**SMALL, "num_actors": 1, "warm_up": 100})
            for k in range(2)
        ],
    }
    run = runs["ppo/cartpole"][0]
    assert run.path == tmp_path / "p0" and not run.stopped
    metrics = run.metrics()
    assert list(metrics)[:2] == ["step", "wall_s"] and len(metrics["step"]) == len(metrics["entropy"]) > 1
    assert len(run.metrics("eval")["return_mean"]) >= 2

    policy = packtrain.load(run.path)
    assert isinstance(policy.network, torch.nn.Module)
    env = packtrain.make_env("CartPole-v1")
    obs, _ = env.reset(seed=0)
    state, steps, done = None, 0, False
    while not done:
        action, state = policy.predict(obs, state)
        obs, _, terminated, truncated, _ = env.step(action)
        done, steps = terminated or truncated, steps + 1
    assert steps > 5

    result = packtrain.evaluate(run, 3)
    assert result["episodes"] == 3 and len(result["returns"]) == 3
    found = packtrain.compare(runs["ppo/cartpole"], runs["dqn/cartpole"])
    assert found.difference == pytest.approx(found.means[0] - found.means[1])
    assert found.difference_interval[0] <= found.difference <= found.difference_interval[1]
    assert 0 <= found.probability_of_improvement <= 1 and len(found.scores[0]) == 2
    page = packtrain.report(run, *runs["dqn/cartpole"], out="page.html")
    assert page.is_file() and "<html" in page.read_text()


def test_the_same_call_goes_on(tmp_path):
    packtrain.train("ppo/cartpole", output_dir="run", **PPO)
    again = packtrain.train("ppo/cartpole", output_dir="run", **{**PPO, "total_steps": 1200})
    steps = again.metrics()["step"]
    assert steps[-1] >= 1200 and (np.diff(steps) > 0).all()
    assert packtrain.train("ppo/cartpole", output_dir="run", **{**PPO, "total_steps": 1200}).path == again.path


@pytest.mark.parametrize("kind", ["class", "factory", "instance", "id"])
def test_environments_of_every_kind(kind, tmp_path):
    env = {"class": Chase, "factory": lambda size=5: Chase(size), "instance": Chase(), "id": "CartPole-v1"}[kind]
    run = packtrain.train("ppo/gym", env=env, output_dir="run", **PPO)
    lengths = run.metrics()["episode_length"]
    assert kind == "id" or (lengths[~np.isnan(lengths)] == 5).all()
    action, _ = packtrain.load(run).predict(np.zeros(4 if kind == "id" else 2))
    assert action in (0, 1, 2)
    assert packtrain.evaluate(run, 2)["episodes"] == 2


def test_env_kwargs_reach_the_environment():
    run = packtrain.train("ppo/gym", env=Chase, env_kwargs={"size": 3}, output_dir="run", **PPO)
    assert np.nanmax(run.metrics()["episode_length"]) == 3
    assert packtrain.make_env(Chase, size=4).unwrapped.size == 4


FAMILIES = {
    "ppo/cartpole": PPO,
    "impala/catch": {**SMALL, "unroll_length": 10, "batch_size": 4},
    "dqn/cartpole": {**SMALL, "num_actors": 1, "warm_up": 100},
    "r2d2/catch": {**SMALL, "warm_up": 200},
    "sac/pendulum": {
        **SMALL,
        "num_actors": 1,
        "hidden_size": 16,
        "batch_size": 16,
        "total_steps": 500,
        "eval_episodes": 1,
    },
    "planning/shooting_random_cartpole": {"progress": False, "n_epochs": 1},
}


@pytest.mark.parametrize("config", FAMILIES)
def test_callbacks_of_every_family(config):
    """Mutation: a family that does not report its episodes or its checkpoints."""
    seen = {"on_row": [], "on_evaluation": [], "on_checkpoint": [], "on_episode": []}
    calls = packtrain.Callbacks(**{name: lambda *given, name=name: seen[name].append(given) for name in seen})
    settings = dict(FAMILIES[config])
    if "n_epochs" in settings:
        settings = {"progress": False, "bindings": ["Runner.n_epochs = 1"]}
    run = packtrain.train(config, output_dir="run", callbacks=calls, **settings)
    assert seen["on_row"] and seen["on_episode"] and seen["on_checkpoint"]
    assert all(path.is_dir() or True for _, path in seen["on_checkpoint"])
    assert seen["on_checkpoint"][-1][1].is_dir()
    evaluations = [row for row in read_metrics(run.path) if row["kind"].startswith("eval")]
    assert len(seen["on_evaluation"]) == len(evaluations)
    assert {row["kind"] for (row,) in seen["on_row"]} <= {"train", "planning"}


def test_a_callback_stops_a_run_which_is_saved_and_goes_on():
    stop = packtrain.Callbacks(on_row=lambda row: row["step"] < 400)
    run = packtrain.train("ppo/cartpole", output_dir="run", callbacks=stop, **{**PPO, "total_steps": 5000})
    assert run.stopped and run.metrics()["step"][-1] < 1500
    assert packtrain.load(run) is not None


def test_an_error_of_a_callback_is_raised():
    def bad(row):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        packtrain.train("ppo/cartpole", output_dir="run", callbacks=packtrain.Callbacks(on_row=bad), **PPO)


@pytest.mark.parametrize(
    "arguments, parts",
    [
        ({"config": "ppo/cartpol"}, ["unknown config", "did you mean 'ppo/cartpole'"]),
        ({"config": "ppo/cartpole", "total_step": 5}, ["unknown knob 'total_step'", "did you mean 'total_steps'"]),
        ({"config": "ppo/cartpole", "total_steps": "many"}, ["'many' is not a whole number"]),
        ({"config": "ppo/cartpole", "total_steps": 1.5}, ["total_steps = 1.5 is not a int"]),
        ({"config": "ppo/cartpole", "runtime": "cloud"}, ["runtime = 'cloud'"]),
        ({"config": "ppo/cartpole", "workers": 2}, ["workers = 2", 'runtime = "cluster"']),
        ({"config": "ppo/cartpole", "runtime": "cluster", "inference": "gpu"}, ["inference = 'gpu'"]),
        ({"config": "ppo/cartpole", "env": 3}, ["env = 3 is not an id"]),
        ({"config": "ppo/cartpole", "env": "CartPol-v1"}, ["did you mean 'CartPole-v1'"]),
        ({"config": "ppo/cartpole", "track": "wand"}, ["--track 'wand'", "did you mean 'wandb'"]),
        ({"config": "ppo/cartpole", "device": "toaster"}, ["toaster"]),
        ({"config": []}, ["needs a configuration"]),
    ],
)
def test_errors_are_one_line(arguments, parts, tmp_path):
    with pytest.raises(Error) as error:
        packtrain.train(**{"output_dir": "run", "progress": False, **arguments})
    assert "\n" not in str(error.value)
    for part in parts:
        assert part in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_missing_run_is_named():
    with pytest.raises(Error, match="nowhere is not a run folder"):
        packtrain.load("nowhere")
    with pytest.raises(ConfigError, match="num_episodes = 0"):
        packtrain.evaluate("nowhere", 0)


def test_predict_of_a_batch_is_that_of_each_observation():
    """With an LSTM: the state of each member goes on by itself, and `episode_start` clears one of them.

    Mutations: one state for all; a state changed in place.
    """
    run = packtrain.train(
        "impala/catch", output_dir="run", use_lstm=True, **{**SMALL, "unroll_length": 10, "batch_size": 4}
    )
    policy = packtrain.load(run)
    rng = np.random.default_rng(0)
    obs = rng.random((6, 3, *policy.observation_space.shape)).astype(np.float32)
    state, together = None, []
    for t in range(6):
        action, state = policy.predict(obs[t], state, reward=0.3, episode_start=[False, t == 3, False])
        together.append(action)
    for member in range(3):
        state = None
        for t in range(6):
            fresh = t == 3 and member == 1
            before = state
            action, state = policy.predict(obs[t, member], None if fresh else state, reward=0.3)
            assert np.shape(action) == () and action == together[t][member]
            again, _ = policy.predict(obs[t, member], None if fresh else before, reward=0.3)
            assert again == action


def test_predicted_actions_are_those_of_the_environments_bounds():
    settings = FAMILIES["sac/pendulum"]
    run = packtrain.train("sac/pendulum", output_dir="run", **settings)
    policy = packtrain.load(run)
    actions, _ = policy.predict(np.ones((50, 3)), deterministic=False)
    assert actions.shape == (50, 1) and actions.dtype == np.float32
    assert policy.action_space.contains(actions[0]) and len(np.unique(actions)) > 10
    single, _ = policy.predict(np.ones(3))
    assert single.shape == (1,)


def test_a_wrong_observation_is_one_line():
    run = packtrain.train("ppo/cartpole", output_dir="run", **PPO)
    policy = packtrain.load(run)
    for obs in (np.zeros(3), np.zeros((2, 2, 4)), {"x": 1}, None, "left", [[1, 2], [3]], [object()] * 4):
        with pytest.raises(ConfigError, match="predict got") as error:
            policy.predict(obs)
        assert "\n" not in str(error.value)


def test_pandas_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas"):
        packtrain.Metrics(step=np.zeros(1)).to_pandas()


@pytest.mark.parametrize("config", ["ppo/cartpole", "sac/pendulum"])
def test_several_seeds_are_one_call_and_one_evaluation(config, tmp_path, capsys):
    """One after another, and in one loop. Mutations: callbacks of one seed only; trackers shared by seeds; an interval
    over episodes.
    """
    rows = []
    callbacks = packtrain.Callbacks(on_evaluation=rows.append)
    settings = PPO if config.startswith("ppo") else FAMILIES[config]
    run = packtrain.train(config, output_dir="run", num_seeds=2, seed=3, callbacks=callbacks, **settings)
    assert [each.path for each in run.seeds] == [tmp_path / "run/seed_0", tmp_path / "run/seed_1"]
    assert len(rows) == sum(len(each.metrics("eval")["step"]) for each in run.seeds) > 2
    seeds = {(each.path / "config.gin").read_text().partition("Experiment.seed = ")[2].split()[0] for each in run.seeds}
    assert seeds == {"3", "4"}
    with pytest.raises(ConfigError, match="holds 2 seeds"):
        run.metrics()
    with pytest.raises(Error, match="such as .*seed_0"):
        run.load()
    result = packtrain.evaluate(run, 3)
    means = [one["return_mean"] for one in result["each"].values()]
    assert result["return_mean"] == pytest.approx(np.mean(means)) and result["seeds"] == 2
    assert result["return_ci95"] == pytest.approx(12.7062 * np.std(means, ddof=1) / 2**0.5, rel=1e-4)
    capsys.readouterr()
    assert main(["eval", "run", "--num_episodes", "3"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("run: 2 seeds, return") and any(line.startswith("run/seed_1") for line in printed)


def test_false_stops_all_seeds():
    stop = packtrain.Callbacks(on_row=lambda row: row["step"] < 400)
    settings = {**PPO, "total_steps": 5000}
    run = packtrain.train("ppo/cartpole", output_dir="run", num_seeds=2, callbacks=stop, **settings)
    assert run.stopped and all(each.metrics()["step"][-1:].sum() < 1500 for each in run.seeds if each.metrics())


def test_normalised_observations_survive_loading():
    """The statistics are part of the weights. Mutation: buffers left out of a checkpoint."""
    run = packtrain.train("ppo/gym", env=Chase, output_dir="run", normalise_obs=True, **PPO)
    network = packtrain.load(run).network
    assert float(network.normaliser.number) > 500 and 0.1 < float(network.normaliser.mean[0]) < 0.5


def test_trainings_in_threads_are_those_of_one_after_the_other(tmp_path):
    """Serial runs of two configurations at the same time, outside the main thread, equal those made alone.

    Mutations: gin's bindings of one in the other; weights drawn while the other draws; signals in a thread.
    """
    interval = sys.getswitchinterval()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    cases = {"ppo/cartpole": PPO, "impala/catch": FAMILIES["impala/catch"]}

    def one(config, folder, errors):
        try:
            packtrain.train(config, output_dir=folder, runtime="serial", seed=1, **cases[config])
        except BaseException as error:
            errors.append(error)

    errors = []
    for config in cases:
        one(config, config.replace("/", "_"), errors)
    threads = [threading.Thread(target=one, args=(config, f"t_{config.replace('/', '_')}", errors)) for config in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for config in cases:
        alone, beside = (
            [
                {name: value for name, value in row.items() if name not in CLOCKED}
                for row in read_metrics(tmp_path / folder)
            ]
            for folder in (config.replace("/", "_"), f"t_{config.replace('/', '_')}")
        )
        assert alone == beside
    assert sys.getswitchinterval() == interval
    assert torch.equal(before, torch.get_rng_state()), "a training changed torch's global generator"


CLOCKED = ("wall_s", "steps_per_second", "actor_busy", "learner_busy", "rss_mb")


def test_local_trainings_in_threads_end(tmp_path):
    errors = []

    def one(k):
        try:
            packtrain.train("ppo/cartpole", output_dir=f"run{k}", seed=k, **PPO)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and all((tmp_path / f"run{k}/checkpoints").is_dir() for k in range(2))


def test_a_planner_needs_its_simulator():
    run = packtrain.train(
        "planning/shooting_random_cartpole", output_dir="run", progress=False, bindings=["Runner.n_epochs = 1"]
    )
    with pytest.raises(Error, match="a planner acts on states"):
        packtrain.load(run).predict(np.zeros(4))


def test_progress_prints_and_silence_is_silent(capsys):
    packtrain.train("ppo/cartpole", output_dir="a", **PPO)
    assert capsys.readouterr().out == ""
    packtrain.train("ppo/cartpole", output_dir="b", **{**PPO, "progress": True})
    assert "finished" in capsys.readouterr().out


def test_an_instance_that_cannot_be_copied_says_so():
    class Stuck(Chase):
        def __deepcopy__(self, memo):
            raise TypeError("no copies")

    with pytest.raises(EnvSetupError, match="cannot be copied.*pass its class"):
        packtrain.train("ppo/gym", env=Stuck(), output_dir="run", **PPO)
