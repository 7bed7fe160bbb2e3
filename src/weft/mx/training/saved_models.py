"""Keep a symbol and its parameters in files, and tell how training goes: `mx.model` and `mx.callback`."""

from __future__ import annotations

import logging
import math
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
    file = f"{prefix}-{epoch:04d}.params"
    save(file, named | {f"aux:{name}": array for name, array in aux_params.items()})
    logging.info('Saved checkpoint to "%s"', file)  # noqa: LOG015  # where programs of MXNet look for it


def load_params(prefix: str, epoch: int) -> tuple[Arrays, Arrays]:
    """The parameters and the auxiliary states of `prefix-0001.params`."""
    return load_file(f"{prefix}-{epoch:04d}.params")


def load_file(name: str) -> tuple[Arrays, Arrays]:
    """The parameters and the auxiliary states of a file."""
    found: dict[str, Arrays] = {"arg": {}, "aux": {}}
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
        place = f"Iter[{param.epoch}] Batch [{param.nbatch}]"
        shown = ""
        if param.eval_metric is not None:
            begin = param.nbatch - self.frequent if self.auto_reset else 0
            place = f"Epoch[{param.epoch}] Batch [{begin}-{param.nbatch}]"
            shown = "".join(f"\t{name}={value:f}" for name, value in param.eval_metric.get_name_value())
            if self.auto_reset:
                param.eval_metric.reset_local()
        # Where programs of MXNet look for it.
        logging.info("%s\tSpeed: %.2f samples/sec%s", place, speed, shown)  # noqa: LOG015
        self._began = time.time()


def do_checkpoint(prefix: str, period: int = 1) -> Callable[..., None]:
    """Write a checkpoint every so many epochs."""

    def callback(epoch: int, symbol: Any = None, arg_params: Any = None, aux_params: Any = None) -> None:
        if (epoch + 1) % max(period, 1) == 0:
            save_checkpoint(prefix, epoch + 1, symbol, arg_params, aux_params)

    return callback


def module_checkpoint(
    mod: Any, prefix: str, period: int = 1, save_optimizer_states: bool = False
) -> Callable[..., None]:
    """Write a checkpoint of a module every so many epochs."""

    def callback(epoch: int, symbol: Any = None, arg_params: Any = None, aux_params: Any = None) -> None:
        _ = symbol, arg_params, aux_params
        if (epoch + 1) % max(period, 1) == 0:
            mod.save_checkpoint(prefix, epoch + 1, save_optimizer_states)

    return callback


def _log_metric(text: str, param: Any, *facts: Any) -> None:
    for name, value in param.eval_metric.get_name_value():
        logging.info(text, *facts, name, value)  # noqa: LOG015  # where programs of MXNet look for it


def log_train_metric(period: int, auto_reset: bool = False) -> Callable[[Any], None]:
    """Log what the metric finds, every so many batches."""

    def callback(param: Any) -> None:
        if param.nbatch % period == 0 and param.eval_metric is not None:
            _log_metric("Iter[%d] Batch[%d] Train-%s=%f", param, param.epoch, param.nbatch)
            if auto_reset:
                param.eval_metric.reset_local()

    return callback


class LogValidationMetricsCallback:
    """Log what the metric has found of the validation."""

    def __call__(self, param: Any) -> None:
        """Log it."""
        if param.eval_metric:
            _log_metric("Epoch[%d] Validation-%s=%f", param, param.epoch)


class ProgressBar:
    """Log a bar that grows with the batches."""

    def __init__(self, total: int, length: int = 80) -> None:
        self.total, self.bar_len = total, length

    def __call__(self, param: Any) -> None:
        """Log it."""
        done = param.nbatch / float(self.total)
        filled = round(self.bar_len * done)
        bar = "=" * filled + "-" * (self.bar_len - filled)
        logging.info("[%s] %s%s\r", bar, math.ceil(100.0 * done), "%")  # noqa: LOG015  # as above
