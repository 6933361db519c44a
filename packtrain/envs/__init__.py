"""Environments: creating them, stepping many at once, validating their data, and the built-in functional cores."""
