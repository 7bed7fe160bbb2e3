"""The native entry of a hybridized function: as fast as it is, it never runs a program that it should not."""

import gc
import math
import os
import subprocess
import sys
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from weft.guards import guarded, known_calls
from weft.guards.entry import MISSED
from weft.runtime.memory_layout import grad_layout, object_layout, tensor_layout, tensor_masks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="whole calls are known on Linux")


def net_of() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))


def latest(thing):
    """The kind of calls that came last."""
    return (thing.forward if isinstance(thing, nn.Module) else thing)._known_calls._kept[0]


def warm(thing, *arguments):
    """Call until calls are native from end to end, and give the entry."""
    gc.collect()  # the end of another test's weights counts as a change
    for _ in range(4):
        thing(*arguments)
    assert latest(thing).is_bound
    return latest(thing).entry


@pytest.fixture
def x():
    return torch.randn(2, 16)


@pytest.fixture
def net():
    with torch.no_grad():
        yield weft.hybridize(net_of())


def test_it_gives_what_eager_gives_in_new_memory(net, x):
    entry = warm(net, x)
    first, second = entry(x), entry(x)
    torch.testing.assert_close(first, net_of()(x))
    assert torch.equal(first, second)
    assert first.data_ptr() != second.data_ptr()
    assert not first.requires_grad
    assert first.stride() == (4, 1)


def test_views_at_an_offset_and_parameters_are_plain_arguments(net, x):
    entry = warm(net, x)
    shifted = torch.randn(5, 16)
    part = torch.empty(80).set_(shifted.untyped_storage(), 16, (2, 16), (16, 1))
    assert torch.equal(entry(part), entry(part.clone()))
    torch.testing.assert_close(entry(part), net_of()(shifted[1:3]))


class Sub(torch.Tensor):
    pass


class Spy(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "other",
    [
        lambda x: x.double(),
        lambda x: x.bfloat16(),
        lambda x: x[:1].clone(),
        lambda x: x.t().contiguous().t(),
        lambda x: x.clone().requires_grad_(),
        lambda x: x.as_subclass(Sub),
        lambda x: x.to("meta"),
        torch._neg_view,
        lambda x: x.tolist(),
        lambda _: None,
        lambda _: 1.5,
    ],
    ids=["f64", "bf16", "size", "stride", "grad", "subclass", "meta", "negated", "list", "none", "number"],
)
def test_it_refuses_arguments_of_another_look(net, x, other):
    assert warm(net, x)(other(x)) is MISSED


def test_it_refuses_another_number_of_arguments(net, x):
    entry = warm(net, x)
    assert entry() is MISSED
    assert entry(x, x) is MISSED


@pytest.mark.parametrize(
    "mode",
    [
        torch.enable_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.device("cpu"),
        Spy,
    ],
    ids=["grad", "inference", "autocast", "function mode", "dispatch mode"],
)
def test_it_refuses_in_another_mode(net, x, mode):
    entry = warm(net, x)
    with mode():
        assert entry(x) is MISSED
    assert entry(x) is not MISSED


def test_it_refuses_inside_a_transform(x):
    function = weft.hybridize(lambda x: x * 2)
    entry = warm(function, x)
    seen = []

    def inner(row):
        seen.append(entry(x) is MISSED)
        return row * 2

    torch.func.vmap(inner)(x)
    assert seen == [True]


def test_it_refuses_under_another_default_type(net, x):
    entry = warm(net, x)
    torch.set_default_dtype(torch.float64)
    try:
        assert entry(x) is MISSED
    finally:
        torch.set_default_dtype(torch.float32)


def double_weight(net):
    net[0].weight.mul_(2)


def replace_weight(net):
    net[0].weight = nn.Parameter(torch.ones(8, 16))


def set_data(net):
    net[2].bias.data = torch.ones(4)


def write_data(net):
    net[2].weight.data.mul_(3)


def load(net):
    net.load_state_dict({name: tensor + 1 for name, tensor in net.state_dict().items()})


def switch_mode(net):
    net.train(not net.training)


