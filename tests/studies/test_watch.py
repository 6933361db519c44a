import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from packtrain.errors import ConfigError, RunFolderError
from packtrain.studies.watch import LivePage, Server
from packtrain.testing import chaos


def make_run(folder, rows=3):
    folder.mkdir(parents=True)
    (folder / "config.gin").write_text("env = 'Catch'\n")
    write(folder, rows)
    return folder


def write(folder, rows):
    lines = [{"step": k, "wall_s": 1.0, "kind": "train", "episode_return": float(k)} for k in range(1, rows + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def server(tmp_path):
    make_run(tmp_path / "runs" / "a")
    with Server(LivePage([tmp_path / "runs"], None, 1.0)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read()


def test_the_page_is_behind_its_token(server):
    """Mutations: a prefix of the token; the token without its slash; no token."""
    status, headers, body = ask(server, f"/{server.token}/")
    assert status == 200 and b"packtrain report" in body and b"connect-src 'self'" in body
    assert headers["Cache-Control"] == "no-store" and headers["X-Frame-Options"] == "DENY"
    paths = (
        "/",
        "",
        f"/{server.token}",
        f"/{server.token}/x",
        f"/{server.token[:-1]}/",
        f"/{server.token}x/",
        "/%C3%A9/",
    )
    for path in (*paths, f"/../{server.token}/", f"/{server.token}/?a"):
        status, _, body = ask(server, path)
        assert (status, body) == (404, b"not found\n"), path


def test_another_host_name_is_refused(server):
    """A page elsewhere whose name was made to mean 127.0.0.1 cannot read the report."""
    assert ask(server, f"/{server.token}/", Host="evil.example")[0] == 404
    assert ask(server, f"/{server.token}/", Host=f"localhost:{server.server_port}")[0] == 200


def test_nothing_can_be_sent(server):
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(server, f"/{server.token}/", method)[0] == 501
    assert ask(server, f"/{server.token}/", "HEAD")[2] == b""


def test_the_server_is_on_the_loopback_interface_alone(server):
    assert server.server_address[0] == "127.0.0.1"


def test_the_page_follows_its_runs(server, tmp_path):
    """Mutations: a page made once; a page made again for every request."""
    _, headers, first = ask(server, f"/{server.token}/")
    status, _, body = ask(server, f"/{server.token}/", **{"If-None-Match": headers["ETag"]})
    assert (status, body) == (304, b"")
    write(tmp_path / "runs" / "a", 9)
    make_run(tmp_path / "runs" / "b")
    status, _, second = ask(server, f"/{server.token}/", **{"If-None-Match": headers["ETag"]})
    assert status == 200 and second != first and b"2 runs compared" in second


def test_runs_that_are_gone_are_said_and_the_server_stays(server, tmp_path):
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    status, _, body = ask(server, f"/{server.token}/")
    assert status == 503 and b"does not exist" in body
    (tmp_path / "elsewhere").rename(tmp_path / "runs")
    assert ask(server, f"/{server.token}/")[0] == 200


def test_a_port_that_is_taken_is_one_line(server, tmp_path):
    with pytest.raises(ConfigError, match=f"--port {server.server_port} cannot be used: Address already in use"):
        Server(LivePage([tmp_path], None, 1.0), server.server_port)


def test_every_server_has_its_own_token(tmp_path):
    page = LivePage([tmp_path], None, 1.0)
    with Server(page) as a, Server(page) as b:
        assert a.token != b.token and len(a.token) >= 32


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match="is not a run folder"):
        LivePage([tmp_path], None, 1.0).get()


def test_the_command_says_its_address_and_ends_with_ctrl_c(tmp_path):
    run = make_run(tmp_path / "run")
    command = [sys.executable, "-m", "packtrain.cli", "watch", str(run)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=chaos.default_signals
    )
    limit = threading.Timer(60, process.kill)
    limit.start()
    try:
        line = process.stdout.readline()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([\w-]{32})/\n", line)
        assert found, line
        with socket.create_connection(("127.0.0.1", int(found[1])), timeout=10) as connection:
            connection.sendall(f"GET /{found[2]}/ HTTP/1.0\r\nHost: 127.0.0.1:{found[1]}\r\n\r\n".encode())
            assert connection.makefile().readline().startswith("HTTP/1.0 200")
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=20)
    finally:
        limit.cancel()
        process.kill()
        process.communicate()
    assert process.returncode == 0 and error == "" and out.endswith("ended\n")
    assert not list(Path(run).glob("*.html")), "nothing is written"
