"""PPO, SAC, TD3 and DQN against Stable-Baselines3: same environments, same steps, three seeds, one evaluation.

    python benchmarks/against_sb3.py runs/sb3 --sb3-python VENV/bin/python --cells ppo/cartpole dqn/cartpole

Stable-Baselines3 needs a virtual environment of its own: `pip install stable-baselines3 torch==2.13.0`. Each side
trains in a process with one thread. Both policies are then evaluated by `play` below: the same environment without
wrappers, the same seeds, actions without exploration. The hyper-parameters of SB3 are those of rl-baselines3-zoo, as in
our configurations; entropy coefficient, normalisation and schedules included. Finished cells are kept, so the same
command goes on. `--table` prints what is there as Markdown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

EPISODES, EVAL_SEED = 50, 10_000

# {cell: (environment, steps, SB3 class, arguments of the class, number of environments, normalised observations)}
CELLS: dict[str, tuple[str, int, str, dict[str, Any], int, bool]] = {
    "ppo/cartpole": (
        *("CartPole-v1", 50_000, "PPO"),
        dict(
            n_steps=32, batch_size=256, n_epochs=20, gae_lambda=0.8, gamma=0.98, ent_coef=0.0, learning_rate="lin_0.001"
        ),
        *(8, False),
    ),
    "dqn/cartpole": (
        *("CartPole-v1", 50_000, "DQN"),
        dict(learning_rate=2.3e-3, batch_size=64, buffer_size=100_000, learning_starts=1000, gamma=0.99, train_freq=256)
        | dict(target_update_interval=10, gradient_steps=128, exploration_fraction=0.16, exploration_final_eps=0.04)
        | dict(policy_kwargs=dict(net_arch=[256, 256])),
        *(1, False),
    ),
    "ppo/acrobot": (
        *("Acrobot-v1", 100_000, "PPO"),
        dict(n_steps=256, gae_lambda=0.94, gamma=0.99, n_epochs=4, ent_coef=0.0),
        *(16, True),
    ),
    "dqn/acrobot": (
        *("Acrobot-v1", 100_000, "DQN"),
        dict(learning_rate=6.3e-4, batch_size=128, buffer_size=50_000, learning_starts=1000, train_freq=4)
        | dict(target_update_interval=250, gradient_steps=-1, exploration_fraction=0.12, exploration_final_eps=0.1)
        | dict(policy_kwargs=dict(net_arch=[256, 256])),
        *(1, False),
    ),
    "ppo/lunarlander": (
        *("LunarLander-v3", 100_000, "PPO"),
        dict(n_steps=1024, batch_size=64, gae_lambda=0.98, gamma=0.999, n_epochs=4, ent_coef=0.01),
        *(16, False),
    ),
    "dqn/lunarlander": (
        *("LunarLander-v3", 100_000, "DQN"),
        dict(learning_rate=6.3e-4, batch_size=128, buffer_size=50_000, learning_starts=1000, train_freq=4)
        | dict(target_update_interval=250, gradient_steps=-1, exploration_fraction=0.12, exploration_final_eps=0.1)
        | dict(policy_kwargs=dict(net_arch=[256, 256])),
        *(1, False),
    ),
    "ppo/pendulum": (
        *("Pendulum-v1", 100_000, "PPO"),
        dict(n_steps=1024, gae_lambda=0.95, gamma=0.9, n_epochs=10, ent_coef=0.0, learning_rate=1e-3),
        *(4, False),
    ),
    "sac/pendulum": ("Pendulum-v1", 10_000, "SAC", dict(learning_rate=1e-3), 1, False),
    "td3/pendulum": (
        *("Pendulum-v1", 10_000, "TD3"),
        dict(learning_rate=1e-3, learning_starts=1000, gamma=0.99, policy_kwargs=dict(net_arch=[256, 256])),
        *(1, False),
    ),
    "ppo/halfcheetah": ("HalfCheetah-v5", 100_000, "PPO", dict(n_steps=2048, learning_rate="lin_0.0003"), 1, True),
    "sac/halfcheetah": ("HalfCheetah-v5", 100_000, "SAC", dict(learning_starts=10_000), 1, False),
    "td3/halfcheetah": (
        *("HalfCheetah-v5", 100_000, "TD3"),
        dict(learning_starts=10_000, learning_rate=1e-3, policy_kwargs=dict(net_arch=[256, 256])),
        *(1, False),
    ),
}
NORMALISED_REWARDS = ("ppo/acrobot", "ppo/pendulum", "ppo/halfcheetah")


def play(env_id: str, act: Any, episodes: int = EPISODES) -> list[float]:
    """Return the returns of episodes in a fresh environment.

    Args:
      env_id: of the environment.
      act: observation → action.
      episodes: number of them; episode k has the seed EVAL_SEED + k.
    """
    import gymnasium as gym

    env, returns = gym.make(env_id), []
    for k in range(episodes):
        obs, _ = env.reset(seed=EVAL_SEED + k)
        total, done = 0.0, False
        while not done:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total, done = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    return returns


def train_ours(cell: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train with packtrain and evaluate; return steps, seconds of training and returns."""
    import packtrain

    env_id, steps, *_ = CELLS[cell]
    begun = time.perf_counter()
    settings: dict[str, Any] = {"env": env_id, "total_steps": steps, "eval_every": 0, "progress": False}
    run = packtrain.train(cell, seed=seed, output_dir=folder / "run", **settings)
    seconds = time.perf_counter() - begun
    policy = packtrain.load(run)
    return {
        "steps": int(run.metrics()["step"][-1]),
        "seconds": seconds,
        "returns": play(env_id, lambda obs: policy.predict(obs)[0]),
    }


