"""Import the rules of all operators, which makes them known to the table of MXNet's rows."""

from weft.mx.operators import (
    algebra,
    codecs,
    detection,
    elementwise,
    images,
    indexing,
    layers,
    matching,
    outputs,
    quantized,
    reductions,
    sampling,
    shapes,
    updates,
    windows,
)
from weft.mx.operators.table import RULES

FILES = (
    *(elementwise, images, reductions, shapes, indexing, algebra),
    *(codecs, detection, layers, matching, outputs, quantized, sampling, updates, windows),
)

__all__ = ["FILES", "RULES"]
