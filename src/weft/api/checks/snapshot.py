"""Remember what objects hold, as far as code can reach from some roots, compare it later, and put it back.

A snapshot holds the objects themselves (so that no address is used twice), what containers among them held, and copies
of what tensors held. It follows attributes, items, closures, defaults, the globals that functions mention, and the
attributes of the user's classes; not what belongs to Python's own library or to Weft.
"""

from __future__ import annotations

import array
import builtins
import collections
import contextvars
import dis
import functools
import random
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from weft.owners import Owner, owner_of
from weft.trace.interception.capture import storage_key
from weft.trace.python_state.names import global_names, reached

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), torch.dtype, torch.device, range, slice)
MISSING = object()
Inside = Iterable[tuple[str, Any]]  # the step from a thing to one in it, as one would write it, and that one


@dataclass(frozen=True, slots=True, eq=False)
class TensorContent:
    """What a tensor was: its elements, and all else that code may change of it."""

    memory: torch.Tensor  # an alias, without history, of where its elements were
    elements: torch.Tensor | None  # a copy; None where there are none to copy
    requires_grad: bool
    history: Any  # the node of autograd's graph that made it
    is_leaf: bool
    gradient: torch.Tensor | None
    attributes: Mapping[str, Any]
    storage: Any

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorContent:
        """Copy what a tensor holds."""
        memory = tensor.detach()
        is_memory = memory.layout is torch.strided and not memory.is_meta
        return cls(
            memory,
            copied(memory) if is_memory or memory.is_sparse else None,
            tensor.requires_grad,
            tensor.grad_fn,
            tensor.is_leaf,
            tensor.grad if tensor.is_leaf else None,
            {**getattr(tensor, "__dict__", {})},
            storage_key(tensor) if is_memory and memory.numel() else None,
        )

    def put_back(self, tensor: torch.Tensor) -> str | None:
        """Let a tensor be what it was; says what cannot be."""
        if tensor.is_leaf != self.is_leaf or tensor.grad_fn is not self.history:
            return "was changed in place, and autograd's history of it with it"
        if self.is_leaf and tensor.requires_grad != self.requires_grad:
            tensor.requires_grad_(self.requires_grad)
        if _moved(tensor, self.memory):
            tensor.data = self.memory
        if self.elements is not None and not same_elements(self.memory, self.elements):
            _write(self.memory, self.elements)
        if self.is_leaf and tensor.grad is not self.gradient:
            tensor.grad = self.gradient
        if tensor.__dict__ != self.attributes:
            tensor.__dict__.clear()
            tensor.__dict__.update(self.attributes)
        return None


def _moved(tensor: torch.Tensor, memory: torch.Tensor) -> bool:
    if tensor.shape != memory.shape or tensor.dtype != memory.dtype or tensor.layout != memory.layout:
        return True
    if memory.layout is not torch.strided or memory.is_meta:
        return False
    return tensor.data_ptr() != memory.data_ptr() or tensor.stride() != memory.stride()


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor's elements, whatever mode is in force, without a trace in any graph."""
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        return tensor.detach().clone()


def _write(memory: torch.Tensor, elements: torch.Tensor) -> None:
    # Past the version counter: elements are as they were, so nothing that a graph has saved of them has changed.
    with torch.inference_mode(memory.is_inference()), torch.no_grad():
        target = memory.data
        overlaps = any(step == 0 and size > 1 for size, step in zip(target.shape, target.stride(), strict=True))
        if not overlaps:
            target.copy_(elements)


