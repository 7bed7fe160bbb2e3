"""Norms, inverses and decompositions: `mx.np.linalg`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.mx.numpy.array import run, taken
from weft.mx.numpy.fallbacks import OF_LINALG, by_numpy


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """The norm of vectors, or of matrices."""
    return run(_norm, taken(x), ord, tuple(axis) if isinstance(axis, (list, tuple)) else axis, keepdims)


def _norm(x: Tensor, ord: Any, axis: Any, keepdims: bool) -> Any:
    if ord is None:
        return torch.linalg.vector_norm(x, 2, axis, keepdims)
    return torch.linalg.norm(x, ord, axis, keepdims)


def inv(a: Any) -> Any:
    """The inverse."""
    return run(torch.linalg.inv, taken(a))


def pinv(a: Any, rcond: float = 1e-15) -> Any:
    """The pseudo-inverse."""
    return run(_pinv, taken(a), rcond)


def _pinv(x: Tensor, rcond: float) -> Any:
    return torch.linalg.pinv(x, rtol=rcond)


def det(a: Any) -> Any:
    """The determinant."""
    return run(torch.linalg.det, taken(a))


def slogdet(a: Any) -> Any:
    """The sign and the logarithm of the determinant."""
    return tuple(run(_slogdet, taken(a), outputs=2))


def _slogdet(x: Tensor) -> Any:
    return tuple(torch.linalg.slogdet(x))


def cholesky(a: Any) -> Any:
    """The triangle whose product with its transpose it is."""
    return run(torch.linalg.cholesky, taken(a))


def solve(a: Any, b: Any) -> Any:
    """The solution of linear equations."""
    return run(torch.linalg.solve, [taken(a), taken(b)])


def eigh(a: Any, upper: bool = False) -> Any:
    """Eigenvalues and eigenvectors of a symmetric matrix."""
    return tuple(run(_eigh, taken(a), "U" if upper else "L", outputs=2))


def _eigh(x: Tensor, side: str) -> Any:
    return tuple(torch.linalg.eigh(x, UPLO=side))


def svd(a: Any) -> Any:
    """The singular values, and the rotations on both sides."""
    return tuple(run(_svd, taken(a), outputs=3))


def _svd(x: Tensor) -> Any:
    return tuple(torch.linalg.svd(x, full_matrices=False))


globals().update(by_numpy(OF_LINALG, np.linalg))
