"""The text of a function that Python calls in the place of a hybridized one: its program, native from end to end.

`whole_call(self, arguments, count)` takes a call's arguments as they come. `self` is a tuple of a bytes object with the
words of a `State`, and of what keeps the state's tables alive. It compares everything that the program relies on (the
thread's modes, the arguments' looks, what may have changed elsewhere), makes the results, runs the program and gives
them, one tensor or a list or tuple of them; where anything is not as expected it has done nothing and gives False.
"""

from weft.codegen.calls.fast_call import ITEMS_OFFSET, TYPE_OFFSET, CallWriter, ObjectLayout, State
from weft.codegen.llvm.module import Module
from weft.codegen.llvm.register import Register, constant
from weft.codegen.threads.layout import TABLE_OFFSET

MODE_WORDS, LOOK_WORDS, RESULT_WORDS, IDENTITY_WORDS = 4, 4, 4, 3
CPU = constant("i32", 0)  # the kind and the number of the device


def write_whole_call(module: Module, layout: ObjectLayout) -> str:
    """Write what does it into a module; gives the text of the function that Python calls, to come behind that."""
    _Whole(module.function("whole_call.body", ["ptr", "ptr", "ptr", "i64"]), layout).write()
    return f"""
define ptr @whole_call(ptr %self, ptr %args, i64 %count) nounwind {{
  %result = alloca ptr
  %place = getelementptr i8, ptr %self, i64 {ITEMS_OFFSET}
  %bytes = load ptr, ptr %place
  %state = getelementptr i8, ptr %bytes, i64 {layout.content}
  call void @whole_call.body(ptr %state, ptr %args, ptr %result, i64 %count)
  %given = load ptr, ptr %result
  ret ptr %given
}}
"""


