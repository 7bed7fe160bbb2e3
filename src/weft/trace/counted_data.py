"""Make tensors of numbers that code counts, or reads from tensors, so that one program makes them of every such number.

`torch.tensor([n, 2])` copies numbers out of Python. In its place each is put into a tensor by an operator, which takes
it as the program has it. `torch.linspace(0, 1, n)` asks for how many there are; places that it computes need not.
`torch.tensor([loss, 2.0])` copies elements of tensors, which Python would have to be told: they are stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import torch

from weft.trace.interception.capture import hint_of, is_stand_in

MAKERS: tuple[Callable[..., Any], ...] = (torch.tensor, torch.as_tensor, torch.Tensor.new_tensor, torch.linspace)
NUMBERS = (bool, int, float, torch.SymInt, torch.SymFloat)
FLOATS = (float, torch.SymFloat)
MOST_NUMBERS = 64


def made_of_numbers(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    varies: Callable[[Any], bool],
    held: Callable[..., torch.Tensor],
) -> Callable[..., Any] | None:
    """What to call in the place of what makes a tensor of numbers, some of which `varies` says to be others later.

    `held` puts a number into a tensor.
    """
    if function is torch.linspace:
        usual = not keywords and len(arguments) == len(("first", "last", "count"))
        plain = usual and all(type(one) in NUMBERS for one in arguments)
        is_long = plain and varies(arguments[2]) and hint_of(arguments[2]) > 1
        return partial(_steps, partial(held, dtype=torch.get_default_dtype())) if is_long else None
    data, *rest = arguments[1:] if function is torch.Tensor.new_tensor else arguments
    found = _shape_and_numbers(data)
    others = keywords.keys() - {"dtype", "device"}
    if rest or found is None or others or torch.device(keywords.get("device") or "cpu").type != "cpu":
        return None
    shape, numbers = found
    if not numbers or len(numbers) > MOST_NUMBERS or not any(map(varies, numbers)):
        return None
    kind = keywords.get("dtype") or (arguments[0].dtype if function is torch.Tensor.new_tensor else _kind(numbers))

    def made(*_: Any, **__: Any) -> torch.Tensor:
        rows = [held(number, kind) for number in numbers]
        return torch.stack(rows).reshape(shape) if shape else rows[0]

    return made


def made_of_tensors(
    function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Callable[..., Any] | None:
    """What to call in the place of what makes a tensor of nested lists in which tensors of one element are."""
    data, *rest = arguments[1:] if function is torch.Tensor.new_tensor else arguments or (None,)
    found = _shape_and_numbers(data, _is_element) if type(data) in (list, tuple) else None
    others = keywords.keys() - {"dtype", "device"}
    if rest or found is None or others or torch.device(keywords.get("device") or "cpu").type != "cpu":
        return None
    shape, numbers = found
    if len(numbers) > MOST_NUMBERS or not any(map(is_stand_in, numbers)):
        return None
    own = arguments[0].dtype if function is torch.Tensor.new_tensor else reduce(torch.promote_types, map(_own, numbers))
    kind = keywords.get("dtype") or own
    if not all(_fits(_own(number), kind) for number in numbers):
        return None
    return lambda *_, **__: torch.stack([_element(number, kind) for number in numbers]).reshape(shape)


def _is_element(data: Any) -> bool:
    return type(data) in (bool, int, float) or (is_stand_in(data) and data.dim() == 0 and data.device.type == "cpu")


def _own(number: Any) -> torch.dtype:
    found: torch.dtype = number.dtype if isinstance(number, torch.Tensor) else _kind([number])
    return found


def _fits(own: torch.dtype, kind: torch.dtype) -> bool:
    """Whether all numbers of a type become another's as Python's do, which raise where they are too large for it."""
    if kind is own or own.is_complex:
        return kind is own
    return kind.is_floating_point or (kind in (torch.bool, torch.int64) and not own.is_floating_point)


def _element(number: Any, kind: torch.dtype) -> torch.Tensor:
    if not isinstance(number, torch.Tensor):
        return torch.full((), number, dtype=kind)
    # A whole number is one of Python's first, and a fraction of Python's then.
    is_rounded_twice = kind.is_floating_point and not number.is_floating_point()
    return (number.detach().double() if is_rounded_twice else number.detach()).to(kind)


def _is_number(data: Any) -> bool:
    return type(data) in NUMBERS


def _shape_and_numbers(
    data: Any, is_one: Callable[[Any], bool] = _is_number
) -> tuple[tuple[int, ...], list[Any]] | None:
    """The sizes of nested lists, and the numbers in them; None of anything else."""
    if is_one(data):
        return (), [data]
    if type(data) not in (list, tuple):
        return None
    parts = [_shape_and_numbers(part, is_one) for part in data]
    known = [part for part in parts if part is not None]
    if not parts or len(known) < len(parts) or len({shape for shape, _ in known}) != 1:
        return None
    return (len(parts), *known[0][0]), [number for _, numbers in known for number in numbers]


def _kind(numbers: Sequence[Any]) -> torch.dtype:
    if any(type(number) in FLOATS for number in numbers):
        return torch.get_default_dtype()
    return torch.bool if all(type(number) is bool for number in numbers) else torch.int64


def _steps(held: Callable[[Any], torch.Tensor], first: Any, last: Any, count: Any) -> torch.Tensor:
    """Numbers at equal distances, the second half of them counted from the end, as PyTorch's kernel does."""
    at = torch.arange(count)
    begin, end = held(first), held(last)  # rounded, as the distance is then
    step = (end - begin) / (count - 1)
    return torch.where(at < count // 2, begin + step * at, end - step * (count - 1 - at))
