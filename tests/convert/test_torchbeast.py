"""TorchBeast's checkpoints as run folders: the same logits, values and recurrent states, and nothing in them is run.

The old networks are written here from the specification's formulas, with TorchBeast's names and none of our classes.
"""

import argparse
import json
import os
from collections import OrderedDict
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from packtrain.cli import main
from packtrain.convert import torchbeast
from packtrain.errors import CheckpointError
from packtrain.runtime import checkpoint, preparation, restore_checks

ACTIONS = 5
ENV = "TorchBeastPictures-v0"
FRAMES = 4


class Pictures(gym.Env):
    """Random 84 x 84 pictures, for three steps; needs no emulator."""

    observation_space = gym.spaces.Box(0, 255, (84, 84), np.uint8)
    action_space = gym.spaces.Discrete(ACTIONS)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = 3
        return self._picture(), {}

    def step(self, action):
        self._left -= 1
        return self._picture(), float(action), self._left == 0, False, {}

    def _picture(self):
        return self.np_random.integers(0, 256, (84, 84), dtype=np.uint8)


gym.register(ENV, entry_point=Pictures)


# -- the old networks


class OldHeads(nn.Module):
    """What both networks share: a core that forgets where `done`, a policy, a baseline."""

    def initial_state(self, batch):
        if not hasattr(self, "core"):
            return ()
        return tuple(torch.zeros(self.core.num_layers, batch, self.core.hidden_size) for _ in range(2))

    def heads(self, x, done, state):
        """x [T, B, F], done [T, B] → logits [T, B, A], values [T, B], state."""
        if state:
            rows = []
            for row, ended in zip(x, done, strict=True):
                state = tuple((1 - ended.float()).view(1, -1, 1) * part for part in state)
                out, state = self.core(row.unsqueeze(0), state)
                rows.append(out)
            x = torch.cat(rows)
        return self.policy(x), self.baseline(x).squeeze(-1), state


class MonoBeast(OldHeads):
    """conv 32@8/4, 64@4/2, 64@3/1, fully connected, [features, reward, one-hot action], two LSTM layers as wide."""

    def __init__(self, actions, use_lstm, fc=None):
        super().__init__()
        self.conv1 = nn.Conv2d(4, 32, 8, 4)
        self.conv2 = nn.Conv2d(32, 64, 4, 2)
        self.conv3 = nn.Conv2d(64, 64, 3, 1)
        self.fc = nn.Linear(3136, 512) if fc is None else fc
        features = [layer for layer in self.fc.modules() if isinstance(layer, nn.Linear)][-1].out_features
        width = features + actions + 1
        if use_lstm:
            self.core = nn.LSTM(width, width, 2)
        self.policy = nn.Linear(width, actions)
        self.baseline = nn.Linear(width, 1)

    def forward(self, frame, reward, one_hot, done, state):
        steps, batch = reward.shape
        x = frame.flatten(0, 1).float() / 255
        for layer in (self.conv1, self.conv2, self.conv3):
            x = F.relu(layer(x))
        x = x.reshape(steps * batch, -1)
        for layer in self.fc.modules() if not isinstance(self.fc, nn.Sequential) else self.fc:
            if isinstance(layer, nn.Linear):
                x = F.relu(layer(x))
        x = torch.cat([x.view(steps, batch, -1), reward.clamp(-1, 1).unsqueeze(-1), one_hot], -1)
        return self.heads(x, done, state)


class PolyBeast(OldHeads):
    """Three sections of conv, pool and two residual blocks; fully connected 256; [features, reward]; LSTM of 256."""

    def __init__(self, actions, use_lstm):
        super().__init__()
        convolutions, first, second = [], [], []
        channels = 4
        for out in (16, 32, 32):
            convolutions.append(nn.Sequential(nn.Conv2d(channels, out, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)))
            for blocks in (first, second):
                inner = [nn.Conv2d(out, out, 3, padding=1) for _ in range(2)]
                blocks.append(nn.Sequential(nn.ReLU(), inner[0], nn.ReLU(), inner[1]))
            channels = out
        self.feat_convs = nn.ModuleList(convolutions)
        self.resnet1 = nn.ModuleList(first)
        self.resnet2 = nn.ModuleList(second)
        self.fc = nn.Linear(3872, 256)
        width = 257
        if use_lstm:
            self.core = nn.LSTM(257, 256, 1)
            width = 256
        self.policy = nn.Linear(width, actions)
        self.baseline = nn.Linear(width, 1)

    def forward(self, frame, reward, one_hot, done, state):
        steps, batch = reward.shape
        x = frame.flatten(0, 1).float() / 255
        for section in range(3):
            x = self.feat_convs[section](x)
            x = x + self.resnet1[section](x)
            x = x + self.resnet2[section](x)
        x = F.relu(self.fc(F.relu(x).reshape(steps * batch, -1))).view(steps, batch, -1)
        return self.heads(torch.cat([x, reward.clamp(-1, 1).unsqueeze(-1)], -1), done, state)


