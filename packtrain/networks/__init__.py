"""Modules that map tensors to tensors: perception, torsos, recurrent cores and heads. No losses, no environments."""
