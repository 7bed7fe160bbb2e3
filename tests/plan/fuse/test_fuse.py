"""Fused regions in machine code give the interpreter's answers."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  as every program of its users names it
from tests.plan.compiled_regions import disagreements, random_graphs

import weft
from weft.passes.pipeline import run_pipeline
from weft.plan.fuse.fuse import fuse
from weft.plan.kernels.conv_weight import WeightGradientKernel
from weft.plan.kernels.gemm import Epilogue, GemmKernel
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.pack import PackKernel
from weft.plan.kernels.reduce import RowKernel
from weft.plan.regions.region import find_regions
from weft.target import host_target
from weft.trace.lift.lift import lift

SEEDS = 12
GRAPHS_OF_A_SEED = 25


def softmax(x):
    return torch.softmax(x * 2, -1) + 1


def layer_norm(x):
    return F.layer_norm(torch.relu(x), (16,)) * x


def attention(x):
    scores = x @ x.transpose(-1, -2) / 4
    return torch.softmax(scores, -1) @ x


def convolution_relu_pool(x):
    images = x.reshape(2, 1, 8, 16)
    weight = x.reshape(-1)[:36].reshape(4, 1, 3, 3)
    return F.max_pool2d(torch.relu(F.conv2d(images, weight, padding=1) * 0.5 + 1), 2)


def towers(x):
    return torch.cat([torch.tanh(x @ x.transpose(-1, -2)), torch.relu(x), x.sum(-1, keepdim=True)], -1)


def repeated_product(x):
    row = (x[0, :1] @ x[0].t()).expand(8, 8)
    return row - x[0] @ x[0].t()


def padded(x):
    return F.pad(x * 2, (1, 2, 3, 0), value=1.5).exp().sum(1)


def normalized_over_rows(x):
    deviation, mean = torch.var_mean(x, (0, 1))
    return (x - mean) / torch.sqrt(deviation + 1e-5)


def grouped_convolution(x):
    images = x.reshape(2, 4, 4, 8)
    return F.conv2d(images, x.reshape(-1)[:72].reshape(8, 1, 3, 3), groups=4)


def convolution_and_gradients(x):
    images, weight = x.reshape(2, 2, 8, 8), x.reshape(-1)[:36].reshape(2, 2, 3, 3) * 0.5
    y = torch.tanh(F.conv2d(images, weight, stride=2, padding=1))
    back = (torch.nn.grad.conv2d_input, torch.nn.grad.conv2d_weight)
    given = ((images.shape, weight), (images, weight.shape))
    return y, *(f(*g, y * 2, stride=2, padding=1) + 1 for f, g in zip(back, given, strict=True))


def gradients_of_grouped_convolutions(x):
    images = x.reshape(2, 8, 4, 4) * 0.5
    back, found = (torch.nn.grad.conv2d_input, torch.nn.grad.conv2d_weight), []
    numbers = torch.cat([x.reshape(-1), x.reshape(-1)])
    for groups, outputs in ((8, 8), (2, 8), (4, 4), (8, 16)):
        weight = numbers[: outputs * 72 // groups].reshape(outputs, 8 // groups, 3, 3)
        y = torch.tanh(F.conv2d(images, weight, padding=1, groups=groups))
        given = ((images.shape, weight), (images, weight.shape))
        found += [f(*g, y, padding=1, groups=groups) + 1 for f, g in zip(back, given, strict=True)]
        found.append(F.conv_transpose2d(y, weight, groups=groups))
    return tuple(found)


def weight_gradient_of_many_pixels_of_one_channel(x):
    images = torch.sin(torch.arange(6 * 60 * 60).to(x)).reshape(6, 1, 60, 60)
    weight = x.reshape(-1)[:36].reshape(4, 1, 3, 3)
    return torch.nn.grad.conv2d_weight(images, weight.shape, F.conv2d(images, weight)) * 2


def weight_gradient_of_large_windows(x):
    images = torch.sin(torch.arange(4 * 76 * 76).to(x)).reshape(4, 1, 76, 76)
    weight = x.reshape(-1)[:242].reshape(2, 1, 11, 11)
    gradients = F.conv2d(images, weight, stride=2, padding=1)
    return torch.nn.grad.conv2d_weight(images, weight.shape, gradients, stride=2, padding=1) * 2


def weight_gradient_of_few_channels_beside_full_vectors(x):
    images = torch.sin(torch.arange(2 * 17 * 80).to(x)).reshape(2, 17, 8, 10)
    gradients = torch.cos(torch.arange(2 * 50 * 66).to(x)).reshape(2, 50, 6, 11) + x[0, 0, 0]
    return torch.nn.grad.conv2d_weight(images, (50, 17, 3, 4), gradients, padding=(1, 2), dilation=(2, 1)) * 2


def transposed_convolution(x):
    weight = x.reshape(-1)[:72].reshape(4, 2, 3, 3)
    return torch.relu(F.conv_transpose2d(x.reshape(2, 4, 4, 8), weight, stride=2, padding=1, output_padding=1))


def product_in_another_order(x):
    heads = (x[0] @ x[1].t() + x[0, 0, :8]).reshape(8, 2, 4).permute(1, 0, 2)
    return heads[0], heads[1] * 2


def product_used_twice_by_what_follows(x):
    return F.gelu(x[0] @ x[1].t())


def branches(x):
    images = x.reshape(1, 4, 8, 8)
    weights = x.reshape(-1)[:144].reshape(4, 4, 3, 3), x.reshape(-1)[144:208].reshape(4, 4, 2, 2)[:, :, :1, :1]
    ways = F.conv2d(images, weights[0], padding=1), F.conv2d(images, weights[1]), F.max_pool2d(images, 3, 1, 1)
    return F.conv2d(torch.cat([torch.relu(way) for way in ways], 1), x.reshape(-1)[:48].reshape(4, 12, 1, 1))


def lines_and_their_gradients(x):
    lines, weight = x.reshape(2, 4, 32), x.reshape(-1)[:48].reshape(4, 4, 3)
    y = torch.tanh(F.conv1d(F.pad(lines, (4, 0)), weight, dilation=2))
    back = torch.nn.grad.conv1d_input, torch.nn.grad.conv1d_weight
    given = ((lines.shape, weight), (lines, weight.shape))
    return F.conv_transpose1d(y, weight, stride=2), *(
        f(*g, y, padding=2, dilation=2) for f, g in zip(back, given, strict=True)
    )


def scattered_over_a_sum(x):
    total = 1 - x.sum((0, 1))
    return total.index_add(0, torch.arange(5) * 3, x[0, 0, :5]), torch.zeros(16).to(x).scatter(
        0, torch.arange(2), total
    )


def sum_of_products(x):
    rows, total = x[0], x[1]
    for index in range(6):
        total = total + F.silu(rows @ (x[0].t() * index)) @ x[1]
    return total


def steps_with_one_weight(x):
    weight = torch.tanh(x.reshape(16, 16))
    rows = x[0]
    for _ in range(3):
        rows = torch.tanh(rows @ weight.t())
    return rows


def one_matrix_times_rows_in_another_order(x):
    return F.linear(x.transpose(0, 1), x.reshape(16, 16), x[0, 0])


def large_products_of_far_rows_and_columns(x):
    wide = torch.tanh(x.reshape(1, -1) * torch.arange(300.0).to(x).reshape(-1, 1))
    return wide.t() @ wide


FUNCTIONS = (
    one_matrix_times_rows_in_another_order,
    scattered_over_a_sum, sum_of_products, steps_with_one_weight, large_products_of_far_rows_and_columns,
    lines_and_their_gradients,
    branches,
    product_in_another_order, product_used_twice_by_what_follows,
    convolution_and_gradients, transposed_convolution, gradients_of_grouped_convolutions,
    weight_gradient_of_many_pixels_of_one_channel, weight_gradient_of_large_windows,
    weight_gradient_of_few_channels_beside_full_vectors,
    softmax, layer_norm, attention, convolution_relu_pool, towers, repeated_product, padded, normalized_over_rows,
    grouped_convolution,
)  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_what_networks_are_made_of_gives_the_interpreters_answer(function, dtype):
    graph = run_pipeline(lift(weft.program(weft.hybridize(function), torch.randn(2, 8, 16, dtype=dtype)).graph))
    assert find_regions(graph, frozenset())
    assert not disagreements(graph)


@pytest.mark.parametrize(
    "function", [product_in_another_order, product_used_twice_by_what_follows], ids=lambda function: function.__name__
)
def test_what_follows_a_product_is_done_in_its_registers(function):
    graph = run_pipeline(lift(weft.program(weft.hybridize(function), torch.randn(2, 8, 16)).graph))
    (region,) = find_regions(graph, frozenset())
    calls = fuse(region, host_target()).plan.calls
    at = next(index for index, call in enumerate(calls) if isinstance(call.kernel, GemmKernel))
    assert calls[at].kernel.epilogue != Epilogue()
    assert len(calls) - at == (3 if function is product_in_another_order else 1)


def test_a_product_between_two_norms_that_are_handed_out_is_computed_once():
    def block(x, weight):
        first = F.layer_norm(x, (16,))
        second = first + first @ weight
        return first, second, F.layer_norm(second, (16,))

    graph = run_pipeline(lift(weft.program(block, torch.randn(4, 16), torch.randn(16, 16)).graph))
    [region] = find_regions(graph, frozenset())
    kinds = [type(call.kernel) for call in fuse(region, host_target()).plan.calls]
    assert [kinds.count(kind) for kind in (RowKernel, GemmKernel, LoopKernel)] == [2, 1, 0]


def test_branches_share_one_copy_of_their_image_and_are_joined_where_they_are_computed():
    graph = run_pipeline(lift(weft.program(weft.hybridize(branches), torch.randn(2, 8, 16)).graph))
    [region] = find_regions(graph, frozenset())
    loops = [call for call in fuse(region, host_target()).plan.calls if isinstance(call.kernel, LoopKernel)]
    assert len(loops) == 3  # the copy of the image, relu behind pooling, and the result in its caller's layout


def test_products_of_one_right_operand_share_its_panels():
    graph = run_pipeline(lift(weft.program(weft.hybridize(steps_with_one_weight), torch.randn(2, 8, 16)).graph))
    [region] = find_regions(graph, frozenset())
    kernels = [call.kernel for call in fuse(region, host_target()).plan.calls]
    assert [sum(isinstance(kernel, kind) for kernel in kernels) for kind in (GemmKernel, PackKernel)] == [3, 1]


def test_a_matrix_that_multiplies_rows_in_another_order_is_read_once():
    function = weft.hybridize(one_matrix_times_rows_in_another_order)
    graph = run_pipeline(lift(weft.program(function, torch.randn(2, 8, 16)).graph))
    [region] = find_regions(graph, frozenset())
    kernels = [call.kernel for call in fuse(region, host_target()).plan.calls]
    [product] = [kernel for kernel in kernels if isinstance(kernel, GemmKernel)]
    assert (product.batch, product.rows) == ((), 16)


def test_a_sum_of_many_products_grows_with_each_of_them():
    graph = run_pipeline(lift(weft.program(weft.hybridize(sum_of_products), torch.randn(2, 8, 16)).graph))
    [region] = find_regions(graph, frozenset())
    products = [call for call in fuse(region, host_target()).plan.calls if isinstance(call.kernel, GemmKernel)]
    added = [len(call.kernel.epilogue.operands) for call in products if call.kernel.columns == 16]
    assert added == [1] * 6


def test_operands_of_large_products_are_put_side_by_side_first():
    example = torch.randn(2, 8, 16)
    graph = run_pipeline(lift(weft.program(weft.hybridize(large_products_of_far_rows_and_columns), example).graph))
    [region] = find_regions(graph, frozenset())
    calls = fuse(region, host_target()).plan.calls
    [product] = [call.kernel for call in calls if isinstance(call.kernel, GemmKernel)]
    assert product.left.column == 1
    assert sum(isinstance(call.kernel, PackKernel) for call in calls) == 1


def test_convolutions_of_lines_are_in_one_region_with_what_is_around_them():
    graph = run_pipeline(lift(weft.program(weft.hybridize(lines_and_their_gradients), torch.randn(2, 8, 16)).graph))
    [region] = find_regions(graph, frozenset())
    assert set(region.outputs) == set(graph.roots())


def test_gradients_of_grouped_convolutions_are_in_one_region():
    program = weft.program(weft.hybridize(gradients_of_grouped_convolutions), torch.randn(2, 8, 16))
    graph = run_pipeline(lift(program.graph))
    [region] = find_regions(graph, frozenset())
    assert set(region.outputs) == set(graph.roots())


def test_what_both_gradients_of_a_convolution_read_is_computed_once():
    def gradients(x):
        images, weight = x.reshape(2, 8, 4, 4), x.reshape(-1)[:64].reshape(8, 8, 1, 1)
        gradient = torch.where(images > 0, images * 2, 0.0)
        back = torch.nn.grad.conv2d_input(images.shape, weight, gradient)
        return back, torch.nn.grad.conv2d_weight(images, weight.shape, gradient), gradient.sum((0, 2, 3))

    graph = run_pipeline(lift(weft.program(weft.hybridize(gradients), torch.randn(2, 8, 16)).graph))
    [region] = find_regions(graph, frozenset())
    kernels = [call.kernel for call in fuse(region, host_target()).plan.calls]
    choices = [
        line for kernel in kernels if isinstance(kernel, LoopKernel) for line in kernel.body if line.op == "select"
    ]
    assert len(choices) == 1
    assert not any(
        line.op == "select"
        for kernel in kernels
        if isinstance(kernel, RowKernel)
        for line in kernel.expression.stages[0].body
    )


@pytest.mark.parametrize(
    ("function", "images"),
    [(weight_gradient_of_many_pixels_of_one_channel, [2, 2, 2]), (weight_gradient_of_large_windows, [1, 1, 1, 1])],
    ids=["many pixels", "large windows"],
)
def test_a_gradient_in_a_single_tile_is_shared_out_by_images(function, images):
    program = weft.program(weft.hybridize(function), torch.randn(2, 8, 16))
    graph = run_pipeline(lift(program.graph))
    [region] = find_regions(graph, frozenset())
    kernels = [call.kernel for call in fuse(region, host_target()).plan.calls]
    found = [kernel.conv.images for kernel in kernels if isinstance(kernel, WeightGradientKernel)]
    assert found == images


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(40, 12), (128, 128), (3, 5, 8)], ids=str)
def test_positions_stay_where_they_are_when_another_dimension_than_the_last_is_reduced(shape, no_kept_plans):
    def triangle(x):
        return F.softmax(x, -2).triu(1)

    x = torch.randn(shape)
    torch.testing.assert_close(weft.hybridize(triangle)(x), triangle(x))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_graphs_give_the_interpreters_answer(seed):
    for number, graph in enumerate(random_graphs(seed, GRAPHS_OF_A_SEED)):
        weights = graph.inputs if number % 2 else ()
        assert not disagreements(graph, weights, number, loose=number % 3 == 0)
