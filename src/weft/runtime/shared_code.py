"""Native code that the whole process shares -> compiled once, however many threads ask first."""

import os
import threading
from collections.abc import Callable

from weft.codegen.native import NativeLibrary, compile_native
from weft.target import Target, host_target

_libraries: dict[Callable[[Target], str], NativeLibrary] = {}
# Held while one library is compiled, which waits for nobody who takes this lock. A cache without a lock would let two
# threads compile, and unload the code of one while its functions are in use.
_lock = threading.RLock()


def shared_library(text: Callable[[Target], str]) -> NativeLibrary:
    """Give the library of a module's text, which is written by a function; it stays until the process ends."""
    with _lock:
        if text not in _libraries:
            _libraries[text] = compile_native(text(host_target()), host_target())
        return _libraries[text]


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603  # a forked child must not inherit a lock that nobody will release
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)
