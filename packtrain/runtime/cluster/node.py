"""`packtrain node`: this machine as the head of a cluster or as one more node of it, until Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packtrain.errors import ClusterError, ClusterLostError
from packtrain.runtime.cluster import auth, connection, host, plan
from packtrain.runtime.supervise import Session, reap_left_over

UP_SECS = 120.0
_UP = "Ray runtime started"
WARNING = (
    "Anyone who has the token can run code on every node, and it is sent unencrypted: keep the ports of the nodes "
    "inside a private network."
)


@dataclass(frozen=True)
class NodeRequest:
    """A `node` command line, parsed."""

    head: bool
    address: str | None
    role: str = "actor"
    port: int = 6379
    num_cpus: int | None = None  # None: all
    store_gb: float | None = None  # None: Ray's default, 30 % of the memory
    loopback: bool = False  # a head for nodes on this machine only

    @property
    def local(self) -> bool:
        """Whether the node listens on the loopback interface only."""
        return self.loopback or (self.address is not None and connection.is_loopback(self.address))


def run_node(request: NodeRequest, say: Callable[[str], None]) -> int:
    """Start a node, print the next commands, and wait for a signal; return the exit code."""
    check(request)
    connection.require_ray()
    if request.head:
        where, created = auth.ensure_token()
        _refuse_taken_port(request.port)
    else:
        assert request.address is not None
        connection.check_head(request.address)
        where, created = str(auth.token_path()), False
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in numbers}
    reap_left_over()
    try:
        with Session() as session:
            log = session.folder / "node.log"
            with open(log, "wb") as output:
                process = subprocess.Popen(
                    [*_command(request), f"--temp-dir={session.folder / 'ray'}"],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=os.environ | connection.QUIET | (connection.LOOPBACK if request.local else {}),
                    process_group=0,  # a Ctrl-C in the terminal must reach only this process
                )
            _wait_until_up(process, log, received)
            if request.local:
                connection.refuse_open_sockets()
            if not received:
                ip = _own_ip(log)
                for line in next_lines(request, ip, where, created):
                    say(line)
            while not received and process.poll() is None:
                time.sleep(0.1)
            if not received:
                raise ClusterLostError(f"the node ended: {_reason(log)}")
            say("ending this node")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 + received[0]


def check(request: NodeRequest) -> None:
    """Raise a ClusterError for flags of `packtrain node` that contradict each other."""
    if request.head == (request.address is not None):
        raise ClusterError("a node is either the --head, or joins one with --address HEAD:PORT")
    if request.loopback and not request.head:
        raise ClusterError("--loopback is for --head; other nodes join it by its address, 127.0.0.1")
    if request.role not in plan.ROLES:
        raise ClusterError(f"--role {request.role!r} is not one of {', '.join(plan.ROLES)}")
    if request.role == "head" and not request.head:
        raise ClusterError("--role head is for the node that is started with --head")
    if not 0 < request.port < 65536:
        raise ClusterError(f"--port {request.port} must be between 1 and 65535")
    if request.num_cpus is not None and request.num_cpus < 1:
        raise ClusterError(f"--num_cpus {request.num_cpus} must be at least 1; --role head gives a node no work")
    if request.store_gb is not None and not request.store_gb * 2**30 >= plan.SMALLEST_STORE:
        raise ClusterError(f"--store_gb {request.store_gb} must be at least {plan.SMALLEST_STORE / 2**30:.2g}")


def next_lines(request: NodeRequest, ip: str, token: str, created: bool) -> list[str]:
    """Return the lines that are printed when the node runs.

    Args:
      request: the command line.
      ip: of this machine.
      token: where the token is, in words.
      created: whether it has just been created.
    """
    if not request.head:
        return [f"{ip} has joined {request.address} with the role {request.role!r}; Ctrl-C ends this node"]
    address = f"{ip}:{request.port}"
    new = ", new and readable for you alone" if created else ""
    return [
        f"the head runs at {address}; the token is in {token}{new}",
        "in other terminals of this machine, type:"
        if request.loopback
        else "on every other machine, copy the token to the same place and type:",
        f"  packtrain node --address {address}",
        "train on this machine, or on any other node, with:",
        f"  packtrain train CONFIG --runtime cluster --address {address}",
        WARNING,
        "Ctrl-C ends this node, and with it the cluster.",
    ]


def _command(request: NodeRequest) -> list[str]:
    resources = {f"{plan.RESOURCE}{request.role}": 1.0, "packtrain_sockets": float(plan.count_sockets())}
    resources[host.resource()] = 1.0
    return node_command(
        head=request.head,
        address=request.address or "",
        port=request.port,
        num_cpus=0 if request.role == "head" else request.num_cpus or plan.usable_cpus(),
        store_bytes=None if request.store_gb is None else int(request.store_gb * 2**30),
        resources=resources,
        loopback=request.local,
    )


def _refuse_taken_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise ClusterError(
                f"port {port} cannot be used ({error.strerror}); is a head running here already? Try another --port"
            ) from None


def _wait_until_up(process: subprocess.Popen[bytes], log: Path, received: list[int]) -> None:
    deadline = time.monotonic() + UP_SECS
    while not received and _UP not in log.read_text(errors="replace"):
        if process.poll() is not None:
            raise ClusterError(f"the node could not be started: {_reason(log)}")
        if time.monotonic() > deadline:
            raise ClusterError(f"the node did not start within {UP_SECS:g} s: {_reason(log)}")
        time.sleep(0.1)


def _own_ip(log: Path) -> str:
    found = re.search(r"Local node IP: \S*?([0-9a-fA-F.:]+)", log.read_text(errors="replace"))
    return found[1] if found else socket.gethostbyname(socket.gethostname())


def _reason(log: Path) -> str:
    """Return the last non-empty line of a log."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(errors="replace"))
    lines = [line.strip() for line in text.splitlines() if re.search(r"[A-Za-z]{3}", line)]
    errors = [line for line in lines if "Error" in line or "error" in line]
    return (errors or lines or ["no reason given"])[-1][:300]


