"""Write moves: they copy a call's tensors to the beginning of larger memory behind a frame, and out of such memory.

A program that is made for larger tensors finds them there, and puts there what it gives. A table of moves begins with
how many come before the program and how many behind it, and with which description of the program's lanes is for calls
of these sizes, or 0; then come the words of each (MoveWord).
"""

from contextlib import ExitStack
from dataclasses import dataclass
from enum import IntEnum

from weft.codegen.calls.native_call import NULL, CallWord, NativeCall
from weft.codegen.llvm.module import Register
from weft.codegen.threads.layout import TABLE_OFFSET

MOVED_DIMENSIONS = 4
LINE = 64  # bytes before the larger memory of a tensor: there its own address waits
HEAD_WORDS, DESCRIPTION = 3, 2  # the last word of the head


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


@dataclass(frozen=True, slots=True)
class Moves:
    """A table of moves: where those before a program and behind it are, how many, and the description of its lanes."""

    first: Register
    before: Register
    last: Register
    behind: Register
    description: Register


class MovingCall(NativeCall):
    """Writes what moves tensors around a program that runs in a frame."""

    # SAFETY: whoever gives moves gives a frame with so much memory behind it, which is this call's alone.

    def moves_at(self, table: Register) -> Moves:
        """Read a table of moves; there are none where its address is 0."""
        f, none = self.f, self.f.integer(0)

        def given() -> tuple[Register, ...]:
            before, behind = (f.load("i64", f.offset(table, "i64", place)) for place in (0, 1))
            return (
                f.offset(table, "i64", HEAD_WORDS),
                before,
                behind,
                f.load("ptr", f.offset(table, "i64", DESCRIPTION)),
            )

        is_there = f.compare("icmp ne", table, NULL)
        first, before, behind, description = f.either(is_there, given, lambda: (NULL, none, none, NULL))
        last = f.offset(first, "i64", f.multiply(before, MOVE_WORDS))
        return Moves(first, before, last, behind, description)

    def move_inwards(self, frame: Register, moves: Moves) -> None:
        """Put the tensors that a program takes into larger memory, where it finds them from now on."""
        f = self.f
        with f.loop(0, moves.before) as loop:
            move = f.offset(moves.first, "i64", f.multiply(loop.index, MOVE_WORDS))
            own, large = self._redirect(frame, move)
            cleared = f.load("i64", f.offset(move, "i64", int(MoveWord.CLEARED)))
            with f.only_if(f.compare("icmp ne", cleared, f.integer(0))):
                f.emit_void(f"call ptr {self.word('ptr', CallWord.FILL).name}({large}, i32 0, {cleared})")
            self._copy(move, own, large, inwards=True)

    def redirect_results(self, frame: Register, moves: Moves) -> None:
        """Let a program put what it gives into larger memory."""
        f = self.f
        with f.loop(0, moves.behind) as loop:
            self._redirect(frame, f.offset(moves.last, "i64", f.multiply(loop.index, MOVE_WORDS)))

    def move_outwards(self, frame: Register, moves: Moves) -> None:
        """Take what a program gave out of larger memory."""
        f = self.f
        with f.loop(0, moves.behind) as loop:
            move = f.offset(moves.last, "i64", f.multiply(loop.index, MOVE_WORDS))
            large = f.offset(frame, "i8", f.load("i64", f.offset(move, "i64", int(MoveWord.OFFSET))))
            self._copy(move, f.load("ptr", f.offset(large, "i8", -LINE)), large, inwards=False)

    def _redirect(self, frame: Register, move: Register) -> tuple[Register, Register]:
        """Let the program find larger memory in the place of a tensor; gives both."""
        f = self.f
        slot, offset = (f.load("i64", f.offset(move, "i64", int(word))) for word in (MoveWord.SLOT, MoveWord.OFFSET))
        place = f.offset(f.offset(frame, "i8", TABLE_OFFSET), "ptr", slot)
        large = f.offset(frame, "i8", offset)
        own = f.load("ptr", place)
        f.store(own, f.offset(large, "i8", -LINE))
        f.store(large, place)
        return own, large

    def _copy(self, move: Register, own: Register, large: Register, *, inwards: bool) -> None:
        f = self.f

        def word(number: int) -> Register:
            return f.load("i64", f.offset(move, "i64", number))

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
