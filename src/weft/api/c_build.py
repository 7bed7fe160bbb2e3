"""The C files of an exported program -> a shared library that was called and compared, where a C compiler is."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from weft.errors import ExecutionError

COMPILER = "cc"
SECONDS = 120


def makefile(name: str) -> str:
    """Write what links the library, and what compares."""
    return (
        f"CFLAGS = -O2\n\nall: lib{name}.so {name}_test\n\n"
        f"lib{name}.so: {name}.c {name}.h {name}_kernels.o\n\t"
        f"$(CC) $(CFLAGS) -shared -fPIC -o $@ {name}.c {name}_kernels.o -lm\n\n"
        f"{name}_test: {name}_test.c lib{name}.so\n"
        f"\t$(CC) $(CFLAGS) -o $@ {name}_test.c lib{name}.so -Wl,-rpath,'$$ORIGIN'\n\n"
        f"test: {name}_test\n\t./{name}_test\n"
    )


def build_and_compare(folder: Path, name: str) -> tuple[str, ...]:
    """Link the library and compare, where a C compiler is; give the files that this made."""
    compiler = shutil.which(COMPILER)
    if compiler is None:
        return ()
    # The library is linked by its file: `-lm` would be another where a folder is called m.
    library, test = f"lib{name}.so", f"{name}_test"
    commands = (
        (compiler, "-O2", "-shared", "-fPIC", "-o", library, f"{name}.c", f"{name}_kernels.o", "-lm"),
        (compiler, "-O2", "-o", test, f"{test}.c", library, "-Wl,-rpath,$ORIGIN"),
        (str(folder.resolve() / test),),
    )
    for command in commands:
        _run(command, folder)
    return library, test


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise ExecutionError(
            f"{folder} is written, but {Path(command[0]).name} failed on it",
            why=(done.stderr or done.stdout).strip(),
            fix=f"make -C {folder} test repeats it",
        )
