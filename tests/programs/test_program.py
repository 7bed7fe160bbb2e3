"""weft.program: what a module runs can be printed, drawn and saved, and runs again without the module."""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn, optim
from torch.nn import functional

import weft
from weft.errors import UnsupportedError, UsageError
from weft.plan.draft import Draft
from weft.programs.file import LoadedProgram


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.output = nn.Linear(4, 7, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.output(self.embedding(words))


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.Sigmoid(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.Sigmoid(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.Sigmoid(),
        nn.Linear(120, 10),
    )


def reloaded(folder: Path, thing: Any, *arguments: Any, **keywords: Any) -> LoadedProgram:
    weft.program(thing, *arguments, **keywords).save(folder / "program.weft")
    return weft.load_program(folder / "program.weft")


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (lenet, torch.randn(2, 1, 28, 28)),
        (lambda: lenet().to(memory_format=torch.channels_last), torch.randn(2, 1, 28, 28)),
        (Tied, torch.tensor([1, 2, 6])),
        (lambda: nn.Linear(3, 4).double(), torch.randn(2, 3, dtype=torch.float64)),
        (lambda: nn.Linear(3, 4, dtype=torch.complex64), torch.randn(2, 3, dtype=torch.complex64)),
        (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.randn(2, 3, 8)),
    ],
)
def test_a_module_gives_the_same_after_saving_and_loading(make, x: torch.Tensor, tmp_path: Path) -> None:
    net = make()
    found = reloaded(tmp_path, net, x)(x)
    torch.testing.assert_close(found, net(x))


class Towers(nn.Module):
    def __init__(self, towers: int, width: int) -> None:
        super().__init__()
        made = [[nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.Tanh()] for _ in range(towers)]
        self.towers = nn.ModuleList(nn.Sequential(*layers) for layers in made)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([tower(x) for tower in self.towers], dim=1)


