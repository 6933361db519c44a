"""Runs of each family that take seconds: small networks, few environments. For tests that every family must pass.

`argv("r2d2", env="CartPole-v1")` are the arguments of `packtrain train`, without the run folder. Values that are not
given here are those of the shipped configuration.
"""

from __future__ import annotations

CARTPOLE, PENDULUM = "CartPole-v1", "Pendulum-v1"
IMPALA = "--num_actors 4 --batch_size 4 --unroll_length 10 --hidden_size 16 --num_layers 1"
R2D2 = (
    "--num_actors 4 --warm_up 200 --batch_size 8 --updates_per_step 0.05 --replay_size 4000 --lstm_size 16 "
    "--dueling_size 16"
)
STEVE = (
    "--num_actors 2 --warm_up 100 --batch_size 16 --updates_per_step 0.1 --replay_size 4000 --hidden_size 16 "
    "--num_layers 1 --pretrain 20 --model_updates_per_step 0.1 --model_batch_size 16 --transitions 2 --rewards 2 "
    "--model_hidden_size 16 --aux_hidden_size 16 --critics 2"
)
PLANNING = "--n_envs 2 --n_rollouts 5 --rollout_time_limit 5 --episode_time_limit 50"
TINY = {
    "impala": ["impala/gym", *IMPALA.split()],
    "r2d2": ["r2d2/small_base", *R2D2.split(), "--config", "QNetwork.hidden_sizes = (16,)"],
    "steve": ["steve/steve", *STEVE.split()],
    "planning": [
        *("planning/shooting_random_cartpole", *PLANNING.split()),
        *("--config", "Runner.env_class = @Environment"),
    ],
}
"""Family → configuration and knobs."""
ENVIRONMENTS = {"impala": CARTPOLE, "r2d2": CARTPOLE, "steve": PENDULUM, "planning": CARTPOLE}
"""Family → the environment it is run in if no other is named."""


def argv(family: str, *more: str, env: str | None = None, total: int = 1000) -> list[str]:
    """Return the arguments of a tiny run.

    Args:
      family: one of `TINY`.
      *more: further arguments.
      env: id of the environment; None: that of `ENVIRONMENTS`.
      total: steps; for a planner, the number of epochs is total // 100.
    """
    env = env or ENVIRONMENTS[family]
    if family == "planning":
        chosen = ["--config", f"Environment.id = {env!r}", "--n_epochs", str(max(1, total // 100))]
    else:
        chosen = ["--env", env, "--total_steps", str(total), "--log_every", str(max(1, total // 10))]
    return ["train", *TINY[family], *chosen, *more]
