"""Find the weights of single gates in the one array of a recurrent operator that runs all layers at once."""

from __future__ import annotations

from typing import Any

GATES = {"rnn_relu": ("",), "rnn_tanh": ("",), "lstm": ("_i", "_f", "_c", "_o"), "gru": ("_r", "_z", "_o")}


def parts_of(array: Any, mode: str, layers: int, hidden: int, inputs: int, directions: str = "l") -> dict[str, Any]:
    """Views of the array by name, such as `l0_i2h_f_weight`: all weights, then all biases."""
    found: dict[str, Any] = {}
    place = 0
    for kind in ("weight", "bias"):
        for layer in range(layers):
            widths = {"i2h": len(directions) * hidden if layer else inputs, "h2h": hidden}
            for direction in directions:
                for part, width in widths.items():
                    for gate in GATES[mode]:
                        size = hidden * width if kind == "weight" else hidden
                        view = array[place : place + size]
                        shaped = view.reshape((hidden, width)) if kind == "weight" else view
                        found[f"{direction}{layer}_{part}{gate}_{kind}"] = shaped
                        place += size
    if place != array.size:
        raise AssertionError("Invalid parameters size for FusedRNNCell")
    return found


def size_of(mode: str, layers: int, hidden: int, inputs: int, directions: str = "l") -> int:
    """How many elements the array has."""
    each = len(GATES[mode]) * hidden * len(directions)
    return each * (inputs + hidden + 2) + (layers - 1) * each * (hidden * (1 + len(directions)) + 2)


def inputs_of(size: int, mode: str, layers: int, hidden: int, directions: str = "l") -> int:
    """How many inputs a step has, by the size of the array."""
    return (
        size // (len(directions) * hidden * len(GATES[mode]))
        - (layers - 1) * (hidden * (1 + len(directions)) + 2)
        - hidden
        - 2
    )
