"""Environments that break while a run goes on: they are replaced. Without restarts, the run saves and stops with
exit code 3 and one line that names the environment."""

import time

import pytest

from packtrain.metrics.reading import read_metrics
from packtrain.runtime import checkpoint
from packtrain.testing import chaos, tiny_runs

SMALL = "--total_steps 1000000 --num_actors 2 --batch_size 2 --unroll_length 5 --hidden_size 8 --log_every 100".split()


def run_faulty(tmp_path, fault, runtime, processes, at_step=200, deadline=2.0):
    (tmp_path / "mine.gin").write_text(
        "import packtrain.testing.faulty\ninclude 'impala/gym.gin'\nenv = 'packtrain/Faulty-v0'\neval_every = 0\n"
        f"Environment.kwargs = {{'fault': '{fault}', 'at_step': {at_step}}}\n"
        f"Environment.step_deadline_secs = {deadline}\nEnvironment.restarts = 0\n"
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
    last = read_metrics(tmp_path / "run")[-1]
    assert last["episodes_dropped" if answer == "drop" else "values_clipped"] == 2  # once in each of two environments


FLAKY = {"impala": "FlakyCartPole", "r2d2": "FlakyCartPole", "steve": "FlakyPendulum", "planning": "FlakyCartPole"}


def flaky(tmp_path, family, *more, total=2000, restarts=50, **kwargs):
    """A tiny run in environments that fail at random."""
    if family == "planning":  # which restores states, with all random numbers that they contain
        kwargs |= {"saves_generator": False, "sound_steps": 50}
    env = f"packtrain.testing.faulty:packtrain/{FLAKY[family]}-v0"
    bindings = [f"Environment.kwargs = {kwargs}", f"Environment.restarts = {restarts}"]
    more = [*more, *(word for binding in bindings for word in ("--config", binding))]
    return chaos.Command(tiny_runs.argv(family, "--output_dir", "run", *more, env=env, total=total), tmp_path)


FAMILIES_AND_RUNTIMES = [  # each family once in CI
    pytest.param(family, runtime, marks=pytest.mark.long if (k + j) % 2 else ())
    for k, family in enumerate(tiny_runs.TINY)
    for j, runtime in enumerate(("local", "serial"))
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "runtime"), FAMILIES_AND_RUNTIMES)
def test_e1_runs_end_normally_in_environments_that_fail_at_random(tmp_path, family, runtime):
    """Must-show 1 at a small size. A planner makes a hundred times as many steps. Mutation: `Environment.restarts` is
    not passed on to environments."""
    more = ["--eval_every", "0"] if family == "steve" else []  # episodes of 200 steps hardly ever end without a failure
    probability = 0.001 if family == "planning" else 0.015
    run = flaky(tmp_path, family, "--runtime", runtime, *more, total=1000, probability=probability)
    assert run.wait(300) == 0, run.output()
    rows = [row for row in read_metrics(tmp_path / "run") if row["kind"] == "train"]
    assert rows[-1]["envs_replaced"] > 5, "no failure was injected"
    if family != "planning":  # which repeats the call: no episode is lost
        assert rows[-1]["episodes_dropped"] > 5
    assert "replaced" in run.output() or "made again" in run.output()
    log = (tmp_path / "run/log.txt").read_text()
    assert log.count("Traceback (most recent call last)") >= rows[-1]["envs_replaced"], "each one, in full"
    assert "Traceback" not in run.output()


@pytest.mark.slow
def test_e2_processes_that_die_are_replaced_and_the_run_ends_normally(tmp_path):
    """Mutation: the pool waits for the answer of a process that has ended."""
    more = ["--env_processes", "true", "--eval_every", "0", "--num_actors", "2", "--batch_size", "2"]
    run = flaky(tmp_path, "impala", *more, total=600, fault="segfault", probability=0.02, sound_steps=60)
    assert run.wait(240) == 0, run.output()
    rows = read_metrics(tmp_path / "run")
    assert rows[-1]["envs_replaced"] > 0, "no failure was injected"
    assert "died (its process ended with code -11)" in (tmp_path / "run/log.txt").read_text()


@pytest.mark.slow
def test_the_restart_budget_ends_the_run_with_the_first_cause(tmp_path):
    run = flaky(tmp_path, "impala", probability=1.0, restarts=3)
    assert run.wait(60) == 3, run.output()
    errors = [line for line in run.output().splitlines() if line.startswith("packtrain: error:")]
    assert len(errors) == 1 and "the first of 4 failures" in errors[0] and "Environment.restarts = 3" in errors[0]
    assert "RuntimeError: Flaky failed at step 1 " in errors[0], errors[0]
