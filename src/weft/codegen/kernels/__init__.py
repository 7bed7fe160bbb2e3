"""Emit LLVM functions for the kernels of a plan, a file a kind, with the loops and blocks they share."""
