"""Executables compute what their plans say: with and without arena, lanes and packed weights, from many threads."""

import threading
from dataclasses import replace

import pytest
import torch
from tests.runtime.plans import TARGET, chain_plan, linear_plan

from weft.errors import InternalError
from weft.plan.form.plan import Buffer, KernelCall, Location, Plan
from weft.runtime.executable import NativeExecutable

linear = torch.nn.functional.linear


def test_a_plan_with_intermediates_runs() -> None:
    run = NativeExecutable(chain_plan(5000, "neg", "relu", "neg"), TARGET)
    x, out = torch.randn(5000), torch.empty(5000)
    run([x], [out])
    assert torch.equal(out, -(-x).relu())


def test_an_empty_plan_runs() -> None:
    NativeExecutable(Plan((), ()), TARGET)([], [])


def test_constants_are_read() -> None:
    plan = chain_plan(100, "neg")
    plan = replace(plan, buffers=(Buffer("constant", 0, 400), plan.buffers[1]))
    constant, out = torch.randn(100), torch.empty(100)
    run = NativeExecutable(plan, TARGET, [constant])
    run([], [out])
    assert torch.equal(out, -constant)


def test_a_missing_constant_is_an_error() -> None:
    with pytest.raises(InternalError, match="1 constants, 0 were given"):
        NativeExecutable(Plan((Buffer("constant", 0, 4),), ()), TARGET)


def test_a_location_may_be_inside_a_buffer() -> None:
    plan = chain_plan(100, "neg")
    (call,) = plan.calls
    run = NativeExecutable(replace(plan, calls=(KernelCall(call.kernel, (Location(1, 40),), call.reads),)), TARGET)
    x, out = torch.randn(100), torch.zeros(110)
    run([x], [out])
    assert torch.equal(out, torch.cat([torch.zeros(10), -x]))


def test_a_packed_weight_is_packed_and_packed_again_when_it_is_written() -> None:
    run = NativeExecutable(linear_plan(3, 20, 30), TARGET)
    x, weight, bias, out = torch.randn(3, 20), torch.randn(30, 20), torch.randn(30), torch.empty(3, 30)
    for _ in range(3):
        run([x, weight, bias], [out])
        torch.testing.assert_close(out, linear(x, weight, bias))
        weight.add_(1)


def test_a_packed_constant_is_packed() -> None:
    plan = linear_plan(3, 20, 30)
    x, weight, bias, out = torch.randn(3, 20), torch.randn(30, 20), torch.randn(30), torch.empty(3, 30)
    buffers = (plan.buffers[0], Buffer("constant", 0, 2400), Buffer("input", 1, 120), *plan.buffers[3:])
    NativeExecutable(replace(plan, buffers=buffers), TARGET, [weight])([x, bias], [out])
    torch.testing.assert_close(out, linear(x, weight, bias))


def test_programs_of_one_size_share_blocks_and_keep_their_own_weights() -> None:
    x, bias, out = torch.randn(3, 20), torch.randn(30), torch.empty(3, 30)
    runs = [(NativeExecutable(linear_plan(3, 20, 30), TARGET), torch.randn(30, 20)) for _ in range(2)]
    for _ in range(2):
        for run, weight in runs:
            run([x, weight, bias], [out])
            torch.testing.assert_close(out, linear(x, weight, bias))


@pytest.mark.parametrize("lanes", [1, 2])
def test_several_threads_call_one_executable(lanes: int) -> None:
    run = NativeExecutable(chain_plan(5000, "neg", "relu", lanes=lanes), TARGET)
    wrong: list[int] = []

    def work(number: int) -> None:
        x, out = torch.full((5000,), float(-number)), torch.empty(5000)
        for _ in range(50):
            run([x], [out.zero_()])
            if not bool((out == number).all()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []
