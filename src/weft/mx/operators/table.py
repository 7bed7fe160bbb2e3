"""Read the rows of MXNet's operators, and find the rule by which torch computes one.

A row (`mxnet-1.9.1.txt`, written by `make mxnet-operators` from the real MXNet) has its names, inputs and parameters. A
rule (`computes`, in the other files of this folder) is a function of torch; sizes and types of results follow from it.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from weft.mx.base.element_types import TORCH_TYPES, type_name
from weft.mx.base.errors import MissingOperator, MXNetError

ROWS = Path(__file__).with_name("mxnet-1.9.1.txt")
REST = "others"  # the parameter of a row that takes any: those that have no row, as JSON
MOST_KNOWN = 1024  # calls of one operator whose parameters are not read again
Shape = tuple[int, ...]
Sizes = Sequence["Shape | None"]


@dataclass(frozen=True, eq=False)
class OperatorRule:
    """How torch computes an operator.

    `compute(p, *tensors)` gives the outputs, then new values of the inputs in `writes` (written at once) or `aux`
    (written by a backward, as MXNet has it). `p` has the parameters, and `train`. A `random`
    one is given a generator after `p`.
    """

    compute: Callable[..., Any]
    inputs: Callable[[Any], int] | None = None  # how many of the row's inputs are taken, if not all
    left_out: Callable[[Any, tuple[str, ...]], tuple[str, ...]] | None = None  # the row's inputs without those
    outputs: Callable[[Any], int] | int = 1
    hidden: Callable[[Any], int] | int = 0  # outputs that MXNet counts and nobody sees
    aux: tuple[int, ...] = ()
    writes: tuple[int, ...] | Callable[[Any], tuple[int, ...]] = ()
    modal: bool = False  # whether training matters
    random: bool = False
    creates: bool = False  # makes an array from nothing, on a device
    by_value: bool = False  # the sizes of its results depend on elements
    decides: bool = False  # what it runs depends on elements
    by_python: bool = False  # users' code with arrays: it stands in no program
    mixed: bool = False  # takes inputs of several element types
    complete: Callable[[Any, Sizes], Sequence[Shape | None]] | None = None  # input sizes that follow from others
    backwards: Callable[[Any, Sizes, Shape], Sequence[Shape | None]] | None = (
        None  # those that follow from the output's
    )

    numbers: tuple[str, ...] = ()  # parameters that the sizes and types of results do not depend on
    by_program: bool = False  # run by a program, which may first have to be made

    @cached_property
    def is_plain(self) -> bool:
        """Whether it gives results of its inputs, and does nothing else."""
        return not (self.writes or self.random or self.creates or self.by_value or self.by_program)

    def output_count(self, p: Any) -> int:
        """Count the outputs that a caller sees."""
        return self.outputs if isinstance(self.outputs, int) else self.outputs(p)

    def written_inputs(self, p: Any) -> tuple[int, ...]:
        """The places of the inputs that are written."""
        return self.writes if isinstance(self.writes, tuple) else self.writes(p)

    def hidden_count(self, p: Any) -> int:
        """Count the outputs that nobody sees."""
        return self.hidden if isinstance(self.hidden, int) else self.hidden(p)


RULES: dict[str, OperatorRule] = {}


def computes(*names: str, **facts: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give operators of MXNet the rule that this function and the facts are."""

    def note(compute: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            RULES[name] = OperatorRule(compute, **facts)
        return compute

    return note


@dataclass(frozen=True)
class OperatorParameter:
    """One parameter of an operator."""

    name: str
    kind: str
    optional: bool  # may be None
    choices: tuple[str, ...]
    default: Any
    required: bool

    @classmethod
    def from_text(cls, text: str) -> OperatorParameter:
        """Read `p:float=0.5`."""
        name, _, rest = text.partition(":")
        kind, equals, default = rest.partition("=")
        choices = tuple(kind[1:-1].split(",")) if kind.startswith("{") else ()
        optional = kind.endswith("?") or "None" in choices or default == "None"
        kind = ("type" if "float32" in choices else "choice") if choices else kind.rstrip("?")
        made = cls(name, kind, optional, choices, None, not equals)
        return made if not equals else cls(name, kind, optional, choices, made.value(default, ""), required=False)

    def value(self, given: Any, call: str) -> Any:
        """What a given value, or its text, means; an MXNetError as MXNet words it if it means nothing."""
        if given is None or (isinstance(given, str) and given == "None"):
            if self.optional or self.kind in ("shape", "floats"):
                return None
            raise self._refused(given, call)
        if self.kind == "choice" and given not in self.choices:
            shown = ", ".join(f"'{choice}'" for choice in self.choices if choice != "None")
            raise MXNetError(f"Invalid Input: '{given}', valid values are: {{{shown}}}, in operator {call}")
        try:
            return READERS[self.kind](given)
        except (ValueError, TypeError, SyntaxError, KeyError) as error:
            raise self._refused(given, call) from error

    def _refused(self, given: Any, call: str) -> MXNetError:
        return MXNetError(
            f"Invalid Parameter format for {self.name} expect {self.kind} but value='{given}', in operator {call}"
        )


def _integer(given: Any) -> int:
    if isinstance(given, str):
        return int(given)
    whole = int(given)
    if whole != given:
        raise ValueError(given)
    return whole


def _switch(given: Any) -> bool:
    if isinstance(given, str):
        return {"true": True, "1": True, "false": False, "0": False}[given.lower()]
    return bool(given)


def _sizes(given: Any) -> tuple[int | None, ...]:
    if isinstance(given, str):
        given = ast.literal_eval(re.sub(r"(\d)L\b", r"\1", given))
    entries = given if isinstance(given, (tuple, list)) or hasattr(given, "__iter__") else (given,)
    return tuple(None if entry is None else _integer(entry) for entry in entries)


def _floats(given: Any) -> tuple[float, ...]:
    if isinstance(given, str):
        given = ast.literal_eval(given)
    return tuple(map(float, given)) if hasattr(given, "__iter__") else (float(given),)


READERS: dict[str, Callable[[Any], Any]] = {
    "int": _integer,
    "float": float,
    "bool": _switch,
    "shape": _sizes,
    "floats": _floats,
    "string": str,
    "choice": str,
    "type": type_name,
    "ptr": str,
}


def has_negative_zero(given: Mapping[str, Any]) -> bool:
    """Whether a parameter is -0.0, which as a key is the same as 0, and means something else."""
    for value in given.values():  # noqa: SIM110  # a loop takes a quarter of the time of `any`
        if value.__class__ is float and not value and math.copysign(1.0, value) < 0:
            return True
    return False


@dataclass(frozen=True)
class Operator:
    """One row: what MXNet calls an operator, and what it takes."""

    name: str
    aliases: tuple[str, ...]
    inputs: tuple[str, ...]  # one that is any number of arrays begins with a star
    parameters: Mapping[str, OperatorParameter]
    counter: str  # the parameter that counts the arrays of the starred input
    values_type: Any = field(repr=False)
    _known: dict[Any, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_text(cls, line: str) -> Operator:
        """Read a row."""
        name, aliases, inputs, parameters, counter = (part.strip() for part in f"{line} ".split("|"))
        rows = {row.name: row for row in map(OperatorParameter.from_text, parameters.split())}
        values = namedtuple(f"{name.strip('_')}_values", (*rows, "train"))  # type: ignore[misc]  # noqa: PYI024
        return cls(name, tuple(aliases.split()), tuple(inputs.split()), rows, counter, values)

    @property
    def variadic(self) -> bool:
        """Whether its last input is any number of arrays."""
        return bool(self.inputs) and self.inputs[-1].startswith("*")

    @property
    def rule(self) -> OperatorRule:
        """How torch computes it."""
        found = RULES.get(self.name)
        if found is None:
            raise MissingOperator(
                f"the operator {self.name} of MXNet 1.9.1 is not in weft.mx; docs/mx-operators.md lists those that are"
            )
        return found

    def values(self, given: Mapping[str, Any]) -> Any:
        """The parameters of a call: those given, read, and the defaults of the others."""
        if has_negative_zero(given):
            return self._read(given)
        try:
            found = self._known.get(key := tuple(given.items()))
        except TypeError:  # a list was given, say
            return self._read(given)
        if found is None:
            if len(self._known) > MOST_KNOWN:
                self._known.clear()
            # 1 and True are one key, and are read alike.
            found = self._known[key] = self._read(given)
        return found

    def _read(self, given: Mapping[str, Any]) -> Any:
        if REST in self.parameters and given:
            others = {name: str(value) for name, value in given.items() if name not in self.parameters}
            given = {name: value for name, value in given.items() if name in self.parameters}
            given[REST] = json.dumps(others)
        for name in given:
            if name not in self.parameters and self.parameters:  # MXNet reads none of an operator without parameters
                possible = ", ".join(self.parameters)
                raise MXNetError(
                    f"Cannot find argument '{name}', Possible Arguments: {possible}, in operator {self._call(given)}"
                )
        for row in self.parameters.values():
            if row.required and row.name not in given:
                raise MXNetError(
                    f"Required parameter {row.name} of {row.kind} is not presented, in operator {self._call(given)}"
                )
        call = self._call(given)
        read = [
            row.value(given[row.name], call) if row.name in given else row.default for row in self.parameters.values()
        ]
        return self.values_type(*read, False)

    def _call(self, given: Mapping[str, Any]) -> str:
        shown = ", ".join(['name=""', *(f'{name}="{value}"' for name, value in given.items())])
        return f"{self.name}({shown})"

    def input_names(self, p: Any) -> tuple[str, ...]:
        """The inputs that a call with these parameters takes: the last ones of a row may follow ones left out."""
        kept = self.inputs if self.rule.left_out is None else self.rule.left_out(p, self.inputs)
        return kept[: max(self.input_count(p), 0)]

    def takes(self, name: str) -> bool:
        """Whether a name is that of one of its parameters."""
        return name in self.parameters or (REST in self.parameters and not name.startswith("__"))

    def input_count(self, p: Any) -> int:
        """Count the inputs that a call with these parameters takes, where they are fixed."""
        return len(self.inputs) if self.rule.inputs is None else self.rule.inputs(p)


def _read_rows() -> tuple[dict[str, Operator], tuple[str, ...]]:
    found: dict[str, Operator] = {}
    inside: tuple[str, ...] = ()
    for line in ROWS.read_text(encoding="utf-8").splitlines():
        if line.startswith("inside: "):
            inside = tuple(line.removeprefix("inside: ").split())
            continue
        row = Operator.from_text(line)
        for name in (row.name, *row.aliases):
            found[name] = row
    return found, inside


OPERATORS, INSIDE = _read_rows()


@cache
def operator(name: str) -> Operator:
    """The row of an operator; a missing one is an error with its name."""
    found = OPERATORS.get(name)
    if found is None:
        kind = (
            "belongs to a part of MXNet 1.9.1 that weft.mx does not have"
            if name in INSIDE
            else "is none of MXNet 1.9.1"
        )
        raise MissingOperator(f"the operator {name} {kind}")
    return found


def type_of(name: str | None, otherwise: Any) -> Any:
    """The torch type that a parameter names, or another where it names none."""
    return otherwise if name is None else TORCH_TYPES[name]
