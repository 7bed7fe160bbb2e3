"""Ask for PyTorch's modes and settings, of a thread and of the process, suspend them, and hear of their changes.

Beside `capture.py`, which intercepts operators, the one place in tracing that uses private corners of PyTorch.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import inspect
import logging
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from types import CellType, FunctionType, SimpleNamespace
from typing import Any

import torch
import torch._decomp
import torch._functorch.config
import torch._refs
import torch.fx.experimental._config
import torch.nested._internal.nested_tensor
import torch.utils.checkpoint as checkpoints
from torch._compile import _disable_dynamo
from torch._subclasses.fake_tensor import FakeTensorConverter, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from weft.trace.interception.user_lines import UnplacedShapes

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


def operators_are_plain() -> bool:
    """Whether operators do on this thread what they do on a new one: no mode, tracer or transform has a say."""
    return not (
        torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._is_any_autocast_enabled()
        or torch.is_inference_mode_enabled()
        or torch._C._functorch.maybe_current_level() is not None
        or torch._C._get_tracing_state() is not None
    )


def functions_are_intercepted() -> bool:
    """Whether functions of PyTorch are handed to who intercepts them."""
    return torch._C._is_torch_function_enabled()


# The torch function mode at a place of the stack, from the one entered first: it must be there.
function_mode: Callable[[int], Any] = torch._C._get_function_stack_at


def saves_by_hooks() -> bool:
    """Whether hooks pack what autograd saves now."""
    return _top_hooks(True) is not None


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


MAKE_SUBCLASS = torch.Tensor._make_subclass
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
    """Whether something in these, or a tensor of a module, carries a tangent of forward-mode differentiation."""
    if not forward_levels():
        return False
    own = (*root.parameters(), *root.buffers()) if isinstance(root, torch.nn.Module) else ()
    tensors = (leaf for leaf in (*tree_leaves(leaves), *own) if isinstance(leaf, torch.Tensor))
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


Autocast = tuple[tuple[str, torch.dtype], ...] | None  # the kinds of devices that it is for; None where it is off


def autocast_now() -> Autocast:
    """Which kinds of devices cast automatically, and to what."""
    if not torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled("cuda"):
        return None
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind))


@contextmanager
def under_autocast(kinds: Autocast) -> Iterator[None]:
    """In this block operators cast for these kinds of devices, and for no others."""
    wanted = dict(kinds or ())
    before = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    now = [(kind, kind in wanted, wanted.get(kind, dtype)) for kind, _, dtype in before]
    try:
        _set_autocast(now)
        yield
    finally:
        _set_autocast(before)


def _set_autocast(kinds: Iterable[tuple[str, bool, torch.dtype]]) -> None:
    for kind, is_on, dtype in kinds:
        if is_on != torch.is_autocast_enabled(kind):
            torch.set_autocast_enabled(kind, is_on)
        if dtype != torch.get_autocast_dtype(kind):
            torch.set_autocast_dtype(kind, dtype)


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


LOGS_OF_ERRORS = (
    "torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes", "torch.utils._sympy.interp",
)  # fmt: skip


@contextmanager
def without_error_log() -> Iterator[None]:
    """PyTorch logs what a shape rule raises, or what decides by symbols; here the exception itself reaches the user."""
    logs = [logging.getLogger(name) for name in LOGS_OF_ERRORS]
    for log in logs:
        log.addFilter(_nothing)
    try:
        yield
    finally:
        for log in logs:
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

    A whole number is taken as a size too, unless it may be negative. What is computed of others is not among them.
    """
    sizes = (tensor,) if isinstance(tensor, torch.SymInt) else getattr(tensor, "shape", ())
    found: dict[int, tuple[str, int, int | None]] = {}
    for place, size in enumerate(sizes):
        if isinstance(size, torch.SymInt) and size.node.expr.is_symbol:
            bounds = size.node.shape_env.var_to_range[size.node.expr]
            least, most = bounds.lower, bounds.upper
            if not least.is_Integer or least < 0:  # a number, which no size is: it may also be below all numbers
                continue
            found[place] = (str(size.node.expr), int(least), int(most) if most.is_Integer and most < 1 << 60 else None)
    return found


def is_option_of_inductor(name: str) -> bool:
    """Whether an option is one of PyTorch's own compiler."""
    found: list[str] = importlib.import_module("torch._inductor").list_options()
    return name in found


def is_dynamo_loaded() -> bool:
    """Whether anybody has imported Dynamo: what PyTorch does only for it can be left out before that."""
    return "torch._dynamo" in sys.modules


