"""Restore a model and the other parts of training from a checkpoint: all of them, or none.

What restoring writes into is kept as a copy before, what it replaces is only remembered.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from weft.errors import CheckpointError, UsageError
from weft.interrupts import interrupts_after
from weft.train.checkpoints.content import Checkpoint
from weft.train.checkpoints.names import MatchReport, canonical_names, match, mismatch
from weft.train.checkpoints.states import is_numbered, numbered_state, random_states, same_numbers, set_random_states
from weft.train.checkpoints.tensor_file import file_error, to_blocks
from weft.train.checkpoints.values import MEANINGLESS

PutBack = Callable[[], object]


def kept_module(module: nn.Module) -> PutBack:
    """Keep a module: its tensors and their values, its children, its attributes and its extra state."""
    parts = list(module.modules())
    tables = [vars(part) for part in parts]
    tables += [table for part in parts for table in (part._parameters, part._buffers, part._modules)]
    before = [(table, dict(table)) for table in tables]
    extra = [(part, copied(part.get_extra_state())) for part in parts if _has_extra_state(part)]
    values = [_kept_tensor(tensor) for tensor in (*module.parameters(), *module.buffers())]

    def put_back() -> None:
        _put_back(before)
        for value in values:
            value()
        for part, state in extra:
            part.set_extra_state(state)

    return put_back


def kept_optimizer(optimizer: torch.optim.Optimizer) -> PutBack:
    """Keep an optimizer: restoring gives it another table of state and other groups, and leaves those it had."""
    tables: list[dict[Any, Any]] = [vars(optimizer), optimizer.state, *optimizer.state.values()]
    before = [(table, dict(table)) for table in [*tables, *optimizer.param_groups]]
    groups, content = optimizer.param_groups, list(optimizer.param_groups)

    def put_back() -> None:
        _put_back(before)
        groups[:] = content

    return put_back


def kept_object(part: Any) -> PutBack:
    """Keep anything that gives and takes a state: its attributes, and a copy of its state for what lies deeper."""
    attributes: dict[str, Any] = getattr(part, "__dict__", {})
    tables = [attributes, *(value for value in attributes.values() if type(value) is dict)]
    before = [(table, dict(table)) for table in tables]
    lists = [(value, list(value)) for value in attributes.values() if type(value) is list]
    try:
        state, gave = copied(part.state_dict()), True
    except MEANINGLESS:  # it has none before it is given one
        state, gave = None, False

    def put_back() -> None:
        try:
            if gave:
                part.load_state_dict(state)
        finally:
            _put_back(before)
            for held, content in lists:
                held[:] = content

    return put_back


def kept_generator(generator: torch.Generator) -> PutBack:
    """Keep a generator of random numbers."""
    state = generator.get_state()
    return lambda: generator.set_state(state)


def kept_random_states() -> PutBack:
    """Keep the generators of this process."""
    states = random_states()
    return lambda: set_random_states(states)


def copied(value: Any) -> Any:
    """Copy a state: tensors, which may be in a graph, by their values."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) is dict:
        return {key: copied(item) for key, item in value.items()}
    return copy.deepcopy(value)


def _put_back(before: list[tuple[dict[Any, Any], dict[Any, Any]]]) -> None:
    for held, content in before:
        if held.keys() != content.keys() or any(held[key] is not value for key, value in content.items()):
            held.clear()
            held.update(content)


def _kept_tensor(tensor: torch.Tensor) -> PutBack:
    kind = type(tensor)
    if is_lazy(tensor):

        def without_size() -> None:
            if type(tensor) is not kind:
                tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
                tensor.__class__ = kind  # type: ignore[assignment]  # as PyTorch does in the other direction

        return without_size
    data, value = tensor.data, tensor.detach().clone()

    def put_back() -> None:
        with torch.no_grad():
            if not _equal(data, value):
                data.copy_(value)
            if tensor.shape != data.shape or tensor.data_ptr() != data.data_ptr():
                tensor.data = data

    return put_back


def _equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized and torch.equal(tensor, other)


def _has_extra_state(module: nn.Module) -> bool:
    return type(module).get_extra_state is not nn.Module.get_extra_state


@dataclass(frozen=True)
class Restore:
    """What of a checkpoint is wanted, besides the model: see `load`."""

    random: bool | None = None
    partial: bool = False
    parts: Mapping[str, Any] = field(default_factory=dict)


def apply(found: Checkpoint, net: nn.Module | None, wanted: Restore) -> Checkpoint:
    """Put a checkpoint into a model and the other objects: all is prepared before anything changes."""
    steps: list[RestoreStep] = []
    report, state = None, None
    if net is not None:
        if not isinstance(net, nn.Module):
            raise UsageError(
                f"load takes a module, not {type(net).__name__}", fix="weft.load(path, net, optimizer=...)"
            )
        state, report = _model_state(found, net, wanted.partial)
    for name, part in wanted.parts.items():
        steps.append(_restore(found, name, part, net))
    restore_random = bool(wanted.parts) if wanted.random is None else wanted.random
    if restore_random and found.random is not None:
        states = found.random
        steps.append(RestoreStep(lambda: set_random_states(states), kept_random_states))
    elif wanted.random:
        raise file_error(found.path, "it holds no random states", fix="save it with random=True")
    if net is not None and state is not None:
        model = net
        # Last: it is the largest, and what refuses its state does so before the model is touched.
        steps.append(_module_step(model, state, strict=not wanted.partial))
    _take(found, steps)
    return replace(found, report=report)


