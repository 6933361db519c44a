"""The mathematics of the algorithms as pure torch functions: tensors in, tensors out, no state and no configuration."""
