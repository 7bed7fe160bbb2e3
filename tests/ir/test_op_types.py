"""Shapes of convolutions and pooling are those that PyTorch gives, and refused where PyTorch refuses them."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import UsageError
from weft.ir.graph import Value
from weft.ir.ops import build
from weft.ir.types import TupleType, contiguous

SMALL = st.integers(1, 4)
WINDOWS = st.tuples(st.integers(1, 7), SMALL, SMALL)


def build_shape(op: str, *shapes: tuple[int, ...], **attributes: object) -> tuple[int, ...] | None:
    operands = [Value("input", (), contiguous(torch.float32, shape)) for shape in shapes]
    try:
        found = build(op, *operands, **attributes).type
    except UsageError:
        return None
    return found.items[0].shape if isinstance(found, TupleType) else found.shape


def torch_shape(function, *arguments) -> tuple[int, ...] | None:
    try:
        result = function(*arguments)
    except RuntimeError:
        return None
    return tuple((result[0] if isinstance(result, tuple) else result).shape)


@given(WINDOWS, st.integers(0, 3), SMALL, st.booleans())
def test_max_pool_has_the_shape_of_pytorch(window, padding, dilation, ceil):
    extent, kernel, stride = window
    names = ("kernel_size", "stride", "padding", "dilation")
    pairs = [(number, number) for number in (kernel, stride, padding, dilation)]
    shape = (2, 1, extent, 5)
    given_attributes = dict(zip(names, pairs, strict=True))
    expected = torch_shape(torch.ops.aten.max_pool2d_with_indices, torch.empty(shape), *pairs, ceil)
    assert build_shape("max_pool", shape, **given_attributes, ceil_mode=ceil) == expected


@given(WINDOWS, st.integers(0, 3), st.booleans())
def test_average_pool_has_the_shape_of_pytorch(window, padding, ceil):
    extent, kernel, stride = window
    pairs = [(number, number) for number in (kernel, stride, padding)]
    shape = (2, 1, extent, 5)
    attributes = dict(zip(("kernel_size", "stride", "padding"), pairs, strict=True))
    rest = {"ceil_mode": ceil, "count_include_pad": True, "divisor_override": None}
    expected = torch_shape(torch.ops.aten.avg_pool2d, torch.empty(shape), *pairs, *rest.values())
    assert build_shape("average_pool", shape, **attributes, **rest) == expected


@given(WINDOWS, st.integers(0, 3), SMALL, st.sampled_from([1, 2, 3]))
def test_a_convolution_has_the_shape_of_pytorch(window, padding, dilation, groups):
    extent, kernel, stride = window
    data, weight = (2, 4, extent, 5), (4, 2, kernel, 2)
    lists = [(number, number) for number in (stride, padding, dilation)]
    attributes = dict(zip(("stride", "padding", "dilation"), lists, strict=True))
    expected = torch_shape(torch.conv2d, torch.empty(data), torch.empty(weight), None, *lists, groups)
    assert build_shape("convolution", data, weight, **attributes, groups=groups) == expected
