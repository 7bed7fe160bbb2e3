"""The text of a function that Python calls as it calls its own built-in ones, to run a program without Python between.

`fast_call(self, args, count)` takes a list or tuple of inputs, one of outputs, and the address of a frame. `self` is a
bytes object that holds the words of a `State`. It compares what must not have changed, writes the addresses of the
other tensors into the frame, runs the program without the interpreter's lock, and gives None; where anything is not as
expected it has done nothing and gives False.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum, auto

from weft.codegen.llvm.module import FunctionWriter, Module
from weft.codegen.llvm.register import Register, constant
from weft.codegen.threads.layout import MARK_OFFSET, PROGRAM_OFFSET, TABLE_OFFSET, WORKERS_OFFSET

TYPE_OFFSET, SIZE_OFFSET, ITEMS_OFFSET = 8, 16, 24  # in a list or a tuple, whose items begin there
ROW_WORDS = 3


class State(IntEnum):
    """The words of a state: Python's objects and functions, the program, and tables of what to compare and to fetch."""

    NONE = 0
    FALSE = auto()
    ADD_REFERENCE = auto()
    AS_ADDRESS = auto()
    RELEASE_LOCK = auto()
    TAKE_LOCK = auto()
    LIST_TYPE = auto()
    TUPLE_TYPE = auto()
    TENSOR_TYPE = auto()
    PARAMETER_TYPE = auto()
    RUN = auto()
    INPUT_COUNT = auto()
    OUTPUT_COUNT = auto()
    ROWS = auto()  # address, bits that count, what they are
    ROW_COUNT = auto()
    SAME = auto()  # position of an input, address of its object
    SAME_COUNT = auto()
    CHANGING = auto()  # position of an input, bytes of an element
    CHANGING_COUNT = auto()
    OUTPUTS = auto()  # position of an output, bytes of an element
    LASTING = auto()  # the rest of the frame's table
    LASTING_COUNT = auto()
    PROGRAM = auto()
    CREW = auto()
    CHECK = auto()  # a function that marks a frame whose program must not run, or 0
    SAME_CONTENT = auto()  # a function that marks a frame where bytes are not what they were, or 0; its description
    CONTENT = auto()
    # What only a whole call needs.
    MODES = auto()  # a function of one number that gives a mode of the thread, the number, bits that count, the answer
    MODE_COUNT = auto()
    LOOKS = auto()  # position of an argument, offset in its tensor, bits that count, what they are
    LOOK_COUNT = auto()
    TYPES = auto()  # of each argument its class
    IDENTITIES = auto()  # positions of two arguments, 1 where they are one tensor
    IDENTITY_COUNT = auto()
    FRAME = auto()  # address of the word that holds a frame's address while it is free
    EMPTY = auto()
    RESULTS = auto()  # of each new tensor: dimensions, where its sizes and strides are, its type's number
    MADE = auto()  # room for a word of each: its tensor, then its object
    NEW_ROW = auto()  # PyList_New, PyTuple_New, or 0 where the one tensor itself is given
    DROP_REFERENCE = auto()
    WRAP = auto()
    DELETE = auto()


def word_loads(words: type[IntEnum], numbers: Collection[IntEnum] = ()) -> str:
    """Write what loads each word of `%state` into a value of its name; those that are not `numbers` are addresses."""
    return "\n".join(
        f"  %place.{word.name} = getelementptr i64, ptr %state, i64 {int(word)}\n"
        f"  %{word.name} = load {'i64' if word in numbers else 'ptr'}, ptr %place.{word.name}"
        for word in words
    )


@dataclass(frozen=True, slots=True)
class ObjectLayout:
    """Byte offsets: of a bytes object's content, a tensor object's tensor, its storage, offset and memory."""

    content: int
    tensor: int
    storage: int
    offset: int
    address: int


def write_fast_call(module: Module, layout: ObjectLayout) -> str:
    """Write what does it into a module; gives the text of the function that Python calls, to come behind that."""
    _Call(module.function("fast_call.body", ["ptr", "ptr", "ptr"]), layout).write()
    return f"""
define ptr @fast_call(ptr %self, ptr %args, i64 %count) nounwind {{
  %result = alloca ptr
  %state = getelementptr i8, ptr %self, i64 {layout.content}
  call void @fast_call.body(ptr %state, ptr %args, ptr %result)
  %given = load ptr, ptr %result
  ret ptr %given
}}
"""


