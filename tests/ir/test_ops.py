"""Every op row is complete: a meaning, a type, an interpreter rule, an example with a golden file."""

from pathlib import Path

import pytest
import torch
from tests.ir.examples import example, sample_inputs

from weft.errors import InternalError, UsageError
from weft.ir.graph import Value
from weft.ir.interpreter import RULES, interpret
from weft.ir.ops import OPS, Op, build, effect_of, infer_type, table
from weft.ir.parser import parse_graph
from weft.ir.printer import print_graph
from weft.ir.types import contiguous
from weft.ir.verifier import DECLARED, verify

X = Value("input", (), contiguous(torch.float32, (2, 3)), name="x")
GOLDEN = Path(__file__).parent.parent / "golden" / "ir"


def results_text(results: list[object]) -> str:
    """Results as text that is the same on every machine: four digits, no long lists."""
    lines = []
    for result in results:
        if not isinstance(result, torch.Tensor):
            lines.append(repr(result))
        elif result.numel() > 32:
            lines.append(f"{result.dtype} {list(result.shape)}")
        else:
            numbers = " ".join(f"{number:.4g}" for number in result.double().reshape(-1).tolist())
            lines.append(f"{result.dtype} {list(result.shape)} {numbers}")
    return "\n".join(lines)


@pytest.mark.parametrize("op", OPS)
def test_an_op_has_a_golden_example_that_verifies_and_runs(op, golden):
    graph = example(op)
    verify(graph)
    assert op in [value.op for value in graph]
    results = interpret(graph, sample_inputs(graph))
    golden("ir", op, f"# {OPS[op].meaning}\n{print_graph(graph)}--- results\n{results_text(results)}")


def test_every_golden_file_belongs_to_an_op():
    files = {path.stem for path in GOLDEN.glob("*.txt")}
    assert not files ^ set(OPS), "run pytest tests/ir --bless, and read what it writes to tests/golden/ir"


def test_every_op_has_an_interpreter_rule():
    assert not set(RULES) ^ set(OPS), "src/weft/ir/interpreter.py has a rule for each op and no other"


@pytest.mark.parametrize("op", OPS)
def test_every_op_has_a_type_rule_or_a_check_of_its_declared_type(op):
    assert (OPS[op].infer is None) == (op in DECLARED)


@pytest.mark.parametrize("row", OPS.values(), ids=lambda row: row.name)
def test_every_op_says_what_it_means(row):
    assert row.meaning
    assert not row.meaning.endswith(".")


@pytest.mark.parametrize("row", [row for row in OPS.values() if row.commutative], ids=lambda row: row.name)
def test_a_commutative_op_gives_the_same_either_way_round(row):
    graph = example(row.name)
    one, other = sample_inputs(graph)
    assert torch.equal(interpret(graph, [one, other])[0], interpret(graph, [other, one])[0])


@pytest.mark.parametrize("row", [row for row in OPS.values() if row.elementwise], ids=lambda row: row.name)
def test_an_elementwise_op_keeps_the_shape(row):
    [value] = example(row.name).values
    assert value.type.shape == value.operands[0].type.shape


def test_two_rows_of_one_name_are_refused():
    row = Op("twice", 1, None, "a row")
    with pytest.raises(InternalError, match="two rows for the op twice"):
        table(row, row)


def test_build_gives_the_type_of_the_rule():
    assert build("sum", X, dimensions=(0,), keep=True).type == contiguous(torch.float32, (1, 3))


def test_build_takes_a_declared_type():
    transposed = contiguous(torch.float32, (3, 2))
    assert build("permute", X, order=(1, 0), type=transposed).type is transposed


def test_a_type_error_names_the_op_and_the_remedy():
    with pytest.raises(UsageError) as caught:
        build("add", X, build("cast", X, dtype=torch.float64))
    assert str(caught.value) == (
        "add: operands differ in dtype: f32[2,3], f64[2,3]\n  fix   make the promotion explicit with cast"
    )


def test_a_declared_type_cannot_be_inferred():
    with pytest.raises(UsageError, match="library: the type of its result must be declared"):
        infer_type("library", (), {})


def test_a_wrong_number_of_operands_is_refused():
    with pytest.raises(UsageError, match="neg takes 1 operands, not 2"):
        build("neg", X, X)


@pytest.mark.parametrize(
    "call, effect",
    [
        ("aten.add.Tensor(%x, %x)", None),
        ("aten.bernoulli.default(%x)", "random"),
        ("aten._assert_async.default(%x)", "order"),
    ],
)
def test_effects_of_library_calls_come_from_their_schemas(call, effect):
    graph = parse_graph(f"graph g(%x: f32[2]) {{ %0: f32[2] = library {call} return }}")
    assert effect_of(graph.values[0]) == effect


def test_random_state_is_an_effect():
    assert effect_of(example("random_state").values[0]) == "random"
