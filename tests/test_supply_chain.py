"""X8: licences of dependencies, hashes of the tested versions, and what `make audit` says without its service."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"benchmarks/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pinned(text):
    return dict(re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE))


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_x8_every_dependency_has_a_known_licence(capsys):
    """Mutation: a package without a licence, or with one that is not in the lists."""
    licences = script("licences")
    assert licences.main() == 0, capsys.readouterr().err
    table = capsys.readouterr().out.splitlines()
    assert len(table) > 20
    copyleft = [line.split()[0] for line in table if line.split()[2] == "copyleft"]
    assert set(copyleft) <= {"ale-py"}, "an extra, and documented"
    assert licences.kind("Proprietary") == "unknown" and licences.kind("GPL-3.0") == "copyleft"


def test_x8_each_tested_version_has_a_hash():
    """Mutation: a version is changed in constraints.txt alone."""
    tested, hashed = ((ROOT / name).read_text() for name in ("constraints.txt", "constraints.hashed.txt"))
    wanted = {plain(name): version for name, version in pinned(tested).items()}
    assert {plain(name): version for name, version in pinned(hashed).items()} == wanted
    lines = [line for line in hashed.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    assert "http" not in hashed and "index" not in hashed


def test_the_hash_is_that_of_the_file_that_pip_prefers():
    """Mutation: a source archive before a wheel, or another version that begins alike."""
    hashes = script("hash_constraints")
    names = ["a-1.0.tar.gz", "a-1.0-py3-none-any.whl", "a-1.0.1-py3-none-any.whl", "a-1.0-cp27-cp27m-win32.whl"]
    page = "".join(f'<a href="/x/{name}#sha256={k:064x}">{name}</a>' for k, name in enumerate(names))
    files = hashes.files_of(page)
    assert list(files) == names and hashes.choose(files, "1.0") == f"{1:064x}"
    assert hashes.choose({"a-1.0.tar.gz": "s"}, "1.0") == "s" and hashes.choose(files, "2.0") is None
    assert hashes.choose({"a-1.0+cpu-py3-none-any.whl": "w"}, "1.0") == "w"


@pytest.mark.parametrize(
    ("code", "errors", "wanted", "said"),
    [
        (0, "No known vulnerabilities found", 0, "No known vulnerabilities found"),
        (1, "Found 1 known vulnerability in 1 package", 1, "Found 1 known vulnerability"),
        (1, "requests.exceptions.ConnectionError: HTTPSConnectionPool(host=…): Max retries exceeded", 0, "not checked"),
    ],
)
def test_an_audit_without_its_service_is_one_line(monkeypatch, capsys, code, errors, wanted, said):
    """A vulnerability that is found is an error; a service that cannot be reached is a line without a traceback."""
    vulnerabilities = script("vulnerabilities")
    traceback = f"Traceback (most recent call last):\n  File …\n{errors}\n"
    done = vulnerabilities.subprocess.CompletedProcess([], code, "", traceback if "Connection" in errors else errors)
    monkeypatch.setattr(vulnerabilities.subprocess, "run", lambda *args, **more: done)
    assert vulnerabilities.main() == wanted
    out = "".join(capsys.readouterr())
    assert said in out and "Traceback" not in out
