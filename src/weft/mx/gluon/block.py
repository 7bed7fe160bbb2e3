"""Build networks of blocks: imperative as written, and as one program once they are hybridized."""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from typing_extensions import Self

from weft.mx.arrays import nd
from weft.mx.arrays.array_file import load, save
from weft.mx.arrays.ndarray import NDArray
from weft.mx.arrays.tape import modes
from weft.mx.base.context import Context, cpu, current_context
from weft.mx.base.errors import MXNetError
from weft.mx.gluon.parameter import (
    GENERATION,
    DeferredInitializationError,
    Loading,
    Parameter,
    ParameterDict,
    brief_names,
)
from weft.mx.gluon.summary import summary
from weft.mx.symbols import sym
from weft.mx.symbols.graph import GraphFunction, ReadyCall, ready_call
from weft.mx.symbols.names import Prefix, naming
from weft.mx.symbols.symbol import TRACED_MARK, Group, Symbol, shape_of_text, var


class _Current(threading.local):
    """The innermost name scope of this thread."""

    scope: _BlockScope | None = None


_current = _Current()


class _BlockScope:
    """The `with` block in which children and operators get names that begin with a block's."""

    def __init__(self, block: Block, is_own: bool) -> None:
        self.block = block
        self._is_own = is_own  # a block whose own prefix is empty names its children as the block around it would
        self._counts: dict[str, int] = {}
        self._before: list[tuple[_BlockScope | None, Prefix]] = []

    @staticmethod
    def create(prefix: str | None, params: ParameterDict | None, hint: str) -> tuple[str, ParameterDict]:
        """The prefix and the parameters of a new block."""
        scope = _current.scope
        if scope is None:
            prefix = naming.managers[-1].get(None, hint) + "_" if prefix is None else prefix
            return prefix, ParameterDict(prefix) if params is None else ParameterDict(params.prefix, params)
        if prefix is None:
            count = scope._counts.get(hint, 0)
            scope._counts[hint] = count + 1
            prefix = f"{hint}{count}_"
        parent = scope.block.params
        made = (
            ParameterDict(parent.prefix + prefix, parent._shared)
            if params is None
            else ParameterDict(params.prefix, params)
        )
        return scope.block.prefix + prefix, made

    def __enter__(self) -> Self:
        names = Prefix(self.block.prefix)
        if self._is_own:
            self._before.append((_current.scope, names))
            _current.scope = self
            names.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._is_own:
            _current.scope, names = self._before.pop()
            names.__exit__(kind, error, tb)


class HookHandle:
    """A hook that is called until it is detached."""

    def __init__(self, hooks: list[Callable[..., Any]], hook: Callable[..., Any]) -> None:
        self._hooks, self._hook = hooks, hook
        hooks.append(hook)

    def detach(self) -> None:
        """Take the hook away."""
        if self._hook in self._hooks:
            self._hooks.remove(self._hook)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.detach()


