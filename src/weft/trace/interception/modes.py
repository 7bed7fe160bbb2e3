"""Ask for PyTorch's modes and settings, of a thread and of the process, suspend them, and hear of their changes.

Beside `capture.py`, which intercepts operators, the one place in tracing that uses private corners of PyTorch.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

# As they are before `announce` makes others of them.
_top_hooks: Callable[[bool], tuple[Any, Any] | None] = torch._C._autograd._top_saved_tensors_default_hooks
_push_hooks: Callable[[Any, Any], None] = torch._C._autograd._push_saved_tensors_default_hooks
_pop_hooks: Callable[[], None] = torch._C._autograd._pop_saved_tensors_default_hooks


def has_function_modes() -> bool:
    """Whether a torch function mode (a default device, for one) is active."""
    return torch._C._len_torch_function_stack() > 0


def function_mode_count() -> int:
    """How many torch function modes are active."""
    return torch._C._len_torch_function_stack()


def functions_are_intercepted() -> bool:
    """Whether functions of PyTorch are handed to who intercepts them."""
    return torch._C._is_torch_function_enabled()


# The torch function mode at a place of the stack, from the one entered first: it must be there.
function_mode: Callable[[int], Any] = torch._C._get_function_stack_at


@contextmanager
def without_saved_tensors_hooks() -> Iterator[None]:
    """Hooks around a call of a program get what the program saves, and not the stand-ins of its trace."""
    hooks = []
    while (pair := _top_hooks(True)) is not None:
        hooks.append(pair)
        _pop_hooks()
    try:
        yield
    finally:
        for pair in reversed(hooks):
            _push_hooks(*pair)


# What operators read when they run, as (who has the function that sets it, its name). What belongs to a thread is left
# out where whoever runs operators later takes it along: grad mode, say.
SETTERS: tuple[tuple[Any, str], ...] = (
    *(
        (torch._C, f"_set_{name}")
        for name in (
            "default_dtype", "default_tensor_type", "deterministic_algorithms",
            "deterministic_fill_uninitialized_memory", "float32_matmul_precision", "fp32_precision_setter",
            "mkldnn_enabled", "mkldnn_deterministic", "onednn_allow_tf32", "nnpack_enabled", "qengine",
            "cpu_allow_fp16_reduced_precision_reduction", "math_sdp_allow_fp16_bf16_reduction", "sdp_priority_order",
            "sdp_use_cudnn", "sdp_use_flash", "sdp_use_math", "sdp_use_mem_efficient", "sdp_use_overrideable",
        )
    ),
    (torch, "set_anomaly_enabled"),
    (torch, "set_flush_denormal"),
)  # fmt: skip
# What begins and ends a block in which operators do more at their calls than compute: they hand over what they keep for
# a backward, or carry tangents.
BLOCKS: tuple[tuple[Any, str, int], ...] = (
    (torch._C._autograd, "_push_saved_tensors_default_hooks", 1),
    (torch._C._autograd, "_pop_saved_tensors_default_hooks", -1),
    (forward_ad, "enter_dual_level", 1),
    (forward_ad, "exit_dual_level", -1),
)

# Where transforms of `torch.func` take the tensors that they are given.
TRANSFORMS: tuple[tuple[Any, str], ...] = (
    (torch._functorch.vmap, "_add_batch_dim"),
    (torch._functorch.eager_transforms, "_wrap_for_grad"),
)


def announce(owner: Any, name: str, around: Callable[[Callable[[], Any], Any], Any]) -> None:
    """Let a function of PyTorch be called by `around` from now on: it gets the call, and what it was given."""
    function = getattr(owner, name, None)
    if function is None:
        return  # another PyTorch, without this setting

    @functools.wraps(function)
    def announced(*args: Any, **kwargs: Any) -> Any:
        return around(functools.partial(function, *args, **kwargs), (args, tuple(kwargs.items())))

    setattr(owner, name, announced)


def forward_levels() -> int:
    """How many levels of forward-mode differentiation this thread is in."""
    return int(forward_ad._current_level) + 1


def is_differentiated_forward(leaves: Sequence[Any], root: Any) -> bool:
    """Whether one of these, or a tensor of a module, carries a tangent of forward-mode differentiation."""
    if not forward_levels():
        return False
    own = (*root.parameters(), *root.buffers()) if isinstance(root, torch.nn.Module) else ()
    tensors = (leaf for leaf in (*leaves, *own) if isinstance(leaf, torch.Tensor))
    return any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def open_blocks() -> int:
    """How many blocks of `BLOCKS` this thread is in, as far as PyTorch tells."""
    return (torch._C._autograd._top_saved_tensors_default_hooks(True) is not None) + forward_ad._current_level + 1


def compile_nothing_under(kind: type) -> None:
    """Where a function mode of a class is active, let what `torch.compile` makes run as written."""
    compiler = torch.compile

    def watch() -> None:
        frames: Any = sys.modules.get("torch._dynamo.eval_frame")  # it takes a second to import, and most never need it
        choose = getattr(frames, "_callback_from_stance", None)
        if choose is not None and not hasattr(choose, "__wrapped__"):

            @functools.wraps(choose)
            def chosen(callback: Any) -> Any:
                places = range(torch._C._len_torch_function_stack())
                under = any(torch._C._get_function_stack_at(place).__class__ is kind for place in places)
                if not under:
                    return choose(callback)
                count = frames.set_fullgraph_compiled_frame_count(-1)
                if count >= 0:  # who asked for a whole graph is not to be told that there was none
                    frames.set_fullgraph_compiled_frame_count(count + 1)
                return None

            setattr(frames, "_callback_from_stance", chosen)  # noqa: B010  # no module says that it has it

    @functools.wraps(compiler)
    def compile_watched(*args: Any, **kwargs: Any) -> Any:
        made = compiler(*args, **kwargs)
        watch()
        return made

    torch.compile = compile_watched
    watch()


def _function_modes() -> list[Any]:
    return [torch._C._get_function_stack_at(place) for place in range(torch._C._len_torch_function_stack())]


@contextmanager
def without_modes(kind: type) -> Iterator[None]:
    """Take function modes of a class off this thread's stack in the block."""
    before = _function_modes()
    _replace_modes([mode for mode in before if mode.__class__ is not kind])
    try:
        yield
    finally:
        _replace_modes(before)


