"""The address of a compiled function -> a task that runs without the interpreter's lock."""

import ctypes

from weft.errors import ExecutionError

SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)  # a CFUNCTYPE releases the interpreter's lock


class NativeTask:
    """A call of `int function(void *argument)` in machine code; anything but 0 is a failure.

    `keep` is held until the task is done: the owner of the code and of what the argument points to.
    """

    __slots__ = ("__name__", "address", "argument", "keep")

    def __init__(self, address: int, argument: int = 0, keep: object = None, name: str = "native task") -> None:
        self.address = address
        self.argument = argument
        self.keep = keep
        self.__name__ = name

    def __call__(self) -> None:
        """Call the function; raise if it gives anything but 0."""
        # SAFETY: the address is that of a function of this signature, and it and the argument stay valid while the
        # task is queued and runs: whoever made the task guarantees it, by `keep` where Python owns them.
        status = SIGNATURE(self.address)(self.argument)
        if status:
            raise ExecutionError(f"{self.__name__} returned the error code {status}")
