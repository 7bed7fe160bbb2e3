"""The chapter's MXNet listings run unchanged with `python -m weft.mx`; a GPU is `cpu(1)` where there is none."""

from __future__ import annotations

import re
import runpy
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from weft import mx
from weft.errors import UsageError
from weft.mx.__main__ import main
from weft.mx.installing import MODULES, install
from weft.mx.symbols.names import NameManager, naming

HERE = Path(__file__).parent / "listings"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Run a listing as `python -m weft.mx` does, in this process; gives what it prints."""
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setitem(sys.modules, name, MODULES[name])
    naming.managers[:] = [NameManager()]
    mx.random.seed(1)  # with one in thirty, three epochs are too few

    def run_listing(name: str) -> str:
        runpy.run_path(str(HERE / name), run_name="__main__")
        return capsys.readouterr().out

    return run_listing


def test_imperative_and_symbolic_programs_give_ten(run) -> None:
    assert run("symbolic.py").endswith("print(fancy_func(1, 2, 3, 4)) \n\n10\n")


@pytest.mark.slow
def test_a_hybrid_sequential_is_timed_before_and_after_hybridizing(run) -> None:
    printed = run("hybrid_sequential.py")
    assert re.fullmatch(r"before hybridizing: [\d.]+ sec\nafter hybridizing: [\d.]+ sec\n", printed)


def test_a_hybrid_block_prints_symbols_once_though_sizes_are_inferred_first(run) -> None:
    first, *lines = run("hybrid_block.py").splitlines()
    assert first.startswith("F:  <module ")
    assert lines == ["x:  <Symbol data>", "hidden:  <Symbol hybridnet0_relu0>"]


def test_asynchronous_work_is_queued_and_waited_for(run) -> None:
    printed = run("asynchronous.py")
    assert "[[3. 3.]]\n<NDArray 1x2 @cpu(0)>" in printed
    assert "Workloads are queued. time: " in printed


@pytest.mark.slow
def test_many_devices_are_trained_from_scratch(run) -> None:
    printed = run("many_devices.py")
    assert "before all-reduce" in printed
    assert printed.count("[[3. 3.]]") == 2
    assert re.search(r"epoch 2, time [\d.]+ sec, test acc 1\.00", printed)


@pytest.mark.slow
def test_many_devices_are_trained_concisely(run) -> None:
    printed = run("many_devices_concise.py")
    assert "running on: [cpu(0), cpu(1)]" in printed
    assert re.search(r"epoch 3, time [\d.]+ sec, test acc 1\.00", printed)


def test_a_script_is_run_by_the_command(
    run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["weft.mx"])
    main([str(HERE / "symbolic.py"), "an argument"])
    assert capsys.readouterr().out.endswith("10\n")
    assert sys.argv[1:] == ["an argument"]
    with pytest.raises(SystemExit, match=r"there is no script no_such\.py"):
        main(["no_such.py"])
    with pytest.raises(SystemExit, match="usage"):
        main([])


def test_a_real_mxnet_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mxnet", types.ModuleType("mxnet"))
    with pytest.raises(UsageError, match="after the real mxnet was imported"):
        install()


def test_fashion_mnist_is_read_from_its_files(tmp_path: Path) -> None:
    for kind, count in (("train", 5), ("t10k", 3)):
        images = np.arange(count * 4, dtype=np.uint8)
        head = np.array([0x803, count, 2, 2], ">i4").tobytes()
        (tmp_path / f"{kind}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        labels = np.arange(count, dtype=np.uint8)
        (tmp_path / f"{kind}-labels-idx1-ubyte").write_bytes(
            np.array([0x801, count], ">i4").tobytes() + labels.tobytes()
        )
    d2l = MODULES["d2lzh"]
    train, test = d2l.load_data_fashion_mnist(2, root=tmp_path)
    assert [x.shape for x, _ in train] == [(2, 1, 2, 2), (2, 1, 2, 2), (1, 1, 2, 2)]
    assert [y.asnumpy().tolist() for _, y in test] == [[0, 1], [2]]
    with pytest.raises(UsageError, match="there is no train-images-idx3-ubyte"):
        d2l.load_data_fashion_mnist(2, root=tmp_path / "none")