_LOOPBACK_START = """
import sys
from ray.scripts import scripts

class Constants:
    ENABLE_RAY_CLUSTER = True  # `ray start` refuses to join where the variable below says False
    def __getattr__(self, name):
        return getattr(given, name)

given, scripts.ray_constants = scripts.ray_constants, Constants()
sys.exit(scripts.main())
"""
"""The program `ray start` for nodes that listen on the loopback interface, see `LOOPBACK`."""


def node_command(
    *,
    head: bool,
    address: str,
    port: int,
    num_cpus: int,
    store_bytes: int | None,
    resources: dict[str, float],
    loopback: bool = False,
) -> list[str]:
    """Return the command that starts one node of a cluster in the foreground.

    Args:
      head: whether it is the first node.
      address: of the head; for other nodes.
      port: of the head; for the head.
      num_cpus: processors that workers may take.
      store_bytes: of its object store; None: what Ray takes.
      resources: more that the node offers, by name.
      loopback: whether it is to listen on the loopback interface only; the environment must have `LOOPBACK` then.
    """
    program = ["-c", _LOOPBACK_START] if loopback else ["-m", "ray.scripts.scripts"]
    command = [sys.executable, *program, "start", "--block", "--disable-usage-stats"]
    if head:
        command += ["--head", f"--port={port}", "--include-dashboard=false"]
        command.append(f"--system-config={json.dumps(connection.HEAD_CONFIG)}")
    else:
        command.append(f"--address={address}")
    command += [f"--num-cpus={num_cpus}", f"--resources={json.dumps(resources)}"]
    if store_bytes is not None:
        command.append(f"--object-store-memory={store_bytes}")
    return command
