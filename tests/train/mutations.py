"""The bytes of a checkpoint -> the bytes of a damaged or forged one, from seeded random numbers."""

from __future__ import annotations

import hashlib
import json
import random
import re
import struct
from collections.abc import Callable


def flip(content: bytearray, source: random.Random) -> None:
    content[source.randrange(len(content))] ^= 1 << source.randrange(8)


def flip_in_header(content: bytearray, source: random.Random) -> None:
    content[source.randrange(min(len(content), 600))] ^= 1 << source.randrange(8)


def cut(content: bytearray, source: random.Random) -> None:
    del content[source.randrange(len(content)) :]


def extend(content: bytearray, source: random.Random) -> None:
    content += source.randbytes(source.randrange(1, 100))


def splice(content: bytearray, source: random.Random) -> None:
    start, length = source.randrange(len(content)), source.randrange(1, 200)
    target = source.randrange(len(content))
    content[target : target + length] = content[start : start + length]


def swap(content: bytearray, source: random.Random) -> None:
    """Exchange two stretches: every byte is still there, in another place."""
    length = source.randrange(1, 40)
    one, other = sorted(source.randrange(len(content) - 2 * length) for _ in range(2))
    if other - one >= length:
        content[one : one + length], content[other : other + length] = (
            content[other : other + length],
            content[one : one + length],
        )


def remove(content: bytearray, source: random.Random) -> None:
    start = source.randrange(len(content))
    del content[start : start + source.randrange(1, 200)]


def zero(content: bytearray, source: random.Random) -> None:
    """What a lost page of a disk looks like."""
    start = source.randrange(len(content))
    length = min(512, len(content) - start)
    content[start : start + length] = bytes(length)


def lie(content: bytearray, source: random.Random) -> None:
    """Change a number in the header, or the length of the header itself."""
    numbers = [0, 1, 7, 255, 2**31, 2**32 - 1, 2**53, 2**62, 2**63, 2**64 - 1, len(content)]
    places = [found.span() for found in re.finditer(rb"(?<=[\[,:])\d+(?=[,\]}])", bytes(content))]
    if not places or source.random() < 0.3:
        content[:8] = struct.pack("<Q", source.choice(numbers))
        return
    start, end = source.choice(places)
    content[start:end] = str(source.choice(numbers)).encode()


MUTATIONS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    flip,
    flip_in_header,
    cut,
    extend,
    splice,
    swap,
    remove,
    zero,
    lie,
)


def mutated(content: bytes, seed: int) -> bytes:
    """Damage a file in one to three places."""
    source = random.Random(seed)
    changed = bytearray(content)
    for _ in range(source.choice([1, 1, 2, 3])):
        if len(changed) > 100:
            source.choice(MUTATIONS)(changed, source)
    return bytes(changed)


def with_digest(content: bytes) -> bytes:
    """Make the header's digest right again, as somebody who means harm would; the length before it, too."""
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length]
    blank = re.sub(rb'("weft\.header":")[0-9a-f]{64}"', rb"\g<1>" + b"0" * 64 + b'"', header)
    digest = hashlib.sha256(struct.pack("<Q", len(blank)) + blank).hexdigest().encode()
    header = blank.replace(b"0" * 64, digest, 1)
    return struct.pack("<Q", len(header)) + header + content[8 + length :]


def forged(content: bytes, change: Callable[[dict, dict], None]) -> bytes:
    """Change the table and the description of a file, and make its digests right again."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    description = json.loads(header["__metadata__"]["weft"])
    change(header, description)
    header["__metadata__"]["weft"] = json.dumps(description)
    text = json.dumps(header, separators=(",", ":")).encode()
    return with_digest(struct.pack("<Q", len(text)) + text + content[8 + length :])
