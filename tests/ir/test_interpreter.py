"""The interpreter gives what eager PyTorch gives: values, layouts, writes, aliases, random numbers."""

import pytest
import torch
from hypothesis import given
from tests.ir.random_graphs import graphs, random_inputs

from weft.errors import InternalError, UsageError
from weft.ir.graph import Place, Value
from weft.ir.interpreter import evaluate, interpret, with_strides
from weft.ir.parser import parse_graph
from weft.ir.types import contiguous


def run(text: str, *inputs: object) -> list[object]:
    return interpret(parse_graph(text), inputs)


def test_writes_go_into_the_inputs_and_results_are_views_of_them():
    x = torch.zeros(2, 3)
    [row] = run(
        """graph g(%x: f32[2,3]) {
          %0: f32[2,3] = update aten.fill_.Scalar(!0, 5.0) on !0 = %x via aten.select.int(_, 0, 1)
          write %x <- %0
          return %x via aten.select.int(_, 0, 1)
        }""",
        x,
    )
    assert x.tolist() == [[0, 0, 0], [5, 5, 5]]
    assert row.data_ptr() == x[1].data_ptr()


def test_values_keep_what_inputs_were_before_the_writes():
    x = torch.tensor([1.0, 2.0])
    before, after = run(
        """graph g(%x: f32[2]) {
          %0: f32[2] = neg %x
          %1: f32[2] = reshape %x, shape=[2]
          write %x <- %0
          return %1, %x
        }""",
        x,
    )
    assert after is x
    assert x.tolist() == [-1, -2]
    assert before.tolist() == [1, 2]


def test_two_inputs_can_swap():
    x, y = torch.zeros(2), torch.ones(2)
    run("graph g(%x: f32[2], %y: f32[2]) { write %x <- %y write %y <- %x return }", x, y)
    assert (x.tolist(), y.tolist()) == ([1, 1], [0, 0])


def test_results_are_in_memory_of_their_own():
    x = torch.zeros(2, 2)
    turned, again = run(
        """graph g(%x: f32[2,2]) {
          %0: f32[2,2]{1,2} = library aten.t.default(%x)
          %1: f32[2,2] = library aten.t.default(%0)
          return %0, %1
        }""",
        x,
    )
    assert len({turned.data_ptr(), again.data_ptr(), x.data_ptr()}) == 3
    assert turned.stride() == (1, 2)


def test_one_value_returned_twice_is_one_tensor():
    one, two = run("graph g(%x: f32[2]) { %0: f32[2] = neg %x return %0, %0 }", torch.zeros(2))
    assert one is two


def test_an_update_does_not_touch_its_operand():
    x = torch.zeros(2)
    [new, old] = run(
        "graph g(%x: f32[2]) { %0: f32[2] = update aten.add_.Tensor(!0, %x, alpha=1) on !0 = %x"
        " %1: f32[2] = update aten.add_.Scalar(!0, 7) on !0 = %0 return %1, %0 }",
        x,
    )
    assert (x.tolist(), old.tolist(), new.tolist()) == ([0, 0], [0, 0], [7, 7])


def test_written_places_of_one_base_share_a_copy():
    text = """graph g(%x: f32[2]) {
      %0: TYPE = update aten.aminmax.out(%x, min=!0, max=!1) on !0 = %x via aten.select.int(_, 0, 0), !1 = OWNER
      RETURN
    }"""
    one = text.replace("TYPE", "f32[2]").replace("OWNER", "!0 via aten.select.int(_, 0, 1)")
    [both] = run(one.replace("RETURN", "return %0"), torch.tensor([3.0, 1.0]))
    assert both.tolist() == [1, 3]
    two = text.replace("TYPE", "(f32[2], f32[2])").replace("OWNER", "%x via aten.select.int(_, 0, 1)")
    items = "%1: f32[2] = item %0, index=0 %2: f32[2] = item %0, index=1 return %1, %2"
    left, right = run(two.replace("RETURN", items), torch.tensor([3.0, 1.0]))
    assert (left.tolist(), right.tolist()) == ([1, 1], [3, 3])


def test_an_update_gives_fresh_results_before_new_states():
    mean, count = run(
        """graph g(%x: f32[2,3], %m: f32[3], %v: f32[3]) {
          %0: (f32[2,3], f32[3], f32[3], f32[3], f32[3]) = update aten._native_batch_norm_legit.default(
            %x, None, None, !0, !1, True, 1.0, 1e-05) on !0 = %m, !1 = %v
          %1: f32[3] = item %0, index=3
          %2: f32[2,3] = item %0, index=0
          return %1, %2
        }""",
        torch.tensor([[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]]),
        torch.zeros(3),
        torch.ones(3),
    )
    assert mean.tolist() == [2, 3, 4]
    assert count.shape == (2, 3)


