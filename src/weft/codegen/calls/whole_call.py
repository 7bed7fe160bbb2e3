"""The text of a function that Python calls in the place of a hybridized one: its program, native from end to end.

`whole_call(self, arguments, count)` takes a call's arguments as they come. `self` is a tuple of a bytes object with the
words of a `State`, and of what keeps the state's tables alive. It compares everything that the program relies on (the
thread's modes, the arguments' looks, what may have changed elsewhere), makes the result, runs the program and gives the
result; where anything is not as expected it has done nothing and gives False.
"""

from weft.codegen.calls.fast_call import ITEMS_OFFSET, CallWriter, ObjectLayout, State
from weft.codegen.frame import TABLE_OFFSET
from weft.codegen.module import Module
from weft.codegen.register import Register, constant
from weft.target import Target

MODE_WORDS, LOOK_WORDS, RESULT_WORDS = 4, 4, 6


def whole_call_module(layout: ObjectLayout, target: Target) -> str:
    """Write the module."""
    module = Module(target)
    _Whole(module.function("call", ["ptr", "ptr", "ptr", "i64"]), layout).write()
    wrapper = f"""
define ptr @whole_call(ptr %self, ptr %args, i64 %count) nounwind {{
  %result = alloca ptr
  %place = getelementptr i8, ptr %self, i64 {ITEMS_OFFSET}
  %bytes = load ptr, ptr %place
  %state = getelementptr i8, ptr %bytes, i64 {layout.content}
  call void @call(ptr %state, ptr %args, ptr %result, i64 %count)
  %given = load ptr, ptr %result
  ret ptr %given
}}
"""
    return str(module) + wrapper


class _Whole(CallWriter):
    """Writes `void call(state*, arguments*, result*, count)`."""

    def write(self) -> None:
        # SAFETY: Python holds the arguments and `self` during the call, and its lock until everything is fetched; the
        # frame is this call's alone between the two exchanges. Types are compared before anything is read that only
        # they have.
        f = self.f
        self.require(f.compare("icmp eq", f.parameters[3], self.word("i64", State.INPUT_COUNT)))
        self._compare_modes()
        self._compare_looks()
        self.compare_rows()
        place = self.word("ptr", State.FRAME)
        free = f.emit("i64", f"atomicrmw xchg {place}, i64 0 acquire")
        self.require(f.compare("icmp ne", free, constant("i64", 0)))
        made, failed = f.label("made"), f.label("failed")
        handle_place = f.scratch("ptr", 1)
        no_error = f.compare("icmp eq", self._make_result(handle_place), constant("i32", 0))
        f.branch_if(no_error, made, failed)
        f.begin_block(failed)
        f.emit_void(f"store atomic {free}, {place} release, align 8")
        f.branch(self.refused)
        f.begin_block(made)
        handle = f.load("ptr", handle_place)
        frame = f.emit("ptr", f"inttoptr {free} to ptr")
        self._fill(frame, f.load("ptr", handle))
        runs, unmade = f.label("runs"), f.label("unmade")
        f.branch_if(self.passes_checks(frame), runs, unmade)
        f.begin_block(unmade)
        f.emit("i32", f"call i32 {self.word('ptr', State.DELETE).name}({handle})")
        f.branch(failed)
        f.begin_block(runs)
        self.run(frame)
        f.emit_void(f"store atomic {free}, {place} release, align 8")
        given = f.emit("ptr", f"call ptr {self.word('ptr', State.WRAP).name}({handle})")
        f.emit("i32", f"call i32 {self.word('ptr', State.DELETE).name}({handle})")
        f.store(given, self.result)
        f.branch(self.end)
        f.begin_block(self.refused)
        self.give(State.FALSE)
        f.begin_block(self.end)

    def _compare_modes(self) -> None:
        f, table = self.f, self.word("ptr", State.MODES)
        with f.loop(0, self.word("i64", State.MODE_COUNT)) as loop:
            address, number, bits, expected = self.row(table, loop.index, MODE_WORDS)
            ask = f.emit("ptr", f"inttoptr {address} to ptr")
            answer = f.emit("i64", f"call i64 {ask.name}({number})")
            self.require(f.compare("icmp eq", f.binary("and", answer, bits), expected))

    def _compare_looks(self) -> None:
        """Require that each argument is a plain tensor of the look it had."""
        f, table = self.f, self.word("ptr", State.LOOKS)
        with f.loop(0, self.word("i64", State.LOOK_COUNT)) as loop:
            position, at, bits, expected = self.row(table, loop.index, LOOK_WORDS)
            tensor = self.tensor_of(f.load("ptr", f.offset(self.arguments, "ptr", position)))
            found = f.load("i64", f.offset(tensor, "i8", at))
            self.require(f.compare("icmp eq", f.binary("and", found, bits), expected))

    def _make_result(self, handle: Register) -> Register:
        """Make the tensor that is returned; gives an error's number, or 0."""
        f = self.f
        row = self.word("ptr", State.RESULT)
        words = [f.load("i64", f.offset(row, "i64", place)) for place in range(RESULT_WORDS)]
        sizes, strides = (f.emit("ptr", f"inttoptr {word} to ptr") for word in words[1:3])
        numbers = [f.convert("trunc", word, "i32") for word in words[3:]]
        listed = ", ".join(map(str, (words[0], sizes, strides, *numbers, handle)))
        return f.emit("i32", f"call i32 {self.word('ptr', State.EMPTY).name}({listed})")

    def _fill(self, frame: Register, result: Register) -> None:
        """Write the addresses of arguments, the result and what lasts into the frame's table."""
        f = self.f
        table = f.offset(frame, "i8", TABLE_OFFSET)
        changing = self.word("i64", State.CHANGING_COUNT)
        rows = self.word("ptr", State.CHANGING)
        with f.loop(0, changing) as loop:
            position, size = self.row(rows, loop.index, 2)
            item = f.load("ptr", f.offset(self.arguments, "ptr", position))
            tensor = f.load("ptr", f.offset(item, "i8", self.layout.tensor))
            f.store(self.memory_of(tensor, size), f.offset(table, "ptr", loop.index))
        # A new tensor's offset is 0: the size of its elements does not matter.
        table = f.offset(table, "ptr", changing)
        f.store(self.memory_of(result, constant("i64", 0)), table)
        self.copy_lasting(f.offset(table, "ptr", 1))
