"""Compile on other cores what will be needed, while this one goes on: what every program needs, and kernels.

A trace is Python on one core; LLVM works on another one meanwhile. Kernels stay the same whatever lanes and memory
their plan is given. What is not ready when it is needed is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self

from weft.codegen.measure_module import measure_module
from weft.codegen.objects.compiler import Compilation
from weft.codegen.plan_module import KernelParts
from weft.codegen.threads.workers import worker_module
from weft.config import config
from weft.devices import cpu_count
from weft.plan.form.plan import Plan
from weft.runtime.built_in import python_calls
from weft.runtime.executable import Begun
from weft.runtime.machine import get_memory, is_measured
from weft.runtime.shared_code import ahead
from weft.runtime.watch import notice_aliases
from weft.target import Target, host_target


def begin_process() -> None:
    """Make a process ready for programs, once: before it is noted which names PyTorch's classes have.

    What every program needs begins to be compiled where another core can do it.
    """
    notice_aliases()
    if config().codegen == "native" and cpu_count() > 1:
        ahead.begin(_texts)


def _texts() -> Iterator[Callable[[Target], str]]:
    if not is_measured(host_target()):
        yield measure_module
        get_memory()
    yield worker_module
    yield python_calls


class KernelsAhead:
    """Compiles kernels for as long as it is open; what nobody has finished until then is dropped."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._begun: list[Begun] = []  # also what was taken: whoever took it may fail before it is finished
        self._free: list[Begun] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._begun:
            one.compilation.drop()

    def begin(self, plan: Plan) -> None:
        """Begin to compile the kernels of a plan, where another core can do it."""
        if cpu_count() < 2:
            return
        parts, compilation = KernelParts(plan, self._target), Compilation(self._target)
        self._begun.append(Begun(parts, compilation))
        self._free.append(self._begun[-1])
        for text in parts.texts():
            compilation.add(text)

    def take(self, plan: Plan) -> Begun | None:
        """Give what was begun of a plan, if it was: the caller may finish it."""
        found = next((one for one in self._free if one.parts.are_of(plan)), None)
        if found is not None:
            self._free.remove(found)
        return found