def test_a_view_of_a_copy_may_reach_what_lies_between_the_elements():
    x = torch.arange(6.0).reshape(3, 2)[:, 0]
    [result] = run(
        """graph g(%x: f32[3]{2}) {
          %0: f32[3]{2} = update aten.neg_.default(!0) on !0 = %x via aten.as_strided.default(_, [6], [1], 0)
          return %0 via aten.as_strided.default(_, [6], [1], 0)
        }""",
        x,
    )
    assert result.tolist() == [0, -1, -2, -3, -4, -5]


def test_declared_strides_are_what_library_calls_see():
    [strided] = run(
        """graph g(%x: f32[2,3]) {
          %0: f32[2,3]{1,2} = neg %x
          %1: f32[2,3]{1,2} = library aten.clone.default(%0)
          return %1
        }""",
        torch.ones(2, 3),
    )
    assert strided.stride() == (1, 2)


@pytest.mark.parametrize("strides", [(3, 1), (1, 2), (6, 2), (1, 10)])
def test_strides_do_not_change_elements(strides):
    x = torch.arange(6.0).reshape(2, 3)
    moved = with_strides(x, strides)
    assert moved.stride() == strides
    assert torch.equal(moved, x)


def test_strides_of_zero_share_a_place():
    assert with_strides(torch.ones(2, 3), (0, 1)).untyped_storage().nbytes() == 12
    assert with_strides(torch.ones(0, 3), (5, 1)).stride() == (5, 1)


def test_reductions_of_no_dimensions_change_nothing():
    x = torch.randn(2, 3)
    for op in ("sum", "prod", "min", "max"):
        [result] = run(f"graph g(%x: f32[2,3]) {{ %0: f32[2,3] = {op} %x, dimensions=[], keep=False return %0 }}", x)
        assert torch.equal(result, x)


def test_sums_of_small_integers_wrap():
    x = torch.full((3,), 100, dtype=torch.int8)
    [result] = run("graph g(%x: i8[3]) { %0: i8[] = sum %x, dimensions=[0], keep=False return %0 }", x)
    assert result.item() == 300 - 256


def test_random_operators_follow_the_generator():
    text = """graph g(%x: f32[8]) {
      %0: u8[5056] = random_state
      %1: f32[8] = library aten.bernoulli.p(%x, 0.5)
      %2: nothing = set_random_state %0
      %3: f32[8] = library aten.bernoulli.p(%x, 0.5)
      return %1, %3
    }"""
    torch.manual_seed(3)
    first, second = run(text, torch.zeros(8))
    torch.manual_seed(3)
    assert torch.equal(first, torch.bernoulli(torch.zeros(8), 0.5))
    assert torch.equal(first, second)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pooling_works_in_one_to_three_dimensions(rank):
    sizes = ",".join(["5"] * rank)
    out = ",".join(["3"] * rank)
    window = ", ".join(
        f"{name}=[{', '.join([number] * rank)}]" for name, number in [("kernel_size", "2"), ("stride", "2")]
    )
    ones, zeros = "[" + ", ".join(["1"] * rank) + "]", "[" + ", ".join(["0"] * rank) + "]"
    most = f"{window}, padding={zeros}, dilation={ones}, ceil_mode=True"
    mean = f"{window}, padding={zeros}, ceil_mode=True, count_include_pad=False, divisor_override=None"
    x = torch.randn([2, 3] + [5] * rank, requires_grad=True)
    largest, gradient, average, average_gradient = run(
        f"""graph g(%x: f32[2,3,{sizes}]) {{
          %p: (f32[2,3,{out}], i64[2,3,{out}]) = max_pool %x, {most}
          %v: f32[2,3,{out}] = item %p, index=0
          %i: i64[2,3,{out}] = item %p, index=1
          %g: f32[2,3,{sizes}] = max_pool_gradient %v, %x, %i, {most}
          %a: f32[2,3,{out}] = average_pool %x, {mean}
          %h: f32[2,3,{sizes}] = average_pool_gradient %v, %x, {mean}
          return %v, %g, %a, %h
        }}""",
        x,
    )
    functions = torch.nn.functional
    expected = getattr(functions, f"max_pool{rank}d")(x, 2, ceil_mode=True)
    torch.testing.assert_close(largest, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, x, expected)[0])
    expected_mean = getattr(functions, f"avg_pool{rank}d")(x, 2, ceil_mode=True, count_include_pad=False)
    torch.testing.assert_close(average, expected_mean)
    torch.testing.assert_close(average_gradient, torch.autograd.grad(expected_mean, x, expected.detach())[0])


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolutions_and_their_gradients_agree_with_autograd(rank):
    kernels, sizes, out = (",".join([extent] * rank) for extent in ("3", "6", "3"))
    lists = {name: "[" + ", ".join([number] * rank) + "]" for name, number in [("s", "2"), ("p", "1"), ("d", "1")]}
    given = f"stride={lists['s']}, padding={lists['p']}, dilation={lists['d']}, groups=2"
    x = torch.randn([2, 4] + [6] * rank, requires_grad=True)
    w = torch.randn([6, 2] + [3] * rank, requires_grad=True)
    result, for_input, for_weight = run(
        f"""graph g(%x: f32[2,4,{sizes}], %w: f32[6,2,{kernels}]) {{
          %y: f32[2,6,{out}] = convolution %x, %w, {given}
          %i: f32[2,4,{sizes}] = convolution_input_gradient %y, %w, shape=[2, 4, {sizes}], {given}
          %k: f32[6,2,{kernels}] = convolution_weight_gradient %x, %y, shape=[6, 2, {kernels}], {given}
          return %y, %i, %k
        }}""",
        x,
        w,
    )
    expected = getattr(torch.nn.functional, f"conv{rank}d")(x, w, None, 2, 1, 1, 2)
    gradients = torch.autograd.grad(expected, (x, w), expected)
    torch.testing.assert_close((result, for_input, for_weight), (expected, *gradients), rtol=1e-4, atol=1e-4)


