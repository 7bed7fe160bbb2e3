"""The native comparison of a watch: words of memory against what they were.

Contract of the emitted function: i64 watch(rows, count): a row is an address, the bits that count, and what they were.
Gives 0 if all rows agree, else the number of the first that does not, counted from 1.
"""

WATCH = "watch"
ROW_WORDS = 3


def watch_function() -> str:
    """Give the text of the function, to come into a module."""
    return f"""
define i64 @{WATCH}(i64 %rows, i64 %count) nounwind {{
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
