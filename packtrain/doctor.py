"""`packtrain doctor`: report what this machine has, what is missing, and the commands that install it.

It needs only the standard library, because it must work on incomplete installations.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import stat
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import packtrain
from packtrain.accelerate.toolchain import find_compilers

# The same as in pyproject.toml, which an installed package does not have; a test compares them.
OLDEST_PYTHON = (3, 11)
CORE = (
    "torch>=2.10",
    "numpy>=2",
    "gymnasium>=1.2,<2",
    "gin-config==0.5.0",
    "safetensors>=0.6",
    "rich>=13",
    "psutil",
    "optree",
)
EXTRAS: dict[str, tuple[str, ...]] = {
    "atari": ("ale-py>=0.12",),
    "mujoco": ("mujoco>=3.3", "imageio"),
    "box2d": ('box2d>=2.3.10; python_version < "3.14"', "pygame-ce"),
    "numba": ("numba",),
    "envpool": ("envpool",),
    "ray": ("ray>=2.52",),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "trackio": ("trackio",),
    "demonstrations": ("h5py",),
    "convert": ("pyyaml>=6",),
    "sweep": ("optuna>=5",),
    "slurm": ("submitit>=1.5",),
    "plot": ("pillow",),
    "video": ("pillow", "imageio-ffmpeg", "pygame-ce"),
}

COMMANDS: dict[str, tuple[str, ...]] = {
    "train, eval, report, watch, export, audit": (),
    "train --runtime cluster, node": ("ray",),
    "train with Atari games": ("atari",),
    "train with MuJoCo": ("mujoco",),
    "train with Box2D": ("box2d",),
    "train --track tensorboard": ("tensorboard",),
    "train --track wandb": ("wandb",),
    "train --track mlflow": ("mlflow",),
    "train --track trackio": ("trackio",),
    "eval --video": ("video",),
    "convert FILE.yaml": ("convert",),
    "record, train --demonstrations": ("demonstrations",),
}
"""Extras that commands need beside the core libraries."""
GIB = 2**30
_ENOUGH_SHARED_MEMORY = 1 * GIB
_ENOUGH_DISK = 5 * GIB
_ENOUGH_OPEN_FILES = 1024


class Check(NamedTuple):
    """One line of the report. A "missing" extra is harmless; a "missing" core library is not."""

    name: str
    status: str  # "ok", "warn" or "missing"
    text: str


def report() -> list[Check]:
    """Return all checks of this machine. Imports torch, which takes seconds."""
    return [
        check_python(sys.version_info[:3]),
        Check("packtrain", "ok", f"{packtrain.__version__} in {Path(packtrain.__file__).parent}"),
        *(check_core(requirement) for requirement in CORE),
        check_devices(),
        *(check_extra(extra) for extra in EXTRAS),
        check_cores(),
        check_memory(),
        check_shared_memory(),
        check_open_files(),
        check_compilers(),
        check_ray_auth(),
        check_disk(),
        *(check_command(command, extras) for command, extras in COMMANDS.items()),
    ]


def run_doctor(as_json: bool = False, address: str | None = None) -> int:
    """Print the report; return 1 if Python or a core library is missing or has an unsuitable version, otherwise 0.

    Args:
      as_json: whether to print one JSON object.
      address: HEAD:PORT of a cluster whose nodes are checked too; ClusterError if it cannot be joined.
    """
    cluster = check_cluster(address) if address else []
    checks = report() + cluster
    bad = [check for check in checks if check.status == "missing" and (_required(check.name) or check in cluster)]
    if as_json:
        print(json.dumps({"ok": not bad, "checks": [check._asdict() for check in checks]}, indent=2))
    else:
        commands = [check for check in checks if check.name.startswith("`")]
        for table in ([check for check in checks if check not in commands], commands):
            width = max(len(check.name) for check in table)
            for check in table:
                print(f"{check.status:<7}  {check.name:<{width}}  {check.text}")
            print(end="\n" * (table is not commands))
        warned = sum(check.status == "warn" for check in checks)
        counts = f"{warned} warning" + "s" * (warned != 1)
        if bad:
            print(f"\npacktrain cannot run here ({counts}). Needed: {', '.join(check.name for check in bad)}")
        else:
            print(f"\npacktrain can run here ({counts}).")
    return 1 if bad else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the doctor as `python -m packtrain.doctor [--json]`, which works if the command line itself cannot start."""
    parser = argparse.ArgumentParser(
        prog="packtrain doctor", description="Say what this machine has and what is missing."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return run_doctor(as_json=parser.parse_args(argv).json)


# Libraries


def check_python(version: tuple[int, ...]) -> Check:
    """Check the Python version."""
    text = f"{'.'.join(map(str, version))} on {platform.system()} {platform.machine()}"
    if version[:2] < OLDEST_PYTHON:
        return Check(
            "Python", "missing", f"{text}: too old, install Python {'.'.join(map(str, OLDEST_PYTHON))} or newer"
        )
    return Check("Python", "ok", text)


def check_core(requirement: str) -> Check:
    """Check a library that packtrain always needs."""
    name = _name(requirement)
    version = _version(name)
    if version is None:
        return Check(name, "missing", f"not installed; try: pip install '{requirement}'")
    if not satisfies(version, requirement):
        return Check(name, "missing", f"{version} does not do; try: pip install '{requirement}'")
    return Check(name, "ok", version)


def check_extra(extra: str) -> Check:
    """Check the libraries of an optional extra, without those that do not exist for this Python version."""
    name = f"extra {extra}"
    wanted = [requirement.partition(";")[0] for requirement in EXTRAS[extra] if is_for_python(requirement)]
    found = {_name(requirement): _version(_name(requirement)) for requirement in wanted}
    lacking = [requirement for requirement in wanted if found[_name(requirement)] is None]
    if lacking:
        return Check(name, "missing", f"pip install 'packtrain[{extra}]'")
    old = [requirement for requirement in wanted if not satisfies(found[_name(requirement)] or "", requirement)]
    text = ", ".join(f"{library} {version}" for library, version in found.items())
    if old:
        return Check(name, "warn", f"{text}; needs {', '.join(old)}: pip install --upgrade 'packtrain[{extra}]'")
    return Check(name, "ok", text)


def check_command(command: str, extras: Sequence[str]) -> Check:
    """Check that the core libraries and these extras are installed; the text names what to install.

    Args:
      command: as people type it.
      extras: that it needs.
    """
    wrong = [_name(requirement) for requirement in CORE if check_core(requirement).status != "ok"]
    missing = [extra for extra in extras if check_extra(extra).status != "ok"]
    if not wrong and not missing:
        return Check(f"`{command}`", "ok", "everything is there")
    packages = [*wrong, *(f"'packtrain[{extra}]'" for extra in missing)]
    return Check(f"`{command}`", "missing", f"pip install {' '.join(packages)}")


def is_for_python(requirement: str, python: tuple[int, ...] = sys.version_info[:2]) -> bool:
    """Return whether a requirement's marker, `; python_version < "X.Y"` if it has one, applies to a Python version."""
    marker = re.search(r'; python_version < "([\d.]+)"$', requirement)
    return marker is None or python < _numbers(marker[1])


def satisfies(version: str, requirement: str) -> bool:
    """Return whether a version meets a requirement like "gymnasium>=1.2,<2". Only the numbers of a version count."""
    have = _numbers(version)
    for sign, bound in re.findall(r"(>=|==|<)\s*([\w.+]+)", requirement):
        want = _numbers(bound)
        size = max(len(have), len(want))
        left, right = have + (0,) * (size - len(have)), want + (0,) * (size - len(want))
        if not {">=": left >= right, "==": left == right, "<": left < right}[sign]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    """Return (2, 13, 0) for 2.13.0+cpu or 2.13.0rc1."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _name(requirement: str) -> str:
    return re.split(r"[<>=\[ ]", requirement, maxsplit=1)[0]


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _required(name: str) -> bool:
    return name in {"Python", "devices", *map(_name, CORE)}


# The machine


def check_devices() -> Check:
    """Check the devices of torch. A torch that cannot be imported counts as missing."""
    if _version("torch") is None:
        return Check("devices", "warn", "unknown without torch")
    try:
        with warnings.catch_warnings(record=True) as caught:  # an outdated driver is reported as a warning
            warnings.simplefilter("always")
            torch = importlib.import_module("torch")
            texts = [f"cpu ({torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads)"]
            available = torch.cuda.is_available()
            for index in range(torch.cuda.device_count() if available else 0):
                device = torch.cuda.get_device_properties(index)
                texts.append(f"cuda:{index} ({device.name}, {device.total_memory / GIB:.0f} GiB)")
    except Exception as error:  # the rest of the report is needed whatever a broken installation raises
        reason = str(error).strip().split("\n")[0]
        return Check("devices", "missing", f"torch does not work here ({type(error).__name__}: {reason}); reinstall it")
    if not available and Path("/dev/nvidia0").exists():
        reason = str(caught[0].message).strip().split("\n")[0] if caught else f"torch is built for {_built_for(torch)}"
        return Check("devices", "warn", f"{', '.join(texts)}; there is a GPU that torch cannot use: {reason}")
    return Check("devices", "ok", ", ".join(texts))


def _built_for(torch) -> str:
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU only"


def check_cores() -> Check:
    """Check the number of processors that this process may use, by affinity and by the container's quota."""
    total = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    text = f"{usable} usable of {total}"
    quota = _cpu_quota(Path("/sys/fs/cgroup/cpu.max"))
    if quota is not None and quota < usable:
        return Check("cores", "warn", f"{text}, but the container may use {quota:g} at a time")
    return Check("cores", "ok", text)


def _cpu_quota(path: Path) -> float | None:
    """Return a control group's limit in processors; None: no limit."""
    try:
        quota, period = path.read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # not Linux, not version 2, or "max"
        return None


def check_memory() -> Check:
    """Check the size of main memory: the machine's, or the container's if that is less."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # no sysconf on this system
        try:
            total = importlib.import_module("psutil").virtual_memory().total
        except ImportError:
            return Check("memory", "warn", "unknown without psutil")
    text = f"{total / GIB:.1f} GiB"
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):
        return Check("memory", "ok", text)
    return Check("memory", "ok", f"{limit / GIB:.1f} GiB (the container's limit, of {text})" if limit < total else text)


def check_shared_memory(folder: str = "/dev/shm", usage: Callable = shutil.disk_usage) -> Check:
    """Check the size of shared memory, through which processes exchange experience."""
    name = folder
    if not os.path.isdir(folder):
        return Check(name, "ok", "not used on this system")
    space = usage(folder)
    text = f"{space.total / GIB:.2f} GiB, {space.free / GIB:.2f} GiB free"
    if space.total < _ENOUGH_SHARED_MEMORY:
        return Check(name, "warn", f"{text}: less than 1 GiB; in a container try --shm-size=4g")
    return Check(name, "ok", text)


def check_open_files(limits: tuple[int, int] | None = None) -> Check:
    """Check how many files and sockets one process may open."""
    if limits is None:
        try:
            import resource
        except ImportError:  # Windows
            return Check("open files", "ok", "no limit of this kind on this system")
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limits[0] == resource.RLIM_INFINITY:
            return Check("open files", "ok", "no limit")
    soft, hard = limits
    if soft < _ENOUGH_OPEN_FILES:
        return Check("open files", "warn", f"limit {soft} is below {_ENOUGH_OPEN_FILES}; try: ulimit -n {hard}")
    return Check("open files", "ok", f"limit {soft}")


def check_compilers() -> Check:
    """Check for the C and C++ compilers that torch.compile needs."""
    c, cxx = find_compilers()
    lacking = [language for language, program in (("C", c), ("C++", cxx)) if program is None]
    if lacking:
        text = f"no {' and no '.join(lacking)} compiler: torch.compile will not work; install gcc and g++"
        return Check("compiler", "warn", text)
    if Path("/dev/nvidia0").exists() and importlib.util.find_spec("triton") is None:
        return Check("compiler", "warn", f"{c}, {cxx}; no Triton: torch.compile will not work on the GPU")
    return Check("compiler", "ok", f"{c}, {cxx}")


def check_ray_auth() -> Check:
    """Check whether a Ray cluster started here would require a token. The token itself is not read."""
    name = "Ray auth"
    if _version("ray") is None:
        return Check(name, "ok", "Ray is not installed; only --runtime cluster needs it")
    mode = os.environ.get("RAY_AUTH_MODE", "")
    if mode.lower() != "token":
        given = f"RAY_AUTH_MODE={mode}" if mode else "RAY_AUTH_MODE is not set"
        text = f"{given}: who reaches a cluster's ports can run code on it; set RAY_AUTH_MODE=token on every node"
        return Check(name, "warn", text)
    if os.environ.get("RAY_AUTH_TOKEN"):
        return Check(name, "ok", "token, from RAY_AUTH_TOKEN")
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    try:
        mode_bits = path.stat().st_mode
    except OSError:
        return Check(name, "warn", f"token wanted, but there is none at {path}; try: ray get-auth-token --generate")
    if os.name == "posix" and mode_bits & (stat.S_IRWXG | stat.S_IRWXO):
        return Check(name, "warn", f"others on this machine can read the token; try: chmod 600 {path}")
    return Check(name, "ok", f"token, from {path}")


def check_cluster(address: str) -> list[Check]:
    """Check the nodes of a cluster: roles, processors, object stores and versions."""
    from packtrain.runtime.cluster.connection import Cluster, overflow
    from packtrain.runtime.cluster.version_check import inspect

    cluster = Cluster.connect(address)
    try:
        found = inspect(cluster)
        full = overflow(cluster.ray)
    finally:
        cluster.close()
    nodes = [each.node for each in found]
    text = f"{len(nodes)} node{'s' * (len(nodes) != 1)}, {sum(node.cpus for node in nodes):g} processors"
    checks = [Check(f"cluster {address}", "warn" if full else "ok", full or f"{text}, a token is asked for")]
    for node, trouble in found:
        roles = ", ".join(sorted(node.roles)) or "no workers"
        offers = f"{node.cpus:g} processors, {node.gpus:g} GPUs, object store {node.store_bytes / GIB:.2f} GiB"
        checks.append(Check(f"node {node.address}", "missing" if trouble else "ok", trouble or f"{offers}; {roles}"))
    return checks


def check_disk(folder: str = ".", usage: Callable = shutil.disk_usage) -> Check:
    """Check the disk space for run folders in the current folder."""
    try:
        free = usage(folder).free
    except OSError as error:
        return Check("disk", "warn", f"the working folder cannot be asked: {error.strerror}")
    text = f"{free / GIB:.1f} GiB free in {os.path.abspath(folder)}"
    if free < _ENOUGH_DISK:
        return Check("disk", "warn", f"{text}: checkpoints and replay may fill it")
    return Check("disk", "ok", text)


if __name__ == "__main__":
    sys.exit(main())