def train_theirs(cell: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train with Stable-Baselines3 and evaluate; return steps, seconds of training and returns."""
    import stable_baselines3
    import torch
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    env_id, steps, kind, given, count, normalised = CELLS[cell]
    arguments = dict(given)
    if str(arguments.get("learning_rate", "")).startswith("lin_"):
        first = float(str(arguments["learning_rate"]).removeprefix("lin_"))
        arguments["learning_rate"] = lambda remaining: first * remaining
    envs: Any = make_vec_env(env_id, count, seed=seed)
    if normalised or cell in NORMALISED_REWARDS:
        gamma = float(arguments.get("gamma", 0.99))
        envs = VecNormalize(envs, norm_obs=normalised, norm_reward=cell in NORMALISED_REWARDS, gamma=gamma)
    begun = time.perf_counter()
    model = getattr(stable_baselines3, kind)("MlpPolicy", envs, seed=seed, device="cpu", **arguments)
    model.learn(steps)
    seconds = time.perf_counter() - begun

    def act(obs: Any) -> Any:
        seen = envs.normalize_obs(obs) if isinstance(envs, VecNormalize) else obs
        return model.predict(seen, deterministic=True)[0]

    return {"steps": int(model.num_timesteps), "seconds": seconds, "returns": play(env_id, act)}


def results(root: Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return what is finished: {cell: {"ours" or "sb3": [result of each seed]}}."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for cell in CELLS:
        for side in ("ours", "sb3"):
            files = sorted((root / cell).glob(f"{side}_*.json"))
            if files:
                found.setdefault(cell, {})[side] = [json.loads(path.read_text()) for path in files]
    return found


def table(root: Path) -> str:
    """Return what is finished as a Markdown table."""
    from packtrain.studies.pairwise import difference_interval
    from packtrain.studies.statistics import mean_interval

    lines = [
        "| cell | steps | seeds | packtrain | SB3 | difference, 95 % interval | time, packtrain / SB3 |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for cell, sides in results(root).items():
        if len(sides) < 2:
            continue
        scores = {side: [sum(one["returns"]) / len(one["returns"]) for one in each] for side, each in sides.items()}
        count = min(map(len, scores.values()))
        scores = {side: each[:count] for side, each in scores.items()}  # the same number of seeds on both sides
        means = [mean_interval(scores[side])[0] for side in ("ours", "sb3")]
        interval = (
            "one seed" if count < 2 else "{:.1f} to {:.1f}".format(*difference_interval(scores["ours"], scores["sb3"]))
        )
        times = [sum(one["seconds"] for one in sides[side]) / len(sides[side]) for side in ("ours", "sb3")]
        lines.append(
            f"| `{cell}` | {CELLS[cell][1]:,} | {count} | {means[0]:.1f} | {means[1]:.1f} | "
            f"{means[0] - means[1]:+.1f}, {interval} | {times[0] / times[1]:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Train what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="folder for runs and results")
    parser.add_argument("--sb3-python", type=Path, help="interpreter of an environment with stable-baselines3")
    parser.add_argument("--cells", nargs="+", default=list(CELLS), choices=list(CELLS), metavar="CELL")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", action="store_true", help="print what is finished, train nothing")
    parser.add_argument("--one", nargs=3, metavar=("SIDE", "CELL", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.table:
        print(table(arguments.root))
        return
    if arguments.one:
        side, cell, seed = arguments.one
        folder = arguments.root / cell / f"{side}_{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        result = (train_ours if side == "ours" else train_theirs)(cell, int(seed), folder)
        (arguments.root / cell / f"{side}_{seed}.json").write_text(json.dumps(result) + "\n")
        return
    for cell in arguments.cells:
        for seed in range(arguments.seeds):
            for side, python in (("ours", sys.executable), ("sb3", arguments.sb3_python)):
                if python is None or (arguments.root / cell / f"{side}_{seed}.json").exists():
                    continue
                command = [str(python), __file__, str(arguments.root), "--one", side, cell, str(seed)]
                subprocess.run(command, check=True)
                print(cell, side, "seed", seed, "done", flush=True)


if __name__ == "__main__":
    main()
