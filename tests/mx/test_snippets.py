"""Programs print what the real MXNet printed."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.mx.snippets import FIXTURE, printed, snippets

from weft import mx
from weft.mx.symbols.names import NameManager, naming

NUMBER = re.compile(r"-?\d+\.?\d*(?:e[-+]?\d+)?")
SPACES = re.compile(r"\s+")
INSIDE = re.compile(r"(?<=\[)\s+|\s+(?=\])")
ANSWERS = json.loads((Path(__file__).parent / "fixtures" / FIXTURE).read_text(encoding="utf-8"))
SCOPE = {name: getattr(mx, name, None) for name in ("nd", "sym", "autograd", "gluon")}
SCOPE |= {"mx": mx, "np": np, "nn": mx.gluon.nn, "rnn": mx.gluon.rnn}
SCOPE["files"] = str(Path(__file__).parent / "fixtures" / "images")
NEEDS_PILLOW = {code for code in snippets() if "files" in code or "imdecode" in code or "imread" in code}


def form(text: str) -> str:
    """A text without its numbers, and without the spaces that align them."""
    return SPACES.sub(" ", INSIDE.sub("", NUMBER.sub("#", text)))


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    """A program's `logging.disable` is the whole process's, and so is `set_np`."""
    before = logging.root.manager.disable
    yield
    logging.disable(before)
    mx.util.reset_np()


@pytest.mark.parametrize("code", snippets(), ids=range(len(snippets())))
def test_a_program_prints_what_it_prints_with_mxnet(code: str) -> None:
    if ANSWERS[code] is None:
        pytest.skip("the real MXNet's process ended here")
    if code in NEEDS_PILLOW:
        pytest.importorskip("PIL")
    naming.managers[:] = [NameManager()]  # MXNet's process was new, too
    mine, its = printed(code, SCOPE), ANSWERS[code]
    if mine != its:  # the last digits of numbers may be others
        assert form(mine) == form(its), mine
        mine_numbers, its_numbers = (np.array(NUMBER.findall(text), np.float64) for text in (mine, its))
        np.testing.assert_allclose(mine_numbers, its_numbers, rtol=2e-5, atol=2e-6)


def test_every_program_is_one() -> None:
    for code in snippets():
        compile(code, "snippet", "exec")
