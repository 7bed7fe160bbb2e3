"""Rewrite a Graph whose sizes vary as one of the largest sizes, in which nothing beyond a size reaches what is within.

Every tensor is as large as its sizes can be, and holds garbage beyond what they are in a call. Most ops let garbage
stay where it is: row i of a sum of matrices is made of rows i. Where an op mixes positions of a dimension that varies
(a reduction, the inner dimension of a matmul, the border of a convolution), what is beyond becomes what changes
nothing: zeros for a sum, -inf for a maximum. XLA's dynamic padder does so to tensors of bounded sizes.

Which positions are within is known dimension by dimension: as `Factor`s, since a reshape may merge dimensions of which
several vary. Rows 0..T of each of B matrices are no prefix once they are rows of one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch

from weft.ir.at_sizes import has_extents
from weft.ir.extents import Extent, Polynomial, today
from weft.ir.graph import LiftedGraph, Value
from weft.ir.types import TensorType, TupleType, Type
from weft.passes.bounding import NOTHING_GIVEN, BoundedGraph, Bounder, Rule, extreme
from weft.passes.growing import grow, grown_type
from weft.passes.places import ADDED, gather, scatter, take
from weft.passes.reshaping import reshape
from weft.passes.true_sizes import TrueSizes
from weft.passes.within import (
    Dimension,
    Factor,
    Found,
    UnboundedError,
    Within,
    expression_of,
    fixed,
    joined,
    merged,
    prefix,
    varies,
    whole,
)


def elementwise(bounder: Bounder, value: Value) -> Found:
    """Garbage stays where it is."""
    if value.op == "cast" and value.operands[0] in bounder.moved_inputs:
        bounder.moved_inputs.add(value)
    return bounder.again(value), merged(*(bounder.within[operand] for operand in value.operands))


def _expand(bounder: Bounder, value: Value) -> Found:
    """What is repeated is the same everywhere, also beyond."""
    (operand,) = value.operands
    assert isinstance(value.type, TensorType)
    before = bounder.within[operand]
    new = value.type.rank - len(before)
    found = [*map(whole, value.type.shape[:new]), *before]
    for place, size in enumerate(value.type.shape):
        if not found[place]:
            found[place] = whole(today(size))
    return bounder.again(value), tuple(found)


def _permute(bounder: Bounder, value: Value) -> Found:
    (operand,) = value.operands
    if operand in bounder.moved_inputs:
        bounder.moved_inputs.add(value)
    within = bounder.within[operand]
    return bounder.again(value), tuple(within[place] for place in value.attributes["order"])


def _iota(bounder: Bounder, value: Value) -> Found:
    assert isinstance(value.type, TensorType)
    along = value.attributes["dimension"]
    shape = value.type.shape
    return bounder.again(value), tuple(
        prefix(size) if place == along else whole(today(size)) for place, size in enumerate(shape)
    )


LOWEST: Mapping[str, float] = MappingProxyType(
    {"max": -math.inf, "argmax": -math.inf, "min": math.inf, "argmin": math.inf}
)
NEUTRAL: Mapping[str, float] = MappingProxyType({"sum": -0.0, "prod": 1, "any": 0, "all": 1})


def _neutral(value: Value, operand: Value) -> float:
    assert isinstance(operand.type, TensorType)
    if value.op in NEUTRAL:
        number = NEUTRAL[value.op]
        return number if operand.type.dtype.is_floating_point else int(number)
    return extreme(LOWEST[value.op], operand.type.dtype)


def _reduction(bounder: Bounder, value: Value) -> Found:
    (operand,) = value.operands
    dimensions = value.attributes["dimensions"]
    new = _reduction_of_parts(bounder, value, operand)
    if new is None:
        new = bounder.again(value, bounder.masked(operand, dimensions, _neutral(value, operand)))
    return new, _reduced(bounder.within[operand], dimensions, keep=value.attributes["keep"])


def _reduction_of_parts(bounder: Bounder, value: Value, operand: Value) -> Value | None:
    """A reduction with each part of a dimension as one of its own: of 32 texts of 7 of 16 words that of words ends."""
    new, rows = bounder.now[operand], [bounder.mixed(operand, place) for place in value.attributes["dimensions"]]
    is_alone = sum(max(len(row), 1) for row in rows) == 1
    if is_alone or not any(map(varies, rows)) or operand in bounder.zero_beyond:
        return None
    assert isinstance(new.type, TensorType)
    shape: list[int] = []
    masks: dict[int, Dimension] = {}
    goes: list[int] = []
    for place, size in enumerate(new.type.shape):
        parts = bounder.mixed(operand, place) if place in value.attributes["dimensions"] else ()
        for part in parts if len(parts) > 1 else (Factor(size),):
            if place in value.attributes["dimensions"]:
                goes.append(len(shape))
                masks[len(shape)] = (part,) if len(parts) > 1 else parts
            shape.append(part.largest)
    filled = bounder.filled(bounder.build("reshape", new, shape=tuple(shape)), masks, _neutral(value, operand))
    # What varies is the outermost that is reduced: the innermost may be cut into chunks, each of which is a number.
    order = sorted(goes, key=lambda place: not varies(masks[place]))
    places = iter(order)
    turned = tuple(next(places) if place in goes else place for place in range(len(shape)))
    if turned != tuple(range(len(shape))):
        filled = bounder.build("permute", filled, order=turned)
    given = {**value.attributes, "dimensions": tuple(goes), "keep": False}
    found = bounder.build(value.op, filled, **given)
    kind = fixed(value.type)
    return found if found.type == kind else bounder.build("reshape", found, shape=kind.shape)


def _reduced(within: Within, dimensions: Sequence[int], *, keep: bool) -> Within:
    rows = ((place in dimensions, dimension) for place, dimension in enumerate(within))
    return tuple(() if goes else dimension for goes, dimension in rows if keep or not goes)


def _position(bounder: Bounder, value: Value) -> Found:
    (operand,) = value.operands
    along = value.attributes["dimension"]
    if along is None:
        raise UnboundedError("a place among all elements is counted through dimensions that vary")
    new = bounder.again(value, bounder.masked(operand, (along,), _neutral(value, operand)))
    if len(joined(bounder.mixed(operand, along))) > 1:
        raise UnboundedError("a place is counted along dimensions that vary and were merged")
    return new, _reduced(bounder.within[operand], (along,), keep=value.attributes["keep"])


def _top_places(bounder: Bounder, value: Value) -> Found:
    (operand,) = value.operands
    assert isinstance(operand.type, TensorType)
    last = operand.type.rank - 1
    if isinstance(value.attributes["count"], Extent):
        raise UnboundedError("as many places are taken as a size that varies says")
    if varies(joined(bounder.mixed(operand, last))):
        # What fills up a row is no larger than what is lowest there, but may be taken in its place: a mask of -inf.
        raise UnboundedError("the first are taken of as many as a size that varies says")
    return bounder.again(value, bounder.now[operand]), (
        *bounder.within[operand][:last],
        whole(value.attributes["count"]),
    )


def _matmul(bounder: Bounder, value: Value) -> Found:
    left, right = value.operands
    assert isinstance(left.type, TensorType)
    assert isinstance(right.type, TensorType)
    rank = left.type.rank
    first, second = bounder.within[left], bounder.within[right]
    inner = (joined(bounder.mixed(left, rank - 1)), joined(bounder.mixed(right, rank - 2)))
    if all(map(varies, inner)) and inner[0] != inner[1]:
        raise UnboundedError("a matmul puts dimensions together that vary in different ways")
    order = _prefix_order(bounder.mixed(left, rank - 1), bounder.mixed(right, rank - 2))
    if order is None:
        masked = bounder.masked(left, (rank - 1,), 0.0), bounder.masked(right, (rank - 2,), 0.0)
    else:
        masked = _reordered(bounder, left, rank - 1, order), _reordered(bounder, right, rank - 2, order)
    return bounder.again(value, *masked), (*merged(first[:-2], second[:-2]), first[-2], second[-1])


def _prefix_order(one: Dimension, other: Dimension) -> tuple[int, ...] | None:
    """The order of the parts of a sum in which what counts comes first; None where it does, or cannot.

    Of 7 of 16 words in each of 32 texts nothing is a prefix; of all texts at each of 7 places the first part is all.
    """
    if [part.largest for part in one] != [part.largest for part in other] or len(joined(one)) == 1:
        return None
    varying = [place for place, part in enumerate(one) if part.size is not None]
    if len(varying) != 1 or not varies(other):
        return None
    return (varying[0], *(place for place in range(len(one)) if place != varying[0]))


def _reordered(bounder: Bounder, operand: Value, place: int, order: Sequence[int]) -> Value:
    """An operand with the parts of a dimension in another order, and 0 in the place of what is beyond in it."""
    dimension, new = bounder.mixed(operand, place), bounder.now[operand]
    assert isinstance(new.type, TensorType)
    shape, count = new.type.shape, len(dimension)
    parts = bounder.build(
        "reshape", new, shape=(*shape[:place], *(part.largest for part in dimension), *shape[place + 1 :])
    )
    behind = range(place + count, len(shape) + count - 1)
    parts = bounder.build("permute", parts, order=(*range(place), *(place + part for part in order), *behind))
    parts = bounder.filled(parts, {place: (dimension[order[0]],)}, 0.0)
    return bounder.build("reshape", parts, shape=shape)


def _places_along(bounder: Bounder, value: Value, places: Value, along: int) -> Value:
    """A value's slices at places of one dimension."""
    return bounder.build("take", value, places, dimension=along)


