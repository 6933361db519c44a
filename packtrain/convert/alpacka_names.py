"""Names of Alpacka and trust-but-verify beside ours, for `alpacka_gin.py`."""

from __future__ import annotations

OWNERS = {
    "mlp": "Mlp",
    "convnet_mnist": "ConvNet",
    "fcn_with_reward_function": "BoardModel",
    "ActorCriticAgent": "SoftmaxAgent",
    "PolicyNetworkAgent": "SoftmaxAgent",
    "SupervisedPriorityTrainer": "SupervisedTrainer",
    "ScalarValueTraits": "DeterministicMCTSAgent",
    "ScalarValueAccumulator": "DeterministicMCTSAgent",
    "EnsembleValueAccumulator": "DeterministicMCTSAgent",
    "ValueTraits": "DeterministicMCTSAgent",
    "TabularLookupNetwork": "TabularModel",
    "AutoBatchStepper": "LocalBatchStepper",
}
"""Configurable there → configurable here, where the names differ."""

PARAMETERS = {
    ("ShootingAgent", "agent_class"): ("ShootingAgent", "rollout_agent"),
    ("BanditAgent", "agent_class"): ("BanditAgent", "rollout_agent"),
    ("BanditAgent", "n_envs"): ("BanditAgent", "rollouts_per_pull"),
    ("StochasticMCTSAgent", "new_leaf_rater_class"): ("StochasticMCTSAgent", "new_leaf_rater"),
    ("StochasticMCTSAgent", "bonus_fn"): ("StochasticMCTSAgent", "bonus"),
    ("RolloutNewLeafRater", "rollout_agent_class"): ("RolloutNewLeafRater", "rollout_agent"),
    ("SoftmaxAgent", "linear_annealing_kwargs"): ("SoftmaxAgent", "annealing"),
    ("SupervisedTrainer", "target"): ("SupervisedTrainer", "targets"),
    ("SupervisedTrainer", "validation_split"): ("SupervisedTrainer", "validation_share"),
    ("ConvNet", "strides"): ("ConvNet", "stride"),
    ("Hanoi", "n_disks"): ("Hanoi", "disks"),
    ("Hanoi", "n_pegs"): ("Hanoi", "pegs"),
    ("BitFlipper", "n_bits"): ("BitFlipper", "bits"),
    ("ToyMR", "map_file"): ("ToyMR", "map"),
    ("ToyMR", "map_name"): ("ToyMR", "map"),
    ("Sokoban", "dim_room"): ("Sokoban", "height"),
    ("KerasNetwork", "model_fn"): ("Prediction", "torso"),
    ("KerasNetwork", "optimizer"): ("ExpertIteration", "optimiser"),
    ("KerasNetwork", "loss"): ("ExpertIteration", "losses"),
    ("KerasNetwork", "loss_weights"): ("ExpertIteration", "loss_weights"),
    ("KerasNetwork", "weight_decay"): ("ExpertIteration", "weight_decay"),
    ("model/KerasNetwork", "weight_decay"): ("WorldModelLearning", "weight_decay"),
    ("model/KerasNetwork", "optimizer"): ("WorldModelLearning", "optimiser"),
    ("model/mlp", "hidden_sizes"): ("EnsembleMlp", "hidden_sizes"),
    ("EnsembleNetwork", "n_networks"): ("EnsemblePrediction", "members"),
    ("model/EnsembleNetwork", "n_networks"): ("EnsembleMlp", "members"),
}
"""(configurable, parameter) there → here. Names of configurables are ours; "model/" is the scope of the world model."""

MODEL_TRAINERS = ("model/SupervisedTrainer", "model/SupervisedPriorityTrainer", "model/WorldModelTrainer")

