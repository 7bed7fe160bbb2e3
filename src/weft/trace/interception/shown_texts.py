"""Tell whether a text that code asks for is only printed or logged, so that nothing is decided by it.

`logger.debug(f"{x.shape}")` asks for the text of a size in the user's own code, as `cache[f"{x.shape}"]` does. What
becomes of it is read from the bytecode behind: an f-string that is an argument of such a call, and nothing else.
"""

from __future__ import annotations

import dis
import logging
import sys
from functools import lru_cache
from types import CodeType, FrameType

from weft.owners import Owner, owner_of

PRINT, LOG = "print", "log"
SHOWING = {PRINT: PRINT, **dict.fromkeys(("debug", "info", "warning", "warning_once", "critical", "exception"), LOG)}
WRITES_TEXT = ("FORMAT_", "CONVERT_VALUE", "BUILD_STRING")
LOADS = ("LOAD_FAST", "LOAD_CONST", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME", "PUSH_NULL", "KW_NAMES", "PRECALL")
NAMES = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_METHOD", "LOAD_ATTR")
OF_TWO = ("BINARY_OP", "BINARY_SUBSCR")
BELOW = 2  # on the stack, of the arguments of a call
TEXT, BOTH = 1, 2


def shown_by(frame: FrameType) -> str | None:
    """How a text is shown that what runs there asks for, and does nothing else with: PRINT or LOG."""
    if owner_of(frame.f_code.co_filename) is Owner.WEFT or frame.f_globals.get("__name__") == logging.__name__:
        return LOG  # Weft writes what is not the user's own text
    return _shown_by(frame.f_code, frame.f_lasti) if sys.version_info >= (3, 11) else None


@lru_cache(maxsize=1024)
def _shown_by(code: CodeType, place: int) -> str | None:
    """How the text that this instruction makes is shown by the call that it is an argument of."""
    steps = list(dis.get_instructions(code))
    start = next(number for number, step in enumerate(steps) if step.offset == place)
    if not steps[start].opname.startswith(WRITES_TEXT):
        return None
    above = 0  # on the stack, above the text
    for step in steps[start + 1 :]:
        name, count = step.opname, step.arg or 0
        if name.startswith(LOADS):
            above += dis.stack_effect(step.opcode, step.arg)
        elif name.startswith(WRITES_TEXT) or (name in ("LOAD_ATTR", "LOAD_METHOD") and above):
            above = max(above + dis.stack_effect(step.opcode, step.arg), 0)
        elif name in OF_TWO and above >= BOTH:
            above -= 1
        elif name in ("CALL", "CALL_KW"):
            taken = count + BELOW + (name == "CALL_KW")
            if above < taken:
                is_argument = above < count + (name == "CALL_KW")
                return SHOWING.get(_name_of_called(steps[:start], step)) if is_argument else None
            above += TEXT - taken
        else:
            return None
    return None


def _name_of_called(before: list[dis.Instruction], call: dis.Instruction) -> str:
    """The name of what a call calls: it is where the call begins, and ends last."""
    begin = _begin(call)
    found = [step for step in before if step.opname in NAMES and _begin(step) == begin is not None]
    return str(found[-1].argval) if found else ""


def _begin(step: dis.Instruction) -> tuple[int | None, int | None] | None:
    return None if step.positions is None else (step.positions.lineno, step.positions.col_offset)
