"""Compile the machine code that every program needs on another core while the first trace goes on.

A trace is Python on one core; LLVM works on another one meanwhile. What is not ready when it is needed is waited for.
"""

from collections.abc import Callable, Iterator

from weft.codegen.measure_module import measure_module
from weft.codegen.threads.crew_module import crew_module
from weft.config import config
from weft.devices import cpu_count
from weft.runtime.fast_call import python_calls
from weft.runtime.measure import get_memory, is_measured
from weft.runtime.shared_code import ahead
from weft.target import Target, host_target


def compile_ahead() -> None:
    """Begin to compile what every program needs, where that is not begun and another core can do it."""
    if config().codegen == "native" and cpu_count() > 1:
        ahead.begin(_texts)


def _texts() -> Iterator[Callable[[Target], str]]:
    if not is_measured(host_target()):
        yield measure_module
        get_memory()
    yield crew_module
    yield python_calls
