"""Pictures of planned episodes and of wrongly predicted transitions: tiles compared with those drawn by hand."""

import numpy as np
import pytest

from packtrain.acting.episode_pictures import EpisodePictures, PictureCallback
from packtrain.cli import main
from packtrain.envs.functional_vector_env import FunctionalVectorEnv
from packtrain.envs.hanoi import Hanoi
from packtrain.envs.stream import Stream
from packtrain.errors import ConfigError
from packtrain.metrics.contact_sheet import Tile, contact_sheet
from packtrain.planning.learned.action_predictions import ActionPredictions, predict_actions
from packtrain.planning.model import Stepped

SMALL = """
include 'tbv/bfs_hanoi_tbv.gin'
disks = 3
n_envs = 2
episode_time_limit = 10
n_precollect_epochs = 1
n_epochs = 1
n_model_precollect_episodes = 4
n_model_pretrain_epochs = 1
members = 2
mask_size = 2
model_hidden_sizes = (8,)
model_batch_size = 16
model_n_steps_per_epoch = 2
Runner.callback_classes = (@PictureCallback,)
PictureCallback.rollout_every = 2
PictureCallback.errors_every = 1
"""


def stream_of(core, size, limit=9):
    return Stream(FunctionalVectorEnv(core, size, 3, "raise", "test", True, limit), size)


def read_png(path):
    from PIL import Image

    return np.asarray(Image.open(path).convert("RGB"))


def play(pictures, core, size, actions, marks=({},), predicted=None):
    """Begin episodes, play the actions in all environments, and show each step's flags; the states at each look."""
    stream, states = stream_of(core, size), []
    for number, action in enumerate([*actions, 0]):
        row = stream.recv() if number else stream.start()
        acted = np.full(size, number > 0)
        taken = np.full(size, action)
        flags = marks[min(number - 1, len(marks) - 1)] if number else {}
        pictures.look(stream.columns.states, np.asarray(row.first), acted, taken, flags, predicted)
        stream.send(taken)
        states.append(stream.columns.states)
    return states


def test_false_rewards_show_the_transition_and_how_often_it_occurred(tmp_path):
    """Both environments make the same step. Mutations: the states of another step; each environment's own tile."""
    core = Hanoi(2)
    pictures = EpisodePictures(PictureCallback(errors_every=1), core, tmp_path)
    marks = [{"false_reward": np.array([True, True]), "wrong": np.array([False, False])}, {}]
    states = play(pictures, core, 2, [0, 3], marks)
    pictures.write()
    assert [path.name for path in tmp_path.iterdir()] == ["false_reward-0.png"]
    tile = Tile([core.render(state[:1], "rgb_array") for state in states[:2]], ["1-2 2"])
    np.testing.assert_array_equal(read_png(tmp_path / "false_reward-0.png"), contact_sheet([tile]))


def test_a_rollout_shows_states_actions_flags_and_predictions(tmp_path):
    """Of the first environment. Mutations: flags a step late; the prediction of another action left out."""
    core, no = Hanoi(2), np.zeros(6, bool)
    pictures = EpisodePictures(PictureCallback(rollout_every=2), core, tmp_path)
    pictures.begin_epoch(4)
    assert pictures.follows
    predicted = ActionPredictions(~no, np.eye(6, dtype=np.float32)[5], no, np.arange(6) / 8)
    marks = [{"false_loop": np.array([True, False]), "verified": np.array([False, True])}, {}]
    states = play(pictures, core, 2, [0, 3], marks, predicted)
    pictures.write()
    assert [path.name for path in tmp_path.iterdir()] == ["rollout-4.png"]
    drawn = [core.render(state[:1], "rgb_array") for state in states]
    names = ["1-2", "1-3", "2-1", "2-3", "3-1", "3-2"]
    said = [f"{name} {u / 8:.2f} loop" + " reward" * (u == 5) for u, name in enumerate(names)]
    tiles = [
        Tile([drawn[0]], ["0 1-2", "false loop", *said]),
        Tile([drawn[1]], ["1 2-3", *said]),
        Tile([drawn[2]], ["2 1-2"]),
    ]
    np.testing.assert_array_equal(read_png(tmp_path / "rollout-4.png"), contact_sheet(tiles))


def test_epochs_between_have_no_pictures(tmp_path):
    """Mutation: every epoch is pictured."""
    pictures = EpisodePictures(PictureCallback(2, 2), Hanoi(2), tmp_path)
    pictures.begin_epoch(3)
    assert not pictures.follows
    play(pictures, Hanoi(2), 2, [0, 3], [{"wrong": np.array([True, True])}])
    pictures.write()
    assert not list(tmp_path.iterdir())


def test_a_picture_of_errors_has_at_most_the_given_number_of_transitions(tmp_path):
    """Those that occurred first, and no two alike."""
    pictures = EpisodePictures(PictureCallback(errors_every=1, most=2), Hanoi(3), tmp_path)
    play(pictures, Hanoi(3), 1, [0, 2, 0, 2, 1, 4], [{"wrong": np.array([True])}])
    assert [count for _, _, count in pictures._errors["wrong"].values()] == [2, 2]


def test_predictions_are_those_of_every_action_in_the_state():
    """A model in which action a leads to state a. Mutation: predictions for the action taken only."""

    class Jumps:
        def guess(self, states, actions):
            after = {"obs": actions[:, None].astype(np.float32)}
            return Stepped(after, actions / 2, actions == 2, actions == 2, None)
            yield

    with pytest.raises(StopIteration) as stop:
        next(predict_actions(Jumps(), {"obs": np.ones((1, 1), np.float32)}, 3))
    found = stop.value.value
    assert found.loop.tolist() == [False, True, False] and found.terminated.tolist() == [False, False, True]
    assert found.reward.tolist() == [0, 0.5, 1] and found.bonus is None


def test_a_run_writes_pictures_in_their_epochs(tmp_path, monkeypatch):
    """Epochs 0 and 1 are random data and pre-training. Mutation: a picture of every epoch."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.gin").write_text(SMALL)
    assert main(["train", "small.gin", "--output_dir", "run", "--seed", "0", "--n_epochs", "2"]) == 0
    found = {path.stem for path in (tmp_path / "run" / "pictures").iterdir()}
    rollouts = {name for name in found if name.startswith("rollout-")}
    assert rollouts and all(int(name.partition("-")[2]) % 2 == 0 for name in rollouts)
    assert any(name.startswith("wrong-") for name in found)
    for name in rollouts:
        picture = read_png(tmp_path / "run" / "pictures" / f"{name}.png")
        assert picture.shape[1] > 400 and len(np.unique(picture.reshape(-1, 3), axis=0)) > 3


def test_bad_settings_are_refused(tmp_path):
    """One line that names the parameter, or the environment that has no picture."""
    for name, value in (("rollout_every", -1), ("errors_every", -1), ("most", 0)):
        with pytest.raises(ConfigError, match=f"PictureCallback.{name} = {value} must be at least"):
            PictureCallback(**{name: value})

    class Unseen:
        pass

    with pytest.raises(ConfigError, match="Unseen cannot be drawn"):
        EpisodePictures(PictureCallback(), Unseen(), tmp_path)
