"""Use trained weights in plain PyTorch: the network is a torch.nn.Module, and weights are a safetensors file.

    python docs/tasks/plain_pytorch.py

`packtrain export RUN` writes a folder with weights, spaces and, where it works, a program of torch.export that runs
without packtrain.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file

import packtrain
from packtrain.cli import main

if __name__ == "__main__":
    run = packtrain.train("ppo/cartpole", total_steps=3_000, eval_every=0, output_dir="runs/plain", progress=False)
    network = packtrain.load(run).network
    print(network)

    main(["export", str(run.path), "--out", "runs/plain_export"])
    folder = Path("runs/plain_export")
    weights = load_file(folder / "weights.safetensors")
    print({name: tuple(tensor.shape) for name, tensor in weights.items()})

    program = torch.export.load(folder / "policy.pt2").module()
    action = program(torch.zeros(1, 4))
    print("greedy action", int(action))
