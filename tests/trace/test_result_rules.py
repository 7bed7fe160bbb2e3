"""Shortcuts through PyTorch's shape rules: the types of results are eager's, whether one is taken or not."""

import random

import pytest
import torch

import weft
from weft.ir.types import type_of
from weft.trace.results.result_rules import RESULT_RULES

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


BACKWARD = "aten.native_batch_norm_backward.default"


def given(values, *, training=False, size=8):
    parameters = [torch.ones(size, dtype=values.dtype) for _ in range(4)]
    return (values, *parameters, training, 0.1, 1e-5)


def assert_lie_alike(found, eager):
    assert len(found) == len(eager)
    for ours, theirs in zip(found, eager, strict=True):
        assert (ours.shape, ours.stride(), ours.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", INPUTS)
def test_batch_norm_lies_as_eagers(name, training):
    def norm(*tensors):
        return torch.ops.aten.native_batch_norm.default(*tensors, training, 0.1, 1e-5)

    eager = norm(*given(INPUTS[name])[:5])
    assert_lie_alike(weft.hybridize(norm)(*given(INPUTS[name])[:5]), eager)


@pytest.mark.parametrize("name", INPUTS)
def test_the_gradients_of_a_batch_norm_lie_as_eagers(name):
    values = INPUTS[name]
    weight = torch.linspace(1, 2, 8, dtype=values.dtype)
    tensors = (values.cos(), values, weight, weight - 1, weight, values.mean() * weight, weight.sqrt())

    def gradients(*tensors):
        return torch.ops.aten.native_batch_norm_backward.default(*tensors, True, 1e-5, [True, True, True])

    assert_lie_alike(weft.hybridize(gradients)(*tensors), gradients(*tensors))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["row by row", "one image", "a matrix"])
def test_the_usual_batch_norm_takes_the_shortcut(name, training):
    found = RESULT_RULES[NAME](given(INPUTS[name], training=training))
    statistics = (8,) if training else (0,)
    assert [result.shape for result in found] == [INPUTS[name].shape, statistics, statistics]


@pytest.mark.parametrize("name", ["channels last", "one pixel", "doubles"])
def test_other_inputs_of_a_batch_norm_are_left_to_the_rule(name):
    assert RESULT_RULES[NAME](given(INPUTS[name])) is None
    gradient = INPUTS[name].clone()
    assert RESULT_RULES[BACKWARD](backward_of(gradient, INPUTS[name])) is None


def backward_of(gradient, values, *, training=True, wanted=(True, True, True), size=8):
    parameters = [torch.ones(size, dtype=values.dtype) for _ in range(5)]
    return (gradient, values, *parameters, training, 1e-5, wanted)


def test_a_batch_norm_with_wrong_parameters_is_left_to_the_rule():
    values = INPUTS["row by row"]
    for training in (False, True):
        assert RESULT_RULES[NAME](given(values, training=training, size=7)) is None
        assert RESULT_RULES[NAME]((values, None, None, *given(values, training=training)[3:])) is None
    assert RESULT_RULES[BACKWARD](backward_of(values, values)) is not None
    assert RESULT_RULES[BACKWARD](backward_of(values, values, training=False)) is None
    assert RESULT_RULES[BACKWARD](backward_of(values, values, wanted=(True, True, False))) is None
    assert RESULT_RULES[BACKWARD](backward_of(values, values, size=7)) is None
    assert RESULT_RULES[BACKWARD](backward_of(INPUTS["channels last"], values)) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["row by row", "a matrix", "channels last", "one image"])
@pytest.mark.parametrize("training", [False, True])
def test_a_batch_norm_under_autocast_has_statistics_of_its_parameters_type(name, dtype, training):
    values = INPUTS[name].to(dtype)
    parameters = [torch.linspace(1, 2, 8) for _ in range(4)]
    eager = torch.ops.aten.native_batch_norm.default(values, *parameters, training, 0.1, 1e-5)
    found = RESULT_RULES[NAME]((values, *parameters, training, 0.1, 1e-5))
    assert list(found) == [type_of(one) for one in eager]
    if training:
        given = (values.cos(), values, *parameters[:3], *eager[1:], True, 1e-5, [True, True, True])
        gradients = torch.ops.aten.native_batch_norm_backward.default(*given)
        assert list(RESULT_RULES[BACKWARD](given)) == [type_of(one) for one in gradients]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["rows", "pixels"])
