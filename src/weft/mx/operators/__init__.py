"""Import the rules of all operators, which makes them known to the table of MXNet's rows."""

from weft.mx.operators import (
    algebra,
    detection,
    elementwise,
    images,
    indexing,
    layers,
    outputs,
    recurrent,
    reductions,
    sampling,
    shapes,
    updates,
)
from weft.mx.operators.table import RULES

FILES = (
    *(elementwise, images, reductions, shapes, indexing, algebra),
    *(detection, layers, outputs, recurrent, sampling, updates),
)

__all__ = ["FILES", "RULES"]
