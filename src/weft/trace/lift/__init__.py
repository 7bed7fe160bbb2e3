"""Lift PyTorch's operators to small ops, by a table of rules a file."""
