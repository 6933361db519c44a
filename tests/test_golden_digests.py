"""D4: what every family and planner computes in its first updates, to the bit, against tests/golden/digests.json.

A changed default, a changed number or a changed order of random draws shows up here. On the versions and processor that
wrote the file every bit must be equal; elsewhere scalars are compared within a tolerance. `make golden` rewrites it.
"""

import json
import os
from pathlib import Path

import pytest

from packtrain.studies import digest

FILE = Path(__file__).parent / "golden" / "digests.json"
WRITING = os.environ.get("PACKTRAIN_GOLDEN") == "write"
SEED = 3

PLAN = {"n_envs": 2, "n_epochs": 1}
LEARN = PLAN | {"n_steps_per_epoch": 3, "batch_size": 8, "n_precollect_epochs": 1, "eval_episodes": 2}
MODEL = {"model_n_steps_per_epoch": 3, "model_hidden_sizes": (16, 16), "model_batch_size": 32, "members": 4}
TBV = PLAN | MODEL | {"n_model_pretrain_epochs": 1, "n_model_precollect_episodes": 2, "n_precollect_epochs": 1}
TBV |= {"episode_time_limit": 20, "disks": 4}
ACTOR_CRITIC = {"num_actors": 4, "batch_size": 4, "unroll_length": 32, "total_steps": 256, "eval_every": 0}
REPLAY = {"warm_up": 300, "total_steps": 700, "eval_every": 0, "num_actors": 8, "batch_size": 16}
CONTROL = {"warm_up": 60, "total_steps": 110, "eval_every": 0}
EXPANSION = CONTROL | {"pretrain": 10}

CASES = {
    "impala": ("impala/catch", ACTOR_CRITIC | {"unroll_length": 10, "eval_every": 128, "eval_episodes": 4}),
    "impala_lstm": ("abilities/memory", {"total_steps": 640, "eval_every": 0}),
    "impala_continuous": ("impala/point_mass", {"num_actors": 8, "batch_size": 4, "total_steps": 640, "eval_every": 0}),
    "impala_gym": ("impala/gym", {"env": "Acrobot-v1", "total_steps": 640, "eval_every": 0}),
    "ppo": ("ppo/cartpole", {"total_steps": 512, "eval_every": 0}),
    "ppo_continuous": ("ppo/pendulum", ACTOR_CRITIC | {"minibatches": 2}),
    "rnd": ("tbv/rnd_hanoi", ACTOR_CRITIC),
    "count": ("tbv/count_hanoi", ACTOR_CRITIC),
    "misspecification": ("misspecification/counterfeit", {"warm_up": 100, "total_steps": 400, "eval_every": 0}),
    "dqn": ("dqn/catch", REPLAY | {"batch_size": 32}),
    "dqn_gym": ("dqn/cartpole", {"warm_up": 100, "total_steps": 120, "eval_every": 0}),
    "r2d2": ("r2d2/catch", REPLAY),
    "ngu": ("ngu/deep_sea", REPLAY | {"size": 6, "sequence_length": 6, "stride": 6, "arms": 4}),
    "agent57": ("exam/agent57_memory", REPLAY | {"total_steps": 500, "arms": 4, "updates_per_step": 0.05}),
    "ddpg": ("ddpg/pendulum", CONTROL),
    "td3": ("td3/pendulum", CONTROL),
    "sac": ("sac/pendulum", CONTROL),
    "mve": ("steve/mve_tdk_pendulum", EXPANSION),
    "mve_mean": ("steve/mve_mean_pendulum", EXPANSION),
    "mve_tdlambda": ("steve/mve_tdlambda_pendulum", EXPANSION),
    "steve": ("steve/steve_pendulum", EXPANSION),
    "steve_cov": ("steve/steve_cov_pendulum", EXPANSION | {"total_steps": 90}),
    "mbpo": ("steve/mbpo_pendulum", EXPANSION),
    "pets": (
        "steve/pets_pendulum",
        {"warm_up": 60, "pretrain": 20, "total_steps": 70, "eval_every": 0, "candidates": 50, "iterations": 2},
    ),
    "shooting": ("planning/shooting_random_cartpole", PLAN | {"episode_time_limit": 10, "n_rollouts": 10}),
    "bandit": ("planning/bandit_random_cartpole", PLAN | {"episode_time_limit": 10}),
    "cem": (
        "planning/cem_half_cheetah",
        {"n_epochs": 1, "n_envs": 1, "episode_time_limit": 2, "population": 16, "elites": 4},
    ),
    "best_first": ("planning/bfs_hanoi", PLAN | {"episode_time_limit": 40, "disks": 4}),
    "mcts": ("planning/mcts_hanoi", LEARN | {"episode_time_limit": 15, "disks": 3}),
    "mcts_td": ("planning/deterministic_mcts_td_sokoban", LEARN | {"episode_time_limit": 4, "n_passes": 3}),
    "mcts_sokoban": ("planning/mcts_sokoban_8x8", LEARN | {"episode_time_limit": 4, "n_passes": 3}),
    "shoot_tree_search": ("planning/sts_sokoban", LEARN | {"episode_time_limit": 3, "n_passes": 2}),
    "frontier": ("tbv/frontier_hanoi", PLAN | {"episode_time_limit": 60, "disks": 3}),
    "tbv_best_first": ("tbv/bfs_hanoi_tbv", TBV),
    "tbv_mcts": ("tbv/mcts_hanoi_tbv", TBV | {"n_steps_per_epoch": 3, "n_passes": 4}),
}
NEEDS = {"cem": "mujoco"}


@pytest.fixture(scope="module")
def golden():
    """The stored digests; with PACKTRAIN_GOLDEN=write, those of this run are written in their place at the end."""
    stored = {"cases": {}} if WRITING else json.loads(FILE.read_text())
    yield stored
    if WRITING:
        stored["fingerprint"] = digest.fingerprint()
        ordered = {name: stored["cases"][name] for name in CASES if name in stored["cases"]}
        lines = [f"{json.dumps(name)}: {json.dumps(case)}" for name, case in ordered.items()]
        top = f'"fingerprint": {json.dumps(stored["fingerprint"])},\n"cases": {{\n'
        FILE.write_text("{" + top + ",\n".join(lines) + "\n}}\n")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.xdist_group("golden")
def test_first_updates_are_what_they_were(name, golden):
    """Mutation: another default, as of QLearning.eta, or another number in an equation."""
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    configuration, knobs = CASES[name]
    found = digest.measure(digest.ShortRun(configuration, knobs, SEED))
    if WRITING:
        golden["cases"][name] = found.as_json()
        return
    exact = golden["fingerprint"] == digest.fingerprint()
    lines = digest.compare(golden["cases"][name], found, exact)
    assert not lines, f"{name}: {'; '.join(lines[:8])}; if this was meant to change: make golden"


@pytest.mark.skipif(WRITING, reason="the file is being written")
def test_every_case_is_stored():
    assert set(json.loads(FILE.read_text())["cases"]) == set(CASES)