def deep_list():
    """The reward-misspecification fork's: as many layers as asked for, in a list."""
    return nn.ModuleList([nn.Linear(3136, 64), nn.Linear(64, 64), nn.Linear(64, 64)])


def tied_sequence():
    """Its early version's: one layer used twice, so one parameter has two names."""
    again = nn.Linear(64, 64)
    return nn.Sequential(nn.Linear(3136, 64), nn.ReLU(), again, nn.ReLU(), again, nn.ReLU())


# -- writing the old file


def old_flags(**more):
    flags = {
        "env": "PongNoFrameskip-v4",
        "mode": "train",
        "xpid": "example",
        "savedir": "~/logs/torchbeast",
        "num_actors": 2,
        "total_steps": 1000,
        "batch_size": 2,
        "unroll_length": 5,
        "num_buffers": 4,
        "num_learner_threads": 2,
        "disable_cuda": False,
        "use_lstm": False,
        "entropy_cost": 0.011,
        "baseline_cost": 0.4,
        "discounting": 0.98,
        "reward_clipping": "abs_one",
        "learning_rate": 0.0005,
        "alpha": 0.97,
        "momentum": 0,
        "epsilon": 0.02,
        "grad_norm_clipping": 30.0,
        "device": torch.device("cuda"),
    }
    return {**flags, **more}


def old_file(path, net, updates=3, stats=None, flags=None):
    """Train a little, so that the averages are there, and save as TorchBeast does."""
    flags = old_flags() if flags is None else flags
    optimiser = torch.optim.RMSprop(net.parameters(), lr=0.0005, alpha=0.97, eps=0.02)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda epoch: 1 - min(epoch * 10, 1000) / 1000)
    generator = torch.Generator().manual_seed(0)
    for _ in range(updates):
        optimiser.zero_grad()
        frame = torch.randint(0, 256, (2, 1, FRAMES, 84, 84), generator=generator)
        one_hot = F.one_hot(torch.tensor([[0], [1]]), net.policy.out_features).float()
        logits, value, _ = net(frame, torch.ones(2, 1), one_hot, torch.zeros(2, 1), net.initial_state(1))
        (logits.square().sum() + value.square().sum()).backward()
        optimiser.step()
        scheduler.step()
    content = {
        "model_state_dict": net.state_dict(),
        "optimizer_state_dict": optimiser.state_dict(),
        "scheduler_state_dict": scheduler.state_dict(),
        "flags": flags,
    }
    if stats is not None:
        content["stats"] = stats
    torch.save(content, path)
    return content


def convert(*arguments):
    return main(["convert", "model.tar", "--output_dir", "run", "--env", ENV, *arguments])


def converted():
    """The network of the run folder, as `packtrain eval` builds it, the state it was loaded from, the experiment."""
    _, state = checkpoint.load_newest(Path("run/checkpoints"))
    configuration, experiment, spec = preparation.prepare([Path("run/config.gin")], [], {}, None, False)
    restore_checks.refuse_other(Path("run"), state, configuration)
    network = experiment.policy.build_network(spec)
    (weights,) = state["weights"].values()
    network.load_state_dict(weights)
    return network, state, experiment


@pytest.fixture(autouse=True)
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1)


# -- the same network


