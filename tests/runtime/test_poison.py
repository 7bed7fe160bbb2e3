"""Nothing outside of what a kernel is given is read: not beside its inputs, not what the arena held before.

What lies there is NaN, or for integers a number far out of range: one that is read shows in the result. And inputs
whose last element is the last of a page, with nothing mapped behind it, end the process if one is read beyond.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import weft
from weft.codegen.threads.layout import TABLE_OFFSET
from weft.runtime.arena import ArenaBlock, BlockPool

Function = Callable[..., Any]
POISON = b"\xff"  # in every byte: NaN for floats, -1 for integers


def grad_of(function: Function) -> Function:
    def gradients(*given: Tensor) -> tuple[Tensor, ...]:
        floats = [one.detach().requires_grad_() if one.is_floating_point() else one for one in given]
        wanted = [one for one in floats if one.requires_grad]
        return torch.autograd.grad(function(*floats).square().sum(), wanted)

    return gradients


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def mlp(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return functional.layer_norm(functional.gelu(functional.linear(x, w, b)), (w.shape[0],)) * 2


F32, I64 = torch.float32, torch.int64
# A function, and the sizes of what it is given; integers are indices below 3.
CASES: dict[str, tuple[Function, list[tuple[tuple[int, ...], torch.dtype]]]] = {
    "pointwise": (lambda x, y: (x * y + 1).tanh(), [((3, 17), F32), ((3, 17), F32)]),
    "a row for all": (lambda x, y: x + y, [((5, 13), F32), ((13,), F32)]),
    "a column for all": (lambda x, y: x * y, [((5, 13), F32), ((5, 1), F32)]),
    "transposed": (lambda x, y: x.t() + y, [((9, 21), F32), ((21, 9), F32)]),
    "a part": (lambda x: x[1:4, 3:10].exp(), [((5, 13), F32)]),
    "padded": (lambda x: functional.pad(x, (2, 3, 1, 1)).relu() + 1, [((5, 13), F32)]),
    "rows summed": (lambda x: x.sum(1), [((7, 19), F32)]),
    "columns summed": (lambda x: x.sum(0), [((7, 19), F32)]),
    "all summed": (lambda x: x.mean(), [((7, 19), F32)]),
    "rows of one": (lambda x: x.amax(1), [((33, 1), F32)]),
    "softmax": (lambda x: x.softmax(-1), [((3, 37), F32)]),
    "softmax of columns": (lambda x: x.log_softmax(0), [((11, 5), F32)]),
    "logsumexp": (lambda x: x.logsumexp(-1), [((3, 5), F32)]),
    "variance": (lambda x: x.var(-1), [((3, 21), F32)]),
    "argmax": (lambda x: x.argmax(-1), [((3, 21), F32)]),
    "cumulated": (lambda x: x.cumsum(-1), [((3, 21), F32)]),
    "product": (lambda x, y: x @ y, [((5, 19), F32), ((19, 21), F32)]),
    "product with a vector": (lambda x, y: x @ y, [((5, 19), F32), ((19,), F32)]),
    "products of batches": (lambda x, y: x @ y, [((2, 3, 7), F32), ((2, 7, 5), F32)]),
    "transposed product": (lambda x, y: x @ y.t() + 1, [((5, 19), F32), ((23, 19), F32)]),
    "layer": (mlp, [((3, 19), F32), ((21, 19), F32), ((21,), F32)]),
    "attention": (attention, [((1, 2, 9, 7), F32)] * 3),
    "convolution": (lambda x, w: functional.conv2d(x, w, padding=1), [((2, 3, 7, 9), F32), ((5, 3, 3, 3), F32)]),
    "strided convolution": (lambda x, w: functional.conv2d(x, w, stride=2), [((1, 4, 9, 9), F32), ((6, 4, 3, 3), F32)]),
    "depthwise": (lambda x, w: functional.conv2d(x, w, groups=5), [((1, 5, 7, 7), F32), ((5, 1, 3, 3), F32)]),
    "pointwise convolution": (functional.conv2d, [((1, 5, 3, 7), F32), ((7, 5, 1, 1), F32)]),
    "line convolution": (lambda x, w: functional.conv1d(x, w, padding=2), [((2, 3, 11), F32), ((4, 3, 5), F32)]),
    "largest of windows": (lambda x: functional.max_pool2d(x, 3, 2, 1), [((1, 3, 9, 7), F32)]),
    "mean of windows": (lambda x: functional.avg_pool2d(x, 2, ceil_mode=True), [((1, 3, 9, 7), F32)]),
    "normalised": (functional.instance_norm, [((2, 3, 5, 5), F32)]),
    "gathered": (lambda x, i: x.gather(1, i), [((3, 4), F32), ((3, 5), I64)]),
    "rows taken": (lambda x, i: functional.embedding(i, x), [((3, 13), F32), ((7,), I64)]),
    "joined": (lambda x, y: torch.cat((x, y), 1) * 2, [((3, 5), F32), ((3, 8), F32)]),
    "bytes": (lambda x: x.to(torch.int32).sum(-1), [((3, 21), torch.uint8)]),
    "halves": (lambda x, y: x * y + x, [((3, 21), torch.bfloat16), ((3, 21), torch.bfloat16)]),
    "doubles": (lambda x: x.sin().sum(-1), [((3, 11), torch.float64)]),
    "truths": (lambda x: x.any(-1), [((3, 21), torch.bool)]),
    "nothing": (lambda x: x.sum(-1) + 1, [((3, 0), F32)]),
}
TRAINED = (
    "layer",
    "attention",
    "convolution",
    "depthwise",
    "softmax",
    "normalised",
    "rows taken",
    "largest of windows",
)
CASES |= {f"gradients of {name}": (grad_of(CASES[name][0]), CASES[name][1]) for name in TRAINED}


def made(sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if dtype is I64:
        return torch.randint(0, 3, sizes)
    if dtype is torch.uint8:
        return torch.randint(0, 200, sizes, dtype=dtype)
    return torch.randn(sizes).to(dtype) if dtype is not torch.bool else torch.rand(sizes) < 0.05


def among_poison(given: Tensor) -> Tensor:
    """Give a tensor in the middle of memory full of poison."""
    room = 64 * given.element_size()
    memory = torch.frombuffer(bytearray(POISON * (2 * room + given.nbytes + 8)), dtype=torch.uint8)
    part = memory[room : room + given.nbytes].view(given.dtype).view(given.shape)
    return part.copy_(given)


def before_a_hole(given: Tensor) -> Tensor:
    """Give a tensor whose last byte is the last of a page, behind which nothing is mapped."""
    pages = -(-max(given.nbytes, 1) // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    library = ctypes.CDLL(None, use_errno=True)
    library.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert library.mprotect(start + pages * mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0
    if not given.nbytes:
        return given
    found = torch.frombuffer(
        memory, dtype=given.dtype, count=given.numel(), offset=pages * mmap.PAGESIZE - given.nbytes
    )
    return found.view(given.shape).copy_(given)


def as_bytes(result: Any) -> list[list[int]]:
    results = result if isinstance(result, tuple) else (result,)
    return [one.detach().clone().contiguous().view(-1).view(torch.uint8).tolist() for one in results]


@pytest.fixture
def poisoned_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill every block of memory with poison whenever a call takes it, but for the flags, which lanes go on with."""
    take = BlockPool.take

    def poisoned(self: BlockPool) -> ArenaBlock:
        block = take(self)
        block.memory[TABLE_OFFSET:] = POISON * (len(block.memory) - TABLE_OFFSET)
        return block

    monkeypatch.setattr(BlockPool, "take", poisoned)


