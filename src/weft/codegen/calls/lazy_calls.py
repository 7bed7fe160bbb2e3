"""Write the four native functions that lazy code rests on: `modes`, `keys`, `placeholder` and `strangers`.

`modes()` gives the modes of the thread as one small number: one call in the place of eight. `keys(tensor)` gives the
word that has a tensor's dispatch keys: PyTorch's own questions about them let go of the interpreter's lock, which a
worker then takes. `placeholder(value)` makes another tensor like a template, with the value as an attribute: a copy of
a tensor without memory has none either, and takes a third of the time that PyTorch needs to read sizes, strides and a
type from Python. `strangers(tensors)` tells whether a list or tuple has nothing but plain tensors of whose memory
Python has no object: nobody can have noted it. All get `self`: a bytes object with words, but `placeholder` a tuple
that begins with one.
"""

from collections.abc import Sequence
from enum import IntEnum

from weft.codegen.calls.native_call import ITEMS_OFFSET, SIZE_OFFSET, TYPE_OFFSET, ObjectLayout, word_loads


class PlaceholderWord(IntEnum):
    """The words of a placeholder's state."""

    COPY = 0  # aoti_torch__reinterpret_tensor
    TEMPLATE = 1  # where the template's object has its tensor
    DIMENSIONS = 2
    SIZES = 3
    STRIDES = 4
    WRAP = 5
    TYPE = 6
    DELETE = 7
    SET = 8  # PyObject_SetAttr
    NAME = 9  # of the attribute
    DROP_REFERENCE = 10
    NO_MEMORY = 11
    KEYS = 12  # offset of the dispatch keys in a tensor


class StrangerWord(IntEnum):
    """The words of a state of `strangers`."""

    LIST_TYPE = 0
    TUPLE_TYPE = 1
    TENSOR_TYPE = 2
    PARAMETER_TYPE = 3
    STORAGE = 4  # offset of the storage in a tensor
    OBJECT = 5  # offset in the storage of Python's object of it
    TRUE = 6
    FALSE = 7
    ADD_REFERENCE = 8


def lazy_calls_module(layout: ObjectLayout, shifts: Sequence[tuple[int, int]]) -> str:
    """Write the module; `shifts` are (bits that count, places to the left) of each mode's answer."""
    return _modes(layout, shifts) + _keys(layout) + _placeholder(layout) + _strangers(layout)


def _modes(layout: ObjectLayout, shifts: Sequence[tuple[int, int]]) -> str:
    # SAFETY: Python holds `self` during the call; its words are addresses of exported functions of such a signature.
    lines = [
        "define ptr @modes(ptr %self, ptr %args, i64 %count) nounwind {",
        f"  %state = getelementptr i8, ptr %self, i64 {layout.content}",
        "  %make = load ptr, ptr %state",
    ]
    total = "0"
    for index, (bits, places) in enumerate(shifts):
        lines += [
            f"  %place{index} = getelementptr i64, ptr %state, i64 {1 + 2 * index}",
            f"  %ask{index} = load ptr, ptr %place{index}",
            f"  %about{index} = getelementptr i64, ptr %state, i64 {2 + 2 * index}",
            f"  %number{index} = load i64, ptr %about{index}",
            f"  %answer{index} = call i64 %ask{index}(i64 %number{index})",
            f"  %bits{index} = and i64 %answer{index}, {bits}",
            f"  %moved{index} = shl i64 %bits{index}, {places}",
            f"  %total{index} = or i64 %moved{index}, {total}",
        ]
        total = f"%total{index}"
    return "\n".join([*lines, f"  %made = call ptr %make(i64 {total})", "  ret ptr %made", "}", ""])


def _keys(layout: ObjectLayout) -> str:
    # SAFETY: Python holds `self` and the argument during the call; who calls has seen that it is a tensor.
    return f"""
define ptr @keys(ptr %self, ptr %args, i64 %count) nounwind {{
  %state = getelementptr i8, ptr %self, i64 {layout.content}
  %make = load ptr, ptr %state
  %second = getelementptr i64, ptr %state, i64 1
  %place = load i64, ptr %second
  %object = load ptr, ptr %args
  %field = getelementptr i8, ptr %object, i64 {layout.tensor}
  %tensor = load ptr, ptr %field
  %at = getelementptr i8, ptr %tensor, i64 %place
  %word = load i64, ptr %at
  %made = call ptr %make(i64 %word)
  ret ptr %made
}}
"""


