"""A connection of this process to a Ray cluster. No other module of the package imports ray.

Everything that Ray 2.60 does by default and that a run must not have is switched off or checked here: sockets beyond
loopback in a cluster of one machine, clusters without a token, restarts of its own, silent spilling to disk, a driver
that is ended when the head is lost, and lines on the terminal.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from packtrain.errors import ClusterError, ClusterLostError, MissingExtraError
from packtrain.runtime.cluster import auth, host, plan
from packtrain.runtime.supervise import Session, reap_left_over

log = logging.getLogger("packtrain")

PROBE_EVERY, PROBE_SECS = 5.0, 20.0  # of the head
RECONNECT_SECS = 600  # after so long without the head, Ray ends the driver: an update may take longer than its 60 s
STORE_EVERY = 30.0  # seconds between checks of the object stores
CONNECT_SECS = 2.0
START_SECS = 90.0  # limit for starting a private cluster
HEAD_CONFIG = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 5000,  # a raylet on busy cores may take seconds to answer
    "health_check_failure_threshold": 2,
    "automatic_object_spilling_enabled": False,
}
"""Settings of a head that we start: a lost node is noticed within 12 s, and nothing is spilled to disk."""
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""With this variable, which must be set before ray is imported, Ray binds to the loopback interface only."""
QUIET = {
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_task_events_report_interval_ms": "0",  # otherwise the head's memory grows with every call
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_worker_niceness": "0",  # 15 by default, which starves workers on a busy machine
}
"""Variables that every process of a cluster needs."""


def import_ray() -> Any:
    """Import ray with our settings and the token that the environment names; MissingExtraError without the extra."""
    require_ray()
    # Results of workers are read in place in the object store; memories copy rows and write into none of them.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    imported = "ray" in sys.modules
    os.environ.update(QUIET)
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(RECONNECT_SECS))
    ray = importlib.import_module("ray")
    if imported:  # Ray has read its settings and a token already
        raylet = importlib.import_module("ray._raylet")
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()
        constants: Any = importlib.import_module("ray._private.ray_constants")
        constants.ENABLE_RAY_CLUSTER = any(os.environ.get(name) != value for name, value in LOOPBACK.items())
    return ray


