"""Write a Plan as JSON text that says everything, and read it back.

The text is a list of rows, the plan's last. A row is `[class, field, ...]`, the class by its name, or
`["tuple", item, ...]`. Fields and items are numbers, names, truth values or None as they are; what has a row of its
own, which comes before, is `[number of that row]`. Equal parts have one row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

from weft.errors import InternalError, UsageError
from weft.plan.form.plan import Plan
from weft.plan.kernels.kernel import KINDS

TUPLE = "tuple"
PLAIN = (int, float, bool, str, type(None))
# What a row that nobody of ours has written can raise while it is read.
DAMAGE = (ValueError, TypeError, LookupError, AttributeError, RuntimeError)


def _classes(kind: Any, found: dict[type, None]) -> None:
    """Collect the classes that a type is made of: unions and tuples are looked into, and the fields of classes."""
    for part in get_args(kind):
        _classes(part, found)
    if is_dataclass(kind) and isinstance(kind, type) and kind not in found:
        found[kind] = None
        for hint in get_type_hints(kind).values():
            _classes(hint, found)


@cache
def plan_classes() -> dict[str, type]:
    """Give all classes that a plan is made of, by name: its own, and those of the kinds of kernels.

    Who writes or reads a plan has the planner beside it, and so all kinds that it makes.
    """
    found: dict[type, None] = {}
    for kind in (Plan, *KINDS.values()):
        _classes(kind, found)
    assert len({kind.__name__ for kind in found}) == len(found)
    return {TUPLE: tuple, **{kind.__name__: kind for kind in found}}


def write_plan(plan: Plan) -> str:
    """Write a plan as text; equal texts are equal plans, down to 0.0 and -0.0, or 1 and 1.0."""
    writer = _Writer()
    writer.reference(plan)
    return json.dumps(writer.rows, separators=(",", ":"))


def read_plan(text: str) -> Plan:
    """Read what `write_plan` wrote; anything else is a UsageError."""
    made: list[Any] = []
    try:
        classes = plan_classes()
        for name, *parts in json.loads(text):
            values = [made[part[0]] if type(part) is list else part for part in parts]
            made.append(tuple(values) if name == TUPLE else classes[name](*values))
    except DAMAGE as error:
        raise UsageError("this is not the text of a plan", why=str(error)) from error
    if not made or not isinstance(made[-1], Plan):
        raise UsageError("this is not the text of a plan", why="what it ends with is none")
    return made[-1]


class _Writer:
    """Collects rows; a part that is met again, or equals one, is written once."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self._met: dict[int, list[int]] = {}  # by identity: the plan keeps its parts alive meanwhile
        self._equal: dict[str, list[int]] = {}

    def reference(self, part: Any) -> list[int]:
        """Give the reference to a part, which gets a row if it has none."""
        found = self._met.get(id(part))
        if found is None:
            row = list(self._row(part))
            text = repr(row)  # it tells 0.0 from -0.0 and 1 from 1.0, which equality does not
            found = self._equal.get(text)
            if found is None:
                found = self._equal[text] = [len(self.rows)]
                self.rows.append(row)
            self._met[id(part)] = found
        return found

    def _row(self, part: Any) -> Iterator[Any]:
        kind = type(part)
        if plan_classes().get(kind.__name__) is not kind:
            raise InternalError(f"a plan holds {part!r}, which has no place in its text")
        yield kind.__name__
        for value in part if kind is tuple else [getattr(part, name) for name in kind.__dataclass_fields__]:
            yield value if type(value) in PLAIN else self.reference(value)