def rows(steps, batch, actions, seed=0):
    """Single frames with context, where episodes begin, rewards and actions; and the same as the old network saw it."""
    generator = torch.Generator().manual_seed(seed)
    context = FRAMES - 1
    frames = torch.randint(0, 256, (context + steps, batch, 84, 84), generator=generator, dtype=torch.uint8)
    first = torch.zeros(context + steps, batch, dtype=torch.bool)
    first[context + 3, 0] = first[context + 4, 1] = first[0] = True
    reward = torch.randn(steps, batch, generator=generator) * 2
    action = torch.randint(0, actions, (steps, batch), generator=generator)
    stacked = torch.empty(steps, batch, FRAMES, 84, 84, dtype=torch.uint8)
    for t in range(steps):
        for b in range(batch):
            for back in range(FRAMES):
                row = context + t
                for _ in range(back):  # one frame back, but never before the episode's first
                    row -= 0 if first[row, b] else 1
                stacked[t, b, FRAMES - 1 - back] = frames[row, b]
    done = first[context:]
    # TorchBeast shows the network what came before an episode; ours shows zeros there (docs/coming-from.md).
    old_reward = reward * ~done
    one_hot = F.one_hot(action, actions).float() * ~done.unsqueeze(-1)
    return (frames, first, action, reward), (stacked, old_reward, one_hot, done)


