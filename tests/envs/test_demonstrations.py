"""Demonstrations as data sets of Minari: recorded, read back, refused where they do not fit, and learned from."""

import json

import gymnasium as gym
import numpy as np
import pytest
import torch

import packtrain
from packtrain.cli import main
from packtrain.envs.demonstrations import Episode, read, rows_of, write_tree
from packtrain.errors import ConfigError
from packtrain.memory.sequence_settings import Sequences
from packtrain.types import Spec

h5py = pytest.importorskip("h5py")
SMALL = {"num_actors": 1, "hidden_size": 16, "batch_size": 16, "eval_every": 0, "progress": False, "log_every": 100}


class Reach(gym.Env):
    """One number between −1 and 1; the reward of each of 10 steps is minus the distance to a target of 3 in [−2, 4]."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Box(-2, 4, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps / 10, np.float32), -abs(float(action[0]) - 3), False, self.steps == 10, {}


class Peak(Reach):
    """The reward is near 1 for actions near 3, and near 0 elsewhere."""

    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, float(np.exp(-2 * reward**2)), *rest


def spec_of(env):
    return Spec(env.observation_space, env.action_space, ("train",), 1)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run on Reach, and what `packtrain record` made of it."""
    root = tmp_path_factory.mktemp("recorded")
    run = packtrain.train("sac/gym", env=Reach, output_dir=root / "run", **SMALL, total_steps=300, warm_up=100)
    assert main(["record", str(run.path), "--out", str(root / "data"), "--num_episodes", "3", "--seed", "5"]) == 0
    return run, root / "data"


def test_what_is_recorded_is_read_back(recorded):
    """Mutations: actions as the policy gives them instead of the environment's; an observation too few."""
    run, data = recorded
    episodes = read(data, spec_of(Reach()))
    assert len(episodes) == 3
    policy = packtrain.load(run, trust_config=True)
    for episode in episodes:
        assert episode.obs.shape == (11, 1) and episode.action.shape == (10, 1) and episode.truncated.tolist()[-1]
        for t in range(10):
            np.testing.assert_allclose(episode.action[t], policy.predict(episode.obs[t])[0], rtol=1e-5)
            assert episode.reward[t] == pytest.approx(-abs(episode.action[t, 0] - 3), rel=1e-4)
    about = json.loads((data / "data/metadata.json").read_text())
    assert (about["total_episodes"], about["total_steps"], about["data_format"]) == (3, 30, "hdf5")
    assert json.loads(about["action_space"])["low"] == [-2.0]


def test_minari_reads_it(recorded):
    storage = pytest.importorskip("minari.dataset.minari_storage")
    found = storage.MinariStorage.read(recorded[1] / "data")
    assert found.total_episodes == 3 and found.action_space == Reach.action_space
    (first, *_) = found.get_episodes([0, 1])
    assert first["observations"].shape == (11, 1)


def test_rows_are_those_of_an_environment():
    """By hand. Mutations: actions that are not scaled; an end in the first row."""
    episode = Episode(
        np.array([[0.0], [0.5], [1.0]], np.float32),
        np.array([[4.0], [-2.0]], np.float32),
        np.array([1, 2], np.float32),
        np.array([False, True]),
        np.array([False, False]),
    )
    rows = list(rows_of([episode, episode], spec_of(Reach())))
    assert [bool(row.first[0]) for row in rows] == [True, False, False] * 2
    assert [float(row.obs[0, 0]) for row in rows[:3]] == [0, 0.5, 1]
    assert [float(row.last_action[0, 0]) for row in rows[:3]] == [0, 1, -1]
    assert [float(row.last_reward["train"][0]) for row in rows[:3]] == [0, 1, 2]
    assert [bool(row.terminated[0]) for row in rows] == [False, False, True] * 2


def test_dict_spaces_are_groups(tmp_path):
    space = gym.spaces.Dict(
        a=gym.spaces.Discrete(3), b=gym.spaces.Tuple((gym.spaces.MultiBinary(2), Reach.action_space))
    )
    obs = {"a": np.array([0, 2]), "b": (np.zeros((2, 2), np.int8), np.ones((2, 1), np.float32))}
    with h5py.File(tmp_path / "main_data.hdf5", "w") as file:
        group = file.create_group("episode_0")
        write_tree(group, "observations", obs)
        write_tree(group, "actions", np.array([1]))
        for name, values in (("rewards", [1.0]), ("terminations", [True]), ("truncations", [False])):
            group[name] = values
    (episode,) = read(tmp_path, Spec(space, gym.spaces.Discrete(2), ("train",), 1))
    assert episode.obs["a"].tolist() == [0, 2] and episode.obs["b"][1].shape == (2, 1)


