"""Files in deploy/: they parse, have the keys that their engines need, and every packtrain command in them is one."""

import json
import os
import re
import shlex
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from packtrain import cli
from packtrain.runtime import train_command
from packtrain.runtime.cluster import node

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
RAY_WITH_TOKENS = (2, 52)


def text(name):
    return (DEPLOY / name).read_text()


def containers(pod):
    return pod["template"]["spec"]["containers"]


@pytest.fixture
def commands(monkeypatch):
    """Let packtrain's command line check commands and start nothing; return what it would start."""
    started = []
    monkeypatch.setattr(train_command, "train", lambda request: started.append(request) or 0)
    monkeypatch.setattr(node, "run_node", lambda request, say: (node.check(request), started.append(request)) and 0)

    def check(words):
        assert words[0] == "packtrain", words
        assert cli.main(words[1:]) == 0, words
        return started[-1]

    return check


def test_the_image_trains_by_default(commands):
    """Mutation: a misspelt flag; a file that is not there; a target without a command."""
    steps = [line for line in text("Dockerfile").replace("\\\n", " ").splitlines() if line and line[0] not in "# "]
    assert [step.split(" AS ")[1] for step in steps if step.startswith("FROM")] == ["base", "cpu", "cuda"]
    instructions = {step.split()[0] for step in steps}
    assert instructions <= {"ARG", "FROM", "ENV", "RUN", "WORKDIR", "COPY", "USER", "CMD"}
    for step in steps:
        if step.startswith("COPY"):
            ignored = text("Dockerfile.dockerignore").splitlines()
            for source in step.split()[1:-1]:
                assert (ROOT / source).exists() and f"!{source}" in ignored, source
    (cpu, cuda) = [json.loads(step.removeprefix("CMD ")) for step in steps if step.startswith("CMD")]
    assert commands(cpu).device == "cpu"
    assert "cuda" in cuda and commands([word for word in cuda if word not in ("--device", "cuda")])
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for named in re.findall(r"'\.\[([a-z,0-9]+)\]'", text("Dockerfile")):
        assert set(named.split(",")) <= set(extras) and "ray" in named
    assert steps[-2].startswith("WORKDIR") and steps[-3] == "USER packtrain", "it does not run as root"


def test_the_compose_file_is_a_head_and_two_workers(commands):
    """Mutation: a worker that does not wait for the head; a token that may be empty; a published port."""
    found = yaml.safe_load(text("compose.yaml"))
    head, worker = found["services"]["head"], found["services"]["worker"]
    assert worker["deploy"]["replicas"] == 2
    assert worker["depends_on"]["head"]["condition"] == "service_healthy" and "healthcheck" in head
    request = commands(head["command"])
    assert request.head and request.role == "head" and request.port == 6379
    assert commands(worker["command"]).address == "head:6379"
    for service in (head, worker):
        assert service["environment"]["RAY_AUTH_TOKEN"].startswith("${RAY_AUTH_TOKEN:?"), "empty is refused"
        assert service["build"]["dockerfile"] == "deploy/Dockerfile" and service["build"]["target"] == "cpu"
        assert (DEPLOY / service["build"]["context"]).resolve() == ROOT
        assert "ports" not in service
        gigabytes = float(service["command"][service["command"].index("--store_gb") + 1])
        assert service["shm_size"] == "2gb" and gigabytes < 2, "the object store fits into /dev/shm"