@given(graphs(calls=False))
def test_random_graphs_of_small_ops_give_declared_types_and_leave_other_inputs_alone(graph):
    inputs = random_inputs(graph)
    written = {write.input for write in graph.writes}
    interpret(graph, inputs)
    for declared, used, fresh in zip(graph.inputs, inputs, random_inputs(graph), strict=True):
        if declared not in written and isinstance(used, torch.Tensor):
            assert torch.equal(used, fresh)


REFUSED_INPUTS = [
    ((), "graph g takes 2 inputs, not 0"),
    ((torch.zeros(3), 1), "input x of graph g is f32[2], not f32[3]"),
    ((torch.zeros(2, dtype=torch.float64), 1), "input x of graph g is f32[2], not f64[2]"),
    ((torch.zeros(4)[::2], 1), "input x of graph g is f32[2], not f32[2]{2}"),
    ((1, 1), "input x of graph g is f32[2], not a int"),
    ((torch.zeros(2), 1.0), "input n of graph g is int, not 1.0"),
    ((torch.zeros(2), True), "input n of graph g is int, not True"),
]


@pytest.mark.parametrize("inputs, message", REFUSED_INPUTS, ids=[message for _, message in REFUSED_INPUTS])
def test_inputs_of_other_types_are_refused(inputs, message):
    with pytest.raises(UsageError) as caught:
        run("graph g(%x: f32[2], %n: int) { return %x }", *inputs)
    assert str(caught.value) == message


def test_an_operator_that_is_not_registered_is_a_clear_error():
    with pytest.raises(UsageError, match="there is no operator nowhere::relu"):
        run("graph g(%x: f32[2]) { %0: f32[2] = library nowhere.relu.default(%x) return }", torch.zeros(2))


def test_a_wrong_declaration_of_a_library_call_is_found():
    with pytest.raises(InternalError, match=r"library gave f32\[2\], declared as f32\[3\]"):
        run("graph g(%x: f32[2]) { %0: f32[3] = library aten.relu.default(%x) return }", torch.zeros(2))


def test_an_error_of_pytorch_stays_what_it_is_and_names_the_line():
    value = Value("library", (), contiguous(torch.float32, ()), {"call": parse_call()}, Place("net.py", 7))
    with pytest.raises(RuntimeError) as caught:
        evaluate(value, [torch.zeros(2, 2), torch.zeros(3)])
    assert getattr(caught.value, "__notes__", ["at net.py:7"]) == ["at net.py:7"]


def parse_call():
    graph = parse_graph("graph g(%x: f32[2,2], %y: f32[3]) { %0: f32[2] = library aten.mv.default(%x, %y) return }")
    return graph.values[0].attributes["call"]


def test_an_op_without_a_rule_is_our_own_mistake():
    with pytest.raises(InternalError, match="no rule for the op nope"):
        evaluate(Value("nope", (), contiguous(torch.float32, ())), [])
