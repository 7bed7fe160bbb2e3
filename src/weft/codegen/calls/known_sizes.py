"""Write how a native entry finds the bound program for the sizes of a call, in a table of those that have come often.

The sizes are words in tensors. What is made of all of them says which slot of the table is theirs, where they are
compared; another bound program may be there, and then Python runs the call.
"""

from enum import IntEnum, auto

from weft.codegen.calls.native_call import NULL, CallWord, NativeCall
from weft.codegen.llvm.module import Register, constant

KEY_ROW_WORDS, SLOT_WORDS = 2, 2
FACTOR, USED_BITS = 0x1E3779B97F4A7C15, 32  # of what is made of sizes the upper bits are used, which all of them decide


class KnownSizesWord(IntEnum):
    """The words of a table."""

    KEYS = 0  # of each word that sizes decide: the item that is its tensor, the offset in that
    KEY_COUNT = auto()
    SLOTS = auto()  # of each: the bound program or 0, where the words are that it is for
    LAST = auto()  # the number of the last slot: one less than a power of two


def slot_of(words: list[int], last: int) -> int:
    """The slot for sizes, as native code finds it."""
    found = 0
    for word in words:
        found = (found + word) * FACTOR % (1 << 64)
    return found >> USED_BITS & last


def find_program(table: NativeCall, items: Register) -> Register:
    """Give the bound program for a call's sizes, if there is one that may run; else `table.refused` is next."""
    f = table.f
    keys, count = table.word("ptr", KnownSizesWord.KEYS), table.word("i64", KnownSizesWord.KEY_COUNT)
    words = f.emit("ptr", f"alloca i64, {count}")
    with f.loop(0, count, carried=[f.integer(0)]) as loop:
        item, at = table.row(keys, loop.index, KEY_ROW_WORDS)
        tensor = f.load("ptr", f.offset(f.load("ptr", f.offset(items, "ptr", item)), "i8", table.layout.tensor))
        word = f.load("i64", f.offset(tensor, "i8", at))
        f.store(word, f.offset(words, "i64", loop.index))
        loop.carry(f.binary("mul", f.binary("add", loop.carried[0], word), constant("i64", FACTOR)))
    made = f.binary("lshr", loop.carried[0], f.integer(USED_BITS))
    number = f.binary("and", made, table.word("i64", KnownSizesWord.LAST))
    program, key = table.row(table.word("ptr", KnownSizesWord.SLOTS), number, SLOT_WORDS)
    table.require(f.compare("icmp ne", program, f.integer(0)))
    expected = f.emit("ptr", f"inttoptr {key} to ptr")
    with f.loop(0, count) as loop:
        one, other = (f.load("i64", f.offset(place, "i64", loop.index)) for place in (words, expected))
        table.require(f.compare("icmp eq", one, other))
    return f.emit("ptr", f"inttoptr {program} to ptr")


def require_runs(program: NativeCall) -> None:
    """Go on only where a bound program for some sizes may run once more before Python sees such a call.

    Two threads may both find that it may once, so that what is left is below 0.
    """
    f = program.f
    program.require(f.compare("icmp sgt", f.load("i64", program.word("ptr", CallWord.LEFT)), f.integer(0)))


def note_run(program: NativeCall) -> None:
    """Count a run of a bound program, if its runs are counted."""
    f, place = program.f, program.word("ptr", CallWord.LEFT)
    with f.only_if(f.compare("icmp ne", place, NULL)):
        f.store(f.add(f.load("i64", place), -1), place)