def require_ray() -> None:
    """Raise a MissingExtraError unless ray is installed; imports nothing."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("--runtime cluster", "ray", "ray")


class Cluster:
    """A connection of this process to a Ray cluster; to be closed."""

    def __init__(self, ray: Any, address: str, session: Session | None = None):
        self.ray, self.address = ray, address
        self._session = session  # session of a private cluster
        self._closed = threading.Event()
        self._asked: float | None = None  # when the current probe began
        self._blind = 0.0  # seconds for which the head has not answered
        self._overflow = ""
        self._known: list[dict[str, Any]] = []
        self._threads = [
            threading.Thread(target=run, name=f"cluster {name}", daemon=True)
            for name, run in (
                ("probe", self._probe_head),
                ("watch", self._watch_probe),
                ("stores", self._look_at_stores),
            )
        ]

    # -- start and end

    @classmethod
    def start(cls, store_bytes: int, num_cpus: int, num_gpus: int = 0) -> Cluster:
        """Start a cluster of this machine alone, which listens on the loopback interface only and has its own token."""
        os.environ.update(LOOPBACK)
        require_ray()
        reap_left_over()
        session = Session()  # its folder has mode 700; Ray creates folders in it that all users may read
        with _environment_of(session.folder):
            ray = import_ray()
            try:
                with _undisturbed():
                    context = ray.init(
                        address="local",
                        num_cpus=num_cpus,
                        num_gpus=num_gpus,
                        object_store_memory=store_bytes,
                        include_dashboard=False,
                        namespace=secrets.token_hex(8),
                        log_to_driver=False,
                        logging_level=logging.CRITICAL,
                        _temp_dir=str(session.folder / "ray"),
                        _system_config=HEAD_CONFIG,
                    )
                cluster = cls(ray, context.address_info["address"], session)
                refuse_open_sockets()
            except ClusterError:
                _stop(ray, session)
                raise
            except Exception as error:  # Ray's own exceptions and RuntimeError
                _stop(ray, session)
                raise ClusterError(f"no Ray cluster could be started on this machine: {last_line(error)}") from error
        cluster._begin()
        return cluster

    @classmethod
    def connect(cls, address: str) -> Cluster:
        """Join the cluster of an explicit address; ClusterError, within seconds, for a wrong address or token."""
        address = resolve(address)
        ray = check_head(address)
        try:
            with _undisturbed():
                ray.init(
                    address=address,
                    namespace=secrets.token_hex(8),
                    log_to_driver=False,
                    logging_level=logging.CRITICAL,
                )
        except Exception as error:
            _stop(ray, None)
            raise ClusterError(f"the cluster {address} cannot be joined: {last_line(error)}") from error
        cluster = cls(ray, address)
        cluster._begin()
        return cluster

    def _begin(self) -> None:
        self._known = self.ray.nodes()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Leave the cluster; a private one ends with it."""
        if not self._closed.is_set():
            self._closed.set()
            _stop(self.ray, self._session)

    @property
    def folder(self) -> Path | None:
        """The folder of a private cluster; None for another."""
        return None if self._session is None else self._session.folder

    # -- state of the cluster

    def nodes(self) -> list[plan.Node]:
        """Return the nodes that are alive, as of a few seconds ago; never waits."""
        mine = self.ray.get_runtime_context().get_node_id()
        return [
            plan.Node(
                each["NodeID"],
                each["NodeManagerAddress"],
                each["Resources"].get("CPU", 0.0),
                each["Resources"].get("GPU", 0.0),
                int(each["Resources"].get("object_store_memory", 0)),
                plan.roles_of(each["Resources"]),
                each["NodeID"] == mine,
                int(each["Resources"].get("packtrain_sockets", 1)),
            )
            for each in self._known
            if each["Alive"]
        ]

    def offers(self, node: str, resource: str) -> bool:
        """Return whether a node states a resource."""
        return any(each["NodeID"] == node and resource in each["Resources"] for each in self._known)

    def wait_for_nodes(self, count: int, secs: float) -> list[plan.Node]:
        """Return the nodes once there are enough; ClusterError after `secs` seconds."""
        deadline = time.monotonic() + secs
        while len(found := self.nodes()) < count:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{len(found)} of {count} nodes have joined {self.address} after {secs:g} s; "
                    f"start the others with: packtrain node --address {self.address}"
                )
            time.sleep(0.2)
            self._known = self.ray.nodes()
            self.check()
        return found

    def check(self) -> None:
        """Raise a ClusterLostError if the head does not answer or an object store has overflowed; never waits."""
        if self._blind > PROBE_SECS:
            raise ClusterLostError(f"the head of the cluster {self.address} has not answered for {PROBE_SECS:g} s")
        if self._overflow:
            raise ClusterLostError(self._overflow)

    def _watch_probe(self) -> None:
        """Measure for how long the head has not answered. Time in which this process was stopped does not count."""
        last = time.monotonic()
        while not self._closed.wait(0.5):
            now = time.monotonic()
            passed, last = min(now - last, 1.0), now
            asked = self._asked
            self._blind = self._blind + passed if asked is not None and now - asked > 1.0 else 0.0

    def _look_at_stores(self) -> None:
        """Check periodically whether an object store writes to disk. A check may take long on a large cluster."""
        while not self._closed.wait(STORE_EVERY):
            self._overflow = self._overflow or overflow(self.ray)

    def _probe_head(self) -> None:
        """Request the list of nodes from the head periodically; the call blocks forever if the head is lost."""
        while not self._closed.wait(PROBE_EVERY):
            self._asked = time.monotonic()
            try:
                self._known = self.ray.nodes()
            except Exception as error:  # any error of Ray during shutdown
                if self._closed.is_set():
                    return
                log.warning("the cluster %s could not be asked: %s", self.address, last_line(error))
                continue
            self._asked = None


def overflow(ray: Any) -> str:
    """Return one sentence if object stores have spilled data to disk; empty otherwise, or if Ray does not report it."""
    try:
        text = importlib.import_module("ray._private.internal_api").memory_summary(stats_only=True)
    except Exception:  # an internal function of Ray, which may change
        return ""
    for line in text.splitlines():
        words = line.split()
        amounts = [int(word) for word in words if word.isdigit()]
        if amounts and amounts[0] > 0 and ("mmap usage" in line or line.startswith("Spilled")):
            return (
                f"an object store of the cluster is full and writes to disk ({line.strip().rstrip(',')}); start the "
                "nodes with a larger --store_gb, or lower unroll_length, num_actors or --workers"
            )
    return ""


def is_loopback(address: str) -> bool:
    """Return whether HOST:PORT is on the loopback interface of this machine."""
    return address.startswith(("127.", "localhost:", "[::1]:"))


def resolve(address: str) -> str:
    """Return HOST:PORT for the value of --address; "auto" is the cluster in which Ray runs this job."""
    if address != "auto":
        return address
    if not (found := os.environ.get("RAY_ADDRESS", "").removeprefix("ray://")):
        raise ClusterError("--address auto needs the variable RAY_ADDRESS, which Ray sets in a job")
    return found


def check_address(address: str) -> tuple[str, int]:
    """Return host and port of an address where something listens; ClusterError, within 2 s, otherwise."""
    name, _, port = address.rpartition(":")
    if not name or not port.isdigit() or not 0 < int(port) < 65536:
        raise ClusterError(f"--address {address!r} is not HOST:PORT, such as 10.0.0.5:6379")
    try:
        with socket.create_connection((name.strip("[]"), int(port)), CONNECT_SECS):
            return name, int(port)
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        raise ClusterError(
            f"nothing answers at {address} ({why}); is `packtrain node --head` running there, and its port open?"
        ) from None


