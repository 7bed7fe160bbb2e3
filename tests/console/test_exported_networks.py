"""MXNet's exported networks on the command line: run, shown, exported; their parameters inspected and converted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.console.conftest import Weft

import weft as package
from weft.mx.symbols.exported import open_module

EXPORTED = Path(__file__).parents[1] / "mx" / "fixtures" / "exported"
ANSWERS = np.load(EXPORTED / "answers.npz")


@pytest.fixture
def networks(folder: Path) -> Path:
    """A folder with what MXNet exported, and inputs."""
    for path in EXPORTED.iterdir():
        shutil.copy(path, folder)
    for name in ("net", "old"):
        np.save(folder / f"{name}.npy", ANSWERS[f"{name}_input"])
    return folder


@pytest.mark.parametrize("name", ["net", "old"])
def test_a_network_gives_mxnets_answer(weft: Weft, networks: Path, name: str) -> None:
    answer = weft("run", f"{name}-symbol.json", "--input", f"{name}.npy", "--output", "found.npy", "--json")
    assert answer.status == 0, answer.err
    np.testing.assert_allclose(np.load(networks / "found.npy"), ANSWERS[name], rtol=1e-4, atol=1e-6)
    (argument,) = json.loads(answer.out)["arguments"]
    assert argument.startswith("data: float32[2,")


@pytest.mark.usefixtures("networks")
def test_sizes_come_from_the_file_where_it_says_them(weft: Weft) -> None:
    assert weft("run", "old-symbol.json").status == 0
    answer = weft("run", "net-symbol.json")
    assert answer.status == 2
    assert "does not say the sizes of data" in answer.err
    assert weft("run", "net-symbol.json", "--input", "2,1,8,8").status == 0


@pytest.mark.usefixtures("networks")
def test_a_network_is_shown_and_exported(weft: Weft, networks: Path) -> None:
    answer = weft("show", "net-symbol.json", "--input", "2,1,8,8")
    assert answer.status == 0
    assert "%dense0_weight: f32[5,36]" in answer.out
    assert "convolution %input0, %conv0_weight" in answer.out
    assert weft("export", "net-symbol.json", "--input", "2,1,8,8", "--to", "c").status == 0
    assert (networks / "c" / "c.h").exists()


@pytest.mark.usefixtures("networks")
@pytest.mark.slow
def test_a_network_is_timed(weft: Weft) -> None:
    answer = weft("bench", "old-symbol.json", "--vs", "eager", "--runs", "2", "--warmup", "1", "--json")
    assert answer.status == 0, answer.err
    assert [each["agrees"] for each in json.loads(answer.out)["results"]] == [True, True]


def test_what_cannot_be_opened_is_one_error(weft: Weft, networks: Path) -> None:
    answer = weft("run", "nothing-symbol.json")
    assert answer.status == 2
    assert "there is no file nothing-symbol.json" in answer.err
    (networks / "alone-symbol.json").write_text((networks / "net-symbol.json").read_text())
    answer = weft("run", "alone-symbol.json", "--input", "2,1,8,8")
    assert answer.status == 2
    assert "there are no parameters beside alone-symbol.json" in answer.err
    (networks / "net-symbol.json").write_text("{}")
    answer = weft("run", "net-symbol.json", "--input", "2,1,8,8")
    assert answer.status == 4
    assert "cannot be opened as a network" in answer.err
    answer = weft("run", "old-symbol.json", "--input", "2,5")
    assert answer.status == 2
    assert "old does not run imperatively on (f32[2,5])" in answer.err
    assert weft("run", "old-symbol.json", "--input", "2,3", "--input", "old.npy").status == 2


def test_parameters_are_inspected_converted_and_come_back(weft: Weft, networks: Path) -> None:
    answer = weft("ckpt", "inspect", "net-0000.params", "--json")
    (found,) = json.loads(answer.out)["files"]
    assert (found["kind"], found["state"]) == ("MXNet", "no checksum")
    assert [each["name"] for each in found["tensors"]][:2] == ["arg:conv0_weight", "arg:conv0_bias"]
    assert weft("ckpt", "convert", "net-0000.params", "--to", "net.safetensors").status == 0
    assert weft("ckpt", "convert", "net.safetensors", "--to", "back.params").status == 0
    assert (networks / "back.params").read_bytes() == (networks / "net-0000.params").read_bytes()
    assert weft("ckpt", "convert", "net-0000.params", "--to", "net.pt").status == 0
    assert "arg:dense0_bias" in torch.load(networks / "net.pt", weights_only=True)


def test_damaged_parameters_are_told(weft: Weft, networks: Path) -> None:
    content = (networks / "net-0000.params").read_bytes()
    (networks / "cut.params").write_bytes(content[:-7])
    (networks / "other.params").write_bytes(b"nothing of that kind" * 3)
    sparse = content[:28] + (1).to_bytes(4, "little") + content[32:]
    (networks / "sparse.params").write_bytes(sparse)
    answer = weft("ckpt", "verify", "net-0000.params", "cut.params", "other.params", "sparse.params", "--json")
    assert [each["state"] for each in json.loads(answer.out)["files"]] == [
        "no checksum",
        "damaged",
        "damaged",
        "not read",
    ]
    assert answer.status == 4
    answer = weft("ckpt", "convert", "cut.params", "--to", "new.safetensors")
    assert answer.status == 4
    assert not (networks / "new.safetensors").exists()


def test_what_mxnet_cannot_hold_is_not_converted(weft: Weft, folder: Path) -> None:
    package.save(folder / "a.safetensors", torch.nn.Linear(1, 1, dtype=torch.complex64), random=False)
    answer = weft("ckpt", "convert", "a.safetensors", "--to", "a.params")
    assert answer.status == 2
    assert "weight is of type complex64, which MXNet's files cannot hold" in answer.err


def test_a_network_trains_its_moving_averages(networks: Path) -> None:
    module, sizes = open_module(str(networks / "net-symbol.json"))
    assert sizes == [None]
    x = torch.from_numpy(ANSWERS["net_input"])
    before = module.batchnorm0_running_mean.clone()
    module.train()(x).sum().backward()
    assert not torch.equal(module.batchnorm0_running_mean, before)
    assert module.dense0_weight.grad is not None
