"""Write `path_walk`, which runs segments one after the other, each chosen by what the one before has computed.

`path_walk(state*, frame*, leaf**)` begins at the first segment of a bound program's tree, without the interpreter's
lock. A segment makes tensors for its results, runs in the frame that all of them share, and asks its question; a row of
its table that agrees with the answer says which segment is next. It ends at one that asks nothing, whose words it
gives; where no row agrees, which it counts, or a segment must not run, it gives null. Nothing is written but what
segments have made, so whoever is given null may run all of it anew.

A place has a word: where a tensor's elements are, or a number. Handles of the tensors that were made are for whoever
called to give out or to delete.
"""

from enum import IntEnum

from weft.codegen.calls.native_call import NULL, RESULT_WORDS, CallWord, NativeCall, ObjectLayout
from weft.codegen.calls.number_program import NUMBER_PROGRAM
from weft.codegen.llvm.module import FunctionWriter, Module, Register, constant
from weft.codegen.threads.layout import TABLE_OFFSET

PATH_WALK = "path_walk"
SCALAR_WORDS, NEXT_WORDS, GIVE_WORDS = 5, 2, 2


class Ask(IntEnum):
    """What a segment asks of what it has computed."""

    NOTHING = 0
    TRUTH = 1  # whether an element is not zero
    EQUAL = 2  # whether two tensors have the same bytes
    BYTES = 3  # which bytes a tensor has
    NUMBER = 4  # which conditions hold of a number


class ElementKind(IntEnum):
    """The kinds of elements that are read as numbers."""

    U8 = 0
    I8 = 1
    I16 = 2
    I32 = 3
    I64 = 4
    F32 = 5
    F64 = 6


class Given(IntEnum):
    """What a place of a result is."""

    TENSOR = 0
    INT = 1
    FLOAT = 2


READS = {
    ElementKind.U8: "i8",
    ElementKind.I8: "i8",
    ElementKind.I16: "i16",
    ElementKind.I32: "i32",
    ElementKind.I64: "i64",
}


def write_path_walk(module: Module, layout: ObjectLayout) -> None:
    """Write it into a module, which has what computes expressions, too."""
    _Walk(module.function(PATH_WALK, ["ptr", "ptr", "ptr"]), layout).write()