def check_head(address: str) -> Any:
    """Return ray once something answers at an address and takes our token; ClusterError, within seconds, otherwise."""
    check_address(address)
    auth.require_token(address)
    if is_loopback(address):
        os.environ.update(LOOPBACK)
    else:
        for name in LOOPBACK:
            os.environ.pop(name, None)
    ray = import_ray()
    _check_token(ray, address)
    return ray


def _check_token(ray: Any, address: str) -> None:
    """Raise a ClusterError if the cluster refuses the token, or accepts any."""
    raylet = importlib.import_module("ray._raylet")
    loader = raylet.AuthenticationTokenLoader.instance()
    loader.reset_cache()
    try:
        with _no_native_lines():
            raylet.GcsClient(address=address).check_alive([], timeout=CONNECT_SECS)
    except ray.exceptions.AuthenticationError:
        raise ClusterError(
            f"the cluster {address} refuses the token in {auth.token_path()}: copy that of the machine where "
            "`packtrain node --head` runs"
        ) from None
    except Exception as error:
        raise ClusterError(f"{address} does not answer as the head of a Ray cluster: {last_line(error)}") from None
    before = os.environ.get("RAY_AUTH_TOKEN")
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    loader.reset_cache()
    try:
        with _no_native_lines():
            raylet.GcsClient(address=address).check_alive([], timeout=CONNECT_SECS)
    except ray.exceptions.AuthenticationError:
        return
    finally:
        if before is None:
            del os.environ["RAY_AUTH_TOKEN"]
        else:
            os.environ["RAY_AUTH_TOKEN"] = before
        loader.reset_cache()
    raise ClusterError(
        f"the cluster {address} accepts any token, so anyone who reaches it can run code on it: start it with "
        "`packtrain node --head`, or with RAY_AUTH_MODE=token on every node"
    )


def refuse_other_versions(ray: Any, address: str) -> None:
    """Raise a ClusterError if a node that may take workers states other versions than those of this process.

    Nodes that `packtrain node` did not start state none: theirs are compared when a worker starts.
    """
    raylet = importlib.import_module("ray._raylet")
    try:
        with _no_native_lines():
            nodes = raylet.GcsClient(address=address).get_all_node_info(timeout=CONNECT_SECS)
    except Exception as error:
        raise ClusterError(f"the nodes of {address} cannot be listed: {last_line(error)}") from None
    for node in nodes.values():
        resources = dict(node.resources_total)
        theirs = host.stated(resources)
        if int(node.state) == 0 and theirs is not None and plan.roles_of(resources):  # 0: alive
            if (differ := host.compare(host.versions(), theirs, node.node_manager_address)) is not None:
                raise ClusterError(differ)


@contextlib.contextmanager
def _environment_of(session: Path) -> Iterator[None]:
    """Context for the start of a private cluster: sets a new token, and removes it if the start fails."""
    path = session / "token"
    auth.create_token(path)
    names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_TOKEN", "RAY_ADDRESS")
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(path))
    try:
        yield
    except BaseException:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        raise


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep Ray from replacing signal handlers, changing the levels of logging and writing on the terminal."""
    module: Any = importlib.import_module("ray._private.worker")
    if hasattr(module, "print_to_stdstream"):  # messages of the head about lost nodes and workers
        module.print_to_stdstream = _log_message
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)} if main else {}
    try:
        with _no_native_lines():
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        logging.getLogger("ray").setLevel(logging.CRITICAL)


@contextlib.contextmanager
def _no_native_lines() -> Iterator[None]:
    """Keep Ray's C++ part from writing to standard error, which no setting of Ray does while it starts."""
    sys.stderr.flush()
    kept = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def _log_message(data: dict[str, Any], *_: Any, **__: Any) -> None:
    """Write a message of the cluster to the log of the run."""
    with contextlib.suppress(Exception):
        log.info("cluster: %s", " ".join(" ".join(map(str, data["lines"])).split())[:500])


def refuse_open_sockets() -> None:
    """Raise a ClusterError if this process or a child of it listens beyond the loopback interface."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    for process in processes:
        with contextlib.suppress(psutil.Error):
            for each in process.net_connections("inet"):
                ip = str(getattr(each.laddr, "ip", ""))
                if each.status == psutil.CONN_LISTEN and ip.removeprefix("::ffff:") not in ("127.0.0.1", "::1"):
                    raise ClusterError(
                        f"Ray listens on {ip}:{each.laddr.port}, beyond this machine; this version of Ray does not "
                        "keep to the loopback interface: use another one, or --runtime local"
                    )


def _stop(ray: Any, session: Session | None) -> None:
    with contextlib.suppress(Exception):
        ray.shutdown()
    if session is not None:
        session.close()


def last_line(error: BaseException) -> str:
    """Return the last line of an error's text, or its kind if it has no text."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
