"""Region calls do what slow ones do, and refuse whatever is not as it was."""

import itertools

import pytest
import torch
from tests.runtime.plans import TARGET, chain_plan, linear_plan

from weft.runtime import binding
from weft.runtime.executable import NativeExecutable
from weft.runtime.memory_layout import object_layout, place_rows, tensor_layout, version_rows, word

needs_layout = pytest.mark.skipif(object_layout() is None, reason="this Python or PyTorch has no region calls")


def test_this_pytorch_has_region_calls() -> None:
    assert tensor_layout() is not None
    assert object_layout() is not None


@needs_layout
def test_the_words_of_a_tensor_are_what_torch_says() -> None:
    layout = tensor_layout()
    for tensor in (torch.zeros(5)[2:], torch.nn.Parameter(torch.zeros(3)), torch.from_numpy(torch.ones(9).numpy())[4:]):
        _, offset, address = place_rows(tensor, layout)
        _, version = version_rows(tensor, layout)
        assert offset[2] == tensor.storage_offset()
        assert address[2] == tensor.untyped_storage().data_ptr()
        assert version[2] == tensor._version
        tensor.data.add_(1)
        with torch.no_grad():
            tensor.add_(1)
        assert word(version[0]) & version[1] == tensor._version


@needs_layout
def test_the_second_call_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    run = NativeExecutable(chain_plan(100, "neg"), TARGET)
    run([torch.zeros(100)], [torch.zeros(100)])
    monkeypatch.setattr(NativeExecutable, "_run_slowly", lambda *_: pytest.fail("a slow call"))
    for make in (list, tuple):
        for x in (torch.randn(100), torch.randn(120)[20:], torch.nn.Parameter(torch.randn(100))):
            out = torch.empty(150)[50:]
            run(make([x]), make([out]))
            assert torch.equal(out, -x)


@needs_layout
def test_a_region_call_refuses_what_it_does_not_know() -> None:
    run = NativeExecutable(linear_plan(2, 8, 8), TARGET, lasting=(1, 2))
    x, weight, bias, out = torch.randn(2, 8), torch.randn(8, 8), torch.randn(8), torch.empty(2, 8)
    run([x, weight, bias], [out])
    fast, block = run._binding.call, run._pool.take()
    frame = block.address
    assert fast([x, weight, bias], [out], frame) is None

    class Sub(torch.Tensor):
        pass

    for inputs, outputs in (
        ([x, weight], [out]),
        ([x, weight, bias], [out, out]),
        ([x, weight.clone(), bias], [out]),
        ([x, weight, bias.clone()], [out]),
        (iter([x, weight, bias]), [out]),
        ([None, weight, bias], [out]),
        ([x.as_subclass(Sub), weight, bias], [out]),
    ):
        assert fast(inputs, outputs, frame) is False
    weight.add_(1)
    assert fast([x, weight, bias], [out], frame) is False


@needs_layout
def test_a_lasting_tensor_that_moves_is_followed() -> None:
    run = NativeExecutable(linear_plan(2, 8, 8), TARGET, lasting=(1, 2))
    x, weight, bias, out = torch.randn(2, 8), torch.randn(8, 8), torch.randn(8), torch.empty(2, 8)
    moves = (
        lambda: None,
        lambda: setattr(bias, "data", torch.randn(8)),
        lambda: bias.set_(torch.randn(9)[1:]),
        bias.share_memory_,
        lambda: bias.add_(1),
        weight.share_memory_,
    )
    for move in itertools.chain(moves, moves):
        move()
        run([x, weight, bias], [out])
        torch.testing.assert_close(out, torch.nn.functional.linear(x, weight, bias))


def test_without_region_calls_everything_is_as_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.runtime.binding.object_layout", lambda: None)
    monkeypatch.setattr("weft.runtime.binding.tensor_layout", lambda: None)
    run = NativeExecutable(linear_plan(2, 8, 8), TARGET, lasting=(1, 2))
    x, weight, bias, out = torch.randn(2, 8), torch.randn(8, 8), torch.randn(8), torch.empty(2, 8)
    for _ in range(3):
        run([x, weight, bias], [out])
        torch.testing.assert_close(out, torch.nn.functional.linear(x, weight, bias))
        weight.add_(1)
        bias = bias + 1
    assert run._binding.call is binding.refuse
