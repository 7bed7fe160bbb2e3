"""Write the parts that native calls from Python share: words of a state, comparison of rows, frames, references.

Python calls such a function as it calls its own built-in ones. A bytes object holds the words of its state, which say
what it compares, reads and calls.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum, auto

from weft.codegen.llvm.module import FunctionWriter, Register, constant
from weft.codegen.threads.layout import MARK_OFFSET, PROGRAM_OFFSET, WORKERS_OFFSET

TYPE_OFFSET, SIZE_OFFSET, ITEMS_OFFSET = 8, 16, 24  # in a list or a tuple, whose items begin there
ROW_WORDS = 3
RESULT_WORDS = 4  # of each result: dimensions, where its sizes and strides are, its type's number
CPU = constant("i32", 0)  # the kind and the number of the device
NULL = Register("ptr", "null")


class CallWord(IntEnum):
    """The words of a state. Tables are given by their address, with the number of their rows."""

    NONE = 0
    FALSE = auto()
    ADD_REFERENCE = auto()
    DROP_REFERENCE = auto()
    AS_ADDRESS = auto()
    RELEASE_LOCK = auto()
    TAKE_LOCK = auto()
    LIST_TYPE = auto()
    TUPLE_TYPE = auto()
    TENSOR_TYPE = auto()
    PARAMETER_TYPE = auto()
    NEW_LIST = auto()
    COPY = auto()  # memcpy
    FILL = auto()  # memset
    # How a program runs while it is bound to lasting inputs.
    RUN = auto()
    PROGRAM = auto()
    CREW = auto()
    CHECK = auto()  # a function that marks a frame whose program must not run, or 0
    SAME_CONTENT = auto()  # a function that marks a frame where bytes are not what they were, or 0; its description
    CONTENT = auto()
    ROWS = auto()  # address, bits that count, what they are
    ROW_COUNT = auto()
    CHANGING = auto()  # position of an input (of a bound program: -1, -2, ... of captured ones), bytes of an element;
    # or an address that stays, and 0
    CHANGING_COUNT = auto()
    LASTING = auto()  # the rest of the frame's table
    LASTING_COUNT = auto()
    INPUT_COUNT = auto()
    OUTPUT_COUNT = auto()
    # A region call: what its callers give.
    SAME = auto()  # position of an input, address of its object
    SAME_COUNT = auto()
    OUTPUTS = auto()  # position of an output, bytes of an element
    # A bound program of an entry: the results that it makes.
    FRAME = auto()  # address of the word that holds a frame's address while it is free
    RESULTS = auto()  # of each new tensor: dimensions, where its sizes and strides are, its type's number
    MADE = auto()  # room for a word of each: its tensor, then its object
    NEW_ROW = auto()  # PyList_New, PyTuple_New, or 0 where the one tensor itself is given
    EMPTY = auto()
    WRAP = auto()
    DELETE = auto()
    CAPTURED = auto()  # the tuple of captured tensors that it was bound for
    FINISH = auto()  # what takes the row of results and the list of inputs, and gives what the call gives; or 0
    MOVES = auto()  # a table of moves, or 0
    LEFT = auto()  # of one for some sizes: how often it may still run before Python looks at such a call again
    # A bound program of segments, which values decide between: see path_walk.py.
    FIRST = auto()  # the words of its first segment; 0 where it is no such program
    VALUES = auto()  # a word of each place: where the elements of a tensor are, or a number
    HANDLES = auto()  # of each place: the tensor that a segment has made there, or 0
    PLACE_COUNT = auto()
    COMPARE = auto()  # memcmp
    NEW_INT = auto()
    NEW_FLOAT = auto()
    # A segment: what it makes of numbers, where its results go, what is asked of them, what it gives if it is the last.
    SCALARS = auto()
    SCALAR_COUNT = auto()
    MADE_PLACE = auto()
    ASK = auto()
    ASKED = auto()
    OTHER = auto()
    ASKED_KIND = auto()
    ASKED_BYTES = auto()
    NUMBER = auto()
    NEXT = auto()  # what must be found, the words of the segment that follows then
    NEXT_COUNT = auto()
    TAKEN = auto()  # counts how often it has run; of all, how often no segment was known that follows
    GIVES = auto()  # places, and which of tensors and numbers each is
    GIVE_COUNT = auto()
    # An entry: what a call looks like.
    POSITIONAL_COUNT = auto()
    NAMES = auto()  # of each argument by name: the object of its name
    NAME_COUNT = auto()
    ITEM_COUNT = auto()  # arguments, and what is in containers of one another
    CONTAINERS = auto()  # item, its class, its size, the first item inside, where its keys are, or 0 of a list or tuple
    CONTAINER_COUNT = auto()
    DICTIONARY_SIZE = auto()
    DICTIONARY_NEXT = auto()
    CONSTANTS = auto()  # item, the object that it must be
    CONSTANT_COUNT = auto()
    OF_CLASS = auto()  # item, the class that it must be of, whichever object it is
    OF_CLASS_COUNT = auto()
    TENSORS = auto()  # item, its class
    TENSOR_COUNT = auto()
    MASKS = auto()  # offset in a tensor
    MASK_COUNT = auto()
    LOOKS = auto()  # of each tensor and offset, the bits that count, and what they are
    GRADS = auto()  # of each tensor: 0 if it requires no grad, 1 if it does as a leaf, 2 if it was computed
    REST = auto()  # offsets of words, in what autograd knows of a tensor, that must be 0
    REST_COUNT = auto()
    GRAD_KNOWN = auto()  # the offset of that in a tensor, in it of a leaf's flag, and of a function
    GRAD_REQUIRES = auto()
    GRAD_FUNCTION = auto()
    GRAD_KIND = auto()  # the first word of what autograd knows of a tensor that is no view, and of one that is
    VIEW_KIND = auto()
    VIEW_BASE = auto()  # where that has the tensor that it is of
    IDENTITIES = auto()  # two items, 1 where they are one object
    IDENTITY_COUNT = auto()
    MODES = auto()  # a function of one number that gives a mode of the thread, the number, bits that count, the answer
    MODE_COUNT = auto()
    APART = auto()  # items whose memory no other of them has, and no captured tensor
    APART_COUNT = auto()
    # An entry: what it does with such a call.
    GUARD = auto()  # a list of one: the words that tell that facts hold, or None where words cannot tell
    BOUND = auto()  # a list of one: the bound program, or None
    BY_SIZES = auto()  # 1 where there is one for each of some sizes, in a table (KnownSizesWord), in its place
    RUNS = auto()  # what takes the program's inputs, once facts hold
    CHECKS = auto()  # what takes the leaves of the call, and looks at facts itself
    INPUTS = auto()  # items before the captured tensors, items behind them
    BEFORE_COUNT = auto()
    AFTER_COUNT = auto()
    LEAVES = auto()  # the items that are no containers
    LEAF_COUNT = auto()
    GIVEN = auto()  # the containers among the items, in the order of PyTorch's trees
    GIVEN_COUNT = auto()
    VECTORCALL = auto()
    REFUSED = auto()


class GuardWord(IntEnum):
    """The words of a guard that holds."""

    ROWS = 0
    ROW_COUNT = auto()
    FOREIGN = auto()  # where the memory of captured tensors begins
    FOREIGN_COUNT = auto()
    SEEN = auto()  # the place of a word that becomes 1 where all of it agrees


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


class NativeCall:
    """Writes into a function: what it reads of a state, requires of memory, and runs."""

    def __init__(self, f: FunctionWriter, layout: ObjectLayout, state: Register, refused: str) -> None:
        """`refused` is the block to go to where something is not as it was."""
        self.f = f
        self.layout = layout
        self.state = state
        self.refused = refused

    def word(self, kind: str, word: IntEnum) -> Register:
        """Read a word of the state."""
        return self.f.load(kind, self.f.offset(self.state, "i64", int(word)))

    def require(self, condition: Register) -> None:
        """Go on only where a condition holds."""
        on = self.f.label("on")
        self.f.branch_if(condition, on, self.refused)
        self.f.begin_block(on)

    def constant_object(self, word: CallWord) -> Register:
        """Give one of Python's constants, as a result that the caller owns."""
        given = self.word("ptr", word)
        self.add_reference(given)
        return given

    def add_reference(self, thing: Register) -> None:
        """Hold an object."""
        self.f.emit_void(f"call void {self.word('ptr', CallWord.ADD_REFERENCE).name}({thing})")

    def drop_reference(self, thing: Register) -> None:
        """Let go of an object, which may run Python where it ends with that."""
        self.f.emit_void(f"call void {self.word('ptr', CallWord.DROP_REFERENCE).name}({thing})")

    def kind_of(self, thing: Register) -> Register:
        """Give the class of an object."""
        return self.f.load("ptr", self.f.offset(thing, "i8", TYPE_OFFSET))

    def items_of(self, row: Register) -> Register:
        """Give where the items of a list or tuple are."""
        return self.first_item(row, self.f.compare("icmp eq", self.kind_of(row), self.word("ptr", CallWord.LIST_TYPE)))

    def first_item(self, row: Register, is_list: Register) -> Register:
        """Give where the items of a list, or else of a tuple, are."""
        f = self.f
        items = f.offset(row, "i8", ITEMS_OFFSET)
        # A list has the address of its items where a tuple has the first item.
        (given,) = f.either(is_list, lambda: (f.load("ptr", items),), lambda: (items,))
        return given

    def compare_rows(self, table: Register, count: Register) -> None:
        """Require that words of memory are what they were."""
        f = self.f
        with f.loop(0, count) as loop:
            address, bits, expected = self.row(table, loop.index, ROW_WORDS)
            place = f.emit("ptr", f"inttoptr {address} to ptr")
            self.require(f.compare("icmp eq", f.binary("and", f.load("i64", place), bits), expected))

    def tensor_of(self, item: Register) -> Register:
        """Give the tensor of an object that is required to be a plain tensor or a parameter."""
        f = self.f
        kind = self.kind_of(item)
        is_tensor = f.compare("icmp eq", kind, self.word("ptr", CallWord.TENSOR_TYPE))
        is_parameter = f.compare("icmp eq", kind, self.word("ptr", CallWord.PARAMETER_TYPE))
        self.require(f.binary("or", is_tensor, is_parameter))
        return f.load("ptr", f.offset(item, "i8", self.layout.tensor))

    def new_tensor(self, words: Sequence[Register], handle: Register, empty: Register) -> Register:
        """Make a tensor of a row's words, whose handle is put in a place; gives its memory. It must be made."""
        f = self.f
        sizes, strides = (f.emit("ptr", f"inttoptr {word} to ptr") for word in words[1:3])
        kind = f.convert("trunc", words[3], "i32")
        listed = ", ".join(map(str, (words[0], sizes, strides, kind, CPU, CPU, handle)))
        self.require(f.compare("icmp eq", f.emit("i32", f"call i32 {empty.name}({listed})"), constant("i32", 0)))
        # A new tensor's offset is 0: the size of its elements does not matter.
        return self.memory_of(f.load("ptr", f.load("ptr", handle)), constant("i64", 0))

    def memory_of(self, tensor: Register, size: Register) -> Register:
        """Give where a tensor's elements begin, which have so many bytes each."""
        f, layout = self.f, self.layout
        storage = f.load("ptr", f.offset(tensor, "i8", layout.storage))
        first = f.load("i64", f.offset(tensor, "i8", layout.offset))
        base = f.load("ptr", f.offset(storage, "i8", layout.address))
        return f.offset(base, "i8", f.binary("mul", first, size))

    def fetch(self, items: Register, table: CallWord, count: Register, to: Register) -> None:
        """Write the addresses of tensors into the frame's table."""
        f, rows = self.f, self.word("ptr", table)
        with f.loop(0, count) as loop:
            position, size = self.row(rows, loop.index, 2)
            tensor = self.tensor_of(f.load("ptr", f.offset(items, "ptr", position)))
            f.store(self.memory_of(tensor, size), f.offset(to, "ptr", loop.index))

    def copy_lasting(self, to: Register) -> None:
        """Write the rest of the frame's table."""
        f, words = self.f, self.word("ptr", CallWord.LASTING)
        with f.loop(0, self.word("i64", CallWord.LASTING_COUNT)) as loop:
            f.store(f.load("ptr", f.offset(words, "ptr", loop.index)), f.offset(to, "ptr", loop.index))

    def passes_checks(self, frame: Register) -> Register:
        """Tell whether a program may run in a frame: its weights are the same; its checks, if any, find nothing."""
        f, check, compare = self.f, self.word("ptr", CallWord.CHECK), self.word("ptr", CallWord.SAME_CONTENT)

        def look() -> tuple[Register]:
            f.store(f.integer(0), f.offset(frame, "i8", MARK_OFFSET))
            self.run(frame, CallWord.CONTENT, CallWord.SAME_CONTENT)
            return (self._is_unmarked(frame),)

        def ask() -> tuple[Register]:
            return (self.is_checked(frame, check),)

        yes = constant("i1", 1)
        (same,) = f.either(f.compare("icmp ne", compare, NULL), look, lambda: (yes,))
        asks = f.binary("and", same, f.compare("icmp ne", check, NULL))
        (passes,) = f.either(asks, ask, lambda: (same,))
        return passes

    def is_checked(self, frame: Register, check: Register) -> Register:
        """Tell whether a program's own check finds nothing."""
        self.f.emit_void(f"call void {check.name}({frame})")
        return self._is_unmarked(frame)

    def _is_unmarked(self, frame: Register) -> Register:
        f = self.f
        return f.compare("icmp eq", f.load("i64", f.offset(frame, "i8", MARK_OFFSET)), f.integer(0))

    def run(
        self, frame: Register, program: CallWord | Register = CallWord.PROGRAM, function: CallWord = CallWord.RUN
    ) -> None:
        """Run a program in a frame, without Python's lock."""
        thread = self.release_lock()
        self.run_without_lock(frame, program, function)
        self.take_lock(thread)

    def run_without_lock(
        self, frame: Register, program: CallWord | Register = CallWord.PROGRAM, function: CallWord = CallWord.RUN
    ) -> None:
        """Run a program in a frame; Python's lock is somebody else's."""
        f = self.f
        description = program if isinstance(program, Register) else self.word("ptr", program)
        f.store(description, f.offset(frame, "i8", PROGRAM_OFFSET))
        f.store(self.word("ptr", CallWord.CREW), f.offset(frame, "i8", WORKERS_OFFSET))
        f.emit_void(f"call void {self.word('ptr', function).name}({frame})")

    def release_lock(self) -> Register:
        """Let go of Python's lock; gives what it takes to have it again."""
        return self.f.emit("ptr", f"call ptr {self.word('ptr', CallWord.RELEASE_LOCK).name}()")

    def take_lock(self, thread: Register) -> None:
        """Wait for Python's lock."""
        self.f.emit_void(f"call void {self.word('ptr', CallWord.TAKE_LOCK).name}({thread})")

    def row(self, table: Register, index: Register, width: int) -> list[Register]:
        """Read a row of a table of words."""
        first = self.f.offset(table, "i64", self.f.multiply(index, width))
        return [self.f.load("i64", self.f.offset(first, "i64", place)) for place in range(width)]