def _clamped(bounder: Bounder, places: Value, size: int) -> Value:
    """Places that are surely there: what is beyond may be read anywhere."""
    assert isinstance(places.type, TensorType)
    shape = places.type.shape
    low = bounder.build("maximum", places, bounder.constant(0, torch.int64, shape))
    return bounder.build("minimum", low, bounder.constant(size - 1, torch.int64, shape))


def _slice(bounder: Bounder, value: Value) -> Found:
    (operand,) = value.operands
    assert isinstance(operand.type, TensorType)
    assert isinstance(value.type, TensorType)
    starts, stops, steps = (value.attributes[name] for name in ("start", "stop", "step"))
    found, late = [], []
    for place, (size, new) in enumerate(zip(operand.type.shape, value.type.shape, strict=True)):
        row = (starts[place], stops[place], steps[place])
        if (today(row[0]), today(row[1]), row[2]) == (0, today(size), 1) and not isinstance(row[0], Extent):
            if expression_of(size) != expression_of(new):
                bounder.single(operand, place)
            same = expression_of(size) == expression_of(new)
            found.append(bounder.within[operand][place] if same else prefix(new))
            continue
        bounder.single(operand, place)
        if isinstance(row[0], Extent):
            late.append(place)
        uniform = not varies(bounder.within[operand][place]) and isinstance(size, Extent)
        found.append(whole(today(new)) if uniform else prefix(new))
    if not late:
        return bounder.again(value), tuple(found)
    of_early = replace(
        value,
        attributes=MappingProxyType(
            {
                "start": tuple(0 if place in late else start for place, start in enumerate(starts)),
                "stop": tuple(
                    today(operand.type.shape[place]) if place in late else stop for place, stop in enumerate(stops)
                ),
                "step": tuple(1 if place in late else step for place, step in enumerate(steps)),
            }
        ),
    )
    kept = [bounder.now[operand]]
    rest = {name: fixed(entry) for name, entry in of_early.attributes.items()}
    kept.append(bounder.build("slice", kept[0], **rest))
    for place in late:
        count, shape = today(value.type.shape[place]), (today(value.type.shape[place]),)
        at = bounder.build("mul", bounder.positions(count), bounder.constant(steps[place], torch.int64, shape))
        at = bounder.build("add", at, bounder.scalar(starts[place].expression, torch.int64, shape))
        at = _clamped(bounder, at, today(operand.type.shape[place]))
        kept.append(_places_along(bounder, kept[-1], at, place))
    return bounder.as_declared(kept[-1], value), tuple(found)