NETWORKS = {
    "mono": lambda: MonoBeast(ACTIONS, False),
    "mono_lstm": lambda: MonoBeast(ACTIONS, True),
    "mono_deep": lambda: MonoBeast(ACTIONS, False, deep_list()),
    "mono_deep_lstm": lambda: MonoBeast(ACTIONS, True, deep_list()),
    "mono_tied": lambda: MonoBeast(ACTIONS, False, tied_sequence()),
    "poly": lambda: PolyBeast(ACTIONS, False),
    "poly_lstm": lambda: PolyBeast(ACTIONS, True),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_values_and_states_are_the_old_networks(name):
    """Mutations: layers or residual blocks in another order, reward and action exchanged, action shown to the ResNet,
    another LSTM width, a state that is not carried over or not forgotten."""
    net = NETWORKS[name]()
    old_file("model.tar", net)
    assert convert() == 0
    network, _, _ = converted()
    assert sum(p.numel() for p in set(net.parameters())) <= sum(p.numel() for p in network.parameters())
    state, carry = net.initial_state(3), network.initial_carry(3)
    for seed in range(2):  # the second call goes on from the state of the first
        ours, theirs = rows(6, 3, ACTIONS, seed)
        with torch.no_grad():
            logits, value, state = net(*theirs, state)
            output = network(*ours, carry)
        carry = output.carry
        assert output.parameters.shape == (6, 3, ACTIONS) and output.value.shape == (6, 3)
        torch.testing.assert_close(output.parameters, logits, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(output.value, value, rtol=1e-5, atol=1e-5)
    assert len(carry) == len(state) == (2 if "lstm" in name else 0)
    for mine, old in zip(carry, state, strict=True):
        torch.testing.assert_close(mine.transpose(0, 1), old, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "actions, use_lstm, net, count",
    [
        (6, False, MonoBeast, 1_687_768),
        (6, True, MonoBeast, 6_005_848),
        (18, False, MonoBeast, 1_694_236),
        (6, False, PolyBeast, 1_091_038),
        (6, True, PolyBeast, 1_618_391),
    ],
)
def test_the_old_networks_here_have_torchbeasts_sizes(actions, use_lstm, net, count):
    """The specification's counts, so that this file's networks are those of TorchBeast."""
    assert sum(p.numel() for p in net(actions, use_lstm).parameters()) == count


# -- what goes along


def test_flags_become_knobs_and_the_rest_is_said(capsys):
    """Mutation: a flag that is left at the configuration's own value, or dropped without a word."""
    flags = old_flags(use_lstm=True, hidden_size=64, num_layers=3, fuel_multiplier=-10.0)
    old_file("model.tar", MonoBeast(ACTIONS, True, deep_list()), flags=flags)
    assert convert() == 0
    said = capsys.readouterr().out
    assert "AtariNet with an LSTM, 5 actions" in said and "step 30 of 1,000" in said
    assert "without its flags fuel_multiplier = -10.0: " in said and "averages" not in said
    _, _, experiment = converted()
    (learner,) = [use.learner for use in experiment.learners.values()]
    kept = "entropy_cost baseline_cost discounting reward_clipping learning_rate alpha epsilon momentum".split()
    assert {name: getattr(learner, name) for name in kept} == {name: flags[name] for name in kept}
    assert learner.grad_norm_clipping == 30.0 and (learner.optimiser, learner.reduction) == ("rmsprop", "sum")
    assert experiment.memories["unrolls"].unroll_length == 5 and experiment.memories["unrolls"].batch_size == 2
    assert experiment.streams.num_actors == 2 and experiment.streams.environment.id == ENV
    assert experiment.run.total_steps == 1000 and experiment.run.num_threads == 1
    assert (experiment.policy.hidden_size, experiment.policy.num_layers, experiment.policy.lstm_layers) == (64, 3, 2)


def test_bindings_of_the_user_win():
    old_file("model.tar", MonoBeast(ACTIONS, False))
    assert convert("--config", "entropy_cost = 0.5", "impala/atari", "--config", "log_every = 7") == 0
    _, _, experiment = converted()
    assert experiment.learners["impala"].learner.entropy_cost == 0.5 and experiment.run.log_every == 7
    assert experiment.learners["impala"].learner.baseline_cost == 0.4


def test_what_torchbeast_always_does_wins_over_a_configuration_and_loses_to_a_binding(capsys):
    """Mutation: WAYS left out, so that another optimiser goes on with RMSprop's learning rate."""
    old_file("model.tar", MonoBeast(ACTIONS, False))
    Path("mine.gin").write_text("include 'impala/atari.gin'\noptimiser = 'adam'\nreduction = 'mean'\n")
    assert convert("mine.gin", "--config", "reduction = 'mean'") == 0
    learner = converted()[2].learners["impala"].learner
    assert (learner.optimiser, learner.reduction) == ("rmsprop", "mean")
    assert main(["convert", "model.tar", "--output_dir", "b", "--env", ENV, "--config", "optimiser = 'adam'"]) == 0
    assert "without the optimiser's averages" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["mono_lstm", "mono_tied", "poly"])
def test_square_averages_and_steps_go_along(name):
    """Mutation: averages in the order of the old parameters, which is not ours for the ResNet."""
    net = NETWORKS[name]()
    old_file("model.tar", net)
    assert convert() == 0
    network, state, experiment = converted()
    learner = experiment.learners["impala"].learner.build(network, 1000)
    learner.load_state_dict({**state["learners"]["impala"], "network": state["weights"]["impala"]})
    assert (learner.steps, learner.updates, state["run"]["step"]) == (30, 3, 30)
    old = torch.load("model.tar", weights_only=True)["optimizer_state_dict"]["state"]
    by_name = {n: old[i]["square_avg"] for i, (n, _) in enumerate(net.named_parameters())}
    ours = {n: learner.optimiser.state[p]["square_avg"] for n, p in network.named_parameters()}
    pairs = {"policy.weight": "policy.weight", "baseline.bias": "value.bias"}
    pairs |= {
        "mono_lstm": {
            "core.weight_hh_l1": "core.lstm.weight_hh_l1",
            "conv3.weight": "perception.convolutions.4.weight",
        },
        "mono_tied": {"fc.2.weight": "body.4.weight", "fc.0.bias": "body.0.bias"},
        "poly": {
            "feat_convs.2.0.weight": "perception.convolutions.8.weight",
            "resnet2.0.3.weight": "perception.convolutions.3.inner.3.weight",
            "resnet1.1.1.bias": "perception.convolutions.6.inner.1.bias",
        },
    }[name]
    for theirs, mine in pairs.items():
        assert by_name[theirs].abs().sum() > 0
        torch.testing.assert_close(ours[mine], by_name[theirs], rtol=0, atol=0)


def test_polybeasts_stats_say_the_step_and_its_flags_may_be_a_namespace():
    """PolyBeast keeps NumPy numbers in its stats: they are passed over, not run. Its flags name no game."""
    stats = {"step": 12_345, "episode_returns": (np.float32(1.5), np.float32(2)), "mean_episode_return": None}
    flags = old_flags(num_actions=ACTIONS, pipes_basename="unix:/somewhere", max_learner_queue_size=2)
    del flags["env"], flags["num_buffers"]
    old_file("model.tar", PolyBeast(ACTIONS, False), stats=stats, flags=argparse.Namespace(**flags))
    assert convert() == 0
    _, state, experiment = converted()
    assert state["run"]["step"] == state["learners"]["impala"]["steps"] == 12_345
    assert experiment.memories["unrolls"].unroll_length == 5
    assert torchbeast.read(Path("model.tar")).kind == "ResNet"


def test_a_file_of_the_old_format_is_read():
    """Before torch 1.6 a file was not an archive."""
    content = old_file("model.tar", MonoBeast(ACTIONS, False))
    torch.save(content, "model.tar", _use_new_zipfile_serialization=False)
    assert convert() == 0
    assert converted()[1]["run"]["step"] == 30


def test_without_fitting_averages_learning_begins_with_new_ones(capsys):
    """Mutation: averages of one weight given to another."""
    content = old_file("model.tar", MonoBeast(ACTIONS, False))
    content["optimizer_state_dict"]["state"][0]["square_avg"] = torch.zeros(3)
    torch.save(content, "model.tar")
    assert convert() == 0
    assert "without the optimiser's averages" in capsys.readouterr().out
    assert converted()[1]["learners"]["impala"]["optimiser"] == {}


def test_the_state_has_the_parts_of_a_checkpoint_of_ours():
    """Mutation: a new part of a run's state that a converted one lacks."""
    old_file("model.tar", MonoBeast(ACTIONS, False))
    assert convert() == 0
    argv = ["train", "impala/catch", "--output_dir", "ours", "--runtime", "serial", "--total_steps", "40"]
    assert main([*argv, "--num_actors", "2", "--batch_size", "2", "--unroll_length", "5", "--num_buffers", "4"]) == 0
    _, ours = checkpoint.load_newest(Path("ours/checkpoints"))
    _, theirs = checkpoint.load_newest(Path("run/checkpoints"))
    assert set(theirs) == set(ours) - {"actor", "memories"}
    for part in ("run", "recorder"):
        assert set(theirs[part]) == set(ours[part])
    assert set(theirs["learners"]["impala"]) == set(ours["learners"]["impala"])


# -- the folder


@pytest.mark.parametrize("name", ["mono", "poly_lstm"])
def test_the_folder_is_played_and_goes_on(capsys, name):
    """Mutation: a state that cannot be resumed, or a configuration whose values differ when read again."""
    old_file("model.tar", NETWORKS[name]())
    assert convert() == 0
    assert sorted(path.name for path in Path("run").iterdir()) == [".lock", "checkpoints", "config.gin", "log.txt"]
    assert main(["eval", "run", "--num_episodes", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["checkpoint"], result["episodes"], result["length_mean"]) == (30, 2, 3)
    before = converted()[1]["weights"]["impala"]
    argv = ["train", "run/config.gin", "--output_dir", "run", "--total_steps", "60", "--log_every", "10"]
    assert main([*argv, "--eval_every", "0", "--runtime", "serial"]) == 0
    said = capsys.readouterr().out
    assert "going on from step 30" in said and "finished" in said
    step, state = checkpoint.load_newest(Path("run/checkpoints"))
    assert step >= 60 and state["learners"]["impala"]["updates"] > 3
    moved = [not torch.equal(state["weights"]["impala"][key], value) for key, value in before.items()]
    assert all(moved) and all(torch.isfinite(value).all() for value in state["weights"]["impala"].values())


def test_the_command_that_says_the_same_goes_on_too(capsys):
    old_file("model.tar", MonoBeast(ACTIONS, False))
    assert convert() == 0
    flags = {k: v for k, v in old_flags(env=ENV, total_steps=40).items() if k in SAID}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    assert main(["train", "impala/torchbeast", "--output_dir", "run", *words]) == 0
    assert "going on from step 30" in capsys.readouterr().out


SAID = (
    "env num_actors total_steps batch_size unroll_length num_buffers entropy_cost baseline_cost discounting "
    "learning_rate alpha momentum epsilon grad_norm_clipping"
).split()


@pytest.mark.parametrize("mode", ["test", "eval"])
def test_torchbeasts_test_modes_play_it_and_say_how(capsys, mode):
    """Mutation: a mode that trains, or that says nothing."""
    old_file("model.tar", MonoBeast(ACTIONS, False), updates=1)
    assert convert() == 0
    before = sorted(Path("run").rglob("*"))
    argv = ["train", "impala/atari", "--mode", mode, "--savedir", ".", "--xpid", "run", "--num_episodes", "2"]
    assert main(argv) == 0
    captured = capsys.readouterr()
    assert captured.err == f"packtrain: --mode {mode} is `packtrain eval run`\n"
    assert "run at step 10: return" in captured.out and "(2 episodes of 3.0 steps)" in captured.out
    assert set(Path("run").rglob("*")) - set(before) == {Path("run/eval.json")}


def test_rendering_is_filming_and_what_cannot_be_drawn_is_said(capsys):
    old_file("model.tar", MonoBeast(ACTIONS, False), updates=1)
    assert convert() == 0
    capsys.readouterr()
    assert main(["train", "impala/atari", "--mode", "test_render", "--savedir", ".", "--xpid", "run"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "packtrain: --mode test_render is `packtrain eval run --video`"
    assert len(said) == 2 and said[1].startswith("packtrain: error:")


def test_eval_of_an_old_folder_says_what_to_do(capsys):
    old_file("model.tar", MonoBeast(ACTIONS, False), updates=1)
    assert main(["eval", "."]) == 2
    assert "packtrain convert model.tar --output_dir" in one_line(capsys)


def test_an_atari_game_is_played_and_goes_on(capsys):
    """The file's own game, from its flags; a game is over after 400 frames."""
    pytest.importorskip("ale_py")
    old_file("model.tar", MonoBeast(6, False), flags=old_flags(num_actors=2))
    few = ["--config", "Atari.max_frames = 400", "--config", "Atari.num_threads = 1"]
    assert main(["convert", "model.tar", "--output_dir", "run", *few]) == 0
    assert main(["eval", "run", "--num_episodes", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["env"] == "PongNoFrameskip-v4" and 50 < result["length_mean"] <= 100
    assert main(["train", "run/config.gin", "--output_dir", "run", "--total_steps", "60"]) == 0
    assert "going on from step 30" in capsys.readouterr().out
    assert main(["convert", "model.tar", "--output_dir", "other", "--env", "BreakoutNoFrameskip-v4"]) == 2
    assert "has 6 actions but BreakoutNoFrameskip-v4 has 4" in one_line(capsys)
    assert not Path("other").exists()


# -- what is refused


def one_line(capsys):
    error = capsys.readouterr().err
    assert error.startswith("packtrain: error: ") and len(error.splitlines()) == 1, error
    return error


class Evil:
    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_that_would_run_something_is_refused_and_runs_nothing(capsys, zipped):
    """Mutation: torch.load without weights_only."""
    content = old_file("model.tar", MonoBeast(ACTIONS, False))
    torch.save({**content, "stats": Evil()}, "model.tar", _use_new_zipfile_serialization=zipped)
    assert convert() == 2
    assert "nothing in a checkpoint is executed" in one_line(capsys)
    assert not Path("ran").exists() and not Path("run").exists()


def test_a_files_word_imports_nothing(capsys, monkeypatch, tmp_path):
    """Mutation: taking `env` from the file as it is; "module:ID" would import the module."""
    Path("evil_module.py").write_text("import os; os.mkdir('ran')")
    monkeypatch.syspath_prepend(tmp_path)
    old_file("model.tar", MonoBeast(ACTIONS, False), flags=old_flags(env="evil_module:CartPole-v1"))
    assert main(["convert", "model.tar", "--output_dir", "run"]) == 2
    assert "give today's id with --env" in one_line(capsys)
    assert not Path("ran").exists() and not Path("run").exists()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.0001, 0.5, 0.99])
def test_a_file_cut_short_is_refused(capsys, zipped, share):
    content = old_file("model.tar", MonoBeast(ACTIONS, False), updates=1)
    torch.save(content, "model.tar", _use_new_zipfile_serialization=zipped)
    data = Path("model.tar").read_bytes()
    Path("model.tar").write_bytes(data[: int(share * len(data))])
    assert convert() == 2
    assert "model.tar cannot be read" in one_line(capsys)
    assert not Path("run").exists()


@pytest.mark.parametrize(
    "content, message",
    [
        ({"weights": {}}, "it has no model_state_dict, optimizer_state_dict, scheduler_state_dict, flags"),
        ([1, 2], "it has no model_state_dict"),
        (torch.zeros(3), "it has no model_state_dict"),
        (dict.fromkeys(torchbeast.PARTS, 3), "its flags is a int"),
    ],
)
def test_another_file_of_torchs_is_refused(capsys, content, message):
    torch.save(content, "model.tar")
    assert convert() == 2
    assert message in one_line(capsys)


def test_other_files_and_no_file_are_refused(capsys):
    for data in (b"a,b\n1,2\n", b"\x80\x02}q\x00.", b"PK\x03\x04 not an archive"):
        Path("model.tar").write_bytes(data)
        assert convert() == 2
        assert "model.tar" in one_line(capsys)
    Path("model.tar").unlink()
    assert convert() == 2
    assert "No such file" in one_line(capsys)


def test_a_folder_that_is_there_is_left_alone(capsys):
    """Mutation: writing into an existing run."""
    old_file("model.tar", MonoBeast(ACTIONS, False))
    Path("run").mkdir()
    Path("run/config.gin").write_text("mine")
    assert convert() == 2
    assert "already exists" in one_line(capsys)
    assert [path.read_text() for path in Path("run").iterdir()] == ["mine"]


def change(content, name, value):
    weights = OrderedDict(content["model_state_dict"])
    weights.pop(name, None)
    if value is not None:
        weights[name] = value
    torch.save({**content, "model_state_dict": weights}, "model.tar")


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("baseline.bias", None, "has no: baseline.bias"),
        ("conv2.weight", None, "has no: conv2.weight"),
        ("fc.weight", None, "has no: fc.weight"),
        ("core.weight_ih_l1", None, "has no: core.weight_ih_l1"),
        ("popart.mu", torch.zeros(1), "has weights that we do not know: popart.mu"),
        (
            "conv1.weight",
            torch.zeros(32, 4, 5, 5),
            "convolutions.0.weight is [32, 4, 5, 5] there and [32, 4, 8, 8] here",
        ),
        ("policy.bias", torch.zeros(4), "has 4 actions but TorchBeastPictures-v0 has 5"),
        ("policy.bias", torch.full((5,), torch.nan), "policy.bias is not a plain array of finite numbers"),
        ("policy.bias", torch.zeros(1).expand(5), "policy.bias is not a plain array of finite numbers"),
        ("fc.weight", torch.tensor(1.0), "fit no network"),
    ],
)
def test_weights_that_do_not_fit_are_named(capsys, name, value, message):
    content = old_file("model.tar", MonoBeast(ACTIONS, True), updates=1)
    change(content, name, value)
    assert convert() == 2
    assert message in one_line(capsys)
    assert not Path("run").exists()


def test_a_network_of_another_kind_is_refused(capsys):
    content = old_file("model.tar", MonoBeast(ACTIONS, False), updates=1)
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    torch.save({**content, "model_state_dict": net.state_dict()}, "model.tar")
    assert convert() == 2
    assert "neither MonoBeast's AtariNet nor PolyBeast's ResNet: its weights are 0.weight, 0.bias" in one_line(capsys)


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"unroll_length": None}, "the flag unroll_length is None"),
        ({"learning_rate": "fast"}, "a flag in model.tar: --learning_rate 'fast' is not a number"),
        ({"batch_size": -3}, "the flag batch_size is -3"),
    ],
)
def test_flags_that_cannot_be_meant_are_named(capsys, flags, message):
    old_file("model.tar", MonoBeast(ACTIONS, False), updates=1, flags=old_flags(**flags))
    assert convert() == 2
    assert message in one_line(capsys)


def test_a_game_must_be_given(capsys):
    """Mutation: a guess, such as the configuration's Pong. A configuration that the user names is not a guess."""
    flags = old_flags()
    del flags["env"]
    old_file("model.tar", MonoBeast(ACTIONS, False), updates=1, flags=flags)
    assert main(["convert", "model.tar", "--output_dir", "run"]) == 2
    assert "name it with --env" in one_line(capsys)
    Path("mine.gin").write_text(f"include 'impala/atari.gin'\nenv = '{ENV}'\n")
    assert main(["convert", "model.tar", "mine.gin", "--output_dir", "run"]) == 0
    assert converted()[2].streams.environment.id == ENV


def test_a_config_that_builds_another_network_is_refused(capsys):
    old_file("model.tar", MonoBeast(ACTIONS, False), updates=1)
    assert convert("impala/atari_paper") == 2
    assert "does not fit the configuration's network" in one_line(capsys)


def test_rename_accepts_only_its_own_names():
    with pytest.raises(CheckpointError, match="do not know: a, b, c, d and 1 more"):
        torchbeast.rename({name: torch.zeros(1) for name in "abcde"})
