"""Bound what takes from or writes to places of a dimension: what lies beyond is read anywhere, and changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from weft.ir.extents import Polynomial, today
from weft.ir.graph import Value
from weft.ir.types import TensorType
from weft.passes.bounding import Bounder, extreme
from weft.passes.within import Dimension, Found, UnboundedError, expression_of, fixed, joined, varies


def take(bounder: Bounder, value: Value) -> Found:
    """Slices at places of a list."""
    source, index = value.operands
    along = value.attributes["dimension"]
    within = bounder.within[source]
    (places,) = bounder.within[index]
    new = bounder.again(value, bounder.now[source], _places_in(bounder, source, along, index))
    return new, (*within[:along], places, *within[along + 1 :])


def gather(bounder: Bounder, value: Value) -> Found:
    """One element for each place."""
    source, index = value.operands
    along = value.attributes["dimension"]
    for place, pair in enumerate(zip(bounder.within[source], bounder.within[index], strict=True)):
        if place != along:
            _check_prefixes(*pair)
    return bounder.again(value, bounder.now[source], _places_in(bounder, source, along, index)), bounder.within[index]


def _places_in(bounder: Bounder, source: Value, along: int, index: Value) -> Value:
    """Places to read at along a dimension; one that there is not in a call is in no range."""
    size = bounder.single(source, along)
    if size.number is not None or _counts_up_to(index, size):
        return _before_repeated(bounder, index, bounder.safe_places)
    return _before_repeated(bounder, index, lambda one: bounder.guarded(bounder.safe_places(one), one, size))


def _before_repeated(bounder: Bounder, index: Value, prepared: Callable[[Value], Value]) -> Value:
    """Places prepared before they are repeated along dimensions that do not vary, not each of them again.

    And before they are put in a row: there, what is beyond is told from the rest by its dimensions.
    """
    now = bounder.now[index]
    if index.op == now.op == "reshape" and now.operands[0] is bounder.now[index.operands[0]]:
        assert isinstance(now.type, TensorType)
        return bounder.build("reshape", _before_repeated(bounder, index.operands[0], prepared), shape=now.type.shape)
    if index.op == "expand" and _repeats_whole_dimensions(bounder, index):
        assert isinstance(index.type, TensorType)
        new = _before_repeated(bounder, index.operands[0], prepared)
        return bounder.spread(new, fixed(index.type.shape))
    return prepared(index)


def _repeats_whole_dimensions(bounder: Bounder, value: Value) -> bool:
    kind, before = value.type, value.operands[0].type
    assert isinstance(kind, TensorType)
    assert isinstance(before, TensorType)
    return kind.rank == before.rank and all(
        expression_of(size) == expression_of(old) or not varies(bounder.mixed(value, place))
        for place, (size, old) in enumerate(zip(kind.shape, before.shape, strict=True))
    )


SAME_PLACES = frozenset({"reshape", "permute", "expand", "slice", "reverse", "cast"})


def _counts_up_to(index: Value, size: Polynomial) -> bool:
    """Whether an index is made of the positions of a dimension of this size."""
    while index.op in SAME_PLACES:
        index = index.operands[0]
    kind, along = index.type, index.attributes.get("dimension")
    if index.op in ("argmax", "argmin", "top_places"):
        kind, along = index.operands[0].type, -1 if index.op == "top_places" else along
    elif index.op != "iota":
        return False
    return isinstance(kind, TensorType) and along is not None and expression_of(kind.shape[along]) == size


def _check_prefixes(source: Dimension, index: Dimension) -> None:
    """Places are as many as there are slices, or fewer: fine where both are prefixes, or vary alike."""
    if max(len(joined(source)), len(joined(index))) > 1 and joined(source) != joined(index):
        raise UnboundedError("dimensions of places and of what is there vary in different ways")


ADDED: Mapping[str, float] = MappingProxyType(
    {"scatter_add": -0.0, "scatter_mul": 1, "scatter_min": math.inf, "scatter_max": -math.inf}
)


def scatter(bounder: Bounder, value: Value) -> Found:
    """What is beyond of the source changes nothing: it is added as nothing to the first place, or put behind the last.

    For what is put behind there is one place more.
    """
    base, index, source = value.operands
    assert isinstance(index.type, TensorType)
    assert isinstance(source.type, TensorType)
    assert isinstance(base.type, TensorType)
    along = value.attributes["dimension"]
    size = bounder.single(base, along)
    every = range(index.type.rank)
    some_vary = any(varies(bounder.mixed(index, place)) for place in every)
    for place in every:
        if place != along:
            _check_prefixes(bounder.within[base][place], bounder.within[index][place])
    # What was the same everywhere no longer is: a row of x * y elements of it is no table of x rows.
    within = tuple(bounder.mixed(base, place) for place in every)
    if some_vary:
        for pair in zip(bounder.within[source], bounder.within[index], strict=True):
            _check_prefixes(*pair)
    spare = today(base.type.shape[along])
    is_put_behind = some_vary and value.op not in ADDED
    is_checked = (size.number is None or is_put_behind) and not _counts_up_to(index, size)

    def prepared(one: Value) -> Value:
        assert isinstance(one.type, TensorType)
        safe = bounder.masked(one, range(one.type.rank), spare) if is_put_behind else bounder.safe_places(one)
        return bounder.guarded(safe, one, size) if is_checked else safe

    places = _before_repeated(bounder, index, prepared)
    if not some_vary:
        return bounder.again(value, bounder.now[base], places, bounder.now[source]), within
    if not is_put_behind:
        dtype = source.type.dtype
        filling = extreme(ADDED[value.op], dtype)
        # There may be more of the source than there are places; places beyond are 0: what goes there changes nothing.
        kept = bounder.masked(source, every, filling if dtype.is_floating_point else int(filling), like=index)
        return bounder.again(value, bounder.now[base], places, kept), within
    shape = tuple(map(today, base.type.shape))
    larger = bounder.stretched(bounder.now[base], along, spare + 1)
    found = bounder.build("scatter", larger, places, bounder.now[source], dimension=along)
    none, steps = (0,) * len(shape), (1,) * len(shape)
    return bounder.as_declared(bounder.build("slice", found, start=none, stop=shape, step=steps), value), within
