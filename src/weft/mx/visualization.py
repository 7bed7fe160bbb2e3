"""Print the operators of a symbol with their sizes, or draw them: `mx.viz`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

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


# Of an operator: the colour that it is drawn in, of a scheme of eight, and what its box says besides its name.
COLOURS = ("#8dd3c7", "#fb8072", "#ffffb3", "#bebada", "#80b1d3", "#fdb462", "#b3de69", "#fccde5")
DRAWN: dict[str, tuple[int, Callable[[Mapping[str, str]], str] | None]] = {
    "null": (0, None),
    "FullyConnected": (1, lambda texts: texts["num_hidden"]),
    "Convolution": (1, lambda texts: f"{_window(texts)}, {texts['num_filter']}"),
    "Deconvolution": (1, lambda texts: f"{_window(texts)}, {texts['num_filter']}"),
    "Activation": (2, lambda texts: texts["act_type"]),
    "LeakyReLU": (2, lambda texts: texts.get("act_type", "leaky")),
    "BatchNorm": (3, None),
    "Pooling": (4, lambda texts: f"{texts.get('pool_type', 'max')}, {_window(texts)}"),
    "Concat": (5, None),
    "Flatten": (5, None),
    "Reshape": (5, None),
    "Softmax": (6, None),
}
OTHERS = (7, None)
WEIGHTS = (
    *("_weight", "_bias", "_beta", "_gamma"),
    *("_moving_var", "_moving_mean", "_running_var", "_running_mean"),
)


def _window(texts: Mapping[str, str]) -> str:
    """The sizes of a window and of its steps: `3x3/1`."""
    kernel, steps = (_numbers(texts.get(name, "")) for name in ("kernel", "stride"))
    return f"{'x'.join(kernel)}/{'x'.join(steps) if steps else '1'}"


def _numbers(text: str) -> list[str]:
    return [part.strip() for part in text.strip("()[] ").split(",") if part.strip()]


class DotSource:
    """A picture as text for Graphviz's `dot`, where the package `graphviz` is not there to draw it."""

    def __init__(self, source: str, filename: str, format: str) -> None:
        self.source, self.filename, self.format = source, filename, format

    def __str__(self) -> str:
        return self.source

    def save(self, filename: str | None = None, directory: str | None = None) -> str:
        """Write the text; gives the path."""
        path = Path(directory or ".") / (filename or self.filename)
        path.write_text(self.source, encoding="utf-8")
        return str(path)

    def render(self, filename: str | None = None, directory: str | None = None, **_options: Any) -> NoReturn:
        """Write the text, and say how it is drawn."""
        path = self.save(filename, directory)
        raise ImportError(
            f"drawing a network requires the package graphviz (pip install graphviz); {path} has its text: "
            f"dot -T{self.format} -O {path} draws it"
        )

    view = render


def plot_network(
    symbol: Symbol,
    title: str = "plot",
    save_format: str = "pdf",
    shape: Mapping[str, Sequence[int]] | None = None,
    dtype: Any = None,
    node_attrs: Mapping[str, str] | None = None,
    hide_weights: bool = True,
) -> Any:
    """The network as a picture: of the package graphviz, where it is installed, else as text for `dot`.

    With the sizes of inputs, arrows have those of what goes along them, without their first one.
    """
    _ = dtype
    if not isinstance(symbol, Symbol):
        raise TypeError("symbol must be a Symbol")
    looks = {"shape": "box", "fixedsize": "true", "width": "1.3", "height": "0.8034", "style": "filled"}
    sizes = symbol.infer_node_sizes(shape) if shape else {}
    lines = _drawn(symbol, looks | dict(node_attrs or {}), sizes, hide_weights)
    source = "\n".join([f"digraph {_quoted(title)} {{", *(f"\t{line}" for line in lines), "}", ""])
    try:
        import graphviz  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415  # optional
    except ImportError:
        return DotSource(source, f"{title}.gv", save_format)
    return graphviz.Source(source, filename=f"{title}.gv", format=save_format)


def _drawn(symbol: Symbol, looks: Mapping[str, str], found: Mapping[Any, Sequence[int]], hide: bool) -> list[str]:
    """A line for each node, then one for each arrow."""
    hidden: set[SymbolNode] = set()
    boxes, arrows = [], []
    for node in symbol.nodes():
        if node.row is None and hide and node.name.endswith(WEIGHTS):
            hidden.add(node)
        elif node.row is None and not node.name.endswith(WEIGHTS):
            boxes.append(_box(node.name, node.name, {**looks, "shape": "oval"}, COLOURS[0]))
        elif node.row is not None:
            colour, says = DRAWN.get(node.row.name, OTHERS)
            label = node.name if says is None else f"{node.row.name}\\n{says(node.texts)}"
            boxes.append(_box(node.name, label, looks, COLOURS[colour]))
            for source, place in node.inputs:
                if source not in hidden:
                    sizes = "x".join(str(size) for size in found.get((source, place), ())[1:])
                    ends = f"{_quoted(node.name)} -> {_quoted(source.name)}"
                    arrows.append(f"{ends} [label={_quoted(sizes)} arrowtail=open dir=back]")
    return [*boxes, *arrows]


def _box(name: str, label: str, looks: Mapping[str, str], colour: str) -> str:
    parts = {"label": label, "fillcolor": colour, **looks}
    return f"{_quoted(name)} [{' '.join(f'{key}={_quoted(text)}' for key, text in parts.items())}]"


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'
