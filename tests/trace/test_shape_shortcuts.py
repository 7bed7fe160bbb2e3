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
