"""`--trace` of train and eval: what is recorded, and that nothing else changes."""

import json

import pytest

from packtrain.cli import main

SMALL = ["--config", "Hanoi.disks = 2", "--n_envs", "2", "--n_precollect_epochs", "0", "--runtime", "serial"]
TRAIN = ["train", "planning/mcts_hanoi", *SMALL, "--eval_period", "100"]


def names(run):
    return sorted(path.name for path in (run / "traces").glob("*")) if (run / "traces").is_dir() else []


def weights(run):
    return [path.read_bytes() for path in sorted((run / "checkpoints").rglob("*.safetensors"))]


def test_a_traced_run_is_the_same_run(tmp_path, capsys):
    """Equal weights and metrics; and a run may be resumed with or without the flag.

    Mutations: the flag in the identity; a planner that draws random numbers for its records.
    """
    for name, flags in (("plain", []), ("traced", ["--trace", "2"])):
        assert main([*TRAIN, "--output_dir", str(tmp_path / name), "--n_epochs", "2", *flags]) == 0
    plain, traced = tmp_path / "plain", tmp_path / "traced"
    assert weights(plain) == weights(traced) != []
    assert (plain / "config.gin").read_text() == (traced / "config.gin").read_text()
    assert names(plain) == [] and names(traced) == ["spread000000.json", "spread000001.json"]
    assert main([*TRAIN, "--output_dir", str(traced), "--n_epochs", "3"]) == 0
    assert main([*TRAIN, "--output_dir", str(plain), "--n_epochs", "3", "--trace", "1"]) == 0
    assert weights(plain) == weights(traced)


def test_an_evaluation_writes_its_first_episodes(tmp_path, capsys):
    """One of them is cut off by the time limit and written all the same. Mutation: the last row not looked at."""
    run = tmp_path / "run"
    assert main([*TRAIN, "--output_dir", str(run), "--n_epochs", "1", "--episode_time_limit", "3"]) == 0
    assert main(["eval", str(run), "--num_episodes", "3"]) == 0
    plain = (run / "eval.json").read_text()
    assert main(["eval", str(run), "--num_episodes", "3", "--trace", "2"]) == 0
    assert "searches of 2 episodes" in capsys.readouterr().out
    found = [json.loads(path.read_text()) for path in sorted((run / "traces").iterdir())]
    assert len(found) == 2 and {one["source"] for one in found} == {"eval"}
    result = json.loads((run / "eval.json").read_text())
    assert result.pop("traces") == 2 and result == json.loads(plain)
    assert sorted(len(one["steps"]) for one in found) == sorted(result["lengths"][:2])
    assert all(step["search"]["kind"] == "graph" for one in found for step in one["steps"])
    assert found[0]["pictures"] and found[0]["texts"] and found[0]["actions"][0] == "1→2"
    assert main(["explore", str(run), "--checkpoint", str(result["checkpoint"])]) == 0


def test_model_predictive_control_writes_sequences(tmp_path, capsys):
    run = tmp_path / "run"
    flags = ["--total_steps", "60", "--warm_up", "20", "--pretrain", "2", "--horizon", "3", "--candidates", "8"]
    flags += ["--elites", "2", "--iterations", "2", "--eval_every", "0", "--config", "Streams.episode_time_limit = 10"]
    train = ["train", "steve/pets_pendulum", "--runtime", "serial", "--output_dir", str(run), *flags[:-2]]
    assert main(train) == 0
    assert main(["eval", str(run), "--num_episodes", "1", "--trace", "1"]) == 0
    (trace,) = (json.loads(path.read_text()) for path in (run / "traces").iterdir())
    for step in trace["steps"]:
        sequences = step["search"]["sequences"]
        assert sequences["tried"] == [8, 8] and len(sequences["return"]) == 16
        assert len(sequences["plan"]) == 3
    assert trace["steps"][0]["action"] == pytest.approx(trace["steps"][0]["search"]["sequences"]["plan"][0], abs=1e-5)
    assert main(["explore", str(run)]) == 0


@pytest.mark.parametrize(
    "argv, message",
    [
        (
            ["train", "ppo/cartpole", "--trace", "2"],
            "--trace 2 records searches, and the policy of this configuration (ActorCritic",
        ),
        (["train", "planning/mcts_hanoi", "--trace", "-1"], "--trace -1 must not be negative"),
        (["eval", "missing", "--trace", "101"], "--trace 101 must lie between 0 and --num_episodes 100"),
    ],
)
def test_errors_are_one_line(tmp_path, monkeypatch, capsys, argv, message):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert message in error.splitlines()[-1] and not list(tmp_path.iterdir())
