"""Programs in files keep the sizes that vary, run for all of them, and say which sizes they are not made for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.api.varying_cases import CASES, Case
from torch import nn

import weft
from weft.errors import UsageError
from weft.ir.parser import parse_graph
from weft.ir.printer import constants_of, print_graph
from weft.programs.file import SECTIONS, ProgramFileError, packed, read_sections

OTHER_WAYS = frozenset(
    """a branch on a size|windows|convolution of a row|largest places|same padding|sampled|a kernel of a size
    |evenly spaced|neighbours|every second|second half|divided by the root of a size
    |padded to at least so many""".replace("\n    ", "").split("|")
)  # what these do, or whether there is one of something, sizes decide
REFUSED = {"an argument and a size"}  # it gives back the size, a number of each call


def marked(case: Case) -> tuple[Any, ...]:
    """Arguments whose sizes are marked where they vary."""
    calls = [case.make(*sizes) for sizes in case.sizes]
    for place, given in enumerate(calls[1]):
        if isinstance(given, torch.Tensor):
            varying = [at for at in range(given.dim()) if len({call[place].shape[at] for call in calls}) > 1]
            torch._dynamo.mark_dynamic(given, varying)
    return calls[1]


def saved(function: Callable[..., Any], arguments: tuple[Any, ...], path: Path) -> Any:
    with torch.no_grad():
        weft.program(function, *arguments).save(path)
    return weft.load_program(path)


def tensors(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple) else [found]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.usefixtures("by_library")
@pytest.mark.parametrize("name", [name for name in CASES if name not in REFUSED])
def test_a_file_runs_for_many_sizes(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    function = case.function.forward if isinstance(case.function, nn.Module) else case.function
    loaded = saved(function, marked(case), tmp_path / "net.weft")
    assert loaded.parts.sizes or name == "divided by the root of a size"  # which is a number of Python's
    ran = 0
    with torch.no_grad():
        for sizes in case.sizes:
            arguments = case.make(*sizes)
            try:
                ours = loaded(*arguments)
            except UsageError:
                assert name in OTHER_WAYS
                continue
            ran += 1
            for one, other in zip(tensors(ours), tensors(case.function(*arguments)), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert ran >= (1 if name in OTHER_WAYS else len(case.sizes))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.layer = nn.Linear(8, 4)

    def forward(self, batch: dict[str, torch.Tensor], scale: float = 1.0) -> dict[str, torch.Tensor]:
        found = self.layer(self.words(batch["ids"])) * scale
        return {"rows": found * batch["mask"].unsqueeze(-1), "count": batch["mask"].sum(1)}


SIZES = {"batch": {"ids": {0: ("rows", 2, 64), 1: ("length", 2, 99)}, "mask": {0: "rows", 1: "length"}}}


def example(rows: int, length: int) -> dict[str, torch.Tensor]:
    return {"ids": torch.randint(50, (rows, length)), "mask": (torch.rand(rows, length) > 0.5).float()}


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return weft.hybridize(Net().eval(), sizes=SIZES)


class TestPrograms:
    def test_a_program_shows_its_sizes_by_name(self, net: Net, tmp_path: Path) -> None:
        with torch.no_grad():
            program = weft.program(net, example(4, 9))
        text = str(program)
        assert "f32[rows,length,4]" in text
        assert "%rows: size(16), %length: size(32)" in text.replace("\n    ", " ")
        program.draw(tmp_path / "net.svg")
        assert "f32[rows,length,4]" in (tmp_path / "net.svg").read_text()
        assert "rows,length" in program._repr_html_()
        assert program.plan.regions or program.plan.library
        assert print_graph(parse_graph(text, constants_of(program.graph))).count("size(") == 2

    @pytest.mark.slow
    def test_what_a_program_does_can_be_measured(self, net: Net) -> None:
        with torch.no_grad():
            program = weft.program(net, example(4, 9))
            assert str(program.timeline())

    def test_an_exact_program_is_as_it_was(self) -> None:
        net = Net().eval()
        with torch.no_grad():
            program = weft.program(net, example(4, 9))
        assert "f32[4,9,4]" in str(program)
        assert not program.parts.sizes


class TestFiles:
    def test_a_loaded_program_takes_every_size_in_its_range(self, net: Net, tmp_path: Path) -> None:
        loaded = saved(net, (example(4, 9),), tmp_path / "net.weft")
        for rows, length in ((4, 9), (2, 2), (64, 99), (17, 30)):
            batch = example(rows, length)
            with torch.no_grad():
                torch.testing.assert_close(loaded(batch), Net.forward(net, batch))
        assert "f32[rows,length,4]" in str(loaded)
        assert str(loaded.plan)

    @pytest.mark.parametrize(
        ("change", "fact"),
        [
            (
                {"ids": (4, 100), "mask": (4, 100)},
                r"length is 100 \(dim 1 of batch\['ids'\]\), and Net is made for 2 to 99",
            ),
            ({"ids": (1, 9), "mask": (1, 9)}, "rows is 1"),
            ({"ids": (4, 9), "mask": (4, 8)}, r"batch\['mask'\] must be f32\[4,9\], and is f32\[4,8\]"),
            ({"ids": (4, 9, 1), "mask": (4, 9)}, r"must be a tensor i64\[rows,length\], and is i64\[4,9,1\]"),
        ],
    )
    def test_other_sizes_are_told(self, net: Net, tmp_path: Path, change: Any, fact: str) -> None:
        loaded = saved(net, (example(4, 9),), tmp_path / "net.weft")
        batch = {"ids": torch.zeros(change["ids"], dtype=torch.int64), "mask": torch.zeros(change["mask"])}
        for _ in range(2):
            with pytest.raises(UsageError, match=fact):
                loaded(batch)

    def test_sizes_for_which_the_code_goes_another_way_are_told(self, tmp_path: Path) -> None:
        def function(x: torch.Tensor) -> torch.Tensor:
            return x.sin() if x.shape[0] > 8 else x.cos()

        x = torch.randn(20, 3)
        torch._dynamo.mark_dynamic(x, 0)
        loaded = saved(function, (x,), tmp_path / "net.weft")
        y = torch.randn(9, 3)
        torch.testing.assert_close(loaded(y), y.sin())
        with pytest.raises(UsageError, match="made for sizes of which x_0 > 8 holds; x_0 is 8"):
            loaded(torch.randn(8, 3))

    def test_a_number_that_is_a_size_cannot_be_in_a_file(self, tmp_path: Path) -> None:
        hybrid = weft.hybridize(lambda x, n: x[:, :n] * n, sizes={"x": {1: "length"}, "n": {0: "length"}})
        program = weft.program(hybrid, torch.randn(3, 9), 9)
        with pytest.raises(weft.UnsupportedError, match="a number among the arguments is a size"):
            program.save(tmp_path / "net.weft")

    def test_a_result_that_is_a_size_cannot_be_in_a_file(self, tmp_path: Path) -> None:
        hybrid = weft.hybridize(lambda x: {"y": x + 1, "n": x.shape[0]}, sizes={"x": {0: "rows"}})
        program = weft.program(hybrid, torch.randn(3, 9))
        with pytest.raises(weft.UnsupportedError, match="gives back a number that differs from call to call"):
            program.save(tmp_path / "net.weft")

    def test_a_c_library_is_made_for_one_size(self, net: Net, tmp_path: Path) -> None:
        with torch.no_grad():
            program = weft.program(net, example(4, 9))
        with pytest.raises(weft.UnsupportedError, match=r"its sizes vary \(rows, length\)"):
            weft.export(program, tmp_path / "net")
        assert not (tmp_path / "net").exists()

    @pytest.mark.slow
    def test_another_process_runs_it_without_the_source(self, net: Net, tmp_path: Path) -> None:
        saved(net, (example(4, 9),), tmp_path / "net.weft")
        code = (
            "import sys, torch, weft; run = weft.load_program(sys.argv[1]);"
            "found = run({'ids': torch.ones(3, 31, dtype=torch.int64), 'mask': torch.ones(3, 31)});"
            "print(tuple(found['rows'].shape), found['count'].tolist())"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "net.weft")], capture_output=True, text=True, check=True
        )
        assert done.stdout == "(3, 31, 4) [31.0, 31.0, 31.0]\n"


def rewritten(path: Path, change: Callable[[dict[str, Any], str], tuple[dict[str, Any], str]]) -> Path:
    sections = read_sections(path, SECTIONS)
    metadata, text = change(json.loads(sections["metadata"]), sections["graph"].decode())
    path.write_bytes(
        b"".join(packed({**sections, "metadata": json.dumps(metadata).encode(), "graph": text.encode()}, 2))
    )
    return path


class TestForgeries:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("sizes", []),
            ("sizes", [{"input": 0, "of": 1, "dimension": 0, "least": 0, "most": None}] * 2),
            ("sizes", [{"input": 99, "of": 0, "dimension": 0, "least": 0, "most": None}] * 2),
            ("conditions", ["__import__('os').system('true')"]),
            ("conditions", ["nothing > 3"]),
            ("conditions", [3]),
        ],
    )
    def test_metadata_that_does_not_fit_is_refused(self, net: Net, tmp_path: Path, field: str, value: Any) -> None:
        saved(net, (example(4, 9),), tmp_path / "net.weft")
        path = rewritten(tmp_path / "net.weft", lambda metadata, text: ({**metadata, field: value}, text))
        with pytest.raises(ProgramFileError):
            weft.load_program(path)

    def test_what_a_file_says_of_sizes_is_not_relied_on(self, net: Net, tmp_path: Path) -> None:
        saved(net, (example(4, 9),), tmp_path / "net.weft")
        lies = ("f32[rows,length,4]", "f32[rows,length,4000]")
        path = rewritten(tmp_path / "net.weft", lambda metadata, text: (metadata, text.replace(*lies)))
        batch = example(5, 12)
        with torch.no_grad():
            torch.testing.assert_close(weft.load_program(path)(batch), Net.forward(net, batch))
