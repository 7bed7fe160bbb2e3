"""Packed weights are packed again whenever they are written, by whatever way, and only then."""

import ctypes
import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.runtime.plans import TARGET, linear_plan

import weft
from weft.devices import cores
from weft.runtime import binding, watch, weights
from weft.runtime.arena import HUGE_PAGE
from weft.runtime.executable import NativeExecutable

ROWS, INNER, COLUMNS = 2, 24, 40
Write = Callable[[torch.nn.Linear], object]


class Program:
    """A linear layer with a packed weight, which can be compared with eager PyTorch."""

    def __init__(self, layer: torch.nn.Linear | None = None) -> None:
        self.layer = layer or torch.nn.Linear(INNER, COLUMNS)
        self.run = NativeExecutable(linear_plan(ROWS, INNER, COLUMNS), TARGET)
        self.x = torch.randn(ROWS, INNER)

    def is_right(self) -> bool:
        out = torch.empty(ROWS, COLUMNS)
        self.run([self.x, self.layer.weight, self.layer.bias], [out])
        return torch.allclose(out, self.layer(self.x), atol=1e-5)


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one number for each packing."""
    counted: list[int] = []
    pack = weights.PackedWeight._pack

    def counting(self, tensors):
        counted.append(len(counted))
        return pack(self, tensors)

    monkeypatch.setattr(weights.PackedWeight, "_pack", counting)
    return counted


def optimizer_step(layer: torch.nn.Linear) -> None:
    layer(torch.randn(3, INNER)).sum().backward()
    torch.optim.SGD(layer.parameters(), 0.5).step()


def fused_step(optimizer: type[torch.optim.Optimizer]) -> Write:
    def step(layer: torch.nn.Linear) -> None:
        layer(torch.randn(3, INNER)).sum().backward()
        optimizer(layer.parameters(), 0.5, fused=True).step()

    return step


def replace_parameter(layer: torch.nn.Linear) -> None:
    layer.weight = torch.nn.Parameter(torch.randn(COLUMNS, INNER))


def assign_data(layer: torch.nn.Linear) -> None:
    layer.weight.data = torch.randn(COLUMNS, INNER)


def assign_data_twice(layer: torch.nn.Linear) -> None:
    for _ in range(2):
        layer.weight.data = torch.randn(COLUMNS, INNER)


def write_in_no_grad(layer: torch.nn.Linear) -> None:
    with torch.no_grad():
        layer.weight.mul_(2)


def write_dlpack(layer: torch.nn.Linear) -> None:
    torch.from_dlpack(layer.weight.detach()).zero_()


WRITES: dict[str, Write] = {
    "an optimizer step": optimizer_step,
    **{
        f"a fused step of {optimizer.__name__}": fused_step(optimizer)
        for optimizer in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)
    },
    "load_state_dict": lambda layer: layer.load_state_dict(torch.nn.Linear(INNER, COLUMNS).state_dict()),
    "load_state_dict that assigns": lambda layer: layer.load_state_dict(
        torch.nn.Linear(INNER, COLUMNS).state_dict(), assign=True
    ),
    "a write in no_grad": write_in_no_grad,
    "a write through data": lambda layer: layer.weight.data.copy_(torch.randn(COLUMNS, INNER)),
    "a write through data of a view": lambda layer: layer.weight[3:5].data.zero_(),
    "a write through detach": lambda layer: layer.weight.detach().zero_(),
    "a write through numpy": lambda layer: layer.weight.detach().numpy().fill(0.5),
    "a write through an array": lambda layer: np.asarray(layer.weight.detach()).fill(0.5),
    "a write through dlpack": write_dlpack,
    "assigned data": assign_data,
    "data assigned twice": assign_data_twice,
    "a replaced parameter": replace_parameter,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_written_weight_is_packed_again(write: Write) -> None:
    program = Program()
    for _ in range(3):
        assert program.is_right()
        write(program.layer)
        assert program.is_right()


def test_a_weight_that_nobody_writes_is_packed_once(packings: list[int]) -> None:
    program = Program()
    for _ in range(5):
        assert program.is_right()
    assert len(packings) == 1


@pytest.mark.parametrize("take", [lambda p: p.data, lambda p: torch.from_dlpack(p.detach())], ids=["data", "dlpack"])
@pytest.mark.parametrize("before", [True, False], ids=["before packing", "after packing"])
def test_writes_through_an_alias_that_is_kept_are_seen(
    take: Callable[[torch.Tensor], torch.Tensor], before: bool, packings: list[int]
) -> None:
    program = Program()
    if not before:
        assert program.is_right()
    alias = take(program.layer.weight)
    assert program.is_right()
    count = len(packings)
    assert program.is_right()
    assert len(packings) == count
    for _ in range(3):
        alias.add_(1)
        assert program.is_right()
    assert len(packings) == count + 3


def test_writes_to_an_array_that_is_kept_are_seen_and_its_end_ends_the_doubt() -> None:
    program = Program()
    assert program.is_right()
    array = program.layer.weight.detach().numpy()
    for _ in range(3):
        assert program.is_right()
        array += 1
        assert program.is_right()


def test_the_end_of_an_alias_ends_the_comparing() -> None:
    program = Program()
    assert program.is_right()
    alias = program.layer.weight.data
    assert program.is_right()
    weight = weights.weight_of(program.layer.weight)
    assert weight.is_doubtful
    alias.add_(1)
    del alias
    assert program.is_right()
    assert not weight.is_doubtful


def test_a_weight_in_the_memory_of_an_array_is_compared_at_every_call() -> None:
    program = Program()
    array = np.zeros((COLUMNS, INNER), dtype=np.float32)
    program.layer.weight = torch.nn.Parameter(torch.from_numpy(array))
    for _ in range(3):
        assert program.is_right()
        array += 1
        assert program.is_right()


def of_file(path: Path) -> torch.Tensor:
    torch.save(torch.zeros(COLUMNS, INNER), path)
    return torch.load(path, mmap=True)


def test_a_weight_in_the_memory_of_a_file_is_trusted_after_long_calm_until_its_version_changes(tmp_path: Path) -> None:
    program = Program()
    program.layer.weight = torch.nn.Parameter(of_file(tmp_path / "weight"))
    for _ in range(weights.CALM_LOOKS + 2):
        assert program.is_right()
    assert not weights.weight_of(program.layer.weight).is_doubtful
    write_in_no_grad(program.layer)
    assert program.is_right()
    program.layer.weight.data.add_(1)
    assert program.is_right()


@pytest.mark.parametrize("looks", [1, weights.CALM_LOOKS // 2, weights.CALM_LOOKS - 1])
def test_a_file_that_was_written_has_to_be_calm_again_for_as_long(looks: int, tmp_path: Path) -> None:
    program = Program()
    program.layer.weight = torch.nn.Parameter(of_file(tmp_path / "weight"))
    alias = program.layer.weight.detach().numpy()

    def doubtful_after(calls: int) -> bool:
        for _ in range(calls):
            assert program.is_right()
        return weights.weight_of(program.layer.weight).is_doubtful

    assert doubtful_after(looks)
    alias += 1
    del alias
    assert doubtful_after(weights.CALM_LOOKS)
    assert not doubtful_after(2)


def test_where_nobody_says_what_memory_is_none_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MAPPINGS", tmp_path / "nothing")
    program = Program()
    program.layer.weight = torch.nn.Parameter(of_file(tmp_path / "weight"))
    for _ in range(weights.CALM_LOOKS + 2):
        assert program.is_right()
    assert weights.weight_of(program.layer.weight).is_doubtful


def test_what_inference_mode_loads_from_a_file_is_never_trusted(tmp_path: Path) -> None:
    program = Program()
    with torch.inference_mode():
        program.layer.weight = torch.nn.Parameter(of_file(tmp_path / "weight"), requires_grad=False)
        for _ in range(weights.CALM_LOOKS + 2):
            assert program.is_right()
        for _ in range(2):
            program.layer.weight.add_(1)
            assert program.is_right()


def test_packed_buffers_are_as_large_as_the_packing_says() -> None:
    program = Program()
    assert program.is_right()
    packed = program.run._binding.shared[0]
    assert tuple(buffer.nbytes for buffer in packed._packed.buffers) == packed.packing.packed


@pytest.mark.parametrize("kind", ["an array", "a view of a file", "a file that others share", "a mapped array"])
def test_what_others_may_write_is_compared_at_every_call_however_calm_it_was(kind: str, tmp_path: Path) -> None:
    array = np.zeros((COLUMNS, INNER), dtype=np.float32)
    tensor = torch.from_numpy(array)
    if kind == "a view of a file":
        tensor = of_file(tmp_path / "weight")
        array = tensor.numpy()
    elif kind == "a file that others share":
        array.tofile(tmp_path / "weight")
        tensor = torch.from_file(str(tmp_path / "weight"), True, COLUMNS * INNER).view(COLUMNS, INNER)
        array = np.memmap(tmp_path / "weight", np.float32, "r+", shape=(COLUMNS, INNER))
    elif kind == "a mapped array":
        array.tofile(tmp_path / "weight")
        array = np.memmap(tmp_path / "weight", np.float32, "r+", shape=(COLUMNS, INNER))
        tensor = torch.from_numpy(array)
    program = Program()
    program.layer.weight = torch.nn.Parameter(tensor)
    for _ in range(weights.CALM_LOOKS + 2):
        assert program.is_right()
    for _ in range(2):
        array += 1
        assert program.is_right()


def test_inference_tensors_which_have_no_version_are_compared_at_every_call() -> None:
    program = Program()
    with torch.inference_mode():
        program.layer.weight = torch.nn.Parameter(torch.randn(COLUMNS, INNER), requires_grad=False)
        for _ in range(3):
            assert program.is_right()
            program.layer.weight.add_(1)
            assert program.is_right()


def test_two_programs_share_one_packing(packings: list[int]) -> None:
    first = Program()
    second = Program(first.layer)
    assert first.is_right()
    assert second.is_right()
    assert len(packings) == 1
    write_in_no_grad(first.layer)
    assert second.is_right()
    assert first.is_right()
    assert len(packings) == 2


def test_packed_memory_is_used_again_when_no_call_reads_it() -> None:
    program = Program()
    seen = set()
    for _ in range(6):
        assert program.is_right()
        seen.add(program.run._binding.packed_addresses[0])
        write_in_no_grad(program.layer)
    assert len(seen) == 2


def test_packed_memory_goes_with_the_weight() -> None:
    program = Program()
    assert program.is_right()
    packed = weakref.ref(program.run._binding.shared[0])
    assert packed()._packed is not None
    program.layer = torch.nn.Linear(INNER, COLUMNS)
    gc.collect()
    assert packed()._packed is None
    assert program.is_right()


def test_concurrent_callers_see_whole_weights() -> None:
    layer = torch.nn.Linear(INNER, COLUMNS, bias=True)
    with torch.no_grad():
        layer.weight.fill_(0)
        layer.bias.fill_(0)
    run = NativeExecutable(linear_plan(ROWS, INNER, COLUMNS), TARGET)
    x, wrong, stop = torch.ones(ROWS, INNER), [], threading.Event()

    def work() -> None:
        out = torch.empty(ROWS, COLUMNS)
        last = 0.0
        while not stop.is_set():
            run([x, layer.weight, layer.bias], [out])
            # Every column is a multiple of INNER, and none is older than what this thread saw before.
            if bool((out % INNER).any()) or float(out.min()) < last:
                wrong.append(out.clone())
            last = float(out.min())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    with torch.no_grad():
        for _ in range(200):
            layer.weight.data = layer.weight + 1
    stop.set()
    for thread in threads:
        thread.join(30)
    assert wrong == []


def test_memory_that_a_weight_left_and_came_back_to_while_it_was_packed_is_looked_at(monkeypatch: Any) -> None:
    layer = torch.nn.Linear(INNER, COLUMNS, bias=False)
    packed_now = binding.current_forms

    def moving(*arguments: Any) -> Any:
        monkeypatch.setattr(binding, "current_forms", packed_now)
        former = layer.weight.detach()
        layer.weight.data = torch.full_like(former, 2)
        forms = packed_now(*arguments)
        # As if another tensor had been given the memory since.
        threes = torch.full_like(former, 3)
        ctypes.memmove(former.data_ptr(), threes.data_ptr(), former.nbytes)
        layer.weight.data = former
        return forms

    monkeypatch.setattr(binding, "current_forms", moving)
    run = NativeExecutable(linear_plan(ROWS, INNER, COLUMNS), TARGET)
    x, bias, out = torch.ones(ROWS, INNER), torch.zeros(COLUMNS), torch.empty(ROWS, COLUMNS)
    for _ in range(3):
        run([x, layer.weight, bias], [out])
    assert torch.equal(out, torch.full_like(out, 3 * INNER))


def test_other_tensors_keep_their_ways_to_aliases() -> None:
    assert Program().is_right()
    x = torch.randn(3)
    assert torch.equal(x.data, x)
    assert x.numpy().shape == (3,)
    x.data = torch.zeros(4)
    assert x.shape == (4,)
    with pytest.raises(RuntimeError, match="under vmap transform"):
        torch.func.vmap(lambda y: y.data * 2)(torch.ones(2, 3))
    assert torch.func.grad(lambda y: (y * y.data).sum())(torch.ones(3)).sum() == 3


@pytest.mark.parametrize(("count", "alone"), [(1, True), (2, False)])
def test_large_weights_are_packed_on_all_cores_each_once(
    count: int, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed_by: list[int] = []
    pack = weights.PackedWeight._pack

    def noted(self, tensors):
        packed_by.append(threading.get_ident())
        return pack(self, tensors)

    monkeypatch.setattr(weights.PackedWeight, "_pack", noted)
    wide = HUGE_PAGE // 4 // 512  # a packed weight has large pages of its own
    net = torch.nn.Sequential(torch.nn.Linear(512, wide), torch.nn.Tanh(), torch.nn.Linear(wide, 512)).eval()
    x, hybrid = torch.randn(3, 512), weft.hybridize(net)
    with torch.no_grad(), cores(count):
        expected = net[2](torch.tanh(net[0](x)))
        assert torch.allclose(hybrid(x), expected, atol=1e-5)
        net[0].weight.neg_()
        net[0].bias.neg_()
        assert torch.allclose(hybrid(x), 2 * net[2].bias - expected, atol=1e-5)
    assert len(packed_by) == 3
    assert (set(packed_by[:2]) == {threading.get_ident()}) is alone


def test_nobody_watches_the_memory_of_weights_that_ended() -> None:
    kept = Program()
    for _ in range(3):
        program = Program()
        program.layer.weight = torch.nn.Parameter(torch.randn(COLUMNS + 5, INNER)[3 : COLUMNS + 3])
        assert program.is_right()
        program.layer.weight.data = torch.randn(COLUMNS + 5, INNER)[3 : COLUMNS + 3]
        assert program.is_right()
        del program
    gc.collect()
    assert kept.is_right()
    watched = [watcher for watchers in watch._watchers.values() for watcher in watchers]
    assert all(watcher.reference() is not None for watcher in watched)
    assert len(set(watched)) == len(watched)
    assert watched  # of this test, at least


@pytest.mark.parametrize(("cores_there", "largest", "threads"), [(2, 1, 1), (2, 4 << 20, 2), (1, 4 << 20, 1)])
def test_threads_pack_where_there_are_cores_and_megabytes(
    cores_there: int, largest: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "cpu_count", lambda: cores_there)
    seen: list[int] = []
    sizes = (largest // 2, largest - largest // 2)

    def code(_: object) -> None:
        seen.append(threading.get_ident())

    tensors = [torch.zeros(4) for _ in sizes]
    packings = [weights.Packing(f"{number} {size}", (size,), (), code) for number, size in enumerate(sizes)]
    packed = [weights.packed_weight(one, [tensor]) for one, tensor in zip(packings, tensors, strict=True)]
    weights.current_forms(packed, [[tensor] for tensor in tensors])
    assert len(seen) == 2
    assert (threading.get_ident() in seen) is (threads == 1)
