"""Stages of whole programs: what is optimised, what stays as it is, and why."""

import ast

import pytest

from weft.trace.source import optimise

CHAPTER = """
def add(a, b):
    return a + b

def fancy_func(a, b, c, d):
    e = add(a, b)
    f = add(c, d)
    g = add(e, f)
    return g
"""
PROGRAMS = {
    "chapter": CHAPTER + "\nprint(fancy_func(1, 2, 3, 4))\n",
    "chapter_without_an_end": CHAPTER,
    "arguments_in_order": """
def first(a, b):
    return a - b
def swapped(a, b):
    return b - a
def square(a):
    return a * a
x = 3
print(first(input(), input()))
print(swapped(input(), input()))
print(swapped(input(), x))
print(square(x), square(x + 1), square(1 + 2))
print(square(unknown))
""",
    "keywords_and_defaults": """
def scale(x, by=2, *, plus=0):
    return x * by + plus
print(scale(5), scale(by=3, x=4), scale(1, plus=0.5))
print(scale(1, 2, 3), scale(*[1]), scale(1, times=2))
""",
    "hygiene": """
x = 2
def outer(a):
    return a + x
def hidden(x):
    return outer(x)
def seen(y):
    return outer(y)
print([outer(x) for x in range(3)], [outer(y) for y in range(3)])
hidden(1) + seen(1)
""",
    "not_straight": """
def recursive(n):
    return recursive(n - 1) if n else 0
def branchy(n):
    if n:
        return 1
    return 2
def changing(n):
    n += 1
    return n
def yielding(n):
    yield n
@staticmethod
def decorated(n):
    return n
def calling(n):
    return n.query("@n")
def many(*n):
    return n
def ending(n):
    n = 1
def early(n):
    m = k
    k = n
    return m
def naming(n):
    return (m := n)
print(recursive(1), branchy(1), changing(1), yielding(1), decorated(1), calling(1), many(1), ending(1), early(1))
print(naming(1))
""",
    "peeking": """
def add(a, b):
    return a + b
print(add(1, 2) + 1 + 1, 3 * 4, sorted(globals()))
""",
    "rebound": """
def add(a, b):
    return a + b
def mul(a, b):
    return a * b
if unknown:
    mul = print
print(add(1, 2), mul(3, 4))
""",
    "too_early": """
def twice(a):
    return once(a) + once(a)
print(twice(1))
def once(a):
    return a + 1
print(twice(1))
""",
    "folding": """
print(1 / 0, 2 ** 10, 2 ** 10 ** 9, 'a' * 10, 'a' * 10 ** 9, -0.0 * 1, 1e308 * 10, (1, 2) + (3,), 7 // 2, 7.0 // 2)
print(1 < 2 < 3, 1 in (1, 2), not 1, ~5, ~True, True + True, 'x' if 1 > 2 else y, 0 or y, 1 and 2 and y, '%d' % 3)
print(0 * x, x + 0, -1 ** 2, (-1) ** 2, (-8) ** 0.5, 1 if x else 2, 0.1 + 0.2, 3 % -2, 'a' < 'b', 1 is 1, 'ab'[0])
""",
}


def shown(text):
    result = optimise(text, ast.parse(text))
    stages = [f"--- {stage.name}\n{stage.text.strip()}" for stage in result.stages]
    return "\n".join([*stages, *(["--- notes", *result.notes] if result.notes else [])])


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_stage_reads_as_its_golden_file(golden, name):
    golden("source", name, shown(PROGRAMS[name]))


def last(text):
    return optimise(text, ast.parse(text)).stages[-1].text


def test_the_chapters_program_becomes_one_print():
    result = optimise(PROGRAMS["chapter"], ast.parse(PROGRAMS["chapter"]))
    assert [(stage.name, stage.text) for stage in result.stages[1:]] == [
        ("inlined", "print((1 + 2) + (3 + 4))"),
        ("folded", "print(10)"),
    ]


