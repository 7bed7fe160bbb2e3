"""Loaded programs in machine code: the bits of the program that was saved, and no trust in what a file says."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft.api.export import export
from weft.errors import ExecutionError, UnsupportedError, UsageError, WeftError
from weft.guards.entry import MISSED, refuse_all
from weft.ir.graph import Value
from weft.ir.interpreter import evaluate
from weft.ir.parser import parse_graph
from weft.programs.loaded import LoadedProgram
from weft.programs.parts import ProgramParts, StateTensor
from weft.programs.structure import CallStructure, LeafPort

X = torch.randn(5, 8)


def loaded(text: str, arguments: int = 1, **state: torch.Tensor) -> LoadedProgram:
    """A program from text, of positional arguments and then its state; gives the first result."""
    given = tuple((f"x{index}", LeafPort(index)) for index in range(arguments))
    kept = tuple(StateTensor(arguments + index, name, tensor) for index, (name, tensor) in enumerate(state.items()))
    return LoadedProgram(
        ProgramParts(parse_graph(text, []), CallStructure(given, ()), LeafPort(0), kept, None, True, torch.float32)
    )


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3)).eval()


def reloaded(net: nn.Module, folder: Path) -> LoadedProgram:
    weft.program(net, X).save(folder / "net.weft")
    return weft.load_program(folder / "net.weft")


def test_a_loaded_program_gives_the_bits_of_the_one_that_was_saved(tmp_path: Path) -> None:
    net = network()
    program = reloaded(net, tmp_path)
    assert len(program.plan.regions) == 1
    with torch.no_grad():
        expected = weft.hybridize(net)(X)
    for _ in range(3):
        assert torch.equal(program(X), expected)


def test_what_is_written_into_the_state_is_seen_by_the_next_call(tmp_path: Path) -> None:
    program = reloaded(network(), tmp_path)
    program(X)
    program.state["3.weight"].zero_()
    program.state["3.bias"].fill_(2)
    assert program(X).unique().tolist() == [2.0]


def test_a_built_in_function_stands_for_calls_alike_and_refuses_others(tmp_path: Path) -> None:
    net = network()
    program = reloaded(net, tmp_path)
    for _ in range(3):
        program(X)
    assert program._entry is not refuse_all
    assert torch.equal(program._entry(X), program(X))
    assert program._entry(X.double()) is MISSED
    with pytest.raises(UsageError, match=r"x0|input"):
        program(X.double())
    torch.testing.assert_close(program(X * 2), net(X * 2))
    program.state["3.weight"].zero_()
    program.state["3.bias"].fill_(2)
    assert program(X).unique().tolist() == [2.0]


def test_a_state_tensor_that_was_given_other_sizes_is_refused(tmp_path: Path) -> None:
    program = reloaded(network(), tmp_path)
    for _ in range(3):
        program(X)
    weight = program.state["0.weight"]
    before = weight.data
    weight.data = torch.randn(2, 2)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"state\['0.weight'\] must be f32\[16,8\], and is f32\[2,2\]"):
            program(X)
    weight.data = before
    torch.testing.assert_close(program(X), program(X))


def test_many_threads_may_make_the_first_call(tmp_path: Path) -> None:
    net = network()
    program, start = reloaded(net, tmp_path), Barrier(8, timeout=20)

    def call(_: int) -> torch.Tensor:
        start.wait()
        return program(X)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(call, range(8)))
    assert all(torch.equal(result, results[0]) for result in results)
    torch.testing.assert_close(results[0], net(X))


def test_what_another_thread_draws_during_a_first_call_stays_drawn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = reloaded(network(), tmp_path)
    drawn: list[torch.Tensor] = []

    def beside_draws(value: Value, operands: Sequence[Any]) -> Any:
        with ThreadPoolExecutor(1) as pool:
            drawn.append(pool.submit(torch.rand, 3).result(20))
        return evaluate(value, operands)

    monkeypatch.setattr("weft.programs.loaded.evaluate", beside_draws)
    torch.manual_seed(0)
    program(X)
    drawn.append(torch.rand(3))
    torch.manual_seed(0)
    assert torch.equal(torch.stack(drawn), torch.stack([torch.rand(3) for _ in drawn]))


def test_a_call_of_another_form_leaves_the_built_in_function_in_place(tmp_path: Path) -> None:
    program = reloaded(network(), tmp_path)
    expected = [program(X) for _ in range(3)][-1]
    standing = program._entry
    assert standing is not refuse_all
    assert torch.equal(program(input=X), expected)
    assert program._entry is standing


@pytest.mark.parametrize("lie", ["f32[50,80]", "f64[5,8]"])
def test_what_a_file_says_of_an_operator_is_not_believed(lie: str, tmp_path: Path) -> None:
    text = f"""graph net(%x: f32[5,8]) {{
      %0: {lie} = library aten.relu.default(%x)
      %1: {lie} = library aten.sigmoid.default(%0)
      return %1
    }}"""
    program = loaded(text)
    for _ in range(2):
        with pytest.raises(UsageError, match="is not what its file says"):
            program(X)
    with pytest.raises(WeftError):
        export(program, tmp_path / "net")
    assert not list(tmp_path.iterdir())


def test_sizes_that_depend_on_values_are_compared_at_every_call() -> None:
    text = """graph net(%x: f32[4]) {
      %0: i64[2,1] = library aten.nonzero.default(%x)
      %1: i64[2,1] = library aten.mul.Tensor(%0, 3)
      return %1
    }"""
    program = loaded(text)
    assert program(torch.tensor([0.0, 1.0, 0.0, 1.0])).tolist() == [[3], [9]]
    with pytest.raises(ExecutionError, match=r"sizes \[1, 1\]; the program was made for \[2, 1\]"):
        program(torch.tensor([0.0, 1.0, 0.0, 0.0]))


def test_an_index_out_of_range_in_a_small_op_of_a_file_reads_nothing(tmp_path: Path) -> None:
    text = """graph net(%x: f32[4], %index: i64[2]) {
      %0: f32[2] = gather %x, %index, dimension=0
      return %0
    }"""
    program = loaded(text, arguments=2)
    assert not program.plan.regions
    assert program(torch.arange(4.0), torch.tensor([3, 1])).tolist() == [3, 1]
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        program(torch.arange(4.0), torch.tensor([1 << 40, 1]))
    with pytest.raises(UnsupportedError, match="PyTorch's operators alone"):
        export(program, tmp_path / "net")


def test_an_index_out_of_range_in_an_operator_is_pytorchs_error() -> None:
    text = """graph net(%index: i64[2], %table: f32[3,4]) {
      %0: f32[2,4] = library aten.embedding.default(%table, %index)
      %1: f32[2,4] = library aten.relu.default(%0)
      return %1
    }"""
    table = torch.rand(3, 4)
    program = loaded(text, table=table)
    assert len(program.plan.regions) == 1
    assert torch.equal(program(torch.tensor([2, 0])), table[[2, 0]])
    with pytest.raises(IndexError, match="index out of range"):
        program(torch.tensor([2, 3]))


class Marked(torch.Tensor):
    """A tensor with operators of its own."""


def test_a_tensor_with_operators_of_its_own_meets_operators(tmp_path: Path) -> None:
    net = network()
    program = reloaded(net, tmp_path)
    torch.testing.assert_close(torch.Tensor(program(X.as_subclass(Marked))), net(X))


CALLS: list[int] = []


@torch.library.custom_op("weft_running::count", mutates_args=())
def count(x: torch.Tensor) -> torch.Tensor:
    CALLS.append(1)
    return x + 1


def test_an_operator_of_another_package_runs_once_a_call() -> None:
    text = """graph net(%x: f32[5,8]) {
      %0: f32[5,8] = library weft_running.count.default(%x)
      return %0
    }"""
    program = loaded(text)
    for _ in range(2):
        CALLS.clear()
        assert torch.equal(program(X), X + 1)
        assert len(CALLS) == 1
