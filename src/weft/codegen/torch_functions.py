"""Reach functions of PyTorch that have no public name: what tensors and threads tell, and addresses for machine code.

A function that this PyTorch lacks is None, and whoever asks for it does without.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

# In this block operators do not record themselves for autograd; the grad mode, at which they may look, stays as it is.
below_autograd = torch._C._AutoDispatchBelowAutograd

# How often a tensor was written, without the Python property around it: it is asked at every call.
version_of: Callable[[torch.Tensor], int] = torch._C.TensorBase._version.__get__  # type: ignore[attr-defined]


def _put_node() -> Callable[[torch.Tensor], object]:
    lift: Callable[[torch.Tensor], object] = torch.ops.aten.lift.default
    with torch.inference_mode(False), torch.enable_grad():
        tensor = torch.zeros((), requires_grad=True) * 1
        before = tensor.grad_fn
        is_same = lift(tensor) is tensor and not tensor._is_view() and tensor.grad_fn is not before
    puts = is_same and tensor.grad_fn is not None and tensor.grad_fn.next_functions[0][0] is before
    return lift if puts else id


# Puts a node that changes nothing above the one that a tensor has, in the tensor itself; or does nothing.
put_node = _put_node()


has_storage: Callable[[torch.Tensor], bool] = torch._C._has_storage


def is_batched(tensor: torch.Tensor | None) -> bool:
    """Whether a tensor stands for a batch of such, as in gradients with `is_grads_batched=True`: it has no memory."""
    return tensor is not None and not has_storage(tensor) and tensor.layout is torch.strided


def in_slices(
    compute: Callable[..., Sequence[torch.Tensor | None]], tensors: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor | None, ...]:
    """Give what is computed of tensors some of which are batched: one after the other, as a batch."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    whole = [
        torch._remove_batch_dim(one, level, 1, 0) if one is not None and is_batched(one) else None for one in tensors
    ]
    count = next(one.shape[0] for one in whole if one is not None)
    rows = [
        compute(*[one if batch is None else batch[place] for one, batch in zip(tensors, whole, strict=True)])
        for place in range(count)
    ]
    columns = [_stacked(column) for column in zip(*rows, strict=True)]
    return tuple(None if column is None else torch._add_batch_dim(column, 0, level) for column in columns)


