"""Benchmarks: rates and their upper bounds, measured in one run: `packtrain bench NAME`."""