class Block:
    """A part of a network: parameters, children and a `forward` that is run as it is written."""

    def __init__(self, prefix: str | None = None, params: ParameterDict | None = None) -> None:
        self._children: OrderedDict[str, Block] = OrderedDict()
        self._reg_params: dict[str, Parameter] = {}
        self._hooks: tuple[list[Callable[..., Any]], list[Callable[..., Any]]] = ([], [])
        self._prefix, self._params = _BlockScope.create(prefix, params, self._alias())
        self._name = self._prefix.removesuffix("_")
        self._scope = _BlockScope(self, prefix != "")

    def __setattr__(self, name: str, value: Any) -> None:
        known = self.__dict__.get(name)
        if isinstance(known, (Parameter, Block)) and not isinstance(value, type(known)):
            raise TypeError(f"Changing attribute type for {name} from {type(known)} to {type(value)}is not allowed.")
        if isinstance(value, Block):
            self.register_child(value, name)
        elif isinstance(value, Parameter):
            if name in self._reg_params:
                raise AssertionError(
                    f"Overriding Parameter attribute {name} is not allowed. If you want to share parameters between "
                    "blocks, please set 'params' at Block construction instead."
                )
            self._reg_params[name] = value
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return shown_block(self, vars(self))

    def _alias(self) -> str:
        """What a prefix is made of where none is given."""
        return type(self).__name__.lower()

    @property
    def prefix(self) -> str:
        """What the names of its parameters begin with."""
        return self._prefix

    @property
    def name(self) -> str:
        """The prefix without its last underscore."""
        return self._name

    @property
    def params(self) -> ParameterDict:
        """Its own parameters, without those of its children."""
        return self._params

    def name_scope(self) -> _BlockScope:
        """A block in which children get names that begin with this one's."""
        return self._scope

    def collect_params(self, select: str | None = None) -> ParameterDict:
        """Its parameters and those of its children, or those whose names match."""
        found = ParameterDict(self._params.prefix)
        chosen = re.compile(select) if select else None
        for name, parameter in self.params.items():
            if chosen is None or chosen.match(name):
                found._params[name] = parameter
        for child in self._children.values():
            found.update(child.collect_params(select))
        return found

    def _collect_params_with_prefix(self, prefix: str = "") -> dict[str, Parameter]:
        """The parameters under the paths of their blocks, as files name them; libraries call it, and override it."""
        path = prefix and prefix + "."
        found = {path + self._name_in_file(name): parameter for name, parameter in self._reg_params.items()}
        for name, child in self._children.items():
            found.update(child._collect_params_with_prefix(path + name))
        return found

    def _name_in_file(self, name: str) -> str:
        """What files call a parameter that is this attribute."""
        return name

    def register_child(self, block: Block, name: str | None = None) -> None:
        """Take in a child."""
        self._children[name or str(len(self._children))] = block

    def register_forward_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call this after each forward."""
        return HookHandle(self._hooks[1], hook)

    def register_forward_pre_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call this before each forward."""
        return HookHandle(self._hooks[0], hook)

    def summary(self, *inputs: Any) -> None:
        """Print the layers, what each gives for such inputs, and the counts of their parameters."""
        print(summary(self, inputs))  # noqa: T201  # its purpose

    def apply(self, fn: Callable[[Block], Any]) -> Block:
        """Call a function with all children, then with the block itself."""
        for child in self._children.values():
            child.apply(fn)
        fn(self)
        return self

    def initialize(self, init: Any = None, ctx: Any = None, verbose: bool = False, force_reinit: bool = False) -> None:
        """Initialize all parameters."""
        self.collect_params().initialize(init, ctx, verbose, force_reinit)

    def hybridize(self, active: bool = True, **options: Any) -> None:
        """Let the children that can be run as programs."""
        for child in self._children.values():
            child.hybridize(active, **options)

    def cast(self, dtype: Any) -> None:
        """Change the element type of all parameters."""
        for child in self._children.values():
            child.cast(dtype)
        for parameter in self.params.values():
            parameter.cast(dtype)

    def save_parameters(self, filename: str | os.PathLike[str], deduplicate: bool = False) -> None:
        """Write all parameters to a file, under the paths of the blocks."""
        found = self._collect_params_with_prefix()
        if deduplicate:
            found = {
                name: parameter
                for parameter, name in {parameter: name for name, parameter in reversed(found.items())}.items()
            }
        save(filename, {name: parameter._reduce() for name, parameter in found.items()})

    def load_parameters(
        self,
        filename: str | os.PathLike[str],
        ctx: Any = None,
        allow_missing: bool = False,
        ignore_extra: bool = False,
        cast_dtype: bool = False,
        dtype_source: str = "current",
    ) -> None:
        """Read parameters from a file, which may be of other element types if they are to be cast."""
        loaded = load(filename)
        mine = self._collect_params_with_prefix()
        if not loaded and not mine:
            return
        how = Loading(ctx, allow_missing, ignore_extra, cast_dtype, dtype_source)
        if not any("." in name for name in loaded):
            self.collect_params()._take(loaded, self.prefix, f"file: {filename}", how)
            return
        there = {parameter for name, parameter in mine.items() if name in loaded}
        for name, parameter in () if allow_missing else mine.items():
            if parameter not in there:
                raise AssertionError(
                    f"Parameter '{name}' is missing in file '{filename}', which contains parameters: "
                    f"{brief_names(loaded)}. Set allow_missing=True to ignore missing parameters."
                )
        for name, array in loaded.items():
            if name in mine:
                mine[name]._load_init(array, how)
            elif not ignore_extra:
                raise ValueError(
                    f"Parameter '{name}' loaded from file '{filename}' is not present in ParameterDict, which contains "
                    f"parameters {brief_names(self.params)}. Set ignore_extra=True to ignore. "
                )

    save_params = save_parameters
    load_params = load_parameters

    def __call__(self, *args: Any) -> Any:
        """Run the block."""
        before, after = self._hooks
        for hook in tuple(before) if before else ():
            hook(self, args)
        out = self.forward(*args)
        for hook in tuple(after) if after else ():
            hook(self, args, out)
        return out

    def forward(self, *args: Any) -> Any:
        """Compute the outputs."""
        raise NotImplementedError


