"""Behaviour of plans that are kept on disk."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import weft
from weft.codegen.objects.native import SUFFIX, ObjectCache
from weft.compile import pipeline, plan_cache
from weft.compile.ahead import KernelsAhead
from weft.config import overrides
from weft.plan.planned import PlannedGraph
from weft.programs.program import Program

Function = Callable[..., torch.Tensor]


class Recurrent(nn.Module):
    """A layer that PyTorch takes apart."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8, padding_idx=0)
        self.gru = nn.GRU(8, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.gru(self.embedding(tokens))[0].sum(0)


class Counting(nn.Module):
    """Writes into a buffer of its own, and calls an operator that PyTorch computes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("mask", torch.tensor([[0.0, -1.5, 2.0] * 4]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.sum(0)
        table = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, -0.0, float("inf"), 12.0]])
        return (x.sort(dim=1).values.repeat(1, 3) * table + self.mask).flip(1)


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 8, 3))


def attention() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)


NETS = {
    "convolutions": (convolutions, lambda: torch.randn(2, 3, 12, 12)),
    "attention": (attention, lambda: torch.randn(2, 6, 16)),
    "recurrent": (Recurrent, lambda: torch.randint(20, (5, 2))),
    "counting": (Counting, lambda: torch.randn(3, 4)),
}


def made(name: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(1)
    module, given = NETS[name]
    return module().eval(), given()


def answer(name: str) -> tuple[Program, torch.Tensor, list[torch.Tensor]]:
    net, given = made(name)
    with torch.no_grad():
        found = weft.hybridize(net)(given)
        return weft.program(net, given), found, list(net.buffers())


def entries(folder: Path) -> list[Path]:
    return sorted((folder / plan_cache.PLAN_FOLDER).glob(f"*{SUFFIX}"))


def never(*_: object) -> None:
    pytest.fail("planned again")


@pytest.mark.parametrize("name", sorted(NETS))
def test_the_second_program_has_the_plan_from_the_disk(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with overrides(cache_dir=tmp_path):
        first, expected, written = answer(name)
        monkeypatch.setattr(pipeline, "plan_graph", never)
        second, found, written_again = answer(name)
    assert torch.equal(found, expected)
    assert all(map(torch.equal, written, written_again))
    assert repr(second.plan.regions) == repr(first.plan.regions)
    assert str(second.plan) == str(first.plan)
    assert (second.peak_bytes, second.summary()) == (first.peak_bytes, first.summary())


def train(folder: Path | None) -> list[torch.Tensor]:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3))
    step = weft.step(net, nn.CrossEntropyLoss(), torch.optim.Adam(net.parameters(), lr=0.01), memory="low")
    x, y = torch.randn(5, 6), torch.randint(3, (5,))
    with overrides(cache_dir=folder):
        losses = [step(x, y) for _ in range(3)]
    return [*losses, *net.parameters(), *net.buffers()]


def test_a_training_step_is_the_same_with_the_plan_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = train(None)
    first = train(tmp_path)
    monkeypatch.setattr(pipeline, "plan_graph", never)
    assert all(map(torch.equal, expected, first))
    assert all(map(torch.equal, expected, train(tmp_path)))


def scaled(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * 2


def run(function: Function, given: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return weft.hybridize(function)(given)


@pytest.mark.parametrize("damage", [lambda b: b[:-5], lambda b: b[:60] + b"?" + b[61:], lambda b: b""])
def test_a_damaged_entry_is_planned_again(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    x = torch.randn(50)
    with overrides(cache_dir=tmp_path):
        expected = run(scaled, x)
        (path,) = entries(tmp_path)
        whole = path.read_bytes()
        path.write_bytes(damage(whole))
        assert torch.equal(run(scaled, x), expected)
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "change",
    [
        lambda _, other: other,
        lambda own, other: own[:64] + other[64:],
        lambda own, _: own[:64] + b"\1\0\0\0\0\0\0\0{",
        lambda own, _: own[:64] + b"\2\0\0\0\0\0\0\0{}",
        lambda own, _: own.replace(b'"places"', b'"planes"'),
        lambda own, _: own[:64],
    ],
)
def test_an_entry_of_something_else_is_planned_again(tmp_path: Path, change: Callable[[bytes, bytes], bytes]) -> None:
    def two(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y

    with overrides(cache_dir=tmp_path):
        run(scaled, torch.randn(50))
        (mine,) = entries(tmp_path)
        with torch.no_grad():
            weft.hybridize(two)(torch.randn(3, 4), torch.randn(4, 5))
        (theirs,) = {*entries(tmp_path)} - {mine}
        cache = ObjectCache(mine.parent)
        own, other = (cache.read(path.stem) for path in (mine, theirs))
        assert own is not None
        assert other is not None
        cache.write(mine.stem, change(own, other))
        x = torch.randn(50)
        assert torch.allclose(run(scaled, x), scaled(x))
        assert cache.read(mine.stem) == own


def test_what_decides_a_plan_decides_its_place(tmp_path: Path) -> None:
    x = torch.arange(6)
    with overrides(cache_dir=tmp_path):
        for threads in (1, 2):
            with overrides(threads=threads):
                run(scaled, x)
        torch.set_default_dtype(torch.float64)
        try:
            assert run(scaled, x).dtype is torch.float64
        finally:
            torch.set_default_dtype(torch.float32)
        assert len(entries(tmp_path)) == 3


def test_the_line_of_the_source_is_todays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def source(lines: int) -> Function:
        text = "\n" * lines + "def sorting(x):\n    return (x * 2).sort().values\n"
        names: dict[str, Function] = {}
        exec(compile(text, f"/somewhere/{lines}.py", "exec"), names)
        return names["sorting"]

    def places(function: Function) -> set[tuple[str, int]]:
        with torch.no_grad():
            steps = weft.program(function, torch.randn(9)).plan.library.steps
        return {(step.value.place.filename, step.value.place.line) for step in steps if step.value.place}

    with overrides(cache_dir=tmp_path):
        assert places(source(0)) == {("/somewhere/0.py", 2)}
        monkeypatch.setattr(pipeline, "plan_graph", never)
        assert places(source(7)) == {("/somewhere/7.py", 9)}


def test_what_lives_in_one_process_is_planned_in_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(3)

    def noisy(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return x + torch.rand(4, generator=generator)

    known, is_new = pipeline.plan_graph, []

    def planned(question: plan_cache.Question, ahead: KernelsAhead | None) -> PlannedGraph:
        is_new.append(ahead is not None)
        return known(question, ahead)

    monkeypatch.setattr(pipeline, "plan_graph", planned)
    with overrides(cache_dir=tmp_path), torch.no_grad():
        weft.hybridize(noisy)(torch.zeros(4), generator)
        weft.hybridize(noisy)(torch.zeros(4), generator)
    assert is_new == [True, False]
    (entry,) = entries(tmp_path)
    assert plan_cache.CANNOT_BE_KEPT in entry.read_bytes()


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    with overrides(cache_dir=None):
        run(scaled, torch.randn(7))
    assert not list(tmp_path.iterdir())
