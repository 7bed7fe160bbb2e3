"""Every kind of kernel has every facet, and what it says of itself fits together: a failure names the file to edit."""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.plan.kernels.examples import EXAMPLES, HOST, file_of, finely

import weft.plan.kernels
from weft.codegen.llvm.module import Module
from weft.codegen.plan_module import EMIT
from weft.plan.kernels.kernel import KINDS, Kernel

for module in pkgutil.iter_modules(weft.plan.kernels.__path__):  # a kind that nobody plans yet is a kind too
    importlib.import_module(f"weft.plan.kernels.{module.name}")
ROOT = Path(__file__).parents[3]
ROOM = "weft.plan.kernels."
HERE = {name: kind for name, kind in KINDS.items() if kind.__module__.startswith(ROOM)}
FACETS = sorted(Kernel.__abstractmethods__)


@pytest.mark.parametrize("facet", FACETS)
def test_every_kind_has_every_facet(facet: str) -> None:
    missing = [f"{file_of(kind)}: {name} has no `{facet}`" for name, kind in HERE.items() if facet in lacks(kind)]
    assert not missing


def lacks(kind: type[Kernel]) -> frozenset[str]:
    return getattr(kind, "__abstractmethods__", frozenset())


def test_every_kind_has_an_emitter() -> None:
    missing = [name for name, kind in HERE.items() if kind not in EMIT]
    assert not missing, f"src/weft/codegen/plan_module.py: EMIT has no row for {missing}"


# Emitters that whole programs test, machine code against eager.
TESTED_ELSEWHERE = {"attention_gradient": "tests/plan/fuse/test_attention_gradient.py"}


def test_every_emitter_is_tested() -> None:
    room = ROOT / "tests/codegen/kernels"
    files = {path.name: path.read_text(encoding="utf-8") for path in sorted(room.glob("test_*.py"))}
    names = {emit.__module__.rpartition(".")[2] for emit in EMIT.values()} - TESTED_ELSEWHERE.keys()
    tested = {name for name in names if any(f"codegen.kernels.{name} import" in text for text in files.values())}
    missing = [f"tests/codegen/kernels/test_{name}.py" for name in sorted(names - tested)]
    assert not [file for file in missing if not (ROOT / file).exists()]
    assert all((ROOT / path).exists() for path in TESTED_ELSEWHERE.values())


def test_every_kind_has_an_example() -> None:
    missing = HERE.keys() - EXAMPLES.keys()
    assert not missing, f"tests/plan/kernels/examples.py: EXAMPLES has no row for {missing}"


def test_a_kernel_of_a_kind_that_lacks_a_facet_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.plan.kernels.kernel.KINDS", {})

    class Lacking(Kernel):
        tile_count, tile_sizes, summary = 1, None, ""
        boxes = renamed = written_over = None

    with pytest.raises(TypeError, match=r"Lacking.*abstract.*cycles"):
        Lacking()


@pytest.fixture(params=sorted(EXAMPLES))
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """A kernel of each kind, in small tiles."""
    make: Callable[[], Kernel] = EXAMPLES[request.param]
    made = finely(make())
    assert type(made) is KINDS[request.param]
    return made


def test_a_kind_has_tiles_a_cost_and_a_text(kernel: Kernel) -> None:
    assert kernel.tile_count > 0
    assert 0 < kernel.cycles < math.inf
    assert any(letter.isdigit() for letter in kernel.summary)


def test_sizes_of_tiles_are_a_grid_of_them(kernel: Kernel) -> None:
    if kernel.tile_sizes is not None:
        down, across = kernel.tile_sizes
        assert min(*down, *across) > 0
        assert kernel.tile_count % (len(down) * len(across)) == 0


def test_boxes_are_one_for_each_argument_and_those_of_tiles_are_in_those_of_all(kernel: Kernel) -> None:
    module, tiles = Module(HOST), kernel.tile_count
    EMIT[type(kernel)](module, kernel)
    [function] = [function for function in module.functions if function.name == kernel.name]
    whole = kernel.boxes(0, tiles)
    extra = 1 if type(kernel).__name__ == "CheckKernel" else 0  # the word that it marks is no tensor
    assert len(whole) + extra + 2 == len(function.parameters)
    for tile in range(tiles):
        for part, all_of_it in zip(kernel.boxes(tile, tile + 1), whole, strict=True):
            assert (part is None) == (all_of_it is None)
            assert part is None or (all_of_it.low <= part.low and part.high <= all_of_it.high)


def test_a_renamed_kernel_differs_in_its_names_alone(kernel: Kernel) -> None:
    other = kernel.renamed("other")
    assert other.name == "other"
    assert other.renamed(kernel.name).renamed("") == kernel.renamed("")
    module = Module(HOST)
    EMIT[type(kernel)](module, other)
    names = [function.name for function in module.functions]
    assert "other" in names
    assert not [name for name in names if name.startswith(kernel.name)]


def test_what_may_be_written_over_an_argument_has_equal_boxes_there(kernel: Kernel) -> None:
    """Where an element is written, the same one of the argument is read: tile by tile, in the same places."""
    writes = 1
    count = len(kernel.boxes(0, kernel.tile_count)) - writes
    for read in range(count):
        over = kernel.written_over(0, read, HOST)
        if over is None:
            continue
        over = finely(over)
        for tile in range(over.tile_count):
            found = over.boxes(tile, tile + 1)
            assert found[0] is not None
            assert found[0] == found[writes + read]
