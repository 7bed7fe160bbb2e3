"""What is printed of a program says what runs: small ops in machine code, and why PyTorch runs the rest."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import weft
from weft.config import overrides
from weft.ir.parser import parse_graph
from weft.ir.printer import print_graph
from weft.programs.listing import MOST_LINES, OPERATORS

X = torch.randn(4, 4)


class Rounded(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.abs().round().long().clamp(0, 8)


THINGS = {
    "layers": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)),
    "an inverse and a sort": lambda x: (torch.linalg.inv(x) @ x).relu() + torch.sort(x)[0],
    "several sorts": lambda x: torch.sort(torch.sort(x)[0] * 2)[0],
    "complex numbers": lambda x: torch.view_as_real(torch.fft.fft(x)),
    "normalisation": nn.BatchNorm1d(4),
    "one operator of PyTorch": torch.linalg.inv,
    "a loss that checks its targets": lambda x: nn.functional.cross_entropy(x, (x * 0).long().sum(1)),
    "an embedding of what may be anything": nn.Sequential(Rounded(), nn.Embedding(9, 3)),
}


def header(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("#")]


def test_the_small_ops_are_shown_with_the_lines_of_the_user() -> None:
    text = str(weft.program(lambda x: x.relu(), torch.ones(2)))
    assert header(text) == ["# all of 1 operator in machine code"]
    assert "= relu %x  # " in text
    assert "test_listing.py" in text


@pytest.mark.parametrize("name", THINGS)
def test_what_is_listed_is_what_the_plan_has_pytorch_run(name: str) -> None:
    with torch.no_grad():
        program = weft.program(THINGS[name], X)
    planned = [step.value for step in program.plan.library.steps if step.value.op in OPERATORS]
    text = str(program)
    shown = [line for line in text.splitlines() if "= library " in line or "= update " in line]
    assert len(shown) == len(planned)
    assert text.startswith("# all of" if not planned else "# ")
    for value in planned:
        target = value.attributes["call"].target
        assert any(line.startswith(f"#   {target}") for line in header(text)), target


def test_each_kind_of_call_is_told_once_with_its_reason_and_its_first_line() -> None:
    with torch.no_grad():
        text = str(weft.program(THINGS["several sorts"], X))
    first, *rest = header(text)
    assert first == "# 1 of 3 operators in machine code; PyTorch runs"
    assert len(rest) == 1
    assert rest[0].startswith("#   aten.sort.default, 2 times: there is no rule that lifts it (")
    assert "test_listing.py:" in rest[0]


def test_a_dtype_without_machine_code_is_the_reason() -> None:
    with torch.no_grad():
        text = str(weft.program(lambda z: z * 2, torch.ones(3, dtype=torch.complex64)))
    assert "no machine code computes in torch.complex64" in text


def test_of_many_kinds_of_calls_the_first_are_told() -> None:
    functions = [torch.special.i0, torch.special.i0e, torch.special.i1, torch.special.i1e, torch.special.ndtri]
    functions += [torch.special.bessel_j0, torch.special.bessel_j1, torch.special.bessel_y0, torch.special.bessel_y1]
    functions += [torch.special.modified_bessel_i0, torch.special.modified_bessel_i1, torch.special.airy_ai]
    functions += [torch.special.modified_bessel_k0, torch.special.modified_bessel_k1]
    assert len(functions) > MOST_LINES

    def work(x: torch.Tensor) -> list[torch.Tensor]:
        return [function(x) for function in functions]

    with torch.no_grad():
        text = str(weft.program(work, X))
    found = header(text)
    assert len(found) == MOST_LINES + 2
    assert found[-1] == f"#   and {len(functions) - MOST_LINES} others"


@pytest.mark.parametrize("name", THINGS)
def test_the_text_parses_back(name: str) -> None:
    with torch.no_grad():
        text = str(weft.program(THINGS[name], X))
    if "#0" in text.split("graph ", 1)[1]:
        pytest.skip("its constants stand in a table")
    again = print_graph(parse_graph(text, []))
    assert again.strip() == text[text.index("graph ") :].strip()


def test_without_machine_code_the_operators_are_shown_and_why() -> None:
    with overrides(codegen="library"):
        text = str(weft.program(lambda x: x.relu(), torch.ones(2)))
    assert header(text) == ["# PyTorch runs all operators: WEFT_CODEGEN is library"]
    assert "aten.relu.default" in text


def test_a_loaded_program_shows_operators_until_its_file_is_known_to_be_true(tmp_path: Path) -> None:
    weft.program(lambda x: x.relu(), torch.ones(2)).save(tmp_path / "relu.weft")
    program = weft.load_program(tmp_path / "relu.weft")
    assert "its first call compares" in str(program)
    assert "aten.relu.default" in str(program)
    program(torch.ones(2))
    assert str(program).startswith("# all of 1 operator in machine code")


def test_reprs_of_a_program_and_its_timeline_are_a_line() -> None:
    with torch.no_grad():
        program = weft.program(THINGS["layers"], X)
    assert repr(program).startswith("<weft program Sequential: ")
    timeline = program.timeline()
    assert repr(timeline).startswith("<timeline of a call: ")
    assert all("\n" not in text and len(text) < 160 for text in (repr(program), repr(timeline)))
    assert re.fullmatch(r"<plan: \d+ kernels? in 1 region; print it to see them>", repr(program.plan))
    assert "<svg" in timeline._repr_html_()
