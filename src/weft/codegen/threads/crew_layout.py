"""Where the mailboxes of worker threads lie in the crew's block, and what the words in them mean."""

from weft.codegen.threads.frame import LINE_BYTES, MOST_LANES

COUNT_OFFSET = 0  # i64: how many mailboxes have a worker
# The thread whose calls may run on its OpenMP team (0: none), and OpenMP's functions that this takes; see team.py.
MAIN_THREAD_OFFSET = 8
PARALLEL_OFFSET, THREAD_NUMBER_OFFSET, TEAM_SIZE_OFFSET, MOST_THREADS_OFFSET = 16, 24, 32, 40
LAST_CALL_OFFSET = 48  # i64: when the last call of any program has ended; whichever of several writes it last
ARRIVAL_SPINS = 20_000  # pauses, about a millisecond: as long as the system may take to wake a thread
MAILBOX_BYTES = LINE_BYTES
CREW_BYTES = LINE_BYTES + MOST_LANES * MAILBOX_BYTES
# In a mailbox: its state, which the worker sleeps on; whether the worker should end; the function to run, its argument;
# how many functions have returned, with the count of sleepers that flags.py keeps behind a counter.
STATE_OFFSET, CLOSING_OFFSET, FUNCTION_OFFSET, ARGUMENT_OFFSET, RETURNED_OFFSET = 0, 4, 8, 16, 32

# IDLE: the worker spins. RESERVED: a caller is about to post. POSTED: there is work. RUNNING: the worker does it.
# ASLEEP: the worker sleeps, or is about to. GONE: it has ended. A caller may take it from IDLE and ASLEEP.
IDLE, RESERVED, POSTED, RUNNING, ASLEEP, GONE = range(6)


def mailbox_offset(number: int) -> int:
    """Give the byte of the crew's block where a mailbox begins."""
    return LINE_BYTES + number * MAILBOX_BYTES
