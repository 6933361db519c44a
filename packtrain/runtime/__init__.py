"""Running an experiment: the value, the runtimes that bring it to life, weights, checkpoints, evaluation."""
