"""Environments that break while a run goes on: noticed, named in one line, the run saves and stops with exit code 3."""

import time

import pytest

from packtrain.runtime import checkpoint
from packtrain.testing import chaos

SMALL = "--total_steps 1000000 --num_actors 2 --batch_size 2 --unroll_length 5 --hidden_size 8 --log_every 100".split()


def run_faulty(tmp_path, fault, runtime, processes, at_step=200, deadline=2.0):
    (tmp_path / "mine.gin").write_text(
        "import packtrain.testing.faulty\ninclude 'impala/gym.gin'\nenv = 'packtrain/Faulty-v0'\neval_every = 0\n"
        f"Environment.kwargs = {{'fault': '{fault}', 'at_step': {at_step}}}\n"
        f"Environment.step_deadline_secs = {deadline}\n"
    )
    argv = ["train", "mine.gin", "--output_dir", "run", "--runtime", runtime, *SMALL, "--checkpoint_secs", "0.05"]
    return chaos.Command([*argv, "--env_processes", str(processes)], tmp_path)


def check_stop(tmp_path, run, *parts, timeout=40):
    assert run.wait(timeout) == 3, run.output()
    errors = [line for line in run.output().splitlines() if line.startswith("packtrain: error:")]
    assert len(errors) == 1 and "Traceback" not in run.output(), run.output()
    for part in ("environment", "seed", "step", *parts):
        assert part in errors[0], (part, errors[0])
    step, state = checkpoint.load_newest(tmp_path / "run/checkpoints")
    assert step > 100 and state["run"]["step"] == step, "the run was not saved"
    assert errors[0].removeprefix("packtrain: error: ") in (tmp_path / "run/log.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["local", "serial"])
@pytest.mark.parametrize(
    "fault, parts",
    [
        ("nan_obs", ["NaN", "on_bad_value"]),
        ("nan_reward", ["reward of nan"]),
        ("huge_reward", ["reward of"]),
        ("wrong_dtype", ["dtype int64"]),
        ("wrong_shape", ["shape (4,)"]),
        ("raise", ["RuntimeError"]),
        ("sys_exit", ["raised SystemExit: 0"]),
        ("interrupt", ["raised KeyboardInterrupt"]),
    ],
)
def test_bad_values_and_raises_in_process(tmp_path, runtime, fault, parts):
    check_stop(tmp_path, run_faulty(tmp_path, fault, runtime, False), *parts)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["local", "serial"])
def test_a_hang_in_process_is_noticed_by_the_watchdog(tmp_path, runtime):
    """Checkpoints are due all the time, so one waits for the turn that hangs. Mutations: a watchdog that only watches
    subprocesses; a saving thread that reports its own wait instead of the hang."""
    begin = time.monotonic()
    check_stop(tmp_path, run_faulty(tmp_path, "hang", runtime, False), "did not answer within 2 s")
    assert time.monotonic() - begin < 30


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault, parts",
    [
        ("raise", ["RuntimeError"]),
        ("hang", ["did not answer within 2 s"]),
        ("exit", ["died"]),
        ("segfault", ["died", "-11"]),
    ],
)
def test_processes_that_raise_hang_or_die(tmp_path, fault, parts):
    """E1 and E2, the detection. Mutation: waiting without a deadline; reading a dead process's pipe."""
    check_stop(tmp_path, run_faulty(tmp_path, fault, "local", True), *parts, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["drop", "clip"])
def test_drop_and_clip_go_on_and_are_counted(tmp_path, answer):
    (tmp_path / "mine.gin").write_text(
        "import packtrain.testing.faulty\ninclude 'impala/gym.gin'\nenv = 'packtrain/Faulty-v0'\neval_every = 0\n"
        f"Environment.kwargs = {{'fault': 'nan_obs', 'at_step': 200}}\nEnvironment.on_bad_value = '{answer}'\n"
    )
    argv = ["train", "mine.gin", "--output_dir", "run", *SMALL, "--total_steps", "2000"]
    run = chaos.Command(argv, tmp_path)
    assert run.wait(60) == 0, run.output()
    from packtrain.metrics.reading import read_metrics

    last = read_metrics(tmp_path / "run")[-1]
    assert last["episodes_dropped" if answer == "drop" else "values_clipped"] == 2  # once in each of two environments
