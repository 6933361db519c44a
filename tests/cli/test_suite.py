"""`packtrain suite` from the command line."""

import json
from pathlib import Path

import pytest

from packtrain import cli, config
from packtrain.cli import sweep as command
from packtrain.cli import train_flags

pytest.importorskip("ale_py")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def requested(monkeypatch):
    """The requests that would be run."""
    found = []
    monkeypatch.setattr(command, "run_sweep", lambda request, say: found.append(request) or 0)
    return found


def suite(*words):
    return cli.main(["suite", *words])


def built(point):
    paths, values, arguments, _ = train_flags.parse(list(point.words))
    loaded = config.load(paths, arguments.config, values)
    return config.build(loaded)


def test_games_protocol_actions_and_frames(requested):
    """Mutations: steps for frames; the protocol of the configuration's own game."""
    words = ["--protocol", "sticky", "--action_set", "minimal", "--frames", "4e6", "--seeds", "3"]
    assert suite("atari5", "impala/atari", *words) == 0
    (request,) = requested
    assert [point.name for point in request.points] == ["BattleZone", "DoubleDunk", "NameThisGame", "Phoenix", "Qbert"]
    experiment = built(request.points[4])
    environment = experiment.streams.environment
    assert environment.id == "ALE/Qbert-v5" and experiment.total_steps == 1_000_000 and request.seeds == 3
    assert environment.atari.full_action_space is False
    suite("atari5", "impala/atari")
    classic = built(requested[1].points[4]).streams.environment
    assert classic.id == "QbertNoFrameskip-v4" and classic.atari.full_action_space is None
    assert requested[0].root != requested[1].root


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "no suite was given"),
        (["atari6", "impala/atari"], "unknown suite 'atari6' (did you mean 'atari5'?)"),
        (["atari5"], "no CONFIG was given"),
        (["atari5", "impala/atari", "--protocol", "old"], "'old' is not one of classic, sticky"),
        (["atari5", "impala/atari", "--action_set", "some"], "'some' is not one of minimal, full"),
        (["atari5", "impala/atari", "--env", "PongNoFrameskip-v4"], "--env is set by the suite"),
        (["atari5", "impala/atari", "--learning_rate", "0.1,0.2"], "in a suite each knob has one"),
        (["atari5", "impala/atari", "--frames", "1"], "must be at least 4"),
        (["atari5", "impala/atari", "--frames", "nan"], "must be at least 4"),
        (["atari5", "impala/atari", "--frames", "100", "--total_steps", "3"], "give one"),
        (["atari5", "impala/atari", "--random", "3"], "not for a suite"),
        (["atari5", "planning/shooting_random_cartpole"], "has no knob 'env'"),
        (["atari5", "impala/atari", "--learning_rat", "3"], "did you mean 'learning_rate'"),
    ],
)
def test_bad_input_is_one_line(capsys, words, part):
    assert suite(*words) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("packtrain: error: ") and part in said[-1], said
    assert not Path("runs").exists()


@pytest.mark.long
def test_a_tiny_suite_ends_in_human_normalised_scores(capsys, monkeypatch):
    """Two games, trained by child processes."""
    from packtrain.studies import atari_suite

    monkeypatch.setitem(atari_suite.SUITES, "atari10", ["Phoenix", "Qbert"])
    small = "--num_actors 2 --batch_size 2 --hidden_size 8 --eval_every 80 --eval_episodes 1 --frames 320".split()
    short = ["--config", "Atari.max_frames = 80", "--jobs", "2", "--output_dir", "s"]
    assert suite("atari10", "impala/atari", *small, *short) == 0
    said = capsys.readouterr().out
    assert "human-normalised" in said and "Cleanba IMPALA" in said and "median over 2 games" in said
    content = json.loads(Path("s/sweep.json").read_text())
    assert set(content["suite"]["games"]) == {"Phoenix", "Qbert"}
    assert Path("s/report.html").stat().st_size > 10_000
