"""Compute each batch of a module on several devices, as a single operator of autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.autograd.function import FunctionCtx

from weft.api.hybridize import hybridize as hybridize_module
from weft.errors import UnsupportedError, UsageError, named
from weft.trace.interception.capture import traced_elsewhere
from weft.trace.interception.modes import graph_is_retained
from weft.trace.interception.refusals import refuse_unmaterialised, unmaterialised
from weft.tracebacks import shows_less
from weft.train.devices.choose_devices import find_devices
from weft.train.devices.replicas import Replicas
from weft.train.devices.shares import Shares, resolved_shares, training_sizes
from weft.train.devices.threads import run_on

PLAIN = (type(None), bool, str)  # a number may be of a part, as a count of samples is
A_TENSOR = object()  # stands where a result has one
ONE_STRUCTURE = "give the same lists, tuples and dictionaries for every part of a batch"
GATHERED = (
    "give tensors, lists, tuples and dictionaries of them, and plain values that every part of a batch has in common"
)


class DataParallel(nn.Module):
    """The chapter's one line: `net = weft.DataParallel(net)`; the rest of the loop stays as it is.

    A batch is split along its first dimension over the devices ("all", a list of names, or `device_ids=[0, 3]` for
    GPUs), and so is the backward. Parameters, gradients and state are those of `net.module`. Checkpoints of `weft.save`
    have its names, without the wrapper. With `hybridize=True` each device runs whole programs.
    """

    @shows_less
    def __init__(
        self,
        net: nn.Module,
        devices: Any = "all",
        *,
        device_ids: Sequence[Any] | None = None,
        shares: Shares = "equal",
        hybridize: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(net, nn.Module):
            raise UsageError(f"DataParallel takes a module, not {named(net)}", fix="weft.DataParallel(net)")
        if device_ids is not None:
            devices = [f"cuda:{item}" if isinstance(item, int) else item for item in device_ids]
        self.devices = find_devices(devices)
        self.shares = resolved_shares(self.devices, shares)
        self.module = net
        if any(map(unmaterialised, net.parameters())):
            raise refuse_unmaterialised(type(net).__name__)  # each device has a copy from the start
        self.replicas = Replicas(net, self.devices, hybridize_module if hybridize else _as_it_is)

    @shows_less
    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """Compute each device's part of the batch, and put the parts together on the first device."""
        leaves, structure = pytree.tree_flatten((arguments, keywords))
        if traced_elsewhere(leaves):
            self._check_traceable()
            return self.module(*arguments, **keywords)
        sizes = training_sizes(self.module, _batch_size(leaves), self.shares)
        if len(self.devices) == 1 or max(sizes) == sum(sizes):
            return self.module(*arguments, **keywords)
        self.replicas.match()
        job = _Job(self.replicas, leaves, structure, sizes)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if torch.is_grad_enabled():
            results = _Parallel.apply(job, *tensors, *self.replicas.parameters[0])  # type: ignore[no-untyped-call]
        else:
            results = job.forward()
        return job.rebuilt(results)

    def _check_traceable(self) -> None:
        """A program computes on one device: virtual ones share theirs, and it uses all of its cores by itself."""
        if any(place.kind != "cpu" for place in self.devices):
            raise UnsupportedError(
                f"a weft.DataParallel on {', '.join(map(str, self.devices))} is traced",
                why="a program computes on one device",
                fix="weft.DataParallel(net, hybridize=True) has each device run whole programs; or trace net.module",
            )


def _as_it_is(net: nn.Module) -> nn.Module:
    return net


def _batch_size(leaves: Sequence[Any]) -> int:
    """How many samples the first tensor with a dimension holds."""
    found = next((leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.ndim), None)
    if found is None:
        raise UsageError("there is no batch to split", why="no argument is a tensor with a dimension")
    return len(found)


