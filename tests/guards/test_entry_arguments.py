"""What the entry opens and compares of arguments: containers, names, constants, what autograd knows, shared memory."""

import threading
import weakref

import pytest
import torch
from tests.guards.test_entry import Called, latest, warm
from torch import nn
from torch.autograd import forward_ad

import weft
from weft.guards.entry import MISSED
from weft.runtime.memory_layout import object_layout

pytestmark = pytest.mark.skipif(object_layout() is None, reason="this Python or PyTorch has no entries")


@pytest.fixture
def x():
    return torch.randn(2, 16)


def scored(batch, *, scale=1.0):
    """A function of a dictionary with more inside."""
    pairs = batch["pairs"]
    return batch["x"] * scale + pairs[0] - pairs[1][0] + batch["rest"]["bias"]


def batch_of(x):
    return {"x": x, "pairs": [x + 1, (x * 2,)], "rest": {"bias": x.mean(1, keepdim=True), "none": None, "more": ()}}


def test_dictionaries_and_what_is_inside_are_native_from_end_to_end(x, monkeypatch):
    hybrid = weft.hybridize(scored)
    for _ in range(4):
        torch.testing.assert_close(hybrid(batch_of(x), scale=2.0), scored(batch_of(x), scale=2.0))
    assert latest(hybrid).is_bound
    long = Called(hybrid, monkeypatch)
    for _ in range(3):
        other = torch.randn(2, 16)
        torch.testing.assert_close(hybrid(batch_of(other), scale=2.0), scored(batch_of(other), scale=2.0))
    assert long.times == 0


def another_key(batch):
    return {**batch, "y": batch["x"]}


def fewer_keys(batch):
    batch["rest"].pop("none")
    return batch


def another_order(batch):
    return dict(reversed(batch.items()))


def another_container(batch):
    return {**batch, "pairs": tuple(batch["pairs"])}


def a_longer_list(batch):
    batch["pairs"].append(batch["x"])
    return batch


def another_constant(batch):
    return {**batch, "rest": {**batch["rest"], "none": True}}


def the_same_dictionary_twice(batch):
    return {**batch, "more": (batch["rest"], batch["rest"])}


def the_same_tensor_twice(batch):
    return {**batch, "pairs": [batch["x"], (batch["x"],)]}


def another_size_inside(batch):
    return {**batch, "rest": {**batch["rest"], "bias": batch["x"] - 1}}


OTHERS = [
    another_key,
    fewer_keys,
    another_order,
    another_container,
    a_longer_list,
    another_constant,
    the_same_dictionary_twice,
    the_same_tensor_twice,
    another_size_inside,
]


@pytest.mark.parametrize("other", OTHERS, ids=[other.__name__ for other in OTHERS])
def test_other_containers_are_told_from_these(x, other):
    hybrid = weft.hybridize(scored)
    for _ in range(4):
        hybrid(batch_of(x))
    entry = latest(hybrid).entry
    assert entry(batch_of(x)) is not MISSED
    assert entry(other(batch_of(x))) is MISSED
    torch.testing.assert_close(hybrid(other(batch_of(x))), scored(other(batch_of(x))))
    torch.testing.assert_close(entry(batch_of(x)), scored(batch_of(x)))


@pytest.mark.parametrize("names", [("b", "a"), ("a", "c"), ("c", "b"), ("a", "b", "c")])
def test_tensors_of_one_look_are_told_apart_by_their_keys(names):
    hybrid = weft.hybridize(lambda batch: batch.get("a", 5.0) - batch.get("b", 7.0))
    first, second, third = torch.randn(3).unbind()
    for _ in range(4):
        hybrid({"a": first, "b": second})
    entry = latest(hybrid).entry
    given = dict(zip(names, (second, first, third), strict=False))
    expected = given.get("a", 5.0) - given.get("b", 7.0)
    assert entry(given) is MISSED
    assert torch.equal(hybrid(given), expected)


def test_views_of_batches_are_native_arguments():
    hybrid = weft.hybridize(lambda a: a * 3)
    rows = torch.randn(6, 3)
    entry = warm(hybrid, rows[1])
    for row in (rows[2], rows[2:4][1], torch.tensor([[1.0, 2.0, 3.0]])[0]):
        assert torch.equal(entry(row), row * 3)
        assert not entry(row).requires_grad
    row = rows[3]
    with torch.no_grad():
        made = rows[4]
    rows.requires_grad_()
    assert entry(row) is MISSED
    assert entry(made) is MISSED
    assert entry(rows[5]) is MISSED
    for view in (row, rows[5], made):
        assert hybrid(view).requires_grad is view.requires_grad
    computed = (rows * 1)[1]
    assert entry(computed) is MISSED
    assert hybrid(computed).requires_grad