def shown_block(block: Block, parts: Mapping[str, Any]) -> str:
    """A block with those of its parts that are blocks, a line each."""
    lines = "\n".join(f"  ({key}): {_indented(part)}" for key, part in parts.items() if isinstance(part, Block))
    return f"{type(block).__name__}(\n{lines}\n)"


def _indented(block: Block) -> str:
    first, *rest = repr(block).split("\n")
    return "\n".join([first, *("  " + line for line in rest)])


def flattened(args: Any, wrong: Callable[[Any], Exception]) -> tuple[list[Any], Any]:
    """Nested lists of arrays or symbols as one list, and their form."""
    if isinstance(args, (NDArray, Symbol)):
        return [args], 0
    if args is None:
        return [args], NOTHING
    if not isinstance(args, (list, tuple)):
        raise wrong(args)
    flat: list[Any] = []
    forms = []
    for entry in args:
        part, form = flattened(entry, wrong)
        flat += part
        forms.append((len(part), form))
    return flat, forms


def _arrays_in(args: Any) -> Iterator[Any]:
    """The arrays and symbols among nested arguments."""
    for entry in args:
        if isinstance(entry, (NDArray, Symbol)):
            yield entry
        elif isinstance(entry, (list, tuple)):
            yield from _arrays_in(entry)


NOTHING = -1  # the form of a None
ONE = [(1, 0)]  # that of one array


def _shown_form(form: Any) -> Any:
    return form if isinstance(form, int) else [_shown_form(inner) for _, inner in form]


def regrouped(flat: Sequence[Any], form: Any) -> Any:
    """A list in the form it had."""
    if isinstance(form, int):
        return flat[0]
    found, place = [], 0
    for count, inner in form:
        found.append(regrouped(flat[place : place + count], inner))
        place += count
    return found


