"""What tests of the programs' semantics share: the exact bits of eager, and an engine of a test's own."""

from collections.abc import Iterator

import pytest

import weft
from weft.api.lazy_tasks import engine
from weft.config import overrides


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
    engine().failures.drop_what_is_queued()
    engine().failures.known.clear()
    engine().close()
