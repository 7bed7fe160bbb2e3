"""Write `region_call`, which runs a bound program for tensors that its caller has made, without Python between.

`region_call(self, args, count)` takes a list or tuple of inputs, one of outputs, and the address of a frame. `self` is
a bytes object with the words of a state. It compares what must not have changed, writes the addresses of the other
tensors into the frame, runs the program without the interpreter's lock, and gives None; where anything is not as
expected it has done nothing and gives False.

A fourth argument is the address of moves, for a program that is made for larger tensors: of how many come before the
program and how many behind it, which description of the program's lanes is for calls of these sizes, or 0, and then the
words of each (MoveWord). A move copies a tensor to the beginning of larger
memory behind the frame, where the program finds it, or out of such memory, where the program has put it.
"""

from contextlib import ExitStack
from enum import IntEnum

from weft.codegen.calls.native_call import NULL, SIZE_OFFSET, CallWord, NativeCall, ObjectLayout
from weft.codegen.llvm.module import FunctionWriter, Module, Register
from weft.codegen.threads.layout import TABLE_OFFSET


def write_region_call(module: Module, layout: ObjectLayout) -> str:
    """Write what does it into a module; gives the text of the function that Python calls, to come behind that."""
    _RegionCall(module.function("region_call.body", ["ptr", "ptr", "ptr", "i64"]), layout).write()
    return f"""
define ptr @region_call(ptr %self, ptr %args, i64 %count) nounwind {{
  %result = alloca ptr
  %state = getelementptr i8, ptr %self, i64 {layout.content}
  call void @region_call.body(ptr %state, ptr %args, ptr %result, i64 %count)
  %given = load ptr, ptr %result
  ret ptr %given
}}
"""


MOVED_DIMENSIONS = 4
LINE = 64  # bytes before the larger memory of a tensor: there its own address waits


class MoveWord(IntEnum):
    """The words of a move."""

    SLOT = 0  # in the frame's table
    OFFSET = 1  # of the larger memory, in bytes from the frame's start
    CLEARED = 2  # bytes of it that become 0 before: code reads places from there
    BYTES = 3  # that lie side by side in both
    COUNTS = 4  # of the dimensions around these, the outermost first
    LARGE_STEPS = 4 + MOVED_DIMENSIONS  # bytes
    OWN_STEPS = 4 + 2 * MOVED_DIMENSIONS


MOVE_WORDS = 4 + 3 * MOVED_DIMENSIONS