def _pad(bounder: Bounder, value: Value) -> Found:
    (operand,) = value.operands
    assert isinstance(operand.type, TensorType)
    assert isinstance(value.type, TensorType)
    low, high = value.attributes["low"], value.attributes["high"]
    found, filled = [], []
    for place, (size, new) in enumerate(zip(operand.type.shape, value.type.shape, strict=True)):
        if (low[place], high[place]) == (0, 0) and not any(isinstance(one[place], Extent) for one in (low, high)):
            found.append(bounder.within[operand][place])
            continue
        if isinstance(low[place], Extent):
            raise UnboundedError("as much is padded in front as a size that varies says")
        behind = bounder.single(operand, place).plus(Polynomial.constant(low[place]))
        if isinstance(size, Extent) and (isinstance(high[place], Extent) or high[place] > 0):
            filled.append((place, behind))
        found.append(prefix(new))
    result = bounder.again(value)
    assert isinstance(result.type, TensorType)
    shape = result.type.shape
    for place, behind in filled:
        at = bounder.build("iota", shape=shape, dimension=place, dtype=torch.int32)
        inside = bounder.build("lt", at, bounder.scalar(behind, torch.int32, shape))
        filling = bounder.constant(value.attributes["value"], result.type.dtype, shape)
        result = bounder.build("select", inside, result, filling)
    return bounder.as_declared(result, value), tuple(found)


