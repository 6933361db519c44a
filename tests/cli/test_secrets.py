"""X6: secrets of the environment are in nothing that a run writes or prints."""

import pytest

from packtrain.testing import chaos, tiny_runs

CANARIES = {
    "WANDB_API_KEY": "canary-c8f1e0-wandb",
    "MLFLOW_TRACKING_PASSWORD": "canary-77ab02-mlflow",
    "RAY_AUTH_TOKEN": "canary-19dd4e-ray",
    "AWS_SECRET_ACCESS_KEY": "canary-5b20f7-aws",
}


def hits(folder):
    """Files below a folder that contain a canary, and how many files there were."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if any(c.encode() in path.read_bytes() for c in CANARIES.values())], len(files)


@pytest.mark.slow
def test_x6_planted_secrets_are_in_nothing_that_is_written(tmp_path, monkeypatch):
    """A sound run, a run with failing environments (tracebacks), a refused one, a page, a printed configuration.
    Mutation: the process environment is written beside the versions."""
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    env = "packtrain.testing.faulty:packtrain/FlakyCartPole-v0"
    failing = ["--config", "Environment.kwargs = {'probability': 1.0}"]
    commands = {
        "sound": (0, tiny_runs.argv("impala", "--output_dir", "run", "--eval_every", "0", total=200)),
        "failing": (3, tiny_runs.argv("impala", *failing, "--output_dir", "failing", env=env)),
        "refused": (2, ["train", "impala/gym", "--no_such_knob", "1"]),
        "page": (0, ["report", "run"]),
        "config": (0, ["show-config", "impala/gym"]),
        "doctor": (None, ["doctor"]),
    }
    for name, (code, argv) in commands.items():
        run = chaos.Command(argv, tmp_path)
        found = run.wait(240)
        assert code is None or found == code, run.output()
        (tmp_path / f"{name}.output").write_text(run.output())
    found, files = hits(tmp_path)
    assert not found and files > 15
    (tmp_path / "leak").write_text(CANARIES["RAY_AUTH_TOKEN"])  # the search itself finds one
    assert hits(tmp_path)[0] == [tmp_path / "leak"]
