"""Graphs -> kernels, tiles, lanes and memory: how to compute, as plain data that codegen follows."""
