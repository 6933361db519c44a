"""Look at what a search decided: play episodes of a planner and read the metrics of its decisions.

python docs/tasks/look_at_a_search.py
"""

import packtrain

if __name__ == "__main__":
    run = packtrain.train(
        "planning/shooting_random_cartpole", output_dir="runs/search", bindings=["Runner.n_epochs = 1"], progress=False
    )
    for kind in ("train", "planning"):
        metrics = run.metrics(kind)
        for name in metrics:
            print(f"{kind:<9} {name:<40} {metrics[name][-1]:.3f}")
