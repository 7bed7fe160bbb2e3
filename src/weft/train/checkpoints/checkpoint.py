"""Save and load checkpoints: single files, and the folder of a training run.

What restoring writes into is kept as a copy before, what it replaces is only remembered.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from weft.engine import BaseEngine, Var, make_engine
from weft.errors import CheckpointError, ExecutionError, UsageError, counted
from weft.files import FOLDER, given_file, given_path, what_is_there
from weft.interrupts import interrupts_after
from weft.tracebacks import shows_less
from weft.train.checkpoints.content import (
    Checkpoint,
    CheckpointContent,
    is_numbered,
    members,
    numbered_state,
    random_states,
    read,
    same_numbers,
    set_random_states,
    snapshot,
    torch_content,
)
from weft.train.checkpoints.file_series import MOST_LISTINGS, FileSeries, checked_step
from weft.train.checkpoints.foreign_file import TORCH_ENDINGS, write_torch
from weft.train.checkpoints.names import MatchReport, canonical_names, match, mismatch
from weft.train.checkpoints.tensor_file import MissingFileError, file_error, packed, to_blocks
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
        steps += _restored(found, name, part, net)
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


def _restored(found: Checkpoint, name: str, part: Any, net: nn.Module | None) -> list[RestoreStep]:
    """Give the steps that restore a part, or all that are in a row or table of them."""
    stored, held = found[name], members(part)
    if held is None:
        return [_restore(found, name, stored, part, net)]
    if isinstance(stored, (list, tuple)):
        stored = dict(enumerate(stored))
    if not isinstance(stored, dict) or stored.keys() != held.keys():
        there = f"those of {sorted(map(str, stored))}" if isinstance(stored, dict) else "one"
        raise file_error(
            found.path,
            f"its {name} is not the states of {sorted(map(str, held))}, which are to be restored",
            why=f"it holds {there}",
            fix="give as many objects, under the same names or in the same order, as when it was saved",
        )
    return [_restore(found, f"{name}[{key!r}]", stored[key], one, net) for key, one in held.items()]


def _restore(found: Checkpoint, name: str, stored: Any, part: Any, net: nn.Module | None) -> RestoreStep:
    """Give the step that restores a part; what can be checked before is checked now."""
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


logger = logging.getLogger("weft")
SAVING = 'weft.save("net.safetensors", net)'
# Readers of such names would find something else.
OF_OTHER_KINDS = {
    ".weft": "a program, which weft.program(net, x).save writes",
    ".params": "MXNet's parameters, which weft ckpt convert writes of a checkpoint",
    ".onnx": "an ONNX model",
    ".h5": "an HDF5 file",
    ".gguf": "a GGUF file",
    ".npy": "an array of NumPy",
    ".npz": "arrays of NumPy",
    ".json": "a text",
    ".py": "a program of Python",
}
LOADING = 'weft.load("net.safetensors", net)'
# What others call it -> how it is done here: taken for names of parts, they would be a riddle.
OTHER_NAMES = {
    "strict": ("partial=True loads what fits, and the report says the rest", "partial=True"),
    "map_location": ("values go where the tensors of the model are", "leave it out; net.to(...) before"),
    "weights_only": ("nothing in a file is ever run", "leave it out"),
}


class Checkpoints:
    """The checkpoints of one training run: `save(net, step, optimizer=...)`, `load(net, optimizer=...)`.

    The newest `keep` files stay. With `background=True`, saving copies the tensors and writes them while training goes
    on; if a write fails, the next `save` or `wait` raises its error.
    """

    @shows_less
    def __init__(self, folder: str | os.PathLike[str], *, keep: int | None = 3, background: bool = False) -> None:
        self.folder = given_path(folder, "Checkpoints", 'weft.Checkpoints("runs")')
        self._series = FileSeries(self.folder, keep)
        self._background = background
        self._engine: BaseEngine | None = None
        self._written = Var("checkpoint")

    def __repr__(self) -> str:
        files = self._series.newest_first()
        newest = f", newest {files[0].name}" if files else ""
        return f"weft.Checkpoints({str(self.folder)!r}): {counted(len(files), 'checkpoint')}{newest}"

    @shows_less
    def make_folder(self) -> None:
        """Make the folder, so that one that cannot be made is known before hours of training."""
        self._series.make_folder()

    @shows_less
    def save(self, net: nn.Module, step: int, /, *, random: bool | None = True, **parts: Any) -> Path:
        """Write a checkpoint of a step, and give the file's path; see `weft.save`."""
        number = checked_step(step)
        if "step" in parts:
            raise UsageError("a checkpoint was given its step twice", fix="checkpoints.save(net, 7, epoch=2)")
        taken = snapshot(net, random, {**parts, "step": number})
        self.wait()  # for the one before: a single copy of the tensors is in memory at a time
        if self._background:
            self._push(taken.detached(), number)
        else:
            self._series.write(number, packed(taken.blocks, taken.description))
        return self._series.path(number)

    @shows_less
    def load(self, net: nn.Module | None = None, /, *, random: bool | None = None, **parts: Any) -> Checkpoint:
        """Read the newest checkpoint that is good into a model and the other parts; see `weft.load`."""
        _refuse_other_names(parts)
        self.wait()
        return apply(read_newest(self.folder), net, Restore(random, parts=parts))

    def latest(self) -> Path | None:
        """Give the file that `load` would try first; None if there is none."""
        self.wait()
        return next(iter(self._series.newest_first()), None)

    @shows_less
    def wait(self) -> None:
        """Wait until what is being written is in place; raise its error if it failed."""
        if self._engine is None or self._engine.closed:
            return
        with self._told_once():
            self._engine.wait(self._written)

    def _push(self, taken: CheckpointContent, step: int) -> None:
        if self._engine is None or self._engine.closed:
            self._engine = make_engine({"disk": 1})

        def write() -> None:
            self._series.write(step, packed(taken.blocks, taken.description))

        with self._told_once():
            self._engine.push(write, writes=(self._written,), device="disk", name=f"save checkpoint {step}")

    @contextmanager
    def _told_once(self) -> Iterator[None]:
        """Raise the error of a failed write as it is, and forget it: the next checkpoint may well be written."""
        try:
            yield
        except ExecutionError as error:
            self._written = Var("checkpoint")
            if isinstance(error.__cause__, CheckpointError):
                raise error.__cause__ from None
            raise


