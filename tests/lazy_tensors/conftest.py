"""Fixtures of tests of queued work and of programs: soon compiled, eager's exact bits, an engine of a test's own."""

from collections.abc import Iterator

import pytest

import weft
from weft.config import overrides
from weft.lazy_tensors import backoff as lazy_backoff
from weft.lazy_tensors import segment_plan as lazy_plan
from weft.lazy_tensors.tasks import engine


@pytest.fixture(autouse=True)
def compiled_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let short segments be compiled from the second time on, too: programs are what most tests ask about."""
    monkeypatch.setattr(lazy_plan, "COMPILED_AFTER", 0.0)


@pytest.fixture(autouse=True)
def always_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let lazy code queue its operators however often a test looks at something: the tests of looks end this."""
    monkeypatch.setattr(lazy_backoff, "MOST_LOST", float("inf"))


@pytest.fixture
def by_library() -> Iterator[None]:
    """Run programs by PyTorch's operators: machine code of ours rounds sums in another order."""
    with overrides(codegen="library"):
        yield


@pytest.fixture
def own_engine() -> Iterator[None]:
    """End the lazy session and the engine before and after a test, with what is queued: each begins anew."""
    _end()
    yield
    _end()


def _end() -> None:
    weft.lazy(False)
    failures = engine().failures
    failures.drop_what_is_queued()
    engine().finish_all()
    # What stays poisoned keeps operators from running at once, for as long as anything holds the tensor.
    failures.heal([variable for failure in list(failures.known.values()) for variable in failure.poisoned()])
    failures.known.clear()
    engine().close()
