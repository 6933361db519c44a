"""Bad input: one line that names what, where and what to try, exit code 2, nothing written."""

import importlib.util
import os
import sys

import pytest

from packtrain.cli import main

SMALL = ["--total_steps", "200", "--num_actors", "2", "--batch_size", "2", "--unroll_length", "5", "--eval_every", "0"]


def refused(capsys, tmp_path, argv, *parts, code=2):
    """Run a command that must be refused; returns the line."""
    before = sorted(tmp_path.rglob("*"))
    assert main(argv) == code
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("packtrain: error: ") and captured.out == ""
    for part in parts:
        assert part in lines[0], (part, lines[0])
    assert sorted(tmp_path.rglob("*")) == before, "something was written"
    return lines[0]


@pytest.fixture(autouse=True)
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


CATCH = ["train", "impala/catch", "--output_dir", "run"]


@pytest.mark.parametrize(
    "argv, parts",
    [
        (["tain"], ["unknown command 'tain'", "did you mean 'train'"]),
        (["train"], ["no CONFIG", "packtrain list"]),
        (["train", "impala/cach"], ["unknown config 'impala/cach'", "did you mean 'impala/catch'"]),
        (["train", "nowhere.gin"], ["nowhere.gin does not exist"]),
        (["train", "old/place/catch.gin"], ["did you mean one of dqn/catch, impala/catch, r2d2/catch?"]),
        ([*CATCH, "--num_actor", "3"], ["unknown flag '--num_actor'", "did you mean 'num_actors'"]),
        ([*CATCH, "--num_actors", "many"], ["--num_actors 'many' is not a whole number"]),
        ([*CATCH, "--num_actors"], ["--num_actors", "expected one argument"]),
        (
            [*CATCH, "--config", "Impala.entropy_cots = 1"],
            ["no parameter 'entropy_cots'", "did you mean 'entropy_cost'"],
        ),
        ([*CATCH, "--config", "entropy_cots = 1"], ["entropy_cots is set but not used"]),
        ([*CATCH, "--config", "Conv.channels = 'wide'"], ["Conv.channels = 'wide' is not"]),
        ([*CATCH, "--config", "Impala.entropy_cost ="], ["syntax error"]),
        ([*CATCH, "--config", "Impala.entropy_cost"], ["has no value", "such as 'Impala.entropy_cost = 0.5'"]),
        (["train", "PPO/CartPole"], ["unknown config 'PPO/CartPole'", "did you mean 'ppo/cartpole'"]),
        (["train", "ppo/cartpole", "--lr", "1"], ["unknown flag '--lr'", "did you mean 'learning_rate'"]),
        (["train", "ppo/cartpole", "--n_envs", "1"], ["did you mean 'num_actors'"]),
        (["train", "sac/gym", "--env", "CartPole-v1"], ["SAC, TD3", "not Discrete(2)", "ppo/gym", "dqn/gym"]),
        (["train", "dqn/gym", "--env", "Pendulum-v1"], ["DQN, R2D2 and NGU need discrete", "sac/gym"]),
        ([*CATCH, "--env", "Cacth"], ["unknown environment 'Cacth'", "did you mean 'Catch'"]),
        ([*CATCH, "--env", "no_such_module:Env-v0"], ["no_such_module"]),
        ([*CATCH, "--total_steps", "0"], ["Run.total_steps = 0 must be at least 1"]),
        ([*CATCH, "--num_actors", "-1"], ["Streams.num_actors = -1"]),
        ([*CATCH, "--batch_size", "0"], ["Unrolls.batch_size = 0"]),
        ([*CATCH, "--unroll_length", "-5"], ["Unrolls.unroll_length = -5"]),
        ([*CATCH, "--hidden_size", "0"], ["ActorCritic.hidden_size = 0"]),
        ([*CATCH, "--batch_size", "9", "--num_buffers", "8"], ["batch_size = 9", "num_buffers = 8", "no batch"]),
        ([*CATCH, "--learning_rate", "-0.1"], ["Impala.learning_rate = -0.1 must be above 0"]),
        ([*CATCH, "--checkpoint_secs", "0"], ["Run.checkpoint_secs"]),
        ([*CATCH, "--seed", "-3"], ["Experiment.seed = -3"]),
        ([*CATCH, "--seed", "x"], ["--seed"]),
        ([*CATCH, "--num_seeds", "0"], ["--num_seeds 0"]),
        ([*CATCH, "--device", "cuda:7"], ["cuda:7", "--device cpu"]),
        (["train", "impala/pong", "--device", "cuda:7", "--output_dir", "run"], ["cuda:7", "--device cpu"]),
        ([*CATCH, "--env", "PnogNoFrameskip-v4"], ["unknown Atari game", "PongNoFrameskip-v4"]),
        ([*CATCH, "--env", "ALE/Brekout-v5"], ["unknown Atari game", "ALE/Breakout-v5"]),
        (
            ["train", "impala/pong", "--config", "Atari.max_frames = 1000000000000", "--output_dir", "run"],
            ["PongNoFrameskip-v4", "cannot be made"],
        ),
        (["train", "impala/pong", "--protocol", "old", "--output_dir", "run"], ["protocol", "classic"]),
        (["bench", "impala_atari", "--device", "mps"], ["mps", "cuda:N"]),
        (["bench", "impala_catch", "--secs", "0"], ["--secs 0.0 must be above 0"]),
        *((["bench", name, "--device", "cuda:7"], ["cuda:7", "--device cpu"]) for name in ("replay", "steve", "tbv")),
        ([*CATCH, "--device", "toaster"], ["toaster"]),
        ([*CATCH, "--address", "10.0.0.5:6379"], ["--address", "--runtime cluster"]),
        ([*CATCH, "--min_nodes", "2"], ["--min_nodes", "--runtime cluster"]),
        ([*CATCH, "--workers", "2"], ["--workers", "--acting process", "--runtime cluster"]),
        ([*CATCH, "--runtime", "cluster", "--workers", "0"], ["--workers 0 must be at least 1"]),
        ([*CATCH, "--runtime", "cluster", "--acting", "process"], ["--acting", "Ray actors"]),
        ([*CATCH, "--acting", "processes"], ["--acting 'processes'", "thread, process"]),
        ([*CATCH, "--runtime", "parallel"], ["parallel"]),
        ([*CATCH, "--restarts", "-1"], ["--restarts -1 must be at least 0"]),
        (["train", "impala/catch", "--restarts", "3"], ["--restarts needs --output_dir or --xpid"]),
        ([*CATCH, "--video"], ["packtrain eval RUN --video"]),
        (["eval", ".", "--video", "--video_episodes", "0"], ["--video_episodes 0"]),
        (["eval", ".", "--video", "--video_episodes", "3", "--num_episodes", "2"], ["--video_episodes 3", "between"]),
        (["eval", ".", "--video", "--video_format", "gif"], ["--video_format 'gif'", "mp4"]),
        (["eval", ".", "--video_episodes", "2"], ["--video_episodes", "needs --video"]),
        ([*CATCH, "--savedir", "d"], ["--output_dir"]),
        (["eval", "nowhere"], ["nowhere is not a run folder"]),
        (["eval", ".", "--num_episodes", "0"], ["--num_episodes 0"]),
        (["report", "nowhere"], ["nowhere"]),
        (["bench", "impala_cacth"], ["did you mean 'impala_catch'"]),
        (["sweep", "x"], ["unknown config 'x'", "`packtrain list`"]),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_one_line_and_exit_code_2(capsys, tmp_path, argv, parts):
    refused(capsys, tmp_path, argv, *parts)


@pytest.mark.parametrize(
    "fault, parts",
    [
        ("nan_obs", ["first reset", "NaN"]),
        ("wrong_shape", ["shape (4,)", "(3,)"]),
        ("out_of_space", ["outside its space"]),
        ("raise", ["first reset", "RuntimeError"]),
    ],
)
def test_an_environment_whose_first_reset_is_wrong(capsys, tmp_path, fault, parts):
    (tmp_path / "mine.gin").write_text(
        f"import packtrain.testing.faulty\ninclude 'impala/gym.gin'\nenv = 'packtrain/Faulty-v0'\n"
        f"Environment.kwargs = {{'fault': '{fault}', 'at_step': 0}}\n"
    )
    refused(capsys, tmp_path, ["train", "mine.gin", "--output_dir", "run", *SMALL], *parts)


def test_a_syntax_error_in_a_file_names_its_line(capsys, tmp_path):
    (tmp_path / "mine.gin").write_text("include 'impala/catch.gin'\n\nImpala.discounting = = 3\n")
    refused(capsys, tmp_path, ["train", "mine.gin", "--output_dir", "run"], "mine.gin:3", "syntax error")


def test_a_misspelt_binding_in_a_file_names_its_line(capsys, tmp_path):
    (tmp_path / "mine.gin").write_text("include 'impala/catch.gin'\nImpala.discount = 0.9\n")
    refused(capsys, tmp_path, ["train", "mine.gin", "--output_dir", "run"], "mine.gin:2", "did you mean 'discounting'")


def test_an_unused_binding_in_a_file_names_its_line(capsys, tmp_path):
    (tmp_path / "mine.gin").write_text("include 'impala/cartpole.gin'\nConv.channels = (3, 3)\n")
    refused(capsys, tmp_path, ["train", "mine.gin", "--output_dir", "run"], "mine.gin:2", "not used")


def test_an_output_folder_that_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").write_text("x")
    refused(capsys, tmp_path, ["train", "impala/catch", "--output_dir", "file/run"], "file", "not a folder")
    if os.geteuid() != 0:
        (tmp_path / "closed").mkdir(mode=0o500)
        refused(capsys, tmp_path, ["train", "impala/catch", "--output_dir", "closed/run"], "closed", "--output_dir")


def test_tensorboard_missing_names_its_extra(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refused(capsys, tmp_path, [*CATCH, *SMALL, "--tensorboard"], "packtrain[tensorboard]")


@pytest.mark.parametrize("name", ["PongNoFrameskip-v4", "ALE/Pong-v5"])
def test_atari_missing_names_its_extra(capsys, tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    refused(capsys, tmp_path, [*CATCH, "--env", name], "ale-py", "packtrain[atari]")


def test_a_checkpoint_of_another_configuration(capsys, tmp_path):
    assert main([*CATCH, *SMALL]) == 0
    capsys.readouterr()
    before = {
        p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file() and p.name not in ("log.txt", ".lock")
    }
    line = refused(capsys, tmp_path, [*CATCH, *SMALL, "--entropy_cost", "0.5"], "another configuration", "--fresh")
    assert "Impala.entropy_cost: 0.01 → 0.5" in line
    assert all(p.read_bytes() == data for p, data in before.items()), "something was destroyed"


def test_no_good_checkpoint_left(capsys, tmp_path):
    assert main([*CATCH, *SMALL]) == 0
    capsys.readouterr()
    for path in (tmp_path / "run" / "checkpoints").glob("*/state.json"):
        path.write_bytes(b"{}")
    assert main([*CATCH, *SMALL]) == 2
    assert "is intact" in capsys.readouterr().err
    assert main(["eval", "run"]) == 2


@pytest.mark.parametrize(
    "argv, parts",
    [
        ([*CATCH, "--learning_rate", "nan"], ["--learning_rate 'nan' is not a number"]),
        ([*CATCH, "--config", "Experiment.memories = {'unrolls': 3}"], ["Experiment.memories", "is not"]),
        ([*CATCH, "--unroll_length", "1000000000"], ["GiB", "lower num_actors"]),
        ([*CATCH, "--hidden_size", "100000000000"], ["network cannot be built"]),
        (["train", "impala/catch", "--output_dir", ""], ["need a name"]),
    ],
    ids=["nan", "dict item", "arena", "network", "empty folder"],
)
def test_sizes_and_values_that_cannot_be(capsys, tmp_path, argv, parts):
    refused(capsys, tmp_path, argv, *parts)


def test_a_list_of_those_with_a_word_in_their_name(capsys):
    """Mutation: any of the words; a name that nothing has ends in an error of Python's."""
    assert main(["list", "steve", "hopper_paper"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert len(lines) > 5 and all(line.startswith("  steve/") and "hopper_paper " in line for line in lines)
    assert main(["list", "hoper"]) == 2
    assert "no shipped configuration has 'hoper' in its name or description" in capsys.readouterr().err
