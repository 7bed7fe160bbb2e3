"""Print the operators of a symbol with their sizes and the counts of their parameters: `mx.viz.print_summary`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from weft.mx.base.errors import MXNetError
from weft.mx.symbols.symbol import Symbol, SymbolNode

COLUMNS = ("Layer (type)", "Output Shape", "Param #", "Previous Layer")
NO_PARAMETERS = {"data", "label", "indices"}


def print_summary(
    symbol: Symbol,
    shape: Mapping[str, Sequence[int]] | None = None,
    line_length: int = 120,
    positions: Sequence[float] = (0.44, 0.64, 0.74, 1.0),
) -> None:
    """Print a row an operator; with the sizes of inputs also those of outputs, without their first one."""
    if not isinstance(symbol, Symbol):
        raise TypeError("symbol must be Symbol")
    ends = [int(line_length * place) if place <= 1 else int(place) for place in positions]
    found = symbol.infer_node_sizes(shape) if shape is not None else {}
    lines = ["_" * line_length, _row(COLUMNS, ends), "=" * line_length]
    rows, total = _rows(symbol, found)
    for place, row in enumerate(rows):
        lines += [_row(part, ends) for part in row]
        lines.append(("=" if place == len(rows) - 1 else "_") * line_length)
    lines += [f"Total params: {total}", "_" * line_length]
    print("\n".join(lines))  # noqa: T201  # its purpose


def _rows(symbol: Symbol, found: Mapping[Any, Sequence[int]]) -> tuple[list[list[tuple[Any, ...]]], int]:
    nodes = symbol.nodes()
    rows: list[list[tuple[Any, ...]]] = []
    total = 0
    for place, node in enumerate(nodes):
        if node.row is None and place > 0:
            continue
        before = [source.name for source, _ in node.inputs if source.row is not None or source is nodes[0]]
        sizes = "x".join(str(size) for size in found.get((node, 0), ())[1:])
        count = _parameters(node, found)
        total += count
        kind = "null" if node.row is None else node.row.name
        rows.append([(f"{node.name}({kind})", sizes, count, before[0] if before else "")])
        rows[-1] += [("", "", "", name) for name in before[1:]]
    return rows, total


def _parameters(node: SymbolNode, found: Mapping[Any, Sequence[int]]) -> int:
    """Count the elements of the variables that an operator learns."""
    if node.row is None or node.row.variadic:
        return 0
    learned = [
        (source, place)
        for number, (label, (source, place)) in enumerate(zip(node.row.inputs, node.inputs, strict=False))
        if source.row is None and label not in NO_PARAMETERS and number not in node.row.rule.aux and number > 0
    ]
    return sum(math.prod(found[entry]) for entry in learned if entry in found)


def _row(fields: Sequence[Any], ends: Sequence[int]) -> str:
    line = ""
    for field, end in zip(fields, ends, strict=True):
        line = f"{line}{field}"[:end].ljust(end)
    return line


def plot_network(*_given: Any, **_options: Any) -> Any:
    """Refuse: pictures are drawn of programs."""
    raise MXNetError(
        "plot_network is not in weft.mx; weft show net-symbol.json --stage draw --output net.svg draws one"
    )
