"""Run programs that look at values beside eager; say what they do otherwise: bits, gradients, writes, exceptions."""

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from tests.random_programs.values import ValuesProgram

import weft
from weft.api.hybridize import hybrid_of
from weft.api.pace import Pace
from weft.config import overrides

CALLS = (0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 0, 3, 4, 5, 6, 0, 1, 2)  # which values each call is given: ways come again
THREADS = 4
Left = tuple[Any, ...]


@contextmanager
def programs_run() -> Iterator[None]:
    """Values decide, and the clock gives no call to Python."""
    with overrides(whole="off"), mock.patch.object(Pace, "is_for_python", return_value=False):
        yield


def outcome(function: Callable[..., Any], given: tuple[torch.Tensor, ...], *, grad: bool) -> Left:
    """What a call leaves behind; with `grad` the program gets copies of leaves, so that it may write to them."""
    leaves = [tensor.requires_grad_(grad) for tensor in given]
    copies = [leaf * 1 for leaf in leaves] if grad else leaves
    with warnings.catch_warnings(), torch.set_grad_enabled(grad):
        warnings.simplefilter("ignore")
        try:
            found = function(*copies)
            results = found if isinstance(found, tuple) else (found,)
            carrying = [one for one in results if isinstance(one, torch.Tensor) and one.requires_grad]
            if carrying:
                torch.autograd.backward(carrying, [torch.ones_like(one) for one in carrying])
        except Exception as error:  # noqa: BLE001 - whatever eager raises is to be raised
            return (type(error), *map(_told, copies))
    memory = [one.untyped_storage().data_ptr() for one in (*copies, *results) if isinstance(one, torch.Tensor)]
    shared = [memory.index(address) for address in memory]
    return (*map(_told, (*results, *copies, *(leaf.grad for leaf in leaves))), shared)


def _told(thing: Any) -> Any:
    if not isinstance(thing, torch.Tensor):
        return type(thing), repr(thing)
    # A negative zero is the zero of another order of sums.
    return str(thing.dtype), tuple(thing.shape), thing.stride(), repr((thing.detach() + 0.0).tolist())


def difference(program: ValuesProgram, *, grad: bool, threads: int = 1) -> str | None:
    """Say at which call a program leaves something else than in eager."""
    expected = {call: outcome(program.function(), program.arguments(call), grad=grad) for call in sorted({*CALLS})}
    ours, found = weft.hybridize(program.function()), list[str]()

    def run(first: int) -> None:
        for number, call in enumerate((*CALLS[first:], *CALLS[:first])):
            mine = outcome(ours, program.arguments(call), grad=grad)
            if mine != expected[call]:
                found.append(f"call {number}, values {call}:\n  {mine}\n  eager {expected[call]}")
                return

    with programs_run():
        together = [threading.Thread(target=run, args=(3 * number,)) for number in range(threads)]
        for one in together:
            one.start()
        for one in together:
            one.join()
        refused = [str(error) for error in hybrid_of(ours).refused._errors.values() if "mistake in Weft" in str(error)]
    return "\n".join((*found, *refused)) or None
