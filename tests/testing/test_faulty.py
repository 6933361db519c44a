"""Faulty: sound where it should be, and each fault at its step."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium.utils.env_checker import check_env

from packtrain.errors import EnvSetupError
from packtrain.testing.faulty import FAULTS, Faulty

ENDLESS_OR_DEADLY = ("hang", "spin", "exit", "segfault")
AT = 5  # in the second episode of three steps


def live(env, steps=8):
    """(observation, reward, terminated, truncated, info) by step; resets are under "reset N"."""
    rows, resets, ended = {}, 0, True
    for step in range(1, steps + 1):
        if ended:
            rows[f"reset {resets}"] = env.reset(seed=None)
            resets += 1
        rows[step] = env.step(0)
        ended = rows[step][2]
    return rows


def is_sound(key, row, space):
    observation, info = row[0], row[-1]
    sound = isinstance(observation, np.ndarray) and space.contains(observation) and info == {}
    return sound and (str(key).startswith("reset") or abs(row[1]) < 100)


def test_without_a_fault_it_counts():
    rows = live(Faulty(length=3))
    assert [rows[step][0].tolist() for step in range(1, 6)] == [[1, 2, 1], [2, 1, 1], [3, 0, 1], [1, 2, 1], [2, 1, 1]]
    assert rows["reset 1"][0].tolist() == [0, 3, 1]
    assert [rows[step][1] for step in range(1, 6)] == [1, 2, 3, 1, 2]
    assert [step for step in range(1, 9) if rows[step][2]] == [3, 6]
    assert not any(rows[step][3] for step in range(1, 9))
    assert all(is_sound(key, row, Faulty().observation_space) for key, row in rows.items())


def test_it_is_registered_and_a_proper_environment():
    env = gym.make("packtrain/Faulty-v0", fault=None, length=4)
    check_env(env.unwrapped)
    wrapper, inside = env, []
    while wrapper is not env.unwrapped:
        inside.append(type(wrapper).__name__)
        wrapper = wrapper.env
    assert "PassiveEnvChecker" not in inside, "Gymnasium must not catch faults before we do"


SYMPTOMS = {
    "nan_obs": lambda row: np.isnan(row[0][0]) and row[0].dtype == np.float32,
    "inf_obs": lambda row: np.isposinf(row[0][0]) and row[0].dtype == np.float32,
    "wrong_dtype": lambda row: row[0].dtype == np.int64 and row[0].shape == (3,),
    "wrong_shape": lambda row: row[0].shape == (4,) and row[0].dtype == np.float32,
    "out_of_space": lambda row: np.isfinite(row[0]).all() and row[0].shape == (3,) and row[0].dtype == np.float32,
    "nan_reward": lambda row: np.isnan(row[1]),
    "inf_reward": lambda row: np.isposinf(row[1]),
    "huge_reward": lambda row: row[1] == 1e30,
    "none_info": lambda row: row[-1] is None,
}


EXITS = {"sys_exit": SystemExit, "interrupt": KeyboardInterrupt}


def test_every_fault_is_tested_here():
    assert set(FAULTS) == {*SYMPTOMS, *ENDLESS_OR_DEADLY, *EXITS, "raise", "random_raise", "chdir"}


@pytest.mark.parametrize("fault", EXITS)
def test_an_environment_exits_at_its_step(fault):
    env = Faulty(fault=fault, at_step=2, length=5)
    env.reset(seed=0)
    env.step(env.action_space.sample())
    with pytest.raises(EXITS[fault]):
        env.step(env.action_space.sample())


def test_an_environment_changes_the_current_folder_at_its_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = Faulty(fault="chdir", at_step=2, length=5)
    env.reset(seed=0)
    env.step(env.action_space.sample())
    assert Path.cwd() == tmp_path
    env.step(env.action_space.sample())
    assert Path.cwd() != tmp_path


@pytest.mark.parametrize("fault", SYMPTOMS)
def test_a_fault_in_what_is_returned_happens_at_its_step_and_only_there(fault):
    """Fails if steps are counted by episode, or if the fault stays."""
    env = Faulty(fault=fault, at_step=AT, length=3)
    for lives in range(2):
        rows = live(env)
        broken = [key for key, row in rows.items() if not is_sound(key, row, env.observation_space)]
        assert broken == ([AT] if lives == 0 else [])
        assert lives > 0 or SYMPTOMS[fault](rows[AT])


@pytest.mark.parametrize("fault", [fault for fault in SYMPTOMS if not fault.endswith("_reward")])
def test_step_zero_is_the_first_reset(fault):
    env = Faulty(fault=fault, at_step=0, length=3)
    rows = live(env)
    assert [key for key, row in rows.items() if not is_sound(key, row, env.observation_space)] == ["reset 0"]
    assert SYMPTOMS[fault](rows["reset 0"])


def test_raise():
    env = Faulty(fault="raise", at_step=2)
    env.reset()
    env.step(0)
    with pytest.raises(RuntimeError, match="step 2"):
        env.step(0)
    assert env.step(0)[1] == 3, "it goes on afterwards"
    env = Faulty(fault="raise", at_step=0)
    with pytest.raises(RuntimeError, match="step 0"):
        env.reset()
    env.reset()


def test_random_raise_follows_probability_and_seed():
    def failures(probability, seed):
        env = Faulty(fault="random_raise", probability=probability, at_step=0)
        env.reset(seed=seed)
        failed = []
        for step in range(2000):
            try:
                env.step(0)
            except RuntimeError:
                failed.append(step)
        return failed

    assert failures(0.1, 1) == failures(0.1, 1) != failures(0.1, 2)
    assert 140 < len(failures(0.1, 1)) < 260
    assert failures(0.0, 1) == []
    assert len(failures(1.0, 1)) == 2000


def test_faults_of_the_process():
    """Each in a process of its own, all at once: exit and segfault die at their step, hang sleeps, spin burns."""
    program = (
        "import sys; from packtrain.testing.faulty import Faulty\n"
        "env = Faulty(fault=sys.argv[1], at_step=2); env.reset(); env.step(0)\n"
        "print('one step', flush=True); env.step(0); print('two steps', flush=True)"
    )
    running = {
        fault: subprocess.Popen([sys.executable, "-c", program, fault], stdout=subprocess.PIPE, text=True)
        for fault in ENDLESS_OR_DEADLY
    }
    try:
        for process in running.values():
            assert process.stdout.readline() == "one step\n"
        assert running["exit"].wait(timeout=20) == 1
        assert running["segfault"].wait(timeout=20) == -signal.SIGSEGV
        before = {fault: psutil.Process(running[fault].pid).cpu_times().user for fault in ("hang", "spin")}
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            time.sleep(0.1)
            burnt = {f: psutil.Process(running[f].pid).cpu_times().user - before[f] for f in before}
            if burnt["spin"] > 0.4:
                break
        assert burnt["spin"] > 0.4 and burnt["hang"] < 0.2
        assert running["hang"].poll() is None and running["spin"].poll() is None
    finally:
        for process in running.values():
            process.kill()
            rest, _ = process.communicate()
            assert rest == "", "no process came past its fault"


@pytest.mark.parametrize(
    "wrong",
    [
        {"fault": "nan"},
        {"fault": "nan_reward", "at_step": 0},
        {"at_step": -1},
        {"length": 0},
        {"probability": 2},
        {"render_mode": "human"},
    ],
)
def test_options_that_cannot_be_meant(wrong):
    with pytest.raises(EnvSetupError, match=r"^Faulty\(") as error:
        Faulty(**wrong)
    assert "\n" not in str(error.value)
