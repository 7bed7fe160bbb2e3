"""Declared sizes make programs for many sizes at the first call; broken promises are told."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft.api.declared_sizes import size_rows
from weft.errors import UsageError

pytestmark = pytest.mark.usefixtures("by_library")


def total(x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    x = x.sin()
    return (x if mask is None else x * mask).sum(-1)


def agrees(hybrid: Any, function: Any, *arguments: Any) -> None:
    with torch.no_grad():
        torch.testing.assert_close(hybrid(*arguments), function(*arguments))


def tops(hybrid: Any) -> list[Any]:
    return [program.range.tops for program in hybrid.varying]


class TestPrograms:
    def test_the_first_call_makes_a_program_for_all_sizes(self) -> None:
        hybrid = weft.hybridize(total, sizes={"x": {0: "batch", 1: ("length", 1, 512)}})
        for size in ((3, 12), (5, 7), (2, 16), (16, 3)):
            agrees(hybrid, total, torch.randn(size))
        assert hybrid.traces == 1
        assert not hybrid.programs

    def test_no_program_is_made_for_more_than_a_range_promises(self) -> None:
        hybrid = weft.hybridize(total, sizes={"x": {1: ("length", 1, 20)}})
        agrees(hybrid, total, torch.randn(3, 18))
        assert tops(hybrid) == [{0: (3, 20)}]

    def test_sizes_of_one_name_are_one_size(self) -> None:
        hybrid = weft.hybridize(total, sizes={"x": {0: "batch", 1: "length"}, "mask": {1: "length"}})
        for rows, length in ((4, 4), (3, 9), (7, 2)):
            agrees(hybrid, total, torch.randn(rows, length), torch.ones(1, length))
        assert hybrid.traces == 1

    def test_sizes_of_two_names_that_are_equal_by_chance_stay_two(self) -> None:
        hybrid = weft.hybridize(total, sizes={"x": {0: "batch", 1: "length"}})
        for size in ((4, 4), (4, 9), (9, 4)):
            agrees(hybrid, total, torch.randn(size))
        assert hybrid.traces == 1

    def test_two_names_of_what_the_code_wants_to_be_equal_are_one_size_once_that_has_been_seen(self) -> None:
        def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.sin() + y

        hybrid = weft.hybridize(both, sizes={"x": {0: "rows"}, "y": {0: "lines"}})
        for rows in (4, 7, 3, 12):
            agrees(hybrid, both, torch.randn(rows, 2), torch.randn(rows, 2))
        assert len(tops(hybrid)) == 1

    def test_what_nobody_has_named_may_go_with_a_named_size(self) -> None:
        hybrid = weft.hybridize(total, sizes={"x": {1: "length"}})
        for length in (5, 9, 7, 12):
            agrees(hybrid, total, torch.randn(3, length), torch.ones(1, length))
        (program,) = hybrid.varying
        assert program.range.varying == {0: frozenset({1}), 1: frozenset({1})}

    def test_a_dimension_may_be_counted_from_the_end(self) -> None:
        hybrid = weft.hybridize(total, sizes={"x": {-1: "length"}})
        agrees(hybrid, total, torch.randn(3, 9))
        assert tops(hybrid) == [{0: (3, 32)}]

    def test_a_dimension_that_is_declared_as_none_does_not_vary(self) -> None:
        hybrid = weft.hybridize(total, sizes={"x": {0: None}})
        for rows in (3, 5, 7):
            agrees(hybrid, total, torch.randn(rows, 4))
        assert not tops(hybrid)

    def test_dims_of_torch_export_are_taken(self) -> None:
        hybrid = weft.hybridize(
            total, sizes={"x": {0: torch.export.Dim("batch", min=1, max=20), 1: torch.export.Dim("n")}}
        )
        agrees(hybrid, total, torch.randn(18, 4))
        assert tops(hybrid) == [{0: (20, 16)}]
        with pytest.raises(UsageError, match="batch is 21"):
            hybrid(torch.randn(21, 4))

    def test_modules_and_their_copies_know_their_sizes(self) -> None:
        net = weft.hybridize(nn.Linear(3, 2), sizes={"input": {0: ("batch", 1, 64)}})
        for one in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            with torch.no_grad():
                one(torch.randn(5, 3))
            assert tops(one.forward) == [{0: (16, 3)}]
            with pytest.raises(UsageError, match="batch is 65"):
                one(torch.randn(65, 3))

    def test_calls_with_gradients_have_them(self) -> None:
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        hybrid = weft.hybridize(net.forward, sizes={"input": {0: "batch"}})
        for rows in (5, 9, 3):
            x = torch.randn(rows, 3)
            net.zero_grad()
            hybrid(x).sum().backward()
            ours = [parameter.grad for parameter in net.parameters()]
            net.zero_grad()
            net(x).sum().backward()
            torch.testing.assert_close(ours, [parameter.grad for parameter in net.parameters()])
        assert hybrid.traces == 1


@dataclass
class Batch:
    words: torch.Tensor
    lengths: torch.Tensor


class TestNesting:
    def test_tensors_in_dicts_lists_and_objects_are_found_by_their_places(self) -> None:
        def function(batch: Any, pair: Any) -> torch.Tensor:
            words = batch["words"] if isinstance(batch, dict) else batch.words
            return words.sin().sum(0) + pair[0].sum(0) + pair[1].sum(0)

        sizes = {"batch": {"words": {0: "rows"}}, "pair": [{0: "rows"}, {0: "others"}]}
        hybrid = weft.hybridize(function, sizes=sizes)
        for rows, others in ((5, 6), (7, 3), (12, 12)):
            tensors = [torch.randn(rows, 4), torch.randn(others, 4)]
            for batch in ({"words": torch.randn(rows, 4)}, Batch(torch.randn(rows, 4), torch.ones(1))):
                agrees(hybrid, function, batch, tensors)
        assert hybrid.traces == 2
        with pytest.raises(UsageError, match=r"rows is 3 .*dim 0 of batch\['words'\].* and 4 .*dim 0 of pair\[0\]"):
            hybrid({"words": torch.randn(3, 4)}, [torch.randn(4, 4), torch.randn(4, 4)])

    def test_arguments_may_be_given_by_keyword_or_not_at_all(self) -> None:
        hybrid = weft.hybridize(total, sizes={"x": {1: "length"}, "mask": {1: "length"}})
        x = torch.randn(3, 9)
        for keywords in ({"x": x}, {"mask": torch.ones(3, 9), "x": x}, {"x": x, "mask": None}):
            torch.testing.assert_close(hybrid(**keywords), total(**keywords))
        assert len(tops(hybrid)) == 3

    def test_each_of_several_arguments_in_one_is_found_by_its_number(self) -> None:
        def function(*rows: torch.Tensor) -> torch.Tensor:
            return rows[0].sin().sum(0) + rows[1].sum(0)

        hybrid = weft.hybridize(function, sizes={"rows": [{0: "first"}, {0: ("second", 1, 20)}]})
        agrees(hybrid, function, torch.randn(5, 2), torch.randn(18, 2))
        assert tops(hybrid) == [{0: (16, 2), 1: (20, 2)}]
        with pytest.raises(UsageError, match=r"second is 21 \(dim 0 of rows\[1\]\)"):
            hybrid(torch.randn(5, 2), torch.randn(21, 2))

    @pytest.mark.parametrize(
        ("sizes", "fact"),
        [
            ({"batch": {"word": {0: "rows"}}}, r"there is no batch\['word'\]"),
            ({"batch": {0: "rows"}}, "batch is no tensor"),
        ],
    )
    def test_places_that_are_not_there_are_told(self, sizes: Any, fact: str) -> None:
        hybrid = weft.hybridize(lambda batch: batch["words"].sin(), sizes=sizes)
        with pytest.raises(UsageError, match=fact):
            hybrid({"words": torch.randn(3)})


class TestPromises:
    @pytest.mark.parametrize("length", [0, 513])
    def test_a_size_outside_of_its_range_is_told_with_its_name(self, length: int) -> None:
        hybrid = weft.hybridize(total, sizes={"x": {1: ("length", 1, 512)}})
        for _ in range(2):
            with pytest.raises(UsageError, match=rf"length is {length} \(dim 1 of x\), and sizes= promises 1 to 512"):
                hybrid(torch.randn(2, length))
        agrees(hybrid, total, torch.randn(2, 5))
        with pytest.raises(UsageError, match=f"length is {length}"):
            hybrid(torch.randn(2, length))

    def test_what_runs_by_python_keeps_promises_too(self) -> None:
        hybrid = weft.hybridize(
            lambda x: torch.tensor(x.numpy() + 1), sizes={"x": {0: ("rows", 1, 4)}}, fallback="eager"
        )
        with pytest.warns(UserWarning, match="imperatively"):
            hybrid(torch.ones(3))
        with pytest.raises(UsageError, match="rows is 5"):
            hybrid(torch.ones(5))

    def test_a_size_that_is_not_there_is_told(self) -> None:
        hybrid = weft.hybridize(total, sizes={"x": {2: "depth"}})
        with pytest.raises(UsageError, match="x has 2 dimensions, and sizes= speaks of dim 2"):
            hybrid(torch.randn(2, 3))

    @pytest.mark.parametrize(
        ("sizes", "fact"),
        [
            (3, "sizes is a int"),
            ({"x": 3}, "the sizes of x are 3"),
            ({"x": {"0": "batch"}}, "dimension '0'"),
            ({"x": {0: ("batch", 5, 2)}}, "batch is from 5 to 2"),
            ({"x": {0: ("batch", -1, 2)}}, "batch is from -1 to 2"),
            ({"x": {0: ("batch", True, 2)}}, "batch is from True to 2"),
            ({"x": {0: ("batch", 2)}}, "is \\('batch', 2\\)"),
            ({"x": {0: "a b"}}, "'a b'"),
            ({"x": {0: 3}}, "is 3"),
            ({"x": {0: ("n", 1, 5), 1: ("n", 1, 6)}}, "n is 1 to 5 and 1 to 6"),
            ({"y": {0: "batch"}}, "speaks of an argument y"),
        ],
    )
    def test_what_can_be_no_declaration_is_refused_at_once(self, sizes: Any, fact: str) -> None:
        with pytest.raises(UsageError, match=fact):
            weft.hybridize(total, sizes=sizes)

    def test_a_range_that_is_given_once_holds_for_all_sizes_of_the_name(self) -> None:
        rows = size_rows({"x": {0: "n"}, "y": {1: ("n", 2, 5)}})
        assert {row.size and row.size.range for row in rows} == {"2 to 5"}


class TestWhatFixesASize:
    def test_explain_names_the_size_and_the_line_that_makes_it_a_number(self) -> None:
        def rows_of(x: torch.Tensor) -> torch.Tensor:
            y = x.sin()
            for row in range(x.shape[0]):
                y = y + row
            return y

        hybrid = weft.hybridize(rows_of, sizes={"x": {0: "rows", 1: "n"}})
        for size in ((4, 12), (3, 20)):
            agrees(hybrid, rows_of, torch.randn(size))
        text = str(weft.explain(hybrid))
        assert "rows (dim 0 of x) does not vary: the code makes it a number (" in text
        assert "for row in range(x.shape[0]):" in text
        assert text.count("does not vary") == 1
        assert "for sizes n 2 to" in text

    def test_sizes_that_nobody_declared_are_explained_too(self) -> None:
        hybrid = weft.hybridize(lambda x: x + len(range(len(x))))
        for rows in (3, 5, 7):
            agrees(hybrid, hybrid.function, torch.randn(rows, 4))
        assert "dim 0 of x does not vary" in str(weft.explain(hybrid))

    def test_conditions_have_the_names_of_sizes(self) -> None:
        hybrid = weft.hybridize(lambda x: x.sin() if x.shape[0] > 8 else x.cos(), sizes={"x": {0: "rows"}})
        agrees(hybrid, hybrid.function, torch.randn(9, 2))
        (program,) = hybrid.varying
        assert "rows > 8" in [condition.text for condition in program.conditions]


class TestSteps:
    def test_a_step_makes_one_program_at_its_first_batch(self) -> None:
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        other = copy.deepcopy(net)
        sizes = {"input": {0: ("batch", 1, 32)}, "target": {0: "batch"}}
        ours = weft.step(net, nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=0.1), sizes=sizes)
        usual = torch.optim.SGD(other.parameters(), lr=0.1)
        for rows in (32, 32, 17, 9):
            x, y = torch.randn(rows, 3), torch.randint(2, (rows,))
            usual.zero_grad()
            loss = nn.functional.cross_entropy(other(x), y)
            loss.backward()
            usual.step()
            torch.testing.assert_close(ours(x, y), loss.detach())
        torch.testing.assert_close([*net.parameters()], [*other.parameters()])
        assert ours.traces == 1
        with pytest.raises(UsageError, match=r"batch is 4 \(dim 0 of input\) and 5 \(dim 0 of target\)"):
            ours(torch.randn(4, 3), torch.randint(2, (5,)))
        with pytest.raises(UsageError, match="batch is 33"):
            ours(torch.randn(33, 3), torch.randint(2, (33,)))
        again = pickle.loads(pickle.dumps(ours))
        with pytest.raises(UsageError, match="batch is 33"):
            again(torch.randn(33, 3), torch.randint(2, (33,)))


class TestMarks:
    def test_a_marked_dimension_varies_from_the_first_call_on(self) -> None:
        hybrid = weft.hybridize(total)
        x = torch.randn(5, 6)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=18)
        agrees(hybrid, total, x)
        agrees(hybrid, total, torch.randn(9, 6))
        assert tops(hybrid) == [{0: (16, 6)}]
        y = torch.randn(17, 6)
        torch._dynamo.maybe_mark_dynamic(y, (0, 1))
        agrees(hybrid, total, y)
        assert tops(hybrid)[1:] == [{0: (64, 16)}]

    def test_a_dimension_that_is_marked_static_does_not(self) -> None:
        hybrid = weft.hybridize(total)
        for rows in (3, 5, 7):
            x = torch.randn(rows, 4)
            torch._dynamo.mark_static(x, 0)
            agrees(hybrid, total, x)
        assert not tops(hybrid)

    def test_equal_marked_sizes_may_be_one(self) -> None:
        def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.sin() + y

        hybrid = weft.hybridize(both)
        for rows in (5, 9, 3):
            x, y = torch.randn(rows, 2), torch.randn(rows, 2)
            for tensor in (x, y):
                torch._dynamo.mark_dynamic(tensor, 0)
            agrees(hybrid, both, x, y)
        assert hybrid.traces == 1

    def test_a_size_outside_of_a_marked_range_is_told(self) -> None:
        hybrid = weft.hybridize(total)
        x = torch.randn(5, 6)
        torch._dynamo.mark_dynamic(x, 0, min=8)
        with pytest.raises(UsageError, match="mark_dynamic promises at least 8"):
            hybrid(x)
