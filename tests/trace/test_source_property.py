"""Random programs do the same before and after they are optimised: output, result, names, exception and its line."""

import ast
import contextlib
import io
import warnings

import hypothesis.strategies as st
from hypothesis import given, settings
from tests.trace.random_programs import Writer

from weft.trace.source import optimise

SEEDS = st.integers(0, 2**40)


def failing_line(error):
    """Give the line of the program's top level that was running."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename != "<program>":
        trace = trace.tb_next
    return trace.tb_lineno if trace else None


def behaviour(tree):
    """Run a program and give everything that can be seen of it."""
    output, namespace, value, failure = io.StringIO(), {"__name__": "program"}, None, None
    body = list(tree.body)
    last = body.pop().value if isinstance(body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(output), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            exec(compile(ast.Module(body, []), "<program>", "exec"), namespace)
            if last is not None:
                value = repr(eval(compile(ast.Expression(last), "<program>", "eval"), namespace))
        except Exception as error:  # noqa: BLE001  (whatever a random program raises is what is compared)
            failure = type(error).__name__, str(error), failing_line(error)
    visible = {name: repr(item) for name, item in namespace.items() if not callable(item) and name[:2] != "__"}
    return output.getvalue(), value, failure, visible, {str(warning.message) for warning in warned}


def check(text):
    """Compare a program with each of its stages; give the names of the stages."""
    tree = ast.parse(text)
    *expected, expected_warnings = behaviour(tree)
    result = optimise(text, tree)
    for tree in (*(stage.tree for stage in result.stages), result.definitions):
        *seen, seen_warnings = behaviour(tree)
        assert seen == expected, f"{text}\n--- becomes\n{ast.unparse(tree)}"
        assert seen_warnings <= expected_warnings, f"{text}\n--- becomes\n{ast.unparse(tree)}"
    return [stage.name for stage in result.stages]


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_a_random_program_does_the_same_at_every_stage(seed):
    check(Writer(seed).program())


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_folding_alone_never_changes_an_expression(seed):
    check(Writer(seed).expression(("missing",), 4))


def test_many_random_programs_are_inlined_and_folded_so_that_comparing_them_means_something():
    seen = [name for seed in range(30) for name in check(Writer(seed).program())]
    assert seen.count("inlined") > 6
    assert seen.count("folded") > 3
