"""One program runs for many sizes, and what lies beyond them reaches nothing."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from tests.api.varying_cases import CASES, Case
from torch import nn

import weft
from weft.codegen.threads.layout import TABLE_OFFSET
from weft.errors import InternalError, OutOfMemoryError
from weft.runtime.arena import ArenaBlock, BlockPool
from weft.runtime.large_forms import VaryingInput

NATIVE = (
    "linear",
    "softmax",
    "all in one row",
    "second half",
    "joined with a longer one",
    "products over all rows",
    "causal attention",
    "attention with a mask",
    "encoder",
    "embedding at computed places",
    "graph",
    "convolution and norm",
    "largest of windows",
    "a part of one padded image",
    "pixels of the largest places",
)


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let NaN lie behind every input, and where every intermediate will be."""
    taken, taken_block = VaryingInput.take, BlockPool.take

    def take_block(self: BlockPool) -> ArenaBlock:
        block = taken_block(self)
        rest = len(block.memory) - TABLE_OFFSET
        block.memory[TABLE_OFFSET:] = b"\xff" * rest
        return block

    monkeypatch.setattr(BlockPool, "take", take_block)

    def take(self: VaryingInput, tensor: torch.Tensor, taker: Any) -> torch.Tensor:
        memory = taken(self, tensor, taker)
        if memory.is_floating_point():
            memory.fill_(float("nan"))
            self.put(memory, tensor, taker)
        return memory

    monkeypatch.setattr(VaryingInput, "take", take)


def tensors(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple) else [found]


