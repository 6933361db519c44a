"""Every family trains on a cluster of three simulated nodes."""

import pytest

pytestmark = pytest.mark.xdist_group("cluster")
PLAN = ["--n_envs", "4", "--n_epochs", "2", "--n_steps_per_epoch", "5", "--batch_size", "8"]
SHORT = {  # IMPALA and R2D2 are in the tests of faults and of former systems
    "planning/mcts_hanoi": ["--workers", "2", *PLAN, "--episode_time_limit", "15", "--eval_period", "1"],
    "steve/steve_pendulum": ["--total_steps", "600"],
}
LONGER = {
    "impala/catch": ["--workers", "2", "--total_steps", "5000"],
    "r2d2/catch": ["--workers", "2", "--total_steps", "900", "--warm_up", "300"],
    "impala/cartpole": ["--workers", "2", "--total_steps", "5000"],
    "ppo/cartpole": ["--workers", "2", "--total_steps", "3000"],
    "tbv/rnd_hanoi": ["--workers", "2", "--disks", "3", "--total_steps", "3000"],
    "tbv/frontier_hanoi": ["--disks", "4"],
    "ngu/key_door": ["--workers", "2", "--total_steps", "2000", "--warm_up", "1000"],
    "dqn/cartpole": ["--total_steps", "1500"],
    "td3/pendulum": ["--total_steps", "600", "--warm_up", "200"],
}


MCTS = ["--n_envs", "8", "--n_epochs", "6", "--eval_period", "6"]
LEARNS = {
    "impala/catch": (["--workers", "2", "--total_steps", "300000"], "return_mean", 0.8),
    "r2d2/catch": (["--workers", "2", "--total_steps", "80000"], "return_mean", 0.7),
    "steve/steve_pendulum": (["--total_steps", "4000"], "return_mean", -450.0),
    "planning/mcts_hanoi": (["--workers", "2", *MCTS], "solved", 0.9),
}
"""Length of the run, and what its last evaluation must reach. Chance: -0.6 in Catch, -1,200 in Pendulum."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SHORT, *(pytest.param(name, marks=pytest.mark.long) for name in LONGER)])
def test_every_family_trains_on_a_cluster(simulated, tmp_path, name):
    words = (SHORT | LONGER)[name]
    done = simulated.train(name, *words, "--output_dir", str(tmp_path / "run"))
    noise = [line for line in done.stderr.splitlines() if not line.startswith(f"packtrain: {name} is ")]
    assert done.returncode == 0 and not noise, done.stderr
    assert "finished" in done.stdout
    assert simulated.rows(tmp_path / "run")[-1]["workers/workers_ready"] == (2 if "--workers" in words else 1)


@pytest.mark.long  # minutes; part of `make test-cluster`
@pytest.mark.parametrize("name", LEARNS)
def test_families_learn_on_a_cluster(simulated, tmp_path, name):
    """Mutation: workers act with the first weights for ever."""
    words, what, least = LEARNS[name]
    done = simulated.train(name, *words, "--output_dir", str(tmp_path / "run"), secs=1500)
    assert done.returncode == 0, done.stderr
    last = simulated.rows(tmp_path / "run", "eval")[-1]
    print(f"{name}: {what} {last[what]:.3f} after {last['wall_s']:.0f} s")
    assert last[what] >= least
