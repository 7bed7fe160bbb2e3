"""Loop and branch in graphs: `sym.contrib.foreach`, `while_loop` and `cond`, whose bodies are graphs of their own.

A body is written once, with variables in the place of what changes. What else it reads of the graph around it are
inputs of the operator. The parameter `subgraphs` has the bodies as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from weft.mx.base.errors import MXNetError
from weft.mx.operators.table import Shape, Sizes, computes, operator
from weft.mx.symbols.graph import GraphFunction
from weft.mx.symbols.names import AttrScope, naming
from weft.mx.symbols.symbol import FRONTEND, Entry, Group, Symbol, SymbolNode, load_json, var

MARK = "__subgraph_name__"
MOST_BODIES = 256
# Bodies may have dropouts.
OF_BODIES: dict[str, Any] = {"outputs": lambda p: p.num_outputs, "random": True, "modal": True, "mixed": True}
Arrays = list[Tensor]


class SubgraphBody:
    """A body that runs with tensors."""

    def __init__(self, symbol: Symbol) -> None:
        if symbol.list_auxiliary_states():
            raise MXNetError(f"a loop over {symbol.list_auxiliary_states()[0]}, which moves, is not in weft.mx")
        self.symbol, self.names = symbol, symbol.list_inputs()
        self._function = GraphFunction(symbol, self.names)

    def __call__(self, train: bool, generator: torch.Generator | None, tensors: Sequence[Tensor]) -> Arrays:
        """The outputs, for tensors in the order of the inputs."""
        return list(self._function.run(train, generator, tensors))

    def learnt(self, sizes: Sequence[Shape | None]) -> list[Shape | None]:
        """The sizes of the inputs, as far as they follow from those that are known."""
        known = {name: shape for name, shape in zip(self.names, sizes, strict=True) if shape}
        found = self.symbol.infer_sizes(known)
        return [found.get(name) for name in self.names]


@lru_cache(maxsize=MOST_BODIES)
def _bodies(text: str) -> list[SubgraphBody]:
    return [SubgraphBody(load_json(json.dumps(each))) for each in json.loads(text)]


def _ordered(places: Sequence[Any], values: Sequence[Any], count: int) -> list[Any]:
    """Values at the places of a body's inputs that they belong to."""
    found: list[Any] = [None] * count
    for place, value in zip(places, values, strict=True):
        found[place] = value
    return found