def read_newest(folder: Path, *, verify: bool = True) -> Checkpoint:
    """Read the newest checkpoint of a folder; one that is damaged is named loudly, and the one before it is read.

    Where all that were there have gone meanwhile, as writers of the folder keep only the newest, it is listed again.
    """
    damaged: list[CheckpointError] = []
    for _ in range(MOST_LISTINGS):
        damaged, gone = [], False
        for path in FileSeries(folder, None).newest_first():
            try:
                found = read(path, verify=verify)
            except MissingFileError:
                gone = True
                continue
            except CheckpointError as error:
                damaged.append(error)
                continue
            for earlier in damaged:
                logger.warning("weft: CHECKPOINT DAMAGED, going back to %s: %s", path.name, earlier.fact)
            return found
        if not gone:
            break
    raise CheckpointError(
        f"there is no checkpoint to load in {folder}",
        why="\n".join(earlier.fact for earlier in damaged) or "no file in it is called step-<number>.safetensors",
        fix="start anew, or name a file",
    )


@shows_less
def save(path: str | os.PathLike[str], net: nn.Module, /, *, random: bool | None = None, **parts: Any) -> None:
    """Write a model, and whatever else is named, to a file.

    `weft.save(path, net, optimizer=optimizer, scheduler=scheduler, step=7)`: parts are objects that have `state_dict`,
    generators, lists or dictionaries of these, or plain values. With any part, the states of the random number
    generators are stored too, unless `random` says otherwise. The file is there whole or not at all; names are those of
    the model without wrappers.

    A name by which PyTorch's users call such files (`.pt`, `.pth`, `.bin`, `.ckpt`, `.pkl`, `.pth.tar`) gives one that
    `torch.load` reads: the model's state, or with parts a dictionary of it, under "model", and theirs; it has no
    digests and no random states. All other names give a file of safetensors.
    """
    target = given_file(path, "save", SAVING)
    ending = target.suffix.lower()
    if ending in OF_OTHER_KINDS:
        raise UsageError(
            f"{target} would be named as {OF_OTHER_KINDS[ending]}",
            why="weft.save writes a file of safetensors, or one that torch.load reads (.pt)",
            fix=f'weft.save("{target.with_suffix(".safetensors")}", net)',
        )
    if ending in TORCH_ENDINGS:
        if random:
            raise UsageError(
                f"{target} would be a file of torch.save, which has no place for random states",
                fix=f"{target.with_suffix('.safetensors')} has one; or leave random out",
            )
        write_torch(target, *torch_content(net, parts))
    else:
        snapshot(net, random, parts).write(target)


@shows_less
def load(
    path: str | os.PathLike[str],
    net: nn.Module | None = None,
    /,
    *,
    random: bool | None = None,
    verify: bool = True,
    partial: bool = False,
    **parts: Any,
) -> Checkpoint:
    """Read a file into a model, and into whatever else is named; changes nothing unless all of it fits.

    The file, or the newest good one of a folder, may be of any wrapper, also one of `torch.save`; so may the model.
    Objects given as parts get their state; plain values are in what comes back: `weft.load(path, net)["step"]`. Every
    byte is verified, unless `verify=False`. `partial=True` loads what fits; the report in the result says the rest.
    """
    _refuse_other_names(parts)
    source = given_path(path, "load", LOADING)
    found = read_newest(source, verify=verify) if what_is_there(source) == FOLDER else read(source, verify=verify)
    return apply(found, net, Restore(random, partial, parts))


def _refuse_other_names(parts: Mapping[str, Any]) -> None:
    for name, (why, fix) in OTHER_NAMES.items():
        if name in parts:
            raise UsageError(f"load takes no {name}", why=why, fix=fix)