class CallWriter:
    """Writes the parts of `void call(state*, args*, result*)` that fast calls have in common."""

    def __init__(self, f: FunctionWriter, layout: ObjectLayout) -> None:
        self.f = f
        self.layout = layout
        self.state, self.arguments, self.result, *_ = f.parameters
        self.refused, self.end = f.label("refused"), f.label("end")

    def word(self, kind: str, word: State) -> Register:
        """Read a word of the state."""
        return self.f.load(kind, self.f.offset(self.state, "i64", int(word)))

    def require(self, condition: Register) -> None:
        """Go on only where a condition holds."""
        on = self.f.label("on")
        self.f.branch_if(condition, on, self.refused)
        self.f.begin_block(on)

    def give(self, word: State) -> None:
        """End with one of Python's constants."""
        f = self.f
        given = self.word("ptr", word)
        f.emit_void(f"call void {self.word('ptr', State.ADD_REFERENCE).name}({given})")
        f.store(given, self.result)
        f.branch(self.end)

    def items_of(self, row: Register) -> Register:
        """Give where the items of a list or tuple are."""
        kind = self.f.load("ptr", self.f.offset(row, "i8", TYPE_OFFSET))
        return self._first_item(row, self.f.compare("icmp eq", kind, self.word("ptr", State.LIST_TYPE)))

    def _first_item(self, row: Register, is_list: Register) -> Register:
        f = self.f
        items = f.offset(row, "i8", ITEMS_OFFSET)
        # A list has the address of its items where a tuple has the first item.
        (given,) = f.either(is_list, lambda: (f.load("ptr", items),), lambda: (items,))
        return given

    def compare_rows(self) -> None:
        """Require that words of memory are what they were."""
        f, table = self.f, self.word("ptr", State.ROWS)
        with f.loop(0, self.word("i64", State.ROW_COUNT)) as loop:
            address, bits, expected = self.row(table, loop.index, ROW_WORDS)
            place = f.emit("ptr", f"inttoptr {address} to ptr")
            self.require(f.compare("icmp eq", f.binary("and", f.load("i64", place), bits), expected))

    def tensor_of(self, item: Register) -> Register:
        """Give the tensor of an object that is required to be a plain tensor or a parameter."""
        f = self.f
        kind = f.load("ptr", f.offset(item, "i8", TYPE_OFFSET))
        is_tensor = f.compare("icmp eq", kind, self.word("ptr", State.TENSOR_TYPE))
        is_parameter = f.compare("icmp eq", kind, self.word("ptr", State.PARAMETER_TYPE))
        self.require(f.binary("or", is_tensor, is_parameter))
        return f.load("ptr", f.offset(item, "i8", self.layout.tensor))

    def memory_of(self, tensor: Register, size: Register) -> Register:
        """Give where a tensor's elements begin, which have so many bytes each."""
        f, layout = self.f, self.layout
        storage = f.load("ptr", f.offset(tensor, "i8", layout.storage))
        first = f.load("i64", f.offset(tensor, "i8", layout.offset))
        base = f.load("ptr", f.offset(storage, "i8", layout.address))
        return f.offset(base, "i8", f.binary("mul", first, size))

    def fetch(self, items: Register, table: State, count: Register, to: Register) -> None:
        """Write the addresses of tensors into the frame's table."""
        f, rows = self.f, self.word("ptr", table)
        with f.loop(0, count) as loop:
            position, size = self.row(rows, loop.index, 2)
            tensor = self.tensor_of(f.load("ptr", f.offset(items, "ptr", position)))
            f.store(self.memory_of(tensor, size), f.offset(to, "ptr", loop.index))

    def copy_lasting(self, to: Register) -> None:
        """Write the rest of the frame's table."""
        f, words = self.f, self.word("ptr", State.LASTING)
        with f.loop(0, self.word("i64", State.LASTING_COUNT)) as loop:
            f.store(f.load("ptr", f.offset(words, "ptr", loop.index)), f.offset(to, "ptr", loop.index))

    def passes_checks(self, frame: Register) -> Register:
        """Tell whether a program may run in a frame: its weights are the same; its checks, if any, find nothing."""
        f, check, compare = self.f, self.word("ptr", State.CHECK), self.word("ptr", State.SAME_CONTENT)
        null = Register("ptr", "null")

        def is_unmarked() -> Register:
            return f.compare("icmp eq", f.load("i64", f.offset(frame, "i8", MARK_OFFSET)), f.integer(0))

        def look() -> tuple[Register]:
            f.store(f.integer(0), f.offset(frame, "i8", MARK_OFFSET))
            self.run(frame, State.CONTENT, State.SAME_CONTENT)
            return (is_unmarked(),)

        def ask() -> tuple[Register]:
            f.emit_void(f"call void {check.name}({frame})")
            return (is_unmarked(),)

        yes = constant("i1", 1)
        (same,) = f.either(f.compare("icmp ne", compare, null), look, lambda: (yes,))
        asks = f.binary("and", same, f.compare("icmp ne", check, null))
        (passes,) = f.either(asks, ask, lambda: (same,))
        return passes

    def run(self, frame: Register, program: State = State.PROGRAM, function: State = State.RUN) -> None:
        """Run a program in a frame, without Python's lock."""
        thread = self.release_lock()
        self.run_without_lock(frame, program, function)
        self.take_lock(thread)

    def run_without_lock(self, frame: Register, program: State = State.PROGRAM, function: State = State.RUN) -> None:
        """Run a program in a frame; Python's lock is somebody else's."""
        f = self.f
        f.store(self.word("ptr", program), f.offset(frame, "i8", PROGRAM_OFFSET))
        f.store(self.word("ptr", State.CREW), f.offset(frame, "i8", WORKERS_OFFSET))
        f.emit_void(f"call void {self.word('ptr', function).name}({frame})")

    def release_lock(self) -> Register:
        """Let go of Python's lock; gives what it takes to have it again."""
        return self.f.emit("ptr", f"call ptr {self.word('ptr', State.RELEASE_LOCK).name}()")

    def take_lock(self, thread: Register) -> None:
        """Wait for Python's lock."""
        self.f.emit_void(f"call void {self.word('ptr', State.TAKE_LOCK).name}({thread})")

    def row(self, table: Register, index: Register, width: int) -> list[Register]:
        """Read a row of a table of words."""
        first = self.f.offset(table, "i64", self.f.multiply(index, width))
        return [self.f.load("i64", self.f.offset(first, "i64", place)) for place in range(width)]


