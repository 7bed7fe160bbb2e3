"""Write the text of an LLVM module: functions, and instructions appended one by one; registers are a type and a name.

A `Module` collects functions; a `FunctionWriter` appends instructions to one of them. Writing text directly is several
times faster than building objects, and it has every type of LLVM. Nothing here knows what a kernel is.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from weft.target import Target

FLOATS = {"half": 16, "bfloat": 16, "float": 32, "double": 64}
MANGLED = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64", "ptr": "p0"}


class Register(NamedTuple):
    """An LLVM value: its type and its name or literal."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def vector(element: str, lanes: int) -> str:
    """Name the type of a vector; one lane is the scalar itself."""
    return f"<{lanes} x {element}>" if lanes > 1 else element


@cache
def element_of(kind: str) -> str:
    """Give the type of a vector's elements, or the scalar type itself."""
    return kind[1:-1].split(" x ")[1] if kind.startswith("<") else kind


@cache
def lanes_of(kind: str) -> int:
    """Count the elements of a vector type; a scalar has one."""
    return int(kind[1:].split(" x ", maxsplit=1)[0]) if kind.startswith("<") else 1


@cache
def bits_of(kind: str) -> int:
    """Count the bits of a type's element."""
    element = element_of(kind)
    return 64 if element == "ptr" else FLOATS.get(element) or int(element[1:])


def with_element(kind: str, element: str) -> str:
    """Give a type with as many lanes and another element."""
    return vector(element, lanes_of(kind))


def integer_like(kind: str) -> str:
    """Give the integer type with the lanes and bits of a type."""
    return with_element(kind, f"i{bits_of(kind)}")


@cache
def mangled(kind: str) -> str:
    """Spell a type as the names of LLVM's intrinsics do: v16f32."""
    element = element_of(kind)
    name = MANGLED.get(element, element)
    return f"v{lanes_of(kind)}{name}" if kind.startswith("<") else name