def test_an_entry_keeps_no_argument():
    hybrid = weft.hybridize(lambda batch, rows: batch["x"] + rows[0])
    for _ in range(4):
        given = torch.randn(2, 3)
        died = weakref.ref(given)
        hybrid({"x": given}, [given + 1])
        del given
        assert died() is None or not latest(hybrid).is_bound  # the first call's is kept by what it traced
    assert died() is None


def test_tensors_that_autograd_knows_are_native_arguments_too():
    hybrid = weft.hybridize(lambda a, b: a * 2 + b)
    made, leaf = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0], requires_grad=True)
    with torch.no_grad():
        entry = warm(hybrid, made, leaf)
        assert torch.equal(entry(made, leaf), made * 2 + leaf)
        assert torch.equal(entry(torch.zeros(2), leaf), leaf)
        assert entry(made, made.clone()) is MISSED
        assert entry(leaf, leaf) is MISSED


def test_leaves_computed_tensors_and_constants_are_told_apart_under_grad_mode():
    hybrid = weft.hybridize(lambda a: (a * 3).sum())
    leaf = torch.ones(3, requires_grad=True)
    kinds = {"leaf": lambda: leaf, "computed": lambda: leaf * 1, "constant": lambda: torch.ones(3)}
    for _ in range(4):
        for kind, make in kinds.items():
            result = hybrid(make())
            assert result.requires_grad is (kind != "constant")
            if result.requires_grad:
                leaf.grad = None
                result.backward()
                assert torch.equal(leaf.grad, torch.full((3,), 3.0))
    assert hybrid.traces == 3


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_views_hooks_and_tangents_are_what_they_are_in_eager():
    hybrid = weft.hybridize(lambda a: a * 3)
    rows = torch.randn(4, 3)
    for _ in range(4):
        assert torch.equal(hybrid(rows[1]), rows[1] * 3)  # a view that autograd knows
    rows.requires_grad_()
    assert hybrid(rows[1]).requires_grad
    plain = torch.randn(3)
    for _ in range(4):
        hybrid(plain)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(3), torch.full((3,), 2.0))
        with pytest.raises(weft.UnsupportedError, match="forward"):
            hybrid(dual)
    assert torch.equal(hybrid(plain), plain * 3)


def test_sizes_of_many_dimensions_are_compared_though_they_lie_elsewhere():
    hybrid = weft.hybridize(lambda a: a.flatten(1) + 1)
    for shape in ((2, 3, 1, 1, 2, 1, 2), (3, 2, 1, 1, 2, 1, 2), (2, 2, 1, 1, 3, 1, 2)) * 5:
        given = torch.randn(shape)
        assert torch.equal(hybrid(given), given.flatten(1) + 1)


