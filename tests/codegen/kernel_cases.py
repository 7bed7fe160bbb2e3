"""What the kernel tests share: compile, call with tensors, compare with float64."""

import ctypes
from collections.abc import Callable, Sequence

import torch

from weft.codegen.llvm.module import Module
from weft.codegen.objects.native import compile_native
from weft.target import Target, host_target

LEVELS = ("native", "avx2", "generic")


def targets() -> list[Target]:
    """List the targets this machine can run."""
    host = host_target()
    return [host.masked(level) for level in LEVELS if level == "native" or not host.triple.startswith("aarch64")]


def compiled(target: Target, *emitters: Callable[[Module], None]) -> Callable[..., None]:
    """Compile what the emitters add to one module; call it with a name, tensors, begin, end, and where loops end."""
    module = Module(target)
    for emit in emitters:
        emit(module)
    library = compile_native(str(module), target, use_cache=False)

    def call(name: str, *tensors: torch.Tensor, begin: int, end: int, ends: Sequence[int] = ()) -> None:
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(tensors), *[ctypes.c_int64] * (2 + len(ends)))
        kind(library.address(name))(*[tensor.data_ptr() for tensor in tensors], begin, end, *ends)

    return call


def guarded(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Make a tensor of NaN inside a larger one, and that one: what is written outside the tensor can be seen."""
    size = 1
    for length in shape:
        size *= length
    whole = torch.full((size + 128,), torch.nan, dtype=dtype)
    return whole[64 : 64 + size].view(shape), whole


def assert_untouched(whole: torch.Tensor) -> None:
    """Check that nothing was written around a guarded tensor."""
    assert whole[:64].isnan().all()
    assert whole[-64:].isnan().all()


def assert_as_exact_as_eager(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, ulps: float = 4) -> None:
    """Check the measure of Weft's numerics: the error is at most twice eager's plus a few units in the last place."""
    if not exact.numel():
        return
    scale = exact.abs().max()
    error = (got.double() - exact).square().mean().sqrt()
    allowed = 2 * (eager.double() - exact).square().mean().sqrt() + ulps * torch.finfo(got.dtype).eps * scale
    assert error <= allowed, f"error {error:.3g}, allowed {allowed:.3g}"
