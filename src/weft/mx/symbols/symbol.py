"""Compose operators into graphs that have names, sizes that follow from others, and JSON of all versions since 0.8."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from weft.mx.arrays.frontend import (
    COMPARISONS,
    Frontend,
    give_arithmetic,
    give_methods,
)
from weft.mx.arrays.invoke import infer_types
from weft.mx.base.element_types import TYPE_NUMBERS, numpy_type, torch_type, type_name
from weft.mx.base.errors import MXNetError, NotImplementedForSymbol
from weft.mx.operators.table import Operator, Shape, operator
from weft.mx.symbols.names import is_note, naming, scoped_attributes
from weft.mx.symbols.type_inference import infer_element_types

VERSION = 10901
STORAGE_TYPES = ("default", "row_sparse", "csr")  # in the order of the numbers by which files name them
BODIES = "subgraphs"  # the parameter that has the bodies of loops and branches, which in files stand beside the others
# Attributes that MXNet shows with and without underscores, whatever operator has them.
HIDDEN = ("ctx_group", "lr_mult", "wd_mult", "force_mirroring", "profiler_scope")


class SymbolNode:
    """A variable, or an operator with its inputs."""

    __slots__ = ("attributes", "inputs", "name", "row", "texts")

    def __init__(self, row: Operator | None, name: str, texts: Mapping[str, str]) -> None:
        self.row = row
        self.name = name
        self.texts = dict(texts)  # the parameters, as JSON has them
        self.attributes: dict[str, str] = {}  # what else is noted, such as __shape__
        self.inputs: list[Entry] = []

    @property
    def p(self) -> Any:
        """The parameters."""
        assert self.row is not None
        return self.row.values(self.texts)

    def output_count(self) -> int:
        """Count its outputs."""
        return 1 if self.row is None else self.row.rule.output_count(self.p)

    def hidden_count(self) -> int:
        """Count what MXNet keeps of it for its gradient, which counts as outputs in files."""
        return 0 if self.row is None else self.row.rule.hidden_count(self.p)

    def output_names(self) -> list[str]:
        """The names of its outputs."""
        if self.row is None:
            return [self.name]
        count = self.output_count()
        if self.row.name == "RNN" and count > 1:
            return [f"{self.name}_{part}" for part in ("output", "state_output", "statecell_output")[:count]]
        return [f"{self.name}_output"] if count == 1 else [f"{self.name}_output{place}" for place in range(count)]


Entry = tuple[SymbolNode, int]


class Symbol:
    """Outputs of a graph."""

    __array_priority__ = 1000.0

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(entries)

    if TYPE_CHECKING:  # what `frontend` gives it

        def __getattr__(self, name: str) -> Any: ...

    @property
    def name(self) -> str | None:
        """The name of its operator, or of the variable; None of a group."""
        return self.entries[0][0].name if len({id(node) for node, _ in self.entries}) == 1 else None

    def __repr__(self) -> str:
        if self.name is None:
            return f"<Symbol group [{', '.join(node.name for node, _ in self.entries)}]>"
        return f"<Symbol {self.name}>"

    def nodes(self) -> list[SymbolNode]:
        """All nodes, each after its inputs."""
        found: dict[SymbolNode, None] = {}
        waiting = [(node, False) for node, _ in reversed(self.entries)]
        while waiting:
            node, ready = waiting.pop()
            if node in found:
                continue
            if ready:
                found[node] = None
                continue
            waiting.append((node, True))
            waiting += [(source, False) for source, _ in reversed(node.inputs)]
        return list(found)

    def _auxiliary(self) -> dict[SymbolNode, None]:
        return {
            node.inputs[place][0]: None
            for node in self.nodes()
            if node.row is not None
            for place in node.row.rule.aux
            if place < len(node.inputs) and node.inputs[place][0].row is None
        }

    def variables(self) -> tuple[list[SymbolNode], list[SymbolNode]]:
        """The variables that are arguments, and those that are auxiliary states."""
        aux = self._auxiliary()
        found = [node for node in self.nodes() if node.row is None]
        return [node for node in found if node not in aux], [node for node in found if node in aux]

    def list_arguments(self) -> list[str]:
        """The names of the arguments."""
        return [node.name for node in self.variables()[0]]

    def list_auxiliary_states(self) -> list[str]:
        """The names of what operators change while they train."""
        return [node.name for node in self.variables()[1]]

    def list_inputs(self) -> list[str]:
        """The names of all variables."""
        return [node.name for node in self.nodes() if node.row is None]

    def list_outputs(self) -> list[str]:
        """The names of the outputs."""
        return [node.output_names()[place] for node, place in self.entries]

    def get_internals(self) -> Symbol:
        """The outputs of all nodes."""
        return Symbol([(node, place) for node in self.nodes() for place in range(node.output_count())])

    def get_children(self) -> Symbol | None:
        """The inputs of its operator."""
        inputs = self.entries[0][0].inputs
        return Symbol(inputs) if inputs else None

    def attr(self, key: str) -> str | None:
        """One attribute."""
        return self.list_attr().get(key)

    def list_attr(self) -> dict[str, str]:
        """Its attributes."""
        return _shown(self.entries[0][0])

    def attr_dict(self) -> dict[str, dict[str, str]]:
        """The attributes of all nodes that have some."""
        return {node.name: shown for node in self.nodes() if (shown := _shown(node))}

    def _set_attr(self, **given: str) -> None:
        self.entries[0][0].attributes.update(scoped_attributes(given))

    def __len__(self) -> int:
        if len(self.entries) == 1 and self._is_traced():
            raise NotImplementedForSymbol("__len__", "len")
        return len(self.entries)

    def __iter__(self) -> Iterator[Symbol]:
        if len(self.entries) == 1 and self._is_traced():
            raise NotImplementedForSymbol("__iter__", "for")
        return (Symbol([entry]) for entry in self.entries)

    def _is_traced(self) -> bool:
        """Whether it stands for an array of a hybridized block: there its length is not what the code means."""
        return any(TRACED_MARK in node.attributes for node in self.nodes())

    def __getitem__(self, key: int | str) -> Symbol:
        if isinstance(key, str):
            places = [place for place, name in enumerate(self.list_outputs()) if name == key]
            if not places:
                raise ValueError(f'Cannot find output that matches name "{key}"')
            if len(places) > 1:
                raise ValueError(f'There are multiple outputs with name "{key}"')
            return Symbol([self.entries[places[0]]])
        if not isinstance(key, int):
            raise TypeError("Symbol only support integer index to fetch i-th output")
        if key < 0:
            raise MXNetError("Symbol only accept nonnegative index")
        if key >= len(self.entries):
            raise IndexError
        return Symbol([self.entries[key]])

    def __call__(self, *args: Symbol, **given: Symbol) -> Symbol:
        """The same graph with other symbols in the place of variables."""
        arguments = self.list_arguments()
        name = given.pop("name", None)
        if args and given:
            raise TypeError("compose only accept input Symbols either as positional or keyword arguments, not both")
        if any(not isinstance(each, Symbol) for each in (*args, *given.values())):
            raise TypeError("Compose expect `Symbol` as arguments")
        unknown = sorted(set(given) - set(self.list_inputs()))
        if unknown:
            raise MXNetError(f"Symbol.ComposeKeyword argument name {unknown[0]} not found.{self._candidates()}")
        places = {**dict(zip(arguments, args, strict=False)), **given}
        copies: dict[SymbolNode, SymbolNode] = {}
        replaced: dict[SymbolNode, Entry] = {}
        for node in self.nodes():
            if node.row is None and node.name in places:
                replaced[node] = places[node.name].entries[0]
                continue
            copy = copies[node] = SymbolNode(node.row, node.name, node.texts)
            copy.attributes = dict(node.attributes)
            copy.inputs = [replaced.get(source) or (copies[source], place) for source, place in node.inputs]
        if name is not None:
            copies[self.entries[0][0]].name = name  # type: ignore[assignment]
        return Symbol([replaced.get(node) or (copies[node], place) for node, place in self.entries])

    def __hash__(self) -> int:
        return id(self) // 16

    def __neg__(self) -> Symbol:
        found: Symbol = FRONTEND.call(operator("_mul_scalar"), [self], {"scalar": -1.0}, None, None)
        return found

    def __abs__(self) -> Symbol:
        found: Symbol = FRONTEND.function("abs")(self)
        return found

    def __copy__(self) -> Symbol:
        return self()

    def __deepcopy__(self, _memo: Any) -> Symbol:
        return self()

    def astype(self, dtype: Any) -> Symbol:
        """Another element type."""
        found: Symbol = FRONTEND.function("Cast")(self, dtype=dtype)
        return found

    def reshape(self, *shape: Any, **given: Any) -> Symbol:
        """Other sizes, by MXNet's codes."""
        codes = given.pop("shape", shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape)
        found: Symbol = FRONTEND.function("Reshape")(self, shape=tuple(codes), **given)
        return found

    def broadcast_to(self, *args: Any, **given: Any) -> Symbol:
        """Repeat axes of size 1."""
        found: Symbol = FRONTEND.function("broadcast_to")(self, *args, **given)
        return found

    # Sizes and types.

    def infer_shape(self, *args: Shape, **given: Any) -> Any:
        """The sizes of arguments, outputs and auxiliary states; None of all, where some do not follow."""
        if args and given:
            raise ValueError("Can only specify known argument shapes either by positional or kwargs way.")
        known = dict(zip(self.list_arguments(), args, strict=False)) | given
        for name, shape in given.items():
            if not isinstance(shape, (tuple, list)):
                raise TypeError(f"Arguments need to be shapes (tuple), but '{name}' is {type(shape)}.")
        try:
            found = self._infer(known)
        except MXNetError:
            shown = "".join(f"  {name}: {tuple(shape)}\n" for name, shape in known.items())
            sys.stdout.write(f"infer_shape error. Arguments:\n{shown}")  # as MXNet does
            raise
        arguments, auxiliary = self.variables()
        shapes = [[found.get((node, 0)) for node in part] for part in (arguments, auxiliary)]
        outputs = [found.get(entry) for entry in self.entries]
        if any(kind is None or 0 in kind[0] for part in (*shapes, outputs) for kind in part):
            return None, None, None
        arg, aux = ([kind[0] for kind in part if kind] for part in shapes)
        return arg, [kind[0] for kind in outputs if kind], aux

    def infer_shape_partial(self, *args: Shape, **given: Shape) -> Any:
        """The sizes as far as they follow; () of those that do not."""
        found = self._infer(dict(zip(self.list_arguments(), args, strict=False)) | given)
        arguments, auxiliary = self.variables()

        def shown(entry: Entry) -> Shape:
            kind = found.get(entry)
            return kind[0] if kind else ()

        return ([shown((node, 0)) for node in arguments], [shown(entry) for entry in self.entries],
                [shown((node, 0)) for node in auxiliary])  # fmt: skip

    def infer_sizes(self, given: Mapping[str, Shape]) -> dict[str, Shape]:
        """The sizes of all variables that follow from those of some, by name."""
        found = self._infer(given)
        return {node.name: kind[0] for (node, _), kind in found.items() if node.row is None}

    def infer_node_sizes(self, given: Mapping[str, Any]) -> dict[Entry, Shape]:
        """The sizes of all variables and outputs of nodes that follow from those of some variables."""
        return {entry: kind[0] for entry, kind in self._infer(given).items()}

    def _candidates(self) -> str:
        shown = "".join(f"\n\t[{place}]{name}" for place, name in enumerate(self.list_arguments()))
        return f"\nCandidate arguments:{shown}"

    def infer_type(self, *args: Any, **given: Any) -> Any:
        """The element types of arguments, outputs and auxiliary states; None of all, where some do not follow."""
        known = dict(zip(self.list_arguments(), args, strict=False)) | given
        try:
            found = self.infer_type_partial(**known)
        except MXNetError:
            shown = "".join(f"  {name}: {type_name(dtype)}\n" for name, dtype in known.items() if dtype is not None)
            sys.stdout.write(f"infer_type error. Arguments:\n{shown}")  # as MXNet does
            raise
        return (None, None, None) if any(None in part for part in found) else found

    def infer_type_partial(self, *args: Any, **given: Any) -> Any:
        """The element types as far as they follow; None of those that do not."""
        unknown = sorted(set(given) - set(self.list_inputs()))
        if unknown:
            raise MXNetError(f"InferTypeKeyword argument name {unknown[0]} not found.{self._candidates()}")
        given = dict(zip(self.list_arguments(), args, strict=False)) | given
        parts = [[(node, 0) for node in part] for part in self.variables()]
        known = {}
        for node, _ in (entry for part in parts for entry in part):
            text = node.attributes.get("__dtype__")
            dtype = given.get(node.name, _type_of_text(text) if text else None)
            if dtype is not None:
                known[node, 0] = torch_type(dtype)
        found = infer_element_types(self.nodes(), known)
        types = [[None if entry not in found else numpy_type(found[entry]) for entry in part]
                 for part in (parts[0], self.entries, parts[1])]  # fmt: skip
        return tuple(types)

    def _infer(self, given: Mapping[str, Any], types: Mapping[str, Any] | None = None) -> dict[Entry, Kind]:
        """The sizes and types of all that follows from what is given, forwards and backwards into weights."""
        found: dict[Entry, Kind] = {}
        nodes = self.nodes()
        for node in nodes:
            if node.row is None:
                text = node.attributes.get("__shape__")
                shape = given.get(node.name, shape_of_text(text) if text else None)
                wanted = (types or {}).get(node.name) or _type_of_text(node.attributes.get("__dtype__"))
                if shape is not None:
                    found[node, 0] = (tuple(shape), torch_type(wanted))
        unknown = {name for name in given if name not in {node.name for node in nodes if node.row is None}}
        if unknown:
            raise MXNetError(f"InferShapeKeyword argument name {sorted(unknown)[0]} not found.{self._candidates()}")
        for _ in range(8):  # what a later pass learns of variables, an earlier one may need
            before = dict(found)
            for node in nodes:
                if node.row is not None:
                    _infer_node(node, found)
            for node in reversed(nodes):
                _infer_back(node, found)
            if found == before:
                break
        return found

    # Files.

    def tojson(self, remove_amp_cast: bool = True) -> str:  # noqa: ARG002
        """The graph as JSON, as MXNet 1.9.1 writes it."""
        nodes = self.nodes()
        numbers = {node: number for number, node in enumerate(nodes)}
        aux = self._auxiliary()
        described, rows = [], [0]
        for node in nodes:
            texts = {**node.texts, **{key: text for key, text in node.attributes.items() if key != TRACED_MARK}}
            bodies = texts.pop(BODIES, None)
            entry: dict[str, Any] = {"op": "null" if node.row is None else node.row.name, "name": node.name}
            if texts:
                entry["attrs"] = dict(sorted(texts.items()))
            entry["inputs"] = [[numbers[source], place, 1 if source in aux else 0] for source, place in node.inputs]
            if bodies is not None:
                entry["subgraphs"] = json.loads(bodies)
            described.append(entry)
            rows.append(rows[-1] + node.output_count() + node.hidden_count())
        graph = {
            "nodes": described,
            "arg_nodes": [numbers[node] for node in nodes if node.row is None],
            "node_row_ptr": rows,
            "heads": [[numbers[node], place, 0] for node, place in self.entries],
            "attrs": {"mxnet_version": ["int", VERSION]},
        }
        return json.dumps(graph, indent=2)

    def save(self, fname: str | os.PathLike[str], remove_amp_cast: bool = True) -> None:  # noqa: ARG002
        """Write the graph as JSON."""
        Path(fname).write_text(self.tojson(), encoding="utf-8")