def test_the_job_of_kuberay_has_a_token_and_a_command(commands, monkeypatch):
    """Mutation: authOptions left out; an entry point without the cluster; images that differ."""
    claim, job = yaml.safe_load_all(text("rayjob.yaml"))
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]["rayClusterSpec"]
    assert spec["authOptions"] == {"mode": "token"}
    assert tuple(map(int, spec["rayVersion"].split(".")[:2])) >= RAY_WITH_TOKENS
    assert f"ray=={spec['rayVersion']}" in (ROOT / "constraints.txt").read_text().splitlines()
    monkeypatch.setattr("packtrain.runtime.remote_setup.check_remote", lambda *_: None)
    request = commands(shlex.split(job["spec"]["entrypoint"]))
    assert request.remote.kind == "cluster" and request.remote.address == "auto"
    (workers,) = spec["workerGroupSpecs"]
    assert request.remote.min_nodes == 1 + workers["replicas"]
    pods = [spec["headGroupSpec"], workers]
    assert {container["image"] for pod in pods for container in containers(pod)} == {"packtrain:cpu"}
    for pod in pods:
        volumes = {volume["name"]: volume for volume in pod["template"]["spec"]["volumes"]}
        (container,) = containers(pod)
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
        assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    runs = pods[0]["template"]["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]
    assert claim["kind"] == "PersistentVolumeClaim" and claim["metadata"]["name"] == runs
    assert request.output.parts[:2] == ("/", "runs")


SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "node[07-09]",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_CPUS_PER_TASK": "16",
}
STUBS = {
    "srun": 'printf "%s\\n" "$@" > "$STUB_OUT"; stat -c %a "$RAY_AUTH_TOKEN_PATH" > "$STUB_OUT.mode"',
    "scontrol": 'printf "node07\\nnode08\\nnode09\\n"',
}


def run_slurm(tmp_path, *arguments):
    """Run the Slurm script with stand-ins for Slurm's commands; return the process and what srun was given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, line in STUBS.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{line}\n")
        (folder / name).chmod(0o755)
    out = tmp_path / "out"
    extra = {"PATH": f"{folder}:{os.environ['PATH']}", "STUB_OUT": str(out), "PACKTRAIN_JOBS": str(tmp_path / "jobs")}
    command = ["bash", str(DEPLOY / "slurm.sh"), *arguments]
    done = subprocess.run(command, env=os.environ | SLURM | extra, capture_output=True, text=True, timeout=60)
    return done, out.read_text().splitlines() if out.exists() else []


def test_the_slurm_script_runs_the_command_on_all_machines(tmp_path, commands, monkeypatch):
    """Mutation: the port of every job is the same; arguments with spaces fall apart; the token stays behind."""
    script = DEPLOY / "slurm.sh"
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0
    assert script.stat().st_mode & stat.S_IXUSR
    done, words = run_slurm(tmp_path, "impala/catch", "--workers", "3", "--output_dir", "a b")
    assert done.returncode == 0, done.stderr
    cut = words.index("--")
    assert (
        words[: cut + 1]
        == (
            "--nodes=3 --ntasks-per-node=1 ray symmetric-run --address node07:24711 --min-nodes 3 --num-cpus 16 "
            "--temp-dir /tmp/packtrain-4711 --"
        ).split()
    )
    monkeypatch.setattr("packtrain.runtime.remote_setup.check_remote", lambda *_: None)
    request = commands(words[cut + 1 :])
    assert request.remote.address == "node07:24711" and request.remote.min_nodes == 3 and request.remote.workers == 3
    assert str(request.output) == "a b"
    assert (tmp_path / "out.mode").read_text().strip() == "600", "the token is readable for its owner alone"
    assert not list((tmp_path / "jobs").glob("*")), "and it goes with the job"


def test_the_slurm_script_says_how_it_is_used(tmp_path):
    done, words = run_slurm(tmp_path)
    assert done.returncode == 2 and "usage: sbatch" in done.stderr and not words


def test_commands_in_comments_are_commands(commands, monkeypatch):
    """The ones that a reader copies. Mutation: a flag is renamed, and the comment stays."""
    monkeypatch.setattr("packtrain.runtime.remote_setup.check_remote", lambda *_: None)
    found = []
    for name in ("compose.yaml", "Dockerfile"):
        found += re.findall(r"^#.* (packtrain (?:train|node) .*)$", text(name), re.M)
    assert len(found) >= 2
    for line in found:
        commands([word for word in shlex.split(line) if word not in ("--device", "cuda")])


@pytest.mark.slow
def test_ray_has_the_command_that_the_slurm_script_runs():
    pytest.importorskip("ray")
    shown = subprocess.run(
        [sys.executable, "-m", "ray.scripts.scripts", "symmetric-run", "--help"],
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout
    assert "--address" in shown and "--min-nodes" in shown and "SEPARATOR" in shown
