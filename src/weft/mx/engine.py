"""Hints to the engine: `mx.engine`."""

from weft.mx.queue import bulk, set_bulk_size

__all__ = ["bulk", "set_bulk_size"]