class _Call(CallWriter):
    """Writes the call with inputs, outputs and a frame."""

    def write(self) -> None:
        # SAFETY: Python holds the arguments during the call and its lock until everything is fetched; the tables are
        # held by the binding that owns this state. Types are compared before anything is read that only they have.
        f = self.f
        inputs = self._items(f.load("ptr", self.arguments), State.INPUT_COUNT)
        outputs = self._items(f.load("ptr", f.offset(self.arguments, "ptr", 1)), State.OUTPUT_COUNT)
        self._compare_identities(inputs)
        self.compare_rows()
        number = f.load("ptr", f.offset(self.arguments, "ptr", 2))
        frame = f.emit("ptr", f"call ptr {self.word('ptr', State.AS_ADDRESS).name}({number})")
        table = f.offset(frame, "i8", TABLE_OFFSET)
        changing = self.word("i64", State.CHANGING_COUNT)
        self.fetch(inputs, State.CHANGING, changing, table)
        table = f.offset(table, "ptr", changing)
        given = self.word("i64", State.OUTPUT_COUNT)
        self.fetch(outputs, State.OUTPUTS, given, table)
        self.copy_lasting(f.offset(table, "ptr", given))
        self.require(self.passes_checks(frame))
        self.run(frame)
        self.give(State.NONE)
        f.begin_block(self.refused)
        self.give(State.FALSE)
        f.begin_block(self.end)

    def _items(self, sequence: Register, count: State) -> Register:
        """Give where the items of a list or tuple of a length are."""
        f = self.f
        kind = f.load("ptr", f.offset(sequence, "i8", TYPE_OFFSET))
        is_list = f.compare("icmp eq", kind, self.word("ptr", State.LIST_TYPE))
        is_tuple = f.compare("icmp eq", kind, self.word("ptr", State.TUPLE_TYPE))
        self.require(f.binary("or", is_list, is_tuple))
        length = f.load("i64", f.offset(sequence, "i8", SIZE_OFFSET))
        self.require(f.compare("icmp eq", length, self.word("i64", count)))
        return self._first_item(sequence, is_list)

    def _compare_identities(self, inputs: Register) -> None:
        f, table = self.f, self.word("ptr", State.SAME)
        with f.loop(0, self.word("i64", State.SAME_COUNT)) as loop:
            position, expected = self.row(table, loop.index, 2)
            item = f.load("i64", f.offset(inputs, "ptr", position))
            self.require(f.compare("icmp eq", item, expected))
