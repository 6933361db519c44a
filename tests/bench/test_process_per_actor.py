"""The baseline is IMPALA, and it leaves nothing running."""

import math
import threading
import time
from multiprocessing import resource_tracker

import psutil
import pytest
import torch
from torch import nn

from packtrain.bench.process_per_actor import ACTIONS, AtariNet, act, loss, measure, rollouts
from packtrain.errors import EnvError


def children():
    return set(psutil.Process().children(recursive=True))


@pytest.fixture
def nothing_left():
    """No process stays behind but multiprocessing's own tracker, which lives as long as the interpreter."""
    pytest.importorskip("ale_py")
    resource_tracker.ensure_running()
    before = children()
    yield before
    assert children() == before


def test_network_is_the_shallow_one():
    """Mutation: a head without the last action or the last reward has fewer parameters."""
    net = AtariNet()
    assert sum(parameter.numel() for parameter in net.parameters()) == 1_687_768
    rows = {key: buffer[0] for key, buffer in rollouts(1, 2).items()}
    logits, values = net(rows["frame"], rows["reward"], rows["action"])
    assert logits.shape == (3, ACTIONS) and values.shape == (3,)


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("behaviour_prob", [1 / 6, 1 / 3])
def test_loss_by_arithmetic(done, behaviour_prob):
    """Mutations: row 0's reward or end used for action 1, an end that bootstraps, an unclipped reward, no ratio."""

    class Given(nn.Module):
        def forward(self, frame, reward, last_action):
            return torch.zeros(2, ACTIONS), torch.tensor([0.5, 2.0])

    batch = {key: buffer.transpose(0, 1).clone() for key, buffer in rollouts(1, 1).items()}  # [2, 1, ...]
    batch["reward"] = torch.tensor([[-7.0], [3.0]])
    batch["done"] = torch.tensor([[not done], [done]])
    batch["action"] = torch.tensor([[0], [4]])
    batch["logits"][1, 0, 4] = math.log(5 * behaviour_prob / (1 - behaviour_prob))
    rho = (1 / 6) / behaviour_prob
    error = rho * (1 + (0 if done else 0.99 * 2) - 0.5)
    want = -math.log(1 / 6) * error + 0.5 * 0.5 * error**2 - 0.0006 * math.log(6)
    torch.testing.assert_close(loss(Given(), batch), torch.tensor(want))


@pytest.mark.slow
def test_rollouts_overlap_by_one_row(nothing_left):
    """Mutations: row 0 not carried over from the rollout before; behaviour logits not stored; one action for ever."""
    context = torch.multiprocessing.get_context("spawn")
    free, full, buffers = context.SimpleQueue(), context.SimpleQueue(), rollouts(2, 20)
    for index in (0, 1, None):
        free.put(index)
    actor = context.Process(target=act, args=(0, AtariNet().share_memory(), buffers, free, full), daemon=True)
    actor.start()
    actor.join(120)
    assert actor.exitcode == 0 and [full.get(), full.get()] == [0, 1]
    for buffer in buffers.values():
        assert torch.equal(buffer[0, -1], buffer[1, 0])
    assert buffers["frame"].float().std() > 0 and not torch.equal(buffers["frame"][1, 0], buffers["frame"][1, -1])
    assert (buffers["logits"][1].abs().sum(-1) > 0).all()
    assert len(buffers["action"].unique()) > 2


@pytest.mark.slow
def test_a_short_run_learns_at_some_rate(nothing_left):
    got = measure(0.05, num_actors=2, unroll_length=5, batch_size=2)
    assert got["rate"] > 0 and got["updates"] >= 1
    assert torch.get_num_threads() == 1


@pytest.mark.slow
def test_a_dead_actor_is_an_error(nothing_left):
    """Mutation: without the look at the processes the learner waits for rollouts that never come."""

    def kill_one():
        while not (started := children() - nothing_left):
            time.sleep(0.05)
        started.pop().kill()

    killer = threading.Thread(target=kill_one)
    killer.start()
    with pytest.raises(EnvError, match="actor . of 2 ended with exit code -9"):
        measure(60.0, num_actors=2, unroll_length=5, batch_size=2)
    killer.join()
