"""The state of the CPU's generator is read whatever other threads and the garbage collection do."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from weft.ir.generator import generator_put_back, generator_state, swap_generator_state

# With torch.get_rng_state in its place this does not end: a callback of the garbage collection lets other threads go
# on while PyTorch has the generator's lock, and one of them waits for it with the interpreter in its hands.
IN_THREADS = """
import faulthandler, gc, sys, threading, torch
from weft.ir.generator import generator_put_back, generator_state

faulthandler.dump_traceback_later(60, exit=True)

def told(phase, info):
    for _ in range(2000):
        pass

def read():
    for _ in range(1000):
        generator_state()
        with generator_put_back():
            pass

threads = [threading.Thread(target=read) for _ in range(8)]
gc.callbacks.append(told)
gc.set_threshold(1, 1, 1)
sys.setswitchinterval(1e-6)
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done")
"""


def test_the_state_is_pytorchs() -> None:
    torch.rand(3)
    assert torch.equal(generator_state(), torch.get_rng_state())


def test_a_state_is_set_and_the_one_before_is_given() -> None:
    before, other = torch.get_rng_state(), torch.Generator().manual_seed(7).get_state()
    assert torch.equal(swap_generator_state(other), before)
    assert torch.equal(torch.get_rng_state(), other)


def test_what_a_block_draws_is_drawn_again_behind_it() -> None:
    with generator_put_back():
        first = torch.rand(3)
    assert torch.equal(torch.rand(3), first)


def test_a_block_that_raises_puts_the_generator_back() -> None:
    before = torch.get_rng_state()

    @generator_put_back()
    def wrong() -> None:
        torch.rand(3)
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        wrong()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_threads_that_collect_garbage_wait_for_none_that_reads_the_state() -> None:
    done = subprocess.run([sys.executable, "-c", IN_THREADS], capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr
