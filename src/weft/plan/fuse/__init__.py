"""Fuse a Region into a Plan of few kernels."""