def literal(element: str, value: float) -> str:
    """Spell a number as LLVM reads it; a float is given by its bits, so nothing is lost."""
    if element == "i1":
        return "true" if value else "false"
    if element not in FLOATS:
        return str(int(value))
    if element == "float":
        value = round_to_float(value)
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def round_to_float(value: float) -> float:
    """Round a number to float32; what is too large becomes an infinity."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def constant(kind: str, value: float) -> Register:
    """Make a constant; of a vector type, the same number in every lane."""
    text = literal(element_of(kind), value)
    return Register(kind, f"splat ({element_of(kind)} {text})" if kind.startswith("<") else text)


def constants(element: str, values: Sequence[float]) -> Register:
    """Make a vector constant with a number per lane."""
    listed = ", ".join(f"{element} {literal(element, value)}" for value in values)
    return Register(vector(element, len(values)), f"<{listed}>" if len(values) > 1 else literal(element, values[0]))


# no-builtins: LLVM must not turn a loop into a call of memset or memcpy, which the loader would have to reach.
ATTRIBUTES = 'nounwind "no-builtins"'
# For lists of calls: what LLVM could save of addresses is nothing beside kernels, and takes it three times as long.
AS_WRITTEN = f"noinline optnone {ATTRIBUTES}"
INTERNAL = re.compile(r"define internal [^@]*@([\w.]+)\(")
# Intrinsics whose result depends on memory, or that do more than give a result.
OF_MEMORY = {"llvm.masked.load", "llvm.masked.gather"}
CALLED = re.compile(r"@([\w.]+)\(")


@dataclass
class Module:
    """The text of one LLVM module while it is written."""

    target: Target
    functions: list[FunctionWriter] = field(default_factory=list)
    declarations: dict[str, str] = field(default_factory=dict)
    tables: dict[tuple[str, tuple[float, ...]], Register] = field(default_factory=dict)

    def function(self, name: str, parameters: Sequence[str]) -> FunctionWriter:
        """Begin a void function; each parameter is its type and attributes, such as "ptr noalias" or "i64"."""
        writer = FunctionWriter(self, name, tuple(parameters))
        self.functions.append(writer)
        return writer

    def inner_function(self, name: str, parameters: Sequence[str]) -> FunctionWriter:
        """Begin a function that only this module calls, and that is never copied into its callers.

        So a register block is compiled once, however many places call it, and has all registers to itself.
        """
        writer = self.function(name, parameters)
        writer.be_internal()
        return writer

    def declare(self, name: str, result: str, operands: Sequence[str]) -> None:
        """Declare an outside function once."""
        self.declarations.setdefault(name, f"declare {result} @{name}({', '.join(operands)})")

    def imported(self, name: str, result: str, operands: Sequence[str]) -> Register:
        """Give the place that holds the address of a function of this process, as the loader must have it."""
        self.declare(name, result, operands)
        place = f"import.{name}"
        # externally_initialized: LLVM must not see through the pointer and call the function directly.
        self.declarations.setdefault(place, f"@{place} = internal externally_initialized global ptr @{name}")
        return Register("ptr", f"@{place}")

    def table(self, element: str, values: Sequence[float]) -> Register:
        """Give the address of constant numbers in memory."""
        key = (element, tuple(values))
        if key not in self.tables:
            name = f"table{len(self.tables)}"
            listed = ", ".join(f"{element} {literal(element, value)}" for value in values)
            self.declarations[name] = (
                f"@{name} = internal unnamed_addr constant [{len(values)} x {element}] [{listed}], align 64"
            )
            self.tables[key] = Register("ptr", f"@{name}")
        return self.tables[key]

    def __str__(self) -> str:
        return self.text(self.declarations.values(), map(str, self.functions))

    def text(self, declarations: Iterable[str], functions: Iterable[str]) -> str:
        """Give the text of a module of these declarations and functions; of equal internal functions it has one."""
        head = f'target triple = "{self.target.triple}"'
        return "\n".join([head, *declarations, *without_equals(functions), "!0 = !{i32 1}", ""])


@dataclass
class Loop:
    """A counted loop while its body is written: its counter, the values it carries, and what they are next."""

    index: Register
    carried: tuple[Register, ...]
    following: tuple[Register, ...] = ()

    def carry(self, *following: Register) -> None:
        """Say what the carried values are in the next round, and after the last one."""
        self.following = following


def without_equals(functions: Iterable[str]) -> list[str]:
    """Leave out every internal function that another one is equal to, and let its callers call that one.

    A text may have several functions; only one that is a text of its own is left out. Callers of functions that have
    become one may be equal, too.
    """
    texts = list(functions)
    while len(left := _without_equals(texts)) < len(texts):
        texts = left
    return texts


def _without_equals(texts: list[str]) -> list[str]:
    first: dict[str, str] = {}  # the name of the first function of a body
    others: dict[str, str] = {}  # the names of those that are left out, and of what stands for them
    kept = []
    for text in texts:
        found = INTERNAL.match(text)
        if found is None:
            kept.append(text)
            continue
        name = found[1]
        body = text.replace(f"@{name}(", "@(", 1)
        if first.setdefault(body, name) == name:
            kept.append(text)
        else:
            others[name] = first[body]
    if not others:
        return kept
    return [CALLED.sub(lambda call: f"@{others.get(call[1], call[1])}(", text) for text in kept]


class FunctionWriter:
    """One function while it is written; instructions go to the end of the current block."""

    def __init__(self, module: Module, name: str, parameters: tuple[str, ...]) -> None:
        self.module = module
        self.target = module.target
        self.name = name
        self.parameters = tuple(
            Register(parameter.split(" ")[0], f"%a{number}") for number, parameter in enumerate(parameters)
        )
        listed = ", ".join(f"{kind} %a{number}" for number, kind in enumerate(parameters))
        self._head = f"define void @{name}({listed})"
        self._attributes = ATTRIBUTES
        self._stack: list[str] = []
        self._memory: list[str] = []
        self._lines: list[str] = []
        self.calls: list[tuple[int, str, Sequence[Register]]] = []  # the line, the function, the operands
        self._count = 0
        self._block = "entry"
        self._known: dict[str, Register] = {}  # results of instructions that every way to here has run
        self._scopes = [0]  # how many of them were known where each scope began
        self._fused = self.target.has("fma") or self.target.triple.startswith("aarch64")

    def __str__(self) -> str:
        return self.text({})

    def text(self, changed: Mapping[int, str]) -> str:
        """Give the function's text with some of its lines, by their numbers, changed."""
        lines = [changed.get(number, line) for number, line in enumerate(self._lines)] if changed else self._lines
        memory = (*self._stack, *self._memory)
        return "\n".join([f"{self._head} {self._attributes} {{", "entry:", *memory, *lines, "  ret void", "}"])

    def leave_as_written(self) -> None:
        """Let LLVM translate the function without improving it."""
        self._attributes = AS_WRITTEN

    def be_internal(self) -> None:
        """Make the function one of its module alone, which is called and never copied."""
        self._head = self._head.replace("define", "define internal", 1)
        self._attributes = f"noinline {ATTRIBUTES}"

    @property
    def fused(self) -> bool:
        """Tell whether a product and a sum are one rounding on this target."""
        return self._fused

    def emit(self, kind: str, instruction: str) -> Register:
        """Append an instruction with a result of a type."""
        self._count += 1
        name = f"%v{self._count}"
        self._lines.append(f"  {name} = {instruction}")
        return Register(kind, name)

    def value(self, kind: str, instruction: str) -> Register:
        """Give the result of an instruction that depends on its operands alone; it is appended unless it has run."""
        found = self._known.get(instruction)
        if found is None:
            found = self._known[instruction] = self.emit(kind, instruction)
        return found

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """Let what is written inside know all that was known, and forget after it what only its blocks have run."""
        self._scopes.append(len(self._known))
        yield
        self._forget()
        self._scopes.pop()

    def _forget(self) -> None:
        while len(self._known) > self._scopes[-1]:
            self._known.popitem()

    def emit_void(self, instruction: str) -> None:
        """Append an instruction without a result."""
        self._lines.append(f"  {instruction}")

    def call(self, name: str, operands: Sequence[Register]) -> None:
        """Append a call of another function that this code generator writes."""
        self.calls.append((len(self._lines), name, operands))
        self.emit_void(f"call void @{name}({', '.join(map(str, operands))})")

    def scratch(self, element: str, count: int) -> Register:
        """Make room for elements on the stack, for as long as the function runs."""
        self._count += 1
        name = f"%m{self._count}"
        self._memory.append(f"  {name} = alloca [{count} x {element}], align 64")
        return Register("ptr", name)

    def stack(self, kind: str) -> Register:
        """Reserve a place on the stack: once a call, also where this is written inside a loop."""
        name = f"%stack{len(self._stack)}"
        self._stack.append(f"  {name} = alloca {kind}")
        return Register("ptr", name)

    def binary(self, opcode: str, x: Register, y: Register) -> Register:
        """Append an instruction of two operands of one type: "fadd", "mul", "and", "fcmp"-free."""
        return self.value(x.kind, f"{opcode} {x.kind} {x.name}, {y.name}")

    def fneg(self, x: Register) -> Register:
        """Flip the sign of a float."""
        return self.value(x.kind, f"fneg {x.kind} {x.name}")

    def compare(self, condition: str, x: Register, y: Register) -> Register:
        """Compare two operands: condition is "fcmp olt", "icmp eq" and so on."""
        return self.value(with_element(x.kind, "i1"), f"{condition} {x.kind} {x.name}, {y.name}")

    def select(self, condition: Register, x: Register, y: Register) -> Register:
        """Choose x where the condition holds, else y, lane by lane."""
        return self.value(x.kind, f"select {condition}, {x}, {y}")

    def convert(self, opcode: str, x: Register, element: str) -> Register:
        """Convert every lane to another element type: "sext", "fptrunc", "sitofp", "bitcast" and so on."""
        kind = with_element(x.kind, element)
        return x if kind == x.kind else self.value(kind, f"{opcode} {x} to {kind}")

    def bitcast(self, x: Register, kind: str) -> Register:
        """Read the same bits as another type of the same size."""
        return x if kind == x.kind else self.value(kind, f"bitcast {x} to {kind}")

    def intrinsic(self, name: str, kind: str, *operands: Register, suffix: Sequence[str] | None = None) -> Register:
        """Call an intrinsic that is named after types, by default the result's: `intrinsic("llvm.fabs", k, x)`."""
        full = ".".join([name, *(mangled(part) for part in ([kind] if suffix is None else suffix))])
        self.module.declare(full, kind, [operand.kind for operand in operands])
        call = f"call {kind} @{full}({', '.join(map(str, operands))})"
        if kind == "void":
            self.emit_void(call)
            return Register("void", "")
        return self.emit(kind, call) if name in OF_MEMORY else self.value(kind, call)

    def prefetch(self, address: Register) -> None:
        """Ask for a line of memory that will be read soon; the address may be anything."""
        self.intrinsic("llvm.prefetch", "void", address, *(constant("i32", n) for n in (0, 3, 1)), suffix=["ptr"])

    def imported(self, name: str, result: str, *operands: Register) -> Register:
        """Call a function of this process by name, with scalars."""
        place = self.module.imported(name, result, [operand.kind for operand in operands])
        address = self.emit("ptr", f"load ptr, {place}")
        return self.emit(result, f"call {result} {address.name}({', '.join(map(str, operands))})")

    def fma(self, x: Register, y: Register, z: Register) -> Register:
        """Compute x * y + z: rounded once where the processor can, else twice."""
        if self._fused:
            return self.intrinsic("llvm.fma", x.kind, x, y, z)
        return self.binary("fadd", self.binary("fmul", x, y), z)

    def splat(self, x: Register, lanes: int) -> Register:
        """Put a scalar in every lane of a vector."""
        if lanes == 1:
            return x
        kind = vector(x.kind, lanes)
        first = self.value(kind, f"insertelement {kind} poison, {x}, i64 0")
        return self.value(kind, f"shufflevector {first}, {kind} poison, <{lanes} x i32> zeroinitializer")

    def shuffle(self, x: Register, y: Register, order: Sequence[int]) -> Register:
        """Pick lanes of two vectors; the second's are counted after the first's."""
        kind = vector(element_of(x.kind), len(order))
        listed = ", ".join(f"i32 {number}" for number in order)
        if len(order) == 1:
            return self.extract(x, order[0])
        return self.value(kind, f"shufflevector {x}, {y}, <{len(order)} x i32> <{listed}>")

    def extract(self, x: Register, lane: int) -> Register:
        """Give one lane of a vector as a scalar."""
        if not x.kind.startswith("<"):
            return x
        return self.value(element_of(x.kind), f"extractelement {x}, i64 {lane}")

    def insert(self, x: Register, scalar: Register, lane: int) -> Register:
        """Replace one lane of a vector."""
        if not x.kind.startswith("<"):
            return scalar
        return self.value(x.kind, f"insertelement {x}, {scalar}, i64 {lane}")

    def offset(self, pointer: Register, element: str, index: Register | int) -> Register:
        """Give the address of an element counted from a pointer."""
        if isinstance(index, int):
            if index == 0:
                return pointer
            index = constant("i64", index)
        return self.value("ptr", f"getelementptr {element}, {pointer}, {index}")

    def load(self, kind: str, pointer: Register) -> Register:
        """Load a scalar or a vector that is aligned as its element is."""
        return self.emit(kind, f"load {kind}, {pointer}, align {bits_of(kind) // 8}")

    def store(self, x: Register, pointer: Register) -> None:
        """Store a scalar or a vector that is aligned as its element is."""
        self.emit_void(f"store {x}, {pointer}, align {bits_of(x.kind) // 8}")

    def masked_load(self, kind: str, pointer: Register, mask: Register) -> Register:
        """Load the lanes whose mask is set; the others are zero and their memory is not touched."""
        operands = (pointer, alignment(kind), mask, Register(kind, "zeroinitializer"))
        return self.intrinsic("llvm.masked.load", kind, *operands, suffix=[kind, "ptr"])

    def masked_store(self, x: Register, pointer: Register, mask: Register) -> None:
        """Store the lanes whose mask is set; the memory of the others is not touched."""
        self.intrinsic("llvm.masked.store", "void", x, pointer, alignment(x.kind), mask, suffix=[x.kind, "ptr"])

    def gather(self, kind: str, pointers: Register, mask: Register | None = None) -> Register:
        """Load every lane from its own address; lanes whose mask is not set are zero and touch no memory."""
        lanes = lanes_of(kind)
        if lanes == 1 and mask is None:
            return self.load(kind, pointers)
        mask = mask or constant(vector("i1", lanes), 1)
        operands = (pointers, alignment(kind), mask, Register(kind, "zeroinitializer"))
        return self.intrinsic("llvm.masked.gather", kind, *operands, suffix=[kind, pointers.kind])

    def scatter(self, x: Register, pointers: Register, mask: Register | None = None) -> None:
        """Store every lane at its own address; lanes whose mask is not set touch no memory."""
        lanes = lanes_of(x.kind)
        if lanes == 1 and mask is None:
            self.store(x, pointers)
            return
        mask = mask or constant(vector("i1", lanes), 1)
        operands = (x, pointers, alignment(x.kind), mask)
        self.intrinsic("llvm.masked.scatter", "void", *operands, suffix=[x.kind, pointers.kind])

    def any_lane(self, condition: Register) -> Register:
        """Tell whether a condition holds in any lane, as one bit."""
        if not condition.kind.startswith("<"):
            return condition
        return self.intrinsic("llvm.vector.reduce.or", "i1", condition, suffix=[condition.kind])

    def integer(self, value: int) -> Register:
        """Make an index: a constant i64."""
        return constant("i64", value)

    def add(self, x: Register, y: Register | int) -> Register:
        """Add two indices."""
        if isinstance(y, int):
            if y == 0:
                return x
            y = constant("i64", y)
        return self.binary("add", x, y)

    def multiply(self, x: Register, y: Register | int) -> Register:
        """Multiply an index by a constant, or by another one."""
        if isinstance(y, Register):
            return self.binary("mul", x, y)
        return x if y == 1 else self.binary("mul", x, constant("i64", y))

    def divide(self, x: Register, y: int) -> tuple[Register, Register]:
        """Divide a non-negative index by a constant: the quotient and the rest."""
        if y == 1:
            return x, constant("i64", 0)
        divisor = constant("i64", y)
        return self.binary("udiv", x, divisor), self.binary("urem", x, divisor)

    def minimum(self, x: Register, y: Register) -> Register:
        """Give the smaller of two indices."""
        return self.select(self.compare("icmp slt", x, y), x, y)

    def maximum(self, x: Register, y: Register) -> Register:
        """Give the larger of two indices."""
        return self.select(self.compare("icmp sgt", x, y), x, y)

    def label(self, stem: str) -> str:
        """Make a block name that is not used yet."""
        self._count += 1
        return f"{stem}{self._count}"

    def begin_block(self, label: str) -> None:
        """Let what follows go to a new block; the one before must have ended with a branch."""
        self._forget()  # any block of this scope may lead here
        self._follow(label)

    def _follow(self, label: str) -> None:
        """Begin a block that only what is known here leads to."""
        self._lines.append(f"{label}:")
        self._block = label

    def branch(self, label: str) -> None:
        """End the block with a jump."""
        self.emit_void(f"br label %{label}")

    def branch_if(self, condition: Register, yes: str, no: str) -> None:
        """End the block with a choice."""
        self.emit_void(f"br {condition}, label %{yes}, label %{no}")

    @contextmanager
    def only_if(self, condition: Register) -> Iterator[None]:
        """Run what is written inside only where a condition holds."""
        yes, after = self.label("then"), self.label("after")
        self.branch_if(condition, yes, after)
        self._follow(yes)
        with self._scope():
            yield
        self.branch(after)
        self._follow(after)

    def either(
        self, condition: Register, yes: Callable[[], Sequence[Register]], no: Callable[[], Sequence[Register]]
    ) -> tuple[Register, ...]:
        """Run one of two pieces of code by a scalar condition, and give the registers of the one that ran."""
        labels = self.label("then"), self.label("else")
        after = self.label("after")
        self.branch_if(condition, *labels)
        results, ends = [], []
        for label, piece in zip(labels, (yes, no), strict=True):
            self._follow(label)
            with self._scope():
                results.append(tuple(piece()))
            ends.append(self._block)
            self.branch(after)
        self._follow(after)
        return tuple(
            self.emit(x.kind, f"phi {x.kind} [ {x.name}, %{ends[0]} ], [ {y.name}, %{ends[1]} ]")
            for x, y in zip(*results, strict=True)
        )

    @contextmanager
    def loop(
        self, start: Register | int, end: Register | int, step: int = 1, carried: Sequence[Register] = ()
    ) -> Iterator[Loop]:
        """Count from start to before end; after the loop, `loop.carried` are the last values given to `loop.carry`.

        They are the registers of the loop's header, which is what the loop leaves through.
        """
        first, last = (self.integer(bound) if isinstance(bound, int) else bound for bound in (start, end))
        header, body, after = self.label("loop"), self.label("body"), self.label("done")
        before = self._block
        self.branch(header)
        self._follow(header)
        place = len(self._lines)
        phis = [self._reserve(kind) for kind in ("i64", *(value.kind for value in carried))]
        state = Loop(phis[0], tuple(phis[1:]), tuple(carried))
        self.branch_if(self.compare("icmp slt", phis[0], last), body, after)
        self._follow(body)
        with self._scope():
            yield state
            following = (self.add(phis[0], step), *state.following)
        latch = self._block
        self.branch(header)
        self._lines[place:place] = [
            f"  {phi.name} = phi {phi.kind} [ {initial.name}, %{before} ], [ {then.name}, %{latch} ]"
            for phi, initial, then in zip(phis, (first, *carried), following, strict=True)
        ]
        self._follow(after)

    def _reserve(self, kind: str) -> Register:
        self._count += 1
        return Register(kind, f"%v{self._count}")


def alignment(kind: str) -> Register:
    """Say to an intrinsic how memory is aligned: as elements are."""
    return constant("i32", bits_of(kind) // 8)