Kind = tuple[Shape, torch.dtype]
TRACED_MARK = "__weft_traced__"  # of variables that stand for arrays of a hybridized block


def _only_arrays(name: str, alias: str | None = None) -> Any:
    def refuse(_self: Symbol, *args: Any, **_given: Any) -> NoReturn:
        raise NotImplementedForSymbol(name, alias, *args)

    return refuse


ONLY_ARRAYS = [
    "wait_to_read",
    "asnumpy",
    "asscalar",
    "copy",
    "as_in_context",
    "as_np_ndarray",
    "detach",
    "backward",
    "attach_grad",
    "item",
    "tolist",
]
for _name in ONLY_ARRAYS:
    setattr(Symbol, _name, _only_arrays(_name))
for _name, _alias in {"bool": "bool", "iadd": "+=", "isub": "-=", "imul": "*=", "itruediv": "/=", "imod": "%="}.items():
    setattr(Symbol, f"__{_name}__", _only_arrays(f"__{_name}__", _alias))


def _shown(node: SymbolNode) -> dict[str, str]:
    found = {key: text for key, text in node.texts.items() if key != BODIES}
    for key, text in node.attributes.items():
        bare = key.strip("_")
        found[key] = text
        if bare in HIDDEN:
            found[bare] = text
    return found


