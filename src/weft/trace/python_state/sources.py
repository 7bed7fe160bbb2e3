"""Name the classes whose objects give something else each time: generators of random numbers, iterators, streams."""

from __future__ import annotations

import bz2
import csv
import hashlib
import io
import lzma
import random
import zlib
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import numpy as np

SOURCES = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
OF_PROCESS: tuple[Any, ...] = (random.random.__self__, np.random.rand.__self__)  # type: ignore[attr-defined]
DIGESTS: tuple[Any, ...] = tuple({type(hashlib.new(name)) for name in hashlib.algorithms_guaranteed})
STREAMS: tuple[Any, ...] = (  # what they are given goes into what they give later, or to a file
    *(bz2.BZ2Compressor, bz2.BZ2Decompressor, lzma.LZMACompressor, lzma.LZMADecompressor),
    *(type(zlib.compressobj()), type(zlib.decompressobj()), type(csv.writer(io.StringIO()))),
)
TAKEN: tuple[Any, ...] = (Iterator, SimpleQueue, np.random.SeedSequence, *DIGESTS, *STREAMS)
