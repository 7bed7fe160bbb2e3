"""Train a model on one or many devices, with checkpoints from which training goes on anywhere."""
