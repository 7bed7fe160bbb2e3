"""Name the classes whose objects give something else each time: generators of random numbers, iterators, digests."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import numpy as np

SOURCES = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
OF_PROCESS: tuple[Any, ...] = (random.random.__self__, np.random.rand.__self__)  # type: ignore[attr-defined]
DIGESTS: tuple[Any, ...] = tuple({type(hashlib.new(name)) for name in hashlib.algorithms_guaranteed})
TAKEN: tuple[Any, ...] = (Iterator, SimpleQueue, np.random.SeedSequence, *DIGESTS)
