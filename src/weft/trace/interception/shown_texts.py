"""Tell whether a text that code asks for is only printed or logged, so that nothing is decided by it.

`logger.debug(f"{x.shape}")` asks for the text of a size in the user's own code, as `cache[f"{x.shape}"]` does. What
becomes of it is read from the bytecode behind: an f-string that is an argument of such a call, and nothing else. What
is called is looked up where the code runs: a user's own function may have any name.
"""

from __future__ import annotations

import builtins
import dis
import logging
import sys
from functools import lru_cache
from inspect import getattr_static
from types import CodeType, FrameType
from typing import Any

from weft.owners import Owner, owner_of
from weft.trace.interception.printed import print_later

PRINT, LOG = "print", "log"
PRINTS = (builtins.print, print_later)
LOGGERS = (logging.Logger, logging.LoggerAdapter)
LOGS = frozenset({"debug", "info", "warning", "warning_once", "error", "critical", "exception"})
WRITES_TEXT = ("FORMAT_", "CONVERT_VALUE", "BUILD_STRING")
LOADS = ("LOAD_FAST", "LOAD_CONST", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME", "PUSH_NULL", "KW_NAMES", "PRECALL")
VARIABLES = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME")
ATTRIBUTES = ("LOAD_METHOD", "LOAD_ATTR")
OF_TWO = ("BINARY_OP", "BINARY_SUBSCR")
BELOW = 2  # on the stack, of the arguments of a call
TEXT, BOTH = 1, 2


def shown_by(frame: FrameType) -> str | None:
    """How a text is shown that what runs there asks for, and does nothing else with: PRINT or LOG."""
    if owner_of(frame.f_code.co_filename) is Owner.WEFT or frame.f_globals.get("__name__") == logging.__name__:
        return LOG  # Weft writes what is not the user's own text
    names = _called_with(frame.f_code, frame.f_lasti) if sys.version_info >= (3, 11) else ()
    return _shown_by_calling(names, frame) if names else None


def _shown_by_calling(names: tuple[str, ...], frame: FrameType) -> str | None:
    """How what these names mean shows its arguments, a variable and attributes from there; None of what may not."""
    spaces = (frame.f_locals, frame.f_globals, frame.f_builtins)
    thing: Any = next((space[names[0]] for space in spaces if names[0] in space), None)
    if len(names) == 1:
        return PRINT if any(thing is one for one in PRINTS) else None
    for name in names[1:-1]:
        thing = getattr_static(thing, name, None)
    is_logger = thing is logging or isinstance(thing, LOGGERS)
    return LOG if is_logger and names[-1] in LOGS else None


@lru_cache(maxsize=1024)
def _called_with(code: CodeType, place: int) -> tuple[str, ...]:
    """The names of what is called with the text that this instruction makes; none where something else is done."""
    steps = list(dis.get_instructions(code))
    start = next(number for number, step in enumerate(steps) if step.offset == place)
    if not steps[start].opname.startswith(WRITES_TEXT):
        return ()
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
                return _names_of_called(steps[:start], step) if is_argument else ()
            above += TEXT - taken
        else:
            return ()
    return ()


def _names_of_called(before: list[dis.Instruction], call: dis.Instruction) -> tuple[str, ...]:
    """The variable and the attributes of what a call calls: all that begins where the call begins."""
    begin = _begin(call)
    steps = [step for step in before if _begin(step) == begin is not None and step.opname != "PUSH_NULL"]
    if not steps or steps[0].opname not in VARIABLES or any(step.opname not in ATTRIBUTES for step in steps[1:]):
        return ()
    return tuple(str(step.argval) for step in steps)


def _begin(step: dis.Instruction) -> tuple[int | None, int | None] | None:
    return None if step.positions is None else (step.positions.lineno, step.positions.col_offset)
