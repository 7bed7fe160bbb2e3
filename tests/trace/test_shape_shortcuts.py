"""Shortcuts through PyTorch's shape rules: the types of results are eager's, whether one is taken or not."""

import pytest
import torch

import weft
from weft.trace.shape_shortcuts import SHAPE_SHORTCUTS

NAME = "aten.native_batch_norm.default"
INPUTS = {
    "row by row": torch.randn(4, 8, 5, 6),
    "a matrix": torch.randn(4, 8),
    "channels last": torch.randn(4, 8, 5, 6).to(memory_format=torch.channels_last),
    "one pixel": torch.randn(4, 8, 1, 1),
    "one image": torch.randn(1, 8, 5, 6),
    "one image of a stack": torch.randn(2, 8, 5, 6)[:1],
    "an image whose batch has a stride of its own": torch.randn(8, 5, 6).as_strided((1, 8, 5, 6), (7, 30, 6, 1)),
    "doubles": torch.randn(4, 8, 5, 6, dtype=torch.float64),
}


def given(values, *, training=False, size=8):
    parameters = [torch.ones(size, dtype=values.dtype) for _ in range(4)]
    return (values, *parameters, training, 0.1, 1e-5)


@pytest.mark.parametrize("name", INPUTS)
def test_batch_norm_lies_as_eagers(name):
    eager = torch.ops.aten.native_batch_norm.default(*given(INPUTS[name]))
    program = weft.hybridize(lambda *tensors: torch.ops.aten.native_batch_norm.default(*tensors, False, 0.1, 1e-5))
    for ours, theirs in zip(program(*given(INPUTS[name])[:5]), eager, strict=True):
        assert (ours.shape, ours.stride(), ours.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["row by row", "one image", "a matrix"])
def test_the_usual_batch_norm_takes_the_shortcut(name):
    found = SHAPE_SHORTCUTS[NAME](given(INPUTS[name]))
    assert [result.shape for result in found] == [INPUTS[name].shape, (0,), (0,)]


@pytest.mark.parametrize("name", ["channels last", "one pixel", "doubles"])
def test_other_inputs_of_a_batch_norm_are_left_to_the_rule(name):
    assert SHAPE_SHORTCUTS[NAME](given(INPUTS[name])) is None


def test_a_training_batch_norm_or_wrong_parameters_are_left_to_the_rule():
    values = INPUTS["row by row"]
    assert SHAPE_SHORTCUTS[NAME](given(values, training=True)) is None
    assert SHAPE_SHORTCUTS[NAME](given(values, size=7)) is None
    assert SHAPE_SHORTCUTS[NAME]((values, None, None, *given(values)[3:])) is None


ENDS = torch.tensor([3, 7, 10], dtype=torch.int32)
GROUPED = {
    "rows of groups": ((10, 16), (3, 16, 8), ENDS),
    "groups of columns": ((3, 5, 16), (16, 12), torch.tensor([4, 8, 12], dtype=torch.int32)),
    "groups as they are": ((3, 5, 16), (3, 16, 8), None),
}


@pytest.mark.parametrize("name", GROUPED)
def test_products_with_a_matrix_for_each_group_are_eagers(name):
    first, second, ends = GROUPED[name]
    operands = torch.randn(first), torch.randn(second)
    eager = torch.nn.functional.grouped_mm(*operands, offs=ends)
    found = weft.hybridize(lambda *tensors: torch.nn.functional.grouped_mm(*tensors, offs=ends))(*operands)
    assert (found.shape, found.stride(), found.dtype) == (eager.shape, eager.stride(), eager.dtype)
    torch.testing.assert_close(found, eager)


def test_gradients_of_products_of_groups_are_eagers():
    def of(function):
        operands = torch.ones(10, 16).requires_grad_(), torch.linspace(-1, 1, 384).view(3, 16, 8).requires_grad_()
        function(*operands).square().sum().backward()
        return [operand.grad for operand in operands]

    def product(x, w):
        return torch.nn.functional.grouped_mm(x, w, offs=ENDS)

    for ours, theirs in zip(of(weft.hybridize(product)), of(product), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_products_of_groups_that_do_not_fit_are_left_to_the_rule():
    name = "aten._grouped_mm.default"
    assert SHAPE_SHORTCUTS[name]((torch.ones(10, 16), torch.ones(3, 8, 8), ENDS)) is None
    assert SHAPE_SHORTCUTS[name]((torch.ones(10, 16), torch.ones(3, 16, 8).double(), ENDS)) is None
