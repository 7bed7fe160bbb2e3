"""A program given as text: defined, compiled and executed, with errors that show its lines."""

import threading
import traceback

import pytest
import torch

from weft.api.source import compile_source
from weft.errors import UnsupportedError, UsageError
from weft.ir.printer import print_graph

DEFINITIONS = """
def add(a, b):
    return a + b

def fancy_func(a, b, c, d):
    e = add(a, b)
    f = add(c, d)
    g = add(e, f)
    return g
"""
CHAPTER = DEFINITIONS + "\nprint(fancy_func(1, 2, 3, 4))\n"


def test_the_chapters_three_steps_are_visible(capsys):
    program = compile_source(CHAPTER)
    assert program.source == CHAPTER
    assert str(program) == CHAPTER
    assert program.optimised == "print(10)"
    assert program.stages == (
        ("source", CHAPTER),
        ("inlined", "print((1 + 2) + (3 + 4))"),
        ("folded", "print(10)"),
    )
    assert capsys.readouterr().out == ""
    assert program.run() is None
    assert capsys.readouterr().out == "10\n"


def test_running_gives_the_value_in_which_the_program_ends():
    assert compile_source("a + b").run(a=1, b=2) == 3


def test_running_a_program_without_a_last_value_gives_the_names_it_binds():
    names = compile_source("'about'\nx: int = 1\ny = x + start").run(start=2)
    assert names == {"x": 1, "y": 3, "start": 2}


def test_every_run_starts_afresh():
    program = compile_source("seen = []\nseen.append(1)\nseen")
    assert program.run() == [1]
    assert program.run() == [1]


def test_a_name_given_to_run_may_be_one_of_pythons_own():
    printed = []
    compile_source(CHAPTER).run(print=printed.append)
    assert printed == [10]


def test_a_program_may_ask_whether_it_is_the_main_one():
    text = "def main():\n    return 3\nresult = main() if __name__ == '__main__' else None"
    assert compile_source(text).run()["result"] == 3


def test_a_function_is_given_without_running_the_last_expression(capsys):
    program = compile_source(CHAPTER)
    assert program.function("fancy_func")(1, 2, 3, 4) == 10
    assert program.function("add")(1, 2) == 3
    assert capsys.readouterr().out == ""


def test_a_function_works_on_tensors_and_stores_no_step():
    function = compile_source(DEFINITIONS).function("fancy_func")
    tensors = [torch.full((2,), float(value)) for value in (1, 2, 3, 4)]
    assert torch.equal(function(*tensors), torch.full((2,), 10.0))
    assert function.__code__.co_varnames == ("a", "b", "c", "d")


def test_on_tensors_the_program_is_a_graph_of_three_sums_with_the_lines_of_the_text():
    text = print_graph(compile_source(CHAPTER).graph("fancy_func", *(torch.ones(2) for _ in range(4))))
    body = [line for line in text.splitlines() if " = " in line]
    assert [line.partition("#")[2].partition(":")[2].split()[0] for line in body] == ["6", "7", "8"]
    assert "%e" not in text
    assert "%f" not in text


def test_a_hybridized_function_of_a_program_agrees_with_the_text(capsys):
    tensors = [torch.full((2,), float(value)) for value in (1, 2, 3, 4)]
    assert torch.equal(compile_source(CHAPTER).hybridize("fancy_func")(*tensors), torch.full((2,), 10.0))
    assert capsys.readouterr().out == ""


def test_what_cannot_be_traced_is_refused_with_the_line_of_the_text():
    function = compile_source("def f(a):\n    return 1 if a.sum() > 0 else 2\n").hybridize("f")
    with pytest.raises(UnsupportedError, match="branches on the value of a tensor") as caught:
        function(torch.ones(2))
    assert caught.value.where.endswith(":2   return 1 if a.sum() > 0 else 2")


def test_a_function_sees_the_names_it_is_given():
    assert compile_source("def f(a):\n    return a * scale").function("f", scale=3)(2) == 6


@pytest.mark.parametrize("name, why", [("missing", "the name is not bound"), ("x", "x is a int")])
def test_asking_for_what_is_no_function_names_the_functions_there_are(name, why):
    with pytest.raises(UsageError) as caught:
        compile_source("x = 1\n" + DEFINITIONS).function(name)
    assert f"the program has no function {name}" in str(caught.value)
    assert why in str(caught.value)
    assert "(add, fancy_func)" in str(caught.value)


@pytest.mark.parametrize(
    "text, line",
    [
        ("x = 1\n\nreturn x +\n", "<source>:3   return x +"),
        ("x = 1\nreturn x\n", "<source>:2   return x"),
        ("if x:\ny = 1\n", "<source>:2   y = 1"),
        ("for x in y:\n    pass\nbreak\n", "<source>:3   break"),
        ("x = 1\0", "<source>:1   x = 1"),
        ("x = (" + "1 + " * 100 + ")\n", "<source>:1   x = (1 +"),
    ],
)
def test_a_text_that_is_no_program_is_refused_with_its_line(text, line):
    with pytest.raises(UsageError, match="the text is not a Python program") as caught:
        compile_source(text)
    assert caught.value.where.startswith(line)
    assert caught.value.fix


@pytest.mark.parametrize("text", ["(" * 5000 + ")" * 5000, "x = " + "-" * 100_000 + "1"])
def test_a_text_nested_too_deeply_is_refused(text):
    with pytest.raises(UsageError):
        compile_source(text)


def test_a_lone_surrogate_is_refused():
    with pytest.raises(UsageError, match="not a Python program"):
        compile_source("x = '\ud800'")


@pytest.mark.parametrize("text", [b"x = 1", None, compile_source])
def test_only_text_is_compiled(text):
    with pytest.raises(UsageError, match="takes the text of a program"):
        compile_source(text)


def test_a_traceback_shows_the_users_line():
    program = compile_source("def div(a, b):\n    return a / b\n\nx = 1\nprint(div(x, 0))  # here\n")
    assert program.optimised.endswith("print(x / 0)")
    with pytest.raises(ZeroDivisionError) as caught:
        program.run()
    assert "print(div(x, 0))  # here" in "".join(traceback.format_exception(caught.value))


def test_programs_with_different_texts_keep_their_own_lines():
    first, second = compile_source("\nunknown_one"), compile_source("\nunknown_two")
    for program, line in ((first, "unknown_one"), (second, "unknown_two")):
        with pytest.raises(NameError) as caught:
            program.run()
        shown = traceback.extract_tb(caught.value.__traceback__)[-1]
        assert (shown.line, shown.lineno) == (line, 2)


def test_the_notes_say_why_a_call_stays_a_call():
    program = compile_source("def down(n):\n    return down(n - 1) if n else 0\ndown(3)")
    assert program.notes == ("down stays a function: it is recursive",)
    assert program.run() == 0


def test_options_of_this_package_do_not_leak_into_the_program():
    assert compile_source("def f(a: 1): pass\nannotated = f.__annotations__").run()["annotated"] == {"a": 1}


def test_one_program_runs_on_several_threads():
    program, results = compile_source(DEFINITIONS + "fancy_func(n, n, n, n)"), []
    threads = [threading.Thread(target=lambda n=n: results.append(program.run(n=n))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert sorted(results) == [4 * n for n in range(8)]


def test_a_compiled_source_says_what_it_is():
    assert repr(compile_source("1 + 1\n")) == "<weft.Source of 1 lines: source, folded>"
