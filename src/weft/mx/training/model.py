"""Keep a symbol and its parameters in files, and tell how training goes: `mx.model` and `mx.callback`."""

from __future__ import annotations

import logging
import time
from collections import namedtuple
from collections.abc import Callable, Mapping
from typing import Any

from weft.mx.arrays.array_file import load, save
from weft.mx.arrays.ndarray import NDArray
from weft.mx.base.errors import MXNetError
from weft.mx.symbols import sym
from weft.mx.symbols.symbol import Symbol

BatchEndParam = namedtuple("BatchEndParam", ["epoch", "nbatch", "eval_metric", "locals"])  # noqa: PYI024  # MXNet's
Arrays = dict[str, NDArray]


def save_checkpoint(
    prefix: str,
    epoch: int,
    symbol: Symbol | None,
    arg_params: Mapping[str, NDArray],
    aux_params: Mapping[str, NDArray],
    remove_amp_cast: bool = True,
) -> None:
    """Write `prefix-symbol.json` and `prefix-0001.params`."""
    _ = remove_amp_cast
    if symbol is not None:
        symbol.save(f"{prefix}-symbol.json")
    named = {f"arg:{name}": array for name, array in arg_params.items()}
    save(f"{prefix}-{epoch:04d}.params", named | {f"aux:{name}": array for name, array in aux_params.items()})


def load_params(prefix: str, epoch: int) -> tuple[Arrays, Arrays]:
    """The parameters and the auxiliary states of `prefix-0001.params`."""
    found: dict[str, Arrays] = {"arg": {}, "aux": {}}
    name = f"{prefix}-{epoch:04d}.params"
    loaded = load(name)
    for key, array in loaded.items() if isinstance(loaded, dict) else ():
        kind, colon, bare = key.partition(":")
        if not colon or kind not in found:
            raise MXNetError(f"{name} is no checkpoint: {key!r} is neither arg:... nor aux:...")
        found[kind][bare] = array
    return found["arg"], found["aux"]


def load_checkpoint(prefix: str, epoch: int) -> tuple[Symbol, Arrays, Arrays]:
    """The symbol, the parameters and the auxiliary states."""
    return (sym.load(f"{prefix}-symbol.json"), *load_params(prefix, epoch))


class Speedometer:
    """Log how many examples a second are trained, every so many batches."""

    def __init__(self, batch_size: int, frequent: int = 50, auto_reset: bool = True) -> None:
        self.batch_size, self.frequent, self.auto_reset = batch_size, frequent, auto_reset
        self._began: float | None = None
        self._last = 0

    def __call__(self, param: Any) -> None:
        """Note one more batch."""
        if self._last > param.nbatch:
            self._began = None
        self._last = param.nbatch
        if self._began is None:
            self._began = time.time()
            return
        if param.nbatch % self.frequent:
            return
        speed = self.frequent * self.batch_size / max(time.time() - self._began, 1e-9)
        shown = ""
        if param.eval_metric is not None:
            shown = "".join(f"\t{name}={value:f}" for name, value in param.eval_metric.get_name_value())
            if self.auto_reset:
                param.eval_metric.reset()
        logging.info(  # noqa: LOG015  # where programs of MXNet look for it
            "Epoch[%d] Batch [%d]\tSpeed: %.2f samples/sec%s", param.epoch, param.nbatch, speed, shown
        )
        self._began = time.time()


def do_checkpoint(prefix: str, period: int = 1) -> Callable[..., None]:
    """Write a checkpoint every so many epochs."""

    def callback(epoch: int, symbol: Any = None, arg_params: Any = None, aux_params: Any = None) -> None:
        if (epoch + 1) % max(period, 1) == 0:
            save_checkpoint(prefix, epoch + 1, symbol, arg_params, aux_params)

    return callback
