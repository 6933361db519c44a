"""Modules that map tensors to tensors: perception, trunks, recurrent cores and heads. No losses, no environments."""
