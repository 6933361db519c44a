"""Whole runs on the nodes of a cluster: a sweep of scripted runs on simulated nodes, and seed 001's specification."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from packtrain.errors import ClusterError
from packtrain.runtime.cluster import plan, whole_runs

SCRIPT = Path(__file__).parents[2] / "studies" / "sweep" / "scripted_train.py"
DEADLINE = 240


class Cluster:
    """Nodes without Ray."""

    def __init__(self, *cpus):
        actor = frozenset({"actor"})
        self.alive = [plan.Node(f"n{k}", f"a{k}", count, 0.0, 0, actor) for k, count in enumerate(cpus)]
        self.ray = SimpleNamespace(remote=lambda **_: lambda kind: kind)

    def nodes(self):
        return self.alive

    def check(self):
        pass


def test_runs_go_to_the_nodes_with_the_most_room_and_wait_when_all_are_busy():
    """Mutations: runs under way that take no room; the first node for all."""
    runs = whole_runs.WholeRuns(Cluster(2, 5), cpus=2, gpus=0)
    seen = []
    while (node := runs.free_node()) is not None:
        seen.append(node.id)
        runs._running.append(SimpleNamespace(node=node))
    assert Counter(seen) == {"n0": 1, "n1": 2}
    with pytest.raises(ClusterError, match="no node has 6 processors"):
        whole_runs.WholeRuns(Cluster(2, 5), cpus=6, gpus=0)


def test_a_node_without_the_folder_is_told_apart(tmp_path):
    """Mutation: the run starts on a disk of its own, and its results are lost."""
    arguments = (["python", "-c", "1"], {}, str(tmp_path / "log"), str(tmp_path), str(tmp_path / "mark"))
    assert whole_runs.Watcher().run(*arguments) == whole_runs.UNSEEN and not (tmp_path / "log").exists()


def states(root):
    try:
        return Counter(row["state"] for row in json.loads((root / "sweep.json").read_text())["runs"])
    except OSError:
        return Counter()


@pytest.mark.slow
def test_a_sweep_on_simulated_nodes_stops_and_goes_on(simulated, tmp_path):
    """Two nodes with two processors, and runs that take two. Mutations: more runs than room; runs that do not stop."""
    root = tmp_path / "s"
    root.mkdir()
    hang = {f"x={k}/seed_0": ["hang", "ok"] for k in range(4)}
    (root / "plan.json").write_text(json.dumps(hang))
    command = [sys.executable, str(SCRIPT), "sweep", str(root), "4", "1", simulated.address]
    process = subprocess.Popen(command, env=simulated.environ, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + DEADLINE
    while len(list(root.rglob("metrics.jsonl"))) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(1)
    assert states(root) == {"running": 2, "waiting": 2}
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130 and states(root) == {"stopped": 2, "waiting": 2}, said
    (root / "plan.json").write_text("{}")
    done = subprocess.run(command, env=simulated.environ, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0 and states(root) == {"finished": 4}, done.stdout + done.stderr


SPECIFICATION = """
from mrunner.helpers.specification_helper import create_experiments_helper

experiments_list = create_experiments_helper(
    experiment_name='Shooting Agent in CartPole',
    base_config={'Runner.n_envs': 5, 'Runner.n_epochs': 1},
    params_grid={'ShootingAgent.n_rollouts': [10, 100, 1000], 'ShootingAgent.rollout_time_limit': [10, 100]},
    script='python3 -m packtrain.runner --mrunner --output_dir=./out --config_file=shooting_random_cartpole.gin',
    tags=[globals()['script'][:-3]],
)
"""


@pytest.mark.long
def test_the_specification_of_seed_001_on_simulated_nodes(simulated, tmp_path):
    (tmp_path / "spec.py").write_text(SPECIFICATION)
    words = ["sweep", "spec.py", "--on", "cluster", "--address", simulated.address, "--cpus", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "packtrain", *words, "--episode_time_limit", "10", "--output_dir", "s"],
        env=simulated.environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0 and states(tmp_path / "s") == {"finished": 6}, done.stdout + done.stderr
