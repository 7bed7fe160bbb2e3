"""Programs written out by hand, for tests of program files: a small network with state and a constant."""

from __future__ import annotations

import torch

from weft.ir.parser import parse_graph
from weft.programs.parts import ProgramParts, StateTensor
from weft.programs.structure import Branch, CallStructure, FixedLeaf, LeafPort
from weft.trace.signature import memory_key

TEXT = """
graph net(%x: f32[2,3], %fc.weight: f32[4,3], %fc.bias: f32[4], %count: i64[]) {
  %0: f32[3,4]{1,3} = library aten.t.default(%fc.weight)  # net.py:3 in forward
  %1: f32[2,4] = library aten.addmm.default(%fc.bias, %x, %0)  # net.py:3 in forward
  %2: f32[16] = constant #0
  %3: f32[4] = library aten.slice.Tensor(%2, 0, 0, 4)  # net.py:4 in forward
  %4: f32[2,4] = library aten.mul.Tensor(%1, %3)  # net.py:4 in forward
  %5: i64[] = update aten.add_.Tensor(!0, 1) on !0 = %count  # net.py:5 in forward
  write %count <- %5
  return %4, %x via aten.select.int(_, 0, 1)
}
"""


def constant() -> torch.Tensor:
    return torch.arange(16.0)


def parts() -> ProgramParts:
    """net(x, scale=2.0) gives {"y": (x @ weight.T + bias) * constant, "row": x[1], "note": "seen"} and counts calls."""
    generator = torch.Generator().manual_seed(1)
    state = (
        StateTensor(1, "fc.weight", torch.randn(4, 3, generator=generator)),
        StateTensor(2, "fc.bias", torch.randn(4, generator=generator)),
        StateTensor(3, "count", torch.zeros((), dtype=torch.int64)),
    )
    return ProgramParts(
        parse_graph(TEXT, [constant()]),
        CallStructure((("x", LeafPort(0)),), (("scale", FixedLeaf(2.0)),)),
        Branch("dict", ("y", "row", "note"), (LeafPort(0), Branch("list", (), (LeafPort(1),)), FixedLeaf("seen"))),
        state,
        memory_key([torch.ones(2, 3), *(entry.tensor for entry in state)]),
        grad_mode=True,
        default_dtype=torch.float32,
    )


def expected(given: ProgramParts, x: torch.Tensor) -> torch.Tensor:
    weight, bias = given.state[0].tensor, given.state[1].tensor
    return torch.addmm(bias, x, weight.t()) * constant()[:4]
