"""Compile kernels on other cores while their plan is still given lanes and memory."""

from __future__ import annotations

from typing import Self

from weft.codegen.objects.compiler import Compilation
from weft.codegen.plan_module import KernelParts
from weft.devices import cpu_count
from weft.plan.form.plan import Plan
from weft.runtime.executable import Begun
from weft.target import Target


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
