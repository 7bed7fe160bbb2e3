"""Train on two devices in PyTorch's own ways: DDP in processes, and averaged replicas in threads."""

from __future__ import annotations

import copy
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

Parts = tuple[torch.nn.Module, torch.optim.Optimizer]
Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
WORLD = 2
PATIENCE = 10.0  # seconds in which a process that was told to end does so


@contextmanager
def ddp(make: Callable[[str], Parts], name: str) -> Iterator[Step]:
    """Train under DistributedDataParallel in two processes of one thread, over Gloo; each keeps its half of the batch.

    A step asks both processes for one and waits; the loss is the mean of theirs.
    """
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        spawn = multiprocessing.get_context("spawn")
        pipes = [spawn.Pipe() for _ in range(WORLD)]
        store = f"file://{Path(folder) / 'store'}"
        ranks = [
            spawn.Process(target=_rank, args=(rank, store, make, name, pipes[rank][1]), daemon=True)
            for rank in range(WORLD)
        ]
        for process in ranks:
            process.start()
        ours = [pipe for pipe, _ in pipes]
        held: list[torch.Tensor] = []

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            if not held:  # the same batch each time: it travels once
                held.extend((x, y))
                for pipe, *half in zip(ours, x.chunk(WORLD), y.chunk(WORLD), strict=True):
                    pipe.send([part.numpy() for part in half])
            for pipe in ours:
                pipe.send(True)
            return torch.tensor([pipe.recv() for pipe in ours]).mean()

        try:
            yield step
        finally:
            for pipe in ours:
                pipe.close()
            for process in ranks:
                process.join(PATIENCE)
                process.kill()


def _rank(rank: int, store: str, make: Callable[[str], Parts], name: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD)
    net, optimizer = make(name)
    whole = DistributedDataParallel(net)
    x, y = (torch.from_numpy(part) for part in pipe.recv())
    try:
        while pipe.recv():
            optimizer.zero_grad()
            loss = functional.cross_entropy(whole(x), y)
            loss.backward()
            optimizer.step()
            pipe.send(float(loss.detach()))
    except EOFError:  # the measuring process has closed its end
        distributed.destroy_process_group()


@contextmanager
def averaged_replicas(make: Callable[[str], Parts], name: str) -> Iterator[Step]:
    """Train as nn.DataParallel does: copies for each step, a thread for each, gradients averaged in the first."""
    net, optimizer = make(name)

    def half(replica: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        torch.set_num_threads(1)  # of this thread: the other half has the other core
        loss = functional.cross_entropy(replica(x), y)
        return loss.detach(), torch.autograd.grad(loss, list(replica.parameters()))

    with ThreadPoolExecutor(WORLD) as threads:

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            replicas = [net, *(copy.deepcopy(net) for _ in range(WORLD - 1))]
            found = list(threads.map(half, replicas, x.chunk(WORLD), y.chunk(WORLD)))
            for parameter, *gradients in zip(net.parameters(), *(given for _, given in found), strict=True):
                parameter.grad = torch.stack(gradients).mean(0)
            optimizer.step()
            return torch.stack([loss for loss, _ in found]).mean()

        yield step
