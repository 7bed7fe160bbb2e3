"""Print the layers of a network with the sizes of their outputs and the counts of their parameters: `Block.summary`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from weft.mx.arrays.ndarray import NDArray

WIDTH = 80
ROW = "{:>20}  {:>42} {:>15}"
CONTAINERS = ("Sequential", "HybridSequential")


def _sizes(given: Any) -> str:
    """The sizes of an array, or of all in a list."""
    if isinstance(given, NDArray):
        return str(given.shape)
    if isinstance(given, (list, tuple)):
        return ", ".join(map(_sizes, given))
    return str(given)


class LayerCounts:
    """Notes each layer as it runs: what it gives and how many parameters are its own."""

    def __init__(self, inputs: tuple[Any, ...]) -> None:
        self.rows: list[tuple[str, str, int]] = [("Input", _sizes(inputs), 0)]
        self.total = self.trainable = self.shared = 0
        self._seen: set[int] = set()

    def note(self, block: Any, _inputs: Any, outputs: Any) -> None:
        """Note a layer: the hook that is called after it ran."""
        count = 0
        for parameter in block.params.values():
            size = math.prod(parameter.shape)
            count += size
            self.trainable += 0 if parameter.grad_req == "null" else size
            if id(parameter) in self._seen:
                self.shared += size
            self._seen.add(id(parameter))
        self.total += count
        self.rows.append((f"{type(block).__name__}-{len(self.rows)}", _sizes(outputs), count))

    def text(self) -> str:
        """The table."""
        lines = ["-" * WIDTH, ROW.format("Layer (type)", "Output Shape", "Param #"), "=" * WIDTH]
        lines += [ROW.format(*row) for row in self.rows]
        lines += [
            "=" * WIDTH,
            "Parameters in forward computation graph, duplicate included",
            f"   Total params: {self.total}",
            f"   Trainable params: {self.trainable}",
            f"   Non-trainable params: {self.total - self.trainable}",
            f"Shared params in forward computation graph: {self.shared}",
            f"Unique parameters in model: {self.total - self.shared}",
            "-" * WIDTH,
        ]
        return "\n".join(lines)


def summary(network: Any, inputs: tuple[Any, ...]) -> str:
    """Run a network once, and describe its layers; one that is hybridized is refused, as its layers do not run."""
    found = LayerCounts(inputs)
    taken: list[Callable[[], None]] = []

    def watch(block: Any) -> None:
        if getattr(block, "_active", False):
            raise AssertionError(f'"{block.name}" must not be hybridized to print summary.')
        if type(block).__name__ not in CONTAINERS:
            taken.append(block.register_forward_hook(found.note).detach)

    try:
        network.apply(watch)
        network(*inputs)
    finally:
        for detach in taken:
            detach()
    return found.text()
