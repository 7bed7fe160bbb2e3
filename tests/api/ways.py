"""Short programs, each run as eager PyTorch runs it and by Weft in several ways: what they give has to be the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import weft
from weft.config import overrides

Wrap = Callable[[Any], Any]
Case = Callable[[Wrap], list[Any]]


def _lazily(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **keywords: Any) -> Any:
        with weft.lazy():
            return function(*arguments, **keywords)

    return run


# By name: what stands in the place of a function or module, and where the code of its programs comes from.
WAYS: dict[str, tuple[Wrap, str]] = {
    "native": (weft.hybridize, "native"),
    "library": (weft.hybridize, "library"),
    "lazily": (_lazily, "native"),
}


def told(case: Case, wrap: Wrap) -> Any:
    """What a case gives, or the exception that it ends in."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return case(wrap)
        except Exception as error:  # noqa: BLE001 - it is compared
            return error


@contextmanager
def way(name: str) -> Iterator[Wrap]:
    """What wraps functions in a way of running them."""
    wrap, codegen = WAYS[name]
    with overrides(codegen=codegen):
        yield wrap


def check(case: Case, name: str, *, may_refuse: bool = False) -> None:
    """Run a case as eager does and in a way; where it may refuse, an error has to have the user's line or a remedy."""
    expected = told(case, lambda thing: thing)
    with way(name) as wrap:
        found = told(case, wrap)
    if may_refuse and isinstance(found, weft.UnsupportedError):
        assert "fix" in str(found)
        return
    if isinstance(expected, Exception) or isinstance(found, Exception):
        if type(expected) is not type(found):
            raise AssertionError(f"eager: {expected!r}, {name}: {found!r}") from (
                found if isinstance(found, Exception) else None
            )
        return
    assert same(expected, found), f"eager: {expected}, {name}: {found}"


def same(expected: Any, found: Any) -> bool:
    """Whether two results are the same, in kind as well as in value."""
    if isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor):
        return _same_tensor(expected, found)
    if isinstance(expected, (list, tuple)):
        together = type(expected) is type(found) and len(expected) == len(found)
        return together and all(map(same, expected, found))
    if isinstance(expected, dict):
        return list(expected) == list(found) and all(same(expected[name], found[name]) for name in expected)
    return type(expected) is type(found) and bool(expected == found)


def _same_tensor(expected: torch.Tensor, found: torch.Tensor) -> bool:
    facts = ("dtype", "shape", "requires_grad")
    if any(getattr(expected, name) != getattr(found, name) for name in facts):
        return False
    if expected.is_inference() != found.is_inference():
        return False
    with torch._C.DisableTorchFunctionSubclass():  # a subclass may refuse to be compared
        one, other = (tensor.detach().resolve_conj().resolve_neg() for tensor in (expected, found))
        return torch.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True)
