"""The conformance harness itself: eager passes it, and every deliberate fault is caught."""

import dataclasses
import os
import time

import pytest
import torch
from tests.conformance import sweep
from tests.conformance.cases import Record, Rule, Section, Status, Trial
from tests.conformance.compare import (
    same_bits,
    same_rounding,
    within_model_bound,
    within_native_bound,
)
from tests.conformance.contestants import CONTESTANTS, FAULTS
from tests.conformance.fresh import fresh
from tests.conformance.judge import judge
from tests.conformance.play import Call, play
from tests.conformance.report import page, passed, table

from weft.config import overrides
from weft.lazy_tensors.segment_plan import SegmentPlan

OVERLAP = torch.randn(4).expand(3, 4)


def view_of_argument(x):
    return x.t()


def mutates(x):
    return x.mul_(2).sum()


def draws(x):
    return x + torch.rand(x.shape)


def refuses(x):
    raise ValueError("no " + str(x.shape))


def plain(x):
    return x.exp()


@pytest.fixture(autouse=True)
def library_calls():
    """Compare bit by bit, except in tests that ask for native code."""
    with overrides(codegen="library"):
        yield


FUNCTIONS = (view_of_argument, mutates, draws, refuses, plain)

CAUGHT_ON = {
    "one_ulp_off": plain,
    "results_copied": view_of_argument,
    "arguments_copied": mutates,
    "other_stride": plain,
    "other_stream": draws,
    "other_error": refuses,
}


def trial_of(function, value, *, backward=False, rule=Rule.BITS):
    def start(contestant):
        wrapped = contestant(function)

        def player(_number):
            return play(Call(wrapped, (fresh(value),), {}, backward=backward))

        return player

    return Trial(start, rule)


def status_of(trial, contestant):
    return judge(trial, CONTESTANTS[contestant], ("harness", "entry", 0)).status


@pytest.mark.parametrize("function", FUNCTIONS)
def test_eager_equals_itself(function):
    assert status_of(trial_of(function, torch.randn(3, 4)), "identity") is Status.EQUAL


@pytest.mark.parametrize("fault", CAUGHT_ON)
def test_each_deliberate_fault_is_caught(fault):
    assert status_of(trial_of(CAUGHT_ON[fault], torch.randn(3, 4)), fault) is Status.WRONG


def test_samples_of_lazy_code_are_run_by_programs(monkeypatch):
    by_operators = []
    plain = SegmentPlan.by_operators
    monkeypatch.setattr(SegmentPlan, "by_operators", lambda plan: by_operators.append(plain(plan)) or by_operators[-1])
    found = CONTESTANTS["lazy"](lambda x: torch.sin(x) + x * 2)(torch.ones(300))
    assert torch.equal(found, torch.sin(torch.ones(300)) + 2)
    assert not by_operators[-1]


def test_native_code_may_round_otherwise_but_not_by_much():
    def off(by):
        return lambda function: lambda x: function(x) * (1 + by)

    value = torch.randn(3, 4)
    with overrides(codegen="native"):
        assert judge(trial_of(plain, value), off(1e-6), ("harness", "entry", 0)).status is Status.BOUNDED
        assert judge(trial_of(plain, value), off(1e-3), ("harness", "entry", 0)).status is Status.WRONG
    assert judge(trial_of(plain, value), off(1e-6), ("harness", "entry", 0)).status is Status.WRONG


@pytest.mark.parametrize(("error", "status"), [(1e-7, Status.BOUNDED), (1e-5, Status.WRONG)])
def test_mutated_arguments_are_held_to_the_float64_answer(error, status):
    def trial():
        value = torch.randn(3, 4)
        exact = trial_of(mutates, value.double())
        return dataclasses.replace(trial_of(mutates, value, rule=Rule.BOUND), exact_start=exact.start)

    def off(function):
        def call(x):
            result = function(x)
            x.mul_(1 + error)
            return result

        return call

    found = judge(trial(), off, ("harness", "entry", 0))
    assert found.status is status
    assert "argument 0 after the call" in found.detail


def test_lost_gradients_are_caught():
    value = torch.randn(3, 4, requires_grad=True)
    assert status_of(trial_of(plain, value, backward=True), "identity") is Status.EQUAL
    assert status_of(trial_of(plain, value, backward=True), "detached") is Status.WRONG


def test_unsupported_is_neither_right_nor_wrong():
    assert status_of(trial_of(plain, torch.randn(3)), "unsupported") is Status.UNSUPPORTED


def test_an_error_where_eager_answers_is_a_crash():
    trial = trial_of(plain, torch.randn(3))
    record = judge(trial, lambda _function: refuses, ("harness", "entry", 0))
    assert record.status is Status.CRASH
    assert "ValueError: no" in record.detail