def _given_to(places: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Of an operator's inputs those that a body takes."""
    return [values[place] for place in places]


# foreach


def _entry(line: Tensor, step: int) -> Tensor:
    """One entry of the first axis; that of a vector is a vector of one, as MXNet has no arrays without axes."""
    return line[step] if line.dim() > 1 else line[step : step + 1]


def _foreach_sizes(p: Any, sizes: Sizes) -> Sequence[Shape | None]:
    (body,), lines = _bodies(p.subgraphs), len(p.in_data_locs)
    places = (*p.in_data_locs, *p.in_state_locs, *p.remain_locs)
    steps = [(shape[1:] or (1,)) if shape and place < lines else shape for place, shape in enumerate(sizes)]
    learnt = _given_to(places, body.learnt(_ordered(places, steps, len(body.names))))
    length = next((shape[0] for shape in sizes[:lines] if shape), 0)
    known = [sizes[place] or ((length, *shape) if shape else None) for place, shape in enumerate(learnt[:lines])]
    return [*known, *learnt[lines:]]


@computes("_foreach", complete=_foreach_sizes, **OF_BODIES)
def run_foreach(p: Any, generator: torch.Generator | None, *tensors: Tensor) -> Any:
    """Run the body for each entry of the first axis."""
    (body,), lines = _bodies(p.subgraphs), len(p.in_data_locs)
    data, states = tensors[:lines], list(tensors[lines : lines + len(p.in_state_locs)])
    rest, places = tensors[lines + len(states) :], (*p.in_data_locs, *p.in_state_locs, *p.remain_locs)
    length = data[0].shape[0]
    steps: list[Arrays] = []
    for step in range(min(length, 1) if data[0].device.type == "meta" else length):
        given = _ordered(places, [*(_entry(line, step) for line in data), *states, *rest], len(body.names))
        found = body(p.train, generator, given)
        steps.append(found[: p.num_out_data])
        states = found[p.num_out_data :]
    if data[0].device.type == "meta":
        steps = steps * length
    outputs = [torch.stack(column) for column in zip(*steps, strict=True)]
    return (*outputs, *states)


# while_loop


def _while_sizes(p: Any, sizes: Sizes) -> Sequence[Shape | None]:
    body = _bodies(p.subgraphs)[1]
    learnt = body.learnt(_given_to(p.func_input_locs, sizes))
    found = list(sizes)
    for place, shape in zip(p.func_input_locs, learnt, strict=True):
        found[place] = found[place] or shape
    return found


@computes("_while_loop", decides=True, complete=_while_sizes, **OF_BODIES)
def run_while_loop(p: Any, generator: torch.Generator | None, *tensors: Tensor) -> Any:
    """Run the body while the condition holds; outputs are filled up with zeros."""
    condition, body = _bodies(p.subgraphs)
    values = list(tensors)
    # Where among the operator's inputs each variable of the loop stands: -1 of one that the body does not read.
    places = [p.func_input_locs[each] if each >= 0 else -1 for each in p.func_var_locs]
    steps: list[Arrays] = []
    sized: Arrays | None = None
    variables = [values[place] for place in places]
    for _ in range(p.max_iterations):
        if values[0].device.type == "meta":
            sized = body(p.train, generator, _given_to(p.func_input_locs, values))
            variables = sized[p.num_out_data :]
            break
        if not bool(condition(p.train, generator, _given_to(p.cond_input_locs, values))[0]):
            break
        found = body(p.train, generator, _given_to(p.func_input_locs, values))
        steps.append(found[: p.num_out_data])
        variables = found[p.num_out_data :]
        for place, value in zip(places, variables, strict=True):
            values[place] = value
    if not steps:
        sized = sized or body(p.train, generator, _given_to(p.func_input_locs, values))
        empty = [array.new_zeros(p.max_iterations, *array.shape) for array in sized[: p.num_out_data]]
        return (*empty, *variables)
    outputs = []
    for column in zip(*steps, strict=True):
        missing = column[0].new_zeros(p.max_iterations - len(column), *column[0].shape)
        outputs.append(torch.cat([torch.stack(column), missing]))
    return (*outputs, *variables)


# cond


def _cond_sizes(p: Any, sizes: Sizes) -> Sequence[Shape | None]:
    _, *branches = _bodies(p.subgraphs)
    found = list(sizes)
    for branch, places in zip(branches, (p.then_input_locs, p.else_input_locs), strict=True):
        for place, shape in zip(places, branch.learnt(_given_to(places, found)), strict=True):
            found[place] = found[place] or shape
    return found


@computes("_cond", decides=True, complete=_cond_sizes, **OF_BODIES)
def run_cond(p: Any, generator: torch.Generator | None, *tensors: Tensor) -> Any:
    """Run one of two bodies, by what an array of one element says."""
    condition, then, otherwise = _bodies(p.subgraphs)
    holds = tensors[0].device.type == "meta"
    holds = holds or bool(condition(p.train, generator, _given_to(p.cond_input_locs, tensors))[0])
    body, places = (then, p.then_input_locs) if holds else (otherwise, p.else_input_locs)
    return tuple(body(p.train, generator, _given_to(places, tensors)))


# How they are written.


def _flat(given: Any, what: str) -> list[Symbol]:
    """The symbols of nested lists."""
    if isinstance(given, Symbol):
        return list(_each(given))
    if not isinstance(given, (list, tuple)):
        raise AssertionError(  # noqa: TRY004  # MXNet's
            f"{what} must be (nested) list of Symbol, but got {given} of type {type(given)}"
        )
    return [symbol for entry in given for symbol in _flat(entry, what)]


def _each(symbol: Symbol) -> list[Symbol]:
    return [Symbol([entry]) for entry in symbol.entries]


def _like(form: Any, symbols: list[Symbol]) -> Any:
    """Symbols in the form of nested lists; takes them from the front."""
    if isinstance(form, Symbol):
        taken = [symbols.pop(0) for _ in form.entries]
        return taken[0] if len(taken) == 1 else Group(taken)
    return [_like(entry, symbols) for entry in form]


def _placeholders(symbols: Sequence[Symbol], label: str) -> list[Symbol]:
    """Variables that stand for symbols in a body, with names of their own."""
    counts: dict[str, int] = {}
    made = []
    for symbol in symbols:
        name = symbol.list_outputs()[0]
        count = counts[name] = counts.get(name, -1) + 1
        made.append(var(f"{name}-{count}", {MARK: label}))
    return made


def _written(name: str, write: Callable[[], list[Symbol]]) -> list[Symbol]:
    """What code composes inside a body; an input that is handed out as it is, is a copy."""
    with AttrScope(**{MARK: name}):
        return [_copied(symbol) for symbol in write()]


def _copied(symbol: Symbol) -> Symbol:
    node = symbol.entries[0][0]
    inside = node.row is not None and node.attributes.get(MARK) == naming.scopes[-1].attributes[MARK]
    found: Symbol = symbol if inside else FRONTEND.function("identity")(symbol)
    return found


def _cut(heads: Sequence[Symbol], name: str, placeholders: Sequence[Symbol]) -> tuple[Symbol, dict[str, Entry]]:
    """A body by itself, and what it reads of the graph around it, by the names that these have in it."""
    inner = {symbol.entries[0][0] for symbol in placeholders}
    outside: dict[str, Entry] = {}
    copies: dict[SymbolNode, SymbolNode] = {}
    variables: dict[Entry, SymbolNode] = {}

    def copied(entry: Entry) -> Entry:
        node, place = entry
        if node in copies:
            return copies[node], place
        if entry not in variables:
            label = node.name if node.row is None else node.output_names()[place]
            stands = variables[entry] = SymbolNode(None, label, {})
            stands.attributes = dict(node.attributes) if node.row is None else {}
            outside[label] = entry
        return variables[entry], 0

    for node in Group(list(heads)).nodes():
        if node in inner:
            copies[node] = node
        elif node.row is not None and node.attributes.get(MARK) == name:
            copy = copies[node] = SymbolNode(node.row, node.name, node.texts)
            copy.attributes = dict(node.attributes)
            copy.inputs = [copied(entry) for entry in node.inputs]
    return Symbol([copied(symbol.entries[0]) for symbol in heads]), outside


def _composed(
    name: str, kind: str, bodies: Sequence[Symbol], inputs: Sequence[Entry], given: Mapping[str, Any]
) -> list[Symbol]:
    graphs = [json.loads(body.tojson()) for body in bodies]
    texts = json.dumps([{key: part for key, part in graph.items() if key != "attrs"} for graph in graphs])
    shown = {key: str(value) for key, value in given.items()}
    count = len(inputs) + len(bodies)
    made = FRONTEND.call(
        operator(kind),
        [Symbol([entry]) for entry in inputs],
        {**shown, "num_args": str(count), "subgraphs": texts},
        None,
        naming.managers[-1].get(None, f"_{name}"),
    )
    return _each(made)


def foreach(body: Callable[..., Any], data: Any, init_states: Any, name: str = "foreach") -> tuple[Any, Any]:
    """Run `body(slice, states)` for each entry of the first axis: gives its outputs, stacked, and the last states."""
    lines, states = _flat(data, "foreach input"), _flat(init_states, "foreach states")
    label = naming.managers[-1].get(None, name)
    forms: list[Any] = []
    inner = _placeholders([*lines, *states], label)

    def write() -> list[Symbol]:
        forms[:] = body(_like(data, inner[: len(lines)]), _like(init_states, inner[len(lines) :]))
        return [*_flat(forms[0], "foreach output"), *_flat(forms[1], "foreach states")]

    heads = _written(label, write)
    graph, outside = _cut(heads, label, inner)
    names = graph.list_inputs()
    own = [symbol.entries[0][0].name for symbol in inner]
    unread = [each for each in own if each not in names]
    if unread:
        raise MXNetError(f"the body of foreach does not read {unread[0]}")
    rest = [each for each in names if each not in own]
    places = [names.index(each) for each in own]
    count = len(heads) - len(_flat(forms[1], "foreach states"))
    found = _composed(
        name,
        "_foreach",
        [graph],
        [*(symbol.entries[0] for symbol in (*lines, *states)), *(outside[each] for each in rest)],
        {
            "num_outputs": len(heads),
            "num_out_data": count,
            "in_data_locs": places[: len(lines)],
            "in_state_locs": places[len(lines) :],
            "remain_locs": [names.index(each) for each in rest],
        },
    )
    return _like(forms[0], found[:count]), _like(forms[1], found[count:])


def while_loop(
    cond: Callable[..., Any],
    func: Callable[..., Any],
    loop_vars: Any,
    max_iterations: int | None = None,
    name: str = "while_loop",
) -> tuple[Any, Any]:
    """Run `func` while `cond` holds: gives its outputs, stacked and filled up with zeros, and the last variables."""
    if max_iterations is None:
        raise ValueError("max_iterations should be specified")
    if max_iterations < 0:
        raise ValueError("max_iterations should be non-negative")
    variables = _flat(loop_vars, "while_loop loop_vars")
    if not variables:
        raise ValueError("loop_vars should contain at least one element")
    label = naming.managers[-1].get(None, name)
    labels = label.replace(name, f"{name}_cond", 1), label.replace(name, f"{name}_func", 1)
    forms: list[Any] = []
    tested, inner = (_placeholders(variables, each) for each in labels)

    def write() -> list[Symbol]:
        forms[:] = func(*inner)
        return [*_flat(forms[0], "while_loop output"), *_flat(forms[1], "while_loop loop_vars")]

    condition, read = _cut(_written(labels[0], lambda: _flat(cond(*tested), "while_loop cond")), labels[0], tested)
    heads = _written(labels[1], write)
    body, also_read = _cut(heads, labels[1], inner)
    count = len(heads) - len(variables)
    if len(_flat(forms[1], "while_loop loop_vars")) != len(variables):
        raise ValueError("The length of new_loop_vars should be consistent with the length of loop_vars")
    sources = {symbol.entries[0][0].name: outer.entries[0] for symbol, outer in zip(inner, variables, strict=True)}
    sources = {**sources, **read, **also_read}
    order = list(sources)
    body_names = body.list_inputs()
    own = [symbol.entries[0][0].name for symbol in inner]
    unread = [each for each in own if each not in body_names]
    if unread:
        raise MXNetError(f"the body of while_loop does not read {unread[0]}")
    found = _composed(
        name,
        "_while_loop",
        [condition, body],
        list(sources.values()),
        {
            "max_iterations": max_iterations,
            "num_outputs": len(heads),
            "num_out_data": count,
            "cond_input_locs": [order.index(each) for each in condition.list_inputs()],
            "func_input_locs": [order.index(each) for each in body_names],
            "func_var_locs": [body_names.index(each) for each in own],
        },
    )
    alone = not isinstance(loop_vars, (list, tuple))
    last = _like(forms[1], found[count:])
    return _like(forms[0], found[:count]), last[0] if alone and isinstance(last, list) else last


def cond(pred: Symbol, then_func: Callable[[], Any], else_func: Callable[[], Any], name: str = "cond") -> Any:
    """Run one of two functions, by what an array of one element says."""
    label = naming.managers[-1].get(None, name)
    labels = [label.replace(name, f"{name}_{part}", 1) for part in ("pred", "then", "else")]
    forms: list[Any] = []

    def branch(function: Callable[[], Any], part: str) -> list[Symbol]:
        forms.append(function())
        return _flat(forms[-1], f"cond {part}")

    bodies: list[Symbol] = []
    sources: dict[str, Entry] = {}
    writers = (
        lambda: _flat(pred, "cond pred"),
        lambda: branch(then_func, "then"),
        lambda: branch(else_func, "else"),
    )
    for each, write in zip(labels, writers, strict=True):
        body, read = _cut(_written(each, write), each, ())
        bodies.append(body)
        sources |= {name: entry for name, entry in read.items() if name not in sources}
    if len(bodies[1].entries) != len(bodies[2].entries):
        raise ValueError("Number of outputs of then_func and else_func should be consistent")
    order = list(sources)
    places = [[order.index(each) for each in body.list_inputs()] for body in bodies]
    found = _composed(
        name,
        "_cond",
        bodies,
        list(sources.values()),
        {
            "num_outputs": len(bodies[1].entries),
            "cond_input_locs": places[0],
            "then_input_locs": places[1],
            "else_input_locs": places[2],
        },
    )
    return _like(forms[0], found)


FUNCTIONS = {"foreach": foreach, "while_loop": while_loop, "cond": cond}
