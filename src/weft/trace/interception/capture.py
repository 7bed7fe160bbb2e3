"""Intercept operators and functions at PyTorch's own points: beside modes.py the one place with private corners.

`Interception` makes every operator that runs inside it run on stand-ins ("fake" tensors: sizes, strides and autograd,
but no data), and hands each operator to a listener. Nothing above this file imports a name of PyTorch that starts with
an underscore.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property
from types import MappingProxyType, TracebackType
from typing import Any, Protocol

import torch
import torch.utils._pytree as pytree
from torch._compile import _disable_dynamo
from torch._dispatch.python import enable_python_dispatcher
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._guards import GuardSource, Source
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
    in_kernel_invocation_manager,
)
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd.function import BackwardCFunction
from torch.fx.experimental.symbolic_shapes import DimDynamic
from torch.overrides import TorchFunctionMode, handle_torch_function
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.value_ranges import ValueRanges
from typing_extensions import Self

from weft.ir.extents import Extent, FixedSizeError
from weft.ir.graph import Value
from weft.ir.types import TensorType, contiguous, order_of, type_of
from weft.trace.interception.hearing import heard, unheard
from weft.trace.interception.modes import (
    OpenMode,
    fake_mode,
    has_function_modes,
    import_no_dynamo,
    is_dynamo_loaded,
    saves_by_hooks,
    table_of_symbols,
    without_anomaly_search,
    without_autocast_cache,
    without_error_log,
    without_saved_tensors_hooks,
)
from weft.trace.interception.refusals import note_raised
from weft.trace.interception.size_expressions import made_of
from weft.trace.interception.sized_functions import OpenFunction
from weft.trace.interception.user_lines import PlacedGuards, UnplacedShapes

tree_flatten, tree_unflatten, tree_map_only = pytree.tree_flatten, pytree.tree_unflatten, pytree.tree_map_only
register_node = pytree.register_pytree_node
TreeSpec = pytree.TreeSpec
AttributeKey = pytree.GetAttrKey


def leaf_paths(tree: Any) -> list[tuple[Any, ...]]:
    """How to get to each leaf: indices, keys and names of attributes."""
    return [tuple(map(_key_of, path)) for path, _ in pytree.tree_flatten_with_path(tree)[0]]


def _key_of(step: Any) -> Any:
    if isinstance(step, pytree.SequenceKey):
        return step.idx
    return step.name if isinstance(step, pytree.GetAttrKey) else getattr(step, "key", step)


def is_node(kind: type) -> bool:
    """Whether a class is a node of PyTorch's trees."""
    return kind in pytree.SUPPORTED_NODES


DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException)
NO_SHAPE_RULE = UnsupportedOperatorException

