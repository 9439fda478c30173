"""One training step: Module and Optimizer, one graph, pieces, with or without other ranks."""
