"""Send metrics to trackers without a network: Weights & Biases and MLflow in offline mode, TensorBoard, trackio.

    python docs/tasks/trackers.py

Trackers that are not installed are left out here; `packtrain train ppo/cartpole --track wandb` refuses one by name.
"""

import importlib.util
import os

import packtrain

if __name__ == "__main__":
    os.environ.setdefault("WANDB_MODE", "offline")
    os.environ.setdefault("MLFLOW_TRACKING_URI", "file:./runs/mlflow")
    names = [name for name in ("tensorboard", "wandb", "mlflow", "trackio") if importlib.util.find_spec(name)]
    run = packtrain.train(
        "ppo/cartpole", total_steps=2_000, eval_every=1_000, track=names, output_dir="runs/tracked", progress=False
    )
    print("tracked by", ", ".join(names) or "nothing")
    print(sorted(path.name for path in run.path.iterdir()))
