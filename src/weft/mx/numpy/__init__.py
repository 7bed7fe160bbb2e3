"""Arrays that behave as NumPy's: `mx.np`, with `random` and `linalg`."""

import sys
from typing import Any

import numpy as np

from weft.mx.arrays import nd
from weft.mx.numpy import linalg, random
from weft.mx.numpy.array import NumpyNDArray as ndarray
from weft.mx.numpy.array import array
from weft.mx.numpy.extension import npx
from weft.mx.numpy.fallbacks import FALLBACKS
from weft.mx.numpy.functions import FUNCTIONS
from weft.mx.numpy.makers import MAKERS

TYPES = ("float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool_")
NUMBERS = ("pi", "e", "inf", "nan", "newaxis")

globals().update(FALLBACKS)
globals().update(FUNCTIONS)
globals().update(MAKERS)
globals().update({name: getattr(np, name) for name in (*TYPES, *NUMBERS)})
bool = np.bool_
vars(nd).update(np=sys.modules[__name__], npx=npx)  # blocks are given `F`, and say `F.np.exp`

__all__ = ["array", "linalg", "ndarray", "random", *FALLBACKS, *FUNCTIONS, *MAKERS, *TYPES, *NUMBERS]  # noqa: PLE0604  # of tables


def __getattr__(name: str) -> Any:
    if hasattr(np, name) and not name.startswith("_"):
        raise AttributeError(f"np.{name} is not in weft.mx; x.asnumpy() gives NumPy's array, of which it can be asked")
    raise AttributeError(f"module 'mxnet.numpy' has no attribute {name!r}")
