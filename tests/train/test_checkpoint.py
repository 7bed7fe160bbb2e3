"""weft.save and weft.load: any wrapper on either side, all of training's state, all or nothing."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.train.model_wrappers import WAYS, model
from torch import nn

import weft
from weft.train.checkpoints.names import ModelMismatchError


def values(net: nn.Module) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in net.state_dict().values()]


def changed(net: nn.Module) -> nn.Module:
    with torch.no_grad():
        for tensor in {id(tensor): tensor for tensor in net.state_dict().values()}.values():
            tensor.copy_(torch.randn(tensor.shape) * 10)
    return net


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["weft", "torch"])
def test_every_way_to_hold_a_model_loads_from_every_other(writer: str, tmp_path: Path, process_group: None) -> None:
    files = {}
    for name, wrap in WAYS.items():
        net = changed(wrap(model()))
        files[name] = (tmp_path / name, values(net))
        weft.save(tmp_path / name, net) if writer == "weft" else torch.save(net.state_dict(), tmp_path / name)
    failed = []
    for name, wrap in WAYS.items():
        net = wrap(model())
        for source, (path, expected) in files.items():
            weft.load(path, changed(net))
            if not same(values(net), expected):
                failed.append((source, name))
    assert failed == []


def test_a_file_is_a_safetensors_file_with_plain_names_and_one_entry_for_a_tie(tmp_path: Path) -> None:
    net = model()
    weft.save(tmp_path / "net", nn.DataParallel(net))
    found = load_file(tmp_path / "net")
    assert set(net.state_dict()) - set(found) == {"2.weight"}
    assert torch.equal(found["0.weight"], net[0].weight)


def test_what_does_not_fit_is_reported_and_nothing_is_loaded(tmp_path: Path) -> None:
    weft.save(tmp_path / "net", nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3), nn.Linear(3, 3)))
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 4))
    net.add_module("head", nn.Linear(1, 1))
    before = values(net)
    with pytest.raises(ModelMismatchError, match="does not fit the model: nothing was loaded") as caught:
        weft.load(tmp_path / "net", net)
    report = caught.value.report
    assert report.matched == ("0.weight", "0.bias")
    assert report.missing == ("head.weight", "head.bias")
    assert report.unexpected == ("2.weight", "2.bias")
    assert report.shape[0] == "1.weight: [3, 2] in the file, [4, 2] in the model"
    assert same(values(net), before)
    assert isinstance(caught.value, weft.CheckpointError)


def test_a_part_is_loaded_only_where_it_is_asked_for(tmp_path: Path) -> None:
    saved = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
    weft.save(tmp_path / "net", saved)
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 4))
    report = weft.load(tmp_path / "net", net, partial=True).report
    assert torch.equal(net[0].weight, saved[0].weight)
    assert not report.complete
    assert "1.weight" in str(report)


def test_a_child_that_is_called_module_is_no_wrapper(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2))
            self.module = nn.ParameterDict({"weight": nn.Parameter(torch.randn(2))})

    saved = Twice()
    torch.save(nn.DataParallel(saved).state_dict(), tmp_path / "net.pt")
    net = Twice()
    weft.load(tmp_path / "net.pt", net)
    assert same(values(net), values(saved))


def test_two_tensors_with_one_name_are_refused(tmp_path: Path) -> None:
    wrapper = nn.DataParallel(nn.Sequential(nn.Linear(1, 1)))
    wrapper.add_module("0", nn.Linear(1, 1))
    with pytest.raises(weft.UsageError, match=r"have one name without wrappers: 0\.weight"):
        weft.save(tmp_path / "net", wrapper)


def test_a_tie_in_the_model_needs_equal_values_in_the_file(tmp_path: Path) -> None:
    loose = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    weft.save(tmp_path / "net", loose)
    tied = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    tied[1].weight = tied[0].weight
    with pytest.raises(weft.CheckpointError, match=r"0\.weight and 1\.weight are one tensor in the model"):
        weft.load(tmp_path / "net", tied)
    weft.save(tmp_path / "tied", tied)
    weft.load(tmp_path / "tied", loose)
    assert torch.equal(loose[1].weight, tied[0].weight)


DTYPES = [torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.complex32]
DTYPES += [torch.int64, torch.int16, torch.uint8, torch.uint32, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("shape", [(), (0, 3), (3, 2)])
def test_tensors_of_every_type_come_back_bit_for_bit(
    dtype: torch.dtype, shape: tuple[int, ...], tmp_path: Path
) -> None:
    bits = torch.randint(0, 2, (*shape, dtype.itemsize), dtype=torch.uint8)
    net = nn.Module()
    net.register_buffer("kept", bits.view(dtype).reshape(shape))
    weft.save(tmp_path / "net", net)
    other = nn.Module()
    other.register_buffer("kept", torch.zeros(shape, dtype=dtype))
    weft.load(tmp_path / "net", other)
    assert torch.equal(other.kept.reshape(-1).view(torch.uint8), bits.reshape(-1))


def test_without_a_model_the_tensors_come_back_by_name(tmp_path: Path) -> None:
    net = nn.Linear(2, 2)
    weft.save(tmp_path / "net", net)
    assert torch.equal(weft.load(tmp_path / "net").tensors["weight"], net.weight)


def test_plain_values_come_back_as_they_were(tmp_path: Path) -> None:
    value: dict[Any, Any] = {
        "numbers": [1, -(2**70), 0.1, float("inf"), complex(1, float("-inf")), True, None],
        1: (1, (2,), []),
        "1": {"a", "b"},
        (1, 2): torch.tensor([1.0, 2.0]),
        "array": np.arange(6, dtype=np.uint32).reshape(2, 3)[:, ::-1],
        "counter": Counter({3: 2}),
        "bytes": b"\0\xff",
        "torch": [torch.float16, torch.device("cuda:3"), torch.Size([1, 2])],
        "text": 'weft.header":"' + "0" * 64,
    }
    weft.save(tmp_path / "net", nn.Linear(1, 1), value=value, step=7)
    loaded = weft.load(tmp_path / "net")
    found = loaded["value"]
    assert loaded["step"] == 7
    assert torch.equal(found.pop((1, 2)), value.pop((1, 2)))
    assert np.array_equal(found.pop("array"), value.pop("array"))
    assert found == value
    assert type(found["counter"]) is Counter


def test_a_value_that_cannot_be_stored_is_named(tmp_path: Path) -> None:
    with pytest.raises(weft.UnsupportedError, match=r"settings\.1\.call cannot be stored in a checkpoint"):
        weft.save(tmp_path / "net", nn.Linear(1, 1), settings=[1, {"call": print}])
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_is_not_in_the_file_is_said(tmp_path: Path) -> None:
    weft.save(tmp_path / "net", nn.Linear(1, 1), step=1)
    with pytest.raises(weft.CheckpointError, match="it holds no epoch"):
        weft.load(tmp_path / "net")["epoch"]
    net = nn.Linear(1, 1)
    with pytest.raises(weft.CheckpointError, match="it holds no optimizer"):
        weft.load(tmp_path / "net", net, optimizer=torch.optim.SGD(net.parameters()))


def test_an_optimizer_is_restored_by_names_in_whatever_order_and_wrapper(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    net(torch.randn(5, 2)).sum().backward()
    optimizer.step()
    weft.save(tmp_path / "net", net, optimizer=optimizer)
    other = nn.DataParallel(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)))
    backwards = torch.optim.Adam(list(other.parameters())[::-1], lr=0.5)
    weft.load(tmp_path / "net", other, optimizer=backwards)
    assert backwards.param_groups[0]["lr"] == 0.1
    for ours, theirs in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(optimizer.state[ours]["exp_avg"], backwards.state[theirs]["exp_avg"])


def test_another_optimizer_is_refused_before_the_model_changes(tmp_path: Path) -> None:
    net = nn.Linear(2, 2)
    weft.save(tmp_path / "net", net, optimizer=torch.optim.Adam(net.parameters()))
    other = nn.Linear(2, 2)
    before = values(other)
    with pytest.raises(weft.CheckpointError, match=r"its optimizer does not fit: it is the state of torch\.optim"):
        weft.load(tmp_path / "net", other, optimizer=torch.optim.SGD(other.parameters()))
    with pytest.raises(weft.CheckpointError, match="its group 0 is of other parameters"):
        weft.load(tmp_path / "net", other, optimizer=torch.optim.Adam([other.weight]))
    assert same(values(other), before)


def test_random_states_travel_with_training_state_only(tmp_path: Path) -> None:
    net, generator = nn.Linear(1, 1), torch.Generator().manual_seed(3)
    weft.save(tmp_path / "plain", net)
    weft.save(tmp_path / "state", net, generator=generator)
    drawn = [random.random(), np.random.rand(), torch.rand(()), torch.rand((), generator=generator)]
    weft.load(tmp_path / "state", net, generator=generator)
    assert [random.random(), np.random.rand(), torch.rand(()), torch.rand((), generator=generator)] == drawn
    weft.load(tmp_path / "plain", net)
    with pytest.raises(weft.CheckpointError, match="no random states"):
        weft.load(tmp_path / "plain", net, random=True)


def test_a_tensor_without_values_is_refused_by_name(tmp_path: Path) -> None:
    for net, why in [(nn.LazyLinear(2), "call the model once"), (nn.Linear(1, 1, device="meta"), "device meta")]:
        with pytest.raises(weft.UnsupportedError, match=f"(?s)the tensor weight cannot be stored.*{why}"):
            weft.save(tmp_path / "net", net)


def test_loading_gives_sizes_to_a_module_that_waits_for_them(tmp_path: Path) -> None:
    weft.save(tmp_path / "net", nn.Linear(3, 2))
    net = nn.LazyLinear(2)
    weft.load(tmp_path / "net", net)
    assert net.weight.shape == (2, 3)


def test_a_hybridized_module_computes_with_what_was_loaded(tmp_path: Path) -> None:
    saved, net, x = nn.Linear(3, 2), weft.hybridize(nn.Linear(3, 2)), torch.randn(4, 3)
    net(x)
    weft.save(tmp_path / "net", saved)
    weft.load(tmp_path / "net", net)
    torch.testing.assert_close(net(x), saved(x))


def test_a_file_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net"
    weft.save(path, nn.Linear(1, 1))
    content = path.read_bytes()
    start, end = 8, 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[start:end])
    header["__metadata__"]["weft"] = header["__metadata__"]["weft"].replace('"version":1', '"version":2')
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[end:])
    with pytest.raises(weft.CheckpointError, match="its format has version 2"):
        weft.load(path, verify=False)


def test_a_file_of_what_held_the_model_loads_into_the_model(tmp_path: Path) -> None:
    net, other = nn.Linear(3, 2), nn.Linear(3, 2)
    state = {f"model.{name}": tensor for name, tensor in net.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 4}, tmp_path / "last.ckpt")
    assert weft.load(tmp_path / "last.ckpt", other)["epoch"] == 4
    assert torch.equal(other.weight, net.weight)
    torch.save({**state, "head.weight": net.weight}, tmp_path / "more.pt")
    with pytest.raises(weft.CheckpointError, match="does not fit"):
        weft.load(tmp_path / "more.pt", other)


def test_what_is_no_module_is_refused(tmp_path: Path) -> None:
    weft.save(tmp_path / "net.safetensors", nn.Linear(2, 2))
    with pytest.raises(weft.UsageError, match="save takes a module, not int"):
        weft.save(tmp_path / "other.safetensors", 3)  # type: ignore[arg-type]
    with pytest.raises(weft.UsageError, match="load takes a module, not int"):
        weft.load(tmp_path / "net.safetensors", 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", range(1, 9))
def test_tensors_begin_at_a_multiple_of_eight_bytes(length: int, tmp_path: Path) -> None:
    weft.save(tmp_path / "x", nn.Linear(1, 1), **{"n" * length: 1})
    header = int.from_bytes((tmp_path / "x").read_bytes()[:8], "little")
    assert header % 8 == 0


@pytest.mark.parametrize(
    "name", ["net.pt", "net.pth", "NET.PT", "pytorch_model.bin", "last.ckpt", "net.pkl", "best.pth.tar"]
)
def test_a_name_of_torch_gives_a_file_that_torch_loads(tmp_path: Path, name: str) -> None:
    net, other = nn.Linear(3, 2), nn.Linear(3, 2)
    weft.save(tmp_path / name, nn.DataParallel(net))
    other.load_state_dict(torch.load(tmp_path / name))
    assert torch.equal(other.weight, net.weight)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    weft.save(tmp_path / name, net, optimizer=optimizer, step=7)
    found = torch.load(tmp_path / name)
    assert found["step"] == 7
    torch.optim.Adam(other.parameters()).load_state_dict(found["optimizer"])
    again = torch.optim.Adam(other.parameters())
    assert weft.load(tmp_path / name, other, optimizer=again)["step"] == 7
    assert torch.equal(again.state[other.weight]["exp_avg"], optimizer.state[net.weight]["exp_avg"])
    assert torch.equal(other.weight, net.weight)
    with pytest.raises(weft.UsageError, match="has no place for random states"):
        weft.save(tmp_path / name, net, random=True)
    with pytest.raises(weft.UsageError, match="is refused by torch"):
        weft.save(tmp_path / name, net, place=tmp_path)
    with pytest.raises(weft.UsageError, match="under the name model"):
        weft.save(tmp_path / name, net, model=1)


@pytest.mark.parametrize("name", ["net.onnx", "net.weft", "net.params", "net.npz", "NET.ONNX"])
def test_a_name_of_another_kind_of_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(weft.UsageError, match=r"would be named as[\s\S]*safetensors"):
        weft.save(tmp_path / name, nn.Linear(3, 2))
    assert not [*tmp_path.iterdir()]


def test_a_name_without_a_kind_is_a_file_of_tensors(tmp_path: Path) -> None:
    for name in ("best", "net-v1.2", "step.7"):
        weft.save(tmp_path / name, nn.Linear(3, 2))
        assert b"weft.header" in (tmp_path / name).read_bytes()[:1000]


@pytest.mark.parametrize(
    ("name", "fix"), [("strict", "partial=True"), ("map_location", "net.to"), ("weights_only", "leave")]
)
def test_names_of_torch_load_are_pointed_to_ours(tmp_path: Path, name: str, fix: str) -> None:
    net = nn.Linear(3, 2)
    weft.save(tmp_path / "net.safetensors", net)
    with pytest.raises(weft.UsageError, match=rf"load takes no {name}[\s\S]*{fix}"):
        weft.load(tmp_path / "net.safetensors", net, **{name: False})


def test_the_repr_of_a_checkpoint_fits_on_a_screen(tmp_path: Path) -> None:
    net = nn.Linear(300, 200)
    weft.save(tmp_path / "net.safetensors", net, epoch=3)
    shown = repr(weft.load(tmp_path / "net.safetensors", net))
    assert len(shown.splitlines()) < 8
    assert "2 tensors, 60,200 numbers" in shown
    assert "epoch, random states" in shown
    assert "<table" in weft.load(tmp_path / "net.safetensors")._repr_html_()