def shape_of_text(text: str) -> Shape | None:
    """Read `(1, 2)` as `__shape__` has it."""
    parts = [part for part in text.strip("()[] ").replace("L", "").split(",") if part.strip()]
    try:
        return tuple(map(int, parts)) if parts else None
    except ValueError as error:
        raise MXNetError(f"{text!r} is no shape") from error


def _type_of_text(text: str | None) -> str:
    names = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool")
    found = names[int(text)] if text and text.isdecimal() and int(text) < len(names) else text or "float32"
    if found not in TYPE_NUMBERS:
        raise MXNetError(f"{text!r} is no element type")
    return found


def _learn(node: SymbolNode, found: dict[Entry, Kind], new: Sequence[Shape | None]) -> None:
    """Note what sizes of a node's inputs must be."""
    first = next((found[entry][1] for entry in node.inputs if entry in found), torch.float32)
    for entry, shape in zip(node.inputs, new, strict=False):
        if not shape:
            continue
        old = found[entry][0] if entry in found else None
        if not old or _fills(old, shape):
            found[entry] = (tuple(shape), found[entry][1] if entry in found else _variable_type(entry[0], first))
        elif 0 not in shape and tuple(old) != tuple(shape):
            raise MXNetError(
                f"Error in operator {node.name}: Shape inconsistent, Provided = {list(old)}, "
                f"inferred shape={list(shape)}"
            )


