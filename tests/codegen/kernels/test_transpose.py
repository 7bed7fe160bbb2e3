"""Squares of numbers that are written turned."""

import ctypes

import pytest
import torch
from tests.codegen.kernel_runner import DTYPES, LEVELS, target_of

from weft.codegen.kernels.vectors import Vectors, transpose_square
from weft.codegen.llvm.module import Module
from weft.codegen.objects.native import compile_native


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
def test_a_square_of_any_size_is_written_turned_and_nothing_beside_it(level: str, element: str, lanes: int) -> None:
    module = Module(target_of(level))
    writer = module.function("turn", ["ptr", "ptr", "i64", "i64"])
    to, of, width, apart = writer.parameters
    transpose_square(Vectors(writer, element, lanes), (of, apart), (to, width))
    library = compile_native(str(module), module.target, use_cache=False)
    source = torch.arange(lanes * 40).reshape(lanes, 40).to(DTYPES[element])
    found = torch.full((lanes, 24), -1.0, dtype=DTYPES[element])
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    call = ctypes.CFUNCTYPE(None, pointer, pointer, number, number)(library.address("turn"))
    call(found.data_ptr(), source.data_ptr(), 24, 40)
    assert torch.equal(found[:, :lanes], source[:, :lanes].T)
    assert (found[:, lanes:] == -1).all()
