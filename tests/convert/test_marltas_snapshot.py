"""Snapshots of marltas_core as run folders: the same action values, and nothing in them is run.

The old networks are written here from the specification, with names of our choice, since names are not looked at.
"""

import os
from collections import OrderedDict

import pytest
import torch
from torch import nn

from packtrain.cli import main
from packtrain.convert import marltas_snapshot
from packtrain.errors import CheckpointError
from packtrain.runtime import checkpoint, preparation


class Streams(nn.Module):
    """Advantage and value streams."""

    def __init__(self, width, hidden, actions, grouped=False, value_first=False):
        super().__init__()
        one = [("adv", actions), ("val", 1)][:: -1 if value_first else 1]
        if grouped:
            for name, _ in one:
                setattr(self, f"{name}_hidden", nn.Linear(width, hidden))
            for name, size in one:
                setattr(self, name, nn.Linear(hidden, size))
        else:
            for name, size in one:
                setattr(self, f"{name}_hidden", nn.Linear(width, hidden))
                setattr(self, name, nn.Linear(hidden, size))

    def forward(self, x):
        advantage, value = (getattr(self, n)(getattr(self, f"{n}_hidden")(x).relu()) for n in ("adv", "val"))
        return value + advantage - advantage.mean(-1, keepdim=True)


class Vectors(nn.Module):
    """The networks for vectors: two layers, an LSTM or not, two streams of 32 units."""

    def __init__(self, inputs, actions, recurrent, **order):
        super().__init__()
        self.first, self.second = nn.Linear(inputs, 32), nn.Linear(32, 64)
        self.memory = nn.LSTM(64, 64) if recurrent else None
        self.heads = Streams(64, 32, actions, **order)

    def forward(self, x):  # [T, B, I] from zeros
        x = self.second(self.first(x).relu()).relu()
        if self.memory is not None:
            x = self.memory(x)[0]
        return self.heads(x)


ORDERS = [{}, {"grouped": True}, {"value_first": True}, {"grouped": True, "value_first": True}]


def converted(tmp_path, network, config, *flags):
    torch.save(OrderedDict(network.state_dict()), tmp_path / "online_model_100.pkl")
    argv = ["convert", str(tmp_path / "online_model_100.pkl"), config, "--output_dir", str(tmp_path / "run")]
    assert main([*argv, "--env", "CartPole-v1", *flags]) == 0
    _, experiment, spec = preparation.prepare([tmp_path / "run" / "config.gin"], [], {}, None, True)
    ours = experiment.policy.build_network(spec)
    _, state = checkpoint.choose(tmp_path / "run" / "checkpoints", "latest")
    for weights in state["weights"].values():
        ours.load_state_dict(weights)
    return ours


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("recurrent", [True, False])
def test_values_are_those_of_the_old_network(tmp_path, capsys, recurrent, order):
    """Mutations: advantage and value are exchanged; the target network keeps its own weights."""
    torch.manual_seed(0)
    old = Vectors(4, 2, recurrent, **order)
    config = "r2d2/base" if recurrent else "dqn/base"
    ours = converted(tmp_path, old, config)
    obs, first = torch.randn(5, 3, 4), torch.zeros(5, 3, dtype=torch.bool)
    zeros = torch.zeros(5, 3)
    for values in (ours.acting.values, ours.target):
        found = values(obs, first, zeros.long(), zeros, values.initial_carry(3)).values
        torch.testing.assert_close(found, old(obs))
    said = capsys.readouterr().out
    assert "What means something else:" in said and "2 actions" in said


def test_of_two_networks_the_extrinsic_one_is_taken_and_it_is_said(tmp_path, capsys):
    torch.manual_seed(1)
    both = nn.ModuleDict({"e": Vectors(4, 2, True), "i": Vectors(4, 2, True)})
    ours = converted(tmp_path, both, "r2d2/base")
    obs, first, zeros = torch.randn(5, 3, 4), torch.zeros(5, 3, dtype=torch.bool), torch.zeros(5, 3)
    values = ours.acting.values
    found = values(obs, first, zeros.long(), zeros, values.initial_carry(3)).values
    torch.testing.assert_close(found, both["e"](obs))
    assert "intrinsic rewards is left out" in capsys.readouterr().out


