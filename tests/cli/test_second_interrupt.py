"""A second Ctrl-C ends a run at once and says that nothing was saved."""

import os
import signal
import subprocess
import sys
import time

SLOW = """
import time
import gymnasium as gym
import numpy as np

class Slow(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        open("stepping", "a").close()
        time.sleep(5)  # the first Ctrl-C waits for it
        return np.zeros(2, np.float32), 0.0, False, False, {}
"""


def wait_for(condition, what):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


def test_the_second_ctrl_c_says_that_nothing_was_saved(tmp_path):
    """Mutations: a second signal that is ignored, or that ends in a traceback."""
    (tmp_path / "slow.py").write_text(SLOW)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(tmp_path / "state")}
    command = [sys.executable, "-m", "packtrain", "train", "impala/gym", "--env", "slow:Slow", "--output_dir", "run"]
    command += ["--num_actors", "1", "--batch_size", "1", "--eval_every", "0"]
    with open(tmp_path / "errors", "w") as errors:
        run = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=errors)
    printed = (tmp_path / "errors").read_text
    try:
        wait_for((tmp_path / "stepping").exists, "the first step")
        run.send_signal(signal.SIGINT)
        wait_for(lambda: "saving, then leaving; once more leaves at once" in printed(), "the first message")
        run.send_signal(signal.SIGINT)
        assert run.wait(120) == 130
    finally:
        run.kill()
    assert "left at once: nothing was saved since the last checkpoint" in printed()
    assert "Traceback" not in printed()
    assert not list((tmp_path / "run").glob("checkpoints/*"))