def add_hook(net):
    net[1].register_forward_hook(lambda *_: None)


def freeze(net):
    net[0].weight.requires_grad_(False)


def replace_module(net):
    net[1] = nn.Tanh()


CHANGES = [
    double_weight,
    replace_weight,
    set_data,
    write_data,
    load,
    switch_mode,
    add_hook,
    freeze,
    replace_module,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_module_is_seen(net, x, change):
    entry = warm(net, x)
    eager = net_of()
    change(net)
    change(eager)
    found = entry(x)
    assert found is MISSED or torch.allclose(found, eager(x))
    for _ in range(4):
        torch.testing.assert_close(net(x), eager(x))


def test_it_comes_back_after_each_change_of_a_weight(net, x):
    eager = net_of()
    for step in range(5):
        net[0].weight.add_(step)
        eager[0].weight.add_(step)
        for _ in range(8):
            torch.testing.assert_close(net(x), eager(x))


def test_a_function_with_gradients_off_for_its_arguments_has_one_under_grad_mode(x):
    function = weft.hybridize(lambda x, y: (x + y) * 2)
    entry = warm(function, x, x)
    assert torch.equal(entry(x, x), (x + x) * 2)
    assert entry(x, x.clone().requires_grad_()) is MISSED
    result = function(x, x.clone().requires_grad_())
    assert result.requires_grad


def test_what_it_needs_lives_as_long_as_it(x):
    with torch.no_grad():
        net = weft.hybridize(net_of())
        entry = warm(net, x)
        expected, died = net(x), weakref.ref(net)
        del net
        gc.collect()
        assert torch.equal(entry(x), expected)
        del entry
    gc.collect()
    assert died() is None


def test_many_threads_may_call_it_at_once(net):
    inputs = [torch.randn(2, 16) for _ in range(8)]
    warm(net, inputs[0])
    expected = [net_of()(x) for x in inputs]
    wrong: list[int] = []
    start = threading.Barrier(8, timeout=20)

    def work(number: int) -> None:
        with torch.no_grad():
            start.wait()
            right = [torch.allclose(net(inputs[number]), expected[number], atol=1e-5) for _ in range(300)]
            wrong.extend([number] * right.count(False))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert wrong == []


def several(x: torch.Tensor) -> list[torch.Tensor]:
    return [x + number for number in range(20)]


@pytest.mark.parametrize("kind", [list, tuple])
def test_several_new_tensors_are_given_in_a_list_or_tuple(x, kind):
    entry = warm(weft.hybridize(lambda x: kind(several(x))), x)
    first, second = entry(x), entry(x)
    assert type(first) is kind
    assert [sys.getrefcount(tensor) for tensor in first] == [sys.getrefcount(tensor) for tensor in several(x)]
    assert all(map(torch.equal, first, several(x)))
    assert len({tensor.data_ptr() for tensor in (*first, *second)}) == 40
    del second
    died = [weakref.ref(tensor) for tensor in first]
    del first
    assert not any(reference() is not None for reference in died)


def test_a_list_of_one_is_a_list(x):
    (only,) = warm(weft.hybridize(lambda x: [x * 2]), x)(x)
    assert torch.equal(only, x * 2)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: [y := x + 1, y],
        lambda x: [x, x + 1],
        lambda x: (x + 1, 3),
        lambda x: (y := x + 1, y.t()),
        lambda x: [],
    ],
)
def test_other_results_go_the_longer_way(x, function):
    assert not is_bound_with_the_same_results(function, x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: {"one": x + 1, "two": x + 2},
        lambda x: [x + 1, (x + 2, x + 3)],
        lambda x: torch.max(x, 1),
        lambda x: torch.topk(x, 2),
    ],
)
def test_new_tensors_are_given_however_they_are_nested_and_ordered(x, function):
    assert is_bound_with_the_same_results(function, x)


def is_bound_with_the_same_results(function, x):
    hybrid = weft.hybridize(function)
    for _ in range(6):
        given, expected = hybrid(x), function(x)
        torch.testing.assert_close(given, expected)
        assert type(given) is type(expected)
    return latest(hybrid).is_bound