@pytest.mark.slow
def test_a_converted_run_is_evaluated_and_trained(tmp_path, capsys):
    torch.manual_seed(2)
    converted(tmp_path, Vectors(4, 2, False), "dqn/base")
    assert main(["eval", str(tmp_path / "run"), "--num_episodes", "2", "--trust-config"]) == 0
    argv = ["train", str(tmp_path / "run" / "config.gin"), "--output_dir", str(tmp_path / "run"), "--trust-config"]
    assert main([*argv, "--total_steps", "1500", "--runtime", "serial"]) == 0


def test_the_image_network_has_the_shapes_of_the_atari_configuration(tmp_path):
    """3,136 features, an LSTM of 128, streams of 128: placed without an emulator."""
    layers = {}
    for i, (a, b, k) in enumerate([(4, 32, 8), (32, 64, 4), (64, 64, 3)]):
        layers |= {f"c{i}.weight": torch.zeros(b, a, k, k), f"c{i}.bias": torch.zeros(b)}
    lstm = nn.LSTM(3136, 128).state_dict()
    layers |= {f"rnn.{name}": weight for name, weight in lstm.items()}
    layers |= {f"h.{name}": weight for name, weight in Streams(128, 128, 6).state_dict().items()}
    torch.save(layers, tmp_path / "online_model_1.pkl")
    found = marltas_snapshot.read(tmp_path / "online_model_1.pkl")
    assert found.knobs == {"dueling_size": 128, "lstm_size": 128} and len(found.convolutions) == 3
    assert len(found.advantage[-1][1]) == 6 and len(found.value[-1][1]) == 1


class Trap:
    def __reduce__(self):
        return os.system, ("touch sprung",)


HOSTILE = {
    "code": {"w": Trap()},
    "a list": [1, 2],
    "nothing": {},
    "a value": {"w": 3},
    "NaN": {"w": torch.full((2, 2), float("nan")), "b": torch.zeros(2)},
    "no streams": {"w": torch.zeros(4, 4), "b": torch.zeros(4), "v": torch.zeros(3, 4)},
    "two LSTM layers": dict(nn.LSTM(4, 4, num_layers=2).state_dict()),
    "a bias first": {"b": torch.zeros(4), "w": torch.zeros(4, 4)},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_run_nothing(tmp_path, monkeypatch, name):
    """Mutation: torch.load without weights_only."""
    monkeypatch.chdir(tmp_path)
    torch.save(HOSTILE[name], "online_model_1.pkl")
    with pytest.raises(CheckpointError):
        marltas_snapshot.read(tmp_path / "online_model_1.pkl")
    assert not (tmp_path / "sprung").exists()


def test_what_cannot_be_converted_is_said_in_one_line(tmp_path, capsys):
    torch.save(dict(Vectors(4, 2, False).state_dict()), tmp_path / "online_model_1.pkl")
    torch.save({}, tmp_path / "rnd_target_model_1.pkl")
    run = ["--output_dir", str(tmp_path / "run")]
    cases = [
        (["online_model_1.pkl"], "--env"),
        (["rnd_target_model_1.pkl", "--env", "CartPole-v1"], "online_model_STEP.pkl"),
        (["online_model_1.pkl", "dqn/base", "--env", "Acrobot-v1"], "does not fit"),
        (["online_model_1.pkl", "impala/catch"], "has none"),
    ]
    for argv, part in cases:
        assert main(["convert", str(tmp_path / argv[0]), *argv[1:], *run]) == 2
        said = capsys.readouterr().err
        assert part in said and len(said.strip().splitlines()) == 1 and not (tmp_path / "run").exists()
