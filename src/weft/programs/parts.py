"""Convert the parts of a program to the sections of a file, tensors in one block, and back.

A tensor that has its memory for itself, without gaps, is stored row by row under its own name, so that other tools read
it. Any other one is a view of memory that is stored as a list of elements: tensors that share memory share it again.
"""

from __future__ import annotations

import json
import keyword
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors

from weft.errors import UnsupportedError, UsageError
from weft.ir.extents import Extent, Polynomial
from weft.ir.graph import Graph, Place, Value
from weft.ir.lexer import Reader, TextLimits
from weft.ir.library import Call, packet_name, resolve, split
from weft.ir.parser import parse_graph, read_type
from weft.ir.printer import constants_of, name_inputs, print_graph
from weft.ir.size_text import largest_sizes, read_condition
from weft.ir.types import DTYPE_NAMES, DTYPES_BY_NAME, TensorType, row_major, type_of
from weft.ir.verifier import problems_of
from weft.programs.structure import CallStructure, Node, call_from_json, from_json, ports, to_json

# Types that safetensors does not have -> the one whose elements it stores, several in the place of one.
STORED_AS = {torch.complex128: torch.float64, torch.complex32: torch.float16}
MEMORY = "#memory."  # begins the names of entries that several tensors share; no attribute in Python has such a name
DEVICES = ("cpu", "cuda")
LARGEST_COUNT = 2**56
MOST_DIMENSIONS = 64  # PyTorch's own limit


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A row: the entry of the block that holds the elements; for a view of an entry, where in it the view starts."""

    entry: str
    offset: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Give the row as JSON data."""
        return {"entry": self.entry} if self.offset is None else {"entry": self.entry, "offset": self.offset}


