"""IMPALA on Pong in the conventional layout, for comparison: one process per actor, inference with batch size 1.

The layout is MonoBeast's (Küttler et al. 2019, arXiv:1910.03552): each actor owns an environment and reads a float32
model in shared memory. Rollouts of T+1 rows are in shared tensors, and their indices are passed through queues. The
learner stacks B rollouts, takes one step and overwrites the shared model. Differences: the environment is ale-py's
vector of one, preprocessed in C++; processes are spawned; the main thread learns, since without copies to a device a
second learner gains nothing; the learning rate is constant; V-trace is this package's; data that no update reads is not
stored.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
import time
from typing import Any

import torch
from torch import Tensor, nn

from packtrain.equations.vtrace import vtrace
from packtrain.errors import EnvError, StalledError

ACTIONS = 6  # Pong's own
LEARNER_THREADS = 1  # torch's intra-op threads
STALL_SECS = 120  # limit for one full rollout; the first includes the start of the processes


class AtariNet(nn.Module):
    """MonoBeast's shallow network: three convolutions, one layer of 512, the last reward and action, two heads."""

    def __init__(self) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3)]
        self.torso = nn.Sequential(*convolutions, nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU())
        self.policy, self.baseline = nn.Linear(513 + ACTIONS, ACTIONS), nn.Linear(513 + ACTIONS, 1)

    def forward(self, frame: Tensor, reward: Tensor, last_action: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [N, A] and values [N] of frames [N, 4, 84, 84], with last rewards [N] and actions [N]."""
        one_hot = nn.functional.one_hot(last_action, ACTIONS)
        core = torch.cat([self.torso(frame.float().div_(255)), reward.clamp(-1, 1)[:, None], one_hot], dim=1)
        return self.policy(core), self.baseline(core).squeeze(1)


def rollouts(count: int, unroll_length: int) -> dict[str, Tensor]:
    """Return shared tensors [count, T+1, ...]; a row has an action, its logits, frame, reward and end."""
    row = {"frame": torch.zeros(4, 84, 84, dtype=torch.uint8), "reward": torch.tensor(0.0), "done": torch.tensor(False)}
    row |= {"logits": torch.zeros(ACTIONS), "action": torch.tensor(0)}
    return {key: one.expand(count, unroll_length + 1, *one.shape).clone().share_memory_() for key, one in row.items()}


def act(seed: int, model: AtariNet, buffers: dict[str, Tensor], free: Any, full: Any) -> None:
    """Run an actor: fill one free rollout after another, until the index is None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    parent: Any = multiprocessing.parent_process()
    threading.Thread(target=lambda: os._exit(parent.join() or 1), daemon=True).start()  # exit if the parent exits
    from ale_py.vector_env import AtariVectorEnv

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    options: dict[str, Any] = {"stack_num": 4, "noop_max": 30, "episodic_life": False, "use_fire_reset": True}
    env = AtariVectorEnv("pong", num_envs=1, num_threads=1, reward_clipping=False, autoreset_mode="SameStep", **options)
    row = {key: torch.zeros_like(buffer[0, :1]) for key, buffer in buffers.items()}  # [1, ...]
    row["frame"] = torch.from_numpy(env.reset(seed=seed)[0])
    with torch.no_grad():
        while (index := free.get()) is not None:
            for t in range(buffers["done"].shape[1]):
                if t > 0:  # row 0 is the last row of the previous rollout
                    logits, _ = model(row["frame"], row["reward"], row["action"])
                    action = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
                    frame, reward, terminated, truncated, _ = env.step(action.numpy())
                    row = {"frame": torch.from_numpy(frame), "reward": torch.from_numpy(reward).float()}
                    row |= {"done": torch.from_numpy(terminated | truncated), "logits": logits, "action": action}
                for key, value in row.items():
                    buffers[key][index, t] = value[0]
            full.put(index)


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return policy gradient + 0.5 · ½ baseline error² + 0.0006 · negative entropy, summed over [T+1, B, ...]."""
    rows = batch["done"].shape  # T+1, B
    logits, values = model(*(batch[key].flatten(0, 1) for key in ("frame", "reward", "action")))
    log_policy, values = logits.view(*rows, ACTIONS)[:-1].log_softmax(-1), values.view(rows)  # [T, B, A], [T+1, B]
    answer = {key: value[1:] for key, value in batch.items()}  # row t+1 has the result of the action chosen in row t
    action, reward, goes_on = answer["action"][..., None], answer["reward"].clamp(-1, 1), (~answer["done"]).float()
    log_prob = log_policy.gather(-1, action).squeeze(-1)  # [T, B]
    log_rho = log_prob - answer["logits"].log_softmax(-1).gather(-1, action).squeeze(-1)
    returns = vtrace(values[:-1], values[1:], reward, 0.99 * goes_on, log_rho, goes_on, torch.ones_like(goes_on))
    baseline = 0.5 * 0.5 * (returns.targets - values[:-1]).square().sum()
    return -(log_prob * returns.advantages).sum() + baseline + 0.0006 * (log_policy.exp() * log_policy).sum()


def _next_full(full: Any, actors: list[Any]) -> int:
    for _ in range(STALL_SECS):
        for number, actor in enumerate(actors):
            if not actor.is_alive():
                raise EnvError(f"actor {number} of {len(actors)} ended with exit code {actor.exitcode}, playing Pong.")
        with contextlib.suppress(queue.Empty):
            return full.get(timeout=1.0)
    raise StalledError(f"{len(actors)} actors filled no rollout in {STALL_SECS} seconds.")


def measure(
    secs: float, *, num_actors: int = 2, unroll_length: int = 80, batch_size: int = 8, warm_up_updates: int = 2
) -> dict[str, float]:
    """Return the steps learned per second, over the complete updates of about `secs` seconds after the warm-up.

    The defaults were the fastest of 2, 3, 4 and 8 actors with 1 and 2 learner threads on 2 cores. Steps per core-second
    with other load, two rounds, as ratios to them: 1, 0.83, 0.82, 0.71 with 1 thread, 0.68, 0.62, 0.72, 0.67 with 2.
    Steps per second on a quiet machine, one round with fewer rollouts: 0.93 to 1 up to 4 actors (noise 0.04), 0.85 with
    8.
    """
    learner, shared = AtariNet(), AtariNet().share_memory()
    shared.load_state_dict(learner.state_dict())
    optimiser = torch.optim.RMSprop(learner.parameters(), lr=4.8e-4, eps=0.01)
    buffers = rollouts(batch_size + 2 * num_actors, unroll_length)
    context, actors, threads = torch.multiprocessing.get_context("spawn"), [], torch.get_num_threads()
    free, full = context.SimpleQueue(), context.Queue()
    torch.set_num_threads(LEARNER_THREADS)
    try:
        for seed in range(num_actors):
            actor = context.Process(target=act, args=(seed, shared, buffers, free, full), daemon=True)
            actor.start()
            actors.append(actor)
        for index in range(len(buffers["done"])):
            free.put(index)
        updates, begin, now = -warm_up_updates, time.perf_counter(), 0.0
        while updates < 1 or now - begin < secs:
            indices = [_next_full(full, actors) for _ in range(batch_size)]
            batch = {key: torch.stack([buffer[i] for i in indices], dim=1) for key, buffer in buffers.items()}
            for index in indices:
                free.put(index)
            optimiser.zero_grad()
            loss(learner, batch).backward()
            nn.utils.clip_grad_norm_(learner.parameters(), 40.0)
            optimiser.step()
            shared.load_state_dict(learner.state_dict())
            updates, now = updates + 1, time.perf_counter()
            begin = now if updates <= 0 else begin
        return {"rate": updates * unroll_length * batch_size / (now - begin), "updates": updates}
    finally:
        torch.set_num_threads(threads)
        for _ in actors:
            free.put(None)
        for actor in actors:
            actor.join(1.0)
            actor.kill()
            actor.join()