def test_large_batch_norms_are_trained_under_autocast(layout):
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.BatchNorm2d(32), torch.nn.ReLU())
    x = torch.randn(8, 3, 32, 32).to(memory_format=layout)
    found = []
    for run in (net, weft.hybridize(net)):
        net.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = run(x)
        out.float().square().mean().backward()
        found.append([parameter.grad.clone() for parameter in net.parameters()])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=2e-3)


TENSORS = {
    "row by row": torch.randn(4, 3, 5),
    "with ones": torch.randn(4, 1, 3),
    "no dimension": torch.randn(()),
    "nothing": torch.randn(0, 3),
    "turned": torch.randn(5, 4).t(),
    "stacks turned": torch.randn(3, 4, 5).transpose(0, 1),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "repeated": torch.randn(4).expand(3, 4),
    "with gaps": torch.randn(4, 6)[:, ::2],
    "strides of one": torch.randn(4, 3).as_strided((4, 1, 3), (3, 7, 1)),
    "doubles": torch.randn(4, 3, dtype=torch.float64),
    "integers": torch.arange(1, 13).view(4, 3),
}
OTHERS = {
    "like it": torch.randn_like,
    "whole number": lambda _: 2,
    "number": lambda _: 0.5,
    "truth": lambda _: True,
    "tensor of a number": lambda _: torch.tensor(0.5),
    "double of a number": lambda _: torch.tensor(0.5, dtype=torch.float64),
    "one of its rows": lambda values: values[:1] if values.dim() else values,
    "a row": lambda values: torch.ones(values.shape[-1:]),
    "its last dimensions": lambda values: torch.ones(values.shape[1:]),
    "row by row": lambda values: values.contiguous(),
}
PAIRS = [torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor, torch.ops.aten.div.Tensor, torch.ops.aten.sub.Tensor]


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", TENSORS)
def test_what_is_computed_element_by_element_lies_as_eagers(name, other):
    values = TENSORS[name]
    second = OTHERS[other](values.float()) if other == "like it" else OTHERS[other](values)
    operators = PAIRS[:-1] if other == "truth" else PAIRS  # eager takes no truth from a number

    def compute(x, y):
        return [operator(x, y) for operator in operators]

    if isinstance(second, torch.Tensor):
        found = weft.hybridize(lambda x, y: compute(x, y) + compute(y, x))(values, second)
        assert_lie_alike(found, compute(values, second) + compute(second, values))
    else:
        assert_lie_alike(weft.hybridize(lambda x: compute(x, second))(values), compute(values, second))


@pytest.mark.parametrize("name", TENSORS)
def test_what_a_unit_computes_lies_as_eagers(name):
    values = TENSORS[name]

    def unit(x):
        results = [torch.ops.aten.relu(x), torch.ops.aten.threshold_backward(x, x, 0)]
        if x.is_floating_point():
            units = torch.nn.functional.gelu, torch.sigmoid, torch.tanh, torch.nn.functional.relu6
            results += [function(x) for function in units]
        return results

    assert_lie_alike(weft.hybridize(unit)(values), unit(values))


def test_the_usual_element_by_element_takes_the_shortcut():
    add, values = RESULT_RULES["aten.add.Tensor"], TENSORS["row by row"]
    for other in (values, 2, 0.5, torch.tensor(0.5)):
        assert add((values, other)).shape == (4, 3, 5)
    assert add((TENSORS["with ones"], TENSORS["with ones"])) is not None
    for other in (2, torch.tensor(0.5)):
        assert add((TENSORS["with ones"], other)) is None
    for other in (values.double(), values[:1], values.transpose(0, 1), 1j):
        assert add((values, other)) is None
    assert add((values, values[0])).shape == (4, 3, 5)
    turned = TENSORS["turned"]
    for other in (turned, 2, torch.tensor(0.5)):
        assert add((turned, other)).strides == (1, 4)
    for other in (turned.contiguous(), turned[0], turned[:, 0]):
        assert add((turned, other)) is None
    for name in ("with gaps", "strides of one", "doubles", "integers"):
        assert add((TENSORS[name], 2)) is None


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("over", [[0], [-1], [0, 1], [-2, -1], [1, 0, 2]])
@pytest.mark.parametrize("name", ["row by row", "with ones", "stacks turned", "channels last", "with gaps", "doubles"])
def test_sums_over_dimensions_lie_as_eagers(name, over, keeps):
    values = TENSORS[name]
    if len(over) > values.dim():
        pytest.skip("eager has no such sum")

    def reduced(x):
        return [function(x, over, keeps) for function in (torch.sum, torch.mean)]

    assert_lie_alike(weft.hybridize(reduced)(values), reduced(values))