def _fills(old: Shape, new: Shape) -> bool:
    """Whether sizes differ only where the old ones are not known."""
    return len(old) == len(new) and all(a in (0, b) for a, b in zip(old, new, strict=True))


def _followed(node: SymbolNode, follow: Callable[[Any], Sequence[Shape | None]]) -> Sequence[Shape | None]:
    """The sizes that follow by a rule; parameters that mean nothing are MXNet's kind of error."""
    assert node.row is not None
    try:
        return follow(node.row.rule)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise MXNetError(f"Error in operator {node.name}: {type(error).__name__}: {error}") from error


def _infer_node(node: SymbolNode, found: dict[Entry, Kind]) -> None:
    row, p = node.row, node.p
    assert row is not None
    sizes = [found[entry][0] if entry in found else None for entry in node.inputs]
    if row.rule.complete is not None and sizes:
        _learn(node, found, _followed(node, lambda rule: rule.complete(p, sizes)))
    kinds = [found.get(entry) for entry in node.inputs]
    if all(kind is not None and 0 not in kind[0] for kind in kinds):
        results = infer_types(row.rule, node.name, p, [kind for kind in kinds if kind is not None])
        for place, kind in enumerate(results):
            known = found.get((node, place))
            if known is None or not _fills(kind[0], known[0]):  # 0 in what makes an array stands for what others say
                found[node, place] = kind


