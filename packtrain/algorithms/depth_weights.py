"""Weight of each depth 0 … H in the value-expansion target of every real step of filmed episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any

import numpy as np
import torch

from packtrain.algorithms.candidate_returns import ModelExpansion
from packtrain.interfaces import EpisodeAnalysis, ObservedStep
from packtrain.networks.control import ControlNetwork

BUCKETS = 10  # bins of the histogram of weights between 0 and 1


def depth_weights(
    network: ControlNetwork, settings: ModelExpansion, steps: Sequence[ObservedStep], seed: int = 0
) -> np.ndarray:
    """Return the weight of each depth 0 … H in the target of each real step: float64 [T, H + 1], rows sum to 1."""
    device = network.log_temperature.device
    batch = {
        "after": torch.from_numpy(np.stack([step.after for step in steps])).float(),  # [T, D]
        "reward": torch.tensor([step.reward for step in steps]),
        "terminated": torch.tensor([float(step.terminated) for step in steps]),
    }
    # settings of MVE or STEVE; the actor–critic settings inside have the batch size
    base, sized = settings.actor_critic, settings
    assert is_dataclass(base) and is_dataclass(sized) and not isinstance(base, type) and not isinstance(sized, type)
    sized = replace(sized, actor_critic=replace(base, batch_size=len(steps)))
    noise = sized.draws(network, 1, torch.Generator(device).manual_seed(seed))
    _, targets = sized.targets(network, {**{name: leaf[None].to(device) for name, leaf in batch.items()}, **noise})
    return targets.weight[0, :, 0].T.double().cpu().numpy()  # [S, H+1, R, T] → [T, H+1]


def weight_histogram(weights: np.ndarray) -> np.ndarray:
    """Return the share of steps whose weight falls into each bucket of a tenth, the highest first: [10, H + 1].

    Columns sum to 1. Weights below 0 or above 1, which covariances can give, count in the outermost buckets.
    """
    bucket = np.clip(np.floor(weights * BUCKETS + 1e-9), 0, BUCKETS - 1).astype(np.int64)  # [T, H+1]
    return np.stack([(bucket == b).mean(axis=0) for b in reversed(range(BUCKETS))])


def analyse(
    network: ControlNetwork, settings: ModelExpansion, episodes: Mapping[int, Sequence[ObservedStep]]
) -> EpisodeAnalysis:
    """Return the weights of all steps, and a summary over all episodes."""
    each = {number: depth_weights(network, settings, steps) for number, steps in episodes.items()}
    weights = np.concatenate(list(each.values()))
    summary = {
        "steps": len(weights),
        "model_use": float(1 - weights[:, 0].mean()),
        "mean": weights.mean(axis=0).tolist(),
        "histogram": weight_histogram(weights).tolist(),  # rows from 0.9 … 1 down to 0 … 0.1, columns are depths
    }
    rows = [{"episode": number, "weights": found.round(6).tolist()} for number, found in each.items()]
    return EpisodeAnalysis(summary, rows, _describe(summary))


def _describe(summary: dict[str, Any]) -> list[str]:
    lines = [f"weight of each depth in the target, over {summary['steps']:,} steps (share of steps):"]
    lines.append(f"  {'weight':<11}" + "".join(f"{f'depth {d}':>9}" for d in range(len(summary["mean"]))))
    for place, row in enumerate(summary["histogram"]):
        low = (BUCKETS - 1 - place) / BUCKETS
        lines.append(f"  {low:.1f} to {low + 1 / BUCKETS:.1f} " + "".join(f"{share:9.3f}" for share in row))
    lines.append(f"  {'mean':<11}" + "".join(f"{mean:9.3f}" for mean in summary["mean"]))
    lines.append(f"  model use {summary['model_use']:.3f}")
    return lines