def same_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one form hold the same elements, any NaN equal to any other."""
    if one.is_sparse:
        one, other = one.to_dense(), other.to_dense()
    with torch.no_grad():
        if torch.equal(one, other):
            return True
        if not (one.is_floating_point() or one.is_complex()):
            return False
        return bool(((one == other) | (one.isnan() & other.isnan())).all())


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """How things of a kind are remembered: what they hold, how that is put back, and what to follow."""

    take: Callable[[Any], Any]
    put: Callable[[Any, Any], None]
    inside: Callable[[Any], Inside]  # of what was taken


def _nothing(_: Any) -> Inside:
    return ()


def _items(held: Iterable[Any]) -> Inside:
    return ((f"[{index}]", value) for index, value in enumerate(held))


def _entries(held: Mapping[Any, Any]) -> Inside:
    pairs = enumerate(held.items())
    return ((f"[{key!r}]" if isinstance(key, PLAIN) else f"[key {index}]", value) for index, (key, value) in pairs)


def _names(held: Mapping[str, Any]) -> Inside:
    return ((f".{name}", value) for name, value in held.items() if value is not MISSING)


def _put_list(thing: Any, held: list[Any]) -> None:
    list.__setitem__(thing, slice(None), held)


def _put_deque(thing: Any, held: list[Any]) -> None:
    thing.clear()
    thing.extend(held)


def _put_dict(thing: Any, held: dict[Any, Any]) -> None:
    kind = collections.OrderedDict if isinstance(thing, collections.OrderedDict) else dict
    kind.clear(thing)
    kind.update(thing, held)


def _put_set(thing: Any, held: set[Any]) -> None:
    thing.clear()
    thing.update(held)


def _put_cell(cell: types.CellType, held: Any) -> None:
    if held is MISSING:
        if _content(cell) is not MISSING:
            del cell.cell_contents
    else:
        cell.cell_contents = held


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return MISSING


def _take_function(function: types.FunctionType) -> dict[str, Any]:
    return {
        "__defaults__": function.__defaults__,
        "__kwdefaults__": function.__kwdefaults__,
        **({"__dict__": function.__dict__} if function.__dict__ else {}),
    }


def _put_function(function: types.FunctionType, held: dict[str, Any]) -> None:
    function.__defaults__ = held["__defaults__"]
    function.__kwdefaults__ = held["__kwdefaults__"]


def _take_slots(thing: Any) -> dict[str, Any]:
    names = (name for kind in type(thing).__mro__ for name in _slots_of(kind))
    return {name: getattr(thing, name, MISSING) for name in names}


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    private = kind.__name__.lstrip("_")
    mangled = (f"_{private}{name}" if name.startswith("__") and not name.endswith("__") else name for name in names)
    return tuple(name for name in mangled if name not in ("__dict__", "__weakref__"))


def _put_slots(thing: Any, held: dict[str, Any]) -> None:
    for name, value in held.items():
        if value is not MISSING:
            object.__setattr__(thing, name, value)
        elif hasattr(thing, name):
            object.__delattr__(thing, name)


def _take_class(kind: type | types.ModuleType) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if not (name.startswith("__") and name.endswith("__"))}


def _put_class(kind: type | types.ModuleType, held: dict[str, Any]) -> None:
    for name in _take_class(kind).keys() - held.keys():
        delattr(kind, name)
    for name, value in held.items():
        if vars(kind).get(name, MISSING) is not value:
            setattr(kind, name, value)


def _unchanging(_thing: Any, _held: Any) -> None:
    """Leave what cannot change as it is."""


def _put_array(thing: Any, held: Any) -> None:
    thing[...] = held


def _put_bytes(thing: Any, held: Any) -> None:
    thing[:] = held


def _put_local(thing: threading.local, held: dict[str, Any]) -> None:
    _put_dict(vars(thing), held)


def _put_context(variable: contextvars.ContextVar[Any], held: Any) -> None:
    if held is not MISSING:  # a variable that was set cannot be unset
        variable.set(held)


def _put_generator(generator: torch.Generator, held: torch.Tensor) -> None:
    generator.set_state(held)


KINDS: dict[type, Kind] = {
    collections.deque: Kind(list, _put_deque, _items),
    list: Kind(list, _put_list, _items),
    dict: Kind(lambda thing: {**thing} if type(thing) is dict else dict(dict.items(thing)), _put_dict, _entries),
    set: Kind(set, _put_set, _nothing),
    tuple: Kind(tuple, _unchanging, _items),
    bytearray: Kind(bytearray, _put_bytes, _nothing),
    array.array: Kind(lambda thing: thing[:], _put_bytes, _nothing),
    types.CellType: Kind(_content, _put_cell, lambda held: [("", held)] if held is not MISSING else []),
    types.FunctionType: Kind(_take_function, _put_function, _names),
    types.MethodType: Kind(lambda method: {"__self__": method.__self__}, _unchanging, _names),
    threading.local: Kind(lambda thing: {**vars(thing)}, _put_local, _names),
    contextvars.ContextVar: Kind(lambda variable: variable.get(MISSING), _put_context, lambda held: [(".get()", held)]),
    torch.Generator: Kind(torch.Generator.get_state, _put_generator, _nothing),
    random.Random: Kind(random.Random.getstate, random.Random.setstate, _nothing),
}
"""How builtin things are remembered; the first that fits."""

CLASS = Kind(_take_class, _put_class, _names)
MODULE = Kind(_take_class, _put_class, _nothing)


def _numpy_kinds() -> dict[type, Kind]:
    """NumPy's, where the program has imported it."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return {}

    def put_generator(thing: Any, held: Any) -> None:
        thing.bit_generator.state = held

    return {
        numpy.ndarray: Kind(numpy.copy, _put_array, _nothing),
        numpy.random.Generator: Kind(lambda thing: thing.bit_generator.state, put_generator, _nothing),
        numpy.random.RandomState: Kind(
            lambda thing: thing.get_state(), lambda thing, held: thing.set_state(held), _nothing
        ),
    }


