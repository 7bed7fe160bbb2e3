"""Views that are found without PyTorch's rules are those that PyTorch gives: in type, place and memory."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import weft
from weft.ir.types import type_of
from weft.trace.interception.capture import Interception, storage_key
from weft.trace.results.result_rules import IN_PLACE, RESULT_RULES, row_by_rule, stays_in_place

OPERATORS = {
    "aten.view.default": torch.ops.aten.view.default,
    "aten._unsafe_view.default": torch.ops.aten._unsafe_view.default,
    "aten.expand.default": torch.ops.aten.expand.default,
    "aten.detach.default": torch.ops.aten.detach.default,
    "aten.t.default": torch.ops.aten.t.default,
    "aten.transpose.int": torch.ops.aten.transpose.int,
    "aten.permute.default": torch.ops.aten.permute.default,
    "aten.select.int": torch.ops.aten.select.int,
    "aten.unsqueeze.default": torch.ops.aten.unsqueeze.default,
    "aten.squeeze.dim": torch.ops.aten.squeeze.dim,
}
SAMPLES = 400


def tensors(draw: random.Random) -> torch.Tensor:
    """A tensor of few sizes, which may be 0 or 1, laid out in one of several ways."""
    sizes = [draw.choice((0, 1, 1, 2, 3, 4, 6)) for _ in range(draw.randint(0, 4))]
    found = torch.arange(float(torch.Size(sizes).numel())).reshape(sizes)
    if sizes and draw.random() < 0.4:
        found = found.permute(draw.sample(range(len(sizes)), len(sizes)))
    if sizes and draw.random() < 0.3:
        found = found[draw.choice((slice(1, None), slice(None, None, 2)))]
    return found


def given(target: str, tensor: torch.Tensor, draw: random.Random) -> tuple[Any, ...]:
    """Arguments behind the tensor; some of them are out of range."""

    def place() -> int:
        return draw.randint(-tensor.dim() - 2, tensor.dim() + 1)

    if target.endswith("view.default"):
        sizes = list(tensor.shape) + [1] * draw.randint(0, 2)
        draw.shuffle(sizes)
        if len(sizes) > 1 and draw.random() < 0.5:
            sizes[:2] = [sizes[0] * sizes[1]]
        if sizes and draw.random() < 0.4:
            sizes[draw.randrange(len(sizes))] = -1
        return (sizes,)
    if target == "aten.expand.default":
        sizes = [draw.choice((-1, size, 3 if size == 1 else size)) for size in tensor.shape]
        return ([draw.choice((0, 1, 2, 5)) for _ in range(draw.randint(0, 2))] + sizes,)
    if target == "aten.permute.default":
        order = draw.sample(range(tensor.dim()), tensor.dim())
        return ([number - tensor.dim() if draw.random() < 0.3 else number for number in order],)
    count = {"aten.t.default": 0, "aten.detach.default": 0, "aten.transpose.int": 2, "aten.select.int": 2}.get(
        target, 1
    )
    return tuple(place() for _ in range(count))


@pytest.mark.parametrize("target", sorted(OPERATORS))
def test_a_view_is_what_pytorch_gives(target: str) -> None:
    draw, found = random.Random(target), 0
    for _ in range(SAMPLES):
        real = tensors(draw)
        arguments = given(target, real, draw)
        stand_in, _ = Interception(None).stand_in(real)  # type: ignore[arg-type]
        window = RESULT_RULES[target]((stand_in, *arguments))
        if window is None:
            continue
        found += 1
        expected = OPERATORS[target](real, *arguments)
        assert window == (type_of(expected), expected.storage_offset() - real.storage_offset())
        assert storage_key(expected) == storage_key(real)
    assert found > SAMPLES // 10


@pytest.mark.parametrize("target", sorted(OPERATORS))
def test_a_stand_in_of_a_view_is_as_by_pytorchs_rule(target: str) -> None:
    draw = random.Random(target)
    for _ in range(60):
        real = tensors(draw)
        arguments = given(target, real, draw)
        interception = Interception(None)  # type: ignore[arg-type]
        stand_in, _ = interception.stand_in(real)
        window = RESULT_RULES[target]((stand_in, *arguments))
        if window is None:
            continue
        found = interception.window(stand_in, *window)
        with interception.plainly():
            expected = interception.run(OPERATORS[target], (stand_in, *arguments), {})
        assert type_of(found) == type_of(expected)
        assert found.storage_offset() == expected.storage_offset()
        assert storage_key(found) == storage_key(expected) == storage_key(stand_in)


def test_what_is_no_usual_tensor_or_number_is_left_to_pytorch() -> None:
    interception = Interception(None)  # type: ignore[arg-type]
    numbers, _ = interception.stand_in(torch.zeros(2, 3, dtype=torch.complex64))
    usual, _ = interception.stand_in(torch.zeros(2, 3))
    assert RESULT_RULES["aten.t.default"]((numbers,)) is None
    assert RESULT_RULES["aten.view.default"]((usual, [True, 6])) is None
    assert RESULT_RULES["aten.select.int"]((usual, 0, 2)) is None
    assert "aten.alias.default" not in RESULT_RULES
    assert RESULT_RULES["aten.t.default"]((usual,)) is not None


FORMS = ({}, {"memory_format": torch.contiguous_format}, {"memory_format": torch.preserve_format})


@pytest.mark.parametrize("seed", range(SAMPLES // 100))
def test_copies_lie_as_pytorch_says(seed: int) -> None:
    draw, taken = random.Random(seed), 0
    interception = Interception(None)  # type: ignore[arg-type]
    for _ in range(100):
        tensor = tensors(draw).to(draw.choice((torch.float32, torch.int64, torch.bool)))
        stand_in = interception.placeholder(type_of(tensor))
        for keywords in FORMS:
            row = row_by_rule("aten.clone.default", (stand_in,), keywords)
            if row is not None:
                taken += 1
                assert row.results[0] is not None
                assert row.results[0].type == type_of(torch.ops.aten.clone.default(tensor, **keywords))
    assert taken > 200
    pixels = {"memory_format": torch.channels_last}
    stand_in = interception.placeholder(type_of(torch.ones(2, 3, 4, 5)))
    assert row_by_rule("aten.clone.default", (stand_in,), pixels) is None


@pytest.mark.parametrize("target", IN_PLACE)
def test_what_stays_in_place_is_what_pytorch_leaves_there(target: str) -> None:
    interception = Interception(None)  # type: ignore[arg-type]
    namespace, name, _ = target.split(".")
    operator = getattr(getattr(torch.ops, namespace), name)
    dense = torch.rand(3, 4, 5)
    for tensor in (dense, dense.permute(2, 0, 1), dense[:, :2], dense.double(), dense[0, 0].expand(3, 5)):
        stand_in = interception.placeholder(type_of(tensor))
        stays = stays_in_place(target, (stand_in,), {})
        fills = tensor.dtype is torch.float32 and tensor.numel() == tensor.untyped_storage().nbytes() // 4
        assert stays == (fills and (tensor.is_contiguous() or "hardtanh" not in target))
        if stays:
            before = type_of(tensor)
            assert operator(tensor) is tensor
            assert type_of(tensor) == before
    assert not stays_in_place(target, (torch.rand(3),), {})


def test_activations_in_place_are_eagers() -> None:
    def work(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch.nn.functional.hardswish(y, inplace=True)
        return torch.nn.functional.silu(y.t(), inplace=True) + y.t()

    x = torch.randn(4, 6)
    torch.testing.assert_close(weft.hybridize(work)(x), work(x))