@dataclass(frozen=True, slots=True)
class RestoreStep:
    """What restores a part, and what keeps it as it is: that gives the function which puts it back."""

    restore: Callable[[], object]
    keep: Callable[[], PutBack]


def _take(found: Checkpoint, steps: Sequence[RestoreStep]) -> None:
    """Take all steps, or none: where a part refuses its state, or Ctrl-C comes between, all is put back."""
    kept = [step.keep() for step in steps]
    with interrupts_after() as interrupts:
        try:
            for step in steps:
                with interrupts.cut_short():
                    step.restore()
        except BaseException as error:
            problems = [str(problem) for put_back in reversed(kept) if (problem := _problem_of(put_back)) is not None]
            if not isinstance(error, MEANINGLESS) or isinstance(error, CheckpointError):
                raise
            outcome = (
                "; ".join(["a part refuses what it had before, too", *problems]) if problems else "all is as it was"
            )
            raise file_error(
                found.path,
                f"what it restores was refused: {error}",
                why=f"names and shapes agree, but something else does not; {outcome}",
                fix="use the classes and options that the checkpoint was saved with",
            ) from error


def _problem_of(put_back: PutBack) -> BaseException | None:
    """Put back, and give what was raised: the other parts are put back all the same."""
    try:
        put_back()
    except MEANINGLESS as error:
        return error
    return None


def _model_state(found: Checkpoint, net: nn.Module, partial: bool) -> tuple[dict[str, Any], MatchReport]:
    """Give the model's own state_dict with the values of the file."""
    keys = {name: key for key, name in canonical_names(net).items()}
    own = net.state_dict(keep_vars=True)
    wanted = {name: own[key] for name, key in keys.items()}
    without = [name for name, tensor in wanted.items() if isinstance(tensor, torch.Tensor) and tensor.is_meta]
    if without:
        raise UsageError(
            f"{without[0]} of the model is on the device meta, which has no memory to load into",
            fix='net.to_empty(device="cpu") first',
        )
    pairs, report = match(found.tensors, wanted)
    if not report.complete and not partial:
        raise mismatch(str(found.path), report)
    _check_ties(found, wanted, pairs)
    return {keys[name]: found.tensors[source] for name, source in pairs.items()}, report


def _check_ties(found: Checkpoint, wanted: Mapping[str, Any], pairs: Mapping[str, str]) -> None:
    """Two names for one tensor of the model need one value: whichever came last would win otherwise."""
    first: dict[int, str] = {}
    for name, source in pairs.items():
        other = first.setdefault(id(wanted[name]), name)
        if other != name and isinstance(wanted[name], torch.Tensor):
            here, there = found.tensors[source], found.tensors[pairs[other]]
            if here is not there and not _same_bits(here, there):
                raise file_error(
                    found.path,
                    f"{other} and {name} are one tensor in the model, and two different ones in the file",
                    fix="build the model as it was saved, without the tie",
                )


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    blocks = to_blocks({"one": one, "other": other})[0]
    return blocks["one"] == blocks["other"]


def _restore(found: Checkpoint, name: str, part: Any, net: nn.Module | None) -> RestoreStep:
    """Give the step that restores a part; what can be checked before is checked now."""
    stored = found[name]
    if isinstance(part, torch.optim.Optimizer):
        if net is None:
            raise UsageError(f"{name} is restored by the names of the model's parameters", fix="give the model too")
        try:
            state = numbered_state(stored, part, net) if not is_numbered(stored) else same_numbers(stored, part)
        except MEANINGLESS as error:
            fact, why = (error.fact, error.why) if isinstance(error, UsageError) else (repr(error), None)
            raise file_error(found.path, f"its {name} does not fit: {fact}", why=why) from error
        return RestoreStep(lambda: part.load_state_dict(state), lambda: kept_optimizer(part))
    if isinstance(part, torch.Generator):
        return RestoreStep(lambda: part.set_state(stored), lambda: kept_generator(part))
    if isinstance(part, nn.Module):
        if not isinstance(stored, dict):
            raise file_error(found.path, f"its {name} is no module's state")
        inner = Checkpoint(found.path, stored)
        state, _ = _model_state(inner, part, partial=False)
        return _module_step(part, state, strict=True)
    if not hasattr(part, "load_state_dict"):
        raise UsageError(
            f"{name} is a {type(part).__name__}, which cannot take a state",
            fix=f'plain values are in the result: weft.load(path, net)["{name}"]',
        )
    return RestoreStep(lambda: part.load_state_dict(stored), lambda: kept_object(part))


def _module_step(module: nn.Module, state: dict[str, Any], *, strict: bool) -> RestoreStep:
    return RestoreStep(lambda: module.load_state_dict(state, strict=strict), lambda: kept_module(module))
