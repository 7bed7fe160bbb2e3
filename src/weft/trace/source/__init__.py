"""The text of a program becomes its stages: inlined, folded, pruned."""
