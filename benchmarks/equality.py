"""Compare two checkouts of packtrain: short serial runs of every family must leave equal checkpoints and metric rows.

    python benchmarks/equality.py OLD NEW [--only WORD]... [--jobs 2]

OLD and NEW are folders that hold a `packtrain` package. Each case runs in both with the same seed; then every tensor,
generator and counter of the newest checkpoints is compared, and every metric row but for times and rates. Names of
state that changed on purpose are listed in KEY_MAP. The exit code is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from packtrain.studies.digest import differences

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
    "ppo_cartpole": "ppo/cartpole --total_steps 8000 --eval_every 4000",
    "ppo_pendulum": "ppo/pendulum --total_steps 8192 --eval_every 0",
    "ppo_gym": "ppo/gym --env Acrobot-v1 --total_steps 4096 --eval_every 0",
    "dqn_gym": "dqn/gym --env Acrobot-v1 --warm_up 500 --total_steps 1000 --eval_every 0",
    "sac_gym": "sac/gym --env Pendulum-v1 --warm_up 200 --total_steps 500 --eval_every 0",
    "td3_gym": "td3/gym --env Pendulum-v1 --warm_up 200 --total_steps 500 --eval_every 0",
    "ddpg_gym": "ddpg/gym --env Pendulum-v1 --warm_up 200 --total_steps 500 --eval_every 0",
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
    "frontier": f"tbv/frontier_hanoi {PLAN} --disks 4 --episode_time_limit 100",
    "mcts_atari": "planning/mcts_atari --n_envs 2 --n_epochs 1 --n_steps_per_epoch 2 --batch_size 4 --n_passes 2"
    " --episode_time_limit 2 --eval_episodes 1",
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
    "agent57": "exam/agent57_memory --warm_up 500 --total_steps 2000",
    "ngu_key_door": "ngu/key_door --total_steps 2000",
}
KEY_MAP: dict[str, str] = {}  # old name of a state entry -> new name


def run(tree: Path, case: str, folder: Path, more: str = "") -> str | None:
    """Train a case with the package in `tree`; the last lines of output if it failed."""
    command = f"{sys.executable} -m packtrain train {CASES[case]} {more}"
    command += f" --runtime serial --seed 3 --output_dir {folder}"
    environment = {**os.environ, "PYTHONPATH": str(tree.resolve()), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, shell=True, env=environment, cwd=folder.parent, capture_output=True, text=True)
    return None if done.returncode == 0 else "\n".join((done.stdout + done.stderr).splitlines()[-5:])


def compare(case: str, old: Path, new: Path) -> tuple[str, list[str]]:
    """Run a case in both trees and compare; pairs of folders for several seeds."""
    folder = Path(tempfile.mkdtemp(prefix=f"equality_{case}_"))
    try:
        for tree, name in ((old, "old"), (new, "new")):
            failed = run(tree, case, folder / name)
            if failed is not None:
                return case, [f"{name} failed: {failed}"]
        seeds = sorted(p.name for p in (folder / "old").glob("seed_*")) or [""]
        return case, [
            line for seed in seeds for line in differences(folder / "old" / seed, folder / "new" / seed, KEY_MAP)
        ]
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
