"""Bytes of tensors that nothing counts writes of are compared natively, on one lane and on several."""

import gc
import weakref

import pytest
import torch
from tests.runtime.plans import TARGET, linear_plan
from torch import nn

import weft
from weft.codegen.threads.layout import MARK_OFFSET, PROGRAM_OFFSET, WORKERS_OFFSET
from weft.runtime.arena import ArenaBlock
from weft.runtime.content import WORD, WORTH_LANES, SameContent, _parts
from weft.runtime.executable import NativeExecutable
from weft.runtime.lanes import crew_address, ensure_crew, run_lanes
from weft.runtime.memory_layout import object_layout

LARGE = WORTH_LANES // 4 + 5  # numbers
PIECES = ([(0, 40)], [(0, 1000), (5000, 8), (9000, 0), (10000, 333)], [(0, 7), (10, 9)])


@pytest.mark.parametrize("lanes", [1, 2, 5])
@pytest.mark.parametrize("pieces", PIECES)
def test_every_byte_is_some_lanes_once(pieces: list[tuple[int, int]], lanes: int) -> None:
    parts = list(_parts(pieces, lanes))
    assert len(parts) == lanes
    shared = sorted(byte for part in parts for address, size in part for byte in range(address, address + size))
    assert shared == [byte for address, size in pieces for byte in range(address, address + size)]
    sizes = [sum(size for _, size in part) for part in parts]
    assert max(sizes) - -(-sum(sizes) // lanes) < WORD  # whole words, else alike


@pytest.mark.parametrize("place", [0, 1, LARGE // 2, LARGE - 1])
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_change_of_one_bit_is_seen(place: int, lanes: int) -> None:
    small, large = torch.arange(3, dtype=torch.uint8), torch.arange(LARGE, dtype=torch.int32)
    content = SameContent([small, torch.empty(0), large], lanes)
    assert content.holds()
    large[place] ^= 1
    assert not content.holds()
    large[place] ^= 1
    small[2] ^= 1
    assert not content.holds()
    small[2] ^= 1
    assert content.holds()


def test_what_lies_between_the_elements_of_a_tensor_is_no_matter_of_sizes() -> None:
    whole = torch.zeros(64, 64)
    content = SameContent([whole[3:60, 5:9], whole.t()[8:9]], 2)
    whole[59, 8] = 1
    assert not content.holds()


@pytest.mark.skipif(object_layout() is None, reason="this Python or PyTorch has no fast calls")
def test_the_second_call_with_weights_of_inference_mode_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    run = NativeExecutable(linear_plan(2, 24, 40), TARGET)
    with torch.inference_mode():
        x, weight, bias = torch.randn(2, 24), torch.randn(40, 24), torch.randn(40)
        out = torch.empty(2, 40)
        run([x, weight, bias], [out])
        with monkeypatch.context() as patch:
            patch.setattr(NativeExecutable, "_run_slowly", lambda *_: pytest.fail("a slow call"))
            run([x, weight, bias], [out])
        weight[39, 23] += 1
        run([x, weight, bias], [out])
        torch.testing.assert_close(out, torch.addmm(bias, x, weight.t()))
        # From then on it is fast again.
        monkeypatch.setattr(NativeExecutable, "_run_slowly", lambda *_: pytest.fail("a slow call"))
        run([x, weight, bias], [out])
        torch.testing.assert_close(out, torch.addmm(bias, x, weight.t()))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_a_module_of_inference_tensors_follows_every_write(mode: type) -> None:
    with torch.inference_mode():
        net = nn.Sequential(nn.Linear(300, 400), nn.ReLU(), nn.Conv1d(8, 8, 3), nn.BatchNorm1d(8)).eval()
    plain, x = net.__class__(*net), torch.randn(2, 8, 300)
    hybrid = weft.hybridize(net)
    last = [net[0].weight[399, 299], net[2].weight[7, 7, 2:], net[3].running_var[7:], net[0].bias[3:4]]
    for place in [None, *last, *last]:
        if place is not None:
            with torch.inference_mode():
                place += 0.5
        for _ in range(4):
            with mode():
                torch.testing.assert_close(hybrid(x), plain(x), atol=1e-4, rtol=1e-4)


def test_lanes_mark_a_frame_whatever_piece_differs() -> None:
    large = torch.arange(4 * LARGE, dtype=torch.int32)
    content = SameContent([large], 2)
    run = NativeExecutable(linear_plan(2, 8, 8), TARGET)
    ensure_crew()
    for place in (None, 0, LARGE, 3 * LARGE, 4 * LARGE - 1):
        frame = run._pool.take()
        if place is not None:
            large[place] ^= 1
        marked = _marked(frame, content)
        assert marked == (place is not None)
        if place is not None:
            large[place] ^= 1


def _marked(frame: ArenaBlock, content: SameContent) -> bool:
    for offset, word in ((MARK_OFFSET, 0), (PROGRAM_OFFSET, content.description), (WORKERS_OFFSET, crew_address())):
        frame.memory[offset : offset + 8] = word.to_bytes(8, "little")
    run_lanes(frame.address)
    return bool(frame.memory[MARK_OFFSET])


def test_the_memory_is_held_as_long_as_it_is_compared() -> None:
    tensor = torch.arange(LARGE, dtype=torch.int32)
    memory = weakref.ref(tensor.untyped_storage())
    content = SameContent([tensor], 1)
    del tensor
    gc.collect()
    assert memory() is not None
    assert content.holds()
    del content
    gc.collect()
    assert memory() is None