class _RegionCall(NativeCall):
    """Writes `void call(state*, arguments*, result*, count)`."""

    def __init__(self, f: FunctionWriter, layout: ObjectLayout) -> None:
        state, self._arguments, self._result, self._count = f.parameters
        super().__init__(f, layout, state, f.label("refused"))

    def write(self) -> None:
        # SAFETY: Python holds the arguments during the call and its lock until everything is fetched; the tables are
        # held by the binding that owns this state. Types are compared before anything is read that only they have.
        f, end = self.f, self.f.label("end")
        inputs = self._items(f.load("ptr", self._arguments), CallWord.INPUT_COUNT)
        outputs = self._items(f.load("ptr", f.offset(self._arguments, "ptr", 1)), CallWord.OUTPUT_COUNT)
        self._compare_identities(inputs)
        self.compare_rows(self.word("ptr", CallWord.ROWS), self.word("i64", CallWord.ROW_COUNT))
        number = f.load("ptr", f.offset(self._arguments, "ptr", 2))
        frame = f.emit("ptr", f"call ptr {self.word('ptr', CallWord.AS_ADDRESS).name}({number})")
        table = f.offset(frame, "i8", TABLE_OFFSET)
        changing = self.word("i64", CallWord.CHANGING_COUNT)
        self.fetch(inputs, CallWord.CHANGING, changing, table)
        table = f.offset(table, "ptr", changing)
        given = self.word("i64", CallWord.OUTPUT_COUNT)
        self.fetch(outputs, CallWord.OUTPUTS, given, table)
        self.copy_lasting(f.offset(table, "ptr", given))
        moves, before, behind, description = self._moves()
        first = f.offset(frame, "i8", TABLE_OFFSET)
        with f.loop(0, before) as loop:
            self._move(frame, first, f.offset(moves, "i64", f.multiply(loop.index, MOVE_WORDS)), inwards=True)
        moves = f.offset(moves, "i64", f.multiply(before, MOVE_WORDS))
        with f.loop(0, behind) as loop:
            self._redirect(frame, first, f.offset(moves, "i64", f.multiply(loop.index, MOVE_WORDS)))
        self.require(self.passes_checks(frame))
        own = f.compare("icmp ne", description, NULL)
        self.run(frame, f.select(own, description, self.word("ptr", CallWord.PROGRAM)))
        with f.loop(0, behind) as loop:
            self._move(frame, first, f.offset(moves, "i64", f.multiply(loop.index, MOVE_WORDS)), inwards=False)
        f.store(self.constant_object(CallWord.NONE), self._result)
        f.branch(end)
        f.begin_block(self.refused)
        f.store(self.constant_object(CallWord.FALSE), self._result)
        f.branch(end)
        f.begin_block(end)

    def _moves(self) -> tuple[Register, Register, Register, Register]:
        """Give where moves are, how many come before the program and behind it, and the description of its lanes."""
        f, none = self.f, self.f.integer(0)

        def given() -> tuple[Register, ...]:
            number = f.load("ptr", f.offset(self._arguments, "ptr", 3))
            table = f.emit("ptr", f"call ptr {self.word('ptr', CallWord.AS_ADDRESS).name}({number})")
            before, behind = (f.load("i64", f.offset(table, "i64", place)) for place in (0, 1))
            return f.offset(table, "i64", 3), before, behind, f.load("ptr", f.offset(table, "i64", 2))

        moves, before, behind, description = f.either(
            f.compare("icmp sgt", self._count, f.integer(3)), given, lambda: (NULL, none, none, NULL)
        )
        return moves, before, behind, description

    def _redirect(self, frame: Register, table: Register, move: Register) -> tuple[Register, Register]:
        """Let the program find larger memory in the place of a tensor; gives both."""
        # SAFETY: whoever gives moves gives a frame with so much memory behind it, which is this call's alone.
        f = self.f
        slot, offset = (f.load("i64", f.offset(move, "i64", int(word))) for word in (MoveWord.SLOT, MoveWord.OFFSET))
        place, large = f.offset(table, "ptr", slot), f.offset(frame, "i8", offset)
        own = f.load("ptr", place)
        f.store(own, f.offset(large, "i8", -LINE))
        f.store(large, place)
        return own, large

    def _move(self, frame: Register, table: Register, move: Register, *, inwards: bool) -> None:
        """Copy a tensor into larger memory, or out of it."""
        f = self.f

        def word(number: int) -> Register:
            return f.load("i64", f.offset(move, "i64", number))

        if inwards:
            own, large = self._redirect(frame, table, move)
            cleared = word(MoveWord.CLEARED)
            with f.only_if(f.compare("icmp ne", cleared, f.integer(0))):
                f.emit_void(f"call ptr {self.word('ptr', CallWord.FILL).name}({large}, i32 0, {cleared})")
        else:
            large = f.offset(frame, "i8", word(MoveWord.OFFSET))
            own = f.load("ptr", f.offset(large, "i8", -LINE))
        with ExitStack() as loops:
            for dimension in range(MOVED_DIMENSIONS):
                loop = loops.enter_context(f.loop(0, word(MoveWord.COUNTS + dimension)))
                steps = (word(first + dimension) for first in (MoveWord.LARGE_STEPS, MoveWord.OWN_STEPS))
                large, own = (
                    f.offset(pointer, "i8", f.binary("mul", loop.index, step))
                    for pointer, step in zip((large, own), steps, strict=True)
                )
            to, source = (large, own) if inwards else (own, large)
            f.emit_void(f"call ptr {self.word('ptr', CallWord.COPY).name}({to}, {source}, {word(MoveWord.BYTES)})")

    def _items(self, sequence: Register, count: CallWord) -> Register:
        """Give where the items of a list or tuple of a length are."""
        f, kind = self.f, self.kind_of(sequence)
        is_list = f.compare("icmp eq", kind, self.word("ptr", CallWord.LIST_TYPE))
        is_tuple = f.compare("icmp eq", kind, self.word("ptr", CallWord.TUPLE_TYPE))
        self.require(f.binary("or", is_list, is_tuple))
        length = f.load("i64", f.offset(sequence, "i8", SIZE_OFFSET))
        self.require(f.compare("icmp eq", length, self.word("i64", count)))
        return self.first_item(sequence, is_list)

    def _compare_identities(self, inputs: Register) -> None:
        f, table = self.f, self.word("ptr", CallWord.SAME)
        with f.loop(0, self.word("i64", CallWord.SAME_COUNT)) as loop:
            position, expected = self.row(table, loop.index, 2)
            item = f.load("i64", f.offset(inputs, "ptr", position))
            self.require(f.compare("icmp eq", item, expected))
