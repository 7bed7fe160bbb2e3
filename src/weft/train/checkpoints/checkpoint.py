"""Save and load checkpoints: single files, and the folder of a training run."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from weft.engine import BaseEngine, Var, make_engine
from weft.errors import CheckpointError, ExecutionError, UsageError, counted
from weft.files import FOLDER, given_file, given_path, what_is_there
from weft.tracebacks import shows_less
from weft.train.checkpoints.content import Checkpoint, CheckpointContent, read, snapshot, torch_content
from weft.train.checkpoints.file_series import MOST_LISTINGS, FileSeries, checked_step
from weft.train.checkpoints.foreign_file import TORCH_ENDINGS, write_torch
from weft.train.checkpoints.restoring import Restore, apply
from weft.train.checkpoints.tensor_file import MissingFileError, packed

logger = logging.getLogger("weft")
SAVING = 'weft.save("net.safetensors", net)'
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
    generators, or plain values. With any part, the states of the random number generators are stored too, unless
    `random` says otherwise. The file is there whole or not at all; names are those of the model without wrappers.

    A name that ends with `.pt` or `.pth` gives a file that `torch.load` reads: the model's state, or with parts a
    dictionary of it, under "model", and theirs; such a file has no digests and no random states.
    """
    target = given_file(path, "save", SAVING)
    if target.suffix in TORCH_ENDINGS:
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
