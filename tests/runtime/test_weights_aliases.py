"""Whatever way and whenever an alias of a weight is taken and written, in calm phases too, the next call sees it."""

from __future__ import annotations

import gc
import random
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.runtime.plans import TARGET, linear_plan
from torch import nn

import weft
from weft.runtime import weights
from weft.runtime.executable import NativeExecutable

ROWS, INNER, COLUMNS = 2, 8, 12
Alias = Any
CALM = weights.CALM_LOOKS + 2


class ByPlan:
    """A plan of one product that is called with the weight's tensors."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer, self.x = layer, torch.randn(ROWS, INNER)
        self.run = NativeExecutable(linear_plan(ROWS, INNER, COLUMNS), TARGET)

    def result(self) -> torch.Tensor:
        out = torch.empty(ROWS, COLUMNS)
        self.run([self.x, self.layer.weight, self.layer.bias], [out])
        return out


class ByHybridize:
    """A module that is hybridized, by the way of the fastest calls."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer, self.x = layer, torch.randn(ROWS, INNER)
        self.hybrid = weft.hybridize(nn.Sequential(layer))

    def result(self) -> torch.Tensor:
        with torch.no_grad():
            return self.hybrid(self.x)


WAYS = {"a plan": ByPlan, "hybridize": ByHybridize}


def assert_right(program: ByPlan | ByHybridize, calls: int = 1) -> None:
    for _ in range(calls):
        with torch.no_grad():
            expected = nn.functional.linear(program.x, program.layer.weight, program.layer.bias)
            torch.testing.assert_close(program.result(), expected, atol=1e-4, rtol=1e-4)


def as_data_of_another(weight: torch.Tensor) -> torch.Tensor:
    other = nn.Parameter(torch.zeros(1))
    other.data = weight
    return other.detach()


def as_set(weight: torch.Tensor) -> torch.Tensor:
    return torch.empty(0).set_(weight.detach())


ALIASES: dict[str, Callable[[torch.Tensor], Alias]] = {
    "data": lambda w: w.data,
    "data of a view": lambda w: w[2:5].data,
    "data of data": lambda w: w.data.data,
    "detach": lambda w: w.detach(),
    "a flat view": lambda w: w.detach().view(-1),
    "transposed": lambda w: w.detach().t(),
    "strided": lambda w: w.detach().as_strided((3,), (INNER + 1,)),
    "other numbers": lambda w: w.detach().view(torch.int32),
    "numpy": lambda w: w.detach().numpy(),
    "numpy of a row": lambda w: w.detach()[3].numpy(),
    "asarray": lambda w: np.asarray(w.detach()),
    "the array as a tensor": lambda w: torch.from_numpy(w.detach().numpy()),
    "the array's memory": lambda w: torch.frombuffer(memoryview(w.detach().numpy()), dtype=torch.float32),
    "dlpack": lambda w: torch.from_dlpack(w.detach()),
    "a dlpack capsule": lambda w: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(w.detach())),
    "an array by dlpack": lambda w: np.asarray(torch.from_dlpack(w.detach())),
    "unsafe chunks": lambda w: torch.unsafe_chunk(w.detach(), 3)[1],
    "unsafe split": lambda w: torch.unsafe_split(w.detach(), 5)[0],
    "the data of another parameter": as_data_of_another,
    "set into another tensor": as_set,
    "another parameter": lambda w: nn.Parameter(w.detach()),
    "a state dict": lambda w: nn.ParameterList([w]).state_dict()["0"],
}


