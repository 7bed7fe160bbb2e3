"""Remember Python values that traced code may have read as facts to compare at each call, with a sentence each.

A fact is the same if it is the very same object, or a plain value of the same type that is equal; of a list, tuple,
dictionary or set it is what is inside. Zero and minus zero differ, 1 and True differ, and so do 1 and 1.0. What the
code itself changed while it was traced (`calls.append(1)`) is none: several programs would undo each other's facts.

Functions that tell a setting of the process are C, which no interceptor is shown. They are found by name in the code
that was traced; what they tell is compared at each call of a program whose code mentions them.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from abc import ABCMeta
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from operator import is_
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from weft.trace.python_state.containers import (
    MISSING,
    NOTHING,
    Keys,
    OfClass,
    Registered,
    Touched,
    attributes,
    has_attributes,
    look,
)

SIMPLE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
WHOLE = (nn.Module, torch.Generator, type, ModuleType)
FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType)
CONTAINERS = (list, tuple, dict, set, frozenset, deque)
OF_C = (ctypes.Array, ctypes.Structure, ctypes.Union, ctypes._SimpleCData)
BUFFERS: tuple[Any, ...] = (bytearray, array, np.ndarray, *OF_C)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
REGISTRIES = ("_parameters", "_buffers")
# Entries of every module's __dict__ that are compared in another way, or that are about copies and saving.
BOUND_METHODS = "__weft__"  # an attribute of objects that have hybridized methods: what runs their programs
APART = frozenset({*vars(nn.Module()), "forward", BOUND_METHODS} - {"training"})
DEEPEST_CONTAINER = 9
LONGEST_CONTAINERS = (1 << 16, 1 << 12, 256, 32, 32, 8, 8, 8, 8)  # from the outermost in
LONG = 256  # items of a container, or kilobytes of an array, that are compared though no code mentions where they are
LARGEST_KEPT = 1 << 16  # bytes of an array; of a larger one a digest is compared
UNTOUCHED = Touched()


def content(thing: Any, depth: int = 0, other: Callable[[Any], Any] | None = None, touched: Touched = UNTOUCHED) -> Any:
    """What is compared of a thing: a plain value with its type, a container's contents, else the object's identity.

    `other` says what is compared in the place of the identity; what is `touched` is left out.
    """
    kind, base = type(thing), container_kind(thing)
    if kind is float:
        return (kind, thing.hex())
    if kind is complex:
        return (kind, thing.real.hex(), thing.imag.hex())
    if kind in SIMPLE:
        return (kind, thing)
    if base is not None and depth < DEEPEST_CONTAINER:
        if touched.keys(thing) is None:
            return kind
        if not _is_compared(base, thing, depth):
            return (kind, _items_of(thing, base, touched))
        return (kind, _contents(thing, depth, other, touched))
    if isinstance(thing, BUFFERS):
        return kind if touched.keys(thing) is None else _content_of_buffer(thing, depth, other, touched)
    return Same(thing) if other is None else other(thing)


def _any(number: Any) -> Any:
    """What is compared of a number that a program takes as it is."""
    return (type(number), "any") if type(number) in (int, float) else content(number)


def _of_key(key: Any, inner: Callable[[Any], Any]) -> Any:
    return (str, key) if type(key) is str else inner(key)


def _is_compared(base: Any, thing: Any, depth: int) -> bool:
    """Whether what is in a container is compared."""
    return base is not None and depth < DEEPEST_CONTAINER and base.__len__(thing) <= LONGEST_CONTAINERS[depth]


def _contents(thing: Any, depth: int, other: Callable[[Any], Any] | None, touched: Touched) -> list[Any]:
    """What is compared of each item of a container."""
    base, left_out = container_kind(thing), touched.keys(thing) or NOTHING
    inner = partial(content, depth=depth + 1, other=other, touched=touched)
    given, numbers = touched.given(thing), touched.numbers(thing)
    outer = partial(inner, other=_outlined(touched)) if given else inner
    # Of a copy, made at once: another thread may change the thing meanwhile.
    if base is dict:
        pairs = [pair for pair in _pairs_of(thing) if pair[0] not in left_out]
        return [
            (_of_key(key, inner), _any(item) if key in numbers else (outer if key in given else inner)(item))
            for key, item in pairs
        ]
    items = list(base.__iter__(thing))
    items = sorted(items, key=repr) if base in (set, frozenset) else items
    return [_any(item) if place in numbers else outer(item) for place, item in enumerate(items)]


def _pairs_of(thing: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """What is in a dictionary, in the order in which it gives it."""
    return list(OrderedDict.items(thing) if isinstance(thing, OrderedDict) else dict.items(thing))


def _items_of(thing: Any, base: Any, touched: Touched) -> Items:
    """The items of a container that has too many of them to look into each."""
    left_out = (touched.keys(thing) or NOTHING) | touched.given(thing) | touched.numbers(thing)
    if base is dict:
        pairs = [pair for pair in _pairs_of(thing) if pair[0] not in left_out]
        return Items([part for pair in pairs for part in pair])
    found = list(base.__iter__(thing))
    return Items(sorted(found, key=id) if base in (set, frozenset) else found)


def _content_of_buffer(thing: Any, depth: int, other: Callable[[Any], Any] | None, touched: Touched) -> Any:
    if isinstance(thing, np.ndarray) and thing.dtype.hasobject:
        return (type(thing), thing.shape, content(list(thing.flat), depth + 1, other, touched))
    return (type(thing), getattr(thing, "dtype", None), _image_of(thing))


def buffer_of(thing: Any) -> tuple[Any, Any]:
    """The shape and the bytes of an array of numbers; of an array of objects these."""
    shape = thing.shape if isinstance(thing, np.ndarray) else None
    if isinstance(thing, np.ndarray) and thing.dtype.hasobject:
        return shape, tuple(thing.flat)
    return shape, thing.tobytes() if isinstance(thing, np.ndarray) else memoryview(thing).tobytes()


def _image_of(thing: Any) -> tuple[Any, bytes]:
    """What is compared of an array of numbers: its shape and bytes, or a digest of these."""
    shape, found = buffer_of(thing)
    return shape, found if len(found) <= LARGEST_KEPT else hashlib.sha1(found, usedforsecurity=False).digest()


def is_long(thing: Any) -> bool:
    """Whether comparing what is in a thing takes long."""
    base = container_kind(thing)
    if base is not None:
        return bool(base.__len__(thing) > LONG)
    if isinstance(thing, np.ndarray):
        return bool(thing.nbytes > LONG << 10)
    return isinstance(thing, BUFFERS) and memoryview(thing).nbytes > LONG << 10


def trimmed(compared: Any, thing: Any, touched: Touched) -> Any:
    """What is compared of a thing, without what of it traced code has changed since."""
    has_parts = container_kind(thing) is not None or isinstance(thing, BUFFERS)
    keys = touched.keys(thing) if isinstance(compared, tuple) and has_parts else frozenset()
    if keys is None:
        return compared[0]
    if not keys or container_kind(thing) is not dict or isinstance(compared[1], Items):
        return compared
    left_out = [content(key, 1) for key in keys]
    return (compared[0], [pair for pair in compared[1] if pair[0] not in left_out])


def outline(thing: Any, touched: Touched = UNTOUCHED) -> Any:
    """What is compared of a place that each run of a program gives new tensors: any tensor is as good."""
    return content(thing, other=_outlined(touched), touched=touched)


def loosened(compared: Any) -> Any:
    """The outline of a thing from what was compared of it."""
    if isinstance(compared, Same) and isinstance(compared.thing, torch.Tensor):
        return torch.Tensor
    if isinstance(compared, (tuple, list)):
        return type(compared)(map(loosened, compared))
    return compared


def _outlined(touched: Touched, depth: int = 0) -> Callable[[Any], Any]:
    """What is compared of a thing that is neither plain nor a container, where runs put new ones."""

    def of(thing: Any) -> Any:
        if isinstance(thing, torch.Tensor):
            return torch.Tensor
        if depth == DEEPEST_CONTAINER or isinstance(thing, (*WHOLE, *FUNCTIONS)) or not has_attributes(thing):
            return Same(thing)
        inner = _outlined(touched, depth + 1)
        return (type(thing), [(name, content(item, 1, inner, touched)) for name, item in attributes(thing).items()])

    return of


def moves(thing: Any, touched: Touched, depth: int = 0) -> bool:
    """Whether runs put new tensors somewhere in a container."""
    base = container_kind(thing)
    if not _is_compared(base, thing, depth):
        return False
    if touched.given(thing) or touched.keys(thing) is None or touched.numbers(thing):
        return True
    items = dict.values(thing) if base is dict else base.__iter__(thing)
    return any(moves(item, touched, depth + 1) for item in list(items))


def can_change(thing: Any, depth: int = 0) -> bool:
    """Whether what is compared of a thing can change while it stays the same object."""
    base = container_kind(thing)
    if base is None:
        return isinstance(thing, BUFFERS)
    if not _is_compared(base, thing, depth):
        return depth < DEEPEST_CONTAINER and base not in (tuple, frozenset)
    return base not in (tuple, frozenset) or any(can_change(item, depth + 1) for item in base.__iter__(thing))


def container_kind(thing: Any) -> Any:
    """Which of the kinds of containers a thing is, or is derived from; None if it is none."""
    kind = type(thing)  # a weak proxy is none of what it is of
    if not issubclass(kind, CONTAINERS):
        return None
    return kind if kind in CONTAINERS else next(base for base in CONTAINERS if issubclass(kind, base))


@dataclass(frozen=True, slots=True, eq=False)
class Same:
    """An object of any kind: equal to itself alone."""

    thing: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """Things in a row, equal to as many others that are the same objects or equal plain values."""

    things: list[Any]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Items) or len(self.things) != len(other.things):
            return False
        pairs = zip(self.things, other.things, strict=True)
        return all(one is two or (type(one) in SIMPLE and content(one) == content(two)) for one, two in pairs)

    def __hash__(self) -> int:
        return len(self.things)


@dataclass(frozen=True, slots=True)
class LetGo:
    """What is said of a thing that a fact does not hold on to."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class NameFact:
    """What a global name, a closed-over name or an attribute of a plain object stood for."""

    container: Any
    key: Any
    path: str
    value: Any
    content: Any
    is_open: bool  # it may change and stay the same object
    of_class: bool  # an attribute of a class: these hardly ever change
    touched: Touched
    moves: bool = False  # each run changes what is there, or in it

    def without(self, touched: Touched) -> NameFact:
        """The same without what traced code changed, and the outline alone of what each run changes."""
        if self.key in touched.given(self.container):
            shown = self.value if type(self.value) in SIMPLE or self.value is MISSING else LetGo(brief(self.value))
            found = self._shown(self.value, touched)
            return replace(self, value=shown, content=found, is_open=True, touched=touched, moves=True)
        if moves(self.value, touched):
            return replace(self, content=content(self.value, touched=touched), touched=touched, moves=True)
        return replace(self, touched=touched) if self.is_open else self

    def change(self) -> str | None:
        """A sentence on what is different now, or nothing."""
        now = look(self.container, self.key)
        if now is self.value and not self.is_open:
            return None
        if self.key in self.touched.given(self.container):
            same = self._shown(now, self.touched) == self.content
        else:
            same = _agrees(trimmed(self.content, self.value, self.touched), content(now, touched=self.touched))
        return None if same else changed(self.path, self.value, now)

    def _shown(self, value: Any, touched: Touched) -> Any:
        """What is compared of a value that each run changes."""
        return _any(value) if self.key in touched.numbers(self.container) else outline(value, touched)

    def moved(self) -> Iterator[tuple[Any, Keys]]:
        """The place, if there are other tensors now, and nothing else is different."""
        if self.key not in self.touched.given(self.container) and self.change() is not None:
            before = loosened(trimmed(self.content, self.value, self.touched))
            if outline(look(self.container, self.key), self.touched) == before:
                yield self.container, frozenset({self.key})


