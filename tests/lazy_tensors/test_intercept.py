"""The short way of arithmetic on lazy tensors."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.overrides import TorchFunctionMode

import weft
from weft.api.asynchronous import lazy
from weft.lazy_tensors.session import SESSION
from weft.lazy_tensors.tensor import LazyTensor, metadata_of

OPERATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "add": lambda a, b: a + b,
    "add a number": lambda a, b: a + 1,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * 2.5,
    "multiply by itself": lambda a, b: a * a,
    "divide": lambda a, b: a / b,
    "product": lambda a, b: a @ b,
    "a bool": lambda a, b: a + True,
    "from the right": lambda a, b: 1 - a * 2,
    "mixed types": lambda a, b: a.double() + b,
}


class _Counting(TorchFunctionMode):
    """Counts the functions that come by."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def recording() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Give numbers and their double, not computed yet, inside a block that knows what comes after them."""
    x = torch.randn(32)
    with lazy():
        for _ in range(3):
            weft.wait(x * 2 * 2)
        yield x, x * 2


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("grad", [False, True])
def test_arithmetic_equals_eager_at_every_repetition(name, grad):
    x = torch.randn(5, 5, requires_grad=grad)

    def compute() -> list[torch.Tensor]:
        a, b = x * 1.5, x + 3
        result = OPERATORS[name](a, b)
        return [result, OPERATORS[name](b, a)]

    expected = compute()
    for _ in range(4):
        with lazy():
            results = compute()
        for result, other in zip(weft.wait(results), expected, strict=True):
            assert (result.dtype, result.requires_grad) == (other.dtype, other.requires_grad)
            torch.testing.assert_close(result, other)


def test_operators_of_a_known_form_do_not_go_through_pytorch(monkeypatch):
    with recording() as (x, y):
        with monkeypatch.context() as patch:
            patch.setattr(type(SESSION), "call", lambda *given: pytest.fail("the long way was taken"))
            z = y * 2
        assert type(z) is LazyTensor
        assert weft.wait(z).equal(x * 4)


def test_another_mode_inside_the_block_sees_the_calls():
    with recording() as (x, y):
        with _Counting() as counting:
            z = y * 2
        assert counting.count == 1
        assert weft.wait(z).equal(x * 4)


def test_where_functions_are_not_intercepted_the_value_is_computed_at_once():
    with recording() as (x, y):
        with torch._C.DisableTorchFunction():
            z = y * 2
        assert type(z) is torch.Tensor
        assert z.equal(x * 4)


def test_the_operator_of_the_other_operand_is_asked_as_ever():
    class Other:
        def __radd__(self, tensor: torch.Tensor) -> str:
            return "asked"

    ones = torch.ones(32)
    with lazy():
        weft.wait(ones * 2)
        y = ones * 2
        assert y + Other() == "asked"
        with pytest.raises(TypeError, match="unsupported operand"):
            y @ 3


def test_a_lazy_tensor_of_another_threads_recording_is_waited_for():
    x = torch.randn(32)
    with lazy():
        weft.wait(x * 2 * 2)
        y = x * 2
        results: list[torch.Tensor] = []

        def work() -> None:
            with lazy():
                z = x * 2
                results.append(weft.wait(y + z * 2))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(20)
        torch.testing.assert_close(results[0], x * 6)
        torch.testing.assert_close(weft.wait(y * 2), x * 4)


def test_more_operators_than_a_recording_holds_are_all_computed():
    x = torch.ones(32)
    with lazy():
        y = x
        for _ in range(1200):
            y = y + 1
    assert weft.wait(y).tolist() == [1201.0] * 32


def test_a_changing_grad_mode_is_obeyed():
    x = torch.randn(20, requires_grad=True)
    for _ in range(3):
        with lazy():
            y = x * 2
            with torch.no_grad():
                z = y * 2
            w = y * 2
        assert (z.requires_grad, w.requires_grad) == (False, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_an_operator_that_reads_nan_where_it_is_first_seen_is_not_taken_for_one_that_writes(dtype):
    x = torch.full((7, 3), float("nan"), dtype=dtype)
    with weft.lazy():
        for _ in range(3):
            y = x * 2.5
            assert weft.wait(y).isnan().all()
    forms = [
        form
        for form in SESSION.schemas.values()
        if form.outputs and form.outputs[0].metadata is metadata_of(weft.wait(y))
    ]
    assert forms
    assert all(form.plain and not form.written for form in forms)
