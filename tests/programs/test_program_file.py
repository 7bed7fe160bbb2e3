"""Saving and loading: the same answers, the same structure, clear refusals."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ir.random_graphs import graphs, random_inputs
from tests.programs.program_examples import expected, parts
from torch import nn

import weft
from weft import files
from weft.api.load_program import load_program
from weft.errors import ExecutionError, UnsupportedError, UsageError
from weft.ir.graph import Graph
from weft.ir.interpreter import interpret
from weft.ir.parser import parse_graph
from weft.ir.same_graph import same_graph
from weft.programs.file import SECTIONS, ProgramFileError, packed, read_sections, save_program
from weft.programs.parts import ProgramParts, StateTensor
from weft.programs.structure import (
    Branch,
    CallStructure,
    FixedLeaf,
    LeafPort,
    Node,
    build,
    describe,
    from_json,
    take_apart,
    to_json,
)
from weft.trace.interception.capture import tree_flatten
from weft.trace.signature import memory_key

X = torch.arange(6.0).reshape(2, 3)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "net.weft"
    save_program(parts(), path)
    return path


def program_of(text: str, state: dict[str, torch.Tensor], memory: bool = False) -> ProgramParts:
    """A program of one argument x that gives its first result; the other inputs are its state."""
    graph = parse_graph(text, [])
    entries = tuple(StateTensor(index + 1, name, tensor) for index, (name, tensor) in enumerate(state.items()))
    key = memory_key([torch.ones(2), *state.values()]) if memory else None
    return ProgramParts(graph, CallStructure((("x", LeafPort(0)),), ()), LeafPort(0), entries, key, True, torch.float32)


def test_a_loaded_program_gives_the_same_answers_in_the_same_structure(file: Path) -> None:
    found = load_program(file)(X, scale=2.0)
    assert list(found) == ["y", "row", "note"]
    torch.testing.assert_close(found["y"], expected(parts(), X))
    assert found["note"] == "seen"
    assert isinstance(found["row"], list)


@pytest.mark.parametrize("layer", [nn.LSTM(3, 4), nn.LSTM(3, 4, 2, bidirectional=True), nn.GRU(3, 4)], ids=str)
@pytest.mark.parametrize("lengths", [None, [5, 2]])
def test_recurrent_layers_come_back(layer: nn.RNNBase, lengths: list[int] | None, tmp_path: Path) -> None:
    def function(x: torch.Tensor, long: torch.Tensor | None) -> torch.Tensor:
        if long is None:
            found: torch.Tensor = layer(x)[0]
            return found
        packed = layer(nn.utils.rnn.pack_padded_sequence(x, long))[0]
        return nn.utils.rnn.pad_packed_sequence(packed)[0]

    x, long = torch.randn(5, 2, 3), None if lengths is None else torch.tensor(lengths)
    weft.program(function, x, long).save(tmp_path / "net.weft")
    loaded = weft.load_program(tmp_path / "net.weft")
    for other in (x, torch.randn(5, 2, 3)):
        torch.testing.assert_close(loaded(other, long), function(other, long).detach())


def test_views_of_arguments_come_back_as_views(file: Path) -> None:
    x = X.clone()
    row = load_program(file)(x, scale=2.0)["row"][0]
    x[1] = 7
    assert torch.equal(row, x[1])


def test_what_the_program_writes_stays_in_the_loaded_program(file: Path) -> None:
    program = load_program(file)
    for calls in (1, 2, 3):
        program(X, scale=2.0)
        assert program.state["count"].item() == calls
    assert load_program(file).state["count"].item() == 0


def test_what_is_written_into_the_state_is_seen(file: Path) -> None:
    program = load_program(file)
    program.state["fc.weight"].zero_()
    program.state["fc.bias"].zero_()
    assert program(X, scale=2.0)["y"].abs().sum() == 0


def test_the_state_goes_by_the_names_of_the_module(file: Path) -> None:
    program = load_program(file)
    assert list(program.state) == ["fc.weight", "fc.bias", "count"]
    with pytest.raises(TypeError):
        program.state["count"] = torch.zeros(())


def test_a_positional_argument_may_be_given_by_name(file: Path) -> None:
    program = load_program(file)
    assert torch.equal(program(scale=2.0, x=X)["y"], program(X, scale=2.0)["y"])


def test_a_loaded_program_can_be_saved_again_to_the_same_bytes(file: Path, tmp_path: Path) -> None:
    program = load_program(file)
    again = tmp_path / "again.weft"
    save_program(program.parts, again)
    third = tmp_path / "third.weft"
    save_program(load_program(again).parts, third)
    assert again.read_bytes() == third.read_bytes()
    assert same_graph(program.graph, load_program(again).graph)


def test_results_carry_no_gradient_and_asking_for_one_is_an_error(file: Path) -> None:
    program = load_program(file)
    assert not program(X, scale=2.0)["y"].requires_grad
    wanted = X.clone().requires_grad_()
    with pytest.raises(UsageError, match="x requires a gradient, and a saved program gives none"):
        program(wanted, scale=2.0)
    with torch.no_grad():
        assert not program(wanted, scale=2.0)["y"].requires_grad


def test_it_runs_under_inference_mode_and_afterwards_outside_of_it(file: Path) -> None:
    with torch.inference_mode():
        program = load_program(file)
        program(X, scale=2.0)
    program(X, scale=2.0)
    assert program.state["count"].item() == 2


def test_autocast_changes_nothing(file: Path) -> None:
    program = load_program(file)
    with torch.autocast("cpu"):
        assert program(X, scale=2.0)["y"].dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((X.double(),), {"scale": 2.0}, r"x must be f32\[2,3\], and is f64\[2,3\]"),
        ((X[:1],), {"scale": 2.0}, r"x must be f32\[2,3\], and is f32\[1,3\]"),
        ((X.t().contiguous().t(),), {"scale": 2.0}, r"with strides \[3, 1\], and is .* with strides \[1, 2\]"),
        ((3,), {"scale": 2.0}, r"x must be a tensor f32\[2,3\], and is a int"),
        ((X,), {"scale": 3.0}, "scale must be 2.0, and is 3.0"),
        ((X,), {"scale": 2}, "scale must be 2.0, and is 2"),
        ((X,), {"scale": [2.0]}, "scale must be 2.0, and is a list"),
        ((X,), {}, r"net takes \(x, scale=\), and was given \(\.\.\.\)"),
        ((), {"scale": 2.0}, r"net takes \(x, scale=\)"),
        ((X, X), {"scale": 2.0}, r"net takes \(x, scale=\)"),
        ((X,), {"scale": 2.0, "other": 1}, r"was given \(\.\.\., scale=, other=\)"),
    ],
)
def test_a_wrong_argument_is_named_with_what_was_expected(arguments, keywords, message: str, file: Path) -> None:
    with pytest.raises(UsageError, match=message):
        load_program(file)(*arguments, **keywords)


def test_another_default_dtype_is_refused(file: Path) -> None:
    program = load_program(file)
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(UsageError, match=r"default dtype is torch\.float64; net was made for torch\.float32"):
            program(X, scale=2.0)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.slow
def test_it_runs_in_a_fresh_process_without_the_models_source(file: Path) -> None:
    torch.save(X, file.with_suffix(".pt"))
    script = (
        "import sys, torch; from weft.api.load_program import load_program;"
        f"x = torch.load({str(file.with_suffix('.pt'))!r}, weights_only=True);"
        f"print(load_program({str(file)!r})(x, scale=2.0)['y'].tolist())"
    )
    environment = {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == load_program(file)(X, scale=2.0)["y"].tolist()


# -- tensors ----------------------------------------------------------------------------------------------------------

DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f64": torch.float64,
    "i8": torch.int8,
    "u16": torch.uint16,
    "bool": torch.bool,
    "c64": torch.complex64,
    "c128": torch.complex128,
    "c32": torch.complex32,
    "f8e4m3fn": torch.float8_e4m3fn,
}


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize(("shape", "sizes"), [("[2,3]", (2, 3)), ("[]", ()), ("[0,3]", (0, 3))])
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_every_dtype_comes_back_bit_for_bit(name: str, shape: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    count = 16 * max(1, 6 if sizes else 1)
    noise = torch.randint(0, 2 if name == "bool" else 256, (count,), dtype=torch.uint8)
    tensor = noise.view(DTYPES[name])[: torch.Size(sizes).numel()].reshape(sizes).clone()
    text = f"graph g(%x: f32[2], %w: {name}{shape}) {{\n  return %w\n}}\n"
    path = tmp_path / "g.weft"
    save_program(program_of(text, {"w": tensor}), path)
    found = load_program(path)(torch.ones(2))
    assert (found.dtype, found.shape, found.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert torch.equal(found.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("f32[2,3,4,5]{60,1,15,3}", lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)),
        ("f32[3,2]{1,3}", lambda: torch.randn(2, 3).t()),
        ("f32[4]{2}", lambda: torch.randn(8)[::2]),
        ("f32[4,3]{0,1}", lambda: torch.randn(3).expand(4, 3)),
        ("f32[3]{1}", lambda: torch.randn(10)[4:7]),
    ],
)
@pytest.mark.parametrize("exact", [False, True])
def test_every_layout_comes_back(kind: str, make, exact: bool, tmp_path: Path) -> None:
    tensor = make()
    path = tmp_path / "g.weft"
    save_program(program_of(f"graph g(%x: f32[2], %w: {kind}) {{\n  return %w\n}}\n", {"w": tensor}, exact), path)
    found = load_program(path)(torch.ones(2))
    assert torch.equal(found, tensor)
    assert found.stride() == tensor.stride()
    if exact:
        assert found.storage_offset() == tensor.storage_offset()


def test_tensors_that_share_memory_share_it_again(tmp_path: Path) -> None:
    whole = torch.arange(4.0)
    text = """
