"""Remember the types of operators' results, once a shape rule has told them for tensors of some types.

A rule takes much longer than making a stand-in of a type that is known. What a rule says of one call holds for every
call of the operator with the same literals on tensors of the same types: a row for each is kept, by whoever traces,
from one trace to the next. Rows are facts of PyTorch; they know nothing of the program in which they were learned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from weft.errors import UsageError
from weft.ir.library import Call
from weft.ir.printer import call_text
from weft.ir.size_text import extents_of
from weft.ir.types import CPU, DTYPES_BY_NAME, TensorType, type_of
from weft.trace.interception.capture import Interception, is_plain_stand_in, storage_key

# Their results lie where the memory of their argument says, of which its type tells nothing.
NOT_BY_TYPE = ("aten.as_strided.", "aten.view.dtype", "aten.set_", "aten.resize")
ONE, TUPLE, LIST = "one", "tuple", "list"
Run = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Made:
    """One result: its type, and if it is a view which argument it looks into, and how far behind that one's start."""

    type: TensorType
    base: int | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class ResultRow:
    """The results of a call in order, None where one is absent; whether they are one, a tuple or a list."""

    form: str
    results: tuple[Made | None, ...]


@dataclass(slots=True, eq=False)
class ResultTypes:
    """Rows by their question; `used` are those of this trace, `learned` counts those that are new."""

    rows: dict[str, ResultRow] = field(default_factory=dict)
    used: dict[str, ResultRow] = field(default_factory=dict)
    learned: int = 0

    def results(self, call: Call, tensors: Sequence[torch.Tensor], interception: Interception, run: Run) -> Any:
        """Give stand-ins for the results of a call on tensors, in the order in which its arguments name them."""
        question = question_of(call, tensors)
        if question is None:
            return run()
        row = self.rows.get(question)
        if row is not None:
            self.used[question] = row
            return stand_ins(row, tensors, interception)
        result = run()
        row = row_of(result, tensors)
        if row is not None:
            self.rows[question] = self.used[question] = row
            self.learned += 1
        return result


def question_of(call: Call, tensors: Sequence[torch.Tensor]) -> str | None:
    """Say all that the types of a call's results depend on; None where something else may decide."""
    if call.written or call.target.startswith(NOT_BY_TYPE):
        return None
    if next(extents_of((call.arguments, call.keywords)), None) is not None:
        return None  # which numbers sizes are that vary, and what is decided by them, is of one trace
    if not tensors and not _names_all(call):
        return None
    if not all(map(is_plain_stand_in, tensors)):
        return None
    names = [f"%{number}" for number in range(len(tensors))]
    try:
        text = call_text(call, tuple(names))
    except UsageError:
        return None
    modes = f"{torch.get_default_dtype()} {torch.is_grad_enabled()}"
    return f"{text} {modes} {' '.join(str(type_of(tensor)) for tensor in tensors)}"


def _names_all(call: Call) -> bool:
    """Tell whether an operator without tensors is told where its result is and what numbers it holds."""
    keywords = dict(call.keywords)
    return all(keywords.get(name) is not None for name in ("dtype", "device"))


def row_of(result: Any, tensors: Sequence[torch.Tensor]) -> ResultRow | None:
    """Describe results; None where their types are not all there is to say."""
    form = LIST if type(result) is list else TUPLE if type(result) is tuple else ONE
    leaves = (result,) if form == ONE else tuple(result)
    owners = {storage_key(tensor): number for number, tensor in reversed([*enumerate(tensors)])}
    found: list[Made | None] = []
    for leaf in leaves:
        if leaf is None and form != ONE:
            found.append(None)
            continue
        if not isinstance(leaf, torch.Tensor) or not is_plain_stand_in(leaf) or leaf.requires_grad:
            return None
        if any(leaf is tensor for tensor in tensors):
            return None
        key, kind = storage_key(leaf), type_of(leaf)
        base = owners.get(key)
        if base is None:
            whole = leaf.storage_offset() == 0 and leaf.untyped_storage().nbytes() == _bytes(kind)
            if not whole:
                return None
            owners[key] = -1  # a second result in the same memory is none that can be made apart
            found.append(Made(kind))
        elif base < 0 or tensors[base].dtype != kind.dtype:
            return None
        else:
            found.append(Made(kind, base, int(leaf.storage_offset() - tensors[base].storage_offset())))
    return ResultRow(form, tuple(found))


def _bytes(kind: TensorType) -> int:
    if kind.size == 0:
        return 0
    reach = sum((size - 1) * step for size, step in zip(kind.shape, kind.strides, strict=True))
    return (reach + 1) * kind.dtype.itemsize


def stand_ins(row: ResultRow, tensors: Sequence[torch.Tensor], interception: Interception) -> Any:
    """Make stand-ins for the results of a call; views are of these tensors."""
    leaves = [
        None
        if made is None
        else interception.placeholder(made.type)
        if made.base is None
        else interception.window(tensors[made.base], made.type, made.offset)
        for made in row.results
    ]
    return leaves[0] if row.form == ONE else leaves if row.form == LIST else tuple(leaves)


def rows_as_data(rows: Mapping[str, ResultRow]) -> dict[str, Any]:
    """Turn rows into what JSON can hold."""
    return {
        question: [row.form, [None if made is None else _as_data(made) for made in row.results]]
        for question, row in rows.items()
    }


def _as_data(made: Made) -> list[Any]:
    kind = made.type
    name = str(TensorType(kind.dtype, (), (), CPU)).partition("[")[0]
    return [name, list(kind.shape), list(kind.strides), made.base, made.offset]


def rows_from_data(data: Any) -> dict[str, ResultRow]:
    """Undo `rows_as_data`; anything else is a UsageError."""
    try:
        return {question: _row(*row) for question, row in data.items()}
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise UsageError("these are no rows of types", why=str(error)) from error


def _row(form: str, results: Sequence[Any]) -> ResultRow:
    if form not in (ONE, TUPLE, LIST) or (form == ONE and len(results) != 1):
        raise ValueError(form)
    return ResultRow(form, tuple(None if made is None else _from_data(*made) for made in results))


def _from_data(name: str, shape: Sequence[int], strides: Sequence[int], base: int | None, offset: int) -> Made:
    return Made(TensorType(DTYPES_BY_NAME[name], tuple(shape), tuple(strides), CPU), base, offset)
