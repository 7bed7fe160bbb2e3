"""A program <-> one `.weft` file that runs without the model's source; docs/program-file.md is the format."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from weft.errors import UsageError
from weft.files import given_file, given_path, write_atomically
from weft.programs.container import ProgramFileError, file_error, packed, read_sections
from weft.programs.loaded import LoadedProgram
from weft.programs.parts import LARGEST_METADATA, LARGEST_TEXT, ProgramParts, Written, read_parts, write_parts

__all__ = ["LoadedProgram", "ProgramFileError", "load_program", "save_program"]

SECTIONS = {"metadata": LARGEST_METADATA, "graph": LARGEST_TEXT, "tensors": None}


def save_program(parts: ProgramParts, path: str | os.PathLike[str], versions: dict[str, str] | None = None) -> None:
    """Write a program as a file: its graph, its signature, and its tensors as they are now."""
    target = given_file(path, "program.save", 'program.save("net.weft")')
    written = write_parts(parts, {"torch": torch.__version__, **(versions or {})})
    sections = {"metadata": written.metadata, "graph": written.text, "tensors": written.tensors}
    for name, limit in SECTIONS.items():
        if limit is not None and len(sections[name]) > limit:
            raise UsageError(f"{target} would have {len(sections[name])} bytes of {name}; the limit is {limit}")
    write_atomically(target, packed(sections))


def load_program(path: str | os.PathLike[str], *, allow: Sequence[str] = ()) -> LoadedProgram:
    """Read a program from a file that `save_program` wrote.

    Nothing in the file is run by loading it. Calling the program calls operators of PyTorch that compute with tensors,
    and no others; `allow` names further namespaces, for a file that you trust and that uses operators of your own.
    """
    source = given_path(path, "load_program", 'weft.load_program("net.weft")')
    sections = read_sections(source, SECTIONS)
    written = Written(sections["metadata"], sections["graph"], sections["tensors"])
    try:
        with torch.inference_mode(False):
            return LoadedProgram(read_parts(written, allow))
    except UsageError as error:
        where = f" ({error.where})" if error.where else ""
        raise file_error(source, error.fact + where, why=error.why, fix=error.fix) from error
    except (ValueError, RuntimeError, OverflowError, RecursionError) as error:
        # What PyTorch and Python raise for values that no saved program has, such as numbers of 5,000 digits.
        raise file_error(source, "something in it has no meaning", why=str(error)) from error