@dataclass(slots=True, eq=False)
class Entry:
    """A thing, where it was found first, and what it held."""

    thing: Any
    path: str
    kind: Kind | None
    held: Any
    inside: list[tuple[str, Any]] = field(default_factory=list)


class Snapshot:
    """What all things held that can be reached from some roots, each under a name.

    What an `earlier` one has found is looked at too, though it may hang on nothing any more: popped from a list, say.
    """

    def __init__(self, roots: Mapping[str, Any], earlier: Snapshot | None = None) -> None:
        self.roots = dict(roots)
        self.entries: dict[int, Entry] = {}
        self.lasting: list[Entry] = []  # iterators: where they are cannot be put back
        self._kinds = {**KINDS, **_numpy_kinds()}
        waiting = collections.deque(self.roots.items())
        if earlier is not None:
            waiting.extend((entry.path, entry.thing) for entry in earlier.found())
        while waiting:
            path, thing = waiting.popleft()
            if isinstance(thing, PLAIN) or id(thing) in self.entries:
                continue
            entry = self.entries[id(thing)] = self._entry(thing, path)
            waiting.extend((path + step, inner) for step, inner in entry.inside)

    def found(self) -> list[Entry]:
        """List the things that stand for themselves: all but dictionaries of attributes, slots and names."""
        return [entry for entry in self.entries.values() if entry.path]

    def _entry(self, thing: Any, path: str) -> Entry:
        if isinstance(thing, torch.Tensor):
            content = TensorContent.of(thing)
            inside = [(".grad", content.gradient)] if content.gradient is not None else []
            return Entry(thing, path, None, content, [*inside, *_names(content.attributes)])
        if isinstance(thing, type):
            return self._taken(thing, path, CLASS) if _is_users(thing.__module__) else Entry(thing, path, None, None)
        if isinstance(thing, types.ModuleType) and _is_users(thing.__name__):
            return Entry(thing, path, MODULE, _take_class(thing))  # what code mentions of it is looked into
        if isinstance(thing, types.ModuleType | types.BuiltinFunctionType):
            return Entry(thing, path, None, None)
        kind = next((kind for known, kind in self._kinds.items() if isinstance(thing, known)), None)
        if kind is None and isinstance(thing, Iterator) and not hasattr(thing, "__dict__"):
            entry = Entry(thing, path, None, _position(thing))
            self.lasting.append(entry)
            return entry
        entry = self._taken(thing, path, kind) if kind is not None else Entry(thing, path, None, None)
        entry.inside += self._beside(thing, kind)
        return entry

    def _taken(self, thing: Any, path: str, kind: Kind) -> Entry:
        held = kind.take(thing)
        return Entry(thing, path, kind, held, list(kind.inside(held)))

    def _beside(self, thing: Any, kind: Kind | None) -> Inside:
        """What a thing keeps beside its items: attributes, slots, names that its code mentions."""
        if isinstance(thing, types.FunctionType):
            if owner_of(thing.__code__.co_filename) is Owner.USER:
                yield from self._mentioned(thing)
            return
        if _is_apart(type(thing)):
            return
        attributes = getattr(thing, "__dict__", None)
        if type(attributes) is dict:
            # One entry for the dictionary: what is named "[...]" elsewhere is an attribute here.
            held = dict(attributes)
            self.entries.setdefault(id(attributes), Entry(attributes, "", KINDS[dict], held))
            yield from _names({name: value for name, value in held.items() if name not in BOOKKEEPING})
            yield "", type(thing)
        if kind is None and any(map(_slots_of, type(thing).__mro__)):
            slots = Slots(thing)
            self.entries[id(slots)] = Entry(slots, "", SLOTS, held := _take_slots(thing))
            yield from _names(held)
            yield "", type(thing)

    def _mentioned(self, function: types.FunctionType) -> Inside:
        found = {(id(place[0]), place[1]): place for place in reached(function)}
        names = function.__globals__
        for name in (*global_names(function.__code__), *stored_names(function.__code__)):
            if not hasattr(builtins, name) or name in names:
                found.setdefault((id(names), name), (names, name, name, names.get(name, MISSING)))
        for container, key, path, value in found.values():
            if isinstance(container, types.CellType):
                yield f" (its {path})", container
                continue
            place = Names(container, key)
            self.entries[id(place)] = Entry(place, "", NAMES, value)
            if value is not MISSING:
                yield f" ({path})", value

    def put_back(self) -> list[str]:
        """Let everything be as it was; says what cannot be."""
        lost: list[str] = []
        for entry in self.entries.values():
            if isinstance(entry.thing, torch.Tensor):
                if (text := entry.held.put_back(entry.thing)) is not None:
                    lost.append(f"{entry.path} {text}")
            elif entry.kind is not None and entry.kind.put is not _unchanging:
                now = entry.kind.take(entry.thing)
                if not _same(now, entry.held):
                    entry.kind.put(entry.thing, entry.held)
        return lost + [f"{entry.path} has moved on" for entry in self.lasting if _position(entry.thing) != entry.held]


