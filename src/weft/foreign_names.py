"""Tell people who come from other compilers and trainers how what they ask for is called here.

Some of these names are rooms of Weft's own code, which Python finds once they have been imported: they answer a call.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import NoReturn

from weft.errors import UsageError

HYBRIDIZE = 'weft.hybridize(net) runs it as programs; torch.compile(net, backend="weft") does so as torch.compile does'
TRAINING = "weft.step(net, loss, optimizer) makes a function that trains; weft.Trainer goes through data with it"
PROGRAM = "weft.program(net, x) traces it, and gives the program; weft.hybridize(net) traces it at its calls"
# The name that others have -> what does that here.
NAMES = {
    **dict.fromkeys(("compile", "jit", "optimize"), HYBRIDIZE),
    **dict.fromkeys(("trace", "script"), PROGRAM),
    **dict.fromkeys(("train", "fit"), TRAINING),
}


def told_otherwise(name: str) -> UsageError | None:
    """The error for a name that others have, with what does that here; None for any other name."""
    fix = NAMES.get(name)
    return (
        None
        if fix is None
        else UsageError(f"weft has no function {name!r}", why="others have it under that name", fix=fix)
    )


class _Room(ModuleType):
    """A module of Weft's own code under such a name."""

    def __call__(self, *_: object, **__: object) -> NoReturn:
        error = told_otherwise(self.__name__.rpartition(".")[2])
        assert error is not None
        raise error


def answer_calls(module: str) -> None:
    """Let a module that has such a name say what is meant, where somebody calls it."""
    sys.modules[module].__class__ = _Room
