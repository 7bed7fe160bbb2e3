"""Behaviour of the text that a plan is kept as."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.runtime.plans import chain_plan, linear_plan
from torch import nn

import weft
from weft.errors import UsageError
from weft.plan.form.plan import Plan
from weft.plan.kernels.expression import Instruction
from weft.plan.kernels.kernel import KINDS
from weft.plan.kernels.loop import LoopKernel
from weft.plan.plan_record import plan_classes, read_plan, write_plan

NUMBERS = (0, 0.0, -0.0, 1, 1.0, True, float("inf"), -float("inf"), 2**40)


def image_plan() -> Plan:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Softmax(1))
    with torch.no_grad():
        return weft.program(net.eval(), torch.randn(1, 3, 10, 10)).plan.regions[0]


def with_numbers(*numbers: float) -> Plan:
    plan = chain_plan(100, "exp")
    kernel = plan.calls[0].kernel
    assert isinstance(kernel, LoopKernel)
    body = tuple(Instruction("constant", (), "f32", (number,)) for number in numbers)
    return replace(plan, calls=(replace(plan.calls[0], kernel=replace(kernel, body=body)),))


PLANS = (lambda: chain_plan(4000, "exp", "neg", lanes=2), lambda: linear_plan(4, 8, 16), image_plan)


@pytest.mark.parametrize("make", PLANS)
def test_a_plan_reads_back_as_it_was(make: Callable[[], Plan]) -> None:
    plan = make()
    assert repr(read_plan(write_plan(plan))) == repr(plan)


def test_numbers_that_python_finds_equal_stay_what_they_are() -> None:
    plan = with_numbers(*NUMBERS)
    assert repr(read_plan(write_plan(plan))) == repr(plan)
    assert write_plan(with_numbers(0.0)) != write_plan(with_numbers(-0.0))


def test_equal_parts_have_one_row() -> None:
    rows = json.loads(write_plan(chain_plan(4000, "exp", repeat=50)))
    assert len({json.dumps(row) for row in rows}) == len(rows)
    alike = json.loads(write_plan(chain_plan(4000, "exp", repeat=51)))
    assert len(alike) - len(rows) <= 12  # a kernel with its name, its places, a buffer, what lists them


def test_every_kernel_has_a_place_in_the_text() -> None:
    assert KINDS.items() <= plan_classes().items()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '[["tuple",1,2]]',
        '[["Plan"]]',
        "[[99,1]]",
        '[["Run",1]]',
        '[["tuple",[3]]]',
        '[["tuple",[0]]]',
        '[["int",1]]',
        "[1]",
        "[[]]",
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not the text of a plan"):
        read_plan(text)