@pytest.mark.parametrize("given", [torch.Size([2, 3]), torch.channels_last, torch.strided], ids=str)
def test_sizes_and_formats_among_the_arguments_are_told_by_words(x, given):
    entry = warm(weft.hybridize(lambda x, _: x + 1), x, given)
    assert torch.equal(entry(x, given), x + 1)
    assert entry(x, torch.Size([3, 2]) if isinstance(given, torch.Size) else None) is MISSED


WITHOUT_MEMORY = """
import os
import resource
import torch, weft

def memory_in_use():
    with open("/proc/self/statm") as numbers:
        return int(numbers.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")

large = torch.zeros(12_000_000)  # above what is kept: its memory comes from the system, and goes back to it
function = weft.hybridize(lambda x: [x + number for number in range(6)])
for _ in range(4):
    function(large)
print(function._known_calls._kept[0].is_bound)
before = resource.getrlimit(resource.RLIMIT_AS)
size = memory_in_use()
for _ in range(5):
    resource.setrlimit(resource.RLIMIT_AS, (size + 3 * large.nbytes, before[1]))
    try:
        function(large)
    except RuntimeError as error:
        print("alloc" in str(error))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
print(memory_in_use() < size + large.nbytes)
print([int(tensor.max()) for tensor in function(large)])
"""


@pytest.mark.slow
def test_results_without_memory_for_all_of_them_are_an_error_and_leave_nothing_behind():
    pytest.importorskip("resource")
    # In a process of its own: what others have freed is room for results, and grows no process.
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MEMORY], check=True, capture_output=True, text=True, timeout=100
    )
    assert done.stderr == ""
    is_bound, *said, numbers = done.stdout.splitlines()
    assert is_bound == "True"
    assert said == ["True"] * 6
    assert numbers == "[0, 1, 2, 3, 4, 5]"


def test_many_threads_may_ask_for_several_results_at_once():
    function = weft.hybridize(several)
    inputs = [torch.randn(2, 16) for _ in range(6)]
    warm(function, inputs[0])
    wrong: list[int] = []
    start = threading.Barrier(6, timeout=20)

    def work(number: int) -> None:
        start.wait()
        expected = several(inputs[number])
        right = [all(map(torch.equal, function(inputs[number]), expected)) for _ in range(200)]
        wrong.extend([number] * right.count(False))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert wrong == []


SEVEN = (0,) * 7


def test_names_in_closures_and_globals_are_watched(x):
    factor, offsets = 2.0, (1, (2, 3))

    def scaled(x):
        return x * factor + offsets[1][0] + len(SEVEN)

    function = weft.hybridize(scaled)
    entry = warm(function, x)
    assert torch.equal(entry(x), x * 2 + 2 + len(SEVEN))
    factor = 3.0
    assert entry(x) is MISSED
    assert torch.equal(function(x), x * 3 + 2 + len(SEVEN))


def test_a_list_in_a_closure_is_not_for_it(x):
    factors = [2.0]
    function = weft.hybridize(lambda x: x * factors[0])
    for _ in range(5):
        function(x)
    factors[0] = 5.0
    assert torch.equal(function(x), x * 5)


def test_a_convolution_with_its_tuples_has_one():
    with torch.no_grad():
        net = weft.hybridize(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()))
        x = torch.randn(1, 1, 6, 6)
        assert torch.equal(warm(net, x)(x), net(x))


def test_inference_mode_has_one_too(x):
    net = weft.hybridize(net_of())
    with torch.inference_mode():
        given = torch.randn(2, 16)
        entry = warm(net, given)
        result = entry(given)
        assert result.is_inference()
        torch.testing.assert_close(result, net_of()(given))
        assert entry(x) is MISSED  # not made in inference mode: that is another look
    assert entry(given) is MISSED


@pytest.mark.parametrize("find", [tensor_layout, grad_layout, object_layout, tensor_masks])
def test_what_objects_look_like_is_found_in_any_mode(find):
    expected = find()
    assert expected
    for mode in (torch.inference_mode, torch.no_grad, lambda: torch.device("meta")):
        find.cache_clear()
        with mode():
            found = find()
            # Of words with unused bytes between fields, which of those happen to agree may differ.
            places = [at for at, _ in found] if find is tensor_masks else found
            assert places == ([at for at, _ in expected] if find is tensor_masks else expected)


class Masked(nn.Module):
    """A module with what modules often have: defaults of arguments, and an attribute of the class."""

    scale = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, *, times: int = 1) -> torch.Tensor:
        y = self.layer(x) * self.scale * times
        return y if mask is None else y + mask


def test_defaults_of_arguments_and_attributes_of_classes_cost_no_call_of_python(x):
    module = Masked()
    expected = module(x).detach()
    with torch.no_grad():
        assert torch.allclose(warm(weft.hybridize(module), x)(x), expected)


def test_a_default_that_may_change_inside_is_looked_at(x):
    @weft.hybridize
    def scaled(y, scales=[2.0]):  # noqa: B006 - what is tested
        return y * scales[0]

    for _ in range(4):
        assert torch.equal(scaled(x), x * 2)
    scaled.function.__defaults__[0][0] = 3.0
    assert torch.equal(scaled(x), x * 3)


FACTOR, COUNT = 2.0, 0


def test_names_beside_those_that_code_mentions_may_change_at_every_call(x, monkeypatch):
    @weft.hybridize
    def scaled(y):
        return y * FACTOR

    entry = warm(scaled, x)
    for number in range(3):
        monkeypatch.setattr(sys.modules[__name__], "COUNT", number)
        assert torch.equal(entry(x), x * 2)


def test_tensors_in_names_lists_and_closures_are_inputs_of_a_whole_call(x):
    layers = [torch.randn(16, 8), torch.randn(8)]
    shift = torch.randn(8)

    @weft.hybridize
    def affine(y):
        return torch.addmm(layers[1] + shift, y, layers[0])

    entry = warm(affine, x)
    assert torch.allclose(entry(x), torch.addmm(layers[1] + shift, x, layers[0]))
    layers[1] = torch.randn(8)
    assert entry(x) is MISSED
    assert torch.allclose(affine(x), torch.addmm(layers[1] + shift, x, layers[0]))
    shift = torch.ones(8)
    assert torch.allclose(affine(x), torch.addmm(layers[1] + shift, x, layers[0]))


def test_what_is_an_equal_number_at_every_call_but_another_object_is_compared_in_python(x, monkeypatch):
    monkeypatch.setattr(guarded, "MOST_ALARMS", 3)
    scale = 1.5

    @weft.hybridize
    def scaled(y):
        return y * scale

    for number in range(12):
        scale = float(f"1.5{'0' * number}")
        assert torch.equal(scaled(x), x * 1.5)
    assert scaled.traces == 1
    (found,) = next(iter(scaled.programs.values()))
    settled = found._settled
    scale = float("1.50")
    assert torch.equal(scaled(x), x * 1.5)
    assert found._settled is settled  # nothing was looked up again
    scale = 2.5
    assert torch.equal(scaled(x), x * 2.5)


class Called:
    """Counts how often a hybridized function goes the long way."""

    def __init__(self, hybrid, monkeypatch):
        self.times, self._call = 0, hybrid._call
        monkeypatch.setattr(hybrid, "_call", self)

    def __call__(self, *call):
        self.times += 1
        return self._call(*call)


