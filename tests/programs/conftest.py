"""Share fixtures with the tests of lazy code: soon compiled, the exact bits of eager, an engine of their own."""

from tests.lazy_tensors.conftest import always_queued, by_library, compiled_soon, own_engine

__all__ = ["always_queued", "by_library", "compiled_soon", "own_engine"]