class _Whole(CallWriter):
    """Writes `void call(state*, arguments*, result*, count)`."""

    def write(self) -> None:
        # SAFETY: Python holds the arguments and `self` during the call, and its lock until everything is fetched; the
        # frame, and the room for what is made, are this call's alone between the two exchanges. Types are compared
        # before anything is read that only they have.
        f = self.f
        self.require(f.compare("icmp eq", f.parameters[3], self.word("i64", State.INPUT_COUNT)))
        self._compare_modes()
        self._compare_looks()
        self._compare_identities()
        self.compare_rows()
        place = self.word("ptr", State.FRAME)
        free = f.emit("i64", f"atomicrmw xchg {place}, i64 0 acquire")
        self.require(f.compare("icmp ne", free, constant("i64", 0)))
        frame = f.emit("ptr", f"inttoptr {free} to ptr")
        results = self._fill(frame)
        runs, unmade, refused, lost, over = map(f.label, ("runs", "unmade", "refused_late", "lost", "over"))
        f.branch_if(self.passes_checks(frame), runs, refused)
        f.begin_block(runs)
        # Memory is taken while others run Python: for many results that is as long as a small program.
        thread = self.release_lock()
        number = self._make_results(results, unmade)
        self.run_without_lock(frame)
        self.take_lock(thread)
        self._wrap_results()
        self._give_results(lost)
        f.branch(over)
        f.begin_block(unmade)
        self._each_made(number, State.DELETE)
        self.take_lock(thread)
        f.branch(refused)
        f.begin_block(lost)  # Python has said why
        self._each_made(self.word("i64", State.OUTPUT_COUNT), State.DROP_REFERENCE)
        f.store(Register("ptr", "null"), self.result)
        f.branch(over)
        f.begin_block(over)
        f.emit_void(f"store atomic {free}, {place} release, align 8")
        f.branch(self.end)
        f.begin_block(refused)
        f.emit_void(f"store atomic {free}, {place} release, align 8")
        f.branch(self.refused)
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

    def _compare_identities(self) -> None:
        """Require that each argument is of the class it had, and that the same ones are one tensor."""
        f, types = self.f, self.word("ptr", State.TYPES)
        with f.loop(0, self.word("i64", State.INPUT_COUNT)) as loop:
            item = f.load("ptr", f.offset(self.arguments, "ptr", loop.index))
            kind = f.load("ptr", f.offset(item, "i8", TYPE_OFFSET))
            self.require(f.compare("icmp eq", kind, f.load("ptr", f.offset(types, "ptr", loop.index))))
        pairs = self.word("ptr", State.IDENTITIES)
        with f.loop(0, self.word("i64", State.IDENTITY_COUNT)) as loop:
            one, other, expected = self.row(pairs, loop.index, IDENTITY_WORDS)
            items = [f.load("ptr", f.offset(self.arguments, "ptr", place)) for place in (one, other)]
            found = f.convert("zext", f.compare("icmp eq", *items), "i64")
            self.require(f.compare("icmp eq", found, expected))

    def _fill(self, frame: Register) -> Register:
        """Write the addresses of arguments and of what lasts into the frame's table; gives where the results' go."""
        f = self.f
        table = f.offset(frame, "i8", TABLE_OFFSET)
        changing = self.word("i64", State.CHANGING_COUNT)
        rows = self.word("ptr", State.CHANGING)
        with f.loop(0, changing) as loop:
            position, size = self.row(rows, loop.index, 2)
            item = f.load("ptr", f.offset(self.arguments, "ptr", position))
            tensor = f.load("ptr", f.offset(item, "i8", self.layout.tensor))
            f.store(self.memory_of(tensor, size), f.offset(table, "ptr", loop.index))
        results = f.offset(table, "ptr", changing)
        self.copy_lasting(f.offset(results, "ptr", self.word("i64", State.OUTPUT_COUNT)))
        return results

    def _make_results(self, addresses: Register, failed: str) -> Register:
        """Make the tensors that are returned, and write where their memory is; gives how many there are by then."""
        f, table, made = self.f, self.word("ptr", State.RESULTS), self.word("ptr", State.MADE)
        with f.loop(0, self.word("i64", State.OUTPUT_COUNT)) as loop:
            words = self.row(table, loop.index, RESULT_WORDS)
            sizes, strides = (f.emit("ptr", f"inttoptr {word} to ptr") for word in words[1:3])
            handle, on = f.offset(made, "ptr", loop.index), f.label("on")
            listed = ", ".join(
                map(str, (words[0], sizes, strides, f.convert("trunc", words[3], "i32"), CPU, CPU, handle))
            )
            error = f.emit("i32", f"call i32 {self.word('ptr', State.EMPTY).name}({listed})")
            f.branch_if(f.compare("icmp eq", error, constant("i32", 0)), on, failed)
            f.begin_block(on)
            # A new tensor's offset is 0: the size of its elements does not matter.
            tensor = f.load("ptr", f.load("ptr", handle))
            f.store(self.memory_of(tensor, constant("i64", 0)), f.offset(addresses, "ptr", loop.index))
        return loop.index

    def _wrap_results(self) -> None:
        """Put each tensor's object in the place of its handle; null where Python had no memory for it."""
        f, made = self.f, self.word("ptr", State.MADE)
        with f.loop(0, self.word("i64", State.OUTPUT_COUNT)) as loop:
            place = f.offset(made, "ptr", loop.index)
            handle = f.load("ptr", place)
            f.store(f.emit("ptr", f"call ptr {self.word('ptr', State.WRAP).name}({handle})"), place)
            f.emit("i32", f"call i32 {self.word('ptr', State.DELETE).name}({handle})")

    def _give_results(self, lost: str) -> None:
        """Give the one tensor, or a list or tuple of all."""
        f, made, count = self.f, self.word("ptr", State.MADE), self.word("i64", State.OUTPUT_COUNT)
        with f.loop(0, count) as loop:
            on = f.label("on")
            f.branch_if(self._is_there(f.load("ptr", f.offset(made, "ptr", loop.index))), on, lost)
            f.begin_block(on)
        make = self.word("ptr", State.NEW_ROW)

        def alone() -> tuple[Register]:
            return (f.load("ptr", made),)

        def in_row() -> tuple[Register]:
            row = f.emit("ptr", f"call ptr {make.name}({count})")
            on = f.label("on")
            f.branch_if(self._is_there(row), on, lost)
            f.begin_block(on)
            # Nobody else sees the row before it is full: nothing from here on can run Python.
            items = self.items_of(row)
            with f.loop(0, count) as loop:
                item = f.load("ptr", f.offset(made, "ptr", loop.index))
                f.store(item, f.offset(items, "ptr", loop.index))
            return (row,)

        (given,) = f.either(self._is_there(make), in_row, alone)
        f.store(given, self.result)

    def _is_there(self, pointer: Register) -> Register:
        return self.f.compare("icmp ne", pointer, Register("ptr", "null"))

    def _each_made(self, count: Register, function: State) -> None:
        """Call a function for each of the first things that were made; null is none."""
        f, made = self.f, self.word("ptr", State.MADE)
        with f.loop(0, count) as loop:
            thing = f.load("ptr", f.offset(made, "ptr", loop.index))
            f.emit("i32", f"call i32 {self.word('ptr', function).name}({thing})")
