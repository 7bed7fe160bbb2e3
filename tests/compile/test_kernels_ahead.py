"""Behaviour of compiling kernels before their lanes and memory are known."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft.codegen import plan_module
from weft.codegen.objects import compiler
from weft.compile import plan_cache
from weft.config import overrides
from weft.devices import cores
from weft.plan.draft import Draft


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 10), nn.Softmax(dim=1)).eval()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "LEAST_PART", 10)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are compiled, as they are."""
    texts: list[str] = []
    known = compiler.object_code

    def noted(text: Any, target: Any) -> bytes:
        texts.append(str(text))
        return known(text, target)

    monkeypatch.setattr(compiler, "object_code", noted)
    return texts


@pytest.mark.usefixtures("small_parts")
def test_kernels_are_compiled_while_they_are_given_lanes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[str]
) -> None:
    model, x = net(), torch.randn(5, 20)
    begun = threading.Event()
    known, code_of = Draft.within, compiler.object_code

    def noted(text: Any, target: Any) -> bytes:
        if "define void @product" in str(text):
            begun.set()
        return code_of(text, target)

    def within(draft: Draft, peak_bytes: int) -> Any:
        assert begun.wait(timeout=60)  # before it is known which lane calls them
        return known(draft, peak_bytes)

    monkeypatch.setattr(compiler, "object_code", noted)
    monkeypatch.setattr(Draft, "within", within)
    with cores(2), overrides(cache_dir=tmp_path), torch.no_grad():
        found = weft.hybridize(model)(x)
        before = {*compiled}
        torch.testing.assert_close(found, model(x))
        # The next process finds the plan and the code, and compiles nothing.
        assert torch.equal(weft.hybridize(net())(x), found)
    assert len(compiled) == len({*compiled}), "nothing twice; what other tests have begun may still be compiled"
    assert before


@pytest.mark.usefixtures("small_parts")
def test_kernels_of_a_plan_that_cannot_be_kept_are_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[str]
) -> None:
    x = torch.randn(5, 20)
    monkeypatch.setattr(plan_cache, "write_planned", lambda *_: None)
    with cores(2), overrides(cache_dir=tmp_path), torch.no_grad():
        found = weft.hybridize(net())(x)
        before = {*compiled}
        assert torch.equal(weft.hybridize(net())(x), found)
    assert len(compiled) == len({*compiled}), "nothing twice; what other tests have begun may still be compiled"
    assert before


@pytest.mark.usefixtures("small_parts")
def test_what_was_begun_for_a_plan_that_failed_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no lanes")

    monkeypatch.setattr(Draft, "within", fail)
    with cores(2), torch.no_grad(), pytest.raises(RuntimeError, match="no lanes"):
        weft.hybridize(net())(torch.randn(5, 20))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("weft compiler_")]
