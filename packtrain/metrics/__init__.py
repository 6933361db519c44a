"""Metrics of runs: counters with units, the writers that store them, and the reader of a run folder."""
