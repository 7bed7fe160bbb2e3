"""Write one module of the functions that Python calls at every call of a program, and of what compares words for it.

Together they take LLVM, and the loader, half as long as one by one. Most of a call's time is that of functions of
Python and PyTorch: it is as fast where LLVM leaves the bodies as they are written, for which it takes half as long.
"""

from weft.codegen.calls.entry import write_entry
from weft.codegen.calls.native_call import ROW_WORDS, ObjectLayout
from weft.codegen.calls.new_tensors import new_tensors_function
from weft.codegen.calls.number_program import number_program_function
from weft.codegen.calls.path_walk import write_path_walk
from weft.codegen.calls.region_call import write_region_call
from weft.codegen.llvm.module import Module
from weft.target import Target

FIRST_DIFFERENCE = "first_difference"


def python_calls_module(layout: ObjectLayout | None, target: Target) -> str:
    """Write the module; where nobody knows how tensors lie in memory, it has only what compares words."""
    module, functions = Module(target), [_first_difference()]
    if layout is not None:
        functions += [write_entry(module, layout), write_region_call(module, layout), new_tensors_function(layout)]
        functions.append(number_program_function())
        write_path_walk(module, layout)
    for function in module.functions:
        function.leave_as_written()
    return "".join([str(module), *functions])


def _first_difference() -> str:
    """Write `i64 first_difference(rows, count)`: 0 if all words are what they were, else the row, counted from 1."""
    return f"""
define i64 @{FIRST_DIFFERENCE}(i64 %rows, i64 %count) nounwind {{
entry:
  %table = inttoptr i64 %rows to ptr
  br label %next
next:
  %index = phi i64 [ 0, %entry ], [ %after, %agrees ]
  %done = icmp uge i64 %index, %count
  br i1 %done, label %all, label %look
look:
  %first = mul i64 %index, {ROW_WORDS}
  %row = getelementptr i64, ptr %table, i64 %first
  %place = load ptr, ptr %row
  %row1 = getelementptr i64, ptr %row, i64 1
  %mask = load i64, ptr %row1
  %row2 = getelementptr i64, ptr %row, i64 2
  %before = load i64, ptr %row2
  %now = load i64, ptr %place
  %bits = and i64 %now, %mask
  %after = add i64 %index, 1
  %same = icmp eq i64 %bits, %before
  br i1 %same, label %agrees, label %differs
agrees:
  br label %next
differs:
  ret i64 %after
all:
  ret i64 0
}}
"""