def _infer_back(node: SymbolNode, found: dict[Entry, Kind]) -> None:
    """Sizes of inputs that follow from that of the output."""
    row, output = node.row, found.get((node, 0))
    if row is None or row.rule.backwards is None or output is None or 0 in output[0]:
        return
    sizes = [found[entry][0] if entry in found else None for entry in node.inputs]
    _learn(node, found, _followed(node, lambda rule: rule.backwards(node.p, sizes, output[0])))


def _variable_type(node: SymbolNode, otherwise: torch.dtype) -> torch.dtype:
    text = node.attributes.get("__dtype__")
    return torch_type(_type_of_text(text)) if text else otherwise


# Composition.


def var(
    name: str,
    attr: Mapping[str, str] | None = None,
    shape: Shape | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    dtype: Any = None,
    init: Any = None,
    stype: str | None = None,
    **given: str,
) -> Symbol:
    """A variable."""
    if not isinstance(name, str):
        raise TypeError("Expect a string for variable `name`")
    node = SymbolNode(None, name, {})
    node.attributes = scoped_attributes(attr)
    notes = {
        "shape": shape,
        "lr_mult": lr_mult,
        "wd_mult": wd_mult,
        "dtype": None if dtype is None else _type_number(dtype),
        "init": init if init is None or isinstance(init, str) else init.dumps(),
        "storage_type": None if stype is None else STORAGE_TYPES.index(stype),
    }
    node.attributes |= {f"__{key}__": str(value) for key, value in notes.items() if value is not None}
    for key, value in given.items():
        if not is_note(key):
            raise ValueError(
                f"Attribute name={key} is not supported. Additional attributes must start and end "
                f"with double underscores, e.g, __yourattr__"
            )
        node.attributes[key] = str(value)
    return Symbol([(node, 0)])