class Skips(nn.Module):
    """Layers whose results are added up: lanes that go ahead would keep all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(8))
        self.skips = nn.ModuleList(nn.Conv2d(16, 64, 1) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for layer, skip in zip(self.layers, self.skips, strict=True):
            x = layer(x).relu()
            total = total + skip(x)
        return total


def test_memory_does_not_grow_with_the_number_of_results_that_are_added_up() -> None:
    x = torch.randn(1, 16, 64, 64)
    with torch.no_grad():
        found = weft.program(Skips(), x).peak_bytes
    assert found < 5 * 4 * x.numel() // 16 * 64  # the result, two sums, and what the layers give meanwhile


@pytest.mark.usefixtures("no_kept_plans")
def test_branches_side_by_side_take_no_more_memory_than_eager() -> None:
    towers, width = 8, 128
    net = Towers(towers, width)
    x = torch.randn(32, width)
    with torch.no_grad():
        found = weft.program(net, x).peak_bytes
        assert found <= 4 * 2 * towers * x.numel()  # what they give, and that side by side
        torch.testing.assert_close(weft.hybridize(net)(x), net(x))


@pytest.mark.usefixtures("no_kept_plans")
def test_no_memory_is_saved_against_an_operator_that_hides_what_it_needs(monkeypatch) -> None:
    asked: list[int] = []
    within = Draft.within
    monkeypatch.setattr(Draft, "within", lambda self, peak: asked.append(peak) or within(self, peak))
    with torch.no_grad():
        weft.program(nn.LSTM(32, 32, 2), torch.randn(16, 2, 32))
        assert asked == []
        weft.program(nn.Linear(32, 32), torch.randn(2, 32))
    assert asked == [2 * 32 * 4]
    asked.clear()
    net = nn.LSTM(32, 32, 2)
    step = weft.step(net, lambda found, wanted: functional.mse_loss(found[0], wanted), optim.Adam(net.parameters()))
    weft.program(step, torch.randn(16, 2, 32), torch.randn(16, 2, 32))
    assert asked == []


def test_statistics_are_kept_in_the_loaded_program(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    x = torch.randn(5, 3)
    program = reloaded(tmp_path, net, x)
    for _ in range(3):
        torch.testing.assert_close(program(x), net(x))
    for name, tensor in net.named_buffers():
        torch.testing.assert_close(program.state[name], tensor)
    assert program.state["1.num_batches_tracked"].item() == 3


def test_dropout_draws_the_numbers_that_it_draws_imperatively(tmp_path: Path) -> None:
    net = nn.Dropout(0.5)
    x = torch.ones(100)
    program = reloaded(tmp_path, net, x)
    torch.manual_seed(5)
    expected = net(x)
    torch.manual_seed(5)
    assert torch.equal(program(x), expected)


def test_parameters_are_saved_as_they_are_when_saving(tmp_path: Path) -> None:
    net = weft.hybridize(nn.Linear(3, 4))
    x = torch.randn(2, 3)
    program = weft.program(net, x)
    with torch.no_grad():
        net.weight.zero_()
        net.bias.zero_()
    program.save(tmp_path / "program.weft")
    assert weft.load_program(tmp_path / "program.weft")(x).abs().sum() == 0


def test_nested_arguments_and_results_come_back(tmp_path: Path) -> None:
    def step(batch: dict[str, torch.Tensor], *more: torch.Tensor, scale: float = 1.0, names: Any = ()) -> Any:
        total = (batch["x"] + sum(more)) * scale
        return {
            "total": total,
            "shape": total.shape,
            "parts": [total[0], None, "text"],
            "names": names,
            3: OrderedDict(),
        }

    x, y = torch.randn(2, 3), torch.randn(2, 3)
    program = reloaded(tmp_path, step, {"x": x}, y, y + 1, scale=2.0, names=["a", 1])
    found = program({"x": y}, x, x + 1, scale=2.0, names=["a", 1])
    expected = step({"x": y}, x, x + 1, scale=2.0, names=["a", 1])
    assert torch.equal(found["total"], expected["total"])
    assert torch.equal(found["parts"][0], expected["parts"][0])
    assert {**found, "total": 0, "parts": 0} == {**expected, "total": 0, "parts": 0}
    assert isinstance(found["shape"], torch.Size)
    with pytest.raises(UsageError, match=r"batch\['x'\] must be f32\[2,3\], and is f32\[2,2\]"):
        program({"x": y[:, :2]}, x, x, scale=2.0, names=["a", 1])
    with pytest.raises(UsageError, match=r"names\[1\] must be 1, and is 2"):
        program({"x": y}, x, x, scale=2.0, names=["a", 2])


def test_what_operators_with_several_results_return_keeps_its_names(tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    found = reloaded(tmp_path, lambda x: x.max(0), x)(x)
    assert torch.equal(found.values, x.max(0).values)
    assert type(found) is torch.return_types.max


def test_a_number_that_is_an_input_of_the_program_may_change(tmp_path: Path) -> None:
    function = weft.hybridize(lambda x, n: x * n)
    x = torch.randn(3)
    for n in (2.0, 3.0, 4.0):
        function(x, n)
    program = reloaded(tmp_path, function, x, 5.0)
    assert torch.equal(program(x, 7.0), x * 7.0)
    with pytest.raises(UsageError, match="n must be float, and is a int"):
        program(x, 7)


def test_tensors_that_a_function_captures_are_saved_under_their_names(tmp_path: Path) -> None:
    table = torch.arange(4.0)
    rows = [torch.ones(4), torch.zeros(4)]
    program = reloaded(tmp_path, lambda x: x + table + rows[0], torch.ones(4))
    assert sorted(program.state) == ["rows[0]", "table"]
    assert program(torch.ones(4)).tolist() == [2.0, 3.0, 4.0, 5.0]


def test_arguments_are_changed_in_place_as_the_function_does(tmp_path: Path) -> None:
    program = reloaded(tmp_path, lambda x: x.add_(1), torch.zeros(3))
    x = torch.zeros(3)
    assert program(x) is x
    assert x.tolist() == [1.0, 1.0, 1.0]


def test_two_arguments_that_share_memory_are_refused_where_the_program_writes(tmp_path: Path) -> None:
    program = reloaded(tmp_path, lambda x, y: x.add_(y), torch.zeros(3), torch.ones(3))
    whole = torch.zeros(4)
    with pytest.raises(UsageError, match="share memory in another way"):
        program(whole[:3], whole[1:])


@pytest.mark.parametrize(
    ("function", "argument", "message"),
    [
        (lambda pair: pair.left, Pair(torch.ones(2), torch.ones(2)), "an argument holds a Pair"),
        (lambda x: Pair(x + 1, x + 2), torch.ones(2), "the result holds a Pair"),
        (lambda x: [x, object], torch.ones(2), "the result holds a type"),
    ],
)
def test_classes_that_a_file_cannot_hold_are_refused(function, argument: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=message):
        weft.program(function, argument).save(tmp_path / "program.weft")
    assert not list(tmp_path.iterdir())


def test_a_program_is_drawn_with_the_names_of_its_parameters(tmp_path: Path) -> None:
    weft.program(lenet(), torch.randn(1, 1, 28, 28)).draw(tmp_path / "net.svg")
    text = (tmp_path / "net.svg").read_text(encoding="utf-8")
    assert ">0.weight<" in text
    assert ">input<" in text
    assert "1 argument, 8 parameters" in text


def test_a_loaded_program_is_drawn_like_the_one_that_was_saved(tmp_path: Path) -> None:
    program = weft.program(lenet(), torch.randn(1, 1, 28, 28))
    program.draw(tmp_path / "before.svg")
    program.save(tmp_path / "net.weft")
    weft.load_program(tmp_path / "net.weft").draw(tmp_path / "after.svg")
    texts = [
        re.findall("<text.*?</text>", (tmp_path / name).read_text("utf-8")) for name in ("before.svg", "after.svg")
    ]
    assert len(texts[0]) == len(texts[1]) > 40


@pytest.mark.gpu
def test_a_program_made_on_a_gpu_comes_back_there(tmp_path: Path) -> None:
    net, x = nn.Linear(3, 4).cuda(), torch.randn(2, 3, device="cuda")
    program = reloaded(tmp_path, net, x)
    assert program.state["weight"].is_cuda
    assert torch.equal(program(x), net(x))
    with pytest.raises(UsageError, match=r"input must be f32\[2,3\]@cuda:0, and is f32\[2,3\]"):
        program(x.cpu())
