"""Write `region_call`, which runs a bound program for tensors that its caller has made, without Python between.

`region_call(self, args, count)` takes a list or tuple of inputs, one of outputs, and the address of a frame. `self` is
a bytes object with the words of a state. It compares what must not have changed, writes the addresses of the other
tensors into the frame, runs the program without the interpreter's lock, and gives None; where anything is not as
expected it has done nothing and gives False.

A fourth argument is the address of moves, for a program that is made for larger tensors; see moves.py.
"""

from weft.codegen.calls.moves import Moves, MovingCall
from weft.codegen.calls.native_call import NULL, SIZE_OFFSET, CallWord, ObjectLayout
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


class _RegionCall(MovingCall):
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
        moves = self._moves()
        self.move_inwards(frame, moves)
        self.redirect_results(frame, moves)
        self.require(self.passes_checks(frame))
        own = f.compare("icmp ne", moves.description, NULL)
        self.run(frame, f.select(own, moves.description, self.word("ptr", CallWord.PROGRAM)))
        self.move_outwards(frame, moves)
        f.store(self.constant_object(CallWord.NONE), self._result)
        f.branch(end)
        f.begin_block(self.refused)
        f.store(self.constant_object(CallWord.FALSE), self._result)
        f.branch(end)
        f.begin_block(end)

    def _moves(self) -> Moves:
        """Give the moves of a call, of which there are none where it names no table of them."""
        f = self.f

        def given() -> tuple[Register]:
            number = f.load("ptr", f.offset(self._arguments, "ptr", 3))
            return (f.emit("ptr", f"call ptr {self.word('ptr', CallWord.AS_ADDRESS).name}({number})"),)

        (table,) = f.either(f.compare("icmp sgt", self._count, f.integer(3)), given, lambda: (NULL,))
        return self.moves_at(table)

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
