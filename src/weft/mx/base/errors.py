"""Raise what MXNet raises, with its texts."""

from __future__ import annotations

from weft.errors import ExecutionError


class MXNetError(RuntimeError):
    """What MXNet raises for wrong shapes, types and arguments, and for what failed while it ran."""


class MissingOperator(MXNetError, NotImplementedError):
    """An operator of MXNet 1.9.1 that `weft.mx` does not have."""


class NotImplementedForSymbol(MXNetError):
    """A function of NDArray that was called on a Symbol, most often in a hybridized block."""

    def __init__(self, function: str, alias: str | None = None, *args: object) -> None:
        shown = f"Function {function}"
        if alias is not None:
            shown += f' (namely operator "{alias}")'
        if args:
            shown += f" with arguments ({', '.join(str(type(arg)) for arg in args)})"
        super().__init__(shown + " is not implemented for Symbol and only available in NDArray.")


def as_mxnet_error(error: ExecutionError) -> MXNetError:
    """The error of a failed task, as MXNet raises it: its text, and the line that queued the work."""
    cause = error.__cause__
    text = str(cause) if isinstance(cause, MXNetError) else str(error)
    place = f"\n  where {error.where}" if isinstance(cause, MXNetError) and error.where else ""
    found = MXNetError(
        f"{text}{place}\nTo find where it was queued, run with MXNET_ENGINE_TYPE=NaiveEngine (or WEFT_ENGINE=serial)."
    )
    found.__cause__ = cause or error
    return found