Variable = var


def _type_number(dtype: Any) -> int:
    return ("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool").index(type_name(dtype))


def Group(symbols: Sequence[Symbol]) -> Symbol:
    """Several symbols as one."""
    if not symbols or any(not isinstance(symbol, Symbol) for symbol in symbols):
        raise TypeError("Expected a list of symbols as input")
    return Symbol([entry for symbol in symbols for entry in symbol.entries])


# Names that MXNet gives, where they are not those of the operators in small letters.
_SCALARS = ("plus", "minus", "rminus", "mul", "div", "rdiv", "mod", "rmod", "power", "rpower", "maximum", "minimum")
HINTS = {
    "elemwise_add": "_plus",
    "elemwise_sub": "_minus",
    "elemwise_mul": "_mul",
    "elemwise_div": "_div",
    **{f"_{name}_scalar": f"_{name}scalar" for name in _SCALARS},
    "Reshape": "reshape",
    "SliceChannel": "split",
    "SwapAxis": "swapaxes",
    "_copy": "identity",
    "_shuffle": "shuffle",
}


# What MXNet notes of variables that it makes itself: how they begin.
BEGINNINGS = {
    "moving_mean": '["zero", {}]',
    "moving_var": '["one", {}]',
    "gamma of LeakyReLU": '["Constant", {"value": 0.25}]',
}


def compose(
    row: Operator, inputs: Sequence[Symbol | None], given: Mapping[str, Any], _out: Any, name: str | None
) -> Symbol:
    """A symbol of an operator; a variable stands for each input that is missing."""
    attributes = given.get("__attr__")
    called = given.get("__called__")
    texts: dict[str, str] = {}
    noted = dict(attributes or {})
    for key, value in given.items():
        if key not in ("__attr__", "__called__"):
            (noted if is_note(key) else texts)[key] = str(value)
    notes = scoped_attributes(noted)
    texts |= {key: str(notes.pop(key)) for key in list(notes) if not is_note(key)}  # as MXNet reads them
    if row.variadic and row.counter in row.parameters and row.counter not in texts:
        texts[row.counter] = str(len(inputs))
    _ = row.values(texts)
    # MXNet names what has no name after the function that was called, of which an operator may have several.
    hint = HINTS.get(row.name, row.name.lower()) if called is None or called.startswith("_") else called.lower()
    for prefix in ("_contrib_", "_linalg_", "_image_"):
        hint = hint.removeprefix(prefix)
    node = SymbolNode(row, naming.managers[-1].get(name, hint), texts)
    node.attributes = notes
    if row.variadic:
        node.inputs = [entry for symbol in inputs if symbol is not None for entry in symbol.entries]
    else:
        padded = [*inputs, *[None] * (row.input_count(node.p) - len(inputs))][: max(row.input_count(node.p), 0)]
        for label, symbol in zip(row.input_names(node.p), padded, strict=False):
            if symbol is not None and len(symbol.entries) != 1:
                raise MXNetError(f"{row.name} takes one output as {label}, not a group of {len(symbol.entries)}")
            made = symbol
            if made is None:
                made = var(f"{node.name}_{label}")
                made.entries[0][0].attributes = {**node.texts, **node.attributes}  # as MXNet's JSON shows it
                begins = BEGINNINGS.get(label) or BEGINNINGS.get(f"{label} of {row.name}")
                if begins is not None:
                    made.entries[0][0].attributes["__init__"] = begins
            node.inputs.append(made.entries[0])
    return Symbol([(node, place) for place in range(node.output_count())])


