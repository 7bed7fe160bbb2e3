"""What cannot be a program is refused with the user's line, the reason and the way out, and does no harm."""

from __future__ import annotations

import copy
import inspect
import time
import warnings
from contextvars import ContextVar
from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft.errors import UnsupportedError
from weft.ir.graph import Place
from weft.trace.interception import refusals, user_lines
from weft.trace.interception.refusals import KEEP_EAGER, ONCE, REFUSALS


def refused(thing: Any, *arguments: Any) -> UnsupportedError:
    with pytest.raises(UnsupportedError) as caught:
        weft.hybridize(thing)(*arguments)
    return caught.value


def line(function: Any, code: str) -> str:
    """The place of a line in a function of this file, as errors name it."""
    lines, first = inspect.getsourcelines(function)
    return next(
        f"tests/api/test_unsupported.py:{first + index}   {text.strip()}"
        for index, text in enumerate(lines)
        if code in text
    )


# -- exercises 20 and 21 of the chapter -------------------------------------------------------------------------------


class PrintsAsArray(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print(x.numpy())
        return x * 2


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x
        return -x


class Loops(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = x + 1
        for row in x:
            x = x + row
        x += len(x)
        x[0] = 7
        return x


def test_exercise_20_asking_for_an_array_works_before_hybridizing_and_is_refused_after(capsys: Any) -> None:
    net, x = PrintsAsArray(), torch.ones(2)
    assert net(x).tolist() == [2.0, 2.0]
    assert capsys.readouterr().out == "[1. 1.]\n"
    assert str(refused(net, x)) == (
        "the program hands a tensor to NumPy\n"
        f"  where {line(PrintsAsArray, 'print(')}\n"
        "  why   NumPy works on memory, and while Python is traced there are no elements yet\n"
        "  fix   use the torch function of the same name, or convert after the call; or hybridize the "
        "parts around it; without whole=True Python runs it at each call"
    )


def test_exercise_21_a_branch_on_a_value_is_refused() -> None:
    assert str(refused(Branches(), torch.ones(2))) == (
        "the program branches on the value of a tensor\n"
        f"  where {line(Branches, 'if ')}\n"
        "  why   hybridize runs Python once per signature; whatever Python learned from a tensor's value would stay as "
        "it was\n"
        "  fix   use torch.where(condition, a, b), or hybridize the parts around it; without whole=True it runs as "
        "paths"
    )


def test_exercise_21_loops_lengths_and_in_place_changes_just_work() -> None:
    net, x = Loops(), torch.randn(3, 2)
    ours, theirs = x.clone(), x.clone()
    assert torch.equal(weft.hybridize(net)(ours), Loops.forward(net, theirs))
    assert torch.equal(ours, theirs)


# -- a row each -------------------------------------------------------------------------------------------------------

numbers = iter([1.0])
kept_elsewhere = torch.zeros(2)
HELD = slice(kept_elsewhere)
kept: set[Any] = set()


def keep(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    kept.add(y)
    return y


def seeds_its_own(x: torch.Tensor) -> torch.Tensor:
    return torch.rand(2, generator=torch.Generator().manual_seed(0)) + x


def makes_a_leaf(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = torch.zeros(2, requires_grad=True)
    return x + leaf, leaf


def reinterprets(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x.view(torch.int32).add_(1)
    return x


def makes_a_subclass(x):
    try:
        return torch.Tensor._make_subclass(Labelled, x * 2)
    except RuntimeError:
        return x * 3


class Labelled(torch.Tensor):
    """A class of the user's."""


LEVEL: ContextVar[int] = ContextVar("level")
ROWS = [
    ("branch", lambda x: x if x.any() else -x),
    ("branch", lambda x: x if bool(x[0] > 0) else -x),
    ("number", lambda x: x * x.sum().item()),
    ("number", lambda x: x * float(x.sum())),
    ("number", lambda x: [x] * int(x.sum())),
    ("list", lambda x: x.tolist()),
    ("text", lambda x: f"{x.sum():.3f}"),
    ("numpy", lambda x: x.numpy()),
    ("numpy", lambda x: x.__array__()),
    ("address", lambda x: x.data_ptr()),
    ("data-dependent shape", lambda x: x[x > 0] * 2),
    ("data-dependent shape", lambda x: x.nonzero() + 1),
    ("iterator", lambda x: next(numbers) * x),
    ("impure call", lambda x: time.time() * x),
    ("captured write", lambda x: HELD.stop.add_(x * 2)),
    ("backward inside", lambda x: (x * x.clone().requires_grad_()).sum().backward()),
    ("gradient read", lambda x: x.grad),
    ("made subclass", makes_a_subclass),
    ("made subclass", lambda x: nn.Parameter(x * 2)),
    ("made subclass", lambda x: [x, {"made": nn.Parameter(torch.ones(2))}]),
    ("gradient put", lambda x: setattr(x, "grad", None)),
    ("gradient put", lambda x: delattr(x, "grad")),
    ("gradient kept", lambda x: (x * x.clone().requires_grad_()).retain_grad()),
    ("context variable", lambda x: LEVEL.set(2) and x),
    ("memory replaced", lambda x: x.set_(torch.ones(3))),
    ("memory replaced", lambda x: setattr(x, "data", torch.ones(3))),
    ("input reshaped in place", lambda x: x.unsqueeze_(0)),
    ("made leaf", makes_a_leaf),
    ("kept tensor", keep),
    ("layout", lambda x: x.to_sparse()),
    ("layout", lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()),
    ("generator", seeds_its_own),
]


@pytest.mark.parametrize(("kind", "function"), ROWS, ids=[kind for kind, _ in ROWS])
def test_each_thing_that_cannot_be_traced_has_its_error(kind: str, function: Any) -> None:
    error = refused(function, torch.ones(2))
    fact, why, fix = REFUSALS[kind]
    assert error.fact == fact or error.fact.startswith(fact + " (")
    assert (error.why, error.fix) == (why, fix)
    if error.where is not None:
        assert error.where.startswith("tests/api/test_unsupported.py:")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensor_subclasses_and_sparse_arguments_are_refused() -> None:
    class Marked(torch.Tensor):
        pass

    assert "tensor subclass (Marked)" in refused(lambda x: x * 2, torch.ones(2).as_subclass(Marked)).fact
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert "(nested tensor)" in refused(lambda x: x * 2, nested).fact
    assert "not strided" in refused(lambda x: x * 2, torch.eye(2).to_sparse()).fact


def test_every_row_says_what_why_and_what_to_do() -> None:
    for kind, (fact, why, fix) in REFUSALS.items():
        assert fact.startswith(("the program", "the size", "an operator", "the backward")), kind
        assert why, kind
        assert fix, kind
    assert ONCE in REFUSALS["branch"][1]
    assert KEEP_EAGER in REFUSALS["numpy"][2]


# -- the line that is named -------------------------------------------------------------------------------------------


def test_inside_sequential_the_line_is_that_of_the_inner_module() -> None:
    error = refused(nn.Sequential(nn.Linear(2, 2), Branches(), nn.ReLU()), torch.ones(2))
    assert error.where == line(Branches, "if ")


def test_a_branch_in_a_torch_module_names_the_users_line_and_that_of_the_library(monkeypatch: Any) -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.utils.rnn.unpad_sequence(x, x.long().flatten()[:1])[0]

    error = refused(Odd(), torch.ones(1, 1))
    first, second = error.where.split("\n")
    assert first.startswith("tests/api/test_unsupported.py:")
    assert "unpad_sequence" in first
    assert second.startswith("torch/nn/utils/rnn.py:")


# -- no harm done -----------------------------------------------------------------------------------------------------


def test_after_a_refusal_everything_is_as_it_was() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last: Any = "nothing"
            self.register_buffer("mean", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean = self.mean * 0.9 + x
            self.last = self.mean * 2
            torch.rand(1)
            kept.add(x + 1)
            return self.mean

    net, x = Net(), torch.ones(2)
    torch.manual_seed(5)
    error = refused(net, x)
    assert error.fact == "the program keeps a tensor that it computed in a Python object (a set)"
    assert kept == set()
    assert net.last == "nothing"
    assert net.mean.tolist() == [0.0, 0.0]
    assert torch.equal(torch.rand(1), torch.rand(1, generator=torch.Generator().manual_seed(5)))
    weft.hybridize(net, False)
    assert net(x).tolist() == [1.0, 1.0]


def test_a_hook_that_keeps_what_it_sees_in_a_set_is_refused_and_cleaned() -> None:
    net, seen = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), {"old"}
    net[0].register_forward_hook(lambda _module, _inputs, output: seen.add(output))
    assert refused(net, torch.ones(2)).fact.endswith("(a set)")
    assert seen == {"old"}


def test_a_buffer_that_is_added_to_in_place_by_assignment_is_no_kept_tensor() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.values = [torch.zeros(())]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x * self.count

    net = weft.hybridize(Counts())
    for step in (1.0, 2.0, 3.0):
        assert net(torch.ones(1)).item() == step
    assert net.count.item() == 3.0


def test_a_mistake_in_the_users_program_is_the_very_exception_of_eager() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        weft.hybridize(lambda x: x @ x)(torch.ones(2, 3))
    with pytest.raises(NameError, match="undefined_name"):
        weft.hybridize(lambda x: x + undefined_name)(torch.ones(2))  # noqa: F821

    def raises(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        weft.hybridize(raises)(torch.ones(2))


def test_code_that_makes_a_parameter_of_an_argument_says_so_and_where() -> None:
    found = str(refused(lambda x: x.as_subclass(nn.Parameter), torch.ones(2)))
    assert found.startswith("the program makes a parameter, or a tensor of another class, of a tensor that it is given")
    assert "\n  where tests/api/test_unsupported.py:" in found


# -- fallback ---------------------------------------------------------------------------------------------------------


def test_fallback_takes_arguments_that_no_program_takes() -> None:
    dense = weft.hybridize(lambda x: x.to_dense() * 2, fallback="eager")
    with pytest.warns(
        UserWarning, match="runs imperatively from now on: the program uses a tensor that is not strided"
    ):
        assert torch.equal(dense(torch.eye(2).to_sparse()), torch.eye(2) * 2)


def test_fallback_warns_once_at_the_callers_line_and_runs_imperatively() -> None:
    net = weft.hybridize(Branches(), fallback="eager")
    with pytest.warns(UserWarning, match="runs imperatively") as seen:
        assert net(torch.ones(2)).tolist() == [1.0, 1.0]
    assert len(seen) == 1
    assert str(seen[0].message).startswith(
        "weft: Branches runs imperatively from now on: the program branches on the value of a tensor\n  where "
    )
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert net(-torch.ones(2)).tolist() == [1.0, 1.0]
        assert net(-torch.ones(3)).tolist() == [1.0, 1.0, 1.0]


def test_a_program_of_what_runs_imperatively_is_refused_with_the_reason() -> None:
    function = weft.hybridize(lambda x: x if x.any() else -x, fallback="eager")
    with pytest.warns(UserWarning, match="runs imperatively"):
        function(torch.ones(2))
    with pytest.raises(UnsupportedError, match="branches on the value"):
        weft.program(function, torch.ones(2))


def test_distributions_whose_own_checks_branch_say_how_not_to() -> None:
    def drawn(chance: torch.Tensor, check: bool | None) -> torch.Tensor:
        return torch.distributions.Geometric(chance, validate_args=check).log_prob(torch.ones(3))

    chance = torch.rand(3)
    error = refused(drawn, chance, True)
    assert "validate_args=False" in error.fix
    assert "torch/distributions/" in error.where
    torch.testing.assert_close(weft.hybridize(drawn)(chance, False), drawn(chance, False))


def test_packed_sequences_say_how_to_go_on() -> None:
    lengths = torch.tensor([2, 4, 1])
    x = torch.randn(3, 4, 5)
    layer = nn.GRU(5, 6, 2, batch_first=True, dropout=0.1)

    def packed(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        rows = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        last: torch.Tensor = layer(rows)[1][-1]
        return last

    error = refused(packed, x, lengths)
    assert "make them layers of their own" in error.fix
    assert "last: torch.Tensor = layer(rows)[1][-1]" in error.where
    layer.eval()
    torch.testing.assert_close(weft.hybridize(packed)(x, lengths), packed(x, lengths))


def test_other_refusals_inside_distributions_keep_their_own_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(user_lines.DISTRIBUTIONS[0] + "/normal.py", 1, "f")
    monkeypatch.setattr(refusals, "library_place", lambda: place)
    assert "validate_args=False" in refusals.refusal("branch", None).fix
    assert refusals.refusal("layout", None).fix == REFUSALS["layout"][2]


def test_an_observer_of_channels_has_to_have_seen_some() -> None:
    quantization = torch.ao.quantization
    observer = quantization.MovingAveragePerChannelMinMaxObserver
    quantize = quantization.FusedMovingAvgObsFakeQuantize(
        observer, quant_min=-128, quant_max=127, dtype=torch.qint8, qscheme=torch.per_channel_symmetric
    )
    error = refused(quantize, torch.randn(4, 3))
    assert "call the module once before" in (error.fix or "")
    weft.hybridize(quantize, False)
    quantize(torch.randn(4, 3))
    expected, x = copy.deepcopy(quantize), torch.randn(4, 3)
    torch.testing.assert_close(weft.hybridize(quantize)(x), expected(x))