def spoil(file, what, elsewhere):
    group = file["episode_0"]
    if what == "external":
        del group["rewards"]
        group["rewards"] = h5py.ExternalLink(str(elsewhere), "secret")
    elif what == "soft":
        del group["rewards"]
        group["rewards"] = h5py.SoftLink("/episode_1/rewards")
    elif what == "raw":
        del group["rewards"]
        group.create_dataset("rewards", (10,), "f4", external=[(str(elsewhere), 0, 40)])
    elif what == "shape":
        del group["actions"]
        group["actions"] = np.zeros((10, 7), np.float32)
    elif what == "type":
        del group["rewards"]
        group["rewards"] = [b"a"] * 10
    elif what == "nan":
        group["observations"][3] = np.nan
    elif what == "length":
        del group["terminations"]
        group["terminations"] = [False] * 9
    elif what == "size":
        del group["rewards"]
        group.create_dataset("rewards", (2**40,), "f4", chunks=(1024,), compression="gzip")
    else:
        del group["actions"]


@pytest.mark.parametrize(
    "what, part",
    [
        *[
            ("external", "is a link"),
            ("soft", "is a link"),
            ("raw", "no array in this file"),
            ("shape", "shape (10, 7)"),
        ],
        *[("type", "has type"), ("nan", "not finite"), ("length", "other lengths"), ("size", "more than")],
        ("missing", "actions is missing"),
    ],
)
def test_what_does_not_fit_is_one_line(what, part, recorded, tmp_path, capsys):
    """Mutations: links that are followed; sizes that are believed."""
    path, elsewhere = tmp_path / "main_data.hdf5", tmp_path / "elsewhere"
    path.write_bytes((recorded[1] / "data/main_data.hdf5").read_bytes())
    elsewhere.write_bytes(b"s" * 400)
    with h5py.File(path, "a") as file:
        spoil(file, what, elsewhere)
    with pytest.raises(ConfigError) as error:
        read(path, spec_of(Reach()))
    assert part in str(error.value) and "\n" not in str(error.value)
    assert main(["train", "sac/pendulum", "--output_dir", str(tmp_path / "run"), "--demonstrations", str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("text", [b"", b"no data", b"\x89HDF\r\n\x1a\n" + bytes(100)])
def test_a_file_of_another_kind_is_one_line(text, tmp_path):
    (tmp_path / "main_data.hdf5").write_bytes(text)
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path, spec_of(Reach()))
    with pytest.raises(ConfigError, match="No such file"):
        read(tmp_path / "nowhere", spec_of(Reach()))


def test_families_without_such_a_replay_refuse(recorded, tmp_path, capsys):
    argv = ["train", "ppo/cartpole", "--output_dir", str(tmp_path / "run"), "--demonstrations", str(recorded[1])]
    assert main(argv) == 2
    assert "--demonstrations needs a replay" in capsys.readouterr().err and not (tmp_path / "run").exists()
    assert main(["record", str(recorded[0].path), "--out", str(recorded[1])]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.learning
def test_a_run_that_begins_with_demonstrations_learns_faster(tmp_path, capsys):
    """DDPG with hardly any noise never sees the peak of the rewards, which lies aside of its first actions. The
    demonstrations have all actions, and count as no steps. Mutations: demonstrations that are not stored; steps that
    are counted.
    """
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    with h5py.File(tmp_path / "data" / "main_data.hdf5", "w") as file:
        for k in range(60):
            actions = rng.uniform(-2, 4, (10, 1)).astype(np.float32)
            group = file.create_group(f"episode_{k}")
            group["observations"] = np.linspace(0, 1, 11, dtype=np.float32)[:, None]
            group["actions"], group["rewards"] = actions, np.exp(-2 * (actions[:, 0] - 3) ** 2)
            group["terminations"], group["truncations"] = np.zeros(10, bool), np.arange(10) == 9
    settings = {**SMALL, "hidden_size": 32, "batch_size": 64, "total_steps": 100, "warm_up": 2, "explore_std": 0.01}
    scores = {"without": [], "with": []}
    for seed in range(3):
        for name, given in (("without", None), ("with", tmp_path)):
            folder = tmp_path / f"{name}_{seed}"
            run = packtrain.train(
                "ddpg/gym", env=Peak, seed=seed, output_dir=folder, runtime="serial", demonstrations=given, **settings
            )
            scores[name].append(packtrain.evaluate(run, 1)["return_mean"])
            assert run.metrics()["step"][-1] == 100
    assert all(given > alone + 1 for given, alone in zip(scores["with"], scores["without"], strict=True)), scores


class Corridor(gym.Env):
    """Twelve steps with action 1 are worth 1; action 0 ends the episode with nothing."""

    observation_space = gym.spaces.Box(0, 1, (12,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.seen(), {}

    def seen(self):
        return np.eye(12, dtype=np.float32)[min(self.steps, 11)]

    def step(self, action):
        self.steps += 1
        arrived = action == 1 and self.steps == 12
        return self.seen(), float(arrived), bool(action == 0 or arrived), False, {}


def corridor_data(folder, lengths):
    """Episodes of Corridor: those of 12 steps arrive, others end with action 0."""
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "main_data.hdf5", "w") as file:
        for k, length in enumerate(lengths):
            env, obs, steps = Corridor(), [], []
            obs.append(env.reset()[0])
            for t in range(length):
                action = int(length == 12 or t < length - 1)
                seen, *rest, _ = env.step(action)
                obs.append(seen)
                steps.append((action, *rest))
            group = file.create_group(f"episode_{k}")
            group["observations"] = np.stack(obs)
            for name, values in zip(
                ("actions", "rewards", "terminations", "truncations"), zip(*steps, strict=True), strict=True
            ):
                group[name] = np.array(values)
    return folder


SEQUENCES = {
    "dqn": dict(sequence_length=1, burn_in=0, stride=1, n_step=1, new_priority="largest"),
    "r2d2": dict(sequence_length=4, burn_in=2, stride=2, n_step=2, new_priority="given"),
}


@pytest.mark.parametrize("sizes", SEQUENCES)
def test_sequences_of_demonstrations_are_those_of_their_episodes(sizes, tmp_path):
    """Every recorded step can be sampled, nothing else, and no sequence reaches over an end.

    Mutations: resets behind a short environment that become steps; steps that count; errors that are taken as 0.
    """
    spec = spec_of(Corridor())
    episodes = read(corridor_data(tmp_path, [12, 3, 1, 5, 12, 2, 7]), spec)
    memory = Sequences(capacity=400, batch_size=8, **SEQUENCES[sizes]).build([2, 1], 0, torch.device("cpu"))
    carry = torch.zeros
    steps = memory.preload(rows_of(episodes, spec), lambda size: ((carry(size, 1, 4),), {}))
    assert steps == 42 and memory.count == memory.steps == 0 and memory.ready() is False
    seen = set()
    for slot in range(memory.index.unused):
        t = memory._gather(torch.tensor([slot]))
        begin = len(t.first) - 1 - len(t.reward)
        for k in torch.flatten(t.extras["weight"][:, 0].nonzero()).tolist():
            where = int(t.obs[begin + k, 0].argmax())
            assert int(t.action[k, 0]) in (0, 1) and float(t.reward[k, 0]) == float(where == 11)
            assert bool(t.terminated[k, 0]) == (int(t.action[k, 0]) == 0 or where == 11)
            seen.add((where, int(t.action[k, 0])))
    assert seen == {*((k, 1) for k in range(12)), *((k, 0) for k in (2, 0, 4, 1, 6))}
    priorities = memory.index.tree.priorities(torch.arange(memory.index.unused))
    assert len(set(priorities.tolist())) == 1 and priorities[0] > 0  # the largest so far for all
    if sizes == "dqn":
        assert len(memory) == 42


def test_families_with_intrinsic_rewards_refuse(tmp_path, capsys):
    data = corridor_data(tmp_path / "data", [12])
    argv = ["train", "ngu/small_base", "--output_dir", str(tmp_path / "run"), "--demonstrations", str(data)]
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert "intrinsic rewards" in error and len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--demonstrations", "none"], "--demonstrations and --replay_shards cannot be combined"),
        (
            ["--normalise_rewards", "True", "--new_priority", "largest"],
            "each part would divide rewards by a deviation of its own",
        ),
    ],
)
def test_a_replay_in_shards_refuses_what_its_parts_cannot_share(words, part, tmp_path, capsys):
    """Mutations: demonstrations that are dropped without a word; a scale of rewards per part."""
    command = ["train", "r2d2/gym", "--runtime", "cluster", "--replay_shards", "2", *words]
    assert main([*command, "--output_dir", str(tmp_path / "run")]) == 2
    assert part in capsys.readouterr().err and not (tmp_path / "run").exists()


@pytest.mark.learning
@pytest.mark.parametrize("family", ["dqn/gym", "r2d2/gym"])
def test_q_learners_that_begin_with_demonstrations_arrive(family, tmp_path):
    """Twelve right actions in a row have probability 1/4096. Mutations: demonstrations that are not stored."""
    data = corridor_data(tmp_path / "data", [12] * 8 + [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11] * 3)
    settings = {"eval_every": 0, "progress": False, "log_every": 100, "num_actors": 2, "warm_up": 40}
    settings |= {
        "total_steps": 160,
        "hidden_sizes": (32,),
        "dueling_size": 32,
        "batch_size": 32,
        "learning_rate": 0.003,
    }
    settings |= {"updates_per_step": 2.0, "target_period": 20}
    scores = []
    for given in (None, data):
        folder = tmp_path / ("with" if given else "without")
        run = packtrain.train(
            family, env=Corridor, seed=0, output_dir=folder, runtime="serial", demonstrations=given, **settings
        )
        scores.append(packtrain.evaluate(run, 1)["return_mean"])
        assert run.metrics()["step"][-1] >= 160
    assert scores == [0.0, 1.0]
