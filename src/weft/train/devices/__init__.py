"""A batch and devices -> work for each of them, and sums over all."""
