"""Write the records of docs/results: what the pages say about each result, and digests of its first updates.

    python benchmarks/result_records.py [NAME]... [--digests]

The table below holds only what the pages of docs/ say; what they do not say is absent. Measured data in the files stay
as they are. With `--digests` the first updates are run and their digests stored; without, stored ones are kept.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from packtrain.files import write_whole
from packtrain.studies import digest, verify

FOLDER = Path("docs/results")
CPU = "2 cores of a shared AMD EPYC machine"
BUSY = "2 cores that other work ran on"
H200 = "one NVIDIA H200, 16 cores"
V_CPU = {"packtrain": "0.1.0 under development", "python": "3.11.7", "torch": "2.13.0", "gymnasium": "1.4.0"}
V_GPU = {"packtrain": "0.1.0 under development", "python": "3.12", "torch": "2.11.0", "gymnasium": "1.4.0"}
V_TBV = {"packtrain": "0.1.0 under development", "python": "3.12", "torch": "2.11", "numba": "0.68.1"}
TRAIN = "packtrain train"

SMALL_MODEL = {"warm_up": 300, "pretrain": 20}
SMALL_ATARI = {"num_actors": 4, "batch_size": 4}
SMALL_R2D2 = {
    "num_actors": 4, "warm_up": 400, "batch_size": 2, "sequence_length": 10, "burn_in": 4, "stride": 5,
    "replay_size": 2000,
}  # fmt: skip
SMALL_TBV = {
    "n_envs": 4, "episode_time_limit": 100, "n_model_precollect_episodes": 8, "n_model_pretrain_epochs": 1,
    "model_n_steps_per_epoch": 4, "n_precollect_epochs": 1, "n_epochs": 1, "model_batch_size": 128,
}  # fmt: skip


def _tbv(title: str, flags: str, seeds: list[int], **knobs: Any) -> dict[str, Any]:
    """Return the record of a table of trust-but-verify on the Tower of Hanoi with 7 disks."""
    start = f"{TRAIN} tbv/bfs_hanoi --n_epochs 0 --n_precollect_epochs 0 --seed 0 --device cuda --output_dir pre/seed_0"
    run = f"{TRAIN} tbv/bfs_hanoi_tbv --num_seeds {len(seeds)} --start_from pre --until_solved True"
    return {
        "title": title,
        "page": "tbv.md",
        "before": "0.2",
        "commands": [start.replace("seed_0", f"seed_{k}").replace("--seed 0", f"--seed {k}") for k in seeds]
        + [f"{run} --total_steps 2524000 --device cuda{flags}"],
        "seeds": seeds,
        "versions": V_TBV,
        "machine": f"{H200}, up to 16 processes at once",
        "date": "2026-11-15",
        "runs": [{"config": "tbv/bfs_hanoi_tbv", "knobs": knobs, "reduced": SMALL_TBV}],
    }


RECORDS: dict[str, dict[str, Any]] = {
    "catch": {
        "title": "IMPALA on Catch",
        "page": "catch.md",
        "before": "0.2",
        "commands": [f"{TRAIN} impala/catch --num_seeds 5 --output_dir runs/catch"],
        "seeds": [0, 1, 2, 3, 4],
        "versions": {**V_CPU, "packtrain": "0.1.0", "numpy": "2.4.6"},
        "machine": f"{CPU}, 24 GiB",
        "date": "2026-11-15",
        "runs": [{"config": "impala/catch", "updates": 40}],
    },
    "atari": {
        "title": "IMPALA on Pong, Breakout and River Raid",
        "page": "atari.md",
        "before": "0.2",
        "commands": [
            f"{TRAIN} impala/pong --device cuda --seed 1",
            f"{TRAIN} impala/pong_deep --device cuda --seed 1 --total_steps 7000000 --config 'Streams.groups = 4'",
            f"{TRAIN} impala/breakout --device cuda --seed 1 --total_steps 7000000",
            f"{TRAIN} impala/riverraid --reward_clipping abs_one --reward_scale 1 --device cuda --seed 1"
            " --total_steps 12000000",
        ],
        "seeds": [1],
        "versions": {**V_GPU, "packtrain": "0.1.0", "ale-py": "0.12.1"},
        "machine": "one NVIDIA H200, 16 cores of an Intel Xeon on a shared host",
        "date": "2026-11-15",
        "runs": [
            {"config": "impala/pong", "seed": 1, "reduced": SMALL_ATARI, "updates": 3},
            {"config": "impala/breakout", "seed": 1, "reduced": SMALL_ATARI, "updates": 3},
        ],
    },
    "pong_cpu": {
        "title": "IMPALA on Pong on two cores",
        "page": "atari.md",
        "before": "0.2",
        "commands": [
            f"{TRAIN} impala/pong --num_actors 16 --batch_size 4 --learning_rate 0.0007 --lr_schedule constant --seed 1"
        ],
        "seeds": [1],
        "versions": {**V_CPU, "packtrain": "0.1.0", "ale-py": "0.12.1"},
        "machine": f"{CPU}, 24 GiB",
        "date": "2026-11-15",
        "runs": [
            {
                "config": "impala/pong",
                "seed": 1,
                "knobs": {"batch_size": 4, "learning_rate": 0.0007, "lr_schedule": "constant"},
                "reduced": {"num_actors": 4},
                "updates": 3,
            }
        ],
    },
    "memory_catch": {
        "title": "R2D2 and DQN on Catch whose ball is seen once",
        "page": "recurrent_replay.md",
        "before": "0.2",
        "commands": [f"{TRAIN} {name} --seed {seed}" for name in ("r2d2/catch", "dqn/catch") for seed in range(3)],
        "seeds": [0, 1, 2],
        "versions": V_CPU,
        "machine": BUSY,
        "date": "2026-11-16",
        "runs": [{"config": "r2d2/catch", "updates": 60}, {"config": "dqn/catch", "updates": 60}],
    },
    "deep_sea": {
        "title": "NGU and R2D2 on DeepSea",
        "page": "recurrent_replay.md",
        "before": "0.2",
        "commands": [
            f"{TRAIN} {name} --seed {seed}" for name in ("ngu/deep_sea", "r2d2/deep_sea") for seed in range(3)
        ],
        "seeds": [0, 1, 2],
        "versions": V_CPU,
        "machine": BUSY,
        "date": "2026-11-16",
        "runs": [{"config": "ngu/deep_sea", "updates": 60}, {"config": "r2d2/deep_sea", "updates": 40}],
    },
    "deep_sea_ablations": {
        "title": "What decides whether NGU finds DeepSea's treasure",
        "page": "recurrent_replay.md",
        "commands": [
            f"{TRAIN} ngu/deep_sea --runtime serial --size {size} --sequence_length {size} --stride {size}"
            f" --seed {seed}"
            for size in (12, 16, 20)
            for seed in range(3)
        ],
        "seeds": [0, 1, 2],
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "machine": BUSY,
        "date": "2026-11-19",
        "runs": [
            {
                "config": "ngu/deep_sea",
                "knobs": {"size": 12, "sequence_length": 12, "stride": 12},
                "updates": 60,
            }
        ],
    },
    "r2d2_pong": {
        "title": "R2D2 on Pong, on a GPU",
        "page": "recurrent_replay.md",
        "before": "0.2",
        "commands": [f"{TRAIN} r2d2/pong --device cuda --eval_every 1500000 --eval_episodes 16 --seed 0"],
        "seeds": [0],
        "versions": V_GPU,
        "machine": H200,
        "date": "2026-11-16",
        "runs": [{"config": "r2d2/pong", "reduced": SMALL_R2D2, "updates": 3}],
    },
    "r2d2_breakout": {
        "title": "Two trials of R2D2 on Breakout, both short of their target",
        "page": "recurrent_replay.md",
        "commands": [
            f"{TRAIN} r2d2/atari --env BreakoutNoFrameskip-v4 --device cuda --seed 1 --eval_epsilon 0.01"
            " --checkpoint_secs 100000 --log_every 100000",
            f"{TRAIN} r2d2/pong --env BreakoutNoFrameskip-v4 --device cuda --seed 1 --eval_epsilon 0.01"
            " --checkpoint_secs 100000 --log_every 100000 --batch_size 64 --sequence_length 20 --burn_in 10 --stride 10"
            " --updates_per_step 0.016",
        ],
        "seeds": [1],
        "versions": {
            "packtrain": "0.2 under development",
            "python": "3.12.3",
            "torch": "2.11.0",
            "ale-py": "0.12.1",
            "gymnasium": "1.4.0",
        },
        "machine": H200,
        "date": "2026-11-18",
        "runs": [
            {
                "config": "r2d2/pong",
                "seed": 1,
                "knobs": {"env": "BreakoutNoFrameskip-v4", "updates_per_step": 0.016},
                "reduced": SMALL_R2D2,
                "updates": 3,
            }
        ],
    },
    "sokoban": {
        "title": "MCTS with a learned value on Sokoban 8 x 8",
        "page": "planning.md",
        "before": "0.2",
        "commands": [f"{TRAIN} planning/mcts_sokoban_8x8 --seed 1"],
        "seeds": [1],
        "versions": {**V_CPU, "packtrain": "0.1.0", "numpy": "2.4.6"},
        "machine": f"{CPU}, 24 GiB",
        "date": "2026-11-15",
        "runs": [
            {
                "config": "planning/mcts_sokoban_8x8",
                "seed": 1,
                "reduced": {"n_envs": 8, "episode_time_limit": 6, "n_epochs": 1, "n_precollect_epochs": 1}
                | {"eval_episodes": 2},
                "updates": 10,
            }
        ],
    },
    "pendulum": {
        "title": "STEVE and DDPG on Pendulum",
        "page": "value_expansion.md",
        "before": "0.2",
        "commands": [
            f"{TRAIN} steve/steve_pendulum --num_seeds 5",
            f"{TRAIN} steve/ddpg_pendulum --num_seeds 5",
            f"{TRAIN} steve/ddpg_pendulum --num_seeds 5 --n_step 3",
        ],
        "seeds": [0, 1, 2, 3, 4],
        "versions": V_CPU,
        "machine": CPU,
        "date": "2026-11-17",
        "runs": [
            {"config": "steve/steve_pendulum", "reduced": {"pretrain": 100}, "updates": 300},
            {"config": "steve/ddpg_pendulum", "updates": 200},
            {"config": "steve/ddpg_pendulum", "knobs": {"n_step": 3}, "updates": 200},
        ],
    },
    "mbpo_pendulum": {
        "title": "MBPO, STEVE, DDPG and SAC on Pendulum",
        "page": "value_expansion.md",
        "commands": [
            f"{TRAIN} steve/{name}_pendulum --num_seeds 3 --total_steps 3500"
            for name in ("mbpo", "ddpg", "steve", "sac")
        ],
        "seeds": [0, 1, 2],
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "machine": BUSY,
        "date": "2026-11-19",
        "runs": [
            {"config": "steve/mbpo_pendulum", "reduced": {"pretrain": 100}, "updates": 300},
            {"config": "steve/sac_pendulum", "updates": 200},
        ],
    },
    "pets_pendulum": {
        "title": "PETS on Pendulum",
        "page": "value_expansion.md",
        "before": "0.2",
        "commands": [f"{TRAIN} steve/pets_pendulum --num_seeds 3 --total_steps 1400"],
        "seeds": [0, 1, 2],
        "versions": V_CPU,
        "machine": CPU,
        "runs": [{"config": "steve/pets_pendulum", "reduced": {"pretrain": 100}, "updates": 105}],
    },
    "steve_halfcheetah": {
        "title": "STEVE, MVE and DDPG on HalfCheetah with the paper's settings",
        "page": "value_expansion.md",
        "before": "0.2",
        "commands": [
            f"{TRAIN} steve/{name}_halfcheetah_paper --num_actors 1 --total_steps 100000 --num_seeds 4 --device cuda"
            for name in ("steve", "mve_tdk", "ddpg")
        ],
        "seeds": [0, 1, 2, 3],
        "versions": {**V_GPU, "mujoco": "4.0.0"},
        "machine": H200,
        "runs": [
            {"config": f"steve/{name}_halfcheetah_paper", "knobs": {"num_actors": 1}, "reduced": small, "updates": 30}
            for name, small in (("steve", SMALL_MODEL), ("mve_tdk", SMALL_MODEL), ("ddpg", {"warm_up": 300}))
        ],
    },
    "best_defaults": {
        "title": "STEVE and SAC with the best defaults on HalfCheetah, Hopper and Walker2d",
        "page": "value_expansion.md",
        "before": "0.2",
        "commands": [
            f"{TRAIN} steve/{name} --num_seeds 3 --total_steps 100000 --device cuda --eval_every 20000"
            " --eval_episodes 5 --slack 8"
            for name in ("steve_halfcheetah", "sac_halfcheetah", "steve_walker2d", "sac_walker2d", "steve_hopper")
        ]
        + [
            f"{TRAIN} steve/steve_hopper_known_ends --num_seeds 3 --total_steps 100000 --device cuda --eval_every 20000"
            " --eval_episodes 5 --slack 8",
            f"{TRAIN} steve/sac_hopper --num_seeds 3 --total_steps 100000 --device cuda",
        ],
        "seeds": [0, 1, 2],
        "versions": {**V_GPU, "torch": "2.11", "mujoco": "4.0.0"},
        "machine": "one NVIDIA H200 that two to eight runs shared, 16 cores",
        "date": "2026-11-16 and 2026-11-17",
        "runs": [
            {"config": "steve/steve_halfcheetah", "reduced": SMALL_MODEL, "updates": 30},
            {"config": "steve/sac_hopper", "reduced": {"warm_up": 300}, "updates": 30},
            {"config": "steve/steve_walker2d", "reduced": SMALL_MODEL, "updates": 30},
        ],
    },
    "counterfeit_sweep": {
        "title": "A capability sweep on Counterfeit",
        "page": "../reward_misspecification.md",
        "before": "0.2",
        "commands": [f"{TRAIN} misspecification/counterfeit_sweep --seed 1000"],
        "seeds": list(range(1000, 1035)),
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "machine": "two shared AMD EPYC cores",
        "date": "2026-11-16",
        "runs": [
            {
                "config": "misspecification/counterfeit_base",
                "seed": 1000,
                "knobs": {"discount": discount},
                "updates": 100,
            }
            for discount in (0.5, 0.92)
        ],
    },
    "riverraid_proxy": {
        "title": "River Raid: the proxy used for training",
        "page": "../reward_misspecification.md",
        "before": "0.2",
        "commands": [
            f"{TRAIN} impala/riverraid --proxy {proxy} --idle_start {idle} --num_actors 64 --total_steps 12000000"
            " --device cuda --seed 0"
            for proxy in ("pacifist", "fuel")
            for idle in (True, False)
        ],
        "seeds": [0],
        "versions": {"python": "3.12", "torch": "2.11"},
        "machine": f"{H200} that four runs shared",
        "date": "2026-11-16",
        "runs": [
            {"config": "impala/riverraid", "knobs": {"proxy": "pacifist"}, "reduced": SMALL_ATARI, "updates": 3},
        ],
    },
    "audit": {
        "title": "Audits of policies on eight subtasks",
        "page": "../reward_misspecification.md",
        "before": "0.2",
        "commands": ["python benchmarks/audit_subtasks.py runs/audit --data audit.json"],
        "seeds": [0, *range(100, 825)],
        "machine": "2 shared AMD EPYC cores",
        "date": "2026-11-16",
        "runs": [{"config": "impala/gym", "knobs": {"env": "BoatRace", "discounting": 0.99}, "updates": 20}],
    },
    "tbv": _tbv("Best-first search with and without verification on the Tower of Hanoi", "", list(range(10))),
    "tbv_orders": _tbv(
        "Orders of expansion",
        " --expand_heuristic neg_distance",
        list(range(5)),
        expand_heuristic="neg_distance",
    ),
    "tbv_quantile": _tbv("Quantile ranks", " --quantile_rank 0.95", list(range(5)), quantile_rank=0.95),
    "tbv_rejection": _tbv(
        "Rejection probabilities", " --rejection_probability 0.1", list(range(5)), rejection_probability=0.1
    ),
    "tbv_memory": _tbv(
        "A memory of verified transitions", " --verified_edges run", list(range(5)), verified_edges="run"
    ),
    "tbv_switches": _tbv("Single switches of the rule", " --noise_quantile 0.9", list(range(5)), noise_quantile=0.9),
    "tbv_cells": {
        "title": "Tabular frontier search, and search with models at smaller sizes",
        "page": "tbv.md",
        "commands": [
            "python benchmarks/tbv_table.py run --envs hanoi7 --seeds 0-5 --jobs 11 --cell-seconds 75"
            " --total-seconds 470",
            "python benchmarks/tbv_table.py run --envs toy_mr,hanoi8 --methods plain,tbv,run,factored,all,all_untrained"
            " --jobs 5 --cell-seconds 140",
            "python benchmarks/tbv_table.py run --methods frontier --seeds 0-9",
            "python benchmarks/tbv_missing.py --only small_maps",
        ],
        "seeds": list(range(10)),
        "versions": {"packtrain": "0.2.0 under development"},
        "machine": "16 cores of an Intel Xeon; frontier search and small maps: 2 cores; each cell says which",
        "date": "2026-11-18 and 2026-11-19",
        "runs": [
            {"config": "tbv/frontier_hanoi", "reduced": {"n_envs": 8, "n_epochs": 1, "episode_time_limit": 300}},
            {
                "config": "tbv/bfs_hanoi_tbv",
                "knobs": {"model_hidden_sizes": [128, 128], "verified_edges": "run", "plan_to_verify": True},
                "reduced": SMALL_TBV,
            },
        ],
    },
    "tbv_controls": {
        "title": "Why the controls stand still: ablations with 6 disks",
        "page": "tbv.md",
        "commands": [
            "python benchmarks/tbv_controls.py run --folder runs/controls --seeds 1",
            "python benchmarks/tbv_missing.py --only controls",
        ],
        "seeds": [0, 1, 2],
        "versions": {"torch": "2.13.0 (seeds 1 and 2: 2.11.0)", "python": "3.11 (seeds 1 and 2: 3.12)"},
        "machine": "2 shared cores; seeds 1 and 2: an NVIDIA H200",
        "date": "2026-11-18 and 2026-11-19",
        "runs": [{"config": "tbv/bfs_hanoi", "knobs": {"disks": 6}, "reduced": SMALL_TBV}],
    },
    "tbv_controls_published": {
        "title": "Controls with coordinates rounded one by one, at the published sizes",
        "page": "tbv.md",
        "commands": [
            "python benchmarks/tbv_controls.py run --folder runs/controls7 --scale published --device cuda"
            " --only rounded rounded_epsilon --seeds 3"
        ],
        "seeds": [0, 1, 2],
        "versions": {"torch": "2.11.0", "python": "3.12"},
        "machine": H200,
        "date": "2026-11-18",
        "runs": [{"config": "tbv/bfs_hanoi_epsilon", "reduced": SMALL_TBV}],
    },
}
RECORDS["riverraid_true"] = {**RECORDS["riverraid_proxy"], "title": "River Raid: the score, not used for training"}
RECORDS["riverraid_true"]["runs"] = [
    {"config": "impala/riverraid", "knobs": {"proxy": "fuel"}, "reduced": SMALL_ATARI, "updates": 3}
]


def write(name: str, with_digests: bool) -> str:
    """Write the record of one result; return a line about it."""
    path = FOLDER / f"{name}.json"
    text = path.read_text(encoding="utf-8")
    document = json.loads(text)
    facts = dict(RECORDS[name])
    runs = facts.pop("runs")
    record = {"schema": 1, **facts}
    stored = document.get("record", {}).get("verify") if isinstance(document, dict) else None
    if with_digests:
        stored = {"fingerprint": digest.fingerprint(), "runs": [verify.store(run) for run in runs]}
    if stored is not None:
        record["verify"] = stored
    # The measured data stay as they are, character for character: the record is the first line.
    if isinstance(document, list):
        rest = f'"cells": {text.strip()}}}\n'
    else:
        rest = text.partition("\n")[2] if "record" in document else text.partition("{")[2].lstrip("\n")
    write_whole(path, f'{{"record": {json.dumps(record, ensure_ascii=False)},\n{rest}'.encode())
    if (again := json.loads(path.read_text(encoding="utf-8"))) != (
        {"record": record, "cells": document} if isinstance(document, list) else {**document, "record": record}
    ):
        raise SystemExit(f"{path} changed its data: {list(again)[:5]}")
    return f"{name}: {', '.join(str(run['secs']) for run in (stored or {}).get('runs', []))} s"


def main() -> None:
    """Write the records that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--digests", action="store_true", help="run the first updates, and store their digests")
    arguments = parser.parse_args()
    for name in arguments.names or sorted(RECORDS):
        print(write(name, arguments.digests), flush=True)


if __name__ == "__main__":
    main()
