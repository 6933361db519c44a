"""Sweeps: many runs of one configuration, over values of its settings and over seeds, as one resumable command."""
