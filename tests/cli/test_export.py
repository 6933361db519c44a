"""`packtrain export`: a bundle that runs without packtrain, and reasons where no program can."""

import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.torch import load_file

import packtrain
from packtrain.cli import main
from packtrain.networks import distributions

SMALL = {"total_steps": 400, "num_actors": 2, "eval_every": 0, "progress": False}
CASES = {
    "ppo/cartpole": {**SMALL, "unroll_length": 16, "batch_size": 2, "minibatches": 2},
    "ppo/pendulum": {**SMALL, "unroll_length": 16, "batch_size": 2, "minibatches": 2, "normalise_obs": True},
    "dqn/cartpole": {**SMALL, "warm_up": 100, "normalise_obs": True},
    "sac/pendulum": {**SMALL, "hidden_size": 16, "batch_size": 16, "num_actors": 1, "normalise_obs": True},
}
PLAIN = """
import sys, numpy as np, torch
program = torch.export.load(sys.argv[1]).module()
actions = program(torch.from_numpy(np.load(sys.argv[2]))).numpy()
assert "packtrain" not in sys.modules
np.save(sys.argv[3], actions)
"""


def test_an_export_leaves_nothing_of_its_tracing_behind(tmp_path):
    """In a fresh process nothing is cached yet. Mutation: a matrix without numbers, of torch.export, that is kept."""
    run = packtrain.train(
        "impala/catch", output_dir=tmp_path / "run", **{**SMALL, "unroll_length": 16, "batch_size": 2}
    )
    distributions._kept_identity.cache_clear()
    assert main(["export", str(run.path)]) == 0
    action, _ = packtrain.load(run).predict(np.zeros(packtrain.load(run).observation_space.shape, np.float32))
    assert int(action) in range(3)


@pytest.mark.parametrize("config", CASES)
def test_a_program_without_packtrain_acts_like_the_policy(config, tmp_path, capsys):
    """Mutations: actions not scaled; observations not normalised; the batch size fixed."""
    run = packtrain.train(config, output_dir=tmp_path / "run", **CASES[config])
    assert main(["export", str(run.path)]) == 0
    assert "torch.export program" in capsys.readouterr().out
    bundle = run.path / "export"
    about = json.loads((bundle / "policy.json").read_text())
    assert about["observation_space"]["shape"] == list(packtrain.load(run).observation_space.shape)
    obs = np.random.default_rng(1).uniform(-1, 1, (5, *about["observation_space"]["shape"])).astype(np.float32)
    np.save(tmp_path / "obs.npy", obs)
    files = [str(bundle / "policy.pt2"), str(tmp_path / "obs.npy"), str(tmp_path / "actions.npy")]
    subprocess.run([sys.executable, "-c", PLAIN, *files], check=True, cwd=tmp_path)
    expected, _ = packtrain.load(run).predict(obs)
    np.testing.assert_allclose(np.load(tmp_path / "actions.npy"), expected, atol=1e-4)
    weights = load_file(bundle / "weights.safetensors")
    assert set(weights) == set(packtrain.load(run).network.state_dict())
    assert main(["export", str(run.path)]) == 0  # again, into its own folder
    assert run.export(tmp_path / "api") == about and (tmp_path / "api/policy.pt2").is_file()


def test_a_policy_with_memory_has_weights_but_no_program(tmp_path, capsys):
    run = packtrain.train("r2d2/catch", output_dir=tmp_path / "run", **SMALL, warm_up=200)
    assert main(["export", str(run.path), "--out", str(tmp_path / "out")]) == 0
    assert "no program: " in capsys.readouterr().out
    assert (tmp_path / "out/weights.safetensors").is_file() and not (tmp_path / "out/policy.pt2").exists()


def test_a_folder_of_something_else_is_not_written_to(tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes").write_text("x")
    run = packtrain.train("ppo/cartpole", output_dir=tmp_path / "run", **CASES["ppo/cartpole"])
    assert main(["export", str(run.path), "--out", str(tmp_path / "mine")]) == 2
    assert "no earlier export" in capsys.readouterr().err
