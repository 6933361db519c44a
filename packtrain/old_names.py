"""Old names that configurations and command lines may still use."""

MODULES = {
    "packtrain.runtime.runner": "packtrain.alpacka_runner",
    "packtrain.algorithms.targets": "packtrain.algorithms.value_expansion",
    "packtrain.algorithms.value_targets": "packtrain.algorithms.value_expansion",
    "packtrain.planning.leaf_raters": "packtrain.planning.leaf_evaluators",
    "packtrain.planning.learned": "packtrain.planning.learned.ensemble_model",
    "packtrain.planning.predictive": "packtrain.planning.trajectory_search",
    "packtrain.envs.ours": "packtrain.envs.registration",
    "packtrain.memory.sequences": "packtrain.memory.sequence_settings",
    "packtrain.planning.frontier": "packtrain.planning.tabular_search",
}
"""Modules that configurations import."""

INCLUDES = {
    "steve/numbers/hopper.gin": "steve/tasks/sac/hopper.gin",
    "steve/numbers/humanoid.gin": "steve/tasks/sac/humanoid.gin",
    "steve/numbers/paper.gin": "steve/paper.gin",
    "steve/numbers/paper_model.gin": "steve/paper/model_base.gin",
    "steve/numbers/pendulum.gin": "steve/tasks/pendulum.gin",
    "steve/numbers/pendulum_model.gin": "steve/tasks/model_base/pendulum.gin",
}
"""Parts of shipped configurations that files include."""

FIRST_FAMILY = {"cartpole": "impala", "gym": "impala"}
"""Families that had a configuration of this name before others did: "gym.gin" means impala/gym."""
