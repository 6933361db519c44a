"""Search over a model: shooting, Monte-Carlo tree search, best-first search. Many roots at once, as arrays."""