def _concat(bounder: Bounder, value: Value) -> Found:
    along = value.attributes["dimension"]
    assert isinstance(value.type, TensorType)
    if len(value.operands) == 1:
        return bounder.again(value), bounder.within[value.operands[0]]
    rows = [bounder.within[operand] for operand in value.operands]
    others = [tuple(dimension for place, dimension in enumerate(row) if place != along) for row in rows]
    rest = list(merged(*others))
    sizes = [bounder.single(operand, along) for operand in value.operands]
    within = (*rest[:along], prefix(value.type.shape[along]), *rest[along:])
    if all(size.number is not None for size in sizes[:-1]):
        return bounder.again(value), within
    found, begun = bounder.now[value.operands[0]], sizes[0]
    found = bounder.stretched(found, along, today(value.type.shape[along]))
    assert isinstance(found.type, TensorType)
    shape = found.type.shape
    places = bounder.build("iota", shape=shape, dimension=along, dtype=torch.int32)
    for operand, size in zip(value.operands[1:], sizes[1:], strict=True):
        behind = bounder.build("ge", places, bounder.scalar(begun, torch.int32, shape))
        part = _from_place(bounder, bounder.now[operand], along, begun, shape)
        found, begun = bounder.build("select", behind, part, found), begun.plus(size)
    return bounder.as_declared(found, value), within


def _from_place(bounder: Bounder, value: Value, along: int, begun: Polynomial, shape: tuple[int, ...]) -> Value:
    """A value that begins at a place along one dimension of a larger one; elsewhere is anything of it."""
    assert isinstance(value.type, TensorType)
    if value.type.shape[along] == 1:
        return bounder.spread(value, shape)
    row = (shape[along],)
    at = bounder.build("sub", bounder.positions(shape[along]), bounder.scalar(begun, torch.int64, row))
    return _places_along(bounder, value, _clamped(bounder, at, value.type.shape[along]), along)


def _reverse(bounder: Bounder, value: Value) -> Found:
    (operand,) = value.operands
    assert isinstance(operand.type, TensorType)
    within = bounder.within[operand]
    turned = [place for place in value.attributes["dimensions"] if varies(bounder.mixed(operand, place))]
    still = tuple(place for place in value.attributes["dimensions"] if place not in turned)
    new = bounder.build("reverse", bounder.now[operand], dimensions=still) if still else bounder.now[operand]
    for place in turned:
        count = today(operand.type.shape[place])
        last = bounder.single(operand, place).plus(Polynomial.constant(-1))
        at = bounder.build("sub", bounder.scalar(last, torch.int64, (count,)), bounder.positions(count))
        new = _places_along(bounder, new, _clamped(bounder, at, count), place)
    return bounder.as_declared(new, value), within


