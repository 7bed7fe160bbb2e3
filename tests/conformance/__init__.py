"""Weft against eager PyTorch, sample by sample: `python -m tests.conformance --help`."""
