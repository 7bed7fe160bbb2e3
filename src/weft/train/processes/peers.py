"""Sum tensors over the processes of one training run, started by `torchrun` or `weft train`, without ever hanging.

All communication is PyTorch's (`torch.distributed`: Gloo on CPUs, NCCL on GPUs). What is added here is that a wait for
others looks, ten times a second, whether they are still there: a rank that failed, ended, or gives no sign of life is
named in the error that every other rank raises.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import FrameType, TracebackType
from typing import Any

import torch

# Before there is a group: its functions keep the one of their first import for ever, and so that one's threads.
import torch.distributed.nn.functional
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, but not said to be
from torch.distributed.rendezvous import rendezvous

from weft.errors import ExecutionError
from weft.train.processes.parent import end_with_parent
from weft.train.processes.rank_watch import NOBODY, RankFailure, RankWatch, line_of_error, own_part

SLICE = timedelta(seconds=0.1)
GPU_SLICE = 0.0002  # seconds
PATIENCE = 60.0  # seconds that the others wait for a rank which is alive and does not come
ANSWER = timedelta(seconds=1)  # in which the store answers
CLEAR = 1.6  # seconds after which it is known which rank is gone
Sum = tuple[Any, torch.Tensor]


class Peers:
    """This process's rank among all that train together, and sums over them; made by `find_peers`."""

    def __init__(self, store: Any) -> None:
        self.rank, self.world = distributed.get_rank(), distributed.get_world_size()
        self.local_rank = distributed.get_node_local_rank(fallback_rank=self.rank)
        self.patience = PATIENCE
        self.leaked = False
        self._group = distributed.group.WORLD
        self._underway = 0  # pieces of communication that this rank has begun and not seen the end of
        self.watch = RankWatch(own_part(store), self.rank, self.world)
        distributed.barrier()  # every rank has given its first sign
        self.watch.start()
        atexit.register(self.watch.end)
        self._former_hook = sys.excepthook
        sys.excepthook = self._uncaught
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._asked_to_end)

    def enter(self, step: int, doing: str = "in a step") -> None:
        """Say in which step this rank is; raise the error of another one that is known to have failed."""
        self.watch.sign.step, self.watch.sign.doing = step, doing
        if self.watch.failure is not None:
            raise self._error(self.watch.failure)
        with self._explained():
            self.watch.tell()

    def begin_sum(self, tensor: torch.Tensor) -> Sum:
        """Begin to sum a tensor over all ranks, in place."""
        with self._explained():
            begun = distributed.all_reduce(tensor, async_op=True), tensor
        self._underway += 1
        return begun

    def finish_sum(self, begun: Sum) -> torch.Tensor:
        """Wait for a sum; raise the error of a rank that cannot bring its part."""
        self._wait(begun[0], begun[1].is_cuda)
        return begun[1]

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over all ranks, in place."""
        return self.finish_sum(self.begin_sum(tensor))

    def send_all(self, tensors: Sequence[torch.Tensor]) -> None:
        """Give every rank the values that rank 0 has, in place."""
        with self._explained():
            works = [distributed.broadcast(tensor, 0, async_op=True) for tensor in tensors]
        self._underway += len(works)
        for work, tensor in zip(works, tensors, strict=True):
            self._wait(work, tensor.is_cuda)

    def gather(self, content: bytes) -> list[bytes]:
        """Give every rank the bytes of all."""
        lengths = torch.zeros(self.world, dtype=torch.int64)
        lengths[self.rank] = len(content)
        self.sum(lengths)
        table = torch.zeros(self.world, int(lengths.max()), dtype=torch.uint8)
        table[self.rank, : len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        self.sum(table)
        return [bytes(row[:length].numpy()) for row, length in zip(table, lengths.tolist(), strict=True)]

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Tell all ranks when this one fails in the block."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Tell all ranks that this one failed, and where; a failure of another one is known already."""
        self._leak()
        if self.watch.failure is None:
            reason = "it was interrupted" if isinstance(error, KeyboardInterrupt) else _said(error)
            with contextlib.suppress(RuntimeError):  # the store may have gone with whoever held it
                self.watch.report(RankFailure(self.rank, self.watch.sign.step, reason, line_of_error(error), told=True))

    def _wait(self, work: Any, on_gpu: bool) -> None:
        start, doing = time.monotonic(), self.watch.sign.doing
        self.watch.sign.doing = "waiting"
        with self._explained():
            while not _done(work, on_gpu):
                if self.watch.failure is not None:
                    raise self._error(self.watch.failure)
                if self.watch.busy_elsewhere():
                    start = time.monotonic()
                if time.monotonic() - start > self.patience:
                    late = self.watch.late(self.watch.sign.step)
                    self.watch.report(late)
                    raise self._error(self.watch.find(0.0) or late)
        self.watch.sign.doing = doing
        self._underway -= 1

    def end_group(self) -> None:
        """End the threads of the process group: one that lets go of a tensor while Python ends would end the process.

        That waits for all that was begun. Where its end was not seen, it may never come.
        """
        if not self.leaked and not self._underway and distributed.group.WORLD is self._group:
            _peers.pop(self._group, None)
            self._group = None
            distributed.destroy_process_group()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the error of a connection into one that says which rank is not there any more."""
        try:
            yield
        except ExecutionError:
            raise
        except RuntimeError as error:
            failure = self.watch.find(CLEAR)
            if failure is None:
                self._leak()
                raise ExecutionError(
                    f"rank {self.rank} could not communicate in step {self.watch.sign.step}", why=str(error)
                ) from error
            raise self._error(failure) from error

    def _error(self, failure: RankFailure) -> ExecutionError:
        self._leak()
        if failure.rank == NOBODY:
            return self._ended(failure.reason)
        # A sum is of the step that a rank which is gone did not end.
        step = failure.step if failure.told else max(failure.step, self.watch.sign.step)
        return ExecutionError(
            f"rank {failure.rank} of {self.world} failed in step {step}, so rank {self.rank} stops too",
            where=failure.line,
            why=failure.reason,
            fix='start again; fit(..., resume="auto") goes on from the newest checkpoint',
        )

    def _uncaught(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        """Tell all ranks of an error that ends this process, also one from between two steps."""
        self.fail(error)
        self._former_hook(kind, error, traceback)

    def _asked_to_end(self, _number: int, _frame: FrameType | None) -> None:
        """Answer SIGTERM: `torchrun` sends it to all when one has failed, so say which."""
        failure = self.watch.find(CLEAR)
        if failure is not None and failure.rank != self.rank:
            raise self._error(failure)
        raise self._ended("whoever started it wants it to end, and no other rank is known to have failed")

    def _ended(self, why: str) -> ExecutionError:
        self._leak()
        return ExecutionError(
            f"rank {self.rank} was asked to end in step {self.watch.sign.step}", where=self.watch.sign.line, why=why
        )

    def _leak(self) -> None:
        """Keep the process group for ever: its destructor would wait for sums that will never come."""
        if not self.leaked:
            self.leaked = True
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(distributed.group.WORLD))


def _done(work: Any, on_gpu: bool) -> bool:
    """Wait for a moment, and tell whether a piece of communication is done."""
    if work.is_completed():
        work.wait()
        return True
    if on_gpu:  # a wait of NCCL that takes too long ends the whole group
        time.sleep(GPU_SLICE)
        return False
    try:
        work.wait(SLICE)
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()  # it raises an error of its own; it has none where it was done just as the moment ended
    return True


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(": ")


_peers: dict[Any, Peers] = {}


def find_peers() -> Peers | None:
    """Give the processes that this one trains with: those of the process group, or of `torchrun`; None if it is alone.

    Under `torchrun`, this process ends when the agent that started it does.
    """
    if not distributed.is_available():
        return None
    if distributed.is_initialized():
        known = _peers.get(distributed.group.WORLD)
        if known is not None or distributed.get_world_size() == 1:
            return known
        return _joined(_own_store())
    if not distributed.is_torchelastic_launched():
        return None
    end_with_parent()
    store, rank, world = next(iter(rendezvous("env://")))
    return join(lambda: store, rank, world)


def join(make_store: Callable[[], Any], rank: int, world: int) -> Peers | None:
    """Become a rank of the group whose processes share a store."""
    store = make_store()
    distributed.init_process_group(store=store, rank=rank, world_size=world)
    if world == 1:
        return None
    peers = _joined(store.clone())
    atexit.register(peers.end_group)
    return peers


def _joined(store: Any) -> Peers:
    store.set_timeout(ANSWER)
    return _peers.setdefault(distributed.group.WORLD, Peers(store))


def _own_store() -> Any:
    """Make a store for a process group that somebody else made: rank 0 holds it and tells where it is."""
    first = distributed.get_rank() == 0
    held = TCPStore("localhost", 0, None, True, wait_for_workers=False) if first else None
    place = torch.zeros(256, dtype=torch.uint8)
    if held is not None:
        name = f"{platform.node()} {held.port}".encode()
        place[: len(name)] = torch.tensor(list(name), dtype=torch.uint8)
    distributed.broadcast(place, 0)
    if held is not None:
        return held
    host, port = bytes(place.tolist()).rstrip(b"\0").decode().split()
    return TCPStore("localhost" if host == platform.node() else host, int(port), None, False)
