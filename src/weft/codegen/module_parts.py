"""A Module that is written -> the texts of smaller ones, which can be compiled at the same time.

Groups of functions that only call one another stay together. What calls them, and all that is in no group, is in the
first part; it calls the others through pointers.
"""

from collections.abc import Collection, Iterator, Sequence

from weft.codegen.module import FunctionWriter, Module

Group = Sequence[FunctionWriter]
LEAST_PART = 80_000  # letters: below it a part takes about as long as starting a thread, and loading it, saves


def module_parts(module: Module, groups: Sequence[Group], most: int) -> tuple[str, ...]:
    """Cut a module into at most so many parts that take about equally long to compile."""
    grouped = {id(function) for group in groups for function in group}
    callers = [function for function in module.functions if id(function) not in grouped]
    texts = ["\n".join(map(str, group)) for group in groups]
    count = min(most, sum(map(len, texts)) // LEAST_PART)
    if count < 2:
        return (str(module),)
    shares: list[list[int]] = [[] for _ in range(count)]
    sizes = [0] * count
    # The longest first, each to the part that has the least yet.
    for number in sorted(range(len(groups)), key=lambda number: -len(texts[number])):
        least = sizes.index(min(sizes))
        shares[least].append(number)
        sizes[least] += len(texts[number])
    first, *others = (sorted(share) for share in shares)
    far = {function.name for share in others for number in share for function in groups[number]}
    functions = [*(_with_far_calls(caller, far) for caller in callers), *(texts[number] for number in first)]
    called = dict(entry for caller in callers for entry in _far_declarations(caller, far))
    return (
        module.text([*_declared(module, functions), *called.values()], functions),
        *(_part(module, [texts[number] for number in share]) for share in others),
    )


def _with_far_calls(caller: FunctionWriter, far: Collection[str]) -> str:
    """Give the text of a function that calls those of other modules, which lie anywhere in memory, through pointers."""
    changed = {}
    for line, name, operands in caller.calls:
        if name in far:
            listed = ", ".join(map(str, operands))
            changed[line] = f"  %far{line} = load ptr, ptr @import.{name}\n  call void %far{line}({listed})"
    return caller.text(changed)


def _far_declarations(caller: FunctionWriter, far: Collection[str]) -> Iterator[tuple[str, str]]:
    for _, name, operands in caller.calls:
        if name in far:
            kinds = ", ".join(operand.kind for operand in operands)
            place = f"@import.{name} = internal externally_initialized global ptr @{name}"
            yield name, f"declare void @{name}({kinds})\n{place}"


def _part(module: Module, functions: Sequence[str]) -> str:
    return module.text(_declared(module, functions), functions)


def _declared(module: Module, functions: Sequence[str]) -> list[str]:
    """The declarations of what functions name: tables that nothing reads would be in the machine code all the same."""
    needed = {name for name in module.declarations if any(f"@{name}" in text for text in functions)}
    needed |= {name.removeprefix("import.") for name in needed}
    return [line for name, line in module.declarations.items() if name in needed]
