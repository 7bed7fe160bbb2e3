"""Kernels described by the plan -> LLVM text -> machine code."""
