"""Compute the gradient of a global batch on devices, in fixed logical shards, or as a whole step in one program.

On devices, each computes its part, with batch norm over all of them where that is asked for.

What a device computes depends on how many samples it is given and on how many threads its operators use. So a logical
shard has the same samples whoever computes it, runs on one core, and draws its random numbers from a seed of its own;
gradients are summed in the order of shards: the same bits whatever the devices.

Virtual CPU devices with equal shares are lanes of one processor, and a program uses all lanes by itself. So a whole
step computes the gradient of the whole batch: nothing is copied and nothing summed afterwards.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from weft.api.step import Step, step
from weft.devices import Device
from weft.ir.generator import generator_state
from weft.lazy_tensors.tasks import operator_cores
from weft.train.devices.replicas import Replicas
from weft.train.devices.shares import (
    Fields,
    MeasuredShares,
    called,
    load_pieces,
    moved,
    samples_in,
    samples_of,
    split_sizes,
    split_tree,
    training_sizes,
)
from weft.train.devices.synced_norm import Meeting, SyncedNorm
from weft.train.devices.threads import finish, run_on
from weft.train.processes.peers import Peers
from weft.train.summed_loss import nothing_of, reduction_of, summed_loss
from weft.train.trainer_options import TrainerOptions

SHARDS = 8
Gradients = list[torch.Tensor | None]
SEED_STEP = 0x9E3779B9
# PyTorch has one generator for all threads of the CPU. Held by the shard that draws from it, from its seed to its last
# number; on the other side are the other devices' shards, which hold nothing else.
_drawing = threading.Lock()


@dataclass
class Numbers:
    """Sums over samples: of the loss, of what it is divided by, and how many samples there were."""

    loss: float | torch.Tensor = 0.0
    count: float = 0.0
    samples: int = 0


class DeviceWork:
    """Computes the gradients of a batch on the devices of this process."""

    def __init__(
        self, replicas: Replicas, options: TrainerOptions, measured: MeasuredShares | None, peers: Peers | None
    ) -> None:
        self.replicas = replicas
        self.peers = peers
        self.options = options
        self.measured = measured

    def pieces(self, x: Any, y: Any, shares: Sequence[float]) -> list[tuple[int, Any, Any]]:
        """Split a batch; gives the devices that get something, each with its part."""
        met_elsewhere = self.options.sync_batchnorm and self.peers is not None
        count, places = samples_of(x, y), self.replicas.places
        if not count and met_elsewhere:  # other processes meet this one in batch norm
            return [(0, x, y)]
        together = self.options.sync_batchnorm
        sizes = split_sizes(count, shares) if together else training_sizes(self.replicas.nets[0], count, shares)
        pieces = zip(load_pieces(x, places, sizes), load_pieces(y, places, sizes), strict=True)
        return [(index, *piece) for index, piece in enumerate(pieces) if sizes[index]]

    def run(self, loss_fn: Any, busy: Sequence[tuple[int, Any, Any]]) -> Numbers:
        """Compute on all devices at once."""
        places = [self.replicas.places[index] for index, _, _ in busy]
        if self.options.sync_batchnorm:
            results = self._run_together(loss_fn, busy, places)
        else:
            results = run_on([partial(self._backward, loss_fn, *piece) for piece in busy], places)
        if busy and busy[0][0]:  # the first device had nothing: statistics are those of the first that had
            self.replicas.take_buffers(busy[0][0])
        home = self.replicas.places[0].torch_device
        losses = [part.to(home) for part, _ in results]
        return Numbers(
            torch.stack(losses).sum() if losses else 0.0,
            sum(float(number) for _, number in results),
            sum(samples_in(part, labels) for _, part, labels in busy),
        )

    def _run_together(self, loss_fn: Any, busy: Sequence[tuple[int, Any, Any]], places: Sequence[Device]) -> list[Any]:
        """Compute with batch norm over all samples."""
        meeting = Meeting(len(busy), None if self.peers is None else self.peers.sum)

        def member(number: int, piece: tuple[int, Any, Any]) -> Any:
            try:
                with SyncedNorm(meeting, number):
                    return self._backward(loss_fn, *piece)
            except BaseException as error:
                meeting.leave(error)
                raise

        try:
            return run_on([partial(member, number, piece) for number, piece in enumerate(busy)], places)
        except threading.BrokenBarrierError:
            raise (meeting.error or AssertionError("nobody failed")) from None

    def _backward(self, loss_fn: Any, index: int, x: Any, y: Any) -> tuple[torch.Tensor, Any]:
        start, samples = time.perf_counter(), samples_in(x, y)
        kind, cast = self.replicas.places[index].kind, self.options.autocast
        with torch.enable_grad(), torch.autocast(kind, dtype=cast) if cast is not None else nullcontext():
            answers = called(self.replicas.nets[index], x)
            # A mean over no samples is no number, and would spread: their part of the sum is zero.
            loss, count = summed_loss(loss_fn, answers, y) if samples else (nothing_of(answers), 0.0)
        scaler = self.options.scaler
        (loss if scaler is None else scaler.scale(loss)).backward()
        if self.measured is not None:
            finish(self.replicas.places[index])
            self.measured.note(index, samples, time.perf_counter() - start)
        return loss.detach(), count


class LogicalShards:
    """Computes the gradients of a batch shard by shard."""

    def __init__(self, replicas: Replicas, options: TrainerOptions, peers: Peers | None) -> None:
        self.replicas = replicas
        self.options = options
        self.peers = peers
        # Whether any shard of the batch before drew random numbers: none that does not needs to wait for the generator.
        self._draws = True
        self._drew = False

    def run(self, loss_fn: Any, x: Any, y: Any, number: int) -> Numbers:
        """Add the gradients of a global batch to the module's; `number` tells batches apart."""
        samples = samples_of(x, y)
        sizes = training_sizes(self.replicas.nets[0], samples, [1.0] * SHARDS)
        pieces = list(zip(split_tree(x, sizes), split_tree(y, sizes), strict=True))
        mine = [shard for shard in range(SHARDS) if sizes[shard] and self._is_mine(shard)]
        count = len(self.replicas.places)
        busy = [place for place in range(count) if mine[place::count]]
        buffers = [buffer.clone() for buffer in self.replicas.nets[0].buffers()]
        work = [partial(self._shards, loss_fn, place, mine[place::count], pieces, number) for place in busy]
        results = self._results(work, busy)
        found = {shard: result for one in results for shard, result in one.items()}
        self._set_buffers(found.get(0, (None, 0.0, [], buffers))[3])
        return self._sum(found, [shard for shard in range(SHARDS) if sizes[shard]], samples)

    def _results(self, work: Sequence[Callable[[], dict[int, Any]]], busy: Sequence[int]) -> list[dict[int, Any]]:
        """Run the shards of each device; where one draws that was not known to, all again, each from its own seed."""
        places = [self.replicas.places[place] for place in busy]
        gpus = sorted({place.torch_device.index or 0 for place in places if place.torch_device.type == "cuda"})
        before = [(buffer, buffer.clone()) for net in self.replicas.nets for buffer in net.buffers()]
        # Whoever draws outside of a step finds the generator where it was, whichever shard was the last to draw.
        with operator_cores(1), torch.random.fork_rng(devices=gpus):
            state, self._drew = generator_state(), False
            results = run_on(work, places)
            if self._draws:
                self._draws = self._drew
            elif not torch.equal(generator_state(), state):
                self._draws = True
                for buffer, value in before:
                    buffer.data.copy_(value)
                results = run_on(work, places)
        return results

    def _is_mine(self, shard: int) -> bool:
        return self.peers is None or shard % self.peers.world == self.peers.rank

    def _shards(
        self, loss_fn: Any, place: int, shards: Sequence[int], pieces: Sequence[Any], number: int
    ) -> dict[int, Any]:
        """Compute some shards on one device, one after the other."""
        net, device = self.replicas.nets[place], self.replicas.places[place]
        parameters = self.replicas.parameters[place]
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        before = [buffer.clone() for buffer in net.buffers()]
        found = {}
        for shard in shards:
            x, y = (moved(part, device.torch_device) for part in pieces[shard])
            for buffer, value in zip(net.buffers(), before, strict=True):
                buffer.data.copy_(value)
            cast = self.options.autocast
            with operator_cores(1), torch.enable_grad(), _drawing if self._draws else nullcontext():
                if self._draws:
                    torch.manual_seed((number * SHARDS + shard) * SEED_STEP % 2**63)
                    seeded = generator_state()
                with torch.autocast(device.kind, dtype=cast) if cast is not None else nullcontext():
                    loss, count = summed_loss(loss_fn, called(net, x), y)
                if self._draws and not torch.equal(generator_state(), seeded):
                    self._drew = True
            with operator_cores(1):
                gradients = torch.autograd.grad(loss, trained, allow_unused=True)
            kept = [buffer.clone() for buffer in net.buffers()]
            found[shard] = (list(gradients), float(count), loss.detach(), kept)
        return found

    def _sum(self, found: dict[int, Any], shards: Sequence[int], samples: int) -> Numbers:
        """Add up in the order of shards; those of other processes come from them, as they are."""
        own = [parameter for parameter in self.replicas.parameters[0] if parameter.requires_grad]
        home = self.replicas.places[0].torch_device
        loss, count = torch.zeros((), device=home), 0.0
        for shard in shards:
            gradients, number, part = self._brought(found.get(shard), own)
            for parameter, gradient in zip(own, gradients, strict=True):
                if gradient is None:
                    continue
                gradient = gradient.to(home)
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
            loss, count = loss + part.to(home), count + number
        return Numbers(loss, count, samples)

    def _brought(self, result: Any, own: Sequence[torch.Tensor]) -> tuple[Gradients, float, torch.Tensor]:
        """A shard's result, from whichever process computed it; a sum with zeros is exact."""
        if self.peers is None:
            return result[0], result[1], result[2]
        gradients: Gradients = result[0] if result is not None else [None] * len(own)
        head = [0.0, 0.0] if result is None else [result[1], float(result[2])]
        used = [float(gradient is not None) for gradient in gradients]
        numbers = self.peers.sum(torch.tensor([*head, *used], dtype=torch.float64)).tolist()
        there: Gradients = []
        for parameter, gradient, is_used in zip(own, gradients, numbers[2:], strict=True):
            whole = torch.zeros_like(parameter) if gradient is None else gradient.contiguous()
            there.append(self.peers.sum(whole.detach()) if is_used else None)
        return there, numbers[0], torch.tensor(numbers[1], dtype=torch.float32)

    def _set_buffers(self, values: Sequence[torch.Tensor]) -> None:
        for buffer, value in zip(self.replicas.nets[0].buffers(), values, strict=True):
            buffer.data.copy_(value)


