"""`packtrain eval --video`: which episodes are filmed, what a film shows, and the weights of depths beside it."""

import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from packtrain.cli import main
from packtrain.envs.catch import BALL_COLOUR, PADDLE_COLOUR, PIXELS_PER_CELL
from packtrain.runtime import eval_command
from packtrain.runtime import video as films

Image = pytest.importorskip("PIL.Image")
SMALL = "--total_steps 100 --num_actors 2 --batch_size 2 --unroll_length 5 --eval_every 0 --runtime serial".split()
TINY = (
    "--total_steps 420 --warm_up 400 --pretrain 2 --hidden_size 4 --model_hidden_size 4 --batch_size 8 "
    "--num_actors 2".split()
)


@pytest.fixture(autouse=True)
def same_surroundings(monkeypatch):
    """Other tests of this process draw as they did."""
    monkeypatch.setattr(eval_command, "draw_without_screen", lambda: None)


@pytest.fixture(scope="module")
def catch(tmp_path_factory):
    """A run on Catch; tests only add films to it."""
    run = tmp_path_factory.mktemp("film") / "run"
    assert main(["train", "impala/catch", "--output_dir", str(run), *SMALL]) == 0
    return run


def evaluate(capsys, run, *flags):
    capsys.readouterr()
    assert main(["eval", str(run), "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)


def pictures(path):
    image = Image.open(io.BytesIO(Path(path).read_bytes()))
    found = []
    for index in range(image.n_frames):
        image.seek(index)
        found.append(np.asarray(image.convert("RGB"))[::PIXELS_PER_CELL, ::PIXELS_PER_CELL])  # cells
    return found


def test_films_show_the_first_episodes_from_start_to_end(catch, capsys):
    """18 of 20 episodes in 16 columns, so that some columns are filmed twice, and others only the first time.

    The ball falls one row a picture, and in the last one it hides the paddle where the return is 1. Mutations: the row
    of the reset left out; the last picture that of the next episode; films of later episodes; another column's picture.
    """
    result = evaluate(
        capsys, catch, "--num_episodes", "20", "--video", "--video_episodes", "18", "--sampled", "--seed", "1"
    )
    assert [video["episode"] for video in result["videos"]] == list(range(1, 19))
    for video in result["videos"]:
        shown = pictures(catch / video["file"])
        assert len(shown) == video["pictures"] == 10 == video["length"] + 1
        assert [np.argwhere((cells == BALL_COLOUR).all(axis=2))[0, 0] for cells in shown] == list(range(10))
        hidden = not (shown[-1] == PADDLE_COLOUR).all(axis=2).any()
        assert video["return"] == (1.0 if hidden else -1.0)
    assert {video["return"] for video in result["videos"]} == {1.0, -1.0}, "else nothing was tested"
    names = sorted(path.name for path in (catch / "videos").iterdir())
    step = result["checkpoint"]
    assert names == sorted(f"{step}_sampled_episode_{k}.png" for k in range(1, 19))


def test_a_film_changes_nothing_else(catch, capsys):
    """Mutations: an episode more, or other seeds, because of filming; later episodes of other columns."""
    plain = evaluate(capsys, catch, "--num_episodes", "20")
    filmed = evaluate(capsys, catch, "--num_episodes", "20", "--video")
    assert len(filmed.pop("videos")) == 1 and filmed == plain
    assert len(plain["returns"]) == 20 and sum(plain["returns"]) == pytest.approx(20 * plain["return_mean"])
    assert plain["lengths"] == [9] * 20
    capsys.readouterr()
    assert main(["eval", str(catch), "--num_episodes", "5", "--video"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("  episodes: ") and lines[1].count("1.0 (9 steps)") == 5
    assert lines[2].startswith("  greedy ") and lines[2].endswith("(5 of each; above greedy)")
    assert lines[3] in ("episode 1: 9 steps, return 1", "episode 1: 9 steps, return -1")
    assert (
        "animated PNG, 10 pictures of 80×160, 10 a second" in lines[4]
        and f"{filmed['checkpoint']}_episode_1" in lines[4]
    )


def test_a_film_keeps_what_happened(catch, capsys, monkeypatch):
    """Observation, reward and end of each action. Mutations: those of the row before; nothing ever ends."""
    made = []

    class Kept(films.Film):
        def __init__(self, *arguments, keep):
            assert not keep, "nobody needs the observations of Catch"
            super().__init__(*arguments, keep=True)
            made.append(self)

    monkeypatch.setattr(films, "Film", Kept)
    result = evaluate(capsys, catch, "--num_episodes", "20", "--video", "--video_episodes", "17")
    assert list(made[0].steps) == list(range(1, 18))
    for video, kept in zip(result["videos"], made[0].steps.values(), strict=True):
        assert [step.reward for step in kept] == [0.0] * 8 + [video["return"]]
        assert [step.terminated for step in kept] == [False] * 8 + [True]
        balls = [step.after[0, :-1].any(axis=1).nonzero()[0].tolist() for step in kept]  # above the paddle's row
        assert balls == [[row] for row in range(1, 9)] + [[]]


def test_long_episodes_are_thinned_out_and_keep_their_end(catch, capsys, monkeypatch):
    """Of 10 pictures 4 fit: steps 0, 4, 8 and the last. Mutations: the end lost; a film that goes too fast."""
    monkeypatch.setattr(films, "MOST_PICTURES", 4)
    (video,) = evaluate(capsys, catch, "--num_episodes", "1", "--video")["videos"]
    rows = [np.argwhere((cells == BALL_COLOUR).all(axis=2))[0, 0] for cells in pictures(catch / video["file"])]
    assert rows == [0, 4, 8, 9] and video["every"] == 4 and video["per_second"] == 2.5
    assert "one every 4 steps" in films.describe("run", [video])


def test_a_film_that_is_too_large_is_halved(catch, capsys, monkeypatch):
    monkeypatch.setattr(films, "MOST_BYTES", 100)
    (video,) = evaluate(capsys, catch, "--num_episodes", "1", "--video")["videos"]
    assert (video["width"], video["height"]) == (40, 80) and video["halved_from"] > 100
    assert Image.open(catch / video["file"]).size == (40, 80)


def refused(capsys, argv, *parts):
    capsys.readouterr()
    assert main(argv) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.strip().splitlines()
    assert captured.out == "" and all(part in line for part in parts), line


def test_what_cannot_be_drawn_is_refused_before_anything_is_played_or_written(tmp_path, capsys, monkeypatch):
    """Mutation: looked for after the first step."""
    run = tmp_path / "run"
    assert main(["train", "abilities/bandit", "--output_dir", str(run), "--total_steps", "100"]) == 0
    before = sorted(path for path in run.rglob("*"))
    played = []
    monkeypatch.setattr("packtrain.runtime.evaluation.Evaluator.tick", lambda self: played.append(1))
    refused(capsys, ["eval", str(run), "--video"], "'Bandit' cannot be drawn")
    assert not played and sorted(run.rglob("*")) == before


def test_mp4_without_an_encoder_and_a_folder_without_permission(catch, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    refused(capsys, ["eval", str(catch), "--video", "--video_format", "mp4"], "MP4", "packtrain[video]")
    monkeypatch.setattr(os, "access", lambda *_: False)
    refused(capsys, ["eval", str(catch), "--video"], "videos cannot be written")


def test_the_mode_that_renders_films(catch, capsys):
    """TorchBeast's `--mode test_render`."""
    argv = ["train", "impala/catch", "--mode", "test_render", "--num_episodes", "2", "--output_dir", str(catch)]
    capsys.readouterr()
    assert main(argv) == 0
    captured = capsys.readouterr()
    assert f"is `packtrain eval {catch} --video`" in captured.err and "animated PNG" in captured.out


def test_a_value_expansion_tells_the_weights_of_every_filmed_step(tmp_path, capsys):
    """Mutations: weights of episodes that are not filmed; the network of before training."""
    run = str(tmp_path / "run")
    assert main(["train", "steve/steve_halfcheetah_paper", "--env", "PointMass", "--output_dir", run, *TINY]) == 0
    result = evaluate(capsys, run, "--num_episodes", "3", "--video", "--video_episodes", "2")
    found = json.loads((tmp_path / "run" / result["weights"]["file"]).read_text())
    each = np.array([episode["weights"] for episode in found["episodes"]])
    assert each.shape == (2, 50, 4) and result["weights"]["steps"] == 100
    np.testing.assert_allclose(each.sum(-1), 1, atol=1e-4)
    assert found["model_use"] == pytest.approx(1 - each[..., 0].mean(), abs=1e-4)
    np.testing.assert_allclose(np.sum(found["histogram"], axis=0), 1)
    text = eval_command.describe_evaluation("run", result).splitlines()
    table = next(number for number, line in enumerate(text) if line.startswith("  weight "))
    assert text[table].split() == ["weight", *"depth 0 depth 1 depth 2 depth 3".split()]
    rows = text[table + 1 : table + 11]
    assert rows[0].startswith("  0.9 to 1.0") and rows[-1].startswith("  0.0 to 0.1")
    assert f"model use {found['model_use']:.3f}" in text[-1] and result["weights"]["file"] in text[-1]
