"""Compile native code that the whole process shares once, however many threads ask first."""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from weft.codegen.objects.native import NativeLibrary, compile_native
from weft.errors import WeftError
from weft.target import Target, host_target
from weft.worker_threads import is_ending

Text = Callable[[Target], str]
log = logging.getLogger("weft.runtime")

_libraries: dict[Text, NativeLibrary] = {}
# Held while one library is compiled, which waits for nobody who takes this lock. A cache without a lock would let two
# threads compile, and unload the code of one while its functions are in use.
_lock = threading.RLock()


def shared_library(text: Text) -> NativeLibrary:
    """Give the library of a module's text, which is written by a function; it stays until the process ends."""
    found = _libraries.get(text)  # what is there stays: no need to wait while another one is compiled
    if found is not None:
        return found
    with _lock:
        if text not in _libraries:
            _libraries[text] = compile_native(text(host_target()), host_target())
        return _libraries[text]


class Ahead:
    """The thread that compiles shared libraries before they are needed; there is one in a process, once."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        # Held while the thread is made, which waits for nobody.
        self._lock = threading.Lock()
        # Held by the thread for each library, and by who pauses it, which waits for nobody that takes it.
        self._turn = threading.Lock()
        self._may_go_on = threading.Event()
        self._may_go_on.set()

    def begin(self, texts: Callable[[], Iterable[Text]]) -> None:
        """Start the thread where there was none."""
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None:
                # Python waits for it at its end: LLVM must not go on while the process takes it down.
                thread = threading.Thread(target=self._compile, args=(texts,), name="weft compiler ahead")
                with suppress(RuntimeError):  # no memory for its stack: what is needed is compiled by who needs it
                    thread.start()
                    self._thread = thread

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While this is open nothing is compiled ahead: what has been begun is waited for. For one at a time."""
        self._may_go_on.clear()
        try:
            with self._turn:
                yield
        finally:
            self._may_go_on.set()

    def finish(self) -> None:
        """Wait until the thread is done. It waits only for who compiles one of these libraries or pauses it."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def renew(self) -> None:
        """In a forked child, what its parent has not compiled is compiled when it is needed."""
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._may_go_on.set()

    def _compile(self, texts: Callable[[], Iterable[Text]]) -> None:
        try:
            for text in texts():
                self._may_go_on.wait()
                if is_ending():
                    return
                with self._turn:
                    shared_library(text)
        except WeftError as error:
            log.info("not compiled ahead: %s", error)  # whoever needs it gets the same error


ahead = Ahead()


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603  # a forked child must not inherit a lock that nobody will release
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)
# A child must not begin while LLVM, or a lock of ours, is in the hands of a thread that it does not have.
os.register_at_fork(before=ahead.finish, after_in_child=ahead.renew)