@pytest.mark.usefixtures("poisoned_arena")
@pytest.mark.parametrize("name", CASES)
def test_neither_beside_the_inputs_nor_in_the_arena_is_anything_read(name: str) -> None:
    function, kinds = CASES[name]
    given = [made(*kind) for kind in kinds]
    hybrid = weft.hybridize(function)
    expected = as_bytes(hybrid(*given))
    poisoned = [among_poison(one) for one in given]
    for _ in range(3):
        assert as_bytes(hybrid(*poisoned)) == expected
    torch.testing.assert_close(hybrid(*poisoned), function(*given), atol=2e-2, rtol=2e-2)


def run_before_holes() -> None:
    """Run every case with inputs that end where memory does; printed is which comes next."""
    for name, (function, kinds) in CASES.items():
        print(name, flush=True)
        given = [before_a_hole(made(*kind)) for kind in kinds]
        hybrid = weft.hybridize(function)
        for _ in range(2):
            hybrid(*given)
    print("done", flush=True)


@pytest.mark.slow
def test_nothing_is_read_behind_the_end_of_an_input() -> None:
    program = "from tests.runtime.test_poison import run_before_holes; run_before_holes()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert found.stdout.split("\n")[-2:] == ["done", ""], found.stdout[-200:] + found.stderr[-2000:]
