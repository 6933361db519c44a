"""Device-specific code beyond torch's own calls: transfers, compilation, CUDA graphs, CPU replay, precision."""