def test_every_fault_has_a_test():
    assert set(FAULTS) == {*CAUGHT_ON, "detached", "unsupported"}


def test_a_copy_keeps_strides_overlaps_and_shared_memory():
    base = torch.randn(4, 6)
    first, second, again, overlapping = fresh((base[:, ::2], base.t(), base[:, ::2], OVERLAP))
    assert first.stride() == (6, 2)
    assert second.untyped_storage()._cdata == first.untyped_storage()._cdata == again.untyped_storage()._cdata
    assert first.untyped_storage()._cdata != base.untyped_storage()._cdata
    assert overlapping.stride() == (0, 1)


def test_one_tensor_given_twice_stays_one_tensor():
    x = torch.randn(3, requires_grad=True)
    one, two = fresh((x, x))
    assert one is two
    assert one.requires_grad


def test_bits_tell_zeros_apart_but_not_nans():
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    quiet = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert same_bits(quiet[:1], quiet[1:])
    assert not same_bits(torch.tensor([1.0 + 0j]), torch.tensor([1.0 - 0j]).conj().resolve_conj())


def test_rounding_may_differ_but_infinities_may_not():
    x = torch.randn(100, dtype=torch.float64)
    assert same_rounding(x, x * (1 + 1e-15))
    assert not same_rounding(x, x * (1 + 1e-9))
    assert not same_rounding(torch.tensor([torch.inf]), torch.tensor([-torch.inf]))


def test_native_code_may_be_twice_as_far_from_the_truth_as_eager():
    exact = torch.tensor([1.0, 1000.0], dtype=torch.float64)
    eager = (exact + 1e-4).float()
    assert within_native_bound((exact - 1.9e-4).float(), eager, exact)
    assert not within_native_bound((exact - 5e-4).float(), eager, exact)
    assert not within_native_bound(torch.full((2,), torch.nan), eager, exact)


def test_a_model_may_have_twice_the_relative_error_of_eager():
    exact = torch.randn(1000, dtype=torch.float64)
    noise = torch.randn(1000, dtype=torch.float64)
    eager = (exact + 1e-6 * noise).float()
    assert within_model_bound((exact - 1.9e-6 * noise).float(), eager, exact)
    assert not within_model_bound((exact - 5e-6 * noise).float(), eager, exact)


def record(status, entry="op", index=0, detail=""):
    return Record("values", entry, index, status, detail)


def test_the_run_fails_on_one_wrong_or_many_unsupported():
    equal = [record(Status.EQUAL, index=i) for i in range(97)]
    three = [record(Status.UNSUPPORTED, index=100 + i) for i in range(3)]
    section = Section("values", "samples", list, lambda _entry: [])
    assert passed(equal + three, [section])
    assert not passed(equal[:90] + three, [section])
    assert not passed([*equal, record(Status.WRONG)], [section])
    assert not passed([*equal, record(Status.CRASH)], [section])


def test_the_page_is_the_same_in_any_order():
    section = Section("values", "samples", list, lambda _entry: [])
    records = [record(Status.EQUAL, index=i) for i in range(3)]
    records += [record(Status.UNSUPPORTED, "item", i, "reads a value") for i in range(2)]
    text = page(records, [section])
    assert text == page(records[::-1], [section])
    assert "- reads a value: `item` 2 of 2" in text
    assert "| values | library | samples | 2 | 5 | 3 | 0 | 2 | 0 | 0 |" in table(records, [section])


class Dying:
    """A section whose second sample ends the process and whose third never ends."""

    @staticmethod
    def trials(_entry):
        deaths = [lambda: None, lambda: os._exit(3), lambda: time.sleep(600), lambda: None]  # the parent kills it
        return [Dying.trial(death) for death in deaths]

    @staticmethod
    def trial(death):
        return Trial(lambda _contestant: lambda _number: play(Call(death, (), {})))


def work(connection, options):
    section = Section("dying", "", list, Dying.trials)
    unit = connection.recv()
    for message in sweep.run_unit(section, unit.entry, options, unit.start):
        connection.send(message)
    connection.send(None)


@pytest.mark.slow
def test_a_sample_that_kills_or_blocks_its_process_is_one_crash(monkeypatch):
    monkeypatch.setattr(sweep, "work", work)
    monkeypatch.setattr(sweep, "SECONDS_FOR_A_SAMPLE", 4.0)
    monkeypatch.setattr(sweep, "PATIENCE", 0.1)
    run = sweep.Sweep([sweep.Unit("dying", "entry")], sweep.Options("identity"), jobs=1)
    found = list(run.records())
    assert [r.status for r in found] == [Status.EQUAL, Status.CRASH, Status.CRASH, Status.EQUAL]
    assert "exit code 3" in found[1].detail
    assert "took longer" in found[2].detail
