"""Running a Graph before and after a pass on the same inputs, and comparing bit by bit, memory included."""

from typing import Any

import torch

from weft.ir.graph import Graph
from weft.ir.interpreter import interpret
from weft.ir.types import NUMBER_KINDS, NumberType, TensorType

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, float("nan"), float("inf"), -float("inf"), 1e-45, 3e38, 65504.0, 1e-7]


def inputs_for(graph: Graph, seed: int = 0) -> list[Any]:
    """Inputs full of what goes wrong: NaN, infinities, both zeros, subnormals, the smallest and largest integers."""
    torch.manual_seed(seed)
    kinds = [value.type for value in graph.inputs]
    return [NUMBER_KINDS[kind.kind](5) if isinstance(kind, NumberType) else tensor_for(kind) for kind in kinds]


def tensor_for(kind: TensorType) -> torch.Tensor:
    if kind.dtype is torch.bool:
        elements = torch.randint(2, kind.shape).bool()
    elif kind.dtype.is_floating_point or kind.dtype.is_complex:
        special = torch.tensor(SPECIAL, dtype=torch.float64).to(kind.dtype)
        elements = special[torch.randint(len(special), kind.shape)]
    else:
        limits = torch.iinfo(kind.dtype)
        some = torch.tensor([limits.min, limits.max, 0, 1, 2, 3, 7], dtype=torch.int64).to(kind.dtype)
        elements = some[torch.randint(len(some), kind.shape)]
    return torch.empty_strided(kind.shape, kind.strides, dtype=kind.dtype).copy_(elements)


def run(graph: Graph, inputs: list[Any]) -> tuple[list[Any], list[Any]]:
    """The results, and the inputs after the run, from the same random numbers each time."""
    torch.manual_seed(1)
    own = [tensor.clone() if isinstance(tensor, torch.Tensor) else tensor for tensor in inputs]
    return interpret(graph, own), own


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as bytes, with one NaN for all: which one an operation gives is nobody's promise."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if plain.dtype.is_complex:
        plain = torch.view_as_real(plain)
    if plain.dtype.is_floating_point:
        plain = torch.where(torch.isnan(plain), torch.full_like(plain, float("nan")), plain)
    return plain.reshape(-1).view(torch.uint8)


def shared(tensors: list[Any]) -> list[tuple[int, int]]:
    """Which tensors lie in the same memory."""
    owners = [tensor.untyped_storage().data_ptr() if isinstance(tensor, torch.Tensor) else None for tensor in tensors]
    pairs = [(one, two) for two in range(len(owners)) for one in range(two)]
    return [(one, two) for one, two in pairs if owners[one] and owners[one] == owners[two]]


def assert_same(before: Graph, after: Graph, inputs: list[Any]) -> None:
    """Both Graphs give, and write, the same bits of the same types, sharing memory alike."""
    results, written = run(before, inputs)
    other_results, other_written = run(after, inputs)
    assert shared([*results, *written]) == shared([*other_results, *other_written])
    for one, other in zip([*results, *written], [*other_results, *other_written], strict=True):
        if not isinstance(one, torch.Tensor):
            assert one == other
            continue
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        assert torch.equal(bits(one), bits(other))
