"""New tensors that a native function makes are those that PyTorch's own function would."""

import gc
import sys
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from weft.runtime.new_tensors import TYPE_NUMBERS, NewTensors, OutputType

HUGE = OutputType((1 << 60,), (1,), torch.uint8)
LAYOUTS = [
    ((2, 3), (3, 1)),
    ((2, 3), (1, 2)),
    ((), ()),
    ((0, 4), (4, 1)),
    ((2, 3), (8, 1)),
    ((1, 2, 3, 4, 5, 6), (720, 360, 120, 30, 6, 1)),
]


class Spy(TorchDispatchMode):
    """Notes what PyTorch's operators are called for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [*TYPE_NUMBERS, torch.complex64])
@pytest.mark.parametrize("is_inference", [False, True])
def test_they_are_what_pytorch_makes(dtype, is_inference):
    make = NewTensors([OutputType(*layout, dtype) for layout in LAYOUTS])
    with torch.inference_mode(is_inference):
        for made, (shape, strides) in zip(make(), LAYOUTS, strict=True):
            like = torch.empty_strided(shape, strides, dtype=dtype)
            assert type(made) is torch.Tensor
            assert (made.shape, made.stride(), made.dtype, made.device) == (shape, strides, dtype, like.device)
            assert made.is_inference() == is_inference
            assert made.untyped_storage().nbytes() == like.untyped_storage().nbytes()
            assert made.untyped_storage().resizable()
            assert not made.requires_grad
            assert torch._C._dispatch_keys(made) == torch._C._dispatch_keys(like)


def test_no_operator_is_called_and_so_nobody_else_gets_the_lock():
    make = NewTensors([OutputType((3,), (1,), torch.float32)] * 5)
    with Spy() as spy:
        made = make()
    assert len({tensor.data_ptr() for tensor in made}) == 5
    assert spy.seen == []


def test_where_memory_is_short_pytorch_says_so_and_what_was_made_goes():
    make = NewTensors([OutputType((3,), (1,), torch.float32), HUGE])
    gc.collect()
    before = sum(type(thing) is torch.Tensor for thing in gc.get_objects())
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        make()
    assert sum(type(thing) is torch.Tensor for thing in gc.get_objects()) == before


def test_nobody_else_holds_them():
    made = list(NewTensors([OutputType((3,), (1,), torch.float32)] * 2)())
    one, ends = made.pop(), []
    assert sys.getrefcount(one) == 2
    weakref.finalize(one, ends.append, "gone")
    del one
    assert ends == ["gone"]


def test_none_at_all_are_an_empty_tuple():
    assert NewTensors([])() == ()
