"""The modules that users reach by name from `weft`: `weft.data`, `weft.models`."""

from weft.train import models
from weft.train.datasets import data

__all__ = ["data", "models"]
