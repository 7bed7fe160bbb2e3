"""The operators of MXNet 1.9.1: a row each, and how torch computes them."""
