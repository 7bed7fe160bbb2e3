"""What is known about single operators of PyTorch's operator database."""

UNINITIALISED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    }
)
"""Results hold whatever the memory held: only types, shapes, strides and aliases mean anything."""

IRREPRODUCIBLE = frozenset({"linalg.lstsq"})
"""Eager's own answer changes in the last bits from call to call, with where LAPACK's workspace lies."""
