"""The bench of value expansion, tiny, on a CPU: what is printed is what was measured, beside its floor."""

import torch

from packtrain.bench import steve


def test_updates_are_measured_beside_their_floor(monkeypatch):
    """On one thread: two wait for each other where others use the cores.

    Mutations: the floor of other operations; rates of calls instead of updates; threads left as they were set.
    """
    monkeypatch.setattr(steve, "ROUNDS", 1)
    threads = torch.get_num_threads()
    with steve._threads(1):
        found = steve._ddpg(1.0, 1)
    assert torch.get_num_threads() == threads
    assert found["rate"] > 5 and found["bound"] > 5 and 0.02 < found["ratio"] < 3
    parts = {part["name"]: part for part in found["parts"]}
    assert set(parts) == {"products", "one core", "untaped"}
    # 256 rows through critic (23, 256, 256, 1) and policy (17, 256, 256, 6), targets, and gradients of both.
    layers = {"critic": 23 * 256 + 256 * 256 + 256, "policy": 17 * 256 + 256 * 256 + 6 * 256}
    once = 2 * 256 * (4 * layers["critic"] + 4 * layers["policy"]) / 1e9
    assert once < parts["products"]["gflop"] < 2 * once
    assert any(line.startswith("ratio") for line in found["lines"])