def _spatial(kind: Type) -> range:
    assert isinstance(kind, TensorType)
    return range(2, kind.rank)


def _imaged(value: Value, images: Dimension) -> Within:
    """What is within of images: as many as went in, of sizes that the type says."""
    kind = value.type.items[0] if isinstance(value.type, TupleType) else value.type
    assert isinstance(kind, TensorType)
    return (images, *map(prefix, kind.shape[1:]))


def _only_images_vary(bounder: Bounder, *operands: Value) -> None:
    for operand in operands:
        assert isinstance(operand.type, TensorType)
        if varies(bounder.mixed(operand, 1)):
            raise UnboundedError("the number of channels varies")


WINDOWS = ("kernel_size", "stride", "padding", "dilation")


def _refuse_varying_windows(bounder: Bounder, value: Value, weight: Value | None = None) -> None:
    """Leave windows alone whose own sizes vary: at the largest ones they would reach over more than there is."""
    if any(has_extents(value.attributes.get(name, ())) for name in WINDOWS):
        raise UnboundedError(f"windows of a {value.op} vary in size")
    if weight is not None and any(varies(bounder.mixed(weight, place)) for place in range(len(bounder.within[weight]))):
        raise UnboundedError(f"the size of the weight of a {value.op} varies")


def _convolution(bounder: Bounder, value: Value) -> Found:
    image, weight = value.operands
    _only_images_vary(bounder, image)
    _refuse_varying_windows(bounder, value, weight)
    new = bounder.again(value, bounder.masked(image, _leaving(value, image), 0.0), bounder.now[weight])
    return new, _imaged(value, bounder.within[image][0])


def _leaving(value: Value, image: Value) -> list[int]:
    """The dimensions along which windows see what is outside, or leave out places: kernels end there, then."""
    given = value.attributes
    padding, steps = given["padding"], given.get("stride") or given["kernel_size"]
    sides = [
        (place, min(place - 2, len(padding) - 1), min(place - 2, len(steps) - 1)) for place in _spatial(image.type)
    ]
    return [place for place, before, apart in sides if padding[before] or steps[apart] != 1]


def _input_gradient(bounder: Bounder, value: Value) -> Found:
    gradient, weight = value.operands
    _only_images_vary(bounder, gradient)
    _refuse_varying_windows(bounder, value, weight)
    new = bounder.again(value, bounder.masked(gradient, _spatial(gradient.type), 0.0), bounder.now[weight])
    return new, _imaged(value, bounder.within[gradient][0])


def _weight_gradient(bounder: Bounder, value: Value) -> Found:
    _only_images_vary(bounder, *value.operands)
    _refuse_varying_windows(bounder, value)
    if has_extents(value.type):
        raise UnboundedError("the size of a convolution's weight varies")
    masked = [bounder.masked(operand, (0, *_spatial(operand.type)), 0.0) for operand in value.operands]
    assert isinstance(value.type, TensorType)
    return bounder.again(value, *masked), tuple(map(whole, value.type.shape))


def _refuse_partial_windows(bounder: Bounder, value: Value, image: Value) -> None:
    _refuse_varying_windows(bounder, value)
    if value.attributes.get("ceil_mode") and has_extents(image.type):
        raise UnboundedError("windows of a pooling reach over a border that varies")


def _max_pool(bounder: Bounder, value: Value) -> Found:
    (image,) = value.operands
    assert isinstance(image.type, TensorType)
    _only_images_vary(bounder, image)
    _refuse_partial_windows(bounder, value, image)
    if has_extents(image.type.shape[2:]):
        _note_places(bounder, value)
    lowest = extreme(-math.inf, image.type.dtype)
    within = _imaged(value, bounder.within[image][0])
    return bounder.again(value, bounder.masked(image, _leaving(value, image), lowest)), (within, within)