class OpenMode(TorchDispatchMode):
    """A mode that PyTorch does not hide from Dynamo: it would import Dynamo to do so."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


# What PyTorch makes of a function that Dynamo is to leave alone imports Dynamo when it is first called, unless it finds
# there what it is to call.
_HIDDEN = _disable_dynamo(lambda: None).__code__
_CALLED = "__dynamo_disable"


@functools.cache
def import_no_dynamo() -> None:
    """Let PyTorch's rules for operators run as they are until somebody else imports Dynamo.

    Rules are hidden from it, which takes a second and 40 MB where nobody uses it, and changes nothing then.
    """
    if is_dynamo_loaded():
        return
    tables: Iterable[Mapping[Any, Any]] = torch._decomp.global_decomposition_table.values()
    modules = (
        torch._refs, torch._refs.nn.functional, torch._refs.special, torch._refs.linalg, torch._refs.fft, checkpoints,
    )  # fmt: skip
    waiting = [rule for table in (*tables, *map(vars, modules)) for rule in table.values()]
    seen = set()
    while waiting:
        rule = waiting.pop()
        if not isinstance(rule, FunctionType) or rule in seen:
            continue
        seen.add(rule)
        inside = [cell.cell_contents for cell in rule.__closure__ or () if cell != _EMPTY]
        if rule.__code__ is _HIDDEN:
            _run_as_it_is(rule, inside[_HIDDEN.co_freevars.index("fn")])
        waiting += inside


_EMPTY = CellType()  # of a name that nothing was given to


def _run_as_it_is(hidden: Any, function: Any) -> None:
    """Let a function that is hidden from Dynamo run as it is until there is one."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if not is_dynamo_loaded():
            return function(*args, **kwargs)
        vars(function).pop(_CALLED, None)  # of two threads the second one finds nothing to do
        return hidden(*args, **kwargs)

    # Dynamo traces no code of this file.
    run.__code__ = run.__code__.replace(co_filename=_HIDDEN.co_filename)
    vars(function).setdefault(_CALLED, run)


class _WithoutDynamo:
    """The module torch to code that would import Dynamo for what only who has imported it needs."""

    _unset = SimpleNamespace(
        config=SimpleNamespace(_custom_ops_profile=None, error_on_nested_fx_trace=True),
        disable=lambda function: function,
    )

    def __getattr__(self, name: str) -> Any:
        return self._unset if name == "_dynamo" and not is_dynamo_loaded() else getattr(torch, name)


_in_use = [0]  # how many threads trace code that may have checkpoints
_lock = Lock()  # held while that is counted, so it cannot deadlock


@contextmanager
def checkpoints_without_dynamo() -> Iterator[None]:
    """Let checkpoints in the block import no Dynamo: they ask for a setting of it, and hide a function from it."""
    import_no_dynamo()
    with _lock:
        _in_use[0] += 1
        if not is_dynamo_loaded():
            vars(checkpoints)["torch"] = _WithoutDynamo()
    try:
        yield
    finally:
        with _lock:
            _in_use[0] -= 1
            if not _in_use[0]:
                vars(checkpoints)["torch"] = torch


VALIDATOR = "torch.fx.experimental.validator"  # of what is concluded of symbols; it imports Dynamo, to be switched off
_no_validator = SimpleNamespace(translation_validation_enabled=lambda: False)


def _import(name: str, *rest: Any) -> Any:
    return _no_validator if name == VALIDATOR else importlib.__import__(name, *rest)


def _no_trace(*_names: Any, **_records: Any) -> None:
    """What whoever reads traces of Dynamo's programs is told of another one's symbols."""


def _without_dynamo(function: Any) -> Any:
    """Give a function of PyTorch to which there is no Dynamo until somebody imports it."""
    function = inspect.unwrap(function)  # of what records events to be replayed
    names = {**function.__globals__, "torch": _WithoutDynamo(), "trace_structured": _no_trace}
    names["__builtins__"] = {**vars(builtins), "__import__": _import}
    found = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    found.__kwdefaults__ = function.__kwdefaults__
    return found


class _OpenFakeMode(OpenMode, FakeTensorMode):
    """PyTorch's mode of stand-ins while there is no Dynamo that it would have to be hidden from."""

    __torch_dispatch__ = getattr(FakeTensorMode.__torch_dispatch__, "__wrapped__", FakeTensorMode.__torch_dispatch__)
    _dispatch_impl = _without_dynamo(FakeTensorMode._dispatch_impl)


class _OpenShapes(UnplacedShapes):
    """PyTorch's table of symbols without a validator."""

    __init__ = _without_dynamo(ShapeEnv.__init__)
    _init = _without_dynamo(ShapeEnv._init)
    create_symbol = _without_dynamo(ShapeEnv.create_symbol)
    _log_guard = _without_dynamo(ShapeEnv._log_guard)
    _set_replacement = _without_dynamo(ShapeEnv._set_replacement)


