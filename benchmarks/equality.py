"""Compare two checkouts of packtrain: short serial runs of every family must leave equal checkpoints and metric rows.

    python benchmarks/equality.py OLD NEW [--only WORD]... [--jobs 2] [--resume]

OLD and NEW are folders that hold a `packtrain` package. Each case runs in both with the same seed; then every tensor,
generator and counter of the newest checkpoints is compared, and every metric row but for times and rates. With
`--resume` the run of NEW stops half-way and is resumed. Names of state that changed on purpose are listed in KEY_MAP.
The exit code is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

PLAN = "--n_envs 4 --n_epochs 2"
LEARN = f"{PLAN} --n_steps_per_epoch 5 --batch_size 8"
MODEL = "--model_n_steps_per_epoch 3 --model_hidden_sizes '(16, 16)' --model_batch_size 32 --members 4"
TBV = f"{PLAN} --n_model_pretrain_epochs 1 --n_precollect_epochs 2 --episode_time_limit 25 {MODEL}"
CASES: dict[str, str] = {
    "impala_catch": "impala/catch --total_steps 8000 --eval_every 4000",
    "impala_lstm": "abilities/memory --total_steps 8000",
    "impala_continuous": "impala/point_mass --total_steps 8000",
    "impala_gym": "impala/gym --env Acrobot-v1 --total_steps 4000",
    "impala_two_groups": "impala/cartpole --total_steps 6000 --config 'Streams.groups=2'",
    "impala_atari": "impala/pong --num_actors 4 --batch_size 4 --total_steps 640 --log_every 160 --eval_every 0",
    "misspecification": "misspecification/counterfeit --total_steps 6000 --eval_every 0",
    "ppo": "tbv/ppo_hanoi --total_steps 16000 --eval_every 0",
    "rnd": "tbv/rnd_hanoi --total_steps 8000 --eval_every 0",
    "count": "tbv/count_hanoi --total_steps 8000 --eval_every 0",
    "shooting": f"planning/shooting_random_cartpole {PLAN} --episode_time_limit 20",
    "bandit": f"planning/bandit_random_cartpole {PLAN} --episode_time_limit 20",
    "cem": "planning/cem_half_cheetah --n_epochs 1 --episode_time_limit 3",
    "best_first": f"planning/bfs_hanoi {PLAN} --episode_time_limit 60",
    "mcts_hanoi": f"planning/mcts_hanoi {LEARN} --episode_time_limit 20 --eval_period 1 --n_precollect_epochs 1",
    "mcts_sokoban": f"planning/mcts_sokoban {LEARN} --episode_time_limit 6 --n_passes 5 --n_precollect_epochs 1",
    "mcts_sokoban_td": f"planning/deterministic_mcts_td_sokoban {LEARN} --episode_time_limit 6 --n_passes 4",
    "shoot_tree_search": f"planning/sts_sokoban {LEARN} --episode_time_limit 4 --n_passes 3",
    "tbv_best_first": f"tbv/bfs_hanoi_tbv {TBV} --disks 4",
    "tbv_mcts": f"tbv/mcts_hanoi_tbv {TBV} --n_steps_per_epoch 5 --n_passes 4",
    "tbv_two_seeds": f"tbv/bfs_hanoi_tbv {TBV} --disks 4 --num_seeds 2",
    "ddpg": "steve/ddpg_pendulum --total_steps 1200 --eval_every 600 --eval_episodes 2",
    "ddpg_n_step": "steve/ddpg_pendulum --total_steps 1200 --n_step 3",
    "td3": "steve/ddpg_pendulum --core td3 --policy_delay 2 --total_steps 1200",
    "ddpg_paper": "steve/ddpg_halfcheetah_paper --env Pendulum-v1 --num_actors 1 --warm_up 300 --total_steps 700",
    "mve_td3": "steve/mve_tdlambda_pendulum --core td3 --stochastic False --total_steps 500",
    "steve_sac": "steve/steve_pendulum --core sac --stochastic True --policy_delay 2 --total_steps 600",
    "mbpo": "steve/mbpo_pendulum --total_steps 560",
    "mve_mean": "steve/mve_mean_pendulum --total_steps 500",
    "steve_cov": "steve/steve_cov_pendulum --total_steps 500",
    "steve_paper": "steve/steve_halfcheetah_paper --env Pendulum-v1 --num_actors 1 --warm_up 300 --pretrain 300"
    " --total_steps 500",
    "mve": "steve/mve_tdk_pendulum --total_steps 700",
    "steve": "steve/steve_pendulum --total_steps 700",
    "sac": "steve/sac_pendulum --total_steps 700",
    "pets": "steve/pets_pendulum --total_steps 500",
    "steve_two_seeds": "steve/steve_pendulum --total_steps 600 --num_seeds 2",
    "dqn": "dqn/catch --total_steps 3000",
    "r2d2": "r2d2/catch --total_steps 3000 --eval_every 1500",
    "r2d2_atari": "r2d2/atari --num_actors 2 --warm_up 300 --batch_size 2 --sequence_length 8 --burn_in 4 --stride 4"
    " --replay_size 2000 --lstm_size 32 --total_steps 420 --updates_per_step 0.1",
    "ngu": "ngu/deep_sea --total_steps 2500",
    "ngu_key_door": "ngu/key_door --total_steps 2000",
}
KEY_MAP: dict[str, str] = {}  # old name of a state entry -> new name
UNEQUAL_BY_NATURE = {"wall_s", "metrics_bytes", "identity", "values", "groups"}  # groups: since 0.2
RATES = ("_second", "_busy", "rss_mb", "gpu_mb", "wall_s", "time", "secs")


def run(tree: Path, case: str, folder: Path, more: str = "") -> str | None:
    """Train a case with the package in `tree`; the last lines of output if it failed."""
    command = f"{sys.executable} -m packtrain train {CASES[case]} {more}"
    command += f" --runtime serial --seed 3 --output_dir {folder}"
    environment = {**os.environ, "PYTHONPATH": str(tree.resolve()), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, shell=True, env=environment, cwd=folder.parent, capture_output=True, text=True)
    return None if done.returncode == 0 else "\n".join((done.stdout + done.stderr).splitlines()[-5:])


def state_of(folder: Path) -> dict[str, Any]:
    """Every leaf of the newest checkpoint by its path."""
    newest = max((p for p in (folder / "checkpoints").iterdir() if p.name.isdecimal()), key=lambda p: int(p.name))
    leaves: dict[str, Any] = {}

    def walk(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                if name not in UNEQUAL_BY_NATURE:
                    walk(f"{path}/{name}", inner)
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                walk(f"{path}/{index}", inner)
        else:
            leaves[path] = value

    walk("state", json.loads((newest / "state.json").read_text()))
    for file in sorted(newest.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            leaves[f"{file.stem}:{name}"] = tensor
    return leaves


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Metric rows without times and rates."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not any(word in k for word in RATES)} for row in rows]


def equal(a: Any, b: Any) -> bool:
    """Equality to the bit; NaN equals NaN."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape
        return same and a.numpy().tobytes() == b.numpy().tobytes()
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b):
        return True
    return type(a) is type(b) and bool(a == b)


