"""What operators read when they run is what it was at their calls, whatever is set meanwhile."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import weft
from weft.lazy_tensors.session import SESSION
from weft.lazy_tensors.settings import flushes_denormals, flushing_denormals
from weft.lazy_tensors.tasks import engine
from weft.lazy_tensors.tensor import LazyTensor

Tensors = list[torch.Tensor]
WHOLE = torch.arange(64).reshape(8, 8) + 1
X = torch.linspace(-1, 1, 64).reshape(8, 8)
QUERIES = torch.linspace(-1, 1, 512).reshape(2, 2, 16, 8)


@pytest.fixture(autouse=True)
def usual_settings() -> Iterator[None]:
    """Leave settings and failures of one test to no other."""
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_flush_denormal(False)
    engine().failures.drop_what_is_queued()
    engine().failures.known.clear()
    engine().close()


def default_dtype() -> Tensors:
    before = WHOLE / 3
    torch.set_default_dtype(torch.float64)
    after = WHOLE / 3
    torch.set_default_dtype(torch.float32)
    return [before, after]


def default_tensor_type() -> Tensors:
    before = WHOLE / 3
    with warnings.catch_warnings(action="ignore"):
        torch.set_default_tensor_type(torch.DoubleTensor)  # type: ignore[no-untyped-call]
    after = WHOLE / 3
    torch.set_default_dtype(torch.float32)
    return [before, after]


def default_device() -> Tensors:
    before = X * 2
    torch.set_default_device("meta")
    elsewhere = torch.zeros(2)
    after = X * 3 + before
    torch.set_default_device(None)
    return [before, after, torch.tensor(elsewhere.is_meta)]


def attention_kernels() -> Tensors:
    def attend() -> torch.Tensor:
        return functional.scaled_dot_product_attention(QUERIES, QUERIES, QUERIES, torch.zeros(16, 16))

    before = attend()
    refused = False
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
        try:
            attend()
        except RuntimeError:
            refused = True
    return [before, attend(), torch.tensor(refused)]


def denormals_of_a_thread() -> Tensors:
    small = torch.full((8, 8), 2e-38)
    before = small * 0.01 * 100
    torch.set_flush_denormal(True)
    flushed = small * 0.01 * 100
    torch.set_flush_denormal(False)
    return [before * 1e30, flushed * 1e30]


def hooks_for_saved_tensors() -> Tensors:
    weight = torch.ones(8, 8, requires_grad=True)
    kept: list[torch.Tensor] = []
    before = torch.exp(weight * 1.5)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor * 2):
        inside = torch.exp(weight * 1.5)
    (before.sum() + inside.sum()).backward()
    assert weight.grad is not None
    return [before.detach(), inside.detach(), weight.grad, torch.tensor(len(kept))]


def checkpointed(reentrant: bool) -> Tensors:
    weight = torch.ones(8, 8, requires_grad=True)
    y = checkpoint(lambda tensor: torch.exp(X @ tensor).tanh(), weight, use_reentrant=reentrant)
    y.sum().backward()
    assert weight.grad is not None
    return [y.detach(), weight.grad]


def checkpoint_with_hooks() -> Tensors:
    return checkpointed(reentrant=False)


def checkpoint_as_function() -> Tensors:
    return checkpointed(reentrant=True)


class Scaled(torch.autograd.Function):
    """Twice the square, with a gradient that tells by its value that it was used."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(tensor)
        return tensor * tensor * 2

    @staticmethod
    def backward(context: Any, tangent: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (tensor,) = context.saved_tensors
        return tangent * tensor * 5


def functions_of_a_user() -> Tensors:
    weight = torch.full((8, 8), 3.0, requires_grad=True)
    with torch.no_grad():
        weight *= 2  # queued, and read by what follows
    y = Scaled.apply(weight)  # type: ignore[no-untyped-call]
    (y + weight).sum().backward()
    assert weight.grad is not None
    return [y.detach(), weight.grad]


def anomalies() -> Tensors:
    weight = torch.zeros(8, 8, requires_grad=True)
    before = (torch.sqrt(weight) * 0).sum()
    before.backward()
    assert weight.grad is not None
    found = [weight.grad.clone()]
    with warnings.catch_warnings(action="ignore"), torch.autograd.detect_anomaly():
        y = (torch.sqrt(weight) * 0).sum()
        try:
            y.backward()
        except RuntimeError as error:
            found.append(torch.tensor("nan" in str(error)))
    return [*found, torch.tensor(len(found))]


def tangents() -> Tensors:
    before = torch.exp(X) * 2
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, torch.ones(8, 8))
        primal, tangent = forward_ad.unpack_dual(torch.exp(dual) * 2)
    assert tangent is not None
    return [before, primal, tangent]


class Doubling(TorchFunctionMode):
    """A mode of the user's that changes what exp gives."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.Tensor.exp else result


def modes_of_a_user() -> Tensors:
    with Doubling():
        return [X.exp() + 1]


WORK = [
    default_dtype, default_tensor_type, default_device, attention_kernels, denormals_of_a_thread,
    hooks_for_saved_tensors, checkpoint_with_hooks, checkpoint_as_function, functions_of_a_user, anomalies, tangents,
    modes_of_a_user,
]  # fmt: skip


def check(work: Callable[[], Tensors], found: Tensors, expected: Tensors) -> None:
    for tensor, right in zip(found, expected, strict=True):
        torch.testing.assert_close(weft.wait(tensor), right, equal_nan=True)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # at first tangents
@pytest.mark.parametrize("work", WORK, ids=[work.__name__.replace("_", " ") for work in WORK])
def test_settings_count_as_they_were_at_the_call(work: Callable[[], Tensors]) -> None:
    expected = work()
    for _ in range(4):  # learned, by operators, compiled
        with weft.lazy():
            found = work()
            check(work, found, expected)
    with weft.lazy():
        check(work, work(), expected)


def test_a_mode_around_the_lazy_block_sees_every_call() -> None:
    expected = modes_of_a_user()
    for _ in range(4):
        with Doubling(), weft.lazy():
            check(modes_of_a_user, [X.exp() + 1], expected)
    for _ in range(4):
        with weft.lazy():
            check(modes_of_a_user, [X.exp() + 1], [X.exp() + 1])


def test_a_change_of_a_setting_waits_for_what_is_queued() -> None:
    with weft.lazy():
        for _ in range(3):
            y = X + 1
            assert isinstance(y, LazyTensor) or SESSION.schemas
            torch.use_deterministic_algorithms(True)
            assert weft.ready(y)
            torch.use_deterministic_algorithms(False)


def test_what_was_learned_is_known_again_when_a_setting_is_back() -> None:
    def under(precision: str) -> int:
        torch.set_float32_matmul_precision(precision)
        return SESSION.settings.number

    with weft.lazy():
        usual = [under("highest") for _ in range(2)]
        other = under("high")
        again = under("highest")
    assert usual[0] == usual[1] == again != other


def test_a_task_that_sets_something_does_not_wait_for_itself() -> None:
    def set_precision(tensor: torch.Tensor) -> torch.Tensor:
        torch.set_float32_matmul_precision("highest")
        with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept):
            return tensor * 2

    with weft.lazy():
        torch.testing.assert_close(weft.wait(weft.spawn(set_precision, X)), X * 2)
    assert not SESSION.settings.eager


def test_denormals_are_flushed_in_the_block_only() -> None:
    assert not flushes_denormals()
    with flushing_denormals(True):
        assert flushes_denormals()
        with flushing_denormals(False):
            assert not flushes_denormals()
        assert flushes_denormals()
    assert not flushes_denormals()
