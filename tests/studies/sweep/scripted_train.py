"""A stand-in for `packtrain train` that needs milliseconds, and a sweep over it, for tests of sweeps.

As a program: `scripted_train.py train WORDS...` behaves as the file PLAN in the sweep's folder says for the run and its
start, and `scripted_train.py sweep ROOT POINTS SEEDS [ADDRESS]` runs a sweep of such runs, here or on a cluster.
"""

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

PLAN = "plan.json"


def train(words):
    given = dict(word.lstrip("-").split("=", 1) for word in words if "=" in word)
    folder = Path(given["output_dir"])
    folder.mkdir(parents=True, exist_ok=True)
    lock = open(folder / ".lock", "a")  # noqa: SIM115
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print("packtrain: error: the folder is in use")
        return 2
    with open(folder / "starts", "a") as file:
        file.write("x")
    start = (folder / "starts").stat().st_size - 1
    (folder / "config.gin").write_text(f"x = {given.get('x', 0)}\n")
    plan = json.loads((folder.parents[2] / PLAN).read_text())
    name = f"{folder.parent.name}/{folder.name}"
    behaviour = (plan.get(name) or ["ok"])[min(start, len(plan.get(name, ["ok"])) - 1)]
    value = float(given.get("x", 0)) + int(given["seed"])
    write_rows(folder, value, 10 if behaviour == "ok" else 5)
    if behaviour == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "hang":
        signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
        while True:
            time.sleep(0.02)
    if behaviour.startswith("exit"):
        print("some line\npacktrain: error: it went wrong\nin the end")
        return int(behaviour.removeprefix("exit"))
    return 0


def write_rows(folder, value, count):
    """Write evaluations at steps 100, 200, …, whose returns rise to the value."""
    rows = [
        {"step": 100 * k, "wall_s": k, "kind": "eval", "return_mean": value * k / 10, "episodes": 4}
        for k in range(1, count + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def command(words):
    """What stands for `places.train_command`."""
    return (sys.executable, "-S", "-E", __file__, "train", *words)


def request(root, points, seeds, **more):
    """A sweep over x = 0, 1, …"""
    from packtrain.studies.sweep.points import Point
    from packtrain.studies.sweep.session import SweepRequest, Where

    about = {"kind": "grid", "name": "scripted", "configs": ["none"], "varied_names": ["x"], "space": None}
    found = [Point(f"x={k}", {"x": str(k)}, ("none", f"--x={k}")) for k in range(points)]
    more.setdefault("where", Where(jobs=2))
    return SweepRequest(Path(root), about, found, seeds, **more)


def sweep(root, points, seeds, address=None):
    from packtrain.studies.sweep import schedule, session

    schedule.train_command = command
    where = session.Where(on="cluster", address=address, cpus=2) if address else session.Where(jobs=2)
    found = request(root, int(points), int(seeds), where=where)
    return session.run_sweep(found, lambda line: print(line, flush=True))


if __name__ == "__main__":
    sys.exit(train(sys.argv[2:]) if sys.argv[1] == "train" else sweep(*sys.argv[2:]))
