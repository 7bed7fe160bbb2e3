"""A file of results -> a picture of how many times faster Weft is than each peer, as SVG and PNG."""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.contestants import by_name
from bench.figures import ratios

COLOURS = {
    "eager": "#7f8790",
    "channels_last": "#b5bbc2",
    "torch.compile": "#d1632b",
    "torch.compile max": "#8f3d14",
    "torch.compile step": "#eba27c",
    "jit.freeze": "#c9a227",
    "onnxruntime": "#3b7dd8",
    "openvino": "#7a4fc0",
    "jax": "#2f9e5b",
}
ROW_HEIGHT = 0.34


def ratios_of(row: dict[str, Any]) -> dict[str, float]:
    """Give each peer's time over Weft's: the median of what each round says."""
    entries, ours = row["contestants"], row["ours"]
    if ours is None:
        return {}
    below = entries[ours]["rounds"]
    return {
        name: ratios(entry["rounds"], below).median
        for name, entry in entries.items()
        if not by_name(name).is_weft and entry["verdict"] != "wrong"
    }


def draw(results: dict[str, Any], stem: Path) -> None:
    """Draw one line a workload with a mark a peer, on a logarithmic scale; the bar is a short upright stroke."""
    import matplotlib as mpl  # noqa: PLC0415 - an optional dependency

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the choice of a backend

    rows = [row for row in results["rows"] if ratios_of(row)]
    figure, axes = plt.subplots(figsize=(10, 1.6 + ROW_HEIGHT * len(rows)), layout="constrained")
    for height, row in enumerate(reversed(rows)):
        found = ratios_of(row)
        axes.plot([min(found.values()), max(found.values())], [height, height], color="#e3e6ea", zorder=1)
        for name, ratio in found.items():
            axes.scatter(ratio, height, s=36, color=COLOURS[name], zorder=3)
        if row["bar"] is not None:
            axes.plot([row["bar"]] * 2, [height - 0.3, height + 0.3], color="#1c2024", linewidth=1.6, zorder=2)
    axes.axvline(1.0, color="#1c2024", linewidth=0.8)
    axes.set_xscale("log")
    _label(axes, rows, results["machine"])
    for name, colour in COLOURS.items():
        if any(name in ratios_of(row) for row in rows):
            axes.scatter([], [], color=colour, label=name)
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    for suffix in (".svg", ".png"):
        figure.savefig(stem.with_suffix(suffix), dpi=150)
    plt.close(figure)


def _label(axes: Any, rows: Sequence[dict[str, Any]], machine: dict[str, Any]) -> None:
    axes.set_yticks(range(len(rows)), [row["title"] for row in reversed(rows)], fontsize=8)
    axes.set_ylim(-0.7, len(rows) - 0.3)
    values = [ratio for row in rows for ratio in ratios_of(row).values()]
    powers = range(math.floor(math.log2(min(values))), math.ceil(math.log2(max(values))) + 1)
    axes.set_xticks(
        [2.0**power for power in powers],
        [f"1/{2**-power}" if power < 0 else f"{2**power}" for power in powers],
        fontsize=8,
    )
    axes.minorticks_off()
    axes.set_xlabel(
        "time of the peer / time of Weft (right of 1: Weft is faster; upright strokes: the bars)", fontsize=8
    )
    axes.set_title(f"{machine['processor']}, {machine['threads']} threads, commit {machine['commit']}", fontsize=9)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def missing() -> str | None:
    """Say what is needed to draw, where it is not installed."""
    found = importlib.util.find_spec("matplotlib")
    return None if found else "no picture: matplotlib is not installed (pip install -e '.[plot]')"


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the pictures of the files that are named."""
    parser = argparse.ArgumentParser(prog="bench.plot", description="Draw the ratios of a results file.")
    parser.add_argument("files", nargs="+", type=Path, help="JSON files under bench/results")
    reason = missing()
    if reason is not None:
        raise SystemExit(reason)
    for path in parser.parse_args(arguments).files:
        draw(json.loads(path.read_text()), path)
        print(f"{path.with_suffix('.svg')} and .png")


if __name__ == "__main__":
    main()
