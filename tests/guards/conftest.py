"""Share fixtures with the tests of lazy code: its programs are compiled soon."""

from tests.lazy_tensors.conftest import always_queued, by_library, compiled_soon, own_engine

__all__ = ["always_queued", "by_library", "compiled_soon", "own_engine"]
