"""No kernel of attention runs in a trace in which there are more keys than values: it checks no lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from weft.trace.results import corrections, rehearsal


def attends(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    heads = query.transpose(1, 2), key.expand(-1, 4, -1, -1), value.expand(-1, 4, -1, -1)
    return torch.nn.functional.scaled_dot_product_attention(*heads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])  # others than the first are rehearsed
def test_caches_that_vary_each_by_itself_are_never_given_to_a_kernel(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[int, int]] = []

    def note(operator: Any, arguments: Any) -> None:
        if "attention" in str(operator):
            tensors = arguments[2 if "backward" in str(operator) else 1 :]
            ran.append((int(tensors[0].shape[-2]), int(tensors[1].shape[-2])))
            if len({*ran[-1]}) > 1:
                raise RuntimeError("it would go beyond")  # as this process is to live

    ask, run = corrections._asked, rehearsal._Rehearsal.run

    def asked(operator: Any, given: Any, real: Any) -> Any:
        note(operator, given[0])
        return ask(operator, given, real)

    def rehearsed(self: Any) -> Any:
        note(self.operator, self.given[0])
        return run(self)

    monkeypatch.setattr(corrections, "_asked", asked)
    monkeypatch.setattr(rehearsal._Rehearsal, "run", rehearsed)
    monkeypatch.setattr(rehearsal, "_checked", set())
    hybrid = weft.hybridize(attends, sizes={"key": {2: "keys"}, "value": {2: "values"}})
    for length in (4, 5, 9):
        shapes = ((2, 1, 4, 4), (2, 1, length, 4), (2, 1, length, 4))
        given = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
        found = torch.autograd.grad(hybrid(*given).sum(), given)
        torch.testing.assert_close(found, torch.autograd.grad(attends(*given).sum(), given))
    assert all(keys == values for keys, values in ran), ran
