"""Write `new_tensors`, which gives Python a tuple of new tensors.

PyTorch's own function makes one tensor at a call, and lets go of the interpreter's lock in each: a program with many
results would give another thread that many turns. `self` is a tuple of a bytes object with the words of a state, and of
what keeps the tables that they point to. Where a tensor cannot be made the function gives False, and has made none.
"""

from enum import IntEnum

from weft.codegen.calls.native_call import ITEMS_OFFSET, ObjectLayout, word_loads

ROW_WORDS = 4


class NewTensorWord(IntEnum):
    """The words of a state."""

    COUNT = 0
    ROWS = 1  # of each tensor: dimensions, where its sizes and strides are, its type's number
    EMPTY = 2  # aoti_torch_empty_strided
    WRAP = 3
    DELETE = 4
    NEW_TUPLE = 5  # PyTuple_New
    DROP_REFERENCE = 6
    ADD_REFERENCE = 7
    CLEAR_ERROR = 8
    FALSE = 9


def new_tensors_function(layout: ObjectLayout) -> str:
    """Give the text of the function, to come into a module."""
    fields = "\n".join(
        f"  %at.{place} = getelementptr i64, ptr %row, i64 {place}\n"
        f"  %field.{place} = load {'ptr' if place in (1, 2) else 'i64'}, ptr %at.{place}"
        for place in range(ROW_WORDS)
    )
    # SAFETY: Python holds `self`, and its lock, during the call. Nobody else has the tuple before it is full; one that
    # is dropped halfway has null where no tensor is, which Python's own functions leave there, too.
    return f"""
define ptr @new_tensors(ptr %self, ptr %args, i64 %count) nounwind {{
start:
  %first = getelementptr i8, ptr %self, i64 {ITEMS_OFFSET}
  %bytes = load ptr, ptr %first
  %state = getelementptr i8, ptr %bytes, i64 {layout.content}
{word_loads(NewTensorWord, (NewTensorWord.COUNT,))}
  %found = alloca ptr
  %made = call ptr %NEW_TUPLE(i64 %COUNT)
  %unmade = icmp eq ptr %made, null
  br i1 %unmade, label %refuse, label %next
next:
  %index = phi i64 [ 0, %start ], [ %following, %kept ]
  %is_full = icmp eq i64 %index, %COUNT
  br i1 %is_full, label %done, label %make
make:
  %words = mul i64 %index, {ROW_WORDS}
  %row = getelementptr i64, ptr %ROWS, i64 %words
{fields}
  %type = trunc i64 %field.3 to i32
  %error = call i32 %EMPTY(i64 %field.0, ptr %field.1, ptr %field.2, i32 %type, i32 0, i32 0, ptr %found)
  %failed = icmp ne i32 %error, 0
  br i1 %failed, label %drop, label %wrap
wrap:
  %handle = load ptr, ptr %found
  %object = call ptr %WRAP(ptr %handle)
  %ignored = call i32 %DELETE(ptr %handle)
  %missing = icmp eq ptr %object, null
  br i1 %missing, label %drop, label %kept
kept:
  %items = getelementptr i8, ptr %made, i64 {ITEMS_OFFSET}
  %item = getelementptr ptr, ptr %items, i64 %index
  store ptr %object, ptr %item
  %following = add i64 %index, 1
  br label %next
done:
  ret ptr %made
drop:
  call void %DROP_REFERENCE(ptr %made)
  br label %refuse
refuse:
  call void %CLEAR_ERROR()
  call void %ADD_REFERENCE(ptr %FALSE)
  ret ptr %FALSE
}}
"""
