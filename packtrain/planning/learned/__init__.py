"""Planning in a learned model: ensembles, tables, decoding of predictions, and verification."""

from packtrain.planning.learned.ensemble_model import NETWORK, EnsembleModel, LearnedModel
from packtrain.planning.learned.tabular_model import TableModel, TabularModel

__all__ = ["NETWORK", "EnsembleModel", "LearnedModel", "TableModel", "TabularModel"]
