"""Let native threads wait for each other by counters that only grow: spin briefly, then sleep.

A waiting thread spins for longer than sleeping and waking takes (some 50 microseconds), then sleeps on a futex: its
core is free then, and the system moves the thread that is waited for there if something else has taken that one's core.
Where there is no futex it naps instead.
"""

from weft.codegen.llvm.module import FunctionWriter, Module, Register, constant
from weft.target import architecture

SPINS = 4000  # pauses, of 40 to 140 cycles each: 80 to 200 microseconds
NAP_MICROSECONDS = 50
SLEEPERS_OFFSET = 8  # behind a counter: how many threads sleep until it grows
FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98}
FUTEX_WAIT, FUTEX_WAKE = 128, 129  # private to the process
EVERYBODY = 2**31 - 1
WAIT, PUBLISH = "wait_for", "publish"
PAUSES = {
    "x86_64": ("llvm.x86.sse2.pause", ()),
    "aarch64": ("llvm.aarch64.hint", (constant("i32", 1),)),
}


def pause(f: FunctionWriter) -> None:
    """Write the instruction of a loop that only waits."""
    name, operands = PAUSES.get(architecture(f.target.triple), ("", ()))
    if name:
        f.module.declare(name, "void", [operand.kind for operand in operands])
        f.emit_void(f"call void @{name}({', '.join(map(str, operands))})")


def sleep_while(f: FunctionWriter, word: Register, value: Register) -> None:
    """Write a sleep that ends when another thread wakes this word, or at once where it has not this value (an i32)."""
    if _number(f) is None:
        f.imported("usleep", "i32", constant("i32", NAP_MICROSECONDS))
    else:
        _futex(f, word, FUTEX_WAIT, value)


def give_way(f: FunctionWriter) -> None:
    """Write what lets another thread run that shares this one's core: the one that is waited for, perhaps."""
    f.imported("sched_yield", "i32")


def wake(f: FunctionWriter, word: Register) -> None:
    """Write what wakes all threads that sleep on a word."""
    if _number(f) is not None:
        _futex(f, word, FUTEX_WAKE, constant("i32", EVERYBODY))


def emit_wait(module: Module) -> None:
    """Write `void wait_for(counter*, i64 least)`: it ends when the counter is that large.

    Who grows the counter is another thread that publishes it after what is waited for; it cannot be waiting for this
    thread in turn, because the plan's waits form no circle.
    """
    f = module.function(WAIT, ["ptr", "i64"])
    counter, least = f.parameters
    done = f.label("enough")
    with f.loop(0, SPINS):
        now = f.emit("i64", f"load atomic i64, {counter} acquire, align 8")
        again = f.label("again")
        f.branch_if(f.compare("icmp uge", now, least), done, again)
        f.begin_block(again)
        pause(f)
    sleepers, asleep, rest = f.offset(counter, "i8", SLEEPERS_OFFSET), f.label("asleep"), f.label("rest")
    f.branch(asleep)
    f.begin_block(asleep)
    # A sleeper counts itself before it looks, a publisher looks at the count after it has published: at least one of
    # them sees the other. Both are sequentially consistent.
    f.emit("i64", f"atomicrmw add {sleepers}, i64 1 seq_cst")
    now = f.emit("i64", f"load atomic i64, {counter} seq_cst, align 8")
    awake = f.label("awake")
    f.branch_if(f.compare("icmp uge", now, least), awake, rest)
    f.begin_block(rest)
    sleep_while(f, counter, f.convert("trunc", now, "i32"))
    f.branch(awake)
    f.begin_block(awake)
    f.emit("i64", f"atomicrmw sub {sleepers}, i64 1 seq_cst")
    now = f.emit("i64", f"load atomic i64, {counter} acquire, align 8")
    f.branch_if(f.compare("icmp uge", now, least), done, asleep)
    f.begin_block(done)


def emit_publish(module: Module) -> None:
    """Write `void publish(counter*, i64 value)`: what this thread wrote before is seen by whoever sees the value."""
    f = module.function(PUBLISH, ["ptr", "i64"])
    counter, value = f.parameters
    f.emit("i64", f"atomicrmw xchg {counter}, {value} seq_cst")
    sleepers = f.emit("i64", f"load atomic i64, {f.offset(counter, 'i8', SLEEPERS_OFFSET)} seq_cst, align 8")
    with f.only_if(f.compare("icmp ne", sleepers, f.integer(0))):
        wake(f, counter)


def _number(f: FunctionWriter) -> int | None:
    """Give the number of the futex call; only Linux has it."""
    return FUTEX_NUMBERS.get(architecture(f.target.triple)) if "linux" in f.target.triple else None


def _futex(f: FunctionWriter, word: Register, operation: int, value: Register) -> None:
    place = f.module.imported("syscall", "i64", ["i64", "..."])
    address = f.emit("ptr", f"load ptr, {place}")
    null = Register("ptr", "null")
    operands = (f.integer(_number(f) or 0), word, constant("i32", operation), value, null, null, constant("i32", 0))
    f.emit("i64", f"call i64 (i64, ...) {address.name}({', '.join(map(str, operands))})")
