"""Behaviour of the reader of object files."""

import pytest

from weft.codegen.objects.compiler import object_code
from weft.codegen.objects.native import read_object_file
from weft.errors import InternalError
from weft.target import cross_target

CALLS = """
declare double @far(double)
@import.near = internal externally_initialized global ptr @near
declare double @near(double)
define internal double @hidden(double %x) noinline {
  %y = fadd double %x, %x
  ret double %y
}
define double @direct(double %x) {
  %y = call double @far(double %x)
  ret double %y
}
define double @through_pointer(double %x) {
  %f = load ptr, ptr @import.near
  %y = call double %f(double %x)
  %z = call double @hidden(double %y)
  ret double %z
}
"""


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_public_functions_and_far_calls_are_found(architecture: str) -> None:
    contents = read_object_file(object_code(CALLS, cross_target(architecture)))
    assert contents.functions == {"direct", "through_pointer"}
    assert contents.outside_calls == {"far"}


def test_bytes_that_are_no_object_file_are_an_error() -> None:
    with pytest.raises(InternalError, match="not a 64-bit ELF file"):
        read_object_file(b"something else")
