"""Checkpoints that are damaged or forged: the same result or one clear error, in little time and memory."""

from __future__ import annotations

import pickle
import random
import re
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.train.mutations import forged, mutated, with_digest
from torch import nn

import weft


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))


def saved(path: Path) -> dict[str, torch.Tensor]:
    random.seed(0)
    np.random.seed(0)
    net = model()
    net(torch.randn(3, 6)).sum().backward()
    optimizer = torch.optim.Adam(net.parameters())
    optimizer.step()
    weft.save(path, net, optimizer=optimizer, step=3, note={"rate": (0.1, float("nan"))})
    path.with_name("parts").write_text(contents(path))
    return net.state_dict()


def contents(path: Path) -> str:
    found = weft.load(path)
    return repr((found.parts, found.random))


def error_of(path: Path, net: nn.Module, **options: Any) -> weft.CheckpointError | None:
    """The error of loading, or nothing if the file loads; any other exception is a mistake."""
    try:
        weft.load(path, net, **options)
    except weft.CheckpointError as error:
        return error
    return None


def outcome(path: Path, content: bytes, right: dict[str, torch.Tensor]) -> str:
    """The error's text, or nothing if the file loads as it was saved."""
    path.write_bytes(content)
    net = model()
    error = error_of(path, net, optimizer=torch.optim.Adam(net.parameters()))
    if error is None:
        assert contents(path) == path.with_name("parts").read_text()
        assert all(map(torch.equal, net.state_dict().values(), right.values()))
        return ""
    assert str(path) in error.fact
    assert error.fix
    return str(error)


def check_foreign(path: Path, content: bytes, right: dict[str, torch.Tensor]) -> bool:
    """Whether a damaged file of torch.save is refused; if it is not, it loads as it was saved."""
    path.write_bytes(content)
    net = model()
    error = error_of(path, net)
    if error is None:
        assert all(map(torch.equal, net.state_dict().values(), right.values()))
        return False
    assert str(path) in error.fact
    return True


@pytest.mark.slow
def test_damaged_files_load_as_they_were_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "net"
    right = saved(path)
    content = path.read_bytes()
    for seed in range(500):
        outcome(path, mutated(content, seed), right)


@pytest.mark.slow
def test_forged_digests_end_in_an_error_or_another_checkpoint_never_in_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "net"
    saved(path)
    content = path.read_bytes()
    for seed in range(500):
        changed = mutated(content, seed)
        if len(changed) > 8:
            path.write_bytes(with_digest(changed))
            net = model()
            error = error_of(path, net, optimizer=torch.optim.Adam(net.parameters()))
            assert error is None or str(path) in error.fact


