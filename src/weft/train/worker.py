"""RANK WORLD PORT ORDER -> one process of a run that `weft train --processes` started; `weft.train.rank` runs it."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, but not said to be

from weft.devices import cpu_count
from weft.errors import WeftError
from weft.train.launch import HOST, RESULT, Order, run_here
from weft.train.processes.peers import join
from weft.train.processes.rank_watch import own_part

FAILED, INTERRUPTED = 4, 130


def main(words: Sequence[str]) -> int:
    """Train as one rank; an error of Weft is printed as it is, any other one with its traceback."""
    rank, world, port = (int(word) for word in words[:3])
    told = Order(**json.loads(words[3]))
    torch.set_num_threads(max(1, cpu_count() // world))
    try:
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # launch.py held it back while this imported
        store = TCPStore(HOST, port, None, False, timeout=timedelta(seconds=300))
        peers = join(lambda: store, rank, world)
        assert peers is not None, "a run of one process is not started here"
        with peers.guard():
            history = run_here(told)
    except WeftError as error:
        print(f"weft: rank {rank}: {error}", file=sys.stderr, flush=True)  # noqa: T201 - nobody else would say it
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    if rank == 0:
        own_part(store).set(RESULT, json.dumps(list(history)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