class Counting(nn.Module):
    """Writes into a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x, y):
        self.total.add_(x)
        return self.total + y


def test_arguments_in_the_memory_of_a_written_buffer_are_noticed():
    with torch.no_grad():
        net, eager = weft.hybridize(Counting()), Counting()
        for number in range(6):
            given = torch.full((4,), float(number)), torch.ones(4)
            assert torch.equal(net(*given), eager(*given))
        entry = latest(net).entry
        assert entry(torch.zeros(4), torch.zeros(4)) is not MISSED
        assert torch.equal(net.total, eager.total)
        for alias in (lambda net: net.total, lambda net: net.total.view(4), lambda net: net.total.data):
            assert torch.equal(net(torch.ones(4), alias(net)), eager(torch.ones(4), alias(eager)))
        both = torch.ones(4)
        for _ in range(3):
            assert torch.equal(net(both, both.view(4)), eager(both, both.view(4)))


def test_what_is_in_containers_lives_until_the_program_is_done():
    hybrid = weft.hybridize(lambda row: [row[0].exp().log() + row[1], row[0] - 1])
    shared = [torch.zeros(200_000), torch.ones(200_000)]
    with torch.no_grad():
        for _ in range(4):
            hybrid(shared)
    assert latest(hybrid).is_bound
    done = threading.Event()

    def replace():
        while not done.is_set():
            number = float(torch.randint(0, 5, ()))
            shared[0] = torch.full((200_000,), number)
            shared[1] = torch.full((200_000,), 1.0)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        for _ in range(100):
            first, second = hybrid(shared)
            assert bool((first == first[0]).all())
            assert bool((second == second[0]).all())
    finally:
        done.set()
        thread.join(20)


def test_alarms_that_are_rare_leave_facts_to_words(x):
    with torch.no_grad():
        net = weft.hybridize(nn.Sequential(nn.Linear(16, 4)))
        for _ in range(30):
            net[0].weight = net[0].weight  # writes a dictionary, and changes nothing
            for _ in range(3):
                net(x)
        assert net.forward.traces == 1
        assert latest(net).guarded._restless == frozenset()
        for _ in range(200):
            net(x)
        assert latest(net).is_bound


def test_many_tensors_are_told_apart_though_not_each_two_are_compared_natively(monkeypatch):
    hybrid = weft.hybridize(lambda rows: rows[0] * 2 if rows[38] is rows[39] else torch.stack(rows).sum(0))
    rows = [torch.randn(3) for _ in range(40)]
    for _ in range(4):
        torch.testing.assert_close(hybrid(rows), torch.stack(rows).sum(0))
    long = Called(hybrid, monkeypatch)
    others = [torch.randn(3) for _ in range(40)]
    torch.testing.assert_close(hybrid(others), torch.stack(others).sum(0))
    assert long.times == 0
    others[39] = others[38]
    assert torch.equal(hybrid(others), others[0] * 2)


def test_the_dtype_that_autocast_casts_to_is_part_of_a_call(monkeypatch):
    hybrid = weft.hybridize(lambda a: a @ a)
    given = torch.randn(3, 3)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            for _ in range(4):
                assert hybrid(given).dtype is dtype
    long = Called(hybrid, monkeypatch)
    for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype=dtype):
            assert hybrid(given).dtype is dtype
    assert long.times == 0
    assert hybrid(given).dtype is torch.float32


def test_an_own_tensor_that_comes_to_look_like_an_argument_is_told_from_others():
    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5))

        def forward(self, x):
            return x * 2 if x is self.weight else x + self.weight.sum()

    with torch.no_grad():
        net, eager = weft.hybridize(Asking()), Asking()
        for _ in range(4):
            net(torch.ones(3).requires_grad_())
        for one in (net, eager):
            one.weight = nn.Parameter(torch.full((3,), 4.0))
        for _ in range(3):
            assert torch.equal(net(torch.ones(3)), eager(torch.ones(3)))
            assert torch.equal(net(net.weight), eager(eager.weight))


def test_a_buffer_that_comes_to_require_grad_by_its_base_is_noticed():
    whole = torch.randn(4, 3)
    part = whole[1:3]
    hybrid = weft.hybridize(lambda a: a * part)
    given = torch.randn(2, 3)
    for _ in range(4):
        assert not hybrid(given).requires_grad
    whole.requires_grad_()
    for _ in range(2):
        result = hybrid(given)
        assert result.requires_grad
        assert torch.equal(result, given * part)


def test_arguments_that_share_memory_are_noticed_where_one_is_written():
    def add_and_multiply(a, b):
        a.add_(1)
        return a * b

    hybrid = weft.hybridize(add_and_multiply)
    for _ in range(4):
        hybrid(torch.ones(3), torch.ones(3))
    assert latest(hybrid).entry(torch.ones(3), torch.ones(3)) is not MISSED
    for part in (slice(0, 3), slice(1, 4), slice(3, 6)):
        memory, expected = torch.ones(6), torch.ones(6)
        given = hybrid(memory[part], memory[:3])
        assert torch.equal(given, add_and_multiply(expected[part], expected[:3]))
        assert torch.equal(memory, expected)


def test_a_program_for_arguments_that_share_memory_is_not_run_for_others():
    def add_and_multiply(a, b):
        a.add_(1)
        return a * b

    hybrid = weft.hybridize(add_and_multiply)
    for _ in range(4):
        memory = torch.ones(6)
        assert torch.equal(hybrid(memory[:3], memory[:3].view(3)), torch.full((3,), 4.0))
    for _ in range(3):
        assert torch.equal(hybrid(torch.ones(6)[:3], torch.ones(6)[:3].view(3)), torch.full((3,), 2.0))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_tangents_are_seen_where_python_compares_what_a_call_looks_like():
    hybrid = weft.hybridize(lambda a: a * 3)
    given = torch.ones(1, 1, 1, 1, 1, 1, 2)
    for _ in range(4):
        hybrid(given)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(given, given)
        with pytest.raises(weft.UnsupportedError, match="forward"):
            hybrid(dual)
