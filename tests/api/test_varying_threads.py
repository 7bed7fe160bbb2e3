"""Sizes alternate on one program from several threads, and each call gives what a call alone gives, bit for bit.

`python -m tests.api.test_varying_threads 100000` does it so many times.
"""

from __future__ import annotations

import ctypes
import itertools
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from torch import nn

import weft
from weft.api.rare_calls import RareCalls
from weft.api.varying import VaryingProgram
from weft.codegen.threads.layout import TABLE_OFFSET
from weft.runtime.arena import ArenaBlock, BlockPool

THREADS, CALLS = 4, 2000
POISONED = 32  # of so many calls one is, where there are more: the memory takes longer than the call
SIZES = tuple((batch, length) for batch in (2, 3, 4) for length in (2, 3, 7, 8, 9, 15, 16, 17, 23, 24))


class Layer(nn.Module):
    """Norms, products, an attention and a sum over what varies."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inside, self.outside = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend, and give also what each text comes to."""
        batch, length, width = x.shape
        query, key, value = self.inside(self.norm(x)).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.outside(found.transpose(1, 2).reshape(batch, length, width))
        return x, x.mean(1)


@contextmanager
def one_general_program(calls_to_a_poisoned_one: int = 1) -> Iterator[None]:
    """Let one program run all sizes, in memory that is NaN wherever nothing was put.

    In other calls than poisoned ones there is what earlier calls left.
    """
    taken, numbers = BlockPool.take, itertools.count()

    def take(self: BlockPool) -> ArenaBlock:
        block = taken(self)
        if next(numbers) % calls_to_a_poisoned_one == 0:
            # SAFETY: the block is this call's, and so long.
            ctypes.memset(block.address + TABLE_OFFSET, 0xFF, len(block.memory) - TABLE_OFFSET)
        return block

    def never(*_: object) -> bool:
        return False

    with (
        mock.patch.object(BlockPool, "take", take),
        mock.patch.object(RareCalls, "is_often", never),
        mock.patch.object(VaryingProgram, "is_worth_less", never),
        mock.patch.object(VaryingProgram, "is_too_large", never),
    ):
        yield


def wrong_calls(calls: int) -> list[object]:
    """Make so many calls from all threads together; gives what differs, or was raised."""
    torch.manual_seed(0)
    layer = Layer().eval()
    given = {sizes: torch.randn(*sizes, 32) for sizes in SIZES}
    found: list[object] = []
    with torch.no_grad(), one_general_program(POISONED if calls > CALLS else 1):
        hybrid = weft.hybridize(layer.forward)
        for sizes in ((3, 20), (4, 24)):
            hybrid(torch.randn(*sizes, 32))
        alone = {sizes: hybrid(x) for sizes, x in given.items()}
        for sizes, x in given.items():
            torch.testing.assert_close(alone[sizes], layer(x), rtol=1e-4, atol=1e-5)
        start = threading.Barrier(THREADS)

        def run(seed: int) -> None:
            chance = random.Random(seed)
            try:
                with torch.no_grad():
                    start.wait(60)
                    for _ in range(calls // THREADS):
                        sizes = chance.choice(SIZES)
                        answers = hybrid(given[sizes])
                        found.extend(
                            sizes
                            for one, other in zip(answers, alone[sizes], strict=True)
                            if not torch.equal(one, other)
                        )
            except Exception as error:  # noqa: BLE001 - whatever it is, the test is to tell
                found.append(error)

        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600)
        assert hybrid.traces == 2
    return found


@pytest.mark.slow
def test_sizes_alternate_on_one_program_from_several_threads() -> None:
    assert wrong_calls(CALLS) == []


if __name__ == "__main__":
    print(wrong_calls(int(sys.argv[1])) or "all right")
