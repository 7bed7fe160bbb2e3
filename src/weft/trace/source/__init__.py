"""Optimise the text of a program in stages: inlined, folded, pruned."""
