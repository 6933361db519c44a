"""Shipped fakes for tests and configurations: one-ability environments, and one that breaks on purpose."""
