"""The rules of the source that linters do not know, such as who may touch PyTorch's private corners."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "weft"
FILES = sorted(SOURCE.rglob("*.py"))
LONGEST_FILE = 700
VAGUE_NAMES = {"common", "helper", "helpers", "misc", "util", "utils"}

# Imported where they are used, because a user may not have installed them.
OPTIONAL = {"IPython", "PIL", "graphviz", "jax", "onnx", "onnxruntime", "onnxscript", "openvino", "rich", "scipy"}

# Non-public parts of PyTorch, and the only files a new release of PyTorch can break through them.
PRIVATE_TORCH_FILES = {
    "trace/interception/capture.py",
    "trace/interception/modes.py",
    "trace/python_state/tensor_facts.py",
    "codegen/torch_functions.py",
}
PRIVATE_TORCH_EVERYWHERE = {
    "torch.utils._pytree",  # how torch.export itself flattens arguments: stable for years, and without a public twin
    "torch._ops.OpOverload",  # the types of torch.ops.aten.*: PyTorch's guides for backends import them from here
    "torch._check",  # public in all but name: PyTorch documents it
}
# What engine may know of Weft: it orders tasks by what they read and write, and knows nothing of graphs.
BELOW_ENGINE = {"config", "devices", "engine", "errors", "files", "owners", "target"}
# The limits of docs/decisions/0078-limits-of-the-house.md: a figure may fall, not grow.
SHORT_FILE, MOST_SHORT_FILES = 60, 8


def place(file: Path) -> str:
    return file.relative_to(SOURCE).as_posix()


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


@pytest.fixture(scope="module", autouse=True)
def _forget_what_was_parsed() -> Iterator[None]:
    yield
    parsed.cache_clear()  # 200 MB


def nodes(file: Path) -> Iterator[ast.AST]:
    return ast.walk(parsed(file))


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def dotted(node: ast.AST) -> str:
    """Spell an attribute chain: `torch._C._jit`."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def module(file: Path) -> str:
    return ".".join(("weft", *file.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


def room(file: Path) -> str:
    return ".".join(("weft", *file.relative_to(SOURCE).parent.parts))


def importers() -> dict[Path, set[Path]]:
    """Say of each file which files import it, for types only too."""
    modules = {module(file): file for file in FILES}
    found: dict[Path, set[Path]] = {file: set() for file in FILES}
    for file in FILES:
        for name in {name for node in nodes(file) for name in imported(node)}:
            other = modules.get(name) or modules.get(name.rpartition(".")[0])
            if other is not None:
                found[other].add(file)
    return found


def public_classes(file: Path) -> list[str]:
    return [node.name for node in parsed(file).body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


def reads_environment(file: Path) -> bool:
    return any(
        name in {"os.environ", "os.environb", "os.getenv"}
        for node in nodes(file)
        for name in (*imported(node), dotted(node))
    )


def imports_inside_functions(file: Path) -> list[str]:
    functions = (node for node in nodes(file) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    inner = (name for function in functions for node in ast.walk(function) for name in imported(node))
    return [name for name in inner if name.split(".")[0] not in OPTIONAL]


def private_torch(file: Path) -> set[str]:
    names = {name for node in nodes(file) for name in (*imported(node), dotted(node))}
    private = {name for name in names if re.match(r"(torch|functorch)(\.\w+)*?\._[a-zA-Z]", name)}
    # An attribute chain is also met as its beginnings: torch._ops.OpOverload as torch._ops.
    return {
        name
        for name in private
        if not any(name.startswith(known) or known.startswith(name) for known in PRIVATE_TORCH_EVERYWHERE)
    }


def test_only_config_reads_the_environment() -> None:
    assert [place(file) for file in FILES if reads_environment(file)] == ["config.py"]


def test_imports_stand_at_the_top_except_of_optional_packages() -> None:
    assert {place(file): found for file in FILES if (found := imports_inside_functions(file))} == {}


def test_private_corners_of_torch_are_touched_in_four_files_only() -> None:
    found = {place(file): private_torch(file) for file in FILES if place(file) not in PRIVATE_TORCH_FILES}
    assert {file: names for file, names in found.items() if names} == {}


def test_the_engine_knows_nothing_of_graphs() -> None:
    names = {
        name for file in FILES if place(file).startswith("engine/") for node in nodes(file) for name in imported(node)
    }
    assert {name for name in names if name.startswith("weft.") and name.split(".")[1] not in BELOW_ENGINE} == set()


def test_every_file_says_its_purpose_in_its_first_line() -> None:
    assert [place(file) for file in FILES if not ast.get_docstring(parsed(file))] == []


def test_no_file_is_long() -> None:
    lengths = {place(file): len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}
    assert {file: length for file, length in lengths.items() if length > LONGEST_FILE} == {}


def test_few_files_are_short_and_imported_by_one_other() -> None:
    by = importers()
    short = [file for file in FILES if len(file.read_text(encoding="utf-8").splitlines()) < SHORT_FILE]
    found = [place(file) for file in short if file.name != "__init__.py" and len(by[file]) < 2]
    assert len(found) <= MOST_SHORT_FILES, found


def test_no_two_rooms_import_each_other() -> None:
    found = {(room(by), room(file)) for file, others in importers().items() for by in others}
    top = {"weft"}  # the names that users see, and files that are layers by themselves
    assert [pair for pair in found if pair[0] < pair[1] and pair[::-1] in found and not top & set(pair)] == []


def test_a_public_class_name_exists_once() -> None:
    names = Counter(name for file in FILES for name in public_classes(file))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_first_line_is_an_arrow() -> None:
    first_lines = {place(file): file.read_text(encoding="utf-8").split("\n")[0] for file in FILES}
    assert [file for file, line in first_lines.items() if "->" in line] == []


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert [place(file) for file in FILES if file.stem in VAGUE_NAMES or file.parent.name in VAGUE_NAMES] == []


def test_nothing_is_left_to_do_later() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    assert [place(file) for file in FILES if marks.search(file.read_text(encoding="utf-8"))] == []


def test_the_source_is_written_in_english() -> None:
    other_scripts = re.compile(r"[\u0400-\u1fff\u3040-\uffef]")
    assert [place(file) for file in FILES if other_scripts.search(file.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("text", "check", "found"),
    [
        ("import os\nx = os.environ['A']", reads_environment, True),
        ("from os import getenv", reads_environment, True),
        ("import os\nx = os.path", reads_environment, False),
        ("def f():\n    import weft.ir", imports_inside_functions, ["weft.ir"]),
        ("def f():\n    import rich.table", imports_inside_functions, []),
        ("import torch._dynamo", private_torch, {"torch._dynamo"}),
        ("import torch\nx = torch._C", private_torch, {"torch._C"}),
        ("import torch.utils._pytree as pytree", private_torch, set()),
        ("from torch._ops import OpOverload", private_torch, set()),
        ("import torch\nx = torch.nn", private_torch, set()),
    ],
)
def test_the_checks_themselves_find_what_they_look_for(text: str, check, found: object, tmp_path: Path) -> None:
    file = tmp_path / "example.py"
    file.write_text(text, encoding="utf-8")
    assert check(file) == found
