"""Behaviour of the types of operators' results that are kept on disk."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import weft
from weft.codegen.objects.native import SUFFIX, ObjectCache
from weft.compile import type_cache as kept_types
from weft.compile.type_cache import TYPE_FOLDER
from weft.config import overrides
from weft.trace.interception.capture import Interception


@pytest.fixture(autouse=True)
def knows_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let each test begin as a new process does."""
    monkeypatch.setattr(kept_types, "_rows", {})
    return


def entries(folder: Path) -> list[Path]:
    return sorted((folder / TYPE_FOLDER).glob(f"*{SUFFIX}"))


def smooth(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x.t())[1:] * 2


def run() -> torch.Tensor:
    with torch.no_grad():
        return weft.hybridize(smooth)(torch.arange(12.0).reshape(3, 4))


def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators whose results PyTorch is asked for."""
    found: list[str] = []
    rule = Interception.run

    def noted(self: Interception, operator: object, *given: object) -> object:
        found.append(str(operator))
        return rule(self, operator, *given)

    monkeypatch.setattr(Interception, "run", noted)
    return found


def test_the_next_process_asks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with overrides(cache_dir=tmp_path):
        expected = run()
        monkeypatch.setattr(kept_types, "_rows", {})
        found = asked(monkeypatch)
        assert torch.equal(run(), expected)
    assert found == []
    assert len(entries(tmp_path)) == 1


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[:-5], lambda _: b"", lambda b: b + b"?"],
)
def test_a_damaged_entry_is_learned_again(
    tmp_path: Path, damage: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with overrides(cache_dir=tmp_path):
        expected = run()
        (path,) = entries(tmp_path)
        whole = path.read_bytes()
        path.write_bytes(damage(whole))
        monkeypatch.setattr(kept_types, "_rows", {})
        assert torch.equal(run(), expected)
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "change", [lambda _: b"{}", lambda own: own[:64] + b"[", lambda own: own[:64] + b"[1]", lambda own: own[1:]]
)
def test_an_entry_of_something_else_is_learned_again(
    tmp_path: Path, change: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with overrides(cache_dir=tmp_path):
        expected = run()
        (path,) = entries(tmp_path)
        cache = ObjectCache(path.parent)
        own = cache.read(path.stem)
        assert own is not None
        cache.write(path.stem, change(own))
        monkeypatch.setattr(kept_types, "_rows", {})
        assert torch.equal(run(), expected)
        assert cache.read(path.stem) == own


def test_without_a_folder_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with overrides(cache_dir=None):
        run()
        monkeypatch.setattr(kept_types, "_rows", {})
        found = asked(monkeypatch)
        run()
    assert found