def _note_places(bounder: Bounder, value: Value) -> None:
    """Places are numbered in the largest image: its gradient alone may read them."""
    places = {item for item in bounder.graph.values if item.operands == (value,) and item.attributes["index"] == 1}
    readers = (reader for reader in bounder.graph.values if places.intersection(reader.operands))
    if not places.isdisjoint(bounder.graph.roots()) or any(reader.op != "max_pool_gradient" for reader in readers):
        raise UnboundedError("places in images whose sizes vary are given back, or read")
    bounder.in_largest |= places


def _max_pool_gradient(bounder: Bounder, value: Value) -> Found:
    gradient, image, places = value.operands
    assert isinstance(image.type, TensorType)
    _refuse_varying_windows(bounder, value)
    if has_extents(image.type.shape[2:]) and places not in bounder.in_largest:
        raise UnboundedError("places are numbered in an image of its true size")
    masked = bounder.masked(gradient, _spatial(gradient.type), 0.0)
    index = bounder.masked(places, range(4), 0)
    return bounder.again(value, masked, bounder.now[image], index), bounder.within[image]


def _average_pool(bounder: Bounder, value: Value) -> Found:
    image = value.operands[-1]
    first = value.operands[0]
    given = value.attributes
    _only_images_vary(bounder, image)
    _refuse_partial_windows(bounder, value, image)
    if has_extents(image.type) and any(given["padding"]) and not given["count_include_pad"]:
        raise UnboundedError("windows of an average are counted at a border that varies")
    is_gradient = first is not image
    masked = bounder.masked(first, _spatial(first.type) if is_gradient else _leaving(value, image), 0.0)
    others = [bounder.now[operand] for operand in value.operands[1:]]
    return bounder.again(value, masked, *others), _imaged(value, bounder.within[image][0])


def _item(bounder: Bounder, value: Value) -> Found:
    return bounder.again(value), bounder.within[value.operands[0]][value.attributes["index"]]


def _keys_within(bounder: Bounder, key: Value, shape: Sequence[int]) -> Value:
    """For each score whether its key is within."""
    assert isinstance(key.type, TensorType)
    place = key.type.rank - 2
    row = bounder.row_mask(bounder.mixed(key, place), today(key.type.shape[place]))
    return bounder.spread(bounder.build("reshape", row, shape=(*[1] * (len(shape) - 1), shape[-1])), shape)


def _check_attended(bounder: Bounder, query: Value, key: Value, values: Value) -> tuple[Within, bool]:
    """The leading dimensions, and whether the number of keys varies."""
    rank = len(bounder.within[query])
    keys = [joined(bounder.mixed(operand, rank - 2)) for operand in (key, values)]
    if keys[0] != keys[1] or any(varies(bounder.mixed(operand, rank - 1)) for operand in (query, key, values)):
        raise UnboundedError("an attention puts dimensions together that vary in different ways")
    return merged(*(bounder.within[operand][:-2] for operand in (query, key, values))), varies(keys[0])


def _attention(bounder: Bounder, value: Value) -> Found:
    """Keys beyond are hidden."""
    query, key, values, *masks = value.operands
    leading, keys_vary = _check_attended(bounder, query, key, values)
    rank, rows = len(leading) + 2, bounder.within[query][-2]
    within = ((*leading, rows, bounder.within[values][-1]), (*leading, rows))
    given = [bounder.now[mask] for mask in masks]
    if not keys_vary:
        return bounder.again(value, *(bounder.now[operand] for operand in (query, key, values)), *given), within
    new = [bounder.now[query], bounder.masked(key, (rank - 2,), 0.0), bounder.masked(values, (rank - 2,), 0.0)]
    shape = (*fixed(query.type).shape[:-1], fixed(key.type).shape[-2])
    seen = _keys_within(bounder, key, shape)
    if value.attributes["hidden"] == -math.inf:
        return bounder.again(value, *new, *given, seen), within
    dtype = fixed(query.type).dtype
    numbers = (bounder.constant(number, dtype, shape) for number in (0.0, -math.inf))
    given = [bounder.masked(mask, (rank - 1,), 0) for mask in masks]
    return bounder.again(value, *new, *given, bounder.build("select", seen, *numbers)), within


