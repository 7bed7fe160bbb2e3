"""Open an exported network, `net-symbol.json` with `net-0000.params`, as a torch.nn.Module that runs its graph.

The console opens what it is given by name with `open_module`: it imports nothing of `mx` before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import CheckpointError, ExecutionError, UsageError
from weft.files import FILE, missing_file, open_regular, what_is_there
from weft.mx.base.errors import MXNetError
from weft.mx.symbols.graph import GraphFunction
from weft.mx.symbols.symbol import Symbol, load_json, shape_of_text
from weft.params_file import read_arrays

ENDING = "-symbol.json"
NUMBERED = re.compile(r"-(\d{4,})\.params")


class ExportedModule(nn.Module):
    """A graph with its parameters: takes the variables that no file has, in their order.

    A label, which only the gradient of a loss looks at, is not asked for: zeros of its sizes stand for it.
    """

    def __init__(self, symbol: Symbol, arrays: dict[str, Tensor]) -> None:
        super().__init__()
        arguments, auxiliary = symbol.list_arguments(), symbol.list_auxiliary_states()
        labels = _labels(symbol)
        self.input_names = [name for name in arguments if name not in arrays and name not in labels]
        self._labels = [name for name in arguments if name in labels and name not in arrays]
        self._kept = [name for name in (*arguments, *auxiliary) if name in arrays]
        for name in self._kept:
            if name in auxiliary or not arrays[name].is_floating_point():
                self.register_buffer(_attribute(name), arrays[name])
            else:
                self.register_parameter(_attribute(name), nn.Parameter(arrays[name]))
        self._symbol = symbol
        self._function = GraphFunction(symbol, [*self.input_names, *self._labels, *self._kept])
        self._label_sizes: dict[Any, list[tuple[int, ...]]] = {}

    def forward(self, *inputs: Tensor) -> Any:
        """Run the graph; in training the moving averages of batch norms move."""
        if len(inputs) != len(self.input_names):
            raise UsageError(
                f"the network takes {len(self.input_names)} inputs ({', '.join(self.input_names)}), not {len(inputs)}"
            )
        kept = [getattr(self, _attribute(name)) for name in self._kept]
        given = [*inputs, *self._zeros(inputs), *kept]
        found = self._function.run(self.training, None, given)
        count = self._function.output_count
        if self.training:
            with torch.no_grad():
                for place, new in zip(self._function.changed_inputs, found[count:], strict=True):
                    given[place].copy_(new)
        return found[0] if count == 1 else found[:count]

    def _zeros(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        if not self._labels:
            return []
        key = tuple(tuple(tensor.shape) for tensor in inputs)
        if key not in self._label_sizes:
            kinds = self._symbol.infer_sizes(dict(zip(self.input_names, key, strict=True)))
            self._label_sizes[key] = [kinds[name] for name in self._labels]
        return [inputs[0].new_zeros(sizes) for sizes in self._label_sizes[key]]


def _attribute(name: str) -> str:
    return name.replace(".", "_")


def _labels(symbol: Symbol) -> set[str]:
    """The variables that operators take as labels, and nobody as anything else."""
    taken: dict[str, set[str]] = {}
    for node in symbol.nodes():
        if node.row is not None:
            inputs = node.row.inputs if not node.row.variadic else ("data",) * len(node.inputs)
            for label, (source, _) in zip(inputs, node.inputs, strict=False):
                if source.row is None:
                    taken.setdefault(source.name, set()).add(label)
    return {name for name, labels in taken.items() if labels == {"label"}}


def open_module(target: str) -> tuple[ExportedModule, list[tuple[int, ...] | None]]:
    """The network of a file, and the sizes of its inputs as far as the file says them."""
    path = Path(target)
    if what_is_there(path) != FILE:
        raise missing_file(path, [".json"])
    parameters = parameters_beside(path)
    try:
        symbol = load_json(path.read_text(encoding="utf-8"))
        with open_regular(parameters) as file:
            arrays, names = read_arrays(file.read(), str(parameters))
        bare = [name.partition(":")[2] if name.startswith(("arg:", "aux:")) else name for name in names]
        module = ExportedModule(symbol, dict(zip(bare, arrays, strict=False)))
    except CheckpointError:
        raise
    except (MXNetError, OSError, UnicodeDecodeError) as error:
        raise ExecutionError(f"{path} cannot be opened as a network", why=str(error)) from error
    noted = {node.name: node.attributes.get("__shape__") for node in symbol.nodes() if node.row is None}
    sizes = [shape_of_text(noted[name] or "") for name in module.input_names]
    return module, [None if known is None or 0 in known else known for known in sizes]


def parameters_beside(path: Path) -> Path:
    """The file of parameters that belongs to a symbol: that of the last epoch."""
    stem = path.name.removesuffix(ENDING).removesuffix(".json")
    found = {}
    for each in path.parent.iterdir():
        match = NUMBERED.fullmatch(each.name.removeprefix(stem)) if each.name.startswith(stem) else None
        if match is not None and what_is_there(each) == FILE:
            found[int(match[1])] = each
    if not found:
        raise UsageError(
            f"there are no parameters beside {path}",
            why=f"looked for {path.with_name(stem + '-0000.params')}, of any number",
            fix="put the .params file that was exported with it beside it",
        )
    return found[max(found)]