@dataclass
class _Job:
    """One forward, and what its backward needs."""

    replicas: Replicas
    leaves: list[Any]
    structure: pytree.TreeSpec
    sizes: list[int]
    inputs: list[list[torch.Tensor]] = field(default_factory=list)  # of each device that computes
    outputs: list[list[torch.Tensor]] = field(default_factory=list)
    result: Any = None  # its structure
    plain: list[Any] = field(default_factory=list)  # its leaves, A_TENSOR for each that is one

    def __post_init__(self) -> None:
        self.busy = [index for index, size in enumerate(self.sizes) if size]
        self.places = [self.replicas.places[index] for index in self.busy]

    def forward(self) -> list[torch.Tensor]:
        """Compute on all devices; gives the gathered results."""
        work = [partial(self._compute, index, torch.is_grad_enabled()) for index in self.busy]
        answers = run_on(work, self.places)
        self.inputs = [inputs for inputs, _ in answers]
        flat = [pytree.tree_flatten(answer) for _, answer in answers]
        self.result = flat[0][1]
        if any(structure != self.result for _, structure in flat):
            raise UsageError("a module gave results of different structures on several devices", fix=ONE_STRUCTURE)
        self.outputs = [[leaf for leaf in leaves if isinstance(leaf, torch.Tensor)] for leaves, _ in flat]
        self.plain = [_plain(leaves) for leaves in zip(*(leaves for leaves, _ in flat), strict=True)]
        return [self._gathered(parts) for parts in zip(*self.outputs, strict=True)]

    def rebuilt(self, results: Sequence[torch.Tensor]) -> Any:
        """Give the module's result, made of gathered tensors."""
        tensors = iter(results)
        leaves = [next(tensors) if leaf is A_TENSOR else leaf for leaf in self.plain]
        return pytree.tree_unflatten(leaves, self.result)

    def _compute(self, index: int, grad: bool) -> tuple[list[torch.Tensor], Any]:
        device = self.replicas.places[index].torch_device
        start = sum(self.sizes[:index])
        given: list[Any] = []
        inputs: list[torch.Tensor] = []
        for leaf in self.leaves:
            if isinstance(leaf, torch.Tensor):
                part = leaf[start : start + self.sizes[index]] if self._is_split(leaf) else leaf
                inputs.append(part.detach().to(device).requires_grad_(grad and leaf.requires_grad))
            given.append(inputs[-1] if isinstance(leaf, torch.Tensor) else leaf)
        arguments, keywords = pytree.tree_unflatten(given, self.structure)
        return inputs, self.replicas.nets[index](*arguments, **keywords)

    def _is_split(self, tensor: torch.Tensor) -> bool:
        return bool(tensor.ndim) and len(tensor) == sum(self.sizes)

    def _gathered(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Put results together; numbers, such as a loss of each device, become a list of them."""
        home = self.replicas.places[0].torch_device
        return torch.cat([(part if part.ndim else part[None]).to(home) for part in parts])

    def backward(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Give the gradients of the tensors among the arguments, and of the module's parameters."""
        retained = graph_is_retained()
        work = [partial(self._differentiate, position, gradients, retained) for position in range(len(self.busy))]
        found = run_on(work, self.places)
        tensors = [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]
        home = self.replicas.places[0].torch_device
        given = [
            self._joined([part[index] for part in found], tensor, tensor.device) for index, tensor in enumerate(tensors)
        ]
        parameters = range(len(tensors), len(found[0]))
        return given + [_summed([part[index] for part in found], home) for index in parameters]

    def _differentiate(
        self, position: int, gradients: Sequence[torch.Tensor], retained: bool
    ) -> list[torch.Tensor | None]:
        """Differentiate what one device computed."""
        before = [0] * len(gradients)
        for earlier in self.outputs[:position]:
            before = [start + _length(output) for start, output in zip(before, earlier, strict=True)]
        outputs, incoming = [], []
        for output, gradient, start in zip(self.outputs[position], gradients, before, strict=True):
            if output.requires_grad:
                part = gradient[start : start + len(output)] if output.ndim else gradient[start]
                outputs.append(output)
                incoming.append(part.to(output.device))
        wanted = [*self.inputs[position], *self.replicas.parameters[self.busy[position]]]
        asked = [index for index, tensor in enumerate(wanted) if tensor.requires_grad]
        found = torch.autograd.grad(
            outputs, [wanted[index] for index in asked], incoming, retain_graph=retained, allow_unused=True
        )
        result: list[torch.Tensor | None] = [None] * len(wanted)
        for index, gradient_found in zip(asked, found, strict=True):
            result[index] = gradient_found
        return result

    def _joined(
        self, parts: Sequence[torch.Tensor | None], tensor: torch.Tensor, device: torch.device
    ) -> torch.Tensor | None:
        """The gradient of an argument: pieces side by side if it was split, else their sum."""
        if not self._is_split(tensor):
            return _summed(parts, device)
        if all(part is None for part in parts):
            return None
        sizes = [self.sizes[index] for index in self.busy]
        pieces = [
            torch.zeros_like(tensor[:size]) if part is None else part.to(device)
            for part, size in zip(parts, sizes, strict=True)
        ]
        return torch.cat(pieces)


def _plain(leaves: Sequence[Any]) -> Any:
    """What all devices gave at one place: a tensor each, or one plain value."""
    first = leaves[0]
    if all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return A_TENSOR
    if isinstance(first, PLAIN) and all(type(leaf) is type(first) and leaf == first for leaf in leaves):
        return first
    told = ", ".join(repr(leaf) if isinstance(leaf, (*PLAIN, int)) else f"a {type(leaf).__name__}" for leaf in leaves)
    raise UsageError(f"a module on several devices gave {told}", why="parts are put together row by row", fix=GATHERED)


def _length(output: torch.Tensor) -> int:
    return len(output) if output.ndim else 1


def _summed(parts: Sequence[torch.Tensor | None], device: torch.device) -> torch.Tensor | None:
    there = [part.to(device) for part in parts if part is not None]
    return sum(there[1:], start=there[0]) if there else None


class _Parallel(torch.autograd.Function):
    """The node that autograd sees: one operator of the arguments and the module's parameters."""

    @staticmethod
    def forward(ctx: Any, job: _Job, *_tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.job = job
        with torch.enable_grad():
            results = job.forward()
        return tuple(result.detach() for result in results)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise UnsupportedError(
                "a gradient through a weft.DataParallel is to be differentiated again",
                why="its backward is one operator, and that has no backward of its own",
                fix="compute what needs create_graph=True with net.module, on the first device",
            )
        job: _Job = ctx.job  # type: ignore[attr-defined]
        return (None, *job.backward(gradients))
