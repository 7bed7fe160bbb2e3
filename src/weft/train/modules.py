"""The modules that users reach by name from `weft`: `weft.data`, `weft.models`."""

from weft.train import data, models

__all__ = ["data", "models"]
