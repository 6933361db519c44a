"""Rates beside their own bounds, measured in one run: `packtrain bench NAME`."""