@pytest.mark.usefixtures("exact_sizes")
def test_a_few_kinds_of_calls_may_take_turns_and_stay_quick_and_entry(x, monkeypatch):
    module = Masked()
    kinds = [(x,), (x, torch.randn(2, 8)), (torch.randn(3, 16),), (x, None)]
    monkeypatch.setattr(known_calls, "MOST_KNOWN_CALLS", len(kinds))
    with torch.no_grad():
        plain = [module(*kind) for kind in kinds]
        hybrid = weft.hybridize(module)
        for _ in range(6):
            for kind in kinds:
                hybrid(*kind)
        long = Called(hybrid.forward, monkeypatch)
        for kind, expected in zip(kinds, plain, strict=True):
            assert torch.allclose(hybrid(*kind), expected)
            assert latest(hybrid).is_bound
        assert long.times == 0
        hybrid.layer.weight.mul_(2)  # a parameter that programs of all kinds read
        hybrid.layer.bias.mul_(2)
        for kind in kinds:
            assert torch.allclose(hybrid(*kind), hybrid.forward.function(*kind))
        hybrid(torch.ones(5, 16))  # one more than are kept: the one that was called least lately goes
        assert len(hybrid.forward._known_calls._kept) == len(kinds)
        long.times = 0
        assert torch.allclose(hybrid(*kinds[0]), hybrid.forward.function(*kinds[0]))
        assert long.times == 1


def test_calls_with_names_and_constants_are_quick_and_entry(x, monkeypatch):
    module = Masked()
    mask = torch.randn(2, 8)
    with torch.no_grad():
        plain, masked = module(x), module(x, mask)
        hybrid = weft.hybridize(module)
        for _ in range(4):
            hybrid(x=x, mask=None, times=2)
        long = Called(hybrid.forward, monkeypatch)
        assert torch.allclose(hybrid(x=x, mask=None, times=2), plain * 2)
        assert latest(hybrid).is_bound
        assert torch.allclose(hybrid(x=x + 0, mask=None, times=2), plain * 2)
        assert long.times == 0
        # Another order of names, another constant, a tensor in its place, fewer arguments: the long way.
        assert torch.allclose(hybrid(mask=None, x=x, times=2), plain * 2)
        assert torch.allclose(hybrid(mask=None, x=x, times=3), plain * 3)
        assert torch.allclose(hybrid(x=x, mask=mask, times=1), masked)
        assert torch.allclose(hybrid(x=x, mask=None, times=1), plain)
        assert torch.allclose(hybrid(x), plain)
        assert torch.allclose(hybrid(x, mask), masked)
        assert long.times == 6


def test_the_order_of_names_tells_tensors_apart(x):
    @weft.hybridize
    def difference(first, second):
        return first - second

    for _ in range(4):
        assert torch.equal(difference(first=x, second=x * 2), -x)
    assert torch.equal(difference(second=x, first=x * 2), x)
    assert torch.equal(difference(x, second=x * 2), -x)


def test_calls_under_autocast_are_native_from_end_to_end_and_miss_where_it_casts_to_another_dtype(x):
    net = weft.hybridize(net_of())
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        entry = warm(net, x)
        assert entry(x).dtype is torch.bfloat16
        with torch.autocast("cpu", dtype=torch.float16):
            assert entry(x) is MISSED
            assert net(x).dtype is torch.float16
        with torch.autocast("cpu", enabled=False):
            assert entry(x) is MISSED
            assert net(x).dtype is torch.float32
        assert entry(x).dtype is torch.bfloat16


@pytest.mark.parametrize("odd", [math.inf, math.nan, 2**62, True], ids=str)
def test_numbers_that_are_inputs_are_led_to_the_program_but_for_odd_ones(odd: float) -> None:
    hybrid = weft.hybridize(lambda x, number: x * number + 1)
    x = torch.randn(4, 3)
    with torch.no_grad():
        for number in (1.5, 2.5, 3.5, 4.5) if isinstance(odd, float) else (2, 3, 4, 5):
            hybrid(x, number)
        traces, longer = hybrid.traces, []
        usual = type(hybrid)._call
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(hybrid), "_call", lambda self, *given: longer.append(given) or usual(self, *given))
            for number in (7.5, -0.25, 7.5) if isinstance(odd, float) else (7, -3, 7):
                torch.testing.assert_close(hybrid(x, number), x * number + 1)
            assert not longer
            torch.testing.assert_close(hybrid(x, odd), x * odd + 1, equal_nan=True)
            assert longer
        for number in (8.5, 9.5) if isinstance(odd, float) else (8, 9):
            torch.testing.assert_close(hybrid(x, number), x * number + 1)
    assert hybrid.traces <= traces + 1
