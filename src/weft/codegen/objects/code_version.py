"""The source of what writes machine code -> a digest that differs where the code it writes may.

Machine code that is kept on disk under the description of what it computes is as old as the generator that wrote it:
this digest, a part of its name, lets a changed generator never meet it again.
"""

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

# All that code generation reads: its own files, the kernels it is given, and the types and processors they speak of.
SOURCES = ("codegen/**/*.py", "plan/**/*.py", "ir/**/*.py", "target.py")


def digest_of(folder: Path, patterns: Sequence[str] = SOURCES) -> str:
    """Digest the names and contents of files: by default those that decide what machine code is written."""
    found = hashlib.sha256()
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            content = path.read_bytes()
            found.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode())
            found.update(content)
    return found.hexdigest()


@cache
def code_version() -> str:
    """Digest the files of this installation, as they are when it is first asked for."""
    return digest_of(Path(__file__).parents[2])
