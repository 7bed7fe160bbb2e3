"""Compute mathematical functions on vectors, at most 2 units from the exact result."""
