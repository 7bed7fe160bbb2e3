"""Tell whether the user's code that runs now would catch an exception: by the tables of handlers in its bytecode.

`try: L = torch.linalg.cholesky(a)` with an `except` goes on otherwise where `a` is not positive definite. While code is
traced there are no elements, so the way that it takes then is never seen.
"""

from __future__ import annotations

import dis
import os
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from types import CodeType, FrameType, MappingProxyType
from typing import Any

import torch

from weft.trace.interception.user_lines import is_of_user

_OF_ELEMENTS = """
    cholesky cholesky_inverse inv inverse solve eig eigh eigvals eigvalsh svd svdvals lstsq lu_factor lu ldl_factor
    linalg_cholesky linalg_inv linalg_solve linalg_eig linalg_eigh linalg_svd linalg_lstsq linalg_pinv pinverse pinv
    linalg_lu_factor linalg_tensorinv tensorinv linalg_tensorsolve tensorsolve matrix_power linalg_matrix_power
    embedding embedding_bag one_hot cross_entropy nll_loss binary_cross_entropy multi_margin_loss
    multilabel_margin_loss ctc_loss gather take take_along_dim index_select index_add index_add_ index_copy
    index_copy_ index_fill index_fill_ index_put index_put_ scatter scatter_ scatter_add scatter_add_ scatter_reduce
    scatter_reduce_ put put_ multinomial bernoulli bernoulli_ poisson normal bincount histc repeat_interleave quantile
    nanquantile
"""
_DIVIDING = """
    floor_divide floor_divide_ remainder remainder_ fmod fmod_ div div_ divide __floordiv__ __rfloordiv__ __mod__
    __rmod__ __ifloordiv__ __imod__
"""
# Functions of PyTorch, by name, that raise where elements are what they do not take.
OF_ELEMENTS = frozenset(_OF_ELEMENTS.split())
INDEXING = frozenset({"__getitem__", "__setitem__"})  # raise where an index is a tensor
DIVIDING = frozenset(_DIVIDING.split())  # raise where whole numbers are divided by zero
SWALLOWING = frozenset({"suppress", "ExitStack", "raises"})  # what may catch in a `with` statement
TRACING = (f"trace{os.sep}tracer.py", f"trace{os.sep}backward.py")
BEGINS = frozenset({"run", "_differentiate"})  # where traced code is called
_STOPS = frozenset({"RERAISE", "POP_EXCEPT", "RETURN_VALUE"})


def may_raise(function: Any, arguments: Iterable[Any]) -> bool:
    """Whether a function of PyTorch raises where elements are what it does not take."""
    name = getattr(function, "__name__", "")
    if name in OF_ELEMENTS:
        return True
    if name in INDEXING:
        index = [*arguments][1:]
        parts = index[0] if index and isinstance(index[0], tuple) else index[:1]
        return any(isinstance(part, (torch.Tensor, list)) for part in parts)
    tensors = [given for given in arguments if isinstance(given, torch.Tensor)] if name in DIVIDING else []
    return bool(tensors) and not any(given.is_floating_point() or given.is_complex() for given in tensors)


def would_catch() -> bool:
    """Whether traced code of this thread handles exceptions where it is; what called the program does not count."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (frame.f_code.co_filename.endswith(TRACING) and frame.f_code.co_name in BEGINS):
        if is_of_user(frame) and _catches(frame.f_code, frame.f_lasti):
            return True
        frame = frame.f_back
    return False


def _catches(code: CodeType, place: int) -> bool:
    if sys.version_info < (3, 11):
        return any(step.opname == "JUMP_IF_NOT_EXC_MATCH" for step in dis.get_instructions(code))
    return any(start <= place < end for start, end in _caught(code))


@cache
def _caught(code: CodeType) -> tuple[tuple[int, int], ...]:
    """The parts of a function's bytecode, by their ends, for which it has a handler that may swallow an exception."""
    if not code.co_exceptiontable:
        return ()
    steps = list(dis.get_instructions(code))
    numbers: Mapping[int, int] = MappingProxyType({step.offset: number for number, step in enumerate(steps)})
    found = dis._parse_exception_table(code)  # type: ignore[attr-defined]  # not public, but nothing else reads it
    return tuple((entry.start, entry.end) for entry in found if _swallows(code, steps[numbers[entry.target] :]))


def _swallows(code: CodeType, handler: list[dis.Instruction]) -> bool:
    names = [step.opname for step in handler]
    if names[0] != "PUSH_EXC_INFO":
        return False  # the end of a handler itself
    if names[1] == "WITH_EXCEPT_START":
        return not SWALLOWING.isdisjoint(code.co_names)
    if names[1] == "POP_TOP":
        return True
    last = next((number for number, name in enumerate(names) if name in _STOPS), len(names))
    return "CHECK_EXC_MATCH" in names[:last] or "CHECK_EG_MATCH" in names[:last]