def _placeholder(layout: ObjectLayout) -> str:
    # SAFETY: Python holds `self` and the value during the call; the tuple holds the template, the tables and the name.
    # A copied tensor lacks the key by which operators come to Python's class; nobody else has it yet when it gets the
    # template's keys.
    return f"""
define ptr @placeholder(ptr %self, ptr %args, i64 %count) nounwind {{
  %first = getelementptr i8, ptr %self, i64 {ITEMS_OFFSET}
  %bytes = load ptr, ptr %first
  %state = getelementptr i8, ptr %bytes, i64 {layout.content}
{word_loads(PlaceholderWord, (PlaceholderWord.DIMENSIONS, PlaceholderWord.KEYS))}
  %found = alloca ptr
  %error = call i32 %COPY(ptr %TEMPLATE, i64 %DIMENSIONS, ptr %SIZES, ptr %STRIDES, i64 0, ptr %found)
  %failed = icmp ne i32 %error, 0
  br i1 %failed, label %failure, label %copied
copied:
  %handle = load ptr, ptr %found
  %tensor = load ptr, ptr %handle
  %model = load ptr, ptr %TEMPLATE
  %from = getelementptr i8, ptr %model, i64 %KEYS
  %keys = load i64, ptr %from
  %to = getelementptr i8, ptr %tensor, i64 %KEYS
  store i64 %keys, ptr %to
  %object = call ptr %WRAP(ptr %handle, ptr %TYPE)
  %ignored = call i32 %DELETE(ptr %handle)
  %missing = icmp eq ptr %object, null
  br i1 %missing, label %nothing, label %wrapped
wrapped:
  %value = load ptr, ptr %args
  %refused = call i32 %SET(ptr %object, ptr %NAME, ptr %value)
  %unset = icmp ne i32 %refused, 0
  br i1 %unset, label %dropped, label %done
done:
  ret ptr %object
dropped:
  call void %DROP_REFERENCE(ptr %object)
  ret ptr null
failure:
  %raised = call ptr %NO_MEMORY()
  ret ptr null
nothing:
  ret ptr null
}}
"""


def _strangers(layout: ObjectLayout) -> str:
    # SAFETY: Python holds `self` and the argument, and its lock, during the call. Types are compared before anything is
    # read that only they have; a tensor holds its storage, if it has one.
    return f"""
define ptr @strangers(ptr %self, ptr %args, i64 %count) nounwind {{
start:
  %state = getelementptr i8, ptr %self, i64 {layout.content}
{word_loads(StrangerWord, (StrangerWord.STORAGE, StrangerWord.OBJECT))}
  %things = load ptr, ptr %args
  %kind.at = getelementptr i8, ptr %things, i64 {TYPE_OFFSET}
  %kind = load ptr, ptr %kind.at
  %is_list = icmp eq ptr %kind, %LIST_TYPE
  %is_tuple = icmp eq ptr %kind, %TUPLE_TYPE
  %is_either = or i1 %is_list, %is_tuple
  br i1 %is_either, label %sized, label %no
sized:
  %size.at = getelementptr i8, ptr %things, i64 {SIZE_OFFSET}
  %size = load i64, ptr %size.at
  %first = getelementptr i8, ptr %things, i64 {ITEMS_OFFSET}
  br i1 %is_list, label %listed, label %begin
listed:
  %elsewhere = load ptr, ptr %first
  br label %begin
begin:
  %items = phi ptr [ %elsewhere, %listed ], [ %first, %sized ]
  br label %next
next:
  %index = phi i64 [ 0, %begin ], [ %following, %seen ]
  %is_end = icmp eq i64 %index, %size
  br i1 %is_end, label %yes, label %look
look:
  %item.at = getelementptr ptr, ptr %items, i64 %index
  %item = load ptr, ptr %item.at
  %type.at = getelementptr i8, ptr %item, i64 {TYPE_OFFSET}
  %type = load ptr, ptr %type.at
  %is_tensor = icmp eq ptr %type, %TENSOR_TYPE
  %is_parameter = icmp eq ptr %type, %PARAMETER_TYPE
  %is_plain = or i1 %is_tensor, %is_parameter
  br i1 %is_plain, label %plain, label %no
plain:
  %tensor.at = getelementptr i8, ptr %item, i64 {layout.tensor}
  %tensor = load ptr, ptr %tensor.at
  %storage.at = getelementptr i8, ptr %tensor, i64 %STORAGE
  %storage = load ptr, ptr %storage.at
  %has_none = icmp eq ptr %storage, null
  br i1 %has_none, label %no, label %stored
stored:
  %object.at = getelementptr i8, ptr %storage, i64 %OBJECT
  %object = load ptr, ptr %object.at
  %is_unseen = icmp eq ptr %object, null
  br i1 %is_unseen, label %seen, label %no
seen:
  %following = add i64 %index, 1
  br label %next
yes:
  call void %ADD_REFERENCE(ptr %TRUE)
  ret ptr %TRUE
no:
  call void %ADD_REFERENCE(ptr %FALSE)
  ret ptr %FALSE
}}
"""