def test_the_usual_sum_over_dimensions_takes_the_shortcut():
    reduced, values = RESULT_RULES["aten.sum.dim_IntList"], TENSORS["row by row"]
    assert reduced((values, [1, -1])).shape == (4,)
    assert reduced((values, [0], True)).shape == (1, 3, 5)
    for arguments in ((values, []), (values, None), (values, [3]), (values, [1, 1]), (values.double(), [1])):
        assert reduced(arguments) is None
    for name in ("with ones", "stacks turned", "channels last", "nothing"):
        assert reduced((TENSORS[name], [0])) is None


MATRICES = {
    "row by row": (torch.randn(4, 5), torch.randn(5, 3)),
    "turned": (torch.randn(5, 4).t(), torch.randn(3, 5).t()),
    "one row": (torch.randn(1, 5), torch.randn(5, 1)),
    "nothing": (torch.randn(0, 5), torch.randn(5, 3)),
    "nothing to sum": (torch.randn(4, 0), torch.randn(0, 3)),
    "doubles": (torch.randn(4, 5, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)),
}


@pytest.mark.parametrize("name", MATRICES)
def test_products_lie_as_eagers(name):
    first, second = MATRICES[name]
    row = torch.randn(second.shape[1], dtype=second.dtype)

    def products(x, y, row):
        stacks = x.expand(2, *x.shape), y.expand(2, *y.shape)
        sums = [torch.addmm(bias, x, y) for bias in (row, row.sum(), row[None])]
        return [x.mm(y), *sums, torch.addmm(row, x, y, beta=0.5), torch.bmm(*stacks), torch.bmm(x[None], y[None])]

    assert_lie_alike(weft.hybridize(products)(first, second, row), products(first, second, row))


def test_usual_products_take_the_shortcut():
    mm, bmm, addmm = (RESULT_RULES[f"aten.{name}.default"] for name in ("mm", "bmm", "addmm"))
    x, y = MATRICES["turned"]
    assert mm((x, y)).strides == (3, 1)
    assert bmm((x.expand(2, 4, 5), y.expand(2, 5, 3))).shape == (2, 4, 3)
    assert addmm((torch.ones(3), x, y)).shape == (4, 3)
    for arguments in ((y, x), (x, y.double()), (x[0], y)):
        assert mm(arguments) is None
    assert bmm((x.expand(2, 4, 5), y.expand(3, 5, 3))) is None
    for row in (torch.ones(1), torch.ones(4, 3), torch.ones(3).double()):
        assert addmm((row, x, y)) is None


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("dimensions", [1, 2])
def test_layer_norms_lie_as_eagers(name, dimensions):
    values = TENSORS[name]
    if values.dim() < dimensions or not values.is_floating_point() or not values.numel():
        pytest.skip("eager has no such norm, or leaves its statistics unwritten")
    sizes = values.shape[-dimensions:]
    weight = torch.full(sizes, 0.5, dtype=values.dtype)

    def norm(x, weight):
        plain = torch.ops.aten.native_layer_norm(x, sizes, None, None, 1e-5)
        return [*plain, *torch.ops.aten.native_layer_norm(x, sizes, weight, weight, 1e-5)]

    assert_lie_alike(weft.hybridize(norm)(values, weight), norm(values, weight))


def test_layer_norms_that_are_not_usual_are_left_to_the_rule():
    norm, values = RESULT_RULES["aten.native_layer_norm.default"], TENSORS["row by row"]
    assert [kind.shape for kind in norm((values, [3, 5], None, None, 1e-5))] == [(4, 3, 5), (4, 1, 1), (4, 1, 1)]
    for arguments in ((values, [4]), (values.double(), [5]), (TENSORS["turned"], [5]), (values[:0], [5])):
        assert norm((*arguments, None, None, 1e-5)) is None
    assert norm((values, [5], torch.ones(3), None, 1e-5)) is None


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("turned", [False, True])
def test_losses_of_classes_lie_as_eagers(reduction, dtype, turned):
    values = (torch.randn(5, 4, dtype=dtype).t() if turned else torch.randn(4, 5, dtype=dtype)).contiguous()
    classes = torch.tensor([0, 4, -100, 2])

    def loss(values, classes):
        logarithms = torch.ops.aten._log_softmax(values, 1, False)
        result, total = torch.ops.aten.nll_loss_forward(logarithms, classes, None, reduction, -100)
        back = torch.ops.aten.nll_loss_backward(result, logarithms, classes, None, reduction, -100, total)
        back = torch.ops.aten._log_softmax_backward_data(back, logarithms, -1, dtype)
        soft = torch.ops.aten._softmax(values, 0, False)
        return logarithms, result, total, back, torch.ops.aten._softmax_backward_data(back, soft, 0, dtype)

    assert_lie_alike(weft.hybridize(loss)(values, classes), loss(values, classes))


