"""Running a function on stand-ins gives its inputs, values, results and what it wrote."""

from __future__ import annotations

import pytest
import torch
from tests.trace.traces import lines, traced
from torch import nn

from weft.errors import UnsupportedError
from weft.trace.python_state.trees import TensorLeaf

TABLE = torch.ones(3)


def test_inputs_are_arguments_then_captured_tensors_in_the_order_they_are_met() -> None:
    net = nn.Linear(3, 2)
    found = traced(lambda x: net(x * TABLE), torch.ones(4, 3))
    assert [entry.value.name for entry in found.inputs] == ["x", "TABLE", "net_weight", "net_bias"]
    assert [entry.argument for entry in found.inputs] == [0, None, None, None]
    assert found.inputs[2].tensor is net.weight


def test_an_argument_that_is_also_captured_is_two_inputs() -> None:
    found = traced(lambda x: x * TABLE, TABLE)
    assert [entry.argument for entry in found.inputs] == [0, None]


def test_results_say_where_each_tensor_stands() -> None:
    found = traced(lambda x: {"a": x * 2, "b": ["text", 3, None, x]}, torch.ones(2))
    kinds = [leaf.index if isinstance(leaf, TensorLeaf) else leaf for leaf in found.leaves]
    assert kinds == [0, "text", 3, None, 1]


def test_a_module_of_parameters_traces_with_a_gradient_only_where_grad_mode_is_on() -> None:
    net = nn.Linear(3, 2)
    assert traced(net, torch.ones(1, 3)).gradient is not None
    with torch.no_grad():
        assert traced(net, torch.ones(1, 3)).gradient is None


def test_python_sees_stand_ins_with_sizes_but_no_elements() -> None:
    def looks(x: torch.Tensor) -> torch.Tensor:
        assert (tuple(x.shape), x.dtype, x.device.type) == ((2, 3), torch.float32, "cpu")
        return x

    traced(looks, torch.ones(2, 3))


def test_a_free_number_is_an_input_if_nothing_depends_on_its_value() -> None:
    found = traced(lambda x, y: x * y, torch.ones(2), 0.5, numbers=frozenset({1}))
    assert lines(found.graph)[:2] == [
        "graph f(%x: f32[2], %y: float) {",
        "%0: f32[2] = library aten.mul.Tensor(%x, %y)",
    ]
    assert found.fixed == frozenset()
    decided = traced(lambda x, y: x if y > 0 else -x, torch.ones(2), 0.5, numbers=frozenset({1}))
    assert decided.fixed == {1}


def test_a_failed_trace_leaves_the_modes_as_they_were() -> None:
    for _ in range(2):
        with pytest.raises(UnsupportedError):
            traced(lambda x: x.sum().item(), torch.ones(2))
    assert (torch.ones(2) * 2).tolist() == [2.0, 2.0]
    assert torch.is_grad_enabled()
    assert torch.is_autocast_cache_enabled()
