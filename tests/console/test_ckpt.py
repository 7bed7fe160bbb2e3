"""`weft ckpt` on files of Weft, of torch.save and of others, whole and damaged."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.console.conftest import Weft, transcript

import weft as package

LINES = (
    "weft ckpt inspect ours.safetensors",
    "weft ckpt inspect wrapped.pt",
    "weft ckpt verify .",
    "weft ckpt diff ours.safetensors wrapped.pt",
    "weft ckpt diff ours.safetensors other.safetensors",
    "weft ckpt diff ours.safetensors larger.pt",
    "weft ckpt convert wrapped.pt --to converted.safetensors",
    "weft ckpt diff wrapped.pt converted.safetensors",
    "weft ckpt convert ours.safetensors --to ours.pt",
    "weft ckpt convert ours.safetensors",
    "weft ckpt convert ours.safetensors --to ours.zip",
    "weft ckpt convert ours.safetensors --to ours.safetensors",
    "weft ckpt inspect nothing.pt",
    "weft ckpt inspct ours.pt",
    "weft ckpt diff ours.pt",
    "weft ckpt verify ours.pt --keep 2",
)


def filled(value: float, width: int = 2) -> torch.nn.Sequential:
    net = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.Linear(width, 1, bias=False))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(value)
    return net


@pytest.fixture
def files(folder: Path) -> Path:
    """Checkpoints of several makers, one of them with a flipped bit."""
    net = filled(0.5)
    package.save(folder / "ours.safetensors", net, epoch=3, random=False)
    package.save(folder / "other.safetensors", filled(0.75), random=False)
    torch.save(torch.nn.DataParallel(net).state_dict(), folder / "wrapped.pt")
    torch.save(filled(0.5, width=4).state_dict(), folder / "larger.pt")
    safetensors.torch.save_file(net.state_dict(), folder / "theirs.safetensors")
    content = bytearray((folder / "ours.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "damaged.safetensors").write_bytes(content)
    return folder


@pytest.mark.usefixtures("files")
def test_files_are_shown_judged_compared_and_converted(weft: Weft, golden) -> None:
    text = transcript(weft, LINES)
    text = re.sub(r"made by .*", "made by VERSIONS", text)
    golden("cli", "ckpt", re.sub(r"[\d,]+ bytes", "SIZE bytes", text))


@pytest.mark.usefixtures("files")
def test_the_state_of_files_is_told_by_the_exit_status(weft: Weft) -> None:
    assert weft("ckpt", "verify", "ours.safetensors", "wrapped.pt").status == 0
    assert weft("ckpt", "verify", "theirs.safetensors").status == 0  # no checksum says nothing against it
    assert "no checksum" in weft("ckpt", "verify", "theirs.safetensors").out
    answer = weft("ckpt", "verify", "theirs.safetensors", "damaged.safetensors", "--json")
    assert answer.status == 4
    assert [each["state"] for each in json.loads(answer.out)["files"]] == ["no checksum", "damaged"]


def test_converted_files_load_as_the_model_that_was_saved(weft: Weft, files: Path) -> None:
    for source, target in (("wrapped.pt", "a.safetensors"), ("a.safetensors", "b.pt"), ("theirs.safetensors", "c.pth")):
        assert weft("ckpt", "convert", source, "--to", target).status == 0
    for name in ("a.safetensors", "b.pt", "c.pth"):
        net = filled(0.0)
        package.load(files / name, net)
        assert all(bool((parameter == 0.5).all()) for parameter in net.parameters())
    assert set(torch.load(files / "b.pt", weights_only=True)) == {"0.weight", "0.bias", "1.weight"}


def test_a_file_that_is_there_is_written_over_only_by_force(weft: Weft, files: Path) -> None:
    before = (files / "other.safetensors").read_bytes()
    answer = weft("ckpt", "convert", "wrapped.pt", "--to", "other.safetensors")
    assert answer.status == 2
    assert "is there already" in answer.err
    assert (files / "other.safetensors").read_bytes() == before
    assert weft("ckpt", "convert", "wrapped.pt", "--to", "other.safetensors", "--force").status == 0
    assert (files / "other.safetensors").read_bytes() != before
    assert weft("ckpt", "verify", "wrapped.pt", "--force").status == 2


def test_a_damaged_file_is_not_converted(weft: Weft, files: Path) -> None:
    assert weft("ckpt", "convert", "damaged.safetensors", "--to", "new.pt").status == 4
    assert not (files / "new.pt").exists()


def test_cleaning_keeps_the_newest_good_checkpoints_and_names_damaged_ones(weft: Weft, folder: Path) -> None:
    checkpoints = package.Checkpoints("run", keep=None)
    paths = [checkpoints.save(filled(step), step) for step in range(1, 5)]
    content = bytearray(paths[2].read_bytes())
    content[-1] ^= 1
    paths[2].write_bytes(content)
    answer = weft("ckpt", "clean", "run", "--keep", "2", "--json")
    found = json.loads(answer.out)
    assert answer.status == 1
    assert [Path(name).name for name in found["kept"]] == [paths[3].name, paths[1].name]
    assert [Path(name).name for name in found["removed"]] == [paths[0].name]
    assert [Path(name).name for name in found["damaged"]] == [paths[2].name]
    assert not (folder / paths[0]).exists()
    assert (folder / paths[2]).exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["inspect ours.safetensors", "verify other.safetensors", "diff other.safetensors other.safetensors"]
)
def test_shown_code_prints_the_same(words: str, weft: Weft, files: Path) -> None:
    weft("ckpt", "convert", "ours.safetensors", "--to", "ours.pt")
    code = weft("ckpt", *words.split(), "--show-code").out
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=files)
    assert found.stdout == weft("ckpt", *words.split()).out


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("verify big.pt", ["checking big.pt"]),
        ("verify big.safetensors", ["reading big.safetensors"]),
        ("verify big.pt big.safetensors", ["reading 2 files"]),
        ("diff big.pt big.safetensors", ["checking big.pt", "reading big.safetensors"]),
        (
            "convert big.pt --to new.safetensors",
            ["checking big.pt", "writing new.safetensors", "reading new.safetensors"],
        ),
        ("convert big.safetensors --to new.pt", ["reading big.safetensors", "writing new.pt", "checking new.pt"]),
    ],
)
def test_what_takes_long_tells_each_tenth_of_it(
    folder: Path, weft: Weft, monkeypatch: pytest.MonkeyPatch, line: str, told: list[str]
) -> None:
    net = torch.nn.Linear(400, 400)
    torch.save(net.state_dict(), folder / "big.pt")
    package.save(folder / "big.safetensors", net)
    for name in (
        "train.checkpoints.foreign_file.READ_SIZE",
        "train.checkpoints.tensor_file.PIECE",
        "files.WRITE_SIZE",
    ):
        monkeypatch.setattr(f"weft.{name}", 2**13)

    assert "%" not in weft("ckpt", *line.split()).err  # below two seconds nothing is told

    monkeypatch.setattr("weft.console.terminal.QUIET", 0.0)
    monkeypatch.setattr("weft.console.terminal.Progress.stage", lambda *_: None)
    answer = weft("ckpt", *line.split(), *(["--force"] if line.startswith("convert") else []))
    assert answer.status == 0
    lines = [found.rpartition(": ") for found in answer.err.splitlines()]
    assert list(dict.fromkeys(what for what, _, _ in lines)) == told
    for each in told:
        shares = [int(share.removesuffix(" %")) for what, _, share in lines if what == each]
        assert [share // 10 for share in shares] == list(range(1, 10))
