"""What tests of the programs' semantics share: the exact bits of eager, by PyTorch's own operators."""

from collections.abc import Iterator

import pytest

from weft.config import overrides


@pytest.fixture
def by_library() -> Iterator[None]:
    """Run programs by PyTorch's operators: machine code of ours rounds sums in another order."""
    with overrides(codegen="library"):
        yield