@functools.lru_cache(maxsize=4096)
def stored_names(code: types.CodeType) -> tuple[str, ...]:
    """The global names that a piece of code gives values to."""
    own = [step.argval for step in dis.get_instructions(code) if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")]
    inner = [stored_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return tuple(sorted({*own}.union(*inner)))


@dataclass(frozen=True, slots=True, eq=False)
class Names:
    """A name in a dictionary of names: of a Python module, whose other names are not looked at."""

    container: dict[str, Any]
    key: str

    def put(self, value: Any) -> None:
        """Let the name stand for a value."""
        if value is MISSING:
            self.container.pop(self.key, None)
        else:
            self.container[self.key] = value


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """The slots of an object, apart from its items."""

    owner: Any


NAMES = Kind(lambda place: place.container.get(place.key, MISSING), Names.put, lambda value: [("", value)])
SLOTS = Kind(lambda slots: _take_slots(slots.owner), lambda slots, held: _put_slots(slots.owner, held), _names)


def _same(now: Any, held: Any) -> bool:
    """Whether a container holds the very things that it held, in their order."""
    if isinstance(now, dict):
        same = len(now) == len(held) and all(one is other for one, other in zip(now, held, strict=True))
        return same and all(one is other for one, other in zip(now.values(), held.values(), strict=True))
    if isinstance(now, list):
        return len(now) == len(held) and all(one is other for one, other in zip(now, held, strict=True))
    return now is held


def _position(iterator: Any) -> Any:
    """Where an iterator is, as far as one can tell without moving it."""
    if isinstance(iterator, types.GeneratorType):
        frame = iterator.gi_frame
        return None if frame is None else (frame.f_lasti, [_position(value) for value in frame.f_locals.values()])
    if not isinstance(iterator, Iterator):
        return id(iterator)
    hint = getattr(iterator, "__length_hint__", None)
    return hint() if hint is not None else repr(iterator)


def _is_users(module: str | None) -> bool:
    found = sys.modules.get(module or "")
    if found is None or module == "__main__":
        return True
    file = getattr(found, "__file__", None)
    return file is not None and owner_of(file) is Owner.USER


BOOKKEEPING = ("_opt_called",)
"""What PyTorch notes only for its own warnings: whether an optimizer stepped before its schedule."""

APART = ("weft", "logging", "threading", "concurrent", "multiprocessing", "asyncio", "io", "socket", "_thread")
"""Packages whose objects are no part of what a model computes."""


def _is_apart(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in APART
