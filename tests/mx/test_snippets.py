"""Programs print what the real MXNet printed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.mx.snippets import FIXTURE, printed, snippets

from weft import mx
from weft.mx.symbols.names import NameManager, naming

ANSWERS = json.loads((Path(__file__).parent / "fixtures" / FIXTURE).read_text(encoding="utf-8"))
SCOPE = {name: getattr(mx, name, None) for name in ("nd", "sym", "autograd", "gluon")}
SCOPE |= {"mx": mx, "np": np, "nn": mx.gluon.nn, "rnn": mx.gluon.rnn}


@pytest.mark.parametrize("code", snippets(), ids=range(len(snippets())))
def test_a_program_prints_what_it_prints_with_mxnet(code: str) -> None:
    if ANSWERS[code] is None:
        pytest.skip("the real MXNet's process ended here")
    naming.managers[:] = [NameManager()]  # MXNet's process was new, too
    assert printed(code, SCOPE) == ANSWERS[code]
