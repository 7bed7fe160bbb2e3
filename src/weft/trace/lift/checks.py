"""Check data that PyTorch's operators refuse, where the operator itself has become small ops.

A check gives nothing and waits for nothing but the data, so it runs before the kernels, as an operator or as a part of
a region (plan/regions/indices.py): what fails changes nothing.
"""

from __future__ import annotations

from types import MappingProxyType

import torch

from weft.ir.graph import Value
from weft.ir.library import Call, Operand
from weft.ir.types import NOTHING
from weft.trace.lift.arguments import Arguments
from weft.trace.lift.expression import Expression

CHECK_CLASSES = "weft.check_classes.default"
CHECK_PLACES = "weft.check_places.default"
CHECK_PROBABILITIES = "weft.check_probabilities.default"
CHECK_DATA = "weft.check_data.default"
CHECK_ONE_HOT = "weft.check_one_hot.default"
LIBRARY = torch.library.Library("weft", "FRAGMENT")
LIBRARY.define("check_classes(Tensor target, int classes, int ignored) -> ()")
LIBRARY.define("check_places(Tensor places, int extent) -> ()")
LIBRARY.define("check_probabilities(Tensor outside) -> ()")
LIBRARY.define("check_one_hot(Tensor classes, int count) -> ()")
LIBRARY.define("check_data(Tensor places, int extent, str message) -> ()")


def _checked(target: torch.Tensor, classes: int, ignored: int) -> None:
    if target.numel():
        least, most = torch.aminmax(target)
        if least < 0 or most >= classes:
            wrong = target[((target < 0) | (target >= classes)) & (target != ignored)]
            if wrong.numel():
                raise IndexError(f"Target {int(wrong[0])} is out of bounds.")


def _unchecked(target: torch.Tensor, classes: int, ignored: int) -> None:
    del target, classes, ignored


def _checked_places(places: torch.Tensor, extent: int) -> None:
    wrong = places[(places < 0) | (places >= extent)]
    if wrong.numel():
        raise RuntimeError(f"place {int(wrong[0])} of {extent}: the offsets of bags do not rise from 0 to their end")


def _unchecked_places(places: torch.Tensor, extent: int) -> None:
    del places, extent


def _checked_one_hot(classes: torch.Tensor, count: int) -> None:
    if classes.numel():
        least, most = torch.aminmax(classes)
        if least < 0:
            raise RuntimeError("Class values must be non-negative.")
        if most >= count:
            raise RuntimeError("Class values must be smaller than num_classes.")


def _unchecked_one_hot(classes: torch.Tensor, count: int) -> None:
    del classes, count


def _checked_data(places: torch.Tensor, extent: int, message: str) -> None:
    if bool(((places < 0) | (places >= extent)).any()):
        raise RuntimeError(message)


def _unchecked_data(places: torch.Tensor, extent: int, message: str) -> None:
    del places, extent, message


def _checked_probabilities(outside: torch.Tensor) -> None:
    if float(outside):
        raise RuntimeError("all elements of input should be between 0 and 1")


def _unchecked_probabilities(outside: torch.Tensor) -> None:
    del outside


LIBRARY.impl("check_probabilities", _checked_probabilities, "CPU")
LIBRARY.impl("check_probabilities", _unchecked_probabilities, "Meta")
LIBRARY.impl("check_classes", _checked, "CPU")
LIBRARY.impl("check_classes", _checked, "CUDA")
LIBRARY.impl("check_classes", _unchecked, "Meta")
LIBRARY.impl("check_places", _checked_places, "CPU")
LIBRARY.impl("check_places", _unchecked_places, "Meta")
LIBRARY.impl("check_one_hot", _checked_one_hot, "CPU")
LIBRARY.impl("check_one_hot", _unchecked_one_hot, "Meta")
LIBRARY.impl("check_data", _checked_data, "CPU")
LIBRARY.impl("check_data", _unchecked_data, "Meta")


def check_classes(arguments: Arguments, classes: int) -> None:
    """Targets that do not name a class, nor `ignore_index`, raise what PyTorch raises, when the program runs."""
    target = arguments.tensor("target")
    call = Call(CHECK_CLASSES, (Operand(0), classes, arguments.literal("ignore_index")))
    attributes = MappingProxyType({"call": call})
    arguments.checks.append(Value("library", (target.value,), NOTHING, attributes, target.place))


def check_probabilities(arguments: Arguments, x: Expression) -> None:
    """Numbers that are not from 0 to 1, NaN too, raise what PyTorch raises, before anything is written.

    What is checked is mostly computed by the program, so how many there are is computed by it as well, and one number
    is looked at between two regions.
    """
    above = x.apply("le", 1).choose(x.like(0), 1)
    outside = x.apply("ge", 0).choose(above, 1).cast(torch.float32).sum(tuple(range(x.rank)))
    attributes = MappingProxyType({"call": Call(CHECK_PROBABILITIES, (Operand(0),))})
    arguments.checks.append(Value("library", (outside.value,), NOTHING, attributes, x.place))


def check_data(arguments: Arguments, refused: Expression, message: str) -> None:
    """Data that PyTorch's operator refuses with a message, when the program runs, wherever `refused` is true."""
    places = refused.choose(1, refused.like(0).cast(torch.int64))
    attributes = MappingProxyType({"call": Call(CHECK_DATA, (Operand(0), 1, message))})
    arguments.checks.append(Value("library", (places.value,), NOTHING, attributes, refused.place))


def check_places(arguments: Arguments, places: Expression, extent: int) -> None:
    """Numbers below 0 or from `extent` on leave the call to PyTorch's operator, when the program runs."""
    attributes = MappingProxyType({"call": Call(CHECK_PLACES, (Operand(0), extent))})
    arguments.checks.append(Value("library", (places.value,), NOTHING, attributes, places.place))
