"""MXNet's errors, element types and devices: what every other room of the dialect speaks of."""

from weft.mx.base.errors import MissingOperator, MXNetError, NotImplementedForSymbol

__all__ = ["MXNetError", "MissingOperator", "NotImplementedForSymbol"]
