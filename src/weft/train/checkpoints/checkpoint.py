"""A model with all that its training needs <-> one file, whole and verified or not at all; docs/checkpoints.md."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from weft.files import FOLDER, given_file, given_path, what_is_there
from weft.train.checkpoints.folder import read_newest
from weft.train.checkpoints.reading import Checkpoint, read
from weft.train.checkpoints.restoring import Restore, apply
from weft.train.checkpoints.snapshot import snapshot

SAVING = 'weft.save("net.safetensors", net)'
LOADING = 'weft.load("net.safetensors", net)'


def save(path: str | os.PathLike[str], net: nn.Module, /, *, random: bool | None = None, **parts: Any) -> None:
    """Write a model, and whatever else is named, to a file.

    `weft.save(path, net, optimizer=optimizer, scheduler=scheduler, step=7)`: parts are objects that have `state_dict`,
    generators, or plain values. With any part, the states of the random number generators are stored too, unless
    `random` says otherwise. The file is there whole or not at all; names are those of the model without wrappers.
    """
    snapshot(net, random, parts).write(given_file(path, "save", SAVING))


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
    source = given_path(path, "load", LOADING)
    found = read_newest(source, verify=verify) if what_is_there(source) == FOLDER else read(source, verify=verify)
    return apply(found, net, Restore(random, partial, parts))