def _replace_modes(modes: Sequence[Any]) -> None:
    while torch._C._len_torch_function_stack():
        torch._C._pop_torch_function_stack()
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)


def others_intercept() -> bool:
    """Whether a function mode is active; a default device is none, as it only says where new tensors are made."""
    count = torch._C._len_torch_function_stack()
    return count > 0 and any(
        torch._C._get_function_stack_at(place).__class__ is not DeviceContext for place in range(count)
    )


# A trace leaves nothing in what the rest of the process keeps: the cache of casts, the log, the search for anomalies.


@contextmanager
def without_autocast_cache() -> Iterator[None]:
    """A cast of a stand-in must not be kept where an eager call could find it."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextmanager
def without_anomaly_search() -> Iterator[None]:
    """Stand-ins of gradients have no elements to look for NaN in."""
    if not torch.is_anomaly_enabled():
        yield
        return
    with torch.autograd.set_detect_anomaly(False):
        yield


@contextmanager
def without_error_log() -> Iterator[None]:
    """PyTorch logs what an operator's shape rule raises; here the exception itself reaches the user."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.addFilter(_nothing)
    try:
        yield
    finally:
        log.removeFilter(_nothing)


def _nothing(_record: logging.LogRecord) -> bool:
    return False


@functools.cache
def hide_from_dynamo(packages: tuple[str, ...]) -> None:
    """Let Dynamo leave the code of these packages alone, which also runs where code that it compiles calls backward."""
    trace_rules = importlib.import_module("torch._dynamo.trace_rules")  # loads Dynamo, which few need

    for package in packages:
        trace_rules.add(package)


def symbolic_sizes(tensor: Any) -> dict[int, tuple[str, int, int | None]]:
    """The sizes of what another tracer made that vary, by dimension: what each is called, and its range.

    A whole number is taken as a size too. What is computed of others is not among them.
    """
    sizes = (tensor,) if isinstance(tensor, torch.SymInt) else getattr(tensor, "shape", ())
    found: dict[int, tuple[str, int, int | None]] = {}
    for place, size in enumerate(sizes):
        if isinstance(size, torch.SymInt) and size.node.expr.is_symbol:
            bounds = size.node.shape_env.var_to_range[size.node.expr]
            least, most = bounds.lower, bounds.upper
            found[place] = (str(size.node.expr), int(least), int(most) if most.is_Integer and most < 1 << 60 else None)
    return found


def is_option_of_inductor(name: str) -> bool:
    """Whether an option is one of PyTorch's own compiler."""
    found: list[str] = importlib.import_module("torch._inductor").list_options()
    return name in found