KNOWN = ("2.13.", "2.14.")  # the releases of PyTorch whose constructors are repeated, or copied, here


def _may_do_without_dynamo() -> bool:
    return torch.__version__.startswith(KNOWN) and not is_dynamo_loaded()


def table_of_symbols(**options: Any) -> UnplacedShapes:
    """Make PyTorch's table of symbols, without importing Dynamo where nobody wants what it concludes validated."""
    is_validated = torch.fx.experimental._config.translation_validation
    found = (_OpenShapes if _may_do_without_dynamo() and not is_validated else UnplacedShapes)(**options)
    if hasattr(found, "_replacements_version_counter"):
        found._replacements_version_counter += 1  # else nothing is ever written in another way
    return found


def fake_mode() -> FakeTensorMode:
    """Make PyTorch's mode of stand-ins without importing Dynamo, of which its constructor reads two settings.

    Importing it takes a second and 40 MB, and most processes need it for nothing else. Tests compare what both set.
    """
    settings = torch._functorch.config
    if not _may_do_without_dynamo() or settings.fake_tensor_propagate_real_tensors:
        return FakeTensorMode(allow_non_fake_inputs=True, static_shapes=True)
    found = _OpenFakeMode.__new__(_OpenFakeMode)
    TorchDispatchMode.__init__(found)
    count = torch.nested._internal.nested_tensor._tensor_id_counter
    vars(found).update(
        allow_fallback_kernels=True,
        propagate_real_tensors=False,
        fake_tensor_converter=FakeTensorConverter(copy_data=False, export=False),
        static_shapes=True,
        allow_scalar_outputs=False,
        _allow_unsafe_data_ptr_access=settings.fake_tensor_allow_unsafe_data_ptr_access,
        allow_meta=settings.fake_tensor_allow_meta,
        cache_enabled=True,
        cache_crosscheck_enabled=False,
        allow_non_fake_inputs=True,
        in_kernel_invocation=False,
        enter_stack=[],
        shape_env=None,
        _stack_trace=traceback.extract_stack(limit=1),
        _stack=None,
        _mode_key=torch._C._TorchDispatchModeKey.FAKE,
        nt_tensor_id_initial_count=count,
        nt_tensor_id_counter=count,
    )
    return found


def next_autograd_number() -> int:
    """The sequence number that the next autograd node of this thread gets."""
    return int(torch._C._autograd._get_sequence_nr())


def running_autograd_number() -> int | None:
    """The sequence number of the autograd node whose backward is running, if one is."""
    node: Any = torch._C._current_autograd_node()
    return None if node is None else int(node._sequence_nr())


def node_of_leaf(leaf: torch.Tensor) -> Any:
    """The node of autograd by which a tensor gets its gradient; there is one while somebody holds it."""
    return torch.autograd.graph.get_gradient_edge(leaf).node


def number_of_backward() -> int:
    """The number of the backward that this thread runs."""
    return int(torch._C._current_graph_task_id())


def backward_visits(node: Any) -> bool:
    """Whether the backward that is running comes to a node that lies on its way."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # a leaf whose gradient is asked for
        return True


def graph_is_retained() -> bool:
    """Whether the backward that is running keeps what another one would need."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def step_hooks(optimizer: torch.optim.Optimizer) -> tuple[dict[Any, Any], ...]:
    """What runs before or after each step of this optimizer, or of every one, by where it is registered."""
    return (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        _global_optimizer_pre_hooks,
        _global_optimizer_post_hooks,
    )


def note_step(optimizer: torch.optim.Optimizer) -> None:
    """Let learning rate schedulers know that the optimizer has made a step: they warn where none came before theirs."""
    if not getattr(optimizer, "_opt_called", False):
        optimizer._opt_called = True  # type: ignore[attr-defined]


def count_up(counts: list[torch.Tensor]) -> None:
    """Add one to each count in one call: an optimizer has as many as parameters."""
    torch._foreach_add_(counts, 1)


def has_own_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether somebody has put a function in the place of this optimizer's step; what schedulers put there is known."""
    own = vars(optimizer).get("step")
    return own is not None and not getattr(own, "_wrapped_by_lr_sched", False)


def shapes_of(number: Any) -> Any:
    """What knows of the symbol that stands for a number."""
    return number.node.shape_env


def number_of_call(number: Any) -> Any:
    """What the number is in the call that is traced."""
    return number.node.hint


def answer_otherwise(kind: type, **methods: Callable[..., Any]) -> None:
    """Put other methods in a class of what stands for numbers: Python looks for special ones there alone."""
    for name, method in methods.items():
        setattr(kind, name, method)