def _stacked(column: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    found = [one for one in column if one is not None]
    return torch.stack(found) if len(found) == len(column) else None


def storage_owners(tensor: torch.Tensor) -> int:
    """Count who holds a tensor's memory: the tensor itself, views, aliases, arrays of other libraries."""
    storage = tensor.untyped_storage()
    # One of the owners is `storage`, here.
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each tensor to another one: in one call, as PyTorch hands over the interpreter's lock in each."""
    torch._foreach_copy_(list(targets), list(sources))


# Optimizers with `fused=True` write parameters by these, and the parameters' versions stay as they were.
FUSED_UPDATES = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")


def wrap_fused_updates(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put what `wrap` gives in the place of each function that updates the parameters in its first argument."""
    for name in FUSED_UPDATES:
        setattr(torch, name, wrap(getattr(torch, name)))


ANY_BIT, BYTE = (1 << 64) - 1, 0xFF
TRACER: int = torch._C._dispatch_key_parse("Tracer").value  # not a name of the enumeration
# What tells a thread's modes: library, function, the number it takes, the bits of its answer that count.
MODE_FUNCTIONS = (
    ("libc10", "_ZN3c108GradMode10is_enabledEv", 0, BYTE),
    ("libc10", "_ZN3c1013InferenceMode10is_enabledEv", 0, BYTE),
    ("libc10", "_ZN3c1031get_default_dtype_as_scalartypeEv", 0, BYTE),
    ("libc10", "_ZN3c104impl20TorchDispatchModeTLS13any_modes_setEb", 0, BYTE),
    ("libtorch_cpu", "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv", 0, ANY_BIT),
    ("libtorch_cpu", "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE", 0, BYTE),  # 0: CPU
    ("libtorch_cpu", "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE", 1, BYTE),  # 1: CUDA
    (
        "libc10",
        "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE",
        torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode.value,
        BYTE,
    ),
    # torch.jit.trace
    ("libc10", "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE", TRACER, BYTE),
)
# What autocast on the CPU casts to: asked for only where it is on.
AUTOCAST_DTYPE = ("libtorch_cpu", "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE", 0, BYTE)
TENSOR_FUNCTIONS = (
    ("libtorch_cpu", "aoti_torch_empty_strided"),
    ("libtorch_cpu", "aoti_torch_delete_tensor_object"),
    ("libtorch_python", "_Z16THPVariable_WrapRKN2at10TensorBaseE"),
)
# What tells what lazy code asks of its thread, as (library, function, the number it takes): flags; then whether
# functions are intercepted, by how many modes, and the default type.
THREAD_FUNCTIONS = (
    *((library, name, number) for library, name, number, _ in (*MODE_FUNCTIONS[:2], MODE_FUNCTIONS[3])),
    *((library, name, number) for library, name, number, _ in (MODE_FUNCTIONS[5], MODE_FUNCTIONS[7])),
    ("libtorch_cpu", "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv", 0),
    *((library, name, number) for library, name, number, _ in (MODE_FUNCTIONS[4], MODE_FUNCTIONS[2])),
)
COPY_FUNCTIONS = (
    ("libtorch_cpu", "aoti_torch__reinterpret_tensor"),
    ("libtorch_python", "_Z16THPVariable_WrapRKN2at10TensorBaseEP11_typeobject"),
    ("libtorch_cpu", "aoti_torch_delete_tensor_object"),
)


def thread_functions() -> tuple[tuple[int, int], ...] | None:
    """Give (address, number) of the functions that tell what lazy code asks of its thread; None if one is missing."""
    places = [_exported(library, name) for library, name, _ in THREAD_FUNCTIONS]
    numbers = (number for *_, number in THREAD_FUNCTIONS)
    return (
        None if None in places else tuple((place or 0, number) for place, number in zip(places, numbers, strict=True))
    )


def copy_functions() -> tuple[int, int, int] | None:
    """Give the addresses of: make a tensor of another's memory, make an object of a class of it, delete its handle."""
    copy, wrap, delete = (_exported(library, name) for library, name in COPY_FUNCTIONS)
    return None if copy is None or wrap is None or delete is None else (copy, wrap, delete)


def dispatch_keys(tensor: torch.Tensor) -> int:
    """Give the set of a tensor's dispatch keys as the word that the tensor has it in."""
    return int(torch._C._dispatch_keys(tensor).raw_repr())


def mode_functions() -> tuple[tuple[int, int, int], ...] | None:
    """Give (address, number, bits) of the functions that tell a thread's modes; None if this PyTorch lacks one.

    The last tells what autocast casts to: where it is off, that does not matter.
    """
    functions = (*MODE_FUNCTIONS, AUTOCAST_DTYPE)
    places = [_exported(library, name) for library, name, *_ in functions]
    if None in places:
        return None
    rows = zip(places, functions, strict=True)
    return tuple((place or 0, number, bits) for place, (_, _, number, bits) in rows)


def tensor_functions() -> tuple[int, int, int] | None:
    """Give the addresses of: make a tensor, delete its handle, make Python's object of it; None if one is missing."""
    empty, delete, wrap = (_exported(library, name) for library, name in TENSOR_FUNCTIONS)
    return None if empty is None or delete is None or wrap is None else (empty, delete, wrap)


@cache
def _exported(library: str, name: str) -> int | None:
    """Give the address of a function, which stays where it is; each look would make a class of Python's."""
    file = Path(torch.__file__).parent / "lib" / f"{library}.so"
    try:
        # Loaded long ago: this only finds it again.
        return ctypes.cast(getattr(ctypes.CDLL(str(file)), name), ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None
