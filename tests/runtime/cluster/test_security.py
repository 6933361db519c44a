"""Who may join a cluster: tokens, modes of files, sockets and versions. Every refusal is one line within seconds."""

import ast
import os
import re
import secrets
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import packtrain
from packtrain.errors import ClusterError, MissingExtraError
from packtrain.runtime.cluster import auth, connection, host
from packtrain.runtime.cluster.node import node_command

PACKAGE = Path(packtrain.__file__).parent
REFUSAL = """
import sys, time
from packtrain.errors import Error
from packtrain.runtime.cluster import connection, launch
from packtrain.runtime.messages import Remote
import ray
begin = time.monotonic()
try:
    launch.check(Remote("cluster", address=sys.argv[1]))
    print("accepted", 0)
except Error as error:
    print(error.exit_code, time.monotonic() - begin, error)
"""


def refusal(address, environ):
    """Return seconds and text of the error with which a run on this cluster is refused; imports are not counted."""
    done = subprocess.run(
        [sys.executable, "-c", REFUSAL, address], env=environ, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0 and done.stdout.count("\n") == 1, (done.stdout, done.stderr)
    code, secs, text = done.stdout.strip().partition(" ")[0], *done.stdout.strip().partition(" ")[2].split(" ", 1)
    assert code == "2", done.stdout
    return float(secs), text


@pytest.fixture
def joined(simulated):
    pytest.importorskip("ray")
    return simulated


@pytest.mark.slow
@pytest.mark.xdist_group("cluster")
class TestTokens:
    def test_a_wrong_or_missing_token_is_refused_in_one_line(self, joined, tmp_path):
        """Within 3 s, three times that on a busy machine. Mutation: Ray itself refuses it, after 20 s."""
        wrong = tmp_path / "token"
        auth.create_token(wrong)
        secs, text = refusal(joined.address, joined.environ | {"RAY_AUTH_TOKEN_PATH": str(wrong)})
        assert f"refuses the token in {wrong}" in text and secs < 9
        missing = tmp_path / "nothing"
        secs, text = refusal(joined.address, joined.environ | {"RAY_AUTH_TOKEN_PATH": str(missing)})
        assert f"there is no token for {joined.address}" in text and secs < 9

    def test_a_node_with_a_wrong_token_does_not_join(self, joined):
        environ = joined.environ | {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
        words = [sys.executable, "-m", "packtrain", "node", "--address", joined.address]
        done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=120)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and "refuses the token" in done.stderr

    def test_token_and_session_folders_are_closed_to_others(self, joined):
        assert stat.S_IMODE((joined.folder / "token").stat().st_mode) == 0o600
        raylets = [each for node in (joined.head, *joined.nodes) for each in node.children("raylet")]
        words = [word for raylet in raylets for word in raylet.cmdline()]
        folders = {match[0] for word in words for match in re.finditer(r"[^=,]*packtrain-run-[^/]*", word)}
        assert len(folders) >= 3
        assert {stat.S_IMODE(Path(folder).stat().st_mode) for folder in folders} == {0o700}

    def test_no_node_listens_beyond_the_loopback_interface(self, joined):
        listening = 0
        for node in (joined.head, *joined.nodes):
            for process in psutil.Process(node.process.pid).children(recursive=True):
                for each in process.net_connections("inet"):
                    if each.status == psutil.CONN_LISTEN:
                        listening += 1
                        assert each.laddr.ip.removeprefix("::ffff:") in ("127.0.0.1", "::1"), process.cmdline()
        assert listening > 3

    def test_a_node_of_another_version_is_refused_before_a_folder_is_made(self, joined, tmp_path):
        """Mutations: versions are compared when the first worker starts, or never."""
        code = (
            "import sys, packtrain; packtrain.__version__ = '9.9.9'; from packtrain.cli import main; sys.exit(main())"
        )
        words = [sys.executable, "-c", code, "node", "--address", joined.address, "--store_gb", "0.08"]
        node = subprocess.Popen(words, env=joined.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            line = node.stdout.readline()
            assert "has joined" in line, line
            done = joined.train("impala/catch", "--output_dir", str(tmp_path / "run"))
        finally:
            node.terminate()
            node.wait(60)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert "has packtrain 9.9.9 instead of" in done.stderr and not (tmp_path / "run").exists()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and "9.9.9" in _refusal_or_none(joined):
            time.sleep(0.5)
        assert "9.9.9" not in _refusal_or_none(joined), "the node that left is refused still"

    def test_doctor_names_every_node(self, joined):
        words = [sys.executable, "-m", "packtrain", "doctor", "--address", joined.address]
        done = subprocess.run(words, env=joined.environ, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, (done.stdout, done.stderr)
        lines = [line for line in done.stdout.splitlines() if "127.0.0.1" in line]
        assert len(lines) >= 2, done.stdout


def _refusal_or_none(cluster):
    words = [sys.executable, "-c", REFUSAL, cluster.address]
    return subprocess.run(words, env=cluster.environ, capture_output=True, text=True, timeout=200).stdout


@pytest.mark.slow
@pytest.mark.xdist_group("cluster")
def test_a_cluster_that_accepts_any_token_is_refused(tmp_path):
    """Mutation: only our own token is tried. The head is one that `packtrain node` did not start."""
    pytest.importorskip("ray")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = os.environ | connection.QUIET | connection.LOOPBACK | {"RAY_AUTH_MODE": "disabled"}
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        environ.pop(name, None)
    command = node_command(
        head=True, address="", port=port, num_cpus=1, store_bytes=80 * 2**20, resources={}, loopback=True
    )
    folder = Path("/tmp") / f"p{os.getpid()}"
    head = subprocess.Popen(
        [*command, f"--temp-dir={folder}"], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        auth.create_token(tmp_path / "token")
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            time.sleep(0.5)
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
        text = ""
        while time.monotonic() < deadline and "accepts any token" not in text:
            _, text = refusal(f"127.0.0.1:{port}", environ | {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")})
        assert "accepts any token" in text and "RAY_AUTH_MODE=token" in text
    finally:
        below = psutil.Process(head.pid).children(recursive=True)
        for each in (*below, psutil.Process(head.pid)):
            each.kill()
        head.wait()


def test_a_socket_beyond_loopback_is_refused():
    """Mutation: the socket table is not read, or only that of children."""
    connection.refuse_open_sockets()
    with socket.socket() as open_to_all:
        open_to_all.bind(("0.0.0.0", 0))
        open_to_all.listen()
        with pytest.raises(ClusterError, match=rf"Ray listens on 0.0.0.0:{open_to_all.getsockname()[1]}"):
            connection.refuse_open_sockets()


def test_a_new_token_can_be_read_by_its_owner_alone_and_an_open_one_is_closed(tmp_path, monkeypatch):
    path = tmp_path / "ray" / "token"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "")
    where, created = auth.ensure_token()
    assert where == str(path) and created and len(path.read_text()) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    auth.require_token("10.0.0.1:6379")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and os.environ["RAY_AUTH_MODE"] == "token"


def test_versions_that_differ_are_named():
    """Mutation: only packtrain's own is compared."""
    ours = {"packtrain": "0.2.0", "Python": "3.11", "torch": "2.13"}
    assert host.compare(ours, dict(ours), "10.0.0.2") is None
    text = host.compare(ours, {**ours, "Python": "3.12", "torch": "2.9"}, "10.0.0.2")
    assert text.startswith("the node 10.0.0.2 has Python 3.12 instead of 3.11 and torch 2.9 instead of 2.13")
    assert host.stated({"CPU": 1.0, host.resource(): 1.0}) == host.versions()
    assert host.stated({"CPU": 1.0}) is None


def test_only_the_engine_imports_ray():
    """Read from the source, so that imports inside functions count. Mutation: another module imports ray."""
    importers = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
                "import_module",
                "__import__",
            ):
                names = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            if any(name.split(".")[0] == "ray" for name in names):
                importers.append(str(path.relative_to(PACKAGE)))
    assert set(importers) == {"runtime/cluster/connection.py"}


def test_without_the_extra_it_is_one_line(monkeypatch, tmp_path, capsys):
    """Mutation: an ImportError, or a run folder that is written first."""
    monkeypatch.setattr(connection.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"needs the package 'ray'; try: pip install 'packtrain\[ray\]'"):
        connection.require_ray()
    from packtrain.cli import main

    words = ["train", "impala/catch", "--runtime", "cluster", "--output_dir", str(tmp_path / "run")]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "packtrain[ray]" in error and not (tmp_path / "run").exists()
