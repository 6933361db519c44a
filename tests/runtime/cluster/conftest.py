"""A Ray cluster of three simulated nodes on this machine, shared by all tests of a session."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from packtrain.runtime import supervise

UP_SECS = 240


class Node:
    """A `packtrain node` process on the loopback interface."""

    def __init__(self, words, environ, folder, name):
        self.log = folder / f"{name}.log"
        self.output = open(self.log, "wb")  # noqa: SIM115
        command = [sys.executable, "-m", "packtrain", "node", *words]
        self.process = subprocess.Popen(command, env=environ, stdout=self.output, stderr=subprocess.STDOUT)
        self.words = words

    def text(self):
        return self.log.read_text(errors="replace")

    def wait_until(self, word):
        deadline = time.monotonic() + UP_SECS
        while word not in self.text():
            assert self.process.poll() is None and time.monotonic() < deadline, self.text()
            time.sleep(0.1)

    def children(self, name):
        """Return the processes of this node whose program has this name, such as raylet or gcs_server."""
        return [each for each in psutil.Process(self.process.pid).children(recursive=True) if each.name() == name]

    def close(self):
        found = supervise.descendants([supervise.record(self.process.pid)]) if self.process.poll() is None else set()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        supervise.end(found)
        self.output.close()


class Simulated:
    """A head that takes no workers, and nodes that do."""

    def __init__(self, folder):
        self.folder, self.nodes, self.head = folder, [], None
        self.environ = os.environ | {
            "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        for name in ("RAY_AUTH_TOKEN", "RAY_ADDRESS"):
            self.environ.pop(name, None)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.port, self.address = port, f"127.0.0.1:{port}"

    def start(self, nodes=2):
        words = ["--head", "--loopback", "--port", str(self.port), "--role", "head", "--store_gb", "0.08"]
        self.head = Node(words, self.environ, self.folder, "head")
        self.head.wait_until("the head runs at")
        self.nodes += [self.start_node() for _ in range(nodes)]
        for node in self.nodes:
            node.wait_until("has joined")

    def start_node(self, *words):
        """Start one more node; it has joined once its output has the words "has joined"."""
        name = f"node{len(list(self.folder.glob('*.log')))}"
        common = ["--address", self.address, "--num_cpus", "2", "--store_gb", "0.08"]
        return Node([*common, *words], self.environ, self.folder, name)

    def train(self, *words, secs=300):
        """Run `packtrain train` on this cluster to its end."""
        return subprocess.run(self.command(*words), env=self.environ, capture_output=True, text=True, timeout=secs)

    def rows(self, folder, kind="train"):
        """Return the rows of metrics of one kind in a run folder."""
        rows = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
        return [row for row in rows if row["kind"] == kind]

    def command(self, *words):
        """Return the command that trains on this cluster."""
        return [sys.executable, "-m", "packtrain", "train", *words, "--runtime", "cluster", "--address", self.address]

    def close(self):
        for node in (*self.nodes, self.head):
            if node is not None:
                node.close()


@pytest.fixture(scope="session")
def simulated(tmp_path_factory):
    pytest.importorskip("ray")
    cluster = Simulated(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
