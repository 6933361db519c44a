"""Policies, which choose actions with networks, and the actor loop that steps environments with them."""
