"""On a GPU: captured work gives what plain work gives, and a GPU what a CPU gives. Skipped where there is none."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from packtrain import trees
from packtrain.accelerate.cuda_graph import WARM_UP, Captured
from packtrain.acting.actor_state import RowActorState
from packtrain.acting.sampling import ActorCritic, SamplingPolicy
from packtrain.algorithms.impala import Impala
from packtrain.cli import main
from packtrain.memory.unroll import Unrolls
from packtrain.metrics.reading import read_metrics, seed_folders
from packtrain.networks.perception import Conv
from packtrain.types import Row, Spec

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
SPEC = Spec(gym.spaces.Box(0, 255, (42, 42), np.uint8), gym.spaces.Discrete(5))
SIZE, ROWS, LENGTH = 6, 41, 8


def network(device, use_lstm=False):
    torch.manual_seed(0)
    perception = Conv(frames=4, channels=(8, 8), kernels=(8, 4), strides=(4, 2))
    sizes = ActorCritic(perception=perception, hidden_size=32, use_lstm=use_lstm, lstm_size=16)
    return sizes.build_network(SPEC).to(device)


def scripted_rows():
    rng = np.random.default_rng(0)
    for t in range(ROWS):
        first = rng.random(SIZE) < (0.1 if t else 2)
        yield Row(
            rng.integers(0, 256, (SIZE, 42, 42), np.uint8),
            first,
            rng.integers(0, 5, SIZE) * ~first,
            {"train": (rng.standard_normal(SIZE) * ~first).astype(np.float32)},
            rng.random(SIZE) < 0.1,
            np.zeros(SIZE, bool),
        )


def play(device, use_lstm):
    """Greedy actions of every row, and the trajectories a queue on the device delivers."""
    actor_state = RowActorState(SamplingPolicy(network(device, use_lstm), 0, greedy=True), SIZE)
    queue = Unrolls(unroll_length=LENGTH, batch_size=3).build([SIZE], 3, device)
    actions, samples = [], []
    for row in scripted_rows():
        decision = actor_state.act(row)
        actions.append(np.array(decision.action))
        extras = {"behaviour_log_prob": np.full(SIZE, -1.5, np.float32), "weights_version": np.zeros(SIZE, np.int64)}
        queue.writer(0).add(decision.row, decision.carry, extras)
        while (sample := queue.sample(version=0)) is not None:
            samples.append(sample.trajectory)
    return np.stack(actions), samples


@pytest.mark.parametrize("use_lstm", [False, True])
def test_a_gpu_acts_and_remembers_as_a_cpu_does(use_lstm):
    """Mutation: the window not shifted in the captured launch, or a block overwritten before it was stored."""
    actions, samples = play(CPU, use_lstm)
    there, kept = play(GPU, use_lstm)
    assert len(np.unique(actions)) > 1 and (actions == there).mean() > 0.99  # a tie may break the other way
    assert len(samples) == len(kept) > 5
    for one, other in zip(samples, kept, strict=True):
        assert all(leaf.device.type == "cuda" for leaf in trees.flatten(other))
        trees.map(lambda a, b: torch.testing.assert_close(a, b.cpu(), atol=1e-3, rtol=1e-3), one, other)


def test_a_captured_update_is_the_update():
    """Mutation: a captured learning rate that never changes, metrics read before the launch."""
    _, samples = play(CPU, False)
    plain, captured = (network(GPU) for _ in range(2))
    settings = Impala(learning_rate=0.01, lr_schedule="linear")
    learners = [settings.build(net, total_steps=10 * LENGTH * 3) for net in (plain, captured)]
    learners[0]._descend = learners[0]._step
    for update, trajectory in enumerate([*samples, *samples][: WARM_UP + 5]):
        sample = type("S", (), {"trajectory": trees.map(lambda x: x.to(GPU), trajectory), "steps": LENGTH * 3})()
        metrics = [learner.update(sample) for learner in learners]
        for name in metrics[0]:
            a, b = (float(m[name]) for m in metrics)
            assert a == pytest.approx(b, rel=2e-2, abs=1e-3), (update, name)
    assert learners[1]._descend.captured._graph is not None
    for a, b in zip(plain.parameters(), captured.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-2)


def test_captured_work_draws_new_numbers_each_time():
    """Mutation: a generator that is not registered replays the same noise for ever."""
    generator = torch.Generator(GPU).manual_seed(0)
    out = torch.zeros(4, device=GPU)
    call = Captured(lambda: out.uniform_(generator=generator), GPU, "noise", [generator])
    drawn = []
    for _ in range(WARM_UP + 4):
        call()
        drawn.append(tuple(out.tolist()))
    assert len(set(drawn)) == len(drawn) and call._graph is not None


@pytest.mark.parametrize(
    ("config", "steps", "seeds"),
    [("steve/steve_pendulum", 700, 1), ("steve/steve_pendulum", 700, 2), ("r2d2/catch", 9000, 1)],
)
def test_a_run_in_turns_gives_the_same_numbers_twice_on_a_gpu(tmp_path, capsys, config, steps, seeds):
    """Acting has a stream of its own. Mutations: weights taken before they are there; a flag that is set too late."""
    rows = []
    for name in "ab":
        argv = ["train", config, "--device", "cuda", "--runtime", "serial", "--total_steps", str(steps)]
        argv += ["--log_every", "100", "--num_seeds", str(seeds), "--output_dir", str(tmp_path / name)]
        assert main(argv) == 0, capsys.readouterr().err
        folders = seed_folders(tmp_path / name)
        rows.append([row for folder in folders for row in read_metrics(folder)])
        assert len(folders) == seeds
    for one, other in zip(*rows, strict=True):
        for key in ("step", "episode_return", "critic_loss", "total_loss", "value_mean"):
            assert one.get(key) == other.get(key), (one["step"], key)
