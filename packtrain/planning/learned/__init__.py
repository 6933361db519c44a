"""Planning in a learned model: the ensemble, decoding of its predictions, verification, and tables of transitions."""

from packtrain.planning.learned.ensemble_model import NETWORK, EnsembleModel, LearnedModel

__all__ = ["NETWORK", "EnsembleModel", "LearnedModel"]