def test_losses_that_are_not_usual_are_left_to_the_rule():
    forward, soft = RESULT_RULES["aten.nll_loss_forward.default"], RESULT_RULES["aten._softmax.default"]
    values, classes = torch.randn(4, 5), torch.zeros(4, dtype=torch.int64)
    assert [kind.shape for kind in forward((values, classes, None, 1, -100))] == [(), ()]
    assert forward((values, classes, None, 0, -100)) is None
    assert forward((values, classes, torch.ones(5), 1, -100)) is None
    assert forward((values, classes[:3], None, 1, -100)) is None
    assert forward((values[0], classes[0], None, 1, -100)) is None
    assert soft((values, 2, False)) is None
    assert soft((values.t(), 1, False)) is None
    back = RESULT_RULES["aten._softmax_backward_data.default"]
    assert back((values, values, 1, torch.float16)) is None


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
    assert RESULT_RULES[name]((torch.ones(10, 16), torch.ones(3, 8, 8), ENDS)) is None
    assert RESULT_RULES[name]((torch.ones(10, 16), torch.ones(3, 16, 8).double(), ENDS)) is None


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_batch_of_no_images_is_enlarged_to_none(mode, rank):
    def enlarged(x):
        return torch.nn.functional.interpolate(x, scale_factor=2, mode=mode)

    x = torch.randn(0, 2, *[3] * rank, requires_grad=True)
    found, expected = weft.hybridize(enlarged)(x), enlarged(x)
    assert (found.shape, found.stride(), found.requires_grad) == (expected.shape, expected.stride(), True)
    assert torch.autograd.grad(found.sum(), x)[0].shape == x.shape


def convolutions(draw):
    """Arguments of a convolution, of one to three dimensions, that may have odd strides, or not fit."""
    count, groups = draw.randint(1, 3), draw.choice((1, 1, 2, 3))
    channels = groups * draw.choice((1, 2)), groups * draw.choice((1, 2, 3))
    values = torch.randn(draw.choice((1, 2, 3)), channels[0], *[draw.choice((1, 2, 4, 7)) for _ in range(count)])
    weight = torch.randn(channels[1], channels[0] // groups, *[draw.choice((1, 2, 3)) for _ in range(count)])
    if draw.random() < 0.3:
        lines = [tensor.movedim(1, -1).contiguous().movedim(-1, 1) for tensor in (values, weight)]
        values, weight = (lines[0], weight) if draw.random() < 0.5 else (values, lines[1])
    numbers = [[draw.choice(choices) for _ in range(count)] for choices in ((1, 2), (0, 1, 2), (1, 2))]
    bias = draw.choice((None, torch.randn(channels[1])))
    return (values, weight, bias, *numbers, False, [0] * count, groups)


def test_convolutions_lie_as_eagers():
    draw, shortcut = random.Random(3), RESULT_RULES["aten.convolution.default"]
    taken = 0
    for _ in range(600):
        arguments = convolutions(draw)
        kind = shortcut(arguments)
        if kind is not None:
            taken += 1
            eager = torch.ops.aten.convolution.default(*arguments)
            assert kind == type_of(eager)
    assert taken > 200


def test_convolutions_that_are_not_usual_are_left_to_the_rule():
    shortcut = RESULT_RULES["aten.convolution.default"]
    values, weight, rest = torch.randn(2, 4, 5, 5), torch.randn(8, 4, 3, 3), ([1, 1], [0, 0], [1, 1])
    none = False, [0, 0], 1
    assert shortcut((values, weight, None, *rest, *none)) is not None
    assert shortcut((values, weight, None, *rest, True, [0, 0], 1)) is None
    assert shortcut((values, weight, None, *rest, False, [0, 0], 2)) is None
    assert shortcut((values, weight, torch.randn(4), *rest, *none)) is None
    assert shortcut((values[:, :, :2], weight, None, *rest, *none)) is None
    assert shortcut((values.to(memory_format=torch.channels_last), weight, None, *rest, *none)) is None
    assert shortcut((values.double(), weight.double(), None, *rest, *none)) is None
    one = torch.randn(2, 1, 5, 5).as_strided((2, 1, 5, 5), (25, 1, 5, 1))  # it may as well lie channels last
    assert shortcut((one, weight[:, :1].contiguous(), None, *rest, *none)) is None
