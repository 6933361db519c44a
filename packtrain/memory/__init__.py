"""Memories: storage of experience between actors and learners."""