def test_each_flipped_bit_of_a_tensor_is_noticed_and_the_tensor_named(tmp_path: Path) -> None:
    path = tmp_path / "net"
    right = saved(path)
    content = path.read_bytes()
    weight = right["0.weight"].numpy().tobytes()
    for bit in range(0, 8 * len(weight), 37):
        changed = bytearray(content)
        changed[content.index(weight) + bit // 8] ^= 1 << bit % 8
        assert "its tensor '0.weight' is damaged" in outcome(path, bytes(changed), right)


def row(**fields: Any) -> Callable[[dict, dict], None]:
    return lambda header, description: header["0.weight"].update(fields)


def described(**fields: Any) -> Callable[[dict, dict], None]:
    return lambda header, description: description.update(fields)


FORGERIES = {
    "a huge size": (row(shape=[2**40, 2**20]), "does not lie where it must"),
    "a size without end": (row(shape=[2**200]), "has no meaning"),
    "a negative size": (row(shape=[-5, -6]), "has no meaning"),
    "many dimensions": (row(shape=[5, 6] + [1] * 80), "impossible sizes"),
    "an unknown type": (row(dtype="F1"), "has no meaning"),
    "an overlap": (row(data_offsets=[0, 120]), "does not lie where it must"),
    "no tensors": (lambda header, description: description.update(model=["0.weight", "no such"]), "no meaning"),
    "a tie to nothing": (described(ties={"0.weight": "no such"}), "its description has no meaning"),
    "a pair of the wrong type": (described(pairs={"0.weight": "complex128"}), "cannot be of type 'complex128'"),
    "a value of no kind": (described(parts={"step": {"exec": "import os"}}), "a value in it has no meaning: exec"),
    "an attribute of torch": (described(parts={"step": {"dtype": "save"}}), "save is no element type"),
    "random states of another kind": (described(random={"dict": [["torch", 3]]}), "random states have no meaning"),
    "other digests": (described(digests={}), "its digests are of other tensors"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_header_is_refused(name: str, tmp_path: Path) -> None:
    change, message = FORGERIES[name]
    path = tmp_path / "net"
    right = saved(path)
    assert message in outcome(path, forged(path.read_bytes(), change), right)


def test_nesting_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net"
    right = saved(path)
    deep = b"[" * 100_000 + b"]" * 100_000
    content = forged(path.read_bytes(), described(made_by="here"))
    content = content.replace(b'\\"here\\"', deep)
    content = (len(content) - 8).to_bytes(8, "little") + content[8:]
    assert outcome(path, with_digest(content), right)


@pytest.mark.parametrize("length", [2**20, 2**40, 2**63, 2**64 - 1])
def test_a_lie_about_the_length_takes_no_memory(length: int, tmp_path: Path) -> None:
    path = tmp_path / "net"
    right = saved(path)
    tracemalloc.start()
    try:
        assert "does not begin as a checkpoint" in outcome(path, length.to_bytes(8, "little") + b"{}", right)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("content", [b"", b"\0", b"PK\x03\x04", b"\x80\x02garbage", b"not a checkpoint at all"])
def test_other_files_are_refused_by_name(content: bytes, tmp_path: Path) -> None:
    assert outcome(tmp_path / "net", content, {})


def test_a_missing_file_and_a_folder_without_checkpoints_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(weft.CheckpointError, match=re.escape(str(path))):
            weft.load(path)


def test_a_missing_file_names_the_one_that_was_meant(tmp_path: Path) -> None:
    weft.save(tmp_path / "model.safetensors", model())
    with pytest.raises(weft.CheckpointError, match=r"there is no such file\n.*did you mean .*/model\.safetensors\?"):
        weft.load(tmp_path / "modle.safetensors", model())


def test_files_of_other_tools_are_loaded_unverified_only_on_request(tmp_path: Path) -> None:
    net = model()
    save_file(net.state_dict(), tmp_path / "net")
    other = model()
    with pytest.raises(weft.CheckpointError, match="it carries no digest"):
        weft.load(tmp_path / "net", other)
    weft.load(tmp_path / "net", other, verify=False)
    assert torch.equal(other[0].weight, net[0].weight)


def test_each_flipped_bit_of_a_file_of_torch_is_noticed(tmp_path: Path) -> None:
    net = model()
    path = tmp_path / "net.pt"
    torch.save(net.state_dict(), path)
    content = path.read_bytes()
    source, refused = random.Random(0), 0
    for _ in range(200):
        changed = bytearray(content)
        changed[source.randrange(len(content))] ^= 1 << source.randrange(8)
        refused += check_foreign(path, bytes(changed), net.state_dict())
    assert refused > 100


@pytest.mark.slow
def test_no_flipped_bit_of_what_an_archive_says_of_a_tensor_gives_other_values(tmp_path: Path) -> None:
    net = nn.Linear(3, 2)
    path = tmp_path / "net.pt"
    torch.save(net.state_dict(), path)
    content = path.read_bytes()
    name = content.rindex(b"net/data/0")
    for bit in range(8 * content.rindex(b"PK\1\2", 0, name), 8 * content.index(b"PK\1\2", name)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        other = nn.Linear(3, 2)
        if error_of(path, other) is None:
            assert all(map(torch.equal, other.state_dict().values(), net.state_dict().values())), bit


@pytest.mark.parametrize("verify", [True, False])
def test_a_record_that_says_it_is_a_folder_is_refused(verify: bool, tmp_path: Path) -> None:
    """PyTorch reads nothing into the memory of such a record, and gives whatever was there before."""
    net = nn.Linear(3, 2)
    path = tmp_path / "net.pt"
    torch.save(net.state_dict(), path)
    content = bytearray(path.read_bytes())
    name = content.rindex(b"net/data/0")  # in the contents, at the end; 8 bytes before it, the attributes
    content[name - 8] |= 0x10
    path.write_bytes(content)
    with pytest.raises(weft.CheckpointError, match="says that it is a folder"):
        weft.load(path, nn.Linear(3, 2), verify=verify)


def test_a_record_without_a_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo(""), b"x")
    with pytest.raises(weft.CheckpointError, match=re.escape(str(path))):
        weft.load(path, nn.Linear(3, 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "why"),
    [("version https://git-lfs.github.com/spec/v1\n", "git lfs pull"), ("<!doctype html>", "page of the web")],
    ids=["lfs", "html"],
)
def test_what_lies_where_a_checkpoint_should_is_told(tmp_path: Path, content: str, why: str) -> None:
    for name in ("net.safetensors", "net.pt"):
        (tmp_path / name).write_text(content)
        with pytest.raises(weft.CheckpointError, match=why):
            weft.load(tmp_path / name, nn.Linear(2, 2))


def test_damaged_files_of_torch_load_as_they_were_or_not_at_all(tmp_path: Path) -> None:
    net = model()
    path = tmp_path / "net.pt"
    torch.save(net.state_dict(), path)
    content = path.read_bytes()
    refused = [check_foreign(path, mutated(content, seed), net.state_dict()) for seed in range(300)]
    assert sum(refused) > 150


def test_a_packed_archive_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/data.pkl", bytes(2**26))
    with pytest.raises(weft.CheckpointError, match="is packed, which torch"):
        weft.load(path)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("evil",)


@pytest.mark.parametrize("content", [Evil(), {"weight": torch.ones(1), "more": Evil()}, nn.Linear(1, 1)])
def test_a_file_that_would_run_code_is_refused(content: Any, tmp_path: Path, capsys: Any) -> None:
    torch.save(content, tmp_path / "net.pt")
    with pytest.raises(weft.CheckpointError, match=r"(?s)more than tensors.*torch\.save\(net\.state_dict"):
        weft.load(tmp_path / "net.pt")
    assert capsys.readouterr().out == ""


def test_old_files_of_torch_have_no_checksum_and_go_through_the_safe_unpickler_too(tmp_path: Path) -> None:
    path, net = tmp_path / "net.pt", model()
    torch.save(net.state_dict(), path, _use_new_zipfile_serialization=False)
    other = model()
    with pytest.raises(weft.CheckpointError, match="it carries no checksum"):
        weft.load(path, other)
    weft.load(path, other, verify=False)
    assert torch.equal(other[0].weight, net[0].weight)
    path.write_bytes(pickle.dumps(Evil(), protocol=2))
    with pytest.raises(weft.CheckpointError, match="cannot be loaded"):
        weft.load(path, other, verify=False)


def test_the_model_is_found_among_other_things(tmp_path: Path) -> None:
    net, other = model(), model()
    content = {"epoch": 3, "model": nn.DataParallel(net).state_dict(), "optimizer": {"state": {}}}
    torch.save(content, tmp_path / "net.pt")
    weft.load(tmp_path / "net.pt", other)
    assert torch.equal(other[0].weight, net[0].weight)
    torch.save({**content, "net": net.state_dict()}, tmp_path / "net.pt")
    with pytest.raises(weft.CheckpointError, match="it is not clear where"):
        weft.load(tmp_path / "net.pt", other)
