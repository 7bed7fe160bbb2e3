"""Draw how many times faster Weft is than eager PyTorch, torch.compile, ONNX Runtime and OpenVINO, as one SVG file.

The file is written here and not by a plotting library: it is a few kilobytes of text, so that a new measurement is a
small change, and it needs nothing that is not installed.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from bench.contestants import by_name
from weft.console.bench.harness import Spread, ratios


@dataclass(frozen=True, slots=True)
class Peer:
    """A mark of the picture: the contestants that are one peer at different settings, of which the fastest counts."""

    label: str
    colour: str
    contestants: tuple[str, ...]


PEERS = (
    Peer("eager PyTorch", "#7f8790", ("eager", "channels_last")),
    Peer("torch.compile", "#d1632b", ("torch.compile", "torch.compile max", "torch.compile step")),
    Peer("ONNX Runtime", "#3b7dd8", ("onnxruntime",)),
    Peer("OpenVINO", "#7a4fc0", ("openvino",)),
)
HEADINGS = {"named": "Inference", "families": "Inference, further networks", "training": "Training steps"}
WIDTH, LEFT, RIGHT = 940, 470, 30
TOP, ROW, HEADING, RADIUS = 62, 25, 40, 5.5
INK, FAINT, RULE = "#1c2024", "#5c636b", "#e3e6ea"
STYLE = f"""<style>
text {{ font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 13px; fill: {INK} }}
.title {{ font-size: 15px; font-weight: 600 }} .heading {{ font-size: 14px; font-weight: 600 }}
.row {{ text-anchor: end }} .tick {{ font-size: 12px; fill: {FAINT}; text-anchor: middle }}
.note {{ font-size: 12px; fill: {FAINT}; text-anchor: end }}
</style>"""


def ratios_of(row: Mapping[str, Any]) -> dict[str, Spread]:
    """Give each peer's time over Weft's, round by round."""
    entries, ours = row["contestants"], row["ours"]
    if ours is None:
        return {}
    below = entries[ours]["rounds"]
    return {
        name: ratios(entry["rounds"], below)
        for name, entry in entries.items()
        if not by_name(name).is_weft and entry["verdict"] != "wrong"
    }


def marks_of(row: Mapping[str, Any]) -> list[tuple[Peer, float]]:
    """Give the ratio to each peer of the picture that ran this row, at its fastest setting."""
    found = {name: shown.median for name, shown in ratios_of(row).items()}
    given = ((peer, [found[name] for name in peer.contestants if name in found]) for peer in PEERS)
    return [(peer, min(values)) for peer, values in given if values]


def drawn(results: Mapping[str, Any]) -> str:
    """Give the text of the picture: a line a workload with a mark a peer, on a logarithmic scale."""
    rows = [(row, marks) for row in results["rows"] if row["group"] in HEADINGS and (marks := marks_of(row))]
    groups = [name for name in HEADINGS if any(row["group"] == name for row, _ in rows)]
    height = TOP + ROW * len(rows) + HEADING * len(groups) + 52
    values = [ratio for _, marks in rows for _, ratio in marks]
    low, high = math.floor(math.log2(min([*values, 1.0]))), math.ceil(math.log2(max([*values, 2.0])))
    scale = _Scale(low, high)
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}'>",
        "<title>Time of each peer over the time of Weft</title>",
        STYLE,
        f"<rect width='{WIDTH}' height='{height}' rx='8' fill='#ffffff'/>",
        *_key(),
        *_axis(scale, height - 44),
    ]
    y = float(TOP)
    for group in groups:
        y += HEADING
        lines.append(_text(18, y - 18, HEADINGS[group], "heading"))
        for row, marks in (entry for entry in rows if entry[0]["group"] == group):
            lines += _row(row["title"], marks, scale, y)
            y += ROW
    return "\n".join([*lines, "</svg>", ""])


@dataclass(frozen=True, slots=True)
class _Scale:
    """Powers of two from the left edge of the plot to its right edge."""

    low: int
    high: int

    def at(self, ratio: float) -> float:
        return LEFT + (math.log2(ratio) - self.low) / (self.high - self.low) * (WIDTH - LEFT - RIGHT)


def _row(title: str, marks: Sequence[tuple[Peer, float]], scale: _Scale, y: float) -> Iterator[str]:
    places = [scale.at(ratio) for _, ratio in marks]
    yield _text(LEFT - 14, y + 4, title, "row")
    ends = f"x1='{min(places):.1f}' x2='{max(places):.1f}' y1='{y:g}' y2='{y:g}'"
    yield f"<line {ends} stroke='{RULE}' stroke-width='2'/>"
    for (peer, ratio), x in zip(marks, places, strict=True):
        note = escape(f"{title}: {peer.label} takes {ratio:.2f} times as long")
        yield f"<circle cx='{x:.1f}' cy='{y:g}' r='{RADIUS}' fill='{peer.colour}'><title>{note}</title></circle>"


def _key() -> Iterator[str]:
    yield _text(18, 26, "Time of each peer / time of Weft, each at its fastest setting", "title")
    widths = [34 + round(7.8 * len(peer.label)) for peer in PEERS]
    x = WIDTH - RIGHT - sum(widths)
    for peer, width in zip(PEERS, widths, strict=True):
        yield f"<circle cx='{x}' cy='46' r='{RADIUS}' fill='{peer.colour}'/>"
        yield _text(x + 10, 50, peer.label, "name")
        x += width


def _axis(scale: _Scale, bottom: float) -> Iterator[str]:
    for power in range(scale.low, scale.high + 1):
        x, is_one = scale.at(2.0**power), power == 0
        colour, width = (INK, 1.4) if is_one else (RULE, 1)
        yield f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{TOP}' y2='{bottom:g}' stroke='{colour}' stroke-width='{width}'/>"
        label = "as fast" if is_one else f"{2.0**power:g}×"
        yield _text(x, bottom + 16, label, "tick")
    yield _text(WIDTH - RIGHT, bottom + 34, "right of the line Weft is faster", "note")


def _text(x: float, y: float, content: str, look: str) -> str:
    return f"<text x='{x:.1f}' y='{y:g}' class='{look}'>{escape(content)}</text>"


def draw(path: Path) -> Path:
    """Draw a file of results beside it."""
    picture = path.with_suffix(".svg")
    picture.write_text(drawn(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")
    return picture


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the pictures of the files that are named."""
    parser = argparse.ArgumentParser(prog="bench.plot", description="Draw the ratios of a results file.")
    parser.add_argument("files", nargs="+", type=Path, help="JSON files under bench/results")
    for path in parser.parse_args(arguments).files:
        print(draw(path))


if __name__ == "__main__":
    main()