def test_inlined_expressions_keep_the_line_of_the_call():
    text = CHAPTER + "\nx = 1\nprint(fancy_func(x, x, x, x))\n"
    call = optimise(text, ast.parse(text)).stages[-1].tree.body[-1]
    assert {node.lineno for node in ast.walk(call) if isinstance(node, ast.expr)} == {12}


def test_a_flattened_function_keeps_the_line_of_each_step():
    text = "def f(a, b):\n    e = a + b\n    g = e * 2\n    return g\n"
    returned = optimise(text, ast.parse(text)).definitions.body[0].body[0].value
    assert (returned.lineno, returned.left.lineno) == (3, 2)


def test_a_program_that_nothing_changes_keeps_its_text_with_comments():
    text = "x = 1  # one\n"
    assert last(text) == text


@pytest.mark.parametrize(
    "text, reason",
    [
        ("x = " + "[" * 70 + "]" * 70, "nested more than 60 deep"),
        ("x = 0x" + "f" * 2000, "a number of more than 4000 bits"),
        ("x = [" + "1," * 30_000 + "]", "more than 20000 parts"),
    ],
)
def test_a_program_too_large_for_the_passes_runs_as_written(text, reason):
    result = optimise(text, ast.parse(text))
    assert [stage.name for stage in result.stages] == ["source"]
    assert reason in result.notes[0]


def test_functions_that_would_double_forever_are_inlined_only_so_far():
    doubling = "".join(f"def f{i}(a):\n    return f{i - 1}(a) + f{i - 1}(a)\n" for i in range(1, 60))
    text = "def f0(a):\n    return a\n" + doubling + "x = 1\nprint(f59)\n"
    assert len(last(text)) < 100_000


def test_a_chain_of_many_functions_becomes_one_expression():
    chain = "".join(f"def f{i}(a):\n    return f{i - 1}(a)\n" for i in range(1, 100))
    assert last("def f0(a):\n    return a\n" + chain + "print(f99(7))\n") == "print(7)"


@pytest.mark.parametrize(
    "text",
    [
        "f'{1 + 2!r:>{3 + 4}}' + 'x'\n",
        "match x:\n    case -1 | 1 + 2j:\n        y = 1 + 1\n",
        "x: 1 + 1 = 2 + 2\n",
        "def f(a: 1 + 1 = 2 + 2) -> 3 + 3:\n    return a\n",
        "async def f(a):\n    return a + (1 + 1)\n",
        "class C:\n    'a' 'b'\n    def f(self):\n        'a' + 'b'\n        return 1 + 1\n",
        "def f(a):\n    return a\nx = lambda y=f(1): f(y)\n",
        "with open(1 + 1) as f:\n    pass\n",
        "from __future__ import annotations\ndef f(a: 1 + 1):\n    return a\nx = f(1)\n",
        "x = (yield_ := 1) + (1 if True else yield_)\n",
    ],
)
def test_every_stage_reads_back_as_the_tree_that_runs(text):
    for stage in optimise(text, ast.parse(text)).stages:
        assert ast.dump(ast.parse(stage.text)) == ast.dump(stage.tree)


def test_annotations_stay_as_written():
    text = "def f(a: 1 + 1=2 + 2) -> 3 + 3:\n    x: 4 + 4 = 5 + 5\n    return x + g()"
    assert last(text) == text.replace("5 + 5", "10")


def test_a_sum_of_texts_never_becomes_a_docstring():
    assert last("def f(a):\n    'a' + 'b'\n    return 1 + 1\n") == "def f(a):\n    'a' + 'b'\n    return 2"


def test_an_argument_that_pauses_or_binds_is_left_in_its_call():
    text = "def f(a, b):\n    return a + b\ndef g():\n    x = f((yield), 1)\n    return f((y := 2), 1)\n"
    assert last(text) == text
