"""Fakes and reference implementations for tests and configurations."""