def write(alias: Alias) -> None:
    """Change every number behind an alias, whatever it is."""
    with torch.no_grad():
        if isinstance(alias, np.ndarray):
            alias += 1
        elif alias.dtype == torch.int32:
            alias.bitwise_xor_(1 << 22)
        else:
            alias.add_(1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("taken", ALIASES)
def test_a_write_through_an_alias_is_seen_whenever_it_was_taken_and_however_long_it_was_calm(
    taken: str, way: str
) -> None:
    program = WAYS[way](nn.Linear(INNER, COLUMNS))
    for before, between in ((0, 0), (2, 0), (2, 1), (CALM, 0), (2, CALM)):
        program.layer.weight = fresh()
        assert_right(program, before)
        alias = ALIASES[taken](program.layer.weight)
        assert_right(program, between)
        for calls in (2, 1):
            write(alias)
            assert_right(program, calls)
        write(alias)
        del alias
        assert_right(program, 2)
        write(program.layer.weight.detach())
        assert_right(program, 2)


def step_of(optimizer: type[torch.optim.Optimizer], **options: Any) -> Callable[[nn.Linear], None]:
    def step(layer: nn.Linear) -> None:
        for parameter in layer.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer(layer.parameters(), 0.5, **options).step()

    return step


def raw_fused(layer: nn.Linear) -> None:
    torch._fused_sgd_(
        [layer.weight.detach()],
        [torch.ones(COLUMNS, INNER)],
        [],
        weight_decay=0.0,
        momentum=0.0,
        lr=0.5,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=True,
    )


def in_a_thread(layer: nn.Linear) -> None:
    thread = threading.Thread(target=lambda: layer.weight.data.mul_(-2))
    thread.start()
    thread.join(30)


def no_grad(change: Callable[[nn.Linear], Any]) -> Callable[[nn.Linear], None]:
    def changed(layer: nn.Linear) -> None:
        with torch.no_grad():
            change(layer)

    return changed


def inference(layer: nn.Linear) -> None:
    with torch.inference_mode():
        layer.weight.mul_(2)


def assign_back(layer: nn.Linear) -> None:
    kept = layer.weight.detach()
    layer.weight.data = kept
    kept.add_(1)


WRITES: dict[str, Callable[[nn.Linear], Any]] = {
    "foreach": no_grad(lambda layer: torch._foreach_mul_([layer.weight, layer.bias], 2.0)),
    "copy_": no_grad(lambda layer: layer.weight.copy_(torch.randn(COLUMNS, INNER))),
    "set_": no_grad(lambda layer: layer.weight.set_(torch.randn(COLUMNS, INNER))),
    "its own data again": assign_back,
    "a vector": no_grad(
        lambda layer: nn.utils.vector_to_parameters(torch.randn(COLUMNS * INNER + COLUMNS), layer.parameters())
    ),
    "initialisation": lambda layer: nn.init.xavier_normal_(layer.weight),
    "inference mode": inference,
    "a thread": in_a_thread,
    "a fused operator": raw_fused,
    "out=": no_grad(lambda layer: torch.add(layer.weight, 1, out=layer.weight)),
    "index_put_": no_grad(lambda layer: layer.weight.__setitem__((1, 1), 7.0)),
    **{
        f"{optimizer.__name__} {options}": step_of(optimizer, **options)
        for optimizer in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)
        for options in ({"foreach": True}, {"foreach": False}, {"fused": True})
    },
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("written", WRITES)
def test_a_write_is_seen_after_any_number_of_calm_calls(written: str, way: str) -> None:
    program = WAYS[way](nn.Linear(INNER, COLUMNS))
    for calm in (1, 3, CALM, 1, 0):
        assert_right(program, calm)
        WRITES[written](program.layer)
        assert_right(program)


def fresh() -> nn.Parameter:
    return nn.Parameter(torch.randn(COLUMNS, INNER))


def part_of_more() -> nn.Parameter:
    return nn.Parameter(torch.randn(COLUMNS + 5, INNER)[3 : 3 + COLUMNS])


def of_inference() -> nn.Parameter:
    with torch.inference_mode():
        return nn.Parameter(torch.randn(COLUMNS, INNER), requires_grad=False)


def shared_between_processes() -> nn.Parameter:
    return nn.Parameter(torch.randn(COLUMNS, INNER).share_memory_())


def of_array() -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(np.ones((COLUMNS, INNER), dtype=np.float32)))


def of_file() -> nn.Parameter:
    with tempfile.TemporaryDirectory() as folder:
        torch.save(torch.ones(COLUMNS, INNER), f"{folder}/weight")
        return nn.Parameter(torch.load(f"{folder}/weight", mmap=True))


KINDS = {
    "fresh": fresh,
    "part": part_of_more,
    "shared": shared_between_processes,
    "inference": of_inference,
    "array": of_array,
    "file": of_file,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_calls_aliases_writes_and_ends_gives_what_eager_gives(kind: str, seed: int) -> None:
    draw = random.Random(seed)
    layer = nn.Linear(INNER, COLUMNS)
    layer.weight = KINDS[kind]()
    programs = [ByPlan(layer), ByPlan(layer)]
    held: list[Alias] = []
    for _ in range(60):
        action = draw.choice(["call", "call", "calm", "take", "write", "write", "end", "replace", "step"])
        with torch.inference_mode(layer.weight.is_inference()):
            _act(action, draw, layer, held)
            calls = CALM if action == "calm" else 1
            if action != "take":
                for program in programs:
                    assert_right(program, calls)


def _act(action: str, draw: random.Random, layer: nn.Linear, held: list[Alias]) -> None:
    if action == "take":
        names = [name for name in ALIASES if not (layer.weight.is_inference() and "dlpack" in name)]
        held.append(ALIASES[draw.choice(names)](layer.weight))
    if action == "write" and held:
        write(draw.choice(held))
    if action == "end" and held:
        held.pop(draw.randrange(len(held)))
        gc.collect(0)
    if action == "replace":
        layer.weight.data = torch.randn(COLUMNS, INNER)
        held.clear()
    if action == "step" and not layer.weight.is_inference():
        step_of(torch.optim.SGD, fused=draw.random() < 0.5)(layer)
