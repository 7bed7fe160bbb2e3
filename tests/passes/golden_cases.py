"""The golden files of the passes: a Graph, then `--- pass` and the Graph that the pass makes of it, once or more."""

from dataclasses import dataclass
from pathlib import Path

from weft.ir.graph import Graph
from weft.ir.parser import parse_graph
from weft.passes.pipeline import PASSES, run_pipeline

FOLDER = Path(__file__).parents[1] / "golden" / "passes"
FUNCTIONS = {one.name: one.function for one in PASSES} | {"pipeline": run_pipeline}


@dataclass(frozen=True)
class GoldenCase:
    """One file: its name, the text of the Graph given and the names of the passes."""

    name: str
    text: str
    passes: tuple[str, ...]

    def graph(self) -> Graph:
        return parse_graph(self.text)


def read_case(path: Path) -> GoldenCase:
    given, *rest = path.read_text(encoding="utf-8").split("--- ")
    return GoldenCase(path.stem, given, tuple(part.split("\n", 1)[0].strip() for part in rest))


CASES = tuple(map(read_case, sorted(FOLDER.glob("*.txt"))))