class _Walk(NativeCall):
    """Writes `void path_walk(state*, frame*, leaf**)`."""

    def __init__(self, f: FunctionWriter, layout: ObjectLayout) -> None:
        state, self._frame, self._leaf = f.parameters
        super().__init__(f, layout, state, f.label("failed"))

    def write(self) -> None:
        # SAFETY: the caller alone has the frame, and the rooms of values and handles; it holds what has the words of
        # segments, their tables and code. Inputs are held by the call's arguments.
        f = self.f
        self._values, self._handles = self.word("ptr", CallWord.VALUES), self.word("ptr", CallWord.HANDLES)
        self._current, self._answer, self._holds = f.stack("ptr"), f.stack("i64"), f.stack("i64")
        self._head, self._found, end = f.label("head"), f.label("found"), f.label("end")
        f.store(self.word("ptr", CallWord.FIRST), self._current)
        f.branch(self._head)
        f.begin_block(self._head)
        node = NativeCall(f, self.layout, f.load("ptr", self._current), self.refused)
        taken = node.word("ptr", CallWord.TAKEN)
        f.store(f.add(f.load("i64", taken), 1), taken)
        with f.only_if(f.compare("icmp ne", node.word("i64", CallWord.RUN), f.integer(0))):
            self._run_segment(node)
        ask = node.word("i64", CallWord.ASK)
        decide, last = f.label("decide"), f.label("last")
        f.branch_if(f.compare("icmp eq", ask, f.integer(Ask.NOTHING)), last, decide)
        f.begin_block(decide)
        self._decide(node, ask)
        f.begin_block(last)
        f.store(f.load("ptr", self._current), self._leaf)
        f.branch(end)
        f.begin_block(self.refused)
        f.store(NULL, self._leaf)
        f.branch(end)
        f.begin_block(end)

    def _place(self, place: Register) -> Register:
        return self.f.offset(self._values, "i64", place)

    def _address(self, place: Register) -> Register:
        return self.f.load("ptr", self._place(place))

    def _run_segment(self, node: NativeCall) -> None:
        f = self.f
        self._make_scalars(node)
        table = f.offset(self._frame, "i8", TABLE_OFFSET)
        changing, rows = node.word("i64", CallWord.CHANGING_COUNT), node.word("ptr", CallWord.CHANGING)
        with f.loop(0, changing) as loop:
            place = f.load("i64", f.offset(rows, "i64", loop.index))
            f.store(self._address(place), f.offset(table, "ptr", loop.index))
        outputs = f.offset(table, "ptr", changing)
        self._make_results(node, outputs)
        node.copy_lasting(f.offset(outputs, "ptr", node.word("i64", CallWord.OUTPUT_COUNT)))
        check = node.word("ptr", CallWord.CHECK)
        with f.only_if(f.compare("icmp ne", check, NULL)):
            self.require(node.is_checked(self._frame, check))
        node.run_without_lock(self._frame)

    def _make_results(self, node: NativeCall, addresses: Register) -> None:
        f, rows, first = self.f, node.word("ptr", CallWord.RESULTS), node.word("i64", CallWord.MADE_PLACE)
        empty = self.word("ptr", CallWord.EMPTY)
        with f.loop(0, node.word("i64", CallWord.OUTPUT_COUNT)) as loop:
            words = node.row(rows, loop.index, RESULT_WORDS)
            place = f.binary("add", first, loop.index)
            memory = self.new_tensor(words, f.offset(self._handles, "ptr", place), empty)
            f.store(memory, f.offset(addresses, "ptr", loop.index))
            f.store(memory, self._place(place))

    def _make_scalars(self, node: NativeCall) -> None:
        """Write numbers as elements of tensors: number, whether it is a float, the kind of element, where.

        A program, if there is one, computes them before.
        """
        f, rows = self.f, node.word("ptr", CallWord.SCALARS)
        with f.loop(0, node.word("i64", CallWord.SCALAR_COUNT)) as loop:
            number, is_float, element, cell, program = node.row(rows, loop.index, SCALAR_WORDS)
            with f.only_if(f.compare("icmp ne", program, f.integer(0))):
                where = f.emit("ptr", f"inttoptr {program} to ptr")
                f.emit_void(f"call void @{NUMBER_PROGRAM}({self._values}, {where}, {self._holds})")
                self.require(f.compare("icmp ne", f.load("i64", self._holds), f.integer(0)))
            bits, room = f.load("i64", self._place(number)), self._place(cell)

            def as_float(bits: Register = bits) -> tuple[Register]:
                return (f.bitcast(bits, "double"),)

            def as_int(bits: Register = bits) -> tuple[Register]:
                return (f.convert("sitofp", bits, "double"),)

            (real,) = f.either(f.compare("icmp ne", is_float, f.integer(0)), as_float, as_int)
            with f.only_if(f.compare("icmp eq", element, f.integer(ElementKind.F32))):
                f.store(f.convert("fptrunc", real, "float"), room)
            with f.only_if(f.compare("icmp eq", element, f.integer(ElementKind.F64))):
                f.store(real, room)
            with f.only_if(f.compare("icmp eq", element, f.integer(ElementKind.I64))):
                f.store(bits, room)
            f.store(room, self._place(f.add(cell, 1)))

    def _decide(self, node: NativeCall, ask: Register) -> None:
        """Find the first row of the table that agrees, and go on there."""
        f = self.f
        asked = node.word("i64", CallWord.ASKED)
        size = node.word("i64", CallWord.ASKED_BYTES)
        self._find_answer(node, ask, self._address(asked), size)
        rows = node.word("ptr", CallWord.NEXT)
        with f.loop(0, node.word("i64", CallWord.NEXT_COUNT)) as loop:
            expected, following = node.row(rows, loop.index, NEXT_WORDS)
            f.store(f.integer(0), self._holds)
            where = f.emit("ptr", f"inttoptr {expected} to ptr")
            with f.only_if(f.compare("icmp ule", ask, f.integer(Ask.EQUAL))):
                same = f.compare("icmp eq", f.load("i64", self._answer), expected)
                f.store(f.convert("zext", same, "i64"), self._holds)
            with f.only_if(f.compare("icmp eq", ask, f.integer(Ask.BYTES))):
                f.store(self._same_bytes(self._address(asked), where, size), self._holds)
            with f.only_if(f.compare("icmp eq", ask, f.integer(Ask.NUMBER))):
                f.emit_void(f"call void @{NUMBER_PROGRAM}({self._values}, {where}, {self._holds})")
            f.store(f.emit("ptr", f"inttoptr {following} to ptr"), self._current)
            on = f.label("on")
            f.branch_if(f.compare("icmp ne", f.load("i64", self._holds), f.integer(0)), self._head, on)
            f.begin_block(on)
        strays = self.word("ptr", CallWord.TAKEN)
        f.store(f.add(f.load("i64", strays), 1), strays)
        f.branch(self.refused)

    def _same_bytes(self, one: Register, other: Register, size: Register) -> Register:
        f = self.f
        found = f.emit("i32", f"call i32 {self.word('ptr', CallWord.COMPARE).name}({one}, {other}, {size})")
        return f.convert("zext", f.compare("icmp eq", found, constant("i32", 0)), "i64")

    def _find_answer(self, node: NativeCall, ask: Register, asked: Register, size: Register) -> None:
        f, kind = self.f, node.word("i64", CallWord.ASKED_KIND)
        with f.only_if(f.compare("icmp eq", ask, f.integer(Ask.EQUAL))):
            other = self._address(node.word("i64", CallWord.OTHER))
            f.store(self._same_bytes(asked, other, size), self._answer)
        with f.only_if(f.compare("icmp eq", ask, f.integer(Ask.TRUTH))):
            for element in ElementKind:
                with f.only_if(f.compare("icmp eq", kind, f.integer(element))):
                    f.store(f.convert("zext", self._is_true(element, asked), "i64"), self._answer)
        with f.only_if(f.compare("icmp eq", ask, f.integer(Ask.NUMBER))):
            place = self._place(node.word("i64", CallWord.NUMBER))
            for element in ElementKind:
                with f.only_if(f.compare("icmp eq", kind, f.integer(element))):
                    f.store(self._number(element, asked), place)

    def _is_true(self, element: ElementKind, asked: Register) -> Register:
        f = self.f
        if element in READS:
            return f.compare("icmp ne", f.load(READS[element], asked), constant(READS[element], 0))
        real = f.load("float" if element is ElementKind.F32 else "double", asked)
        return f.compare("fcmp une", real, constant(real.kind, 0.0))

    def _number(self, element: ElementKind, asked: Register) -> Register:
        """Read a number as the bits of a whole number or of a float."""
        f = self.f
        if element in READS:
            return f.convert("zext" if element is ElementKind.U8 else "sext", f.load(READS[element], asked), "i64")
        if element is ElementKind.F64:
            return f.load("i64", asked)
        return f.bitcast(f.convert("fpext", f.load("float", asked), "double"), "i64")
