"""Stand-ins of real tensors: they look like these, and share memory where these do, in whatever order they are made."""

from itertools import permutations
from typing import Any

import pytest
import torch

import weft
from weft.ir.types import type_of
from weft.trace.interception.capture import OWN_ATTRIBUTES, Interception, storage_key

Tensors = list[torch.Tensor]


def tensors_of_two_memories() -> Tensors:
    """A tensor, itself, what autograd learns from it, views of it at two places, and one that shares nothing."""
    whole = torch.zeros(4, 6)
    return [whole, whole, torch.nn.Parameter(whole), whole[:, 2:], whole.t(), torch.zeros(4, 6)]


def stand_ins(tensors: Tensors) -> Tensors:
    interception = Interception(None)  # type: ignore[arg-type]
    return [interception.stand_in(tensor)[0] for tensor in tensors]


@pytest.mark.parametrize("order", list(permutations(range(5))))
def test_stand_ins_share_memory_as_their_tensors_do(order: tuple[int, ...]) -> None:
    tensors = tensors_of_two_memories()
    tensors = [*(tensors[number] for number in order), *tensors[5:]]
    found = stand_ins(tensors)
    for real, stand_in in zip(tensors, found, strict=True):
        assert type_of(stand_in) == type_of(real)
        assert stand_in.requires_grad == real.requires_grad
        looks = [(tensor.dtype, tensor.storage_offset(), tensor.is_leaf) for tensor in (real, stand_in)]
        assert looks[0] == looks[1]
        assert not stand_in.is_inference()
        same = [storage_key(other) == storage_key(stand_in) for other in found]
        assert same == [storage_key(other) == storage_key(real) for other in tensors]


def test_a_tensor_alone_needs_no_conversion_by_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    interception, converted = Interception(None), []  # type: ignore[arg-type]
    monkeypatch.setattr(interception, "_converted", lambda tensor, _: converted.append(tensor) or tensor.to("meta"))
    weight, rows = torch.nn.Parameter(torch.zeros(2, 3)), torch.zeros(5, 3)
    usual = [weight, torch.zeros(3, 2).t(), torch.zeros((), dtype=torch.int64), torch.zeros(5)[1:], rows, rows[2:].t()]
    found = [interception.stand_in(tensor)[0] for tensor in usual]
    assert list(map(type_of, found)) == list(map(type_of, usual))
    assert [one.storage_offset() for one in found] == [one.storage_offset() for one in usual]
    keys = [storage_key(one) for one in found]
    assert keys[-1] == keys[-2]
    assert len(set(keys)) == len(keys) - 1
    assert not converted
    unusual: list[Any] = [torch.zeros(2, dtype=torch.complex64), torch.zeros(3, dtype=torch.complex64)]
    with torch.inference_mode():
        unusual.append(torch.zeros(2))
    for tensor in unusual:
        interception.stand_in(tensor)
    assert len(converted) == len(unusual)


def test_what_stand_ins_note_of_their_own_hides_no_attribute_of_tensors() -> None:
    assert not {name for name in OWN_ATTRIBUTES if hasattr(torch.Tensor, name)}
    taken = weft.hybridize(lambda x: x.put(torch.tensor([1]), torch.ones(1)), whole=True)
    x = torch.randn(3)
    assert torch.equal(taken(x), x.put(torch.tensor([1]), torch.ones(1)))