def differences(old: Path, new: Path) -> list[str]:
    """What differs between two run folders, a line each."""
    before, after = state_of(old), state_of(new)
    before = {KEY_MAP.get(name, name): value for name, value in before.items()}
    found = [f"only old: {name}" for name in sorted(set(before) - set(after))]
    found += [f"only new: {name}" for name in sorted(set(after) - set(before))]
    found += [f"differs: {name}" for name in sorted(set(before) & set(after)) if not equal(before[name], after[name])]
    rows = rows_of(old), rows_of(new)
    if len(rows[0]) != len(rows[1]):
        found.append(f"{len(rows[0])} rows and {len(rows[1])} rows")
    for number, (a, b) in enumerate(zip(*rows, strict=False)):
        found += [
            f"row {number}: {k}: {a.get(k)} / {b.get(k)}" for k in sorted({*a, *b}) if not equal(a.get(k), b.get(k))
        ]
    return found


def compare(case: str, old: Path, new: Path) -> tuple[str, list[str]]:
    """Run a case in both trees and compare; pairs of folders for several seeds."""
    folder = Path(tempfile.mkdtemp(prefix=f"equality_{case}_"))
    try:
        for tree, name in ((old, "old"), (new, "new")):
            failed = run(tree, case, folder / name)
            if failed is not None:
                return case, [f"{name} failed: {failed}"]
        seeds = sorted(p.name for p in (folder / "old").glob("seed_*")) or [""]
        return case, [line for seed in seeds for line in differences(folder / "old" / seed, folder / "new" / seed)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Compare all cases and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--only", action="append", default=[], help="part of a case's name; may repeat")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    arguments = parser.parse_args()
    chosen = [case for case in CASES if not arguments.only or any(word in case for word in arguments.only)]
    unequal = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for case, found in pool.map(lambda case: compare(case, arguments.old, arguments.new), chosen):
            unequal += bool(found)
            print(f"{case:20} {'equal' if not found else f'{len(found)} differences'}", flush=True)
            for line in found[:8]:
                print(f"    {line}", flush=True)
    print(f"{len(chosen) - unequal} of {len(chosen)} cases equal")
    return 1 if unequal else 0


if __name__ == "__main__":
    sys.exit(main())
