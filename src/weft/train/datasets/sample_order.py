"""A seed, an epoch and positions -> which samples stand there: a pure function, the same on every machine.

A position is enciphered by a small Feistel network over the next power of four, again and again until it is below the
number of samples. That is one-to-one for any keys, so each sample comes once an epoch; no state is kept, so training
goes on at any position.
"""

from __future__ import annotations

import numpy as np
import torch

from weft.errors import UsageError

ROUNDS = 6
# The constants of SplitMix64, a published mixer of 64 bits.
STEP, FIRST, SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
S27, S30, S31 = np.uint64(27), np.uint64(30), np.uint64(31)
WORD = 2**64


def sample_order(length: int, seed: int, epoch: int, start: int = 0, stop: int | None = None) -> torch.Tensor:
    """Give the samples at the positions from `start` to `stop` of an epoch: a part of a permutation of all."""
    stop = length if stop is None else stop
    if not 0 <= start <= stop <= length:
        raise UsageError(f"the positions {start} to {stop} are not among {length}")
    half = np.uint64(max(1, ((length - 1).bit_length() + 1) // 2))
    keys = _mix(np.array([seed % WORD], dtype=np.uint64))
    for number in (epoch % WORD, np.arange(ROUNDS, dtype=np.uint64)):
        keys = _mix(keys + np.asarray(number, dtype=np.uint64))
    samples = np.arange(start, stop, dtype=np.uint64)
    walking = np.ones(len(samples), dtype=bool)
    while walking.any():
        samples[walking] = _encipher(samples[walking], half, keys)
        walking = samples >= np.uint64(length)
    return torch.from_numpy(samples.astype(np.int64))


def _encipher(numbers: np.ndarray, half: np.uint64, keys: np.ndarray) -> np.ndarray:
    """Permute the numbers below four to the power of `half`."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = numbers >> half, numbers & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << half) | right


def _mix(numbers: np.ndarray) -> np.ndarray:
    numbers = numbers + STEP
    numbers = (numbers ^ (numbers >> S30)) * FIRST
    numbers = (numbers ^ (numbers >> S27)) * SECOND
    mixed: np.ndarray = numbers ^ (numbers >> S31)
    return mixed
