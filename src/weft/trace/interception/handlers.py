"""Tell whether the user's code that runs now would catch an exception: by the tables of handlers in its bytecode.

`try: L = torch.linalg.cholesky(a)` with an `except` goes on otherwise where `a` is not positive definite. While code is
traced there are no elements, so the way that it takes then is never seen.
"""

from __future__ import annotations

import dis
import os
import re
import sys
from collections.abc import Iterable
from functools import cache
from types import CodeType, FrameType
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
SWALLOWS, RAISES = "swallows", "raises"
# Exceptions that no operator raises for what elements are: those are RuntimeError, IndexError, ValueError and kin.
_OTHERS = """
    NotImplementedError AttributeError TypeError KeyError NameError ImportError ModuleNotFoundError OSError
    StopIteration SyntaxError UnicodeError RecursionError
"""
NOT_OF_ELEMENTS = frozenset(_OTHERS.split())
_RAISES = frozenset({"RERAISE", "RAISE_VARARGS"})
_NAMES = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_IF_FALSE = re.compile("POP_JUMP_(FORWARD_)?IF_FALSE")
_ENDS = frozenset({"POP_EXCEPT", "RETURN_VALUE", "RETURN_CONST"})  # of a handler after which code goes on
_ALWAYS_JUMPS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "JUMP_NO_INTERRUPT")


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


def handling() -> str | None:
    """What traced code of this thread does with exceptions where it is: "swallows" them or "raises" the same or others.

    What called the program does not count.
    """
    frame: FrameType | None = sys._getframe(1)
    found = None
    while frame is not None and not (frame.f_code.co_filename.endswith(TRACING) and frame.f_code.co_name in BEGINS):
        if is_of_user(frame) and (here := _handled(frame)):
            if SWALLOWS in here:
                return SWALLOWS
            found = RAISES
        frame = frame.f_back
    return found


def _handled(frame: FrameType) -> frozenset[str]:
    code, place = frame.f_code, frame.f_lasti
    if sys.version_info < (3, 11):
        catches = any(step.opname == "JUMP_IF_NOT_EXC_MATCH" for step in dis.get_instructions(code))
        return frozenset({SWALLOWS}) if catches else frozenset()
    known = NOT_OF_ELEMENTS.intersection(code.co_names).difference(frame.f_globals)  # not those of a module's own
    return frozenset(kind for start, end, kind in _parts(code, known) if start <= place < end)


@cache
def _parts(code: CodeType, not_of_elements: frozenset[str]) -> tuple[tuple[int, int, str], ...]:
    """The parts of a function's bytecode, by their ends, that have a handler, and what it does."""
    if not code.co_exceptiontable:
        return ()
    handlers = _Handlers(code, not_of_elements)
    found = ((entry, handlers.kind(entry.target)) for entry in handlers.entries)
    return tuple((entry.start, entry.end, kind) for entry, kind in found if kind is not None)


class _Handlers:
    """The handlers of a function's bytecode: whether they go on, or always raise.

    A handler that only raises another exception, or the same, cannot be told from none while nothing is raised; and
    where an operator raises, Python runs the call again. So does one of exceptions that are not of elements: a
    fallback for devices that lack an operator (`except NotImplementedError`).
    """

    def __init__(self, code: CodeType, not_of_elements: frozenset[str]) -> None:
        self.entries = dis._parse_exception_table(code)  # type: ignore[attr-defined]  # not public, but nothing else reads it
        self._suppresses = not SWALLOWING.isdisjoint(code.co_names)
        self._steps = list(dis.get_instructions(code))
        self._numbers = {step.offset: number for number, step in enumerate(self._steps)}
        self._found: dict[int, bool] = {}
        self._not_of_elements = not_of_elements

    def kind(self, target: int) -> str | None:
        """What the handler that begins there does; None for that of a `with` statement, and for the end of another."""
        if self.swallow(target):
            return SWALLOWS
        first = self._numbers[target]
        names = [step.opname for step in self._steps[first : first + 2]]
        return RAISES if names[0] == "PUSH_EXC_INFO" and names[1] != "WITH_EXCEPT_START" else None

    def swallow(self, target: int) -> bool:
        """Whether code goes on behind the handler that begins there."""
        if target not in self._found:
            self._found[target] = False  # where a handler is asked of its own parts
            self._found[target] = self._goes_on(self._numbers[target])
        return self._found[target]

    def _goes_on(self, first: int) -> bool:
        names = [step.opname for step in self._steps[first : first + 2]]
        if names[0] != "PUSH_EXC_INFO":
            return False  # the end of a handler itself
        if names[1] == "WITH_EXCEPT_START":
            return self._suppresses
        seen, ahead = set[int](), [first]
        while ahead:
            number = ahead.pop()
            step = self._steps[number]
            if number in seen:
                continue
            seen.add(number)
            if step.opname in _ENDS or self._is_swallowed_inside(step.offset):
                return True
            if step.opname in _RAISES:
                continue
            if step.opname == "CHECK_EXC_MATCH" and self._is_not_of_elements(number):
                ahead.append(self._numbers[self._steps[number + 1].argval])  # the next `except`
                continue
            if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
                ahead.append(self._numbers[step.argval])
            if not step.opname.startswith(_ALWAYS_JUMPS):
                ahead.append(number + 1)
        return False

    def _is_not_of_elements(self, number: int) -> bool:
        """Whether an `except` asks for exceptions alone that are not of elements: one name, or a tuple."""
        steps, first = self._steps, number - 1
        if steps[first].opname == "BUILD_TUPLE":
            first -= steps[first].arg or 0
            named = steps[first : number - 1]
        else:
            named = steps[first:number]
        asked = all(step.opname in _NAMES and step.argval in self._not_of_elements for step in named)
        return asked and bool(named) and _IF_FALSE.fullmatch(steps[number + 1].opname) is not None

    def _is_swallowed_inside(self, place: int) -> bool:
        covering = (entry.target for entry in self.entries if entry.start <= place < entry.end)
        return any(self.swallow(target) for target in covering)
