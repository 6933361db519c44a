"""Execution of experiments: settings, runtimes, weights, checkpoints and evaluation."""
