"""Use trained weights in plain PyTorch: a safetensors file for a module of your own, and a program of torch.export.

    python docs/tasks/plain_pytorch.py

The command `packtrain export RUN --out FOLDER` writes the same folder. policy.json in it describes the spaces.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

import packtrain

if __name__ == "__main__":
    run = packtrain.train("ppo/cartpole", total_steps=3_000, eval_every=0, output_dir="runs/plain", progress=False)
    folder = Path("runs/plain_export")
    run.export(folder)

    # From here on packtrain is not needed. The names of the tensors are those of packtrain.load(run).network.
    weights = load_file(folder / "weights.safetensors")
    print({name: tuple(tensor.shape) for name, tensor in weights.items()})
    actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    names = {"body.0": "0", "body.2": "2", "policy": "4"}  # layers of the exported network → layers of this module
    actor.load_state_dict(
        {f"{ours}.{part}": weights[f"{theirs}.{part}"] for theirs, ours in names.items() for part in ("weight", "bias")}
    )

    program = torch.export.load(folder / "policy.pt2").module()
    obs = torch.randn(8, 4)
    assert (actor(obs).argmax(1) == program(obs)).all(), "the module acts like the exported policy"
    print("greedy actions", program(obs).tolist())
