import collections
import importlib.metadata
import json
import tomllib
from pathlib import Path

import pytest

from packtrain import doctor

Space = collections.namedtuple("Space", "total used free")


def installed(monkeypatch, **versions):
    """Pretend that these distributions, and no others, are installed."""

    def version(name):
        try:
            return versions[name.replace("-", "_")]
        except KeyError:
            raise importlib.metadata.PackageNotFoundError(name) from None

    monkeypatch.setattr(doctor.importlib.metadata, "version", version)


def test_requirements_are_those_of_the_package():
    """Fails when pyproject.toml changes and the doctor does not."""
    project = tomllib.loads((Path(doctor.__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert list(doctor.CORE) == project["dependencies"]
    extras = project["optional-dependencies"]
    for_users = {name: tuple(needs) for name, needs in extras.items() if name not in ("dev", "docs", "all")}
    assert doctor.EXTRAS == for_users
    assert project["requires-python"] == ">=" + ".".join(map(str, doctor.OLDEST_PYTHON))


@pytest.mark.parametrize(
    ("version", "requirement", "want"),
    [
        ("2.13.0+cpu", "torch>=2.10", True),
        ("2.9.1", "torch>=2.10", False),
        ("2.10", "torch>=2.10.0", True),
        ("2.10.0rc1", "torch>=2.10", True),
        ("2.0.0", "gymnasium>=1.2,<2", False),
        ("1.1", "gymnasium>=1.2,<2", False),
        ("1.4.0", "gymnasium>=1.2,<2", True),
        ("0.5.1", "gin-config==0.5.0", False),
        ("0.5", "gin-config==0.5.0", True),
        ("7", "psutil", True),
        ("unknown", "torch>=2.10", False),
    ],
)
def test_versions_are_compared_as_numbers(version, requirement, want):
    """2.9.1 fails as text comparison: "2.9" > "2.10"."""
    assert doctor.satisfies(version, requirement) is want


def test_here_everything_that_is_needed_is_there(capsys):
    """Imports torch for real. Every line has a known status and a text; the exit code is 0."""
    assert doctor.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    words = [line.split() for line in lines if line]
    assert {word[0] for word in words[:-1]} <= {"ok", "warn", "missing"}
    assert "packtrain can run here" in lines[-1]
    text = "\n".join(lines)
    for name in ("Python", "packtrain", "torch", "devices", "extra atari", "cores", "memory", "disk", "Ray auth"):
        assert f"  {name}" in text
    width = len(max((f"extra {extra}" for extra in doctor.EXTRAS), key=len))
    assert f"ok       {'torch':<{width}}  {importlib.metadata.version('torch')}" in lines
    assert "cpu (" in text


def test_json_says_the_same(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "check_devices", lambda: doctor.Check("devices", "ok", "cpu"))
    assert doctor.run_doctor(as_json=True) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is True
    assert [tuple(check.values()) for check in answer["checks"]] == doctor.report()
    assert set(answer["checks"][0]) == {"name", "status", "text"}


def test_a_missing_core_library_is_exit_code_1_and_says_what_to_install(capsys, monkeypatch):
    """Fails if a missing extra makes the exit code 1, or if a missing library stops the report."""
    others = {
        "gymnasium": "1.4",
        "gin_config": "0.5.0",
        "safetensors": "0.8",
        "rich": "15",
        "psutil": "7",
        "optree": "1",
    }
    installed(monkeypatch, numpy="1.26.4", **others)
    assert doctor.run_doctor() == 1
    text = capsys.readouterr().out
    assert "not installed; try: pip install 'torch>=2.10'" in text
    assert "1.26.4 does not do; try: pip install 'numpy>=2'" in text
    assert "Needed: torch, numpy\n" in text
    installed(monkeypatch, torch="2.13.0", numpy="2.4", **others)
    monkeypatch.setattr(doctor, "check_devices", lambda: doctor.Check("devices", "ok", "cpu"))
    assert doctor.run_doctor() == 0, "extras are missing, but nobody needs them"


def test_an_old_python_is_missing():
    assert doctor.check_python((3, 10, 4)).status == "missing"
    assert "3.11" in doctor.check_python((3, 10, 4)).text
    assert doctor.check_python((3, 11, 0)).status == "ok"


def test_a_torch_that_does_not_import_is_missing(monkeypatch):
    def broken(name):
        raise OSError("libtorch_cpu.so: cannot open\nmore")

    installed(monkeypatch, torch="2.13.0")
    monkeypatch.setattr(doctor.importlib, "import_module", broken)
    check = doctor.check_devices()
    assert check.status == "missing" and "libtorch_cpu.so" in check.text and "\n" not in check.text
    assert doctor._required(check.name)


def test_extras(monkeypatch):
    installed(monkeypatch, ale_py="0.12.1", mujoco="3.1", imageio="2", pygame_ce="2")
    assert doctor.check_extra("atari") == ("extra atari", "ok", "ale-py 0.12.1")
    assert doctor.check_extra("ray") == ("extra ray", "missing", "pip install 'packtrain[ray]'")
    assert doctor.check_extra("video").status == "missing", "imageio-ffmpeg is not there"
    old = doctor.check_extra("mujoco")
    assert old.status == "warn" and "mujoco>=3.3" in old.text and "imageio>" not in old.text


def test_each_command_says_what_it_lacks(monkeypatch):
    """Mutation: a command whose extra does not exist."""
    assert {extra for extras in doctor.COMMANDS.values() for extra in extras} <= set(doctor.EXTRAS)
    monkeypatch.setattr(doctor, "_version", lambda name: None if name in ("ray", "optree") else "99")
    monkeypatch.setattr(doctor, "CORE", ("optree",))
    found = doctor.check_command("node", ("ray",))
    assert found == ("`node`", "missing", "pip install optree 'packtrain[ray]'")
    monkeypatch.setattr(doctor, "_version", lambda name: "99")
    assert doctor.check_command("node", ("ray",)).status == "ok"


def test_the_tested_versions_meet_the_floors():
    """constraints.txt against pyproject.toml. Mutation: a floor above what is tested."""
    lines = (Path(doctor.__file__).parent.parent / "constraints.txt").read_text().splitlines()
    tested = {name.lower(): version for name, _, version in (line.partition("==") for line in lines) if version}
    for requirement in doctor.CORE:
        name = doctor._name(requirement)
        assert doctor.satisfies(tested[name.lower()], requirement), requirement


def test_a_library_without_a_package_for_this_python_is_not_missed(monkeypatch):
    """Box2D has none for Python 3.14. Mutations: the marker ignored; 3.9 taken for later than 3.14, as texts are."""
    needs = 'box2d>=2.3.10; python_version < "3.14"'
    assert [doctor.is_for_python(needs, (3, minor)) for minor in (9, 13, 14)] == [True, True, False]
    assert doctor.is_for_python("box2d>=2.3.10", (3, 14))
    installed(monkeypatch, pygame_ce="2")
    monkeypatch.setattr(doctor, "is_for_python", lambda requirement: ";" not in requirement)
    assert doctor.check_extra("box2d") == ("extra box2d", "ok", "pygame-ce 2")


def test_limits_of_the_machine(tmp_path):
    small, large = Space(2**29, 0, 2**29), Space(2**33, 0, 2**33)
    assert doctor.check_shared_memory(str(tmp_path), lambda _: small).status == "warn"
    assert doctor.check_shared_memory(str(tmp_path), lambda _: large).status == "ok"
    assert doctor.check_shared_memory(str(tmp_path / "nowhere")).status == "ok"
    assert doctor.check_disk(".", lambda _: small).status == "warn"
    assert doctor.check_disk(".", lambda _: large).status == "ok"
    low = doctor.check_open_files((256, 4096))
    assert low.status == "warn" and "ulimit -n 4096" in low.text
    assert doctor.check_open_files((1024, 4096)).status == "ok"


def test_cpu_quota_of_a_container(tmp_path):
    for text, want in (("150000 100000", 1.5), ("max 100000", None), ("", None)):
        (tmp_path / "cpu.max").write_text(text)
        assert doctor._cpu_quota(tmp_path / "cpu.max") == want
    assert doctor._cpu_quota(tmp_path / "nowhere") is None


def test_compilers(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(doctor.shutil, "which", {"gcc": "/usr/bin/gcc", "mycxx": "/opt/mycxx"}.get)
    check = doctor.check_compilers()
    assert check.status == "warn" and "no C++ compiler" in check.text
    monkeypatch.setenv("CXX", "mycxx")
    assert doctor.check_compilers() == ("compiler", "ok", "/usr/bin/gcc, /opt/mycxx")


def test_ray_auth(monkeypatch, tmp_path):
    """Each step of the way to a safe cluster; the token is never shown."""
    token = tmp_path / "token"
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    installed(monkeypatch)
    assert doctor.check_ray_auth().status == "ok"
    installed(monkeypatch, ray="2.60.0")
    assert "RAY_AUTH_MODE is not set" in doctor.check_ray_auth().text
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert doctor.check_ray_auth().status == "warn"
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert "there is none" in doctor.check_ray_auth().text
    token.write_text("secret")
    token.chmod(0o644)
    assert "chmod 600" in doctor.check_ray_auth().text
    token.chmod(0o600)
    assert doctor.check_ray_auth().status == "ok"
    assert "secret" not in doctor.check_ray_auth().text