# Python's operators on symbols do not broadcast, as in MXNet.
ALIKE = {f"broadcast_{name}": f"elemwise_{name}" for name in ("add", "sub", "mul", "div")} | {
    f"broadcast_{name}": f"_{name}" for name in ("mod", "power", "maximum", "minimum", "hypot", *COMPARISONS.values())
}
FRONTEND = Frontend(Symbol, "Symbol", compose, ALIKE)
give_arithmetic(FRONTEND, in_place=False)
give_methods(FRONTEND)


# Reading JSON.


def load_json(text: str) -> Symbol:
    """The graph that JSON describes, of any version since 0.8; damage is one clear error."""
    try:
        graph = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MXNetError(f"the JSON of a symbol cannot be read: {error}") from error
    try:
        return _read_graph(graph)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise MXNetError(f"the JSON is not that of a symbol: {type(error).__name__}: {error}") from error


def _read_graph(graph: Any) -> Symbol:
    made: list[SymbolNode] = []
    for place, described in enumerate(graph["nodes"]):
        texts: dict[str, str] = {}
        for key in ("param", "attr", "attrs"):  # up to 0.9, in 0.9 to 0.11, since then
            texts.update({name: str(value) for name, value in (described.get(key) or {}).items()})
        if described.get("subgraphs"):
            texts[BODIES] = json.dumps(described["subgraphs"])
        name, op = described["name"], described["op"]
        if not isinstance(name, str) or not isinstance(op, str):
            raise MXNetError(f"node {place} of a symbol has no name, or no operator")
        row = None if op == "null" else operator(op)
        hidden = {key: value for key, value in texts.items() if row is None or not row.takes(key)}
        node = SymbolNode(row, name, {key: value for key, value in texts.items() if key not in hidden})
        node.attributes = {(f"__{key}__" if key in HIDDEN else key): value for key, value in hidden.items()}
        for described_input in described["inputs"]:
            number, output = _place(described_input[0]), _place(described_input[1])
            if not 0 <= number < place:
                raise MXNetError(f"node {name} of a symbol reads node {number}, which does not come before it")
            node.inputs.append((made[number], output))
        if row is not None:
            _complete_inputs(node)
        made.append(node)
    heads = [(made[_place(head[0])], _place(head[1])) for head in graph["heads"]]
    if not heads:
        raise MXNetError("a symbol without heads has no outputs")
    for source, output in (*heads, *(entry for node in made for entry in node.inputs)):
        if not 0 <= output < source.output_count() + source.hidden_count():
            raise MXNetError(f"node {source.name} of a symbol has no output {output}")
    return Symbol(heads)


def _place(number: Any) -> int:
    """A number of a node or an output: a whole one, not below 0."""
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(f"{number!r} is no place")
    return number


def _complete_inputs(node: SymbolNode) -> None:
    """Files of 0.8 leave auxiliary states out of the inputs."""
    row = node.row
    assert row is not None
    wanted = len(node.inputs) if row.variadic else row.input_count(node.p)
    for label in row.inputs[len(node.inputs) : wanted]:
        node.inputs.append((SymbolNode(None, f"{node.name}_{label}", {}), 0))


def load(fname: str | os.PathLike[str]) -> Symbol:
    """The graph that a JSON file describes."""
    try:
        return load_json(Path(fname).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise MXNetError(f"Open {fname}: {error}") from error