Operator = Any  # torch._ops.OpOverload, which has no public name
PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class Listener(Protocol):
    """What an Interception reports to."""

    def on_operator(self, operator: Operator, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """An operator below autograd is about to run; returns its result."""

    def on_function(self, function: Callable[..., Any], arguments: Any, keywords: Any) -> tuple[Any, Any, Any]:
        """A function of PyTorch's Python interface is about to run; returns what to call, with which arguments."""


class _OperatorMode(OpenMode):
    def __init__(self, listener: Listener) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.listener = listener
        self.quiet = False
        self.packs = False  # what autograd saves goes through hooks

    def __torch_dispatch__(
        self, func: Operator, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        if self.quiet or func.namespace == "prim":
            return func(*args, **keywords)
        if func.namespace == "profiler":  # record_function("name"): it is for whoever profiles the trace
            with outside_tracing():
                return func(*args, **keywords)
        if _is_composite(func.name()) and not _has_kernel(func.name(), (*args, *keywords.values())):
            # Inference mode skips autograd, and with it the step that takes composite operators apart.
            with self:
                result = func.decompose(*args, **keywords)
            if result is not NotImplemented:
                return result
        # What C++ calls by itself (`Function.apply` of what it gives back) comes here with the other mode still on.
        self.packs = self.packs or saves_by_hooks()
        with torch._C.DisableTorchFunction():
            return unheard(self.listener.on_operator, func, args, keywords)


class _HiddenOperatorMode(_OperatorMode):
    __torch_dispatch__ = _disable_dynamo(_OperatorMode.__torch_dispatch__)


def watching_operators(listener: Listener) -> _OperatorMode:
    """Report operators below autograd to a listener, which runs them on the tensors that they are given."""
    return (_HiddenOperatorMode if is_dynamo_loaded() else _OperatorMode)(listener)


@cache
def _is_composite(name: str, key: str = "CompositeImplicitAutograd") -> bool:
    """Whether PyTorch has a kernel of an operator for a dispatch key; by default one that only calls others."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


def _has_kernel(name: str, arguments: Sequence[Any]) -> bool:
    """Whether a composite operator has a kernel of its own too where its tensors are: that one runs in eager."""
    devices = {leaf.device.type for leaf in arguments if isinstance(leaf, torch.Tensor)}
    return bool(devices) and all(_is_composite(name, device.upper()) for device in devices)


class _FunctionMode(TorchFunctionMode):
    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self.listener = listener

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        function, arguments, keywords = self.listener.on_function(func, args, kwargs or {})
        try:
            with self if isinstance(function, OpenFunction) else nullcontext():
                return function(*arguments, **keywords)
        except Exception as error:
            note_raised(error)  # of elements there are none: whether eager raises it nobody knows
            raise


class _Computed(torch.autograd.Function):
    """What autograd has computed of a leaf: new memory with the very strides; `clone` would close gaps between rows."""

    @staticmethod
    def forward(context: Any, leaf: torch.Tensor) -> torch.Tensor:
        del context
        return leaf.new_empty_strided(leaf.size(), leaf.stride())

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        del context
        return gradient


def is_of_function(node: type) -> bool:
    """Whether nodes of a kind belong to an `autograd.Function` of traced code."""
    return issubclass(node, BackwardCFunction) and getattr(node, "_forward_cls", None) is not _Computed


# What PyTorch itself keeps in the attributes of a stand-in.
STAND_IN_ATTRIBUTES = frozenset(
    {*FakeTensor.__annotations__, "fake_mode", "fake_device", "constant", "real_tensor", "pytype", "dispatch_keys"}
)
OWN_ATTRIBUTES = ("weft_real_class", "weft_missing", "weft_put")  # ours, by names that no tensor has


class ResultStandIn(FakeTensor):
    """A stand-in for what an operator gave, which is an ordinary tensor."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return torch.Tensor


class ArgumentStandIn(FakeTensor):
    """A stand-in for an argument: it has the attributes that Python put on the real tensor, and tells what is asked."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        found: type = self.__dict__["weft_real_class"]
        return found

    def __getattr__(self, name: str) -> Any:
        missing = self.__dict__.get("weft_missing")
        if missing is not None:
            missing(self, name)
        raise AttributeError(f"'{self.__dict__['weft_real_class'].__name__}' object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        put = self.__dict__.get("weft_put")
        if put is not None and not hasattr(torch.Tensor, name):
            put(self, name)
        super().__setattr__(name, value)


def dress(stand_in: torch.Tensor, real: torch.Tensor, missing: Any, put: Any) -> None:
    """Let a stand-in be of the class of the real tensor for Python, with its attributes.

    `missing` hears of attributes that are asked for and not there, `put` of those that are put there.
    """
    own = {name: value for name, value in vars(real).items() if name not in vars(stand_in)}
    vars(stand_in).update(own, **dict(zip(OWN_ATTRIBUTES, (type(real), missing, put), strict=True)))
    object.__setattr__(stand_in, "__class__", ArgumentStandIn)


def dress_result(stand_in: torch.Tensor) -> None:
    """Let a stand-in for what an operator gave be of the class of tensors for Python."""
    if type(stand_in) is FakeTensor:
        object.__setattr__(stand_in, "__class__", ResultStandIn)


class Interception:
    """While entered, operators run on stand-ins and are reported to the listener."""

    def __init__(self, listener: Listener, *, alike: bool = False) -> None:
        """With `alike`, sizes that vary and are equal are one."""
        self._alike = alike
        self.guards = PlacedGuards()
        self.not_zero: list[Any] = []  # of what code has divided by, that it is not
        self.sizes: dict[Any, Value] = {}
        self._symbols: dict[int, Any] = {}  # by the largest size
        self._hints: dict[Any, int] = {}  # what symbols stand for today
        self.largest: dict[Value, int] = {}  # of sizes that are found out: how large each may become
        self.fake_mode = fake_mode()
        # What is kept of one trace's symbols serves no other, and keeping it costs a third of a trace with symbols.
        self.fake_mode.cache_enabled = False
        self._operators = watching_operators(listener)
        self._functions = _FunctionMode(listener)
        self._stacks: list[ExitStack] = []
        self._kept: list[torch.Tensor] = []
        self._memories: dict[int, torch.Tensor] = {}  # of real tensors: the first stand-in of each

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            stack.enter_context(without_autocast_cache())
            stack.enter_context(without_error_log())
            stack.enter_context(without_anomaly_search())
            stack.enter_context(without_saved_tensors_hooks())
            stack.enter_context(self.fake_mode)
            stack.enter_context(self._operators)
            stack.enter_context(self._functions)
            stack.enter_context(heard())
            self._stacks.append(stack.pop_all())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stacks.pop().__exit__(kind, error, trace)

    @property
    def packs(self) -> bool:
        """Whether the code has let hooks pack what autograd saves."""
        return self._operators.packs

    @cached_property
    def _shapes(self) -> UnplacedShapes:
        """PyTorch's table of symbols, from the first one on."""
        shapes = table_of_symbols(
            specialize_zero_one=False,
            duck_shape=self._alike,
            allow_scalar_outputs=False,
            allow_dynamic_output_shape_ops=False,
        )
        shapes.guards, shapes.not_zero = self.guards, self.not_zero
        shapes.sizes, shapes.largest, shapes.hints = self.sizes, self.largest, self._hints  # type: ignore[attr-defined]
        self.fake_mode.shape_env = shapes
        return shapes

    def stand_in(
        self, tensor: torch.Tensor, sizes: Mapping[int, Any] = MappingProxyType({})
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A stand-in for a real tensor, and the leaf that its gradient is asked of.

        Tensors that share memory get stand-ins that share memory. A leaf stands for itself; what autograd computed
        becomes a copy of a new leaf, so that writing into it is allowed, as it is in eager.
        """
        as_real = torch.inference_mode(tensor.is_inference())
        with temporarily_clear_interpreter_stack(), self.plainly(), as_real, torch.enable_grad():
            memory = storage_key(tensor)
            first = self._memories.get(memory)
            if sizes:
                shape = [sizes.get(place, size) for place, size in enumerate(tensor.shape)]
                order = order_of(tuple(tensor.shape), tensor.stride())
                leaf = self.sized(shape, tensor.dtype, tensor.device, order)
            else:
                leaf = self._usual(tensor, first) if _is_usual(tensor) else self._converted(tensor, first)
            self._memories.setdefault(memory, leaf)
            if not tensor.requires_grad or tensor.is_inference():
                return leaf, leaf
            leaf.requires_grad_(True)
            return (leaf if tensor.is_leaf else _Computed.apply(leaf), leaf)  # type: ignore[no-untyped-call]

    def size(self, largest: int, name: str) -> Any:
        """A size that varies, as a symbol; equal largest sizes are one."""
        if largest not in self._symbols:
            source = _SizeSource(name)
            symbol = self._shapes.create_symbol(largest, source, dynamic_dim=DimDynamic.DUCK)
            self._symbols[largest] = self._shapes.create_symintnode(symbol, hint=largest, source=source)
            self._hints[symbol] = largest
        return self._symbols[largest]

    def found_size(self, number: int, least: int, largest: int, name: str) -> Any:
        """A size that an operator has found out, as a symbol: it may be another one, up to the largest."""
        source = _SizeSource(name)
        symbol = self._shapes.create_symbol(number, source, dynamic_dim=DimDynamic.DYNAMIC)
        self._shapes.var_to_range[symbol] = ValueRanges(least, largest)
        self._hints[symbol] = number
        return self._shapes.create_symintnode(symbol, hint=number, source=source)

    def _converted(self, tensor: torch.Tensor, first: torch.Tensor | None) -> torch.Tensor:
        """A stand-in as PyTorch makes it, of any tensor; over the memory of the `first` one, if it has one."""
        if first is not None:
            converter = self.fake_mode.fake_tensor_converter.meta_converter
            number = converter.describer.get_storage_id(tensor.untyped_storage())
            converter.storage_memo[number] = first.untyped_storage()
        with outside_tracing():
            detached = tensor.detach()
        self._kept.append(detached)
        return self.fake_mode.from_tensor(detached, static_shapes=True)

    def release(self) -> None:
        """Let go of real tensors: whoever asks whether a parameter's memory has other owners must not find this one."""
        self._kept.clear()
        self._memories.clear()

    def symbol(self, number: float, name: str) -> tuple[Any, Any]:
        """A stand-in for a Python number, and the symbol that arithmetic on it is written in."""
        source = _SizeSource(name)
        symbol = self._shapes.create_unspecified_symbol(number, source=source, dynamic_dim=DimDynamic.DYNAMIC)
        if isinstance(number, int):
            return self._shapes.create_symintnode(symbol, hint=number, source=source), symbol
        return self._shapes.create_symfloatnode(symbol, hint=number, source=source), symbol

    def relied_on(self) -> set[Any]:
        """The symbols whose value decided something: a branch, a size, an operator that takes no stand-in."""
        if self.guards.hold_for_none():
            return {*self._shapes.var_to_range}
        return {symbol for guard in self.guards for symbol in guard.expr.free_symbols}

    def conditions(self) -> list[Any]:
        """What must hold of the symbols for all that was decided by them, as expressions."""
        return [expression for expression, _ in self.guards.placed()]

    def has_one_value(self, symbol: Any) -> bool:
        """Whether something was decided that holds for a single value of a symbol."""
        found = self._shapes.replacements.get(symbol)
        is_number = found is not None and bool(found.is_number)
        return is_number or self.guards.tie_fraction(symbol) or self.guards.hold_for_none()

    def empty(self, kind: TensorType) -> torch.Tensor:
        """A stand-in of this type."""
        with self.fake_mode, torch.no_grad():
            return torch.empty_strided(kind.shape, kind.strides, dtype=kind.dtype, device=kind.device)

    def sized(
        self, shape: Sequence[Any], dtype: torch.dtype, device: torch.device, order: Sequence[int] | None = None
    ) -> torch.Tensor:
        """A stand-in without gaps, of sizes that may be symbols; `order` are its dimensions, the outermost first."""
        with torch._C.DisableTorchFunction(), in_kernel_invocation_manager(self.fake_mode):
            places = tuple(range(len(shape)) if order is None else order)
            plain = torch.empty_permuted(tuple(shape), places, dtype=dtype, device="meta")
        return FakeTensor(self.fake_mode, plain, device)

    def view(self, base: torch.Tensor, shape: Sequence[Any], strides: Sequence[Any], offset: int = 0) -> torch.Tensor:
        """A stand-in that looks into the memory of another one, so many elements behind where that one begins."""
        begin = base.storage_offset() + offset
        with torch._C.DisableTorchFunction(), in_kernel_invocation_manager(self.fake_mode):
            plain = torch.as_strided(base, tuple(shape), tuple(strides), begin)
        return FakeTensor(self.fake_mode, plain, base.device)

    def as_size(self, expression: Any) -> Any:
        """The size that is a sum of products of symbols and numbers; None where an expression is no such."""
        if isinstance(expression, int) or expression.is_Integer:
            return int(expression)
        if not (expression.is_integer and expression.is_polynomial()):
            return None
        hint = expression.xreplace(self._hints)
        if not isinstance(hint, int) and not hint.is_number:
            return None
        return self._shapes.create_symintnode(expression, hint=int(hint))

    def empty_like(self, tensor: torch.Tensor, kind: TensorType) -> torch.Tensor:
        """The same, with the sizes of a stand-in where they are symbols."""
        if not has_symbols(tensor):
            return self.empty(kind)
        with self.plainly(), self.fake_mode, torch.no_grad():
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind.dtype, device=kind.device)

    def placeholder(self, kind: TensorType) -> torch.Tensor:
        """A stand-in of this type in new memory, as a result of an operator is: below autograd, unseen by others."""
        with torch._C.DisableTorchFunction(), in_kernel_invocation_manager(self.fake_mode):
            plain = torch.empty_strided(kind.shape, kind.strides, dtype=kind.dtype, device="meta")
        return FakeTensor(self.fake_mode, plain, kind.device)

    def _usual(self, tensor: torch.Tensor, first: torch.Tensor | None) -> torch.Tensor:
        """A stand-in for a usual tensor, over the memory of the `first` one of those that share it."""
        kind, offset = type_of(tensor), int(tensor.storage_offset())
        if first is None and not offset:
            return self.placeholder(kind)
        if first is None:
            first = self.placeholder(contiguous(torch.uint8, (tensor.untyped_storage().nbytes(),)))
        return self.window(first, kind, offset - int(first.storage_offset()))

    def window(self, base: torch.Tensor, kind: TensorType, offset: int) -> torch.Tensor:
        """The same over the memory of a stand-in, beginning so many elements behind it."""
        place = (int(base.storage_offset()) + offset, kind.shape, kind.strides)
        with torch._C.DisableTorchFunction(), in_kernel_invocation_manager(self.fake_mode):
            plain = torch.empty((0,), dtype=kind.dtype, device="meta").set_(base.untyped_storage(), *place)
        return FakeTensor(self.fake_mode, plain, kind.device)

    @contextmanager
    def plainly(self) -> Iterator[None]:
        """Operators inside run on stand-ins but are not reported."""
        before, self._operators.quiet = self._operators.quiet, True
        try:
            with torch._C.DisableTorchFunction():
                yield
        finally:
            self._operators.quiet = before

    def run(self, operator: Operator, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Run an operator on stand-ins: what it would return, without data."""
        import_no_dynamo()
        # Where sizes are symbols, what an operator calls must be those of Python: C++ wants numbers.
        with self.fake_mode, enable_python_dispatcher() if self.sizes else nullcontext():
            return operator(*arguments, **keywords)


@dataclass(frozen=True)
class _SizeSource(Source):
    """Where a symbol comes from, by name; PyTorch's own such class lies in Dynamo."""

    symbol: str

    @cached_property
    def guard_source(self) -> GuardSource:
        """Nothing that Dynamo would guard."""
        return GuardSource.CONSTANT

    @property
    def _name_template(self) -> str:
        return self.symbol


class _ExactPrinter(PythonPrinter):
    """Writes fractions with all their digits."""

    def _print_Float(self, number: Any) -> str:  # noqa: N802 - called by the name of the class that it prints
        return repr(float(number))


def kind_of(stand_in: torch.Tensor) -> TensorType:
    """The type of a stand-in, in which sizes that vary are known as such."""
    if not (isinstance(stand_in, FakeTensor) and stand_in._has_symbolic_sizes_strides):
        return type_of(stand_in)
    shape = tuple(map(extent_of, stand_in.shape))
    return TensorType(stand_in.dtype, shape, tuple(map(_stride_of, stand_in.stride())), stand_in.device)


def has_symbols(given: Any) -> bool:
    """Whether sizes of stand-ins among arguments, or numbers, are symbols."""
    return any(
        isinstance(leaf, torch.SymInt) or (isinstance(leaf, FakeTensor) and leaf._has_symbolic_sizes_strides)
        for leaf in tree_flatten(given)[0]
    )


def _stride_of(stride: Any) -> int:
    try:
        return extent_of(stride)
    except FixedSizeError:
        return int(hint_of(stride))  # it only says how the largest lie


def extent_of(size: Any) -> int:
    """A size of a stand-in as a number; one that varies knows what it is made of, and stays free."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    shapes = size.node.shape_env
    expression, sizes = size.node.expr, shapes.sizes
    # None and one of a number that is no size: symbols of sizes begin at two.
    if not sizes or (sizes.keys().isdisjoint(expression.free_symbols) and size.node.hint <= 1):
        return int(size)
    polynomial = made_of(expression, shapes)
    if isinstance(polynomial, int):
        return polynomial
    largest = shapes.largest
    return Extent(polynomial.value(largest.__getitem__) if largest else int(size.node.hint), polynomial)


def lambda_text(expression: Any, symbols: Sequence[Any]) -> str:
    """Write a Python function that computes an expression of numbers from the values of symbols."""
    return f"lambda {', '.join(map(str, symbols))}: {_ExactPrinter().doprint(expression)}"


def text_of(expression: Any, names: Mapping[Any, str]) -> str:
    """An expression of numbers as Python writes it, with these names of symbols."""
    now = {one: type(one)(names[one], integer=True) for one in names}
    return str(_ExactPrinter().doprint(expression.xreplace(now)))


# Makes a tensor of a subclass that has a look but no memory: (class, sizes, strides, dtype=, device=).
make_placeholder: Callable[..., Any] = torch.Tensor._make_wrapper_subclass


def storage_key(tensor: torch.Tensor) -> int:
    """A number that two tensors share exactly when they share memory (while either lives).

    A tensor of another layout (sparse, say) keeps its memory to itself, as far as anybody can tell.
    """
    try:
        return int(tensor.untyped_storage()._cdata)
    except NotImplementedError:
        return -id(tensor)


def _is_usual(tensor: torch.Tensor) -> bool:
    """Whether a real tensor's type, and where it lies in its memory, are all that a stand-in has of it."""
    return (
        (tensor.layout, tensor.device.type) == (torch.strided, "cpu")
        and not tensor.dtype.is_complex
        and not tensor.is_neg()
        and not tensor.is_inference()
        and not is_transformed(tensor)
    )


def generator_key(generator: torch.Generator) -> int:
    """A number that two generator objects share exactly when they are one generator: operators see new objects."""
    return int(generator._cdata)  # type: ignore[attr-defined]


def is_stand_in(value: object) -> bool:
    """Whether a value is a stand-in of some Interception."""
    return isinstance(value, FakeTensor)


def hint_of(number: Any) -> Any:
    """The number that a symbol stands for today; that it was asked decides nothing."""
    return number.node.hint if isinstance(number, (torch.SymInt, torch.SymFloat)) else number


def lie_alike_today(stand_in: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether a stand-in of sizes that vary has those of a tensor today, though some have turned out to be numbers."""
    if not (isinstance(stand_in, FakeTensor) and stand_in._has_symbolic_sizes_strides):
        return False
    pairs = ((stand_in.shape, tensor.shape), (stand_in.stride(), tensor.stride()))
    return all(tuple(map(hint_of, ours)) == tuple(theirs) for ours, theirs in pairs)


def is_plain_stand_in(tensor: torch.Tensor) -> bool:
    """Whether a stand-in is of the CPU, and nothing but sizes, strides and a dtype tells what it is."""
    return is_usual_stand_in(tensor) and not tensor._has_symbolic_sizes_strides


def is_usual_stand_in(tensor: torch.Tensor) -> bool:
    """The same of one whose sizes may be symbols."""
    return (
        isinstance(tensor, FakeTensor)
        and (tensor.constant, tensor.layout) == (None, torch.strided)
        and tensor.fake_device.type == "cpu"
        and not tensor.dtype.is_complex
        and not tensor.is_neg()
    )


def is_listing() -> bool:
    """Whether the tolist of a stand-in is running, which asks each element for its number."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code is not FakeTensor.tolist.__code__:
        frame = frame.f_back
    return frame.f_back is not None


def is_transformed(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one that torch.func wraps for a transform inside the traced code."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def real_stand_in(tensor: torch.Tensor) -> torch.Tensor:
    """What stands for a real tensor in the trace that runs; where none runs, the tensor itself."""
    if not has_function_modes():
        return tensor
    found: torch.Tensor = handle_torch_function(_given, (tensor,), tensor)
    return found


def _given(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def has_gradient_hooks(tensor: torch.Tensor) -> bool:
    """Whether Python code runs when a gradient of this tensor has been computed."""
    return bool(tensor._backward_hooks) or bool(getattr(tensor, "_post_accumulate_grad_hooks", None))


# A padded batch becomes a packed one, and that a padded one again: what `torch.nn.utils.rnn` calls.
pack_padded: Callable[..., Any] = torch._pack_padded_sequence
pad_packed: Callable[..., Any] = torch._pad_packed_sequence
pad_sequence: Callable[..., Any] = torch._C._nn.pad_sequence


def traced_elsewhere(leaves: Sequence[Any]) -> bool:
    """Whether these arguments, or a mode that is active, belong to some other tracer or transform."""
    if torch._C._len_torch_dispatch_stack() > 0 or torch._C._functorch.maybe_current_level() is not None:
        return True
    if torch._C._get_tracing_state() is not None:
        return True  # torch.jit.trace, or an export that is built on it
    # No generator without leaves: lazy code asks at each operator.
    return bool(leaves) and any(isinstance(leaf, (FakeTensor, FunctionalTensor, torch.fx.Proxy)) for leaf in leaves)


@cache
def _counts_as_reference() -> int:
    """How many references PyTorch holds to the object of a tensor that others of its own (views, graphs) hold."""
    tensor = torch.zeros(2)
    before = sys.getrefcount(tensor)
    view = tensor[:1]
    found = sys.getrefcount(tensor) - before
    del view
    return found


def number_of_holders(tensor: torch.Tensor) -> int:
    """How many hold a tensor, where all of Python counts as one."""
    return int(tensor._use_count())  # type: ignore[attr-defined]


@cache
def holders_of_gradient() -> int:
    """How many hold a gradient that the engine adds another one to, as a mode sees it, where nobody else does."""
    mode = _CountingMode()  # type: ignore[no-untyped-call]
    with torch.enable_grad():
        leaf = torch.ones(1, requires_grad=True)
        result = leaf * 2 + leaf * 3
    with mode:
        torch.autograd.grad(result, leaf)
    return mode.found


class _CountingMode(OpenMode):
    """Counts who holds the first tensor of an addition."""

    found = 0

    def __torch_dispatch__(
        self, func: Operator, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.add.Tensor:
            self.found = number_of_holders(args[0])
        return func(*args, **(kwargs or {}))


def references_of_pytorch(tensor: torch.Tensor) -> int:
    """How many references PyTorch itself holds to the object of a tensor."""
    return _counts_as_reference() if tensor._use_count() > 1 else 0  # type: ignore[attr-defined]


def swap_tensors(one: torch.Tensor, other: torch.Tensor) -> None:
    """Let each of two objects stand for the tensor that the other one stood for."""
    torch._C._swap_tensor_impl(one, other)


@contextmanager
def outside_tracing() -> Iterator[None]:
    """Operators inside run for real, on real tensors, as if no Interception were entered."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        yield


def without_functions() -> AbstractContextManager[None]:
    """Python functions of PyTorch inside are not reported; operators are."""
    return torch._C.DisableTorchFunction()