def _attention_gradient(bounder: Bounder, value: Value) -> Found:
    """Queries beyond have a share in nothing, and nobody has one in keys beyond."""
    gradient, query, key, values, logarithm, weight, *masks = value.operands
    leading, keys_vary = _check_attended(bounder, query, key, values)
    rank = len(leading) + 2
    rows = (rank - 2,)
    given = [bounder.masked(mask, (rank - 2, rank - 1), 0.0) for mask in masks]
    if keys_vary:
        shape = (*fixed(query.type).shape[:-1], fixed(key.type).shape[-2])
        numbers = (bounder.constant(number, fixed(query.type).dtype, shape) for number in (0.0, -math.inf))
        given.append(bounder.build("select", _keys_within(bounder, key, shape), *numbers))
    new = bounder.again(
        value,
        *(bounder.masked(operand, rows, 0.0) for operand in (gradient, query, key, values)),
        bounder.masked(logarithm, rows, math.inf),
        bounder.masked(weight, rows, 0.0),
        *given,
    )
    return new, tuple((*leading, *bounder.within[operand][-2:]) for operand in (query, key, values))


def _recurrent(bounder: Bounder, value: Value) -> Found:
    """Rows of the batch go their own ways; steps beyond are none, as a number says."""
    given, _, first, *_ = value.operands
    steps, rows = bounder.single(given, 0), joined(bounder.mixed(given, 1))
    if rows != joined(bounder.mixed(first, 0)):
        raise UnboundedError("a recurrent layer has inputs and states whose rows vary in different ways")
    state = bounder.within[first]
    within = ((*bounder.within[given][:2], state[1]), (bounder.within[given][1], state[1]))
    operands = tuple(bounder.now[operand] for operand in value.operands)
    if steps.number is not None:
        return bounder.again(value, *operands), within
    return bounder.again(value, *operands, bounder.size(steps, torch.int32)), within


NOTHING_GROWS: Mapping[Value, Value] = MappingProxyType({})
RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "elementwise": elementwise,
        "expand": _expand,
        "permute": _permute,
        "reshape": reshape,
        "iota": _iota,
        **dict.fromkeys(("sum", "prod", "min", "max", "any", "all"), _reduction),
        **dict.fromkeys(("argmax", "argmin"), _position),
        "top_places": _top_places,
        "matmul": _matmul,
        "attention": _attention,
        "attention_gradient": _attention_gradient,
        "recurrent": _recurrent,
        "slice": _slice,
        "pad": _pad,
        "concat": _concat,
        "reverse": _reverse,
        "take": take,
        "gather": gather,
        **dict.fromkeys(("scatter", *ADDED), scatter),
        "convolution": _convolution,
        "convolution_input_gradient": _input_gradient,
        "convolution_weight_gradient": _weight_gradient,
        "max_pool": _max_pool,
        "max_pool_gradient": _max_pool_gradient,
        "average_pool": _average_pool,
        "average_pool_gradient": _average_pool,
        "item": _item,
    }
)


def bounded(
    lifted: LiftedGraph,
    given: Mapping[Value, Within] = NOTHING_GIVEN,
    growing: Mapping[Value, Value] = NOTHING_GROWS,
) -> BoundedGraph:
    """Rewrite a Graph of small ops; a call for which they have no rule runs by PyTorch's operator at its true sizes.

    `given` are inputs of which other elements than a prefix of each dimension are within, `growing` those that grow in
    place, with the concatenation that each becomes.
    """
    bounder = Bounder(lifted, RULES, TrueSizes, given)
    bounder.larger = {value: grown_type(concat) for value, concat in growing.items()}
    bounder.own_rules = dict.fromkeys(growing.values(), grow)
    return bounder.run()
