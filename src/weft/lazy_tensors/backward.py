"""A backward inside a segment -> a step like any other, so that forward, backward and update are one program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from weft.lazy_tensors.learning import Form, Hole, Output
from weft.lazy_tensors.values import Look
from weft.runtime.memory_layout import probed
from weft.trace.interception.capture import storage_key


def gradients_of(loss: torch.Tensor, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The gradients of some leaves, each in memory of its own, laid out as `backward` leaves them."""
    found: list[torch.Tensor] = []
    for gradient in torch.autograd.grad(loss, leaves):
        laid_out = gradient.contiguous()
        # Two leaves may get one and the same tensor, which whoever changes one gradient would change for both.
        shared = any(storage_key(laid_out) == storage_key(other) for other in found)
        found.append(laid_out.clone() if shared else laid_out)
    return tuple(found)


_FORMS: dict[tuple[Look, ...], Form] = {}


def backward_form(looks: tuple[Look, ...]) -> Form:
    """The form of a backward that gives gradients of these looks."""
    found = _FORMS.get(looks)
    if found is None:
        outputs = tuple(Output(look) for look in looks)
        args = [Hole(index) for index in range(len(looks) + 1)]
        found = Form(gradients_of, args, {}, grad=True, outputs=outputs, kind=tuple, made=len(looks))
        _FORMS[looks] = found
    return found


class _Freed(torch.autograd.Function):
    """The end of what is left of an autograd graph after its backward: nothing can go through it again."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        """Give the tensor, tied to what requires a gradient."""
        del context, anchor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, *tangents: Any) -> NoReturn:
        """Raise what eager raises."""
        del context, tangents
        raise RuntimeError(
            "Trying to backward through the graph a second time. Specify retain_graph=True at the first backward"
        )


def freed(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose graph has been used up by a backward."""
    with torch.enable_grad():
        return _Freed.apply(tensor, _anchor())  # type: ignore[no-untyped-call, no-any-return]


@probed
def _anchor() -> torch.Tensor:
    """A leaf that no gradient ever reaches."""
    return torch.zeros((), requires_grad=True)


def upstream(steps: Sequence[Any], loss: int) -> set[int]:
    """The results that a loss was computed from, itself among them."""
    found = {loss}
    for step in reversed(steps):
        for number, output in zip(step.makes, step.form.outputs, strict=True):
            own = number if number >= 0 else step.takes[output.same]
            if own in found:
                found.update(step.takes[index] for index in output.connected)
    return found
