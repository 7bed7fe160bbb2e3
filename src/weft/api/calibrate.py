"""Run a network on some batches and find the scales with which its layers are computed in integers of 8 bits.

    weft.calibrate(net, batches, error=0.05)
    net = weft.hybridize(net, precision="int8")

Each convolution and linear layer is watched as it is called by eager PyTorch, and told by its weight. From what it is
given, a sample of numbers is kept: they say from where on others saturate, so that the squared error is least. Then the
layer is computed on its first inputs with rounded numbers and weights. Where that changes its output by more than the
`error` asked for, as a part of it, the layer keeps float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from weft.api.hybrid import Hybrid
from weft.compile.calibration import SIGNED, UNSIGNED, Calibrated, forget, remember
from weft.errors import UsageError, counted, named
from weft.tracebacks import shows_less

LAYERS: Mapping[Any, str] = {functional.linear: "linear", torch.conv2d: "convolution"}
SAMPLE = 1 << 14  # numbers of each call
MOST_SAMPLES = 1 << 18  # of each layer
FEW_IMAGES = 4  # on which the error of a layer is found
PARTS = (1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)  # of the largest number, from where on others may saturate


class CalibratedLayer:
    """What one layer is given, and how it is called."""

    def __init__(self, call: Callable[..., torch.Tensor], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        given, *rest = arguments
        self.call = call
        self.given = given[:FEW_IMAGES].clone()
        self.rest, self.keywords = rest, keywords
        self.largest = 0.0
        self.least = 0.0
        self._numbers: list[torch.Tensor] = []

    def note(self, given: torch.Tensor) -> None:
        """Look at what the layer is given."""
        numbers = given.detach().float().flatten()
        if not numbers.numel():
            return
        least, largest = torch.aminmax(numbers)
        self.largest = max(self.largest, float(largest), -float(least))
        self.least = min(self.least, float(least))
        if sum(part.numel() for part in self._numbers) < MOST_SAMPLES:
            self._numbers.append(numbers[:: max(1, numbers.numel() // SAMPLE)].clone())

    def calibrated(self, error: float | None) -> Calibrated:
        """Choose a scale, and find what it costs."""
        is_positive = self.least >= 0
        if not 0 < self.largest < float("inf"):
            return Calibrated(0.0, is_positive, refused="what it was given while calibrated were zeros, or not finite")
        numbers = torch.cat(self._numbers)
        choices = [Calibrated(self.largest * part, is_positive) for part in PARTS]
        best = min(choices, key=lambda one: float((rounded(numbers, one) - numbers).square().sum()))
        changed = self._error(best)
        refused = ""
        if error is not None and not changed <= error:
            by, most = f"{100 * changed:.2g} %", f"{100 * error:.2g} %"
            refused = f"int8 would change its output by {by}, more than the {most} asked for"
        return Calibrated(best.largest, is_positive, changed, refused)

    def _error(self, calibrated: Calibrated) -> float:
        """What rounding changes of the layer's output, as a part of that: bias apart, which is not rounded."""
        weight = self.rest[0].detach() if self.rest else self.keywords["weight"].detach()
        others = {name: thing for name, thing in self.keywords.items() if name not in ("weight", "bias")}
        behind = (None, *self.rest[2:])
        exact = self.call(self.given, weight, *behind, **others)
        found = self.call(rounded(self.given, calibrated), rounded_weight(weight), *behind, **others)
        return float((found - exact).norm() / exact.norm().clamp_min(1e-30))


def rounded(numbers: torch.Tensor, calibrated: Calibrated) -> torch.Tensor:
    """Round numbers as a layer in int8 does what it is given."""
    low, high = (0.0, UNSIGNED) if calibrated.is_positive else (-SIGNED - 1, SIGNED)
    return (numbers * (1.0 / calibrated.scale)).round().clamp(low, high) * calibrated.scale


def rounded_weight(weight: torch.Tensor) -> torch.Tensor:
    """Round a weight as a layer in int8 does, with a scale for each output."""
    scale = weight.abs().amax(tuple(range(1, weight.dim())), keepdim=True).clamp_min(1e-30) / SIGNED
    return (weight / scale).round() * scale


class _Watch(TorchFunctionMode):
    """Notes what layers are given."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: WeakIdKeyDictionary = WeakIdKeyDictionary()  # by weight

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        if function in LAYERS and args:
            weight = args[1] if len(args) > 1 else keywords.get("weight")
            if isinstance(weight, nn.Parameter) and weight.dtype is torch.float32 and args[0].dtype is torch.float32:
                if weight not in self.layers:
                    self.layers[weight] = CalibratedLayer(function, args, keywords)
                self.layers[weight].note(args[0])
        return function(*args, **keywords)


@shows_less
def calibrate(net: nn.Module, batches: Iterable[Any], *, error: float | None = None) -> str:
    """Find the scales of a network's layers for `precision="int8"`, before it is hybridized; gives what was found.

    Each batch is what the network is called with: a tensor, a tuple of arguments, or a dictionary of named ones. With
    `error`, layers of which int8 would change the output by a larger part keep float32.
    """
    if not isinstance(net, nn.Module):
        raise UsageError(f"{named(net)} is no module", why="scales belong to the layers of a module")
    if any(isinstance(module.__dict__.get("forward"), Hybrid) for module in net.modules()):
        raise UsageError(
            "the module is hybridized already",
            why="its layers are watched as eager PyTorch calls them",
            fix="call weft.calibrate(net, batches) first, then weft.hybridize(net, precision='int8')",
        )
    if error is not None and not error >= 0:
        raise UsageError(f"error is {error!r}", why="it is the part of a layer's output that int8 may change")
    watch, was_training = _Watch(), [(module, module.training) for module in net.modules()]
    count = 0
    try:
        net.eval()
        with torch.no_grad(), _every_layer_is_called(), watch:
            for count, batch in enumerate(batches, 1):  # noqa: B007 - how many there were
                _call(net, batch)
    finally:
        for module, mode in was_training:
            module.training = mode
    if not count:
        raise UsageError("there are no batches", why="scales are found from what layers are given")
    with torch.no_grad():
        return _remembered(net, watch.layers, error)


def _call(net: nn.Module, batch: Any) -> None:
    if isinstance(batch, Mapping):
        net(**batch)
    elif isinstance(batch, (tuple, list)):
        net(*batch)
    else:
        net(batch)


@contextmanager
def _every_layer_is_called() -> Iterator[None]:
    """Keep PyTorch from computing whole encoder layers at once, in which their linear layers are not seen."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _remembered(net: nn.Module, layers: WeakIdKeyDictionary, error: float | None) -> str:
    lines = []
    for name, parameter in net.named_parameters():
        layer = layers.get(parameter)
        if layer is None:
            forget(parameter)
            continue
        found = layer.calibrated(error)
        remember(parameter, found)
        said = found.refused or f"int8 changes its output by {100 * found.error:.2g} %"
        lines.append(f"  {name}: up to {found.largest:.3g}: {said}")
    return "\n".join([f"{counted(len(lines), 'layer')} calibrated", *lines])