def store_tensors(tensors: Mapping[str, torch.Tensor], *, exact: bool) -> tuple[list[StoredTensor], bytes]:
    """Store named tensors; gives a row for each in order, and the block.

    With `exact`, offsets into memory and memory around what is visible are kept: a program that writes may reach it.
    """
    block: dict[str, torch.Tensor] = {}
    rows: list[StoredTensor] = []
    groups: dict[int, list[torch.Tensor]] = {}
    for name, tensor in tensors.items():
        _check_storable(name, tensor)
        groups.setdefault(_address(tensor), []).append(tensor)
    memories: dict[tuple[int, torch.dtype], StoredTensor] = {}
    for name, tensor in tensors.items():
        group = groups[_address(tensor)]
        if len(group) == 1 and is_dense(type_of(tensor)) and not (exact and tensor.storage_offset()):
            block[name] = _plain(tensor)
            rows.append(StoredTensor(name))
            continue
        key = (_address(tensor), tensor.dtype)
        if key not in memories:
            if len({member.dtype for member in group}) > 1:
                raise UnsupportedError(
                    f"{name} shares memory with a tensor of another element type",
                    why="a program file keeps memory as elements of one type",
                    fix="give one of them memory of its own: tensor.clone()",
                )
            start, end = (0, tensor.untyped_storage().nbytes() // tensor.element_size()) if exact else _reach(group)
            memories[key] = StoredTensor(f"{MEMORY}{len(memories)}", start)
            block[memories[key].entry] = _elements(tensor, start, end)
        memory = memories[key]
        rows.append(StoredTensor(memory.entry, int(tensor.storage_offset()) - (memory.offset or 0)))
    return rows, save_safetensors({name: _as_stored(tensor) for name, tensor in block.items()})


def _check_storable(name: str, tensor: torch.Tensor) -> None:
    problem = None
    if name.startswith(MEMORY):
        problem = "its name is one that the file itself gives"
    elif tensor.device.type not in DEVICES:
        problem = f"it is on the device {tensor.device}"
    elif tensor.layout is not torch.strided or tensor.dtype not in DTYPE_NAMES:
        problem = f"it is a {tensor.layout} tensor of {tensor.dtype}"
    elif tensor.is_conj() or tensor.is_neg():
        problem = "it is a lazy conjugate or negative of another tensor"
    if problem:
        raise UnsupportedError(f"the tensor {name} cannot be stored in a program file", why=problem)


def _address(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage().data_ptr()
    return address or id(tensor)  # tensors without elements have no memory to share


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous()


def _elements(tensor: torch.Tensor, start: int, end: int) -> torch.Tensor:
    return tensor.detach().as_strided((end - start,), (1,), start).cpu().contiguous()


def _reach(group: Sequence[torch.Tensor]) -> tuple[int, int]:
    """The first element in memory that any of these tensors sees, and the one after the last."""
    starts = [int(tensor.storage_offset()) for tensor in group]
    return min(starts), max(start + reach(type_of(tensor)) for start, tensor in zip(starts, group, strict=True))


def reach(kind: TensorType) -> int:
    """How many elements lie from the first to the last that a tensor sees, both included."""
    if 0 in kind.shape:
        return 0
    return 1 + sum((extent - 1) * stride for extent, stride in zip(kind.shape, kind.strides, strict=True))


def is_dense(kind: TensorType) -> bool:
    """Whether every place that a tensor reaches holds exactly one of its elements."""
    expected = 1
    for stride, extent in sorted(zip(kind.strides, kind.shape, strict=True)):
        if extent != 1:
            if stride != expected:
                return 0 in kind.shape
            expected *= extent
    return True


def _as_stored(tensor: torch.Tensor) -> torch.Tensor:
    stored = STORED_AS.get(tensor.dtype)
    return tensor if stored is None else tensor.reshape(-1).view(stored)


class TensorBlock:
    """The tensors of a file: sizes are compared before anything is made of them."""

    def __init__(self, content: bytes) -> None:
        try:
            # A copy: what comes out refers to the block's own bytes, never to a file that may change.
            self._entries = load_safetensors(content)
        except (SafetensorError, KeyError, ValueError, RuntimeError, TypeError, AssertionError, OverflowError) as error:
            raise UsageError("its tensors are damaged", why=str(error)) from error
        self._memories: dict[str, torch.Tensor] = {}
        self._taken: set[str] = set()

    def tensor(self, row: StoredTensor, kind: TensorType) -> torch.Tensor:
        """Make the tensor of a row, which must be of this type."""
        if row.entry not in self._entries and row.entry not in self._memories:
            raise UsageError(f"there is no tensor {row.entry} in it")
        needed = kind.size if row.offset is None else row.offset + reach(kind)
        # PyTorch counts elements and bytes in 64 bits, also those of tensors in which one size is 0.
        counted = math.prod(max(extent, 1) for extent in kind.shape)
        if needed < 0 or max((counted, *kind.strides)) >= LARGEST_COUNT or kind.rank > MOST_DIMENSIONS:
            raise UsageError(f"its tensor {row.entry} would have impossible sizes: {kind}")
        memory = self._memory(row.entry, kind)
        if row.offset is not None:
            if needed > memory.numel():
                raise UsageError(f"its tensor {row.entry} has {memory.numel()} elements; {needed} are needed")
            return memory.as_strided(kind.shape, kind.strides, row.offset)
        if memory.numel() != needed or not is_dense(kind) or row.entry in self._taken:
            raise UsageError(f"its tensor {row.entry} has {memory.numel()} elements, which do not make a {kind}")
        self._taken.add(row.entry)
        if kind.strides == row_major(kind.shape):
            # Not a view: memory with one owner changes only where PyTorch counts it, so weights need not be compared.
            alone = torch.empty(0, dtype=kind.dtype, device=kind.device)
            return alone.set_(memory.untyped_storage(), 0, kind.shape, kind.strides)
        return torch.empty_strided(kind.shape, kind.strides, dtype=kind.dtype, device=kind.device).copy_(
            memory.reshape(kind.shape)
        )

    def _memory(self, entry: str, kind: TensorType) -> torch.Tensor:
        """The elements of an entry as a list, on the device asked for."""
        if entry not in self._memories:
            found = self._entries.pop(entry).reshape(-1)  # its bytes go as soon as they are copied
            stored = STORED_AS.get(kind.dtype, kind.dtype)
            if found.dtype is not stored or found.numel() * found.element_size() % kind.dtype.itemsize:
                raise UsageError(f"its tensor {entry} is {found.dtype}; {kind} is needed")
            if kind.dtype is torch.bool and bool((found.view(torch.uint8) > 1).any()):
                raise UsageError(f"its tensor {entry} has elements that are neither true nor false")
            self._memories[entry] = _on_device(found.view(kind.dtype), kind.device)
        memory = self._memories[entry]
        if (memory.dtype, memory.device) != (kind.dtype, kind.device):
            raise UsageError(f"its tensor {entry} is {memory.dtype} on {memory.device}; {kind} is needed")
        return memory


def _on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if device.type not in DEVICES:
        raise UsageError(f"a tensor in it is on the device {device}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"it was made for {device}, which this machine does not have",
            why=f"PyTorch sees {torch.cuda.device_count()} CUDA devices",
            fix="load it where such a device is, or save the program from a module on the CPU",
        )
    # A copy even on the CPU: PyTorch's own memory is aligned for vectors, bytes of a file are not.
    return tensor.to(device, copy=True)


SPACES = frozenset({"aten", "prims"})
"""Namespaces whose operators compute with tensors and do nothing else, apart from those that the rules below find."""
OWN = frozenset(
    {
        "weft.recurrent_layer",
        "weft.recurrent_layer_backward",
        "weft.packed_lengths",
        "weft.check_longest",
        "weft.check_one_hot",
    }
)
"""Those of Weft that compute as PyTorch's do, or refuse numbers as these do."""
WORDS = frozenset(
    {"Tensor", "List", "Optional", "number", "int", "float", "bool", "complex", "str", "Device", "Generator"}
)
"""What the types of such an operator's arguments are made of: no storage, stream, dictionary or object."""
FILE_ARGUMENTS = frozenset({"filename", "file", "filepath"})
FORBIDDEN = frozenset({"aten.from_file", "aten.save", "aten.set_data", "aten._test_warn_in_autograd", "aten._print"})


def check_operators(graph: Graph, allowed: Collection[str]) -> None:
    """Raise UsageError for the first operator that a program from a file may not call."""
    for call in calls(graph):
        problem = _problem(call, SPACES | set(allowed), frozenset(allowed))
        if problem:
            raise UsageError(
                f"it calls {call.target}, {problem}",
                why="a file may call operators of PyTorch that only compute, and those of namespaces you allow",
                fix=f"if you trust the file: load_program(path, allow=[{split(call.target)[0]!r}])",
            )


def calls(graph: Graph) -> Iterator[Call]:
    """Every call of an operator in a graph, those of view steps among them."""
    paths = [result.path for result in graph.results] + [write.path for write in graph.writes]
    for value in graph.values:
        call = value.attributes.get("call")
        if isinstance(call, Call):
            yield call
            paths += [place.path for place in call.written]
    for path in paths:
        yield from (Call(step.target, step.arguments, step.keywords) for step in path)


def _problem(call: Call, spaces: frozenset[str], trusted: frozenset[str]) -> str | None:
    space = split(call.target)[0]
    if space not in spaces and packet_name(call.target) not in OWN:
        return f"and the namespace {space} is not allowed"
    schema = resolve(call.target)._schema
    names = [argument.name for argument in schema.arguments]
    if len(call.arguments) > len(names):
        return f"which takes {len(names)} arguments, with {len(call.arguments)}"
    for name, _ in call.keywords:
        # The caller's Python code is made of these names.
        if name not in names or keyword.iskeyword(name):
            return f"which has no argument {name}"
    if space in trusted:
        return None
    if packet_name(call.target) in FORBIDDEN or FILE_ARGUMENTS & set(names):
        return "which touches files or other state of the process"
    types = [str(part.type) for part in (*schema.arguments, *schema.returns)]
    words = {word for text in types for word in text.replace("[", " ").replace("]", " ").replace(",", " ").split()}
    if words - WORDS or not any("Tensor" in text for text in types):
        return "which does not compute with tensors alone"
    return None


LARGEST_TEXT = 1 << 25
LARGEST_METADATA = 1 << 22
SHORT = TextLimits(characters=1 << 12)
MOST_PROBLEMS_SHOWN = 5


@dataclass(frozen=True, slots=True, eq=False)
class StateTensor:
    """A tensor that belongs to the program: which input of the graph it is, and its name in the module."""

    input: int
    name: str
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class ProgramSize:
    """A size that varies: which input of the graph it is, of which input's dimension, and its range."""

    input: int
    of: int
    dimension: int
    least: int = 0
    most: int | None = None

    @property
    def range(self) -> str:
        """The range as a sentence has it."""
        return f"at least {self.least}" if self.most is None else f"{self.least} to {self.most}"


@dataclass(frozen=True, slots=True, eq=False)
class ProgramParts:
    """A program apart from the process that made it: what a program file holds.

    The ports of `arguments` are inputs of the graph, those of `results` its results. `memory` says how the tensors that
    go in share memory, where the program relies on it (`weft.trace.signature.memory_key`).
    """

    graph: Graph
    arguments: CallStructure
    results: Node
    state: tuple[StateTensor, ...]
    memory: tuple[tuple[int, int], ...] | None
    grad_mode: bool
    default_dtype: torch.dtype
    sizes: tuple[ProgramSize, ...] = ()  # that vary
    conditions: tuple[str, ...] = ()  # what must hold of them, in Python's arithmetic


@dataclass(frozen=True, slots=True)
class Written:
    """The three sections of a file that say what a program is."""

    metadata: bytes
    text: bytes
    tensors: bytes


def write_parts(parts: ProgramParts, versions: Mapping[str, str]) -> Written:
    """Write a program as the sections of a file."""
    constants = constants_of(parts.graph)
    named = {entry.name: entry.tensor for entry in parts.state}
    named |= {f"#constant.{number}": tensor for number, tensor in enumerate(constants)}
    if len(named) < len(parts.state) + len(constants):
        raise UsageError("two tensors of the program have one name", why=", ".join(entry.name for entry in parts.state))
    rows, tensors = store_tensors(named, exact=parts.memory is not None)
    stored = [row.as_json() for row in rows]
    count = len(parts.state)
    metadata = {
        "made_by": dict(versions),
        **parts.arguments.as_json(),
        "results": to_json(parts.results),
        "state": [
            {"input": entry.input, "name": entry.name, **row}
            for entry, row in zip(parts.state, stored[:count], strict=True)
        ],
        "constants": [
            {"type": str(type_of(tensor)), **row} for tensor, row in zip(constants, stored[count:], strict=True)
        ],
        "memory": parts.memory,
        "grad_mode": parts.grad_mode,
        "default_dtype": DTYPE_NAMES[parts.default_dtype],
    }
    if parts.sizes:
        metadata |= {"sizes": [asdict(size) for size in parts.sizes], "conditions": parts.conditions}
    text = print_graph(parts.graph, short_places=True)
    return Written(json.dumps(metadata, allow_nan=False).encode(), text.encode(), tensors)


def read_parts(written: Written, allow: Sequence[str]) -> ProgramParts:
    """Read a program from sections of any origin; whatever does not fit is a UsageError."""
    metadata = Metadata(_json(written.metadata))
    block = TensorBlock(written.tensors)
    constants = [
        block.tensor(_row(row), _tensor_type(row.text("type"))) for row in map(Metadata, metadata.items("constants"))
    ]
    graph = _without_files(parse_graph(written.text.decode("utf-8"), constants, TextLimits(characters=LARGEST_TEXT)))
    check_operators(graph, allow)
    problems = problems_of(graph)
    if problems:
        raise UsageError("its graph is malformed", why="\n".join(problems[:MOST_PROBLEMS_SHOWN]))
    state = [_state(Metadata(row), graph, block) for row in metadata.items("state")]
    parts = ProgramParts(
        graph,
        call_from_json(metadata.items("positional"), metadata.items("keywords")),
        from_json(metadata.data.get("results")),
        tuple(state),
        _memory(metadata),
        metadata.data.get("grad_mode") is True,
        DTYPES_BY_NAME.get(metadata.text("default_dtype"), torch.float32),
        tuple(_size(Metadata(row), graph) for row in metadata.items("sizes")) if "sizes" in metadata.data else (),
        tuple(map(_text, metadata.items("conditions"))) if "sizes" in metadata.data else (),
    )
    _check_sizes(parts)
    _check_ports(parts)
    return parts


@dataclass(frozen=True, slots=True)
class Metadata:
    """A JSON object of any origin, whose fields are read with the type that they must have."""

    data: dict[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.data, dict):
            raise UsageError("its metadata is damaged", why="something that must be a JSON object is none")

    def text(self, name: str) -> str:
        """Give a field that must be a string."""
        return str(self._field(name, str))

    def count(self, name: str) -> int:
        """Give a field that must be an integer from 0 on, of at most 64 bits."""
        number = self._field(name, int)
        if not 0 <= number < 1 << 63:
            raise UsageError(f"its metadata is damaged: {name} is {number}")
        return int(number)

    def items(self, name: str) -> list[Any]:
        """Give a field that must be a list."""
        return list(self._field(name, list))

    def _field(self, name: str, kind: type) -> Any:
        found = self.data.get(name)
        if type(found) is not kind:
            raise UsageError(f"its metadata is damaged: {name} must be a {kind.__name__}")
        return found


def _json(content: bytes) -> Any:
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError("its metadata is not JSON", why=str(error)) from error


def _row(row: Metadata) -> StoredTensor:
    return StoredTensor(row.text("entry"), row.count("offset") if "offset" in row.data else None)


def _tensor_type(text: str) -> TensorType:
    reader = Reader(text, SHORT)
    kind = read_type(reader)
    reader.expect("end", "the end of the type")
    if not isinstance(kind, TensorType):
        raise UsageError(f"its metadata is damaged: {text} is not the type of a tensor")
    return kind


def _state(row: Metadata, graph: Graph, block: TensorBlock) -> StateTensor:
    index = row.count("input")
    kind = graph.inputs[index].type if index < len(graph.inputs) else None
    if not isinstance(kind, TensorType):
        raise UsageError(f"its metadata is damaged: the graph has no tensor as input {index}")
    return StateTensor(index, row.text("name"), block.tensor(_row(row), kind))


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise UsageError("its metadata is damaged: a condition must be a str")
    return given


def _size(row: Metadata, graph: Graph) -> ProgramSize:
    most = None if row.data.get("most") is None else row.count("most")
    found = ProgramSize(row.count("input"), row.count("of"), row.count("dimension"), row.count("least"), most)
    given = max(found.input, found.of) < len(graph.inputs)
    kind = graph.inputs[found.of].type if given else None
    size = kind.shape[found.dimension] if isinstance(kind, TensorType) and found.dimension < kind.rank else 0
    if not isinstance(size, Extent) or size.expression != Polynomial.atom(graph.inputs[found.input]):
        raise UsageError(f"its metadata is damaged: input {found.input} is no size of input {found.of}")
    return found


def _check_sizes(parts: ProgramParts) -> None:
    """All sizes that are named in the graph are those of an input, and conditions speak of no others."""
    inputs = {parts.graph.inputs[size.input] for size in parts.sizes}
    if inputs != {*largest_sizes(parts.graph.inputs)} or len(inputs) < len(parts.sizes):
        raise UsageError("its metadata does not say where every size of the graph comes from")
    names = name_inputs(parts.graph.inputs)
    known = {names[value] for value in inputs}
    for condition in parts.conditions:
        read_condition(condition, known)


def _memory(metadata: Metadata) -> tuple[tuple[int, int], ...] | None:
    if metadata.data.get("memory") is None:
        return None
    pairs = metadata.items("memory")
    if not all(isinstance(pair, list) and [type(number) for number in pair] == [int, int] for pair in pairs):
        raise UsageError("its metadata is damaged: memory must be a list of pairs")
    return tuple((first, second) for first, second in pairs)


def _check_ports(parts: ProgramParts) -> None:
    """Every input comes from an argument or is state, and every result is one of the graph's."""
    own = [entry.input for entry in parts.state]
    sizes = [size.input for size in parts.sizes]
    sources = sorted([*own, *sizes, *set(parts.arguments.ports())])
    if sources != list(range(len(parts.graph.inputs))):
        raise UsageError("its metadata does not say where every input of the graph comes from")
    if len({entry.name for entry in parts.state}) < len(own):
        raise UsageError("two tensors in it have one name")
    if max(ports(parts.results), default=-1) >= len(parts.graph.results):
        raise UsageError("its metadata asks for results that the graph does not have")


def _without_files(graph: Graph) -> Graph:
    """Mark file names as names only: no error message may open what a file from elsewhere names."""
    renamed: dict[Value, Value] = {}
    for value in graph.values:
        operands = tuple(renamed.get(operand, operand) for operand in value.operands)
        renamed[value] = replace(value, operands=operands, place=_name_only(value.place))
    return Graph(
        graph.name,
        graph.inputs,
        tuple(renamed[value] for value in graph.values),
        tuple(replace(result, value=renamed.get(result.value, result.value)) for result in graph.results),
        tuple(replace(write, value=renamed.get(write.value, write.value)) for write in graph.writes),
    )


def _name_only(place: Place | None) -> Place | None:
    return None if place is None else replace(place, filename=f"<{place.filename.strip('<>')}>")
