"""The native functions that lazy code calls at each operator."""

import gc
import sys

import pytest
import torch
from torch.overrides import BaseTorchFunctionMode

from weft.codegen.torch_functions import dispatch_keys
from weft.lazy_tensors.native_calls import native_keys, native_modes, native_strangers, placeholder_maker, usual_keys
from weft.lazy_tensors.settings import MODE_COUNT, ONE_MODE, modes_by_questions
from weft.trace.interception.capture import make_placeholder


class Dispatched(torch.Tensor):
    """A tensor without memory."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return torch.full((), 7) if func is torch.ops.aten.neg.default else None


def placeholder(shape=(3, 4), strides=(4, 1), dtype=torch.float32):
    return make_placeholder(Dispatched, shape, strides, dtype=dtype)


@pytest.fixture(params=["native", "questions"])
def modes(request):
    found = native_modes() if request.param == "native" else modes_by_questions
    assert found is not None, "this PyTorch has all that the native function asks"
    return found


@pytest.fixture
def double_by_default():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


CONTEXTS = {
    "no grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "no interception": torch._C.DisableTorchFunction,
    "another mode": BaseTorchFunctionMode,
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_each_mode_gives_another_number(modes, name):
    before = modes()
    with CONTEXTS[name]():
        assert modes() != before
    assert modes() == before


def test_the_default_type_is_part_of_the_number(modes, request):
    before = modes()
    request.getfixturevalue("double_by_default")
    assert modes() != before


def test_a_transform_gives_another_number(modes):
    found = []
    before = modes()
    torch.func.vmap(lambda x: found.append(modes()) or x)(torch.zeros(2, 2))
    assert found[0] != before


def test_one_more_function_mode_adds_one_to_their_count(modes):
    before = modes()
    with BaseTorchFunctionMode():
        assert modes() - before == ONE_MODE
        assert modes() & MODE_COUNT == (before & MODE_COUNT) + ONE_MODE


KINDS = {
    "plain": (lambda: torch.ones(2, 3), True),
    "parameter": (lambda: torch.nn.Parameter(torch.ones(2)), True),
    "view with a gradient": (lambda: torch.ones(2, 3, requires_grad=True)[0], True),
    "complex": (lambda: torch.ones(2, dtype=torch.complex64), True),
    "foreign memory": (lambda: torch.frombuffer(bytearray(8), dtype=torch.uint8), True),
    "conjugate": (lambda: torch.ones(2, dtype=torch.complex64).conj(), False),
    "negation": (lambda: torch.ones(2, dtype=torch.complex64).conj().imag, False),
    "inference": (lambda: torch.inference_mode()(torch.ones)(2), False),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.quint8), False),
    "sparse": (lambda: torch.ones(2).to_sparse(), False),
    "oneDNN": (lambda: torch.ones(2).to_mkldnn(), False),
    "meta": (lambda: torch.ones(2, device="meta"), False),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2)]), False),
    "zero": (lambda: torch._efficientzerotensor(2), False),
}


@pytest.mark.filterwarnings("ignore")  # some of these kinds are prototypes, or on their way out
@pytest.mark.parametrize("name", KINDS)
def test_keys_tell_what_kind_of_tensor_it_is(name):
    make, usual = KINDS[name]
    tensor, keys = make(), native_keys()
    assert keys is not None, "this PyTorch has what the native function reads"
    assert keys(tensor) == dispatch_keys(tensor)
    assert (keys(tensor) == usual_keys()) is usual


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64])
@pytest.mark.parametrize(("shape", "strides"), [((3, 4), (1, 3)), ((), ()), ((0, 2), (2, 1)), ((5, 2), (0, 7))])
def test_a_copied_placeholder_looks_like_its_template_and_holds_its_value(shape, strides, dtype):
    template = placeholder(shape, strides, dtype)
    make = placeholder_maker(template, "mark")
    assert make is not None
    mark = object()
    made = make(mark)
    assert type(made) is Dispatched
    assert made.mark is mark
    assert (made.shape, made.stride(), made.dtype, made.device) == (shape, strides, dtype, torch.device("cpu"))
    assert not hasattr(template, "mark")


def test_operators_on_a_copied_placeholder_come_to_its_class():
    make = placeholder_maker(placeholder(), "mark")
    assert make is not None
    assert torch.ops.aten.neg(make(None)).item() == 7


def test_a_value_is_held_as_long_as_its_placeholder():
    make = placeholder_maker(placeholder(), "mark")
    assert make is not None
    mark = object()
    before = sys.getrefcount(mark)
    made = [make(mark) for _ in range(100)]
    assert sys.getrefcount(mark) == before + 100
    made.clear()
    gc.collect()
    assert sys.getrefcount(mark) == before


def test_an_attribute_that_cannot_be_set_is_an_error_that_leaves_nothing_behind():
    make = placeholder_maker(placeholder(), "is_leaf")
    assert make is not None
    mark = object()
    before = sys.getrefcount(mark)
    for _ in range(10):
        with pytest.raises(AttributeError):
            make(mark)
    gc.collect()
    assert sys.getrefcount(mark) == before


def seen(tensor):
    """The tensor, whose memory Python has an object of from now on."""
    tensor.untyped_storage()
    return tensor


def part_of_seen():
    tensor = torch.ones(4)
    tensor.untyped_storage()
    return tensor[2:]


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("length", [0, 1, 3])
def test_new_tensors_are_strangers_until_somebody_asks_for_their_memory(kind, length):
    strangers = native_strangers()
    tensors = [torch.ones(2, 3)[1:] for _ in range(length)]
    assert strangers(kind(tensors))
    assert strangers(kind([*tensors, torch.nn.Parameter(torch.ones(2))]))
    for tensor in tensors:
        tensor.untyped_storage()
        assert not strangers(kind(tensors))


NO_STRANGERS = {
    "memory that was asked for": lambda: [torch.ones(2), seen(torch.ones(2))],
    "a part of such memory": lambda: [part_of_seen()],
    "what is no tensor": lambda: [torch.ones(2), 1],
    "a list in a list": lambda: [[torch.ones(2)]],
    "a subclass": lambda: [placeholder()],
    "without memory": lambda: [torch.ones(2).to_sparse()],
    "a dictionary": lambda: {0: torch.ones(2)},
    "a tensor": lambda: torch.ones(2),
    "a named tuple": lambda: torch.ones(2, 3).max(dim=0),
    "nothing": lambda: None,
}


@pytest.mark.parametrize("name", NO_STRANGERS)
def test_what_may_be_noted_is_not_taken_for_strangers(name):
    things = NO_STRANGERS[name]()
    assert native_strangers()(things) is False
