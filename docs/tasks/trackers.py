"""Send metrics to trackers without a network: Weights & Biases and MLflow in offline mode, TensorBoard, trackio.

    python docs/tasks/trackers.py

Trackers that are not installed are left out here; `packtrain train ppo/cartpole --track wandb` refuses one by name.
A tracker that fails is a warning, and the run goes on without it.
"""

import importlib.util
import json
import os
from pathlib import Path

import packtrain

if __name__ == "__main__":
    os.environ.setdefault("WANDB_MODE", "offline")
    os.environ.setdefault("WANDB_DIR", "runs")  # never inside a run folder: wandb makes symbolic links
    os.environ.setdefault("MLFLOW_TRACKING_URI", "sqlite:///runs/mlflow.db")
    Path("runs").mkdir(exist_ok=True)
    names = [name for name in ("tensorboard", "wandb", "mlflow", "trackio") if importlib.util.find_spec(name)]
    run = packtrain.train(
        "ppo/cartpole", total_steps=2_000, eval_every=1_000, track=names, output_dir="runs/tracked", progress=False
    )
    print("asked for:", ", ".join(names) or "nothing")

    # trackers.json has the run's id in each tracker that took it, so that a resumed run goes on there as one run.
    note = run.path / "trackers.json"
    tracked = json.loads(note.read_text()) if note.exists() else {}
    if (run.path / "tensorboard").is_dir():
        tracked["tensorboard"] = str(run.path / "tensorboard")
    for name, identity in tracked.items():
        print(f"tracked by {name} as {identity}")
    missing = [name for name in names if name not in tracked]
    if missing:
        print("did not track:", ", ".join(missing))
