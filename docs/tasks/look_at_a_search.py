"""Look at what a search decided: record a planner's episodes, and open the page that draws each decision.

python docs/tasks/look_at_a_search.py
"""

import packtrain

if __name__ == "__main__":
    run = packtrain.train(
        "planning/mcts_hanoi",
        output_dir="runs/search",
        bindings=["Hanoi.disks = 3", "Runner.n_epochs = 2", "Runner.n_precollect_epochs = 0"],
        progress=False,
        trace=2,
    )
    metrics = run.metrics("planning")
    print(f"passes of the last epoch went {metrics['agent/depth_mean'][-1]:.1f} steps deep on average")
    print(f"open {packtrain.explore(run)}")