def agree(case: Case) -> Any:
    """Call the code with all sizes, twice; every answer must be eager's."""
    hybrid = weft.hybridize(case.function if not isinstance(case.function, nn.Module) else case.function.forward)
    with torch.no_grad():
        for sizes in (*case.sizes, *case.sizes):
            arguments = case.make(*sizes)
            for ours, theirs in zip(tensors(hybrid(*arguments)), tensors(case.function(*arguments)), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
                if isinstance(theirs, torch.Tensor):
                    assert ours.stride() == theirs.stride()
    return hybrid


@pytest.mark.usefixtures("poisoned", "by_library")
@pytest.mark.parametrize("name", CASES)
def test_calls_of_many_sizes_give_eager_s_answers(name: str) -> None:
    hybrid = agree(CASES[name])
    programs = list(hybrid.varying)
    assert programs, hybrid.varying.refusals
    assert hybrid.traces <= len(CASES[name].sizes) + 1


@pytest.mark.slow
@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("name", NATIVE)
def test_machine_code_for_many_sizes_gives_eager_s_answers(name: str) -> None:
    hybrid = agree(CASES[name])
    assert list(hybrid.varying)


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.usefixtures("by_library")
class TestPrograms:
    def test_the_second_size_makes_a_program_that_all_later_ones_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # On a busy machine a closer program would be worth it.
        monkeypatch.setattr("weft.api.varying.VaryingProgram.is_worth_less", lambda *_: False)
        hybrid = weft.hybridize(lambda x: x.mean(0))
        with torch.no_grad():
            for size in (3, 5, *range(2, 17)):
                x = torch.randn(size, 4)
                torch.testing.assert_close(hybrid(x), x.mean(0))
        assert hybrid.traces == 2

    def test_what_holds_of_no_or_one_row_decides_nothing_for_many(self) -> None:
        def code(x: torch.Tensor) -> torch.Tensor:
            times = len(range(x.shape[1])) if x.shape[0] == 1 else 1
            return x.reshape(x.shape[0], -1, 4).sum(1) * times

        hybrid = weft.hybridize(code)
        with torch.no_grad():
            for sizes in ((3, 4), (0, 6), (1, 6), (1, 8), (5, 8), (2, 14), (4, 10)):
                x = torch.randn(*sizes, 8)
                if not sizes[0]:
                    with pytest.raises(RuntimeError, match="0 elements"):
                        hybrid(x)
                    continue
                torch.testing.assert_close(hybrid(x), code(x))
        (program,) = hybrid.varying
        assert program.range.varying == {0: {0, 1}}

    @pytest.mark.parametrize("size", [0, 1])
    def test_sizes_of_nothing_and_of_one_have_programs_of_their_own(self, size: int) -> None:
        hybrid = weft.hybridize(lambda x: x.sum(0))
        with torch.no_grad():
            for rows in (3, 5, size):
                x = torch.randn(rows, 4)
                torch.testing.assert_close(hybrid(x), x.sum(0))
        assert hybrid.traces == 3

    @pytest.mark.parametrize("kind", [InternalError, OutOfMemoryError, MemoryError])
    def test_mistakes_of_weft_and_full_machines_are_told(self, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(*_: Any) -> Any:
            raise kind("of a test")

        hybrid = weft.hybridize(lambda x: x.mean(0))
        with torch.no_grad():
            hybrid(torch.randn(3, 4))
            monkeypatch.setattr("weft.api.hybrid.trace_varying", fails)
            with pytest.raises(kind):
                hybrid(torch.randn(5, 4))
            monkeypatch.undo()
            x = torch.randn(6, 4)
            torch.testing.assert_close(hybrid(x), x.mean(0))

    def test_a_size_that_the_code_fixes_stays_a_number(self) -> None:
        hybrid = weft.hybridize(lambda x: x @ torch.ones(4, 2))
        with torch.no_grad():
            for rows in (3, 5, 7):
                hybrid(torch.randn(rows, 4))
        (program,) = hybrid.varying
        assert program.range.varying == {0: frozenset({0})}

    def test_what_code_decides_by_a_size_is_a_condition(self) -> None:
        hybrid = weft.hybridize(lambda x: x * 2 if x.shape[0] % 2 else x * 3)
        with torch.no_grad():
            for rows in (4, 6, 8, 5, 7, 9, 16, 15):
                x = torch.randn(rows, 4)
                torch.testing.assert_close(hybrid(x), x * 2 if rows % 2 else x * 3)

    def test_sizes_that_were_equal_and_are_no_longer_get_another_program(self) -> None:
        hybrid = weft.hybridize(lambda x, y: (x @ y.T).sum(1))
        with torch.no_grad():
            for one, other in ((3, 3), (5, 5), (6, 6), (4, 7), (8, 5)):
                x, y = torch.randn(one, 4), torch.randn(other, 4)
                torch.testing.assert_close(hybrid(x, y), (x @ y.T).sum(1))
        assert len(list(hybrid.varying)) == 2

    def test_an_index_that_is_not_there_raises_as_eager_does(self) -> None:
        table = torch.randn(10, 4)
        hybrid = weft.hybridize(lambda i: table[i].sum(0))
        with torch.no_grad():
            for rows in (3, 5, 6):
                hybrid(torch.randint(0, 10, (rows,)))
            with pytest.raises(IndexError):
                hybrid(torch.tensor([1, 2, 30, 4]))

    def test_weights_are_read_as_they_are_at_each_call(self) -> None:
        net = weft.hybridize(nn.Linear(4, 2))
        with torch.no_grad():
            for rows in (3, 5, 6):
                net(torch.randn(rows, 4))
            net.weight.mul_(2)
            x = torch.randn(7, 4)
            torch.testing.assert_close(net(x), x @ net.weight.T + net.bias)

    def test_results_are_tensors_of_their_own(self) -> None:
        hybrid = weft.hybridize(twice)
        with torch.no_grad():
            for rows in (3, 5):
                hybrid(torch.randn(rows, 4))
            one = hybrid(torch.ones(6, 4))
            other = hybrid(torch.zeros(7, 4))
        assert torch.equal(one, torch.full((6, 4), 2.0))
        assert one._base is None
        assert one.untyped_storage().nbytes() == 6 * 4 * 4
        assert torch.equal(other, torch.zeros(7, 4))

    def test_calls_in_inference_mode_give_inference_tensors(self) -> None:
        hybrid = weft.hybridize(lambda x: x.softmax(0))
        with torch.inference_mode():
            for rows in (3, 5, 6):
                x = torch.randn(rows, 4)
                found = hybrid(x)
                torch.testing.assert_close(found, x.softmax(0))
                assert found.is_inference()

    def test_threads_share_a_program(self) -> None:
        hybrid = weft.hybridize(lambda x: (x @ x.T).softmax(-1).sum(0))
        wrong: list[int] = []
        with torch.no_grad():
            for rows in (3, 5):
                hybrid(torch.randn(rows, 4))

        def call(seed: int) -> None:
            generator = torch.Generator().manual_seed(seed)
            with torch.no_grad():
                for turn in range(50):
                    x = torch.randn(2 + (turn * seed) % 15, 4, generator=generator)
                    if not torch.allclose(hybrid(x), (x @ x.T).softmax(-1).sum(0), atol=1e-5):
                        wrong.append(turn)

        threads = [threading.Thread(target=call, args=(seed,)) for seed in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong

    def test_what_has_no_program_for_many_sizes_says_so_once(self, caplog: pytest.LogCaptureFixture) -> None:
        def function(x: torch.Tensor) -> torch.Tensor:
            return torch.as_strided_copy(x, (2, 2), (1, 1))

        hybrid = weft.hybridize(function)
        with caplog.at_level("INFO", "weft"), torch.no_grad():
            for rows in (3, 5, 6, 7):
                x = torch.randn(rows, 4)
                torch.testing.assert_close(hybrid(x), function(x))
        assert [line for line in caplog.messages if "sizes do not vary" in line] == [
            (
                "weft: sizes do not vary: aten.as_strided_copy.default of sizes that vary has no rule, and "
                "aten.as_strided_copy.default reads memory as such"
            )
        ]

    def test_explain_says_which_sizes_a_program_takes(self) -> None:
        hybrid = weft.hybridize(twice)
        with torch.no_grad():
            for rows in (3, 5):
                hybrid(torch.randn(rows, 4))
        assert "for sizes 2 to 16 in dim 0 of x" in str(weft.explain(hybrid))

    def test_a_size_that_comes_often_gets_a_program_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        hybrid = weft.hybridize(twice)
        with torch.no_grad():
            for rows in (3, 5, 6):
                hybrid(torch.randn(rows, 4))
            assert hybrid.traces == 2
            monkeypatch.setattr("weft.api.rare_calls.OFTEN", 0.0)
            monkeypatch.setattr("weft.api.sized_calls.MOST_SECONDS", 0.0)
            for rows in (6, 6, 6):
                assert torch.equal(hybrid(torch.ones(rows, 4)), torch.full((rows, 4), 2.0))
        assert hybrid.traces == 3
        assert hybrid.rare.calls == 0

    def test_a_call_that_needs_little_of_the_only_program_is_run_by_python_until_a_closer_one_is_worth_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # As if kernels did not end where calls do.
        share = "weft.runtime.varying_sizes.VaryingExecutable.share_for"
        monkeypatch.setattr(share, lambda _, sizes, largest: sizes[0] / largest[0])
        hybrid = weft.hybridize(twice)
        with torch.no_grad():
            for rows in (100, 90):
                hybrid(torch.randn(rows, 4))
            (program,) = hybrid.varying
            assert torch.equal(hybrid(torch.ones(9, 4)), torch.full((9, 4), 2.0))
            assert (10,) in program.wasted
            program.wasted[(10,)] = program.cost + 1
            assert torch.equal(hybrid(torch.ones(8, 4)), torch.full((8, 4), 2.0))
        assert [one.range.tops[0][0] for one in hybrid.varying] == [10, 128]

    def test_one_tensor_that_is_two_arguments_stays_one(self) -> None:
        hybrid = weft.hybridize(lambda x, y: x + 1 if x is y else x * y)
        with torch.no_grad():
            for rows in (3, 5, 6):
                x = torch.randn(rows, 4)
                assert torch.equal(hybrid(x, x), x + 1)
                assert torch.equal(hybrid(x, x.clone()), x * x)

    def test_parameters_and_tensors_with_gradients_have_programs_of_their_own(self) -> None:
        hybrid = weft.hybridize(lambda x: x * 2 if x.requires_grad or isinstance(x, nn.Parameter) else x * 3)
        with torch.no_grad():
            for rows in (3, 5, 6):
                x = torch.randn(rows, 4)
                assert torch.equal(hybrid(nn.Parameter(x)), x * 2)
                assert torch.equal(hybrid(x), x * 3)
                assert torch.equal(hybrid(x.clone().requires_grad_()), x * 2)