class WholeStep:
    """Runs steps of `weft.step` for a trainer."""

    def __init__(self, net: torch.nn.Module, optimizer: torch.optim.Optimizer, options: Any) -> None:
        self._net, self._optimizer, self._options = net, optimizer, options
        self._loss_fn: Any = None
        self._step: Step | None = None

    def __call__(self, loss_fn: Any, x: Any, y: Any) -> torch.Tensor:
        """Train on a batch, and give its loss; one without samples changes nothing."""
        if not samples_of(x, y):
            return torch.zeros(())
        if self._step is None or loss_fn is not self._loss_fn:
            self._loss_fn = loss_fn
            clip_norm = self._options.clip_norm
            self._step = step(self._net, _mean_of(loss_fn), self._optimizer, clip_norm=clip_norm, whole=True)
            # What ran before must not decide how a step rounds: a run that goes on ends with the same bits.
            self._step.sizes_vary = False
        loss: torch.Tensor = self._step(*(x if isinstance(x, Fields) else (x,)), y)
        if self._options.scheduler is not None and self._options.scheduler_every == "step":
            self._options.scheduler.step()
        return loss


def whole_step(trainer: Any) -> WholeStep | None:
    """Make whole steps for a trainer where they are the same as its steps on devices; None where not."""
    options = trainer.options
    # Where nobody has said: on one device, and where no other option asks for steps that are not whole.
    by_default = (
        options.hybridize is None
        and len(trainer.devices) == 1
        and not (options.sync_batchnorm or options.memory or options.deterministic)
    )
    possible = (
        (options.hybridize or by_default)
        and trainer.peers is None
        and options.shares == "equal"
        and options.accumulate == 1
        and options.scaler is None
        and options.autocast is None
        and (len(trainer.devices) == 1 or all(place.kind == "cpu" for place in trainer.devices))
    )
    return WholeStep(trainer.net, trainer.optimizer, options) if possible else None


def _mean_of(loss_fn: Any) -> Any:
    def mean(answers: Any, y: Any) -> torch.Tensor:
        loss, count = summed_loss(loss_fn, answers, y)
        if reduction_of(loss_fn) == "sum":
            return loss
        if isinstance(count, torch.Tensor):
            return loss / torch.where(count == 0, 1, count)
        return loss / (count or 1.0)

    return mean
