"""docs/errors has a page for each refusal, made from the table of refusals and from examples that run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.error_examples import EXAMPLES

import weft
from weft.errors import UnsupportedError
from weft.trace.interception.refusals import REFUSALS

FOLDER = Path(__file__).parents[1] / "docs" / "errors"
WRITTEN_BY_HAND = {
    "checkpoint.md": "a checkpoint cannot be written or loaded",
    "mismatch.md": "a checked call does something else than eager PyTorch",
    "broken-size.md": "a call breaks what was promised of its sizes",
    "fixed-size.md": "a size does not vary",
}
INDEX = """# What is not a whole program

Code that looks at values runs as [paths](../hybridize.md#code-that-looks-at-values), programs that end where it
decides; other such code is run by Python at each call, as it is without Weft: `weft.explain(net)` tells which, with
your line. With `weft.hybridize(net, whole=True)`, or `WEFT_WHOLE=on`, both are an `UnsupportedError` instead; so they
are where a program is asked for: `weft.program(net, x)`, which `save` and `weft.export` begin with. A page for each
kind:

"""
SIZES = "data-dependent shape"
PATHS = frozenset({"branch", "number", "list"})
RUN_IN_PATHS = (
    "It runs as [paths](../hybridize.md#code-that-looks-at-values): programs that end where values decide. With "
    "`whole=True` it is an `UnsupportedError`."
)
RUN_FOR_SIZES = (
    "It runs as [paths](../hybridize.md#code-that-looks-at-values): the operator runs by itself, and what follows is "
    "a program for many such sizes. With `whole=True` it is an `UnsupportedError`."
)
RUNS = "Python runs it at each call; `weft.explain` says so. With `whole=True` it is an `UnsupportedError`."


def file_name(kind: str) -> str:
    return kind.replace(" ", "-") + ".md"


def page(kind: str) -> str:
    fact, why, fix = (part[0].upper() + part[1:] for part in REFUSALS[kind])
    happens = RUN_FOR_SIZES if kind == SIZES else RUN_IN_PATHS if kind in PATHS else RUNS
    text = (
        f"# {fact}\n\n**Why it is no whole program.** {why}.\n\n**What happens.** {happens}\n\n**What to do.** {fix}.\n"
    )
    if kind in EXAMPLES:
        wrong, right = EXAMPLES[kind]
        text += f"\nNo whole program:\n\n```python\n{wrong}\n```\n\nA whole program:\n\n```python\n{right}\n```\n"
    return text


def index() -> str:
    return INDEX + "".join(f"- [{REFUSALS[kind][0]}]({file_name(kind)})\n" for kind in REFUSALS)


def by_hand() -> str:
    return "\nOther errors:\n\n" + "".join(f"- [{title}]({name})\n" for name, title in WRITTEN_BY_HAND.items())


def expected() -> dict[str, str]:
    return {"README.md": index() + by_hand(), **{file_name(kind): page(kind) for kind in REFUSALS}}


def test_the_pages_are_those_of_the_table(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--bless"):
        FOLDER.mkdir(exist_ok=True)
        for path in FOLDER.glob("*.md"):
            if path.name not in WRITTEN_BY_HAND:
                path.unlink()
        for name, text in expected().items():
            (FOLDER / name).write_text(text, encoding="utf-8")
    found = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    assert found.keys() >= WRITTEN_BY_HAND.keys()
    found = {name: text for name, text in found.items() if name not in WRITTEN_BY_HAND}
    assert found == expected(), "run pytest --bless tests/test_error_pages.py and read what it writes"


@pytest.mark.parametrize("kind", EXAMPLES)
def test_the_examples_are_refused_and_run(kind: str, capsys: Any) -> None:
    wrong, right = EXAMPLES[kind]
    with pytest.raises(UnsupportedError) as caught:
        exec(wrong, {"weft": weft, "torch": torch})
    assert caught.value.fact.startswith(REFUSALS[kind][0])
    exec(right, {"weft": weft, "torch": torch})
