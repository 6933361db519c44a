"""Compare two algorithms on one environment over seeds, with statistics.

    python docs/tasks/compare_two_algorithms.py

Both sides get the same number of environment steps. Two seeds are enough to run the example, and far too few to
conclude anything: the intervals say so.
"""

import packtrain

SEEDS = range(2)

if __name__ == "__main__":
    settings = {"env": "CartPole-v1", "total_steps": 4_000, "eval_every": 2_000, "progress": False}
    ppo = [packtrain.train("ppo/gym", seed=k, output_dir=f"runs/ppo_{k}", **settings) for k in SEEDS]
    impala = [packtrain.train("impala/gym", seed=k, output_dir=f"runs/impala_{k}", **settings) for k in SEEDS]
    found = packtrain.compare(ppo, impala)
    print(f"PPO {found.means[0]:.1f}, IMPALA {found.means[1]:.1f}")
    low, high = found.difference_interval
    print(f"difference {found.difference:.1f}, 95 % interval {low:.1f} to {high:.1f}")
    print(f"probability that a seed of PPO scores higher: {found.probability_of_improvement:.2f}")
    packtrain.report(*ppo, *impala, out="runs/comparison.html")
