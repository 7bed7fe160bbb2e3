"""Compute products of matrices, and what is found of one: factors, inverses, triangles."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.mx.base.errors import MXNetError
from weft.mx.operators.table import computes


def _only_floating(name: str, x: Tensor) -> None:
    if not x.is_floating_point():
        raise MXNetError(f"{name} only supports floating point types")


def _turned(x: Tensor, switch: bool) -> Tensor:
    return x.transpose(-1, -2) if switch else x


@computes("dot")
def dot(p: Any, x: Tensor, y: Tensor) -> Tensor:
    """The last axis of one with the first of the other."""
    _only_floating("dot", x)
    if x.dim() == 1 and y.dim() == 1:
        return torch.dot(x, y).reshape(1)
    if p.transpose_a:
        x = x.permute(*range(1, x.dim()), 0) if x.dim() > 1 else x
    if p.transpose_b:
        y = y.permute(-1, *range(y.dim() - 1)) if y.dim() > 1 else y
    if x.shape[-1] != y.shape[0]:
        raise MXNetError(f"dot shape error: {list(x.shape)} X {list(y.shape)}")
    return torch.tensordot(x, y, dims=1) if x.dim() > 2 or y.dim() > 2 else x @ y


@computes("batch_dot")
def batch_dot(p: Any, x: Tensor, y: Tensor) -> Tensor:
    """A matrix product for each of a batch."""
    _only_floating("batch_dot", x)
    if x.shape[:-2] != y.shape[:-2]:
        raise MXNetError(f"batch_dot shape error: {list(x.shape)} X {list(y.shape)}")
    return _turned(x, p.transpose_a) @ _turned(y, p.transpose_b)


@computes("khatri_rao")
def khatri_rao(_p: Any, *arrays: Tensor) -> Tensor:
    """The Kronecker product of each column."""
    found = arrays[0]
    for other in arrays[1:]:
        found = (found.unsqueeze(1) * other.unsqueeze(0)).reshape(-1, found.shape[1])
    return found


@computes("_linalg_gemm")
def gemm(p: Any, a: Tensor, b: Tensor, c: Tensor) -> Any:
    """A matrix product that is added to a matrix."""
    a, b, c = (x.movedim(p.axis, -2) for x in (a, b, c))
    return (p.alpha * (_turned(a, p.transpose_a) @ _turned(b, p.transpose_b)) + p.beta * c).movedim(-2, p.axis)


@computes("_linalg_gemm2")
def gemm2(p: Any, a: Tensor, b: Tensor) -> Any:
    """A matrix product."""
    a, b = (x.movedim(p.axis, -2) for x in (a, b))
    return (p.alpha * (_turned(a, p.transpose_a) @ _turned(b, p.transpose_b))).movedim(-2, p.axis)


@computes("_linalg_syrk")
def syrk(p: Any, a: Tensor) -> Any:
    """A matrix times itself."""
    return p.alpha * (_turned(a, p.transpose) @ _turned(a, not p.transpose))


@computes("_linalg_trmm")
def trmm(p: Any, a: Tensor, b: Tensor) -> Any:
    """The product with a triangle."""
    triangle = _turned(torch.tril(a) if p.lower else torch.triu(a), p.transpose)
    return p.alpha * (b @ triangle if p.rightside else triangle @ b)


@computes("_linalg_trsm")
def trsm(p: Any, a: Tensor, b: Tensor) -> Any:
    """What gives `b` when it is multiplied by a triangle."""
    triangle, upper = _turned(a, p.transpose), p.lower == p.transpose
    return torch.linalg.solve_triangular(triangle, p.alpha * b, upper=upper, left=not p.rightside)


@computes("_linalg_potrf")
def potrf(_p: Any, a: Tensor) -> Any:
    """The lower Cholesky factor."""
    return torch.linalg.cholesky(a)


@computes("_linalg_potri")
def potri(_p: Any, a: Tensor) -> Any:
    """The inverse of a matrix, from its lower Cholesky factor."""
    identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(a.shape)
    found = torch.linalg.solve_triangular(torch.tril(a), identity, upper=False)
    return found.transpose(-1, -2) @ found


@computes("_linalg_inverse")
def inverse(_p: Any, a: Tensor) -> Any:
    """The inverse."""
    return torch.linalg.inv(a)


@computes("_linalg_det")
def det(_p: Any, a: Tensor) -> Any:
    """The determinant."""
    found = torch.linalg.det(a)
    return found.reshape(1) if found.dim() == 0 else found


@computes("_linalg_slogdet", outputs=2)
def slogdet(_p: Any, a: Tensor) -> Any:
    """The sign and the logarithm of the determinant."""
    sign, logarithm = torch.linalg.slogdet(a)
    return (sign.reshape(1), logarithm.reshape(1)) if sign.dim() == 0 else (sign, logarithm)


@computes("_linalg_sumlogdiag")
def sumlogdiag(_p: Any, a: Tensor) -> Tensor:
    """The sum of the logarithms of the diagonal."""
    found = torch.log(torch.diagonal(a, dim1=-2, dim2=-1)).sum(-1)
    return found.reshape(1) if found.dim() == 0 else found


@computes("_linalg_extractdiag")
def extractdiag(p: Any, a: Tensor) -> Tensor:
    """A diagonal."""
    return torch.diagonal(a, p.offset, -2, -1)


@computes("_linalg_makediag")
def makediag(p: Any, a: Tensor) -> Tensor:
    """The matrix with this diagonal."""
    return torch.diag_embed(a, p.offset)


def _triangle(count: int, p: Any) -> Any:
    chosen = torch.tril_indices if p.lower else torch.triu_indices
    return chosen(count, count, p.offset)


@computes("_linalg_extracttrian")
def extracttrian(p: Any, a: Tensor) -> Tensor:
    """The elements of a triangle, row after row."""
    rows, columns = _triangle(a.shape[-1], p)
    return a[..., rows, columns]


@computes("_linalg_maketrian")
def maketrian(p: Any, a: Tensor) -> Tensor:
    """The triangle with these elements."""
    size = round((-1 + (1 + 8 * a.shape[-1]) ** 0.5) / 2) + abs(p.offset)
    rows, columns = _triangle(size, p)
    line = a.new_zeros(*a.shape[:-1], size * size).index_copy(-1, (rows * size + columns).to(a.device), a)
    return line.reshape(*a.shape[:-1], size, size)


@computes("_linalg_gelqf", outputs=2)
def gelqf(_p: Any, a: Tensor) -> Any:
    """The factors L and Q, the diagonal of L positive."""
    q, r = torch.linalg.qr(a.transpose(-1, -2))
    sign = torch.sign(torch.diagonal(r, dim1=-2, dim2=-1))
    return r.transpose(-1, -2) * sign.unsqueeze(-2), q.transpose(-1, -2) * sign.unsqueeze(-1)


@computes("_linalg_syevd", outputs=2)
def syevd(_p: Any, a: Tensor) -> Any:
    """Eigenvectors, a row each, and eigenvalues of a symmetric matrix."""
    values, vectors = torch.linalg.eigh(a)
    return vectors.transpose(-1, -2), values


@computes("_contrib_interleaved_matmul_selfatt_qk")
def selfatt_qk(p: Any, x: Tensor) -> Any:
    """Scores of self-attention, from queries, keys and values that lie interleaved."""
    q, k, _ = _interleaved(x, p.heads, 3)
    return (q / q.shape[-1] ** 0.5) @ k.transpose(1, 2)


@computes("_contrib_interleaved_matmul_selfatt_valatt")
def selfatt_valatt(p: Any, x: Tensor, attention: Tensor) -> Tensor:
    """Values weighed by attention, from queries, keys and values that lie interleaved."""
    return _side_by_side(attention @ _interleaved(x, p.heads, 3)[2], p.heads)


@computes("_contrib_interleaved_matmul_encdec_qk")
def encdec_qk(p: Any, queries: Tensor, x: Tensor) -> Any:
    """Scores of attention, from keys and values that lie interleaved."""
    q = _interleaved(queries, p.heads, 1)[0]
    return (q / q.shape[-1] ** 0.5) @ _interleaved(x, p.heads, 2)[0].transpose(1, 2)


@computes("_contrib_interleaved_matmul_encdec_valatt")
def encdec_valatt(p: Any, x: Tensor, attention: Tensor) -> Tensor:
    """Values weighed by attention, from keys and values that lie interleaved."""
    return _side_by_side(attention @ _interleaved(x, p.heads, 2)[1], p.heads)


def _interleaved(x: Tensor, heads: int, parts: int) -> list[Tensor]:
    length, batch, size = x.shape
    pieces = x.reshape(length, batch, heads, parts, size // heads // parts).permute(3, 1, 2, 0, 4)
    return [piece.reshape(batch * heads, length, -1) for piece in pieces]


def _side_by_side(x: Tensor, heads: int) -> Tensor:
    rows, length, size = x.shape
    return x.reshape(rows // heads, heads, length, size).permute(2, 0, 1, 3).reshape(length, rows // heads, -1)


@computes("_contrib_fft")
def fft(_p: Any, x: Tensor) -> Tensor:
    """Fourier's transform of lines: real and imaginary parts in turn."""
    return torch.view_as_real(torch.fft.fft(x)).flatten(-2).to(x.dtype)


@computes("_contrib_ifft")
def ifft(_p: Any, x: Tensor) -> Tensor:
    """The way back, not divided by how many there are, without the imaginary part."""
    spectrum = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    found: Tensor = torch.fft.ifft(spectrum, norm="forward").real.to(x.dtype)
    return found