class HybridBlock(Block):
    """A block whose `hybrid_forward(F, x)` runs with arrays, and once it is hybridized as one program."""

    def __init__(self, prefix: str | None = None, params: ParameterDict | None = None) -> None:
        self._active = False
        self._options: dict[str, Any] = {}  # of hybridize
        self._cached: tuple[GraphFunction, list[tuple[int, Parameter | None]], Any] | None = None
        self._graph: tuple[list[Symbol], Symbol, Any] | None = None
        self._input_form: Any = None
        # What runs calls like those before at once, as of a generation, and the form of what it gives.
        self._ready: tuple[int, ReadyCall, Any] | None = None
        # The arrays of parameters on each device, with empty places for inputs, as of a generation.
        self._bound: dict[str, tuple[int, list[Any], list[tuple[int, int]]]] = {}
        super().__init__(prefix, params)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, (HybridBlock, Parameter)):
            self._clear_cached_op()

    def register_child(self, block: Block, name: str | None = None) -> None:
        """Take in a child, which must be a HybridBlock too."""
        if not isinstance(block, HybridBlock):
            raise ValueError(  # noqa: TRY004  # MXNet's
                f"Children of HybridBlock must also be HybridBlock, but {block} has type "
                f"{type(block)}. If you are using "
                "Sequential, please try HybridSequential instead."
            )
        super().register_child(block, name)
        self._clear_cached_op()

    def _clear_cached_op(self) -> None:
        self._cached = self._graph = self._ready = None

    def hybridize(self, active: bool = True, **options: Any) -> None:
        """Run as one program from now on: options such as `static_alloc` are taken, and change nothing."""
        self._active = bool(active)
        self._options = options
        self._clear_cached_op()
        super().hybridize(active, **options)

    def cast(self, dtype: Any) -> None:
        """Change the element type of all parameters."""
        self._clear_cached_op()
        super().cast(dtype)

    def _trace(self, *args: Any) -> tuple[list[Symbol], Symbol, Any]:
        """The block as a graph, by running its code with symbols."""
        flat, form = flattened(args, self._wrong_input)
        if self._graph is None or self._input_form != form:
            count = sum(1 for entry in flat if entry is not None)
            names = ["data"] if count == 1 else [f"data{place}" for place in range(len(flat))]
            data = [var(name) for name in names]
            for variable in data:
                variable.entries[0][0].attributes[TRACED_MARK] = "1"
            symbols = iter(data)
            inputs = regrouped([None if entry is None else next(symbols) for entry in flat], form)
            parameters = {name: parameter.var() for name, parameter in self._reg_params.items()}
            with self.name_scope():
                out = self.hybrid_forward(sym, *inputs, **parameters)
            outputs, out_form = flattened(out, self._wrong_output)
            self._graph = data, Group(outputs), out_form
            self._input_form = form
        return self._graph

    @staticmethod
    def _wrong_input(thing: Any) -> Exception:
        return ValueError(
            "When hybridized, the input of HybridBlock input must be (nested) list of Symbol or NDArray, but got "
            f"{thing} of type {type(thing)}"
        )

    @staticmethod
    def _wrong_output(thing: Any) -> Exception:
        return ValueError(
            "When hybridized, the input of HybridBlock output must be (nested) list of Symbol or NDArray, but got "
            f"{thing} of type {type(thing)}"
        )

    def infer_shape(self, *args: Any) -> None:
        """Find out the sizes of parameters from those of inputs."""
        data, out, _ = self._trace(*args)
        flat = [entry for entry in flattened(args, self._wrong_input)[0] if entry is not None]
        named = {variable.entries[0][0].name: array for variable, array in zip(data, flat, strict=False)}
        types = {name: array.dtype for name, array in named.items()}
        found = out._infer({name: array.shape for name, array in named.items()}, types)
        by_name = {node.name: found.get((node, 0)) for part in out.variables() for node in part}
        for parameter in self.collect_params().values():
            kind = by_name.get(parameter.name)
            if kind is not None:
                parameter.shape = kind[0]

    def infer_type(self, *args: Any) -> None:
        """Find out the element types of parameters from those of inputs."""
        data, out, _ = self._trace(*args)
        flat = [entry for entry in flattened(args, self._wrong_input)[0] if entry is not None]
        named = zip((variable.entries[0][0].name for variable in data), flat, strict=False)
        found = out.infer_type_partial(**{name: array.dtype for name, array in named})
        names = (out.list_arguments(), out.list_auxiliary_states())
        by_name = {name: kind for part in zip(names, found[::2], strict=True) for name, kind in zip(*part, strict=True)}
        for parameter in self.collect_params().values():
            if by_name.get(parameter.name) is not None:
                parameter.dtype = by_name[parameter.name]

    def _finish_deferred(self, args: Any) -> None:
        try:
            self.infer_shape(*args)
        except MXNetError as error:
            raise ValueError(f"Deferred initialization failed because shape cannot be inferred. {error}") from error
        for parameter in self.collect_params().values():
            parameter._finish_deferred_init()
        self._cached = self._ready = None  # the graph stays: code that was run once for it is not run again

    def _call_cached_op(self, *args: Any) -> Any:
        ready = self._ready
        if ready is not None and ready[0] == GENERATION[0] and len(args) == 1:
            found = ready[1].run(args[0])
            if found is not None:
                return regrouped(found, ready[2])
        given, input_form = (
            (list(args), ONE) if len(args) == 1 and isinstance(args[0], NDArray) else flattened(args, self._wrong_input)
        )
        flat = [entry for entry in given if entry is not None]
        if self._cached is None:
            self._cached = self._build(args)
        elif input_form != self._input_form:
            raise ValueError(  # MXNet names the two the other way round
                "The argument structure of HybridBlock does not match the cached version. Stored format = "
                f"{_shown_form(input_form)}, input format = {_shown_form(self._input_form)}"
            )
        function, sources, form = self._cached
        context = flat[0].context
        bound = self._bound.get(context.name)
        if bound is None or bound[0] != GENERATION[0]:
            try:
                arrays = [None if parameter is None else parameter.data(context) for _, parameter in sources]
            except DeferredInitializationError:
                self._finish_deferred(args)
                return self._call_cached_op(*args)
            places = [(at, place) for at, (place, parameter) in enumerate(sources) if parameter is None]
            bound = self._bound[context.name] = GENERATION[0], arrays, places
        inputs: list[Any] = bound[1].copy()
        for at, place in bound[2]:
            inputs[at] = flat[place]
        found = regrouped(function.call(self.name, inputs, context.name), form)
        if input_form is ONE and not modes.recording and not modes.training:
            call = ready_call(function, inputs, args[0])
            self._ready = None if call is None else (GENERATION[0], call, form)
        return found

    def _build(self, args: Any) -> tuple[GraphFunction, list[tuple[int, Parameter | None]], Any]:
        if self._options.get("static_shape") and not self._options.get("static_alloc"):
            raise MXNetError("Check failed: config_.static_alloc: static_alloc must be True when static_shape is True")
        data, out, form = self._trace(*args)
        self._bound.clear()
        parameters = {parameter.name: parameter for parameter in self.collect_params().values()}
        places = {variable.entries[0][0].name: place for place, variable in enumerate(data)}
        names = out.list_inputs()
        sources: list[tuple[int, Parameter | None]] = []
        for name in names:
            if name not in places and name not in parameters:
                raise RuntimeError(f"Unknown input to HybridBlock: {name}")
            sources.append((places.get(name, -1), parameters.get(name) if name not in places else None))
        weights = [place for place, (_, parameter) in enumerate(sources) if parameter is not None]
        return GraphFunction(out, names, weights), sources, form

    def forward(self, x: Any, *args: Any) -> Any:
        """Run `hybrid_forward` with arrays, with symbols, or as one program."""
        first = x if isinstance(x, (NDArray, Symbol)) else self._first([x, *args])
        if isinstance(first, Symbol):
            parameters: dict[str, Any] = {name: parameter.var() for name, parameter in self._reg_params.items()}
            with self.name_scope():
                return self.hybrid_forward(sym, x, *args, **parameters)
        if self._active:
            return self._call_cached_op(x, *args)
        context = first.context
        if context is current_context():
            return self._imperatively(context, x, *args)
        with context:
            return self._imperatively(context, x, *args)

    def _imperatively(self, context: Context, x: Any, *args: Any) -> Any:
        own = self._reg_params
        if not own:
            return self.hybrid_forward(nd, x, *args)
        try:
            parameters = {name: parameter.data(context) for name, parameter in own.items()}
        except DeferredInitializationError:
            self._finish_deferred((x, *args))
            parameters = {name: parameter.data(context) for name, parameter in own.items()}
        return self.hybrid_forward(nd, x, *args, **parameters)

    def _first(self, args: Any) -> Any:
        """The first array or symbol among nested arguments."""
        found = next(_arrays_in(args), None)
        if found is None:
            raise ValueError(
                "In HybridBlock, there must be one NDArray or one Symbol in the input. Please check the type of the "
                "args.\n"
            )
        return found

    def hybrid_forward(self, F: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs with the functions of F, which is `nd` or `sym`."""
        raise NotImplementedError

    def export(self, path: str, epoch: int = 0, remove_amp_cast: bool = True) -> None:
        """Write the graph as JSON and the parameters as a file."""
        _ = remove_amp_cast
        if self._graph is None or self._cached is None:
            raise RuntimeError(
                "Please first call block.hybridize() and then run forward with this block at least once before calling "
                "export."
            )
        graph = self._graph[1]
        names = f"{path}-symbol.json", f"{path}-{epoch:04d}.params"
        graph.save(names[0])
        arguments, auxiliary = set(graph.list_arguments()), set(graph.list_auxiliary_states())
        found = {}
        for name, parameter in self.collect_params().items():
            if name in arguments or name in auxiliary:
                found[f"{'arg' if name in arguments else 'aux'}:{name}"] = parameter._reduce()
        save(names[1], found)


class SymbolBlock(HybridBlock):
    """A graph as a block."""

    def __init__(self, outputs: Any, inputs: Any, params: ParameterDict | None = None) -> None:
        super().__init__("", None)
        self._params = ParameterDict("", params)
        out = Group(outputs) if isinstance(outputs, (list, tuple)) else outputs
        listed = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        names = {variable.entries[0][0].name for variable in listed}
        auxiliary = set(out.list_auxiliary_states())
        for name in out.list_inputs():
            if name not in names:
                request = "null" if name in auxiliary else "write"
                self._params.get(name, allow_deferred_init=True, grad_req=request, shape=_shape_noted(out, name))
        self._reg_params = dict(self._params.items())
        self._symbols = listed, out
        self._active = True

    @staticmethod
    def imports(
        symbol_file: str,
        input_names: Any,
        param_file: str | None = None,
        ctx: Any = None,
        allow_missing: bool = False,
        ignore_extra: bool = False,
    ) -> SymbolBlock:
        """A block of a JSON file, and of parameters if they are given."""
        out = sym.load(symbol_file)
        names = [input_names] if isinstance(input_names, str) else list(input_names)
        made = SymbolBlock(out, [var(name) for name in names])
        if param_file is not None:
            made.collect_params().load(
                param_file, ctx or cpu(), allow_missing, ignore_extra, cast_dtype=True, dtype_source="saved"
            )
        return made

    def __repr__(self) -> str:
        listed, out = self._symbols
        return f"SymbolBlock(\n{out} : {len(listed)} -> {len(out.entries)}\n)"

    def _trace(self, *args: Any) -> tuple[list[Symbol], Symbol, Any]:
        if self._graph is None:
            listed, out = self._symbols
            form = 0 if len(out.entries) == 1 else [(1, 0)] * len(out.entries)
            self._graph = listed, out, form
            self._input_form = flattened(args, self._wrong_input)[1]
        return self._graph

    def _clear_cached_op(self) -> None:
        self._cached = self._ready = None
        self._graph = None

    def forward(self, x: Any, *args: Any) -> Any:
        """Run the graph."""
        if isinstance(x, Symbol):
            listed, out = self._symbols
            named = {variable.entries[0][0].name: given for variable, given in zip(listed, (x, *args), strict=True)}
            return out(**named)
        return self._call_cached_op(x, *args)


def _shape_noted(out: Symbol, name: str) -> Any:
    for node in out.nodes():
        if node.row is None and node.name == name:
            text = node.attributes.get("__shape__")
            return shape_of_text(text) if text else None
    return None
