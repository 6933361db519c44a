"""The lines of docs/coming-from.md that start PolyBeast's and MarltasCore's distributed runs, on simulated nodes."""

import re
import shlex
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]
DOCS = Path(__file__).parents[3] / "docs" / "coming-from.md"


def commands(old):
    """Return the packtrain commands of the line for an old command, as words, without `packtrain`."""
    (line,) = [line for line in DOCS.read_text().splitlines() if line.startswith(f"| `{old}`")]
    return [shlex.split(found)[1:] for found in re.findall(r"`(packtrain [^`]*)`", line)]


def at(words, address):
    return [address if word == "HEAD:6379" else word for word in words]


def test_polybeast_s_environment_servers_and_learner(simulated, tmp_path):
    """Environments run on the nodes with the role env, without torch; the policy acts beside the learner."""
    (server,) = commands("python -m torchbeast.polybeast_env --num_servers 10")
    (learner,) = commands("python3 -m torchbeast.polybeast_learner")
    assert server[:1] == ["node"] and server[-2:] == ["--role", "env"]
    assert learner[:2] == ["train", "impala/pong"]
    node = simulated.start_node(*at(server, simulated.address)[3:])
    try:
        node.wait_until("has joined")
        words = [word for word in learner[2:] if word not in ("--runtime", "cluster")]  # `train` below adds these
        words[words.index("--workers") + 1] = "2"
        words += ["--total_steps", "6000", "--log_every", "1000"]
        done = simulated.train("impala/catch", *words, "--output_dir", str(tmp_path / "run"))
    finally:
        node.close()
    assert done.returncode == 0 and "finished" in done.stdout, done.stderr
    row = simulated.rows(tmp_path / "run")[-1]
    assert row["env_servers_ready"] == 2 and row["workers/wait_share"] >= 0


def test_marltas_s_head_without_actors_and_its_nodes(simulated, tmp_path):
    """The fixture started its nodes by these lines. Mutation: a worker runs on the head."""
    head, train = commands("--disable_actor")
    (actors,) = commands("--run_only_actor")
    assert head == ["node", "--head", "--role", "head"] and actors == ["node", "--address", "HEAD:6379"]
    assert all(word in ("node", *simulated.head.words) for word in head)
    assert all("--address" in node.words and "--role" not in node.words for node in simulated.nodes)
    assert train[-2:] == ["--address", "HEAD:6379"]
    words = ["--workers", "2", "--total_steps", "900", "--warm_up", "300", "--output_dir", str(tmp_path / "run")]
    done = simulated.train("r2d2/catch", *words)
    assert done.returncode == 0 and "finished" in done.stdout, done.stderr
    assert simulated.rows(tmp_path / "run")[-1]["workers/workers_ready"] == 2
    below = psutil.Process(simulated.head.process.pid).children(recursive=True)
    assert not [each for each in below if " ".join(each.cmdline()).startswith("ray::Host")]
