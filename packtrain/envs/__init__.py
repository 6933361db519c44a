"""Gymnasium in, rows out: making environments, stepping many of them, and our own functional cores."""
