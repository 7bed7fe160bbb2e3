"""Train a module on devices so that each step gives what one device would."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from weft.api.hybridize import hybridize
from weft.document.blocks import Document, facts
from weft.document.html import notebook
from weft.errors import UnsupportedError, UsageError, counted, named
from weft.trace.interception.modes import note_step
from weft.trace.interception.refusals import refuse_unmaterialised, unmaterialised
from weft.tracebacks import shows_less
from weft.train.checkpoints.checkpoint import Checkpoints
from weft.train.checkpoints.content import random_states_text, set_random_states_text
from weft.train.devices.choose_devices import devices_of_rank
from weft.train.devices.replicas import GradientBuckets, Replicas
from weft.train.devices.shares import (
    MeasuredShares,
    MemoryLimits,
    pair_of,
    resolved_shares,
    samples_of,
    split_sizes,
    split_tree,
    training_sizes,
)
from weft.train.evaluate import Evaluation, predict
from weft.train.gradients import DeviceWork, LogicalShards, Numbers, WholeStep, whole_step
from weft.train.history import EpochSums, FitProgress, History, line_of
from weft.train.prefetch import Prefetched
from weft.train.processes.peers import Peers, find_peers
from weft.train.summed_loss import reduction_of
from weft.train.trainer_options import check_trainable, options_of

Batch = Sequence[Any]  # fields, of which the last is the target
Pair = tuple[Any, Any]  # what the module is given, and the target
MOST_NAMED = 4  # devices in the text of a trainer
logger = logging.getLogger("weft")


class Trainer:
    """Trains a module on one or many devices: `trainer.step(x, y)`, `trainer.fit(train, test, epochs=4)`.

    By default it trains where the module lies, by whole programs; `devices` are names, a number of them, or "all".

    The gradient is the sum of all devices' summed losses, divided once by the global count: over devices and processes,
    whatever their shares, and over `accumulate` batches. A batch is always the global one. `loss_fn` gives a mean over
    samples, or a pair of a sum and a count. Options: see `TrainerOptions`. Batch norm takes its running statistics from
    the first device's part of the batch, and dropout draws on each device.

    Under `torchrun`, or `weft train --processes`, each process takes its share of every batch.
    """

    @shows_less
    def __init__(
        self, net: nn.Module, optimizer: torch.optim.Optimizer, loss_fn: Any, devices: Any = None, **options: Any
    ) -> None:
        self.net = net
        self.optimizer = optimizer
        self.loss_fn = loss_fn
        self.options = options_of(options)
        check_trainable(net, optimizer, loss_fn)
        self.peers = find_peers()
        self.devices = places = devices_of_rank(devices, net, self.peers)
        self._summed = reduction_of(loss_fn) == "sum"  # then the gradient is that of the sum, as PyTorch's
        self.measured: MeasuredShares | None = None
        if self.options.shares == "measured":
            self.measured = MeasuredShares(len(places), [*map(str, places)], steady=bool(self.options.hybridize))
        self._shares = [1.0] * len(places) if self.measured else resolved_shares(places, self.options.shares)
        ask = self.measured is not None and not self.options.hybridize
        self._limits = MemoryLimits(places, self.options.memory, ask=ask)
        self._prepare(whole_step(self))
        self.steps = 0  # updates of the parameters
        self.epoch = 0
        self.history = History()
        self._data: Prefetched | None = None  # what `fit` goes through, or went through last
        self._so_far = EpochSums()  # of the epoch that is under way
        self._waiting = 0  # batches since the last update
        self._count = 0.0  # samples in them
        self._stopped: str | None = None
        self._ending = False  # some process was asked to stop, and all know
        self._last_step = math.inf
        if self.peers is not None:
            self.peers.patience = self.options.patience
            self.peers.enter(0, "starting")  # so that a rank which is killed at once has said a line of the user's
            self._same_everywhere([*net.parameters(), *net.buffers()])

    def _prepare(self, whole: WholeStep | None) -> None:
        """Get ready to train by whole steps; without them, on a replica for each device."""
        self._whole, net, places = whole, self.net, self.devices
        if whole is None and any(map(unmaterialised, net.parameters())):
            raise refuse_unmaterialised(type(net).__name__)  # each device has a copy from the start
        prepared = bool(self.options.hybridize) and whole is None
        self.replicas = Replicas(net, places if whole is None else places[:1], hybridize if prepared else _as_is)
        self._work = DeviceWork(self.replicas, self.options, self.measured, self.peers)
        self._shards = LogicalShards(self.replicas, self.options, self.peers) if self.options.deterministic else None
        # Sums of batch norm and of buckets would reach the processes in different orders.
        overlap = self.options.overlap and not (prepared or self.options.sync_batchnorm or self.options.deterministic)
        self._sums = GradientBuckets(self.replicas, None if self._shards else self.peers, overlap=overlap)

    def __repr__(self) -> str:
        *names, where, way, done = self._facts()
        return f"weft.Trainer({', '.join(names)}, on {where}, by {way} steps: {done} done)"

    def _repr_html_(self) -> str:
        """Show it in a notebook: what trains where and how, and the epochs so far."""
        names = ("model", "optimizer", "loss", "devices", "steps", "done")
        blocks = self.history.document().blocks if self.history else ()
        return notebook(Document((facts(zip(names, self._facts(), strict=True)), *blocks)))

    def _facts(self) -> tuple[str, ...]:
        names = (type(self.net).__name__, type(self.optimizer).__name__, _name_of(self.loss_fn))
        where = ", ".join(map(str, self.devices[:MOST_NAMED])) + (", ..." if len(self.devices) > MOST_NAMED else "")
        way = "whole" if self._whole is not None else "imperative"
        return *names, where, way, f"{counted(self.epoch, 'epoch')} and {counted(self.steps, 'step')}"

    @property
    def shares(self) -> Sequence[float]:
        """The share of each device in the next batch; with "measured", by its speed on this model so far."""
        return self._shares if self.measured is None else self.measured.shares()

    def stop(self, why: str = "it was asked to") -> None:
        """End `fit` after this batch, on all processes."""
        self._stopped = why

    @shows_less
    def step(self, *batch: Any) -> torch.Tensor:
        """Train on one global batch, `step(x, y)`, and give its loss; every `accumulate` batches, parameters change.

        Of more than two fields the last is the target, and the module is called with all others.
        """
        x, y = pair_of(batch)
        if self._whole is not None:
            self.replicas.check()
            try:
                loss = self._whole(self.loss_fn, x, y)
            except UnsupportedError as error:
                if self.options.hybridize:  # asked for, not only the default
                    raise
                logger.warning("weft: training goes on without whole programs, imperatively: %s", error)
                self._prepare(None)
            else:
                self.steps += 1
                return loss
        loss, _ = self._round((x, y))
        return loss

    def _round(self, batch: Pair | None) -> tuple[torch.Tensor, bool]:
        """Train on a batch, or help the other processes with theirs; tells whether any process had one."""
        last = self._waiting + 1 == self.options.accumulate
        with self._guarded():
            try:
                numbers = self._gradients(batch, collect=last)
                if last:
                    self._sums.finish()
                loss, count, there = self._totals(numbers, there=batch is not None)
            except BaseException:
                self._forget()  # some devices have gradients of this batch, others have not
                raise
            if there:
                self._count += count
                self._waiting += 1
            if last and self._waiting:
                self._update()
            elif last:
                self._forget()  # zeros were summed, as no process had a batch
        return loss / count if count and not self._summed else loss, there

    def _gradients(self, batch: Pair | None, *, collect: bool) -> Numbers:
        if self.peers is not None:
            self.peers.enter(self.steps + 1)
        busy: list[tuple[int, Any, Any]] = []
        if batch is not None:
            self.replicas.match()
        if self._shards is not None:
            self._sums.begin([], collect=collect)
            number = self.steps * self.options.accumulate + self._waiting
            return Numbers() if batch is None else self._shards.run(self.loss_fn, *batch, number)
        if batch is not None:
            x, y = self._own_part(batch)
            limited = self._limits.any and samples_of(x, y)
            shares = self._limits.sizes(self.net, x, self.shares) if limited else self.shares
            busy = self._work.pieces(x, y, shares)
        self._sums.begin([index for index, _, _ in busy], collect=collect)
        start = time.perf_counter()
        numbers = self._work.run(self.loss_fn, busy)
        if self.measured is not None:
            self.measured.end_of_step(numbers.samples, time.perf_counter() - start)
        return numbers

    def _own_part(self, batch: Pair) -> Pair:
        """This process's part of a global batch."""
        if self.peers is None or self.options.batches == "local":
            return batch
        x, y = batch
        count, even = samples_of(x, y), [1.0] * self.peers.world
        sizes = split_sizes(count, even) if self.options.sync_batchnorm else training_sizes(self.net, count, even)
        return split_tree(x, sizes)[self.peers.rank], split_tree(y, sizes)[self.peers.rank]

    def _totals(self, numbers: Numbers, *, there: bool) -> tuple[torch.Tensor, float, bool]:
        """Sum loss and count over all processes; also whether any has a batch, and whether any wants to stop."""
        if self.peers is None:
            return torch.as_tensor(numbers.loss, device=self.devices[0].torch_device), numbers.count, there
        if self._shards is not None and self.peers.rank:
            numbers = Numbers()  # rank 0 brings the sums of all shards
        own = [float(numbers.loss), numbers.count, float(there), float(self._stopped is not None)]
        loss, count, batches, stops = self.peers.sum(torch.tensor(own, dtype=torch.float64)).tolist()
        self._ending = bool(stops)
        self.peers.enter(self.steps + 1, "between steps")
        return torch.tensor(loss, dtype=torch.float32, device=self.devices[0].torch_device), count, bool(batches)

    def _update(self) -> None:
        parameters = [one for one in self.replicas.parameters[0] if one.grad is not None]
        for parameter in parameters:
            if self._count and not self._summed:
                parameter.grad.div_(self._count)  # type: ignore[union-attr]
        scaler = self.options.scaler
        if scaler is not None and self.options.clip_norm is not None:
            scaler.unscale_(self.optimizer)
        if self.options.clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, self.options.clip_norm)
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        if self.options.scheduler is not None and self.options.scheduler_every == "step":
            self.options.scheduler.step()
        self._forget()
        self.steps += 1

    def _flush(self) -> None:
        """Make an update of what is accumulated at an epoch's end."""
        if self._waiting:
            with self._guarded():
                self._sums.begin([], collect=True)
                self._sums.finish()
                self._update()

    def _forget(self) -> None:
        """Begin anew to accumulate."""
        self._sums.forget()
        for net in self.replicas.nets:
            net.zero_grad()
        self._waiting, self._count = 0, 0.0

    @shows_less
    def fit(  # noqa: PLR0913 - what a run may be told, by keyword
        self,
        train: Iterable[Batch],
        test: Iterable[Batch] | None = None,
        *,
        epochs: int | None = None,
        max_steps: int | None = None,
        test_every: int | None = None,
        resume: str | None = None,
        say: Callable[[str], None] = print,
    ) -> History:
        """Train for so many epochs or steps in all, and give the history: loss, seconds, and the figures of `test`.

        Without a number it is one epoch. `test` is measured after each epoch, and also every so many steps in it. With
        `checkpoints`, each epoch is saved; `resume="auto"` goes on from the newest one, if there is one.
        """
        if resume not in (None, "auto"):
            raise UsageError(f"resume={resume!r}", fix='resume="auto", or trainer.load(checkpoints) before')
        _check_counts(epochs=epochs, max_steps=max_steps, test_every=test_every)
        _check_data(train)
        if test is not None:
            _check_data(test)
        if test_every is not None and test is None:
            raise UsageError("test_every without data to test on", fix="trainer.fit(train, test, test_every=100)")
        last_epoch = epochs if epochs is not None else math.inf if max_steps is not None else 1
        self._last_step = math.inf if max_steps is None else max_steps
        checkpoints = self.options.checkpoints
        with self._guarded(), self._called_back():
            self._begin()
            if resume == "auto" and checkpoints is not None and checkpoints.latest() is not None:
                self.load(checkpoints, train)
            data = self._data = self._going_through(train)
            speaks = say if self.peers is None or self.peers.rank == 0 else None
            if speaks is not None and (self.epoch >= last_epoch or self.steps >= self._last_step):
                speaks(f"nothing to train: {self._facts()[-1]} are done already, and fit trains so many in all")
            inside = _TestInside(test, test_every, speaks) if test is not None and test_every is not None else None
            while self.epoch < last_epoch and self.steps < self._last_step and self._stopped is None:
                row = self._epoch(data, test, speaks, inside)
                if speaks is not None:
                    speaks(line_of(row))
                if checkpoints is not None:
                    self.save(checkpoints, train)
            if self._stopped is not None and speaks is not None:
                speaks(f"training ends after epoch {self.epoch}: {self._stopped}")
        return self.history

    def _going_through(self, train: Iterable[Batch]) -> Prefetched:
        """The batches of `fit`; what an epoch has come to counts only where the data itself stands in that epoch."""
        if self._data is None or self._data.data is not train or not hasattr(train, "state_dict"):
            self._so_far = EpochSums()
        return Prefetched(train, self.options.prefetch)

    def _begin(self) -> None:
        self._stopped = None  # what ended an earlier call does not end this one
        if self.options.checkpoints is not None and (self.peers is None or self.peers.rank == 0):
            self.options.checkpoints.make_folder()

    @contextmanager
    def _called_back(self) -> Iterator[None]:
        """Tell callbacks that training begins, and that it ends, however it ends."""
        self._call("at_start")
        try:
            yield
        finally:
            self._call("at_end")

    def _call(self, name: str, *arguments: Any) -> None:
        for callback in self.options.callbacks:
            answers = getattr(callback, name, None)  # callbacks of before may not have all
            if answers is not None:
                answers(self, *arguments)

    def _epoch(
        self,
        data: Prefetched,
        test: Iterable[Batch] | None,
        say: Callable[[str], None] | None,
        inside: _TestInside | None,
    ) -> dict[str, float]:
        start = time.perf_counter()
        self.net.train()
        row = {"epoch": self.epoch + 1, "loss": self._train_epoch(data, say, inside)}
        self.epoch += 1
        row["seconds"] = time.perf_counter() - start
        if test is not None:
            row |= self._tested(test)
        self.history.append(row)
        if self.options.scheduler is not None and self.options.scheduler_every == "epoch":
            _step_epoch(self.options.scheduler, row)
        self._call("after_epoch", row)  # last: what they save is all that the epoch has changed
        if self.peers is not None and self.peers.sum(torch.tensor(float(self._stopped is not None))):
            self._stopped = self._stopped or "another process was asked to"
        return row

    def _train_epoch(self, data: Prefetched, say: Callable[[str], None] | None, inside: _TestInside | None) -> float:
        """Give the mean loss over the epoch; what is accumulated at its end is an update too."""
        so_far = self._so_far
        progress = FitProgress(self.epoch + 1, data.total, say, so_far.batches)
        over = so_far.batches and so_far.batches == data.total  # saved after the last batch: the epoch is to be ended
        for loss, samples in self._losses(Prefetched((), 0) if over else data):
            so_far.add(loss / samples if self._summed and samples else loss, samples)
            self._call("after_step", loss)
            progress.after_batch(so_far.batches, loss)
            if inside is not None and self.steps % inside.every == 0 and not self._waiting:
                progress.end()
                self._test_inside(inside)
            if self.steps >= self._last_step or (self._stopped is not None and self.peers is None):
                break
        self._flush()
        progress.end()
        if not so_far.batches and self._stopped is None and not self._ending:
            raise data.without_batches(self.epoch + 1)
        self._so_far = EpochSums()
        return so_far.mean()

    def _losses(self, data: Prefetched) -> Iterator[tuple[torch.Tensor, int]]:
        """Train on all batches; a process that has no more goes on with none, until no process has one."""
        with closing(iter(data)) as batches:  # also after an error, whose traceback holds them: they stop at once
            for batch in batches:
                x, y = pair_of(batch)
                if self.peers is None:
                    yield self.step(*batch), samples_of(x, y)
                    continue
                loss, _ = self._round((x, y))
                yield loss, samples_of(x, y)
                if self._ending:
                    return
        while self.peers is not None:
            loss, there = self._round(None)
            if not there or self._ending:
                return
            yield loss, 0

    def _tested(self, test: Iterable[Batch]) -> dict[str, float]:
        """Give the figures of the data to test on."""
        if self.peers is not None:
            self._same_everywhere(list(self.net.buffers()))
            self.peers.enter(self.steps, "evaluating")
        return Evaluation(self.net, self.devices, self.loss_fn, self.options.metrics, self.peers).of(test)

    def _test_inside(self, inside: _TestInside) -> None:
        """Measure the data to test on in the middle of an epoch."""
        figures = {"step": float(self.steps), **self._tested(inside.test)}
        if inside.say is not None:
            inside.say(line_of(figures))
        self._call("after_test", figures)

    @shows_less
    def predict(self, batches: Iterable[Any]) -> Any:
        """Give the module's answers to all batches, put together on the CPU; `weft.predict` says what a batch is."""
        return predict(self.net, batches)

    @shows_less
    def save(self, checkpoints: Checkpoints | None = None, data: Any = None) -> None:
        """Save the module, and all that training needs to go on; between updates only. Rank 0 writes.

        Into the trainer's own `checkpoints` unless others are given, with the place of `fit` in its data.
        """
        target = self._own(checkpoints)
        if self._waiting:
            raise UsageError(
                f"{self._waiting} of {self.options.accumulate} batches are accumulated",
                why="their gradients are not part of a checkpoint",
                fix="save after an update",
            )
        states: list[str] = []
        if self.peers is not None:
            self.peers.enter(self.steps, "saving")
            states = [text.decode() for text in self.peers.gather(random_states_text().encode())]
        if self.peers is None or self.peers.rank == 0:
            parts = {**self._parts(self._standing(data)), "epoch": self.epoch, "within": self._so_far.state()}
            target.save(self.net, self.steps, **parts, history=list(self.history), ranks=states)
        if self.peers is not None:
            self.peers.enter(self.steps, "between steps")

    @shows_less
    def load(self, checkpoints: Checkpoints | None = None, data: Any = None) -> None:
        """Go on from the newest good checkpoint, the trainer's own unless others are given, and in `data` if given."""
        parts = self._parts(data)
        found = self._own(checkpoints).load(self.net, **parts)
        self.steps, self.epoch, self.history = found["step"], found["epoch"], History(found["history"])
        self._data = None if data is None else Prefetched(data, self.options.prefetch)
        self._so_far = EpochSums.of(found.parts.get("within", ())) if "data" in parts else EpochSums()
        if self.steps:
            note_step(self.optimizer)  # in another process: a schedule that is stepped first is right to be
        if self.peers is not None:
            self._take_random_states(found["ranks"], self.peers)

    @staticmethod
    def _take_random_states(texts: Sequence[str], peers: Peers) -> None:
        """Put the generators of this rank into its state; of another number of ranks, each gets a seed of its own."""
        if len(texts) == peers.world:
            set_random_states_text(texts[peers.rank])
        elif peers.rank:
            torch.manual_seed(torch.initial_seed() + peers.rank)

    def _own(self, checkpoints: Checkpoints | None) -> Checkpoints:
        found = checkpoints if checkpoints is not None else self.options.checkpoints
        if found is None:
            raise UsageError(
                "this trainer has no checkpoints",
                fix='weft.Trainer(..., checkpoints=weft.Checkpoints("runs")), or name them in this call',
            )
        return found

    def _standing(self, data: Any) -> Any:
        """Data that says where training stands in it: what is made ahead of training has gone further."""
        if self._data is None or (data is not None and data is not self._data.data):
            return data
        if hasattr(self._data.data, "state_dict"):
            return self._data
        if self._so_far.batches:
            logger.warning(
                "weft: saved in the middle of an epoch of data that does not say where it stands (a %s): "
                "who goes on from there begins that epoch anew",
                type(self._data.data).__name__,
            )
        return None

    def _parts(self, data: Any) -> dict[str, Any]:
        parts = {
            "optimizer": self.optimizer,
            "scheduler": self.options.scheduler,
            "scaler": self.options.scaler,
            "data": data,
            **{f"callback{index}": callback for index, callback in enumerate(self.options.callbacks)},
        }
        return {name: part for name, part in parts.items() if hasattr(part, "state_dict")}

    def _same_everywhere(self, tensors: Sequence[torch.Tensor]) -> None:
        if self.peers is not None:
            self.peers.send_all([tensor.data for tensor in tensors])

    def _guarded(self) -> AbstractContextManager[None]:
        return nullcontext() if self.peers is None else self.peers.guard()


@dataclass(frozen=True, slots=True)
class _TestInside:
    """What is tested in the middle of epochs, after how many steps each time, and who is told."""

    test: Iterable[Batch]
    every: int
    say: Callable[[str], None] | None


def _check_counts(**counts: Any) -> None:
    for name, count in counts.items():
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            raise UsageError(f"{name}={count!r}", fix=f"{name}=10, a whole number, at least 1")


def _check_data(data: Any) -> None:
    if not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
        raise UsageError(
            f"{named(data)} gives no batches",
            why="a trainer goes through its data once an epoch, batch by batch",
            fix="give a DataLoader, or a list of (x, y)",
        )


def _name_of(thing: Any) -> str:
    return getattr(thing, "__name__", type(thing).__name__)


def _as_is(net: nn.Module) -> nn.Module:
    return net


def _step_epoch(scheduler: Any, row: dict[str, float]) -> None:
    """Step a schedule of epochs; one that waits for a plateau looks at the loss."""
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        scheduler.step(row["loss"])
    else:
        scheduler.step()
