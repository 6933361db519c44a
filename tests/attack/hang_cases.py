"""Attacks by environments that sleep, never end, or answer nonsense, and by signals in the middle of that."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
from cases import case, refused, run

from packtrain.metrics.reading import read_metrics
from packtrain.runtime import checkpoint
from packtrain.testing import chaos

PLANNED = """
import packtrain.testing.sleepy
include 'planning/base.gin'
n_envs = 2
n_epochs = 2
Runner.env_class = @Environment
Environment.id = 'packtrain/Sleepy-v0'
Environment.kwargs = {kwargs}
Environment.step_deadline_secs = 1.5
Environment.start_deadline_secs = 2.0
Runner.agent_class = @ShootingAgent
ShootingAgent.n_rollouts = 3
ShootingAgent.rollout_time_limit = 3
"""
LEARNED = """
import packtrain.testing.sleepy
include 'impala/gym.gin'
env = 'packtrain/Sleepy-v0'
Environment.kwargs = {kwargs}
Environment.step_deadline_secs = 1.5
Environment.start_deadline_secs = 2.0
"""
SIZES = ["--num_actors", "2", "--batch_size", "2", "--unroll_length", "5", "--hidden_size", "8", "--eval_episodes", "3"]
SEARCH = "a planner's search (environment group of packtrain/Sleepy-v0, group seed"


def _planned(place: Path, **kwargs: object) -> list[str]:
    """The command line of a planner that searches in a core with a fault."""
    (place / "mine.gin").write_text(PLANNED.replace("{kwargs}", repr(kwargs)))
    return ["train", "mine.gin", "--output_dir", "run"]


def _learned(place: Path, *more: str, **kwargs: object) -> list[str]:
    """The command line of IMPALA on such a core."""
    (place / "mine.gin").write_text(LEARNED.replace("{kwargs}", repr(kwargs)))
    return ["train", "mine.gin", "--output_dir", "run", *SIZES, "--total_steps", "400", *more]


# -- searches


@case("sleep in a search", attacks="planner: its simulator sleeps for an hour", expected="noticed within the deadline")
def sleep_in_a_search(place: Path) -> None:
    # The columns have 2 states, and 2 environments with 3 rollouts each have 6.
    argv = _planned(place, fault="hang", rows=6, at=20)
    refused(argv, place, SEARCH, "at its step", "did not answer within 1.5 s", code=3)


@case("NaN reward in a search", attacks="planner: a reward that is no number", expected="refused with seed and step")
def nan_reward_in_a_search(place: Path) -> None:
    argv = _planned(place, fault="nan_reward", rows=6, at=20)
    refused(argv, place, SEARCH, "at its step", "returned a reward of nan", "on_bad_value", code=3)


@case("wrong shape in a search", attacks="planner: rewards of shape [1]", expected="refused with seed, step and field")
def wrong_shape_in_a_search(place: Path) -> None:
    argv = _planned(place, fault="reward_shape", rows=6, at=20)
    refused(argv, place, SEARCH, "at its step", "rewards of shape (1,), which must be (6,)", code=3)


@case("NaN rewards in a search, dropped", attacks="planner: a bad reward, drop", expected="the run ends normally")
def nan_reward_in_a_search_dropped(place: Path) -> None:
    argv = _planned(place, fault="nan_reward", rows=6, at=20)
    code, output = run([*argv, "--config", "Environment.on_bad_value = 'drop'"], place)
    assert code == 0, output
    assert [row["search_steps_dropped"] for row in read_metrics(place / "run") if row["kind"] == "train"][-1] == 1


# -- evaluations


def _endless(place: Path, runtime: str) -> None:
    more = ["--runtime", runtime, "--config", "Evaluation.max_steps = 200"]
    code, output = run(_learned(place, *more, length=0), place)
    assert code == 0, output
    rows = [row for row in read_metrics(place / "run") if row["kind"] == "eval"]
    assert {row["episodes_truncated"] for row in rows} == {3} and "3 cut off" in output
    assert "room in the unroll queue" not in (place / "run/log.txt").read_text()
    assert checkpoint.load_newest(place / "run/checkpoints")[0] >= 400


@case(
    "greedy episodes without end, serial",
    attacks="evaluation: no end",
    expected="cut off, counted, the run ends",
    fast=False,
)
def endless_evaluation_serial(place: Path) -> None:
    _endless(place, "serial")


@case(
    "greedy episodes without end, local",
    attacks="evaluation: no end",
    expected="cut off, counted, the run ends",
    fast=False,
)
def endless_evaluation_local(place: Path) -> None:
    _endless(place, "local")


@case(
    "evaluation past its deadline",
    attacks="evaluation: slow steps without end",
    expected="cut off at the deadline",
    fast=False,
)
def evaluation_past_its_deadline(place: Path) -> None:
    argv = _learned(place, "--config", "Evaluation.deadline_secs = 0.5", "--total_steps", "40", length=0, pause=0.005)
    code, output = run(argv, place)
    assert code == 0 and "3 cut off" in output, output


@case(
    "evaluation's first reset sleeps, local",
    attacks="evaluation: the learner's own thread is stuck in an environment",
    expected="noticed, saved, exit code 3",
)
def evaluation_reset_sleeps(place: Path) -> None:
    # Two columns train, three evaluate. An evaluation plays two kinds of episodes: a third reset begins the next one.
    argv = _learned(place, "--eval_every", "100", fault="hang", call="initial", rows=3, at=3)
    refused(argv, place, "environment 0", "group seed", "did not answer within 2 s", code=3)
    assert checkpoint.load_newest(place / "run/checkpoints")[0] >= 100


# -- starts


@case(
    "constructor sleeps",
    attacks="environment: its constructor sleeps",
    expected="refused within the deadline",
    fast=False,
)
def constructor_sleeps(place: Path) -> None:
    line = refused(_learned(place, fault="hang", call="make"), place, "Sleepy-v0", "seed", "within 2 s")
    assert "start_deadline_secs" in line
    refused(_planned(place, fault="hang", call="make"), place, "Sleepy-v0", "seed", "within 2 s")


@case("first reset sleeps", attacks="environment: its first reset sleeps", expected="named with its seed, in time")
def first_reset_sleeps(place: Path) -> None:
    argv = _learned(place, "--eval_every", "0", fault="hang", call="initial", rows=2)
    refused(argv, place, "environment 0", "group seed", "did not answer within 2 s", code=3)


# -- signals


@case("stopped for longer than the deadline", attacks="SIGSTOP, then SIGCONT", expected="no hang", fast=False)
def stopped_for_longer_than_the_deadline(place: Path) -> None:
    more = ["--eval_every", "0", "--total_steps", "24", "--unroll_length", "2", "--checkpoint_secs", "0.05"]
    more += ["--config", "Environment.step_deadline_secs = 4.0"]
    command = chaos.Command(_learned(place, *more, pause=1.5), place)
    chaos.wait_until(lambda: bool(checkpoint.steps(place / "run/checkpoints")))  # steps are under way
    time.sleep(0.5)
    os.killpg(command.pid, signal.SIGSTOP)
    time.sleep(8)
    os.killpg(command.pid, signal.SIGCONT)
    assert command.wait(120) == 0, command.output()


def _faulty(place: Path, deadline: float) -> chaos.Command:
    """A run whose environments, each in a process of its own, hang at their 200th step."""
    (place / "mine.gin").write_text(
        "import packtrain.testing.faulty\ninclude 'impala/gym.gin'\nenv = 'packtrain/Faulty-v0'\neval_every = 0\n"
        "Environment.kwargs = {'fault': 'hang', 'at_step': 200}\n"
        f"Environment.step_deadline_secs = {deadline}\n"
    )
    argv = ["train", "mine.gin", "--output_dir", "run", *SIZES, "--env_processes", "True"]
    return chaos.Command([*argv, "--checkpoint_secs", "0.05", "--total_steps", "1000000"], place)


def _until_it_hangs(place: Path) -> None:
    """Wait until no step is made any more: checkpoints of new steps, which are due all the time, stop coming."""
    chaos.wait_until(lambda: bool(checkpoint.steps(place / "run/checkpoints")))
    last, since = -1, time.monotonic()
    while time.monotonic() - since < 3:
        steps = checkpoint.steps(place / "run/checkpoints")
        if steps and steps[-1] != last:
            last, since = steps[-1], time.monotonic()
        time.sleep(0.05)


@case(
    "SIGKILL while environments hang",
    attacks="processes of environments: the parent is killed, they are asleep",
    expected="none is left after 10 s",
    fast=False,
)
def sigkill_while_environments_hang(place: Path) -> None:
    command = _faulty(place, deadline=60)
    _until_it_hangs(place)
    children = psutil.Process(command.pid).children(recursive=True)
    assert len(children) >= 2, "two environments and what Python keeps beside them"
    command.signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(children, timeout=10)
    for process in alive:
        process.kill()
    command.kill_group()
    assert not alive, f"{len(alive)} of {len(children)} processes are left"


@case("SIGTERM during a hang", attacks="SIGTERM: an environment hangs", expected="saved, gone in 30 s", fast=False)
def sigterm_during_a_hang(place: Path) -> None:
    command = _faulty(place, deadline=600)
    _until_it_hangs(place)
    begin = time.monotonic()
    command.signal(signal.SIGTERM)
    command.wait(60)
    assert time.monotonic() - begin < 30, command.output()
    assert "did not answer within 15 s after the run was asked to stop" in command.output()
    assert checkpoint.load_newest(place / "run/checkpoints") is not None


@case("SIGTERM during a sleep in a search", attacks="SIGTERM: a simulator sleeps", expected="gone in 30 s", fast=False)
def sigterm_during_a_sleep_in_a_search(place: Path) -> None:
    argv = _planned(place, fault="hang", rows=6, at=20)
    command = chaos.Command([*argv, "--config", "Environment.step_deadline_secs = 600.0"], place)
    chaos.wait_until(lambda: (place / "run/log.txt").exists())
    time.sleep(5)
    begin = time.monotonic()
    command.signal(signal.SIGTERM)
    assert command.wait(60) == 3 and time.monotonic() - begin < 30, command.output()
    assert SEARCH in command.output()


@case("SIGTERM during pre-training", attacks="SIGTERM: an epoch of many updates", expected="gone in 30 s", fast=False)
def sigterm_during_pretraining(place: Path) -> None:
    more = ["--n_model_precollect_episodes", "2", "--n_envs", "2", "--model_n_steps_per_epoch", "10000000"]
    command = chaos.Command(["train", "tbv/bfs_hanoi_tbv", "--output_dir", "run", *more], place)
    chaos.wait_until(lambda: (place / "run/metrics.jsonl").exists() and (place / "run/metrics.jsonl").read_text() != "")
    time.sleep(3)
    begin = time.monotonic()
    command.signal(signal.SIGTERM)
    assert command.wait(60) == 143 and time.monotonic() - begin < 30, command.output()
    step, state = checkpoint.load_newest(place / "run/checkpoints")
    assert state["epoch"]["updates"] > 0, "the updates that were made are saved"


# -- nonsense


@case("reward of shape [1]", attacks="functional environment: its reward is spread", expected="refused with its shape")
def reward_of_shape_1(place: Path) -> None:
    argv = _learned(place, fault="reward_shape", rows=2, at=30)
    refused(argv, place, "environment 0", "group seed", "at its step 29", "rewards of shape (1,)", code=3)


@case(
    "float64 observations",
    attacks="functional environment: another dtype",
    expected="refused, or cast and warned",
    fast=False,
)
def float64_observations(place: Path) -> None:
    argv = _learned(place, "--eval_every", "0", fault="float64_obs", call="observe", rows=2, at=30)
    refused(argv, place, "environment 0", "group seed", "at its step 28", "dtype float64", code=3)
    code, output = run([*argv, "--fresh", "--config", "Environment.on_bad_value = 'clip'"], place)
    assert code == 0, output
    assert "it is cast" in (place / "run-2/log.txt").read_text()


@case(
    "observe raises",
    attacks="functional environment: observe raises",
    expected="named, with its own traceback",
    fast=False,
)
def observe_raises(place: Path) -> None:
    argv = _learned(place, "--eval_every", "0", fault="raise", call="observe", rows=2, at=30)
    refused(argv, place, "environment 0", "at its step 28 raised in observe: RuntimeError", code=3)
    assert "sleepy.py" in (place / "run/log.txt").read_text(), "the log has the traceback"


@case(
    "an environment that holds the GIL",
    attacks="environment in this process: native code that never returns and never gives the interpreter up",
    expected="noticed within the deadline",
    known_limit="no Python thread runs while native code holds the interpreter's lock, the watchdog's neither; "
    "with Environment.processes such an environment is noticed and killed",
)
def an_environment_that_holds_the_gil(place: Path) -> None:
    raise AssertionError("it cannot be noticed from inside this process")