def name_fact(place: tuple[Any, Any, str, Any], *, of_class: bool = False) -> NameFact:
    """Remember what a name stands for now; a place is a container, a key in it, the path, and what is there."""
    return NameFact(*place, content(place[3]), can_change(place[3]), of_class, UNTOUCHED)


@dataclass(frozen=True, slots=True, eq=False)
class TensorTies:
    """Which places held the very same tensor: code told by `is`, or took each parameter once."""

    held: Sequence[Callable[[], Any]]
    firsts: Sequence[int]

    @classmethod
    def of(cls, held: Sequence[Callable[[], Any]]) -> TensorTies:
        """Remember them as they are now."""
        return cls(held, _firsts(held))

    def change(self) -> str | None:
        """A sentence on what is different now, or nothing."""
        same = _firsts(self.held) == self.firsts
        return None if same else "other places hold the very same tensor"


def _firsts(held: Sequence[Callable[[], Any]]) -> list[int]:
    """For each place the number of the first one that holds the same."""
    first: dict[int, int] = {}
    return [first.setdefault(id(get()), number) for number, get in enumerate(held)]


@dataclass(frozen=True, slots=True, eq=False)
class ModuleFacts:
    """What a module looked like: its plain attributes, submodules, hooks, and which parameters it has."""

    module: nn.Module
    path: str
    attributes: tuple[Any, ...]
    contents: Mapping[str, Any]
    containers: Mapping[str, Any]
    structure: Mapping[str, Any]
    rebound: frozenset[str]  # attributes that runs give new tensors
    touched: Touched
    moves: bool  # each run changes attributes, or what is in them
    mentioned: AbstractSet[str]
    rows: Mapping[str, tuple[Any, ...]]  # of lists of plain values what is in them, which is compared faster
    ties: TensorTies | None = None  # of all modules, in the facts of one

    def change(self) -> str | None:
        """A sentence on what is different now, or nothing."""
        if self.ties is not None and (sentence := self.ties.change()):
            return sentence
        now = self.module.__dict__
        if len(now) != len(self.attributes) or not all(map(is_, now.values(), self.attributes)):
            names = self._others(now)
            given = attribute_contents(self.module, self.rebound, self.touched, self.mentioned, names)
            before = {name: each for name, each in self.contents.items() if names is None or name in names}
            found = self._difference(before, given)
            if found:
                return found
        for name, before in self.containers.items():
            thing = now.get(name, MISSING)
            items = self.rows.get(name)
            if items is not None and type(thing) is list and len(thing) == len(items) and all(map(is_, thing, items)):
                continue
            if not _agrees(trimmed(before, thing, self.touched), content(thing, touched=self.touched)):
                return changed(join(self.path, name), now.get(name), now.get(name))
        if structure(self.module) != self.structure:
            return self._difference(self.structure, structure(self.module))
        return None

    def _others(self, now: Mapping[str, Any]) -> set[str] | None:
        """The attributes that are other objects than before, as what runs set is; None where all may be."""
        if len(now) != len(self.attributes):
            return None
        pairs = zip(now.items(), self.attributes, strict=False)  # another thread may add to them
        return {name for (name, value), before in pairs if value is not before}

    def moved(self) -> Iterator[tuple[Any, Keys]]:
        """The attributes that have other tensors now, where nothing else of them is different."""
        now = self.module.__dict__
        found = (
            name
            for name, before in self.contents.items()
            if name in now and name not in self.rebound and name not in APART
            if content(now[name], touched=self.touched) != before
            if outline(now[name], self.touched) == loosened(before)
        )
        names = frozenset(found)
        if names:
            yield now, names

    def _difference(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
        everything = {**before, **now}
        names = [name for name in everything if not _agrees(before.get(name, MISSING), now.get(name, MISSING))]
        sentences = (
            changed(join(self.path, name), plain(before.get(name, MISSING)), plain(now.get(name, MISSING)))
            for name in names[:3]
        )
        return "; ".join(sentences) or None


def module_facts(
    module: nn.Module, path: str, touched: Touched = UNTOUCHED, mentioned: AbstractSet[str] = frozenset()
) -> ModuleFacts:
    """Remember what a module looks like now; of attributes that runs give new tensors, their outline alone.

    Of long ones only those that code has `mentioned` are looked into.
    """
    rebound = touched.given(module.__dict__)
    contents = attribute_contents(module, rebound, touched, mentioned)
    containers = {
        name: contents[name]
        for name in contents.keys() - rebound
        if can_change(module.__dict__[name]) and not isinstance(contents[name], Same)
    }
    return ModuleFacts(
        module,
        path,
        tuple([MISSING if name in rebound else value for name, value in module.__dict__.items()]),
        MappingProxyType(contents),
        MappingProxyType(containers),
        MappingProxyType(structure(module)),
        rebound,
        touched,
        bool(rebound or touched.given(module.__dict__["_buffers"]))
        or any(moves(module.__dict__[name], touched) for name in containers),
        mentioned,
        MappingProxyType({name: tuple(thing) for name in containers if _is_plain_list(thing := module.__dict__[name])}),
    )


def _is_plain_list(thing: Any) -> bool:
    return type(thing) is list and all(type(item) in SIMPLE for item in thing)


def attribute_contents(
    module: nn.Module,
    rebound: frozenset[str],
    touched: Touched,
    mentioned: AbstractSet[str],
    names: AbstractSet[str] | None = None,
) -> dict[str, Any]:
    """What is compared of the attributes that Python code of a module may read, or of some of them."""
    numbers = touched.numbers(module.__dict__)
    found = {
        name: _any(value)
        if name in numbers
        else outline(value, touched)
        if name in rebound
        else Same(value)
        if name not in mentioned and is_long(value)
        else content(value, touched=touched)
        for name, value in module.__dict__.items()
        if name not in APART and (names is None or name in names)
    }
    replaced = module.__dict__.get("forward") if names is None or "forward" in names else None
    if replaced is not None and not type(replaced).__module__.startswith("weft."):
        found["forward"] = Same(replaced)
    return found


def _agrees(before: Any, now: Any) -> bool:
    """Whether a thing is as before; of one of which nothing was compared but its class, another one is as good."""
    return bool(before == now) or (isinstance(before, type) and isinstance(now, tuple) and now[:1] == (before,))


def class_facts(kind: type, *, asks_classes: bool) -> list[NameFact]:
    """What a class is derived from, and where code `asks_classes` of things, what counts as derived from it."""
    places: list[tuple[Any, Any, str, Any]] = [
        (OfClass(kind), "__mro__", f"what {kind.__name__} is derived from", kind.__mro__)
    ]
    if asks_classes and isinstance(kind, ABCMeta):
        known = Registered(kind)
        places.append((known, "register", f"what is registered as {kind.__name__}", look(known, "register")))
    return [name_fact(place, of_class=True) for place in places]


def registries(module: nn.Module) -> list[dict[Any, Any]]:
    """The dictionaries in which a module keeps its submodules and its hooks."""
    found = (module.__dict__.get(name) for name in ("_modules", *HOOKS))
    return [registry for registry in found if isinstance(registry, dict)]


def structure(module: nn.Module) -> dict[str, Any]:
    """What is compared of a module's registries: who its submodules are, which tensors it has, its hooks."""
    found: dict[str, Any] = {"class": type(module), "submodules": OrderedDict(module._modules)}
    for registry in REGISTRIES:
        there = ((name, tensor is not None) for name, tensor in module.__dict__[registry].items())
        found[registry.strip("_")] = OrderedDict(there)
    for name in HOOKS:
        hooks = module.__dict__.get(name)
        if hooks:
            found[name.strip("_")] = OrderedDict(hooks)
    return found


def plain(compared: Any) -> Any:
    """What `content` was made of, as far as it matters to a sentence."""
    if isinstance(compared, Same):
        return compared.thing
    if isinstance(compared, tuple) and compared[1:] == ("any",):
        return LetGo("any number")
    if isinstance(compared, tuple) and compared[0] is float:
        return float.fromhex(compared[1])
    if isinstance(compared, tuple) and compared[0] is complex:
        return complex(*(float.fromhex(part) for part in compared[1:]))
    return compared[1] if isinstance(compared, tuple) else compared


def changed(path: str, before: Any, now: Any) -> str:
    """A sentence on a thing that is different."""
    was, found = brief(before), brief(now)
    if was != found:
        return f"{path} was {was}, is {found}"
    return f"{path} holds other things" if container_kind(now) else f"{path} is another {found.strip('<>')}"


def brief(value: Any) -> str:
    """A thing as it is named in a sentence."""
    if value is MISSING:
        return "missing"
    if type(value) is LetGo:
        return value.text
    text = repr(value) if type(value) in SIMPLE else f"<{type(value).__name__}>"
    return text if len(text) <= 40 else text[:37] + "..."


def join(path: str, name: str) -> str:
    """The path of an attribute."""
    return f"{path}.{name}" if path else name


SDP_KERNELS = ("flash_sdp_enabled", "mem_efficient_sdp_enabled", "math_sdp_enabled", "cudnn_sdp_enabled")


def _autocast_dtypes() -> Any:
    """What a block of autocast that names no dtype computes in."""
    return torch.get_autocast_dtype("cpu"), torch.get_autocast_dtype("cuda")


def _backends() -> Any:
    from_table = (torch.backends.mkldnn, torch.backends.cudnn, torch.backends.opt_einsum)
    names = ("enabled", "deterministic", "benchmark", "allow_tf32", "strategy")
    return tuple((name, getattr(module, name, None)) for module in from_table for name in names)


def _decimals() -> Any:
    module: Any = sys.modules.get("decimal")
    return None if module is None else repr(module.getcontext())


# By the name that code mentions: what tells the setting.
SETTINGS: Mapping[str, Callable[[], Any]] = MappingProxyType(
    {
        **dict.fromkeys(("autocast", "get_autocast_dtype", "get_autocast_cpu_dtype"), _autocast_dtypes),
        **{name: getattr(torch.backends.cuda, name) for name in SDP_KERNELS},
        "argv": lambda: tuple(sys.argv),
        "fill_uninitialized_memory": lambda: getattr(torch.utils.deterministic, "fill_uninitialized_memory"),  # noqa: B009
        "getrecursionlimit": sys.getrecursionlimit,
        "geterr": np.geterr,
        "are_deterministic_algorithms_enabled": torch.are_deterministic_algorithms_enabled,
        "is_deterministic_algorithms_warn_only_enabled": torch.is_deterministic_algorithms_warn_only_enabled,
        "get_deterministic_debug_mode": torch.get_deterministic_debug_mode,
        "get_float32_matmul_precision": torch.get_float32_matmul_precision,
        "get_num_interop_threads": torch.get_num_interop_threads,
        "get_num_threads": torch.get_num_threads,
        "Decimal": _decimals,
        "getcontext": _decimals,
        "is_anomaly_enabled": torch.is_anomaly_enabled,
        "is_warn_always_enabled": torch.is_warn_always_enabled,
        "backends": _backends,
    }
)
# What code that mentions them has to be traced in: inference mode, which stand-ins are better without.
OF_INFERENCE = frozenset({"inference_mode", "is_inference_mode_enabled"})


@dataclass(frozen=True, slots=True, eq=False)
class SettingFact:
    """What a setting was."""

    name: str
    value: Any
    moves: bool = False

    def change(self) -> str | None:
        """A sentence on what is different now, or nothing."""
        now = SETTINGS[self.name]()
        return None if now == self.value else f"{self.name} gave {self.value!r}, gives {now!r}"

    def moved(self) -> Iterator[tuple[Any, Keys]]:
        """Places with other tensors: a setting has none."""
        return iter(())


def setting_facts(mentioned: set[str]) -> list[SettingFact]:
    """What the settings are now that code mentions."""
    return [SettingFact(name, tell()) for name, tell in SETTINGS.items() if name in mentioned]


def left_settings() -> tuple[Any, ...]:
    """The settings that a function may leave changed, and that a program would not change again."""
    return (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def put_back(settings: tuple[Any, ...]) -> None:
    """Undo what a trace left."""
    grad, dtype, deterministic, warns = settings
    torch.set_grad_enabled(grad)
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(deterministic, warn_only=warns)
