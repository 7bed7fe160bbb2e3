"""Cut a Module while it is written into the texts of smaller ones, which can be compiled at the same time.

Groups of functions that only call one another stay together. What calls them, and all that is in no group, comes last:
long functions in parts of their own, the others together. They call other parts through pointers. So a part can be
compiled while the next one is written.
"""

from collections.abc import Collection, Iterator, Sequence

from weft.codegen.llvm.module import FunctionWriter, Module

Group = Sequence[FunctionWriter]
LEAST_PART = 80_000  # letters: below it a part takes about as long as starting a thread, and loading it, saves


class ModuleParts:
    """Cuts a module into parts, each of which is complete as soon as its functions are long enough together."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._texts: list[str] = []  # of the part that is being written
        self._names: set[str] = set()  # of its functions
        self._grouped: set[int] = set()
        self._far: set[str] = set()  # the names of the functions in complete parts

    def add(self, group: Group) -> Iterator[str]:
        """Take functions that only call one another; gives the text of a part that they complete."""
        self._texts += map(str, group)
        self._names.update(function.name for function in group)
        self._grouped.update(map(id, group))
        if sum(map(len, self._texts)) >= LEAST_PART:
            yield self._module.text(_declared(self._module, self._texts), self._texts)
            self._far |= self._names
            self._texts, self._names = [], set()

    def rest(self) -> Iterator[str]:
        """Give the parts with all other functions of the module; no function is written after them."""
        callers = [function for function in self._module.functions if id(function) not in self._grouped]
        long = [caller for caller in callers if len(str(caller)) >= LEAST_PART]
        for caller in long:
            yield self._calling([caller], {name for _, name, _ in caller.calls}, [])
        others = [caller for caller in callers if caller not in long]
        if others or self._texts:
            yield self._calling(others, self._far, self._texts)

    def _calling(self, callers: Group, far: Collection[str], texts: Sequence[str]) -> str:
        functions = [*(_with_far_calls(caller, far) for caller in callers), *texts]
        called = dict(entry for caller in callers for entry in _far_declarations(caller, far))
        return self._module.text([*_declared(self._module, functions), *called.values()], functions)


def _with_far_calls(caller: FunctionWriter, far: Collection[str]) -> str:
    """Give the text of a function that calls those of other modules, which lie anywhere in memory, through pointers."""
    changed = {}
    for line, name, operands in caller.calls:
        if name in far:
            listed = ", ".join(map(str, operands))
            changed[line] = f"  %far{line} = load ptr, ptr @import.{name}\n  call void %far{line}({listed})"
    return caller.text(changed)


def _far_declarations(caller: FunctionWriter, far: Collection[str]) -> Iterator[tuple[str, str]]:
    # A function is called many times: what it takes is the same each time.
    called = {name: operands for _, name, operands in caller.calls if name in far}
    for name, operands in called.items():
        kinds = ", ".join([operand.kind for operand in operands])
        place = f"@import.{name} = internal externally_initialized global ptr @{name}"
        yield name, f"declare void @{name}({kinds})\n{place}"


def _declared(module: Module, functions: Sequence[str]) -> list[str]:
    """The declarations of what functions name: tables that nothing reads would be in the machine code all the same."""
    needed = {name for name in module.declarations if any(f"@{name}" in text for text in functions)}
    needed |= {name.removeprefix("import.") for name in needed}
    return [line for name, line in module.declarations.items() if name in needed]
