"""Best-first search over the graph of known states."""

from packtrain.planning.best_first.agent import BestFirstSearchAgent

__all__ = ["BestFirstSearchAgent"]
