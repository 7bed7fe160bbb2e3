"""Programs as C libraries: compiled here and called from C, or refused with what is in the way."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

import weft
from weft.api import export as c_build
from weft.api import export as exporting
from weft.errors import ExecutionError, UnsupportedError

needs_compiler = pytest.mark.skipif(shutil.which(c_build.COMPILER) is None, reason="there is no C compiler")


def network() -> nn.Module:
    torch.manual_seed(0)
    parts = (nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 5), nn.Softmax(-1))
    return nn.Sequential(*parts).eval()


def program_of(thing: object, *inputs: torch.Tensor) -> weft.programs.program.Program:
    with torch.no_grad():
        return weft.program(thing, *inputs)


class Classifier(nn.Module):
    """Two arguments, two results, a constant, one argument of whole numbers and another layout."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, net: torch.Tensor, double: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.inner(net.t()) * torch.arange(3.0)
        return y, torch.where(double > 0, y.sum(-1), -1.0)


@needs_compiler
@pytest.mark.slow
def test_a_network_gives_from_c_what_it_gives_in_python(tmp_path: Path) -> None:
    net, x = network(), torch.randn(2, 1, 8, 8)
    found = weft.export(program_of(net, x), tmp_path / "net")
    assert found.checked
    library = ctypes.CDLL(str(tmp_path / "net" / "libnet.so"))
    library.net_load.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(library.net_load(str(tmp_path / "net" / "net.data").encode()))
    result = torch.full((2, 5), float("nan"))
    for _ in range(2):
        library.net_run(handle, ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(result.data_ptr()))
    with torch.no_grad():
        torch.testing.assert_close(result, net(x))
    assert library.net_load(b"nothing") is None
    library.net_free(handle)


@needs_compiler
@pytest.mark.slow
def test_several_arguments_and_results_of_several_kinds(tmp_path: Path) -> None:
    program = program_of(Classifier(), torch.randn(6, 4), torch.tensor([1, 0, 1, 1]))
    found = weft.export(program, tmp_path / "pair")
    header = (tmp_path / "pair" / "pair.h").read_text()
    assert "const float *net, const int64_t *_double, float *result0, float *result1" in header
    assert found.checked
    done = subprocess.run(["make", "-C", tmp_path / "pair", "test"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": equal") == 2


@needs_compiler
@pytest.mark.slow
def test_two_libraries_are_linked_into_one_program(tmp_path: Path) -> None:
    for name in ("first", "second"):
        weft.export(program_of(network(), torch.randn(2, 1, 8, 8)), tmp_path / name)
    (tmp_path / "main.c").write_text(
        '#include "first/first.h"\n#include "second/second.h"\n'
        'int main(void) { first_free(0); second_free(0); return first_load("no") || second_load("no"); }\n'
    )
    files = [f"{name}/{name}{end}" for name in ("first", "second") for end in (".c", "_kernels.o")]
    subprocess.run(["cc", "-o", "main", "main.c", *files, "-lm"], cwd=tmp_path, check=True)
    subprocess.run([str(tmp_path / "main")], check=True)


@needs_compiler
def test_a_difference_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_example", lambda *_: bytes(4 * (3 * 8 + 3 * 2)))
    with pytest.raises(ExecutionError, match="DIFFERS"):
        weft.export(program_of(nn.Linear(8, 2), torch.ones(3, 8)), tmp_path / "net")


def test_without_a_compiler_everything_but_the_library_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(c_build, "COMPILER", "no-such-compiler")
    found = weft.export(program_of(nn.Linear(8, 2), torch.ones(3, 8)), tmp_path / "net")
    assert not found.checked
    assert sorted(path.name for path in (tmp_path / "net").iterdir()) == sorted(found.files)


def test_a_saved_program_is_exported_as_the_one_it_was_saved_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(c_build, "COMPILER", "no-such-compiler")
    program = program_of(network(), torch.randn(2, 1, 8, 8))
    program.save(tmp_path / "net.weft")
    weft.export(program, tmp_path / "a" / "net")
    weft.export(weft.load_program(tmp_path / "net.weft"), tmp_path / "b" / "net")
    for name in ("net.h", "net.c", "net_kernels.o", "net.data", "net.example"):
        assert (tmp_path / "a" / "net" / name).read_bytes() == (tmp_path / "b" / "net" / name).read_bytes()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.sort().values, "aten.sort"),
        (lambda x: (x, x + 1), "a result of it is an argument"),
        (lambda x: x.add_(1), "it writes into tensors"),
    ],
    ids=["operator", "argument", "write"],
)
def test_what_cannot_be_exported_is_named(function, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        weft.export(program_of(function, torch.ones(3)), tmp_path / "net")
    assert not (tmp_path / "net").exists()


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", ["c", "m"])
def test_a_folder_may_be_called_as_a_library_of_the_system(name: str, tmp_path: Path) -> None:
    assert weft.export(program_of(nn.ReLU(), torch.randn(3)), tmp_path / name).checked
    subprocess.run(["make", "-B", "test"], cwd=tmp_path / name, check=True, capture_output=True)
