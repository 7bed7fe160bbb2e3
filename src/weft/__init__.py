"""Weft: ordinary imperative PyTorch, run as whole compiled programs."""

__version__ = "0.1.0.dev0"