graph g(%x: f32[2], %a: f32[4], %b: f32[2]) {
  %0: f32[4] = update aten.add_.Scalar(!0, 1) on !0 = %a
  write %a <- %0
  return %b
}
"""
    path = tmp_path / "g.weft"
    save_program(program_of(text, {"a": whole, "b": whole[2:]}, memory=True), path)
    program = load_program(path)
    program(torch.ones(2))
    assert program.state["b"].tolist() == [3.0, 4.0]
    assert program.state["a"].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_what_cannot_be_stored_is_refused_by_name(tmp_path: Path) -> None:
    text = "graph g(%x: f32[2], %w: f32[2]@meta) {\n  return %w\n}\n"
    with pytest.raises(UnsupportedError, match="the tensor w cannot be stored"):
        save_program(program_of(text, {"w": torch.empty(2, device="meta")}), tmp_path / "g.weft")
    assert not list(tmp_path.iterdir())


@given(graph=graphs(), seed=st.integers(0, 1000))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_graphs_come_back_and_give_the_same(graph: Graph, seed: int, tmp_path: Path) -> None:
    names = [f"x{index}" for index in range(len(graph.inputs))]
    positional = tuple((name, LeafPort(index)) for index, name in enumerate(names))
    results = Branch("list", (), tuple(LeafPort(index) for index in range(len(graph.results))))
    given_parts = ProgramParts(graph, CallStructure(positional, ()), results, (), None, True, torch.float32)
    save_program(given_parts, tmp_path / "g.weft")
    program = load_program(tmp_path / "g.weft")
    inputs, others = random_inputs(graph, seed), random_inputs(graph, seed)
    found, expected_results = program(*inputs), interpret(graph, others)
    assert len(found) == len(expected_results)
    for left, right in zip([*found, *inputs], [*expected_results, *others], strict=True):
        if isinstance(left, torch.Tensor):
            torch.testing.assert_close(left, right, equal_nan=True)
            assert left.stride() == right.stride()
        else:
            assert repr(left) == repr(right)


# -- structure --------------------------------------------------------------------------------------------------------


def test_structures_go_through_json() -> None:
    node = Branch(
        "tuple",
        (),
        (
            LeafPort(0),
            FixedLeaf(float("inf")),
            FixedLeaf(torch.float32),
            Branch("dict", ("a", 3), (LeafPort(1), FixedLeaf(None))),
            Branch("ordered", ("z",), (Branch("size", (), (FixedLeaf(2),)),)),
        ),
    )
    again = from_json(json.loads(json.dumps(to_json(node))))
    assert again == node
    built = build(again, ["first", "second"])
    assert built == ("first", float("inf"), torch.float32, {"a": "second", 3: None}, OrderedDict(z=torch.Size([2])))
    found: dict[int, tuple[str, object]] = {}
    take_apart(node, built, "x", found)
    assert found == {0: ("x[0]", "first"), 1: ("x[3]['a']", "second")}


@pytest.mark.parametrize(
    ("node", "given", "message"),
    [
        (Branch("list", (), (LeafPort(0),)), (1,), "x must be a list, and is a tuple"),
        (Branch("list", (), (LeafPort(0),)), [1, 2], "x must have 1 items, and has 2"),
        (Branch("dict", ("a",), (LeafPort(0),)), {"b": 1}, r"x must have the keys \['a'\], and has \['b'\]"),
        (FixedLeaf(0.0), -0.0, "x must be 0.0, and is -0.0"),
        (FixedLeaf(True), 1, "x must be True, and is 1"),
    ],
)
def test_what_nests_differently_is_refused(node: Node, given: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        take_apart(node, given, "x", {})


def test_one_tensor_given_twice_must_be_given_twice_again() -> None:
    node = Branch("tuple", (), (LeafPort(0), LeafPort(0)))
    take_apart(node, (X, X), "x", {})
    with pytest.raises(UsageError, match=r"x\[0\] and x\[1\] must be one tensor"):
        take_apart(node, (X, X.clone()), "x", {})


class Pair(NamedTuple):
    left: int
    right: int


@pytest.mark.parametrize(
    ("thing", "message"),
    [(Pair(1, 2), "holds a Pair"), ({1.5: 2}, "keys that are no strings"), ([object()], "holds a object")],
)
def test_classes_that_a_file_cannot_hold_are_refused_when_saving(thing: object, message: str) -> None:
    leaves, structure = tree_flatten(thing)
    with pytest.raises(UnsupportedError, match=message):
        describe(structure, [FixedLeaf(leaf) for leaf in leaves], "an argument")


# -- what may be called -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ('aten.from_file.default("/etc/passwd", False, 2)', "calls aten.from_file.default, which touches files"),
        ('aten.save.default(%x, "stolen")', "which touches files"),
        ("aten.seed.default()", "which does not compute with tensors alone"),
        ("aten.relu.default(%x, %x, %x)", "which takes 1 arguments, with 3"),
        ("aten.relu.default(%x, lambda=3)", "which has no argument lambda"),
        ("c10d.barrier.default(%x)", "and the namespace c10d is not allowed"),
        ("mine.thing.default(%x)", "and the namespace mine is not allowed"),
        ("aten.no_such_operator.default(%x)", "there is no operator aten::no_such_operator"),
        ("aten.__class__.default(%x)", "there is no operator"),
    ],
)
def test_a_program_from_a_file_calls_only_operators_that_compute(call: str, message: str, tmp_path: Path) -> None:
    text = f"graph g(%x: f32[2]) {{\n  %0: f32[2] = library {call}\n  return %0\n}}\n"
    if "%x" not in call:
        text = text.replace("return %0", "return %0, %x")
    path = tmp_path / "g.weft"
    save_program(program_of(text, {}), path)
    with pytest.raises(ProgramFileError, match=message) as caught:
        load_program(path)
    assert str(path) in caught.value.fact


def test_view_steps_are_checked_too(tmp_path: Path) -> None:
    text = "graph g(%x: f32[2]) {\n  return %x via mine.view.default(_)\n}\n"
    path = tmp_path / "g.weft"
    save_program(program_of(text, {}), path)
    with pytest.raises(ProgramFileError, match="the namespace mine is not allowed"):
        load_program(path)


def test_a_namespace_that_the_caller_allows_may_be_called(tmp_path: Path) -> None:
    library = torch.library.Library("weft_test_allowed", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x + x, "CPU")
    text = "graph g(%x: f32[2]) {\n  %0: f32[2] = library weft_test_allowed.twice.default(%x)\n  return %0\n}\n"
    path = tmp_path / "g.weft"
    save_program(program_of(text, {}), path)
    with pytest.raises(ProgramFileError, match=r"load_program\(path, allow=\['weft_test_allowed'\]\)"):
        load_program(path)
    assert load_program(path, allow=["weft_test_allowed"])(torch.ones(2)).tolist() == [2.0, 2.0]


def test_no_error_opens_a_file_that_a_program_names(tmp_path: Path) -> None:
    secret = tmp_path / "secret.py"
    secret.write_text("the secret\n")
    call = f"library aten.view.default(%x, [7])  # {secret}:1"
    path = tmp_path / "g.weft"
    save_program(program_of(f"graph g(%x: f32[2]) {{\n  %0: f32[7] = {call}\n  return %0\n}}\n", {}), path)
    sections = read_sections(path, SECTIONS)
    sections["graph"] = sections["graph"].replace(b"# secret.py", b"# " + str(secret).encode())
    path.write_bytes(b"".join(packed(sections)))
    with pytest.raises(RuntimeError) as caught:
        load_program(path)(torch.ones(2))
    assert "the secret" not in "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


# -- writing ----------------------------------------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(ExecutionError, match="No space left on device"):
        save_program(replace(parts(), default_dtype=torch.float64), file)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_a_folder_that_does_not_exist_is_an_execution_error(tmp_path: Path) -> None:
    with pytest.raises(ExecutionError, match="No such file or directory"):
        save_program(parts(), tmp_path / "missing" / "net.weft")


def test_a_replaced_file_keeps_its_permissions(file: Path) -> None:
    file.chmod(0o640)
    save_program(parts(), file)
    assert file.stat().st_mode & 0o777 == 0o640