GONE = {
    ("Runner", "output_dir"): "the program flag --output_dir",
    ("Runner", "n_envs_random_episodes"): "random episodes are played in the same n_envs environments",
    ("Runner", "log_rollout_every_n_epochs"): "`packtrain train --trace N` records searches",
    ("Runner", "log_heat_map_every_n_epochs"): "ExplorationCallback.picture_every",
    ("Runner", "log_other_images_every_n_epochs"): "not there",
    ("Runner", "log_detailed_heat_map"): "always part of the heat map",
    ("Runner", "log_false_positive_images"): "episode_model/predicted_reward_false_events counts them",
    ("Runner", "log_n_top_transitions"): "it did nothing",
    ("Runner", "rolling_metrics"): "episode_rolling/* is always there",
    ("Runner", "log_graph_distances"): "@ExplorationCallback in Runner.callback_classes",
    ("Runner", "log_n_experienced_states"): "@ExplorationCallback in Runner.callback_classes",
    ("ShootingAgent", "n_envs"): "rollouts of all environments are one batch",
    ("ShootingAgent", "batch_stepper_class"): "rollouts of all environments are one batch",
    ("BanditAgent", "batch_stepper_class"): "rollouts of all environments are one batch",
    ("RayBatchStepper", "compress_episodes"): "episodes are sent as arrays",
    ("KerasNetwork", "metrics"): "accuracies are always measured",
    ("KerasNetwork", "train_callbacks"): "nothing hooks into training",
    ("DeterministicMCTSAgent", "value_traits_class"): "its parameters are the agent's own",
    ("DeterministicMCTSAgent", "value_accumulator_class"): "DeterministicMCTSAgent.ensemble_size chooses",
    ("DeterministicMCTSAgent", "render_rollout"): "episode_model/* is always measured",
    ("BestFirstSearchAgent", "render_rollout"): "episode_model/* is always measured",
    ("EnsembleNetwork", "network_fn"): "EnsembleMlp and EnsemblePrediction have members of one kind",
    ("EnsembleNetwork", "n_networks"): "EnsembleMlp.members and EnsemblePrediction.members",
    ("WorldModelTrainer", "target"): "@WorldModel predicts changes, rewards and ends",
    ("WorldModelTrainer", "targets"): "@WorldModel predicts changes, rewards and ends",
    ("WorldModelTrainer", "inputs"): "a world model receives observations and actions",
    ("SupervisedTrainer", "validate_every_n_epochs"): "held-out episodes are measured after each epoch",
    ("SupervisedTrainer", "sample_mode"): "SupervisedTrainer.priority_exponent",
}
"""(configurable, parameter) → where its function is found here."""

OF_PLANNERS = ("ScalarValue", "EnsembleValue", "ValueTraits")  # classes whose parameters planners have here

VALUES = {
    ("Runner", "network_class"): {"KerasNetwork": "@Prediction", "EnsembleNetwork": "@EnsemblePrediction"},
    ("Runner", "model_network_class"): {"*": "@WorldModel"},
    ("Runner", "model_trainer_class"): {"*": "@WorldModelTrainer"},
    ("Runner", "model_class"): {"*": "@LearnedModel"},
    ("ShootingAgent", "rollout_agent"): {"RandomAgent": "None"},
    ("BanditAgent", "rollout_agent"): {"RandomAgent": "None"},
    ("RolloutNewLeafRater", "rollout_agent"): {"RandomAgent": "None", "*": "'logits'"},
    ("ExpertIteration", "losses"): {"*": ""},
}
"""(ours) → {the reference of old: the text here}; "*": any other; an empty text: left out."""

CALLED = {
    ("Prediction", "torso"),
    ("StochasticMCTSAgent", "new_leaf_rater"),
    ("ShootingAgent", "rollout_agent"),
    ("BanditAgent", "rollout_agent"),
    ("SoftmaxAgent", "annealing"),
}
"""Parameters that take a built object here, `@Mlp()`, and a class there, `@mlp`."""

FUNCTIONS = {"mean": "mean", "max": "max", "np.mean": "mean", "np.max": "max"}

MEANINGS = (
    ("", "the network's optimiser and its initial weights have Keras's numbers; batches and seeds differ"),
    (
        "Runner.model_class",
        "members of the model's ensemble predict each disk, cell or flag as one factor; with "
        "LearnedModel.factored = False each number is rounded by itself, as there",
    ),
    ("Runner.n_model_precollect_episodes", "rounded up to whole rounds of n_envs; there rounded down"),
    ("Runner.n_epochs", "counts epochs that learn; those of n_precollect_epochs come before them"),
    ("Runner.batch_stepper_class", "@RayBatchStepper starts a Ray cluster; `--runtime local` needs one process"),
    (
        "DeterministicMCTSAgent.ensemble_mask_size",
        "each environment draws a subset of its own; there all of a process shared one",
    ),
    (
        "StochasticMCTSAgent.n_leaves_to_expand",
        "the descent ends at the last expanded leaf; there it took one more step",
    ),
    (
        "BestFirstSearchAgent.bonus_quantile_threshold",
        "LearnedModel.verified_edges = 'graph' corrects the episode's graph, as there; 'run' keeps what was verified",
    ),
    ("SupervisedTrainer.replay_buffer_capacity", "per bucket, as there; room is taken as it is needed"),
    ("ToyMR.map", "the maps are ours: the published drawings are not available"),
    ("Sokoban.height", "boards are ours"),
    ("TDTrainer.temporal_diff_n", "a window without end is a large number; sums are computed directly"),
)
"""(binding in the translation, or "" for always if a network learns) → what changed in meaning."""
