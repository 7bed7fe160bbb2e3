"""Spawned work runs in the background, in the order that its tensors ask for."""

import threading
import time
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_flatten

import weft
from weft.errors import ExecutionError
from weft.lazy_tensors.native_calls import native_strangers

pytestmark = pytest.mark.usefixtures("own_engine")


def test_a_result_can_be_passed_on_before_it_exists():
    go = threading.Event()

    def slow(x):
        go.wait(20)
        return x + 1

    first = weft.spawn(slow, torch.zeros(4))
    second = weft.spawn(lambda y, z: y * z, first, z=torch.full((4,), 3.0))
    assert not weft.ready(second)
    go.set()
    assert weft.wait(second).tolist() == [3, 3, 3, 3]
    assert weft.ready(second)
    assert torch.add(first, 1).tolist() == [2, 2, 2, 2]


def test_writes_are_ordered_against_reads_of_the_same_memory():
    x = torch.zeros(64)

    def grow(tensor):
        tensor.add_(1)

    results = []
    for _ in range(5):
        weft.spawn(grow, x)
        results.append(weft.spawn(torch.clone, x[:2]))
    assert [weft.wait(result)[0].item() for result in results] == [1, 2, 3, 4, 5]


def test_spawned_and_lazy_work_see_each_other():
    x = torch.ones(32, 32)
    with weft.lazy():
        for _ in range(4):
            y = (x + 1) * 2
            z = weft.spawn(lambda t: t.sum(), y)
            y.add_(1)
            assert weft.wait(z).item() == 4 * 1024
            assert (z + y.sum()).item() == 9 * 1024


def test_a_model_and_what_it_holds_are_ordered():
    net = nn.Linear(4, 4)
    x = torch.ones(4)
    before = net(x).detach()
    result = weft.spawn(net, x)
    with weft.lazy(), torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    torch.testing.assert_close(weft.wait(result).detach(), before)


def test_an_error_reaches_who_waits_with_the_line_that_spawned():
    def fail(x):
        raise ValueError("no")

    lost = weft.spawn(fail, torch.zeros(3))
    after = weft.spawn(torch.neg, lost)
    with pytest.raises(ExecutionError, match=r"(?s)fail failed.*test_spawn.py:\d+.*weft.spawn\(fail"):
        weft.wait(after)
    with pytest.raises(ExecutionError):
        weft.waitall()


def test_of_several_that_failed_who_waits_gets_the_one_spawned_first():
    def fail(x, word):
        raise ValueError(word)

    first, second = (weft.spawn(fail, torch.zeros(3), word) for word in ("one", "two"))
    with pytest.raises(ExecutionError, match="one"):
        weft.wait({"results": [second, (first,)]})
    with pytest.raises(ExecutionError):
        weft.waitall()


def test_results_are_found_wherever_they_are_and_the_rest_stays_what_it_is():
    other = torch.Size([2]), "text", {"a": 1}
    spawned = [weft.spawn(torch.neg, torch.full((2,), float(number))) for number in range(4)]
    pair = torch.return_types.max((spawned[2], spawned[3]))
    given = weft.wait([spawned[0], (spawned[1], *other), pair, {"b": spawned[0]}])
    assert [float(given[0][0]), float(given[1][0][0]), float(given[2].values[0])] == [0.0, -1.0, -2.0]
    assert type(given[2]) is torch.return_types.max
    assert given[1][1:] == other
    assert type(given[1][1]) is torch.Size
    assert given[3]["b"] is given[0]


def test_two_lanes_run_at_once():
    both = threading.Barrier(2, timeout=20)
    with weft.on("cpu:0"):
        a = weft.spawn(lambda: both.wait() >= 0)
    with weft.on("cpu:1"):
        b = weft.spawn(lambda: both.wait() >= 0)
    assert weft.wait([a, b]) == [True, True]


class Gpu:
    """Stands for a GPU whose streams only note what they are asked for."""

    def __init__(self, noted: list[str]):
        self.noted = noted
        self.streams = 0
        self.now = threading.local()

    def make(self, device=None):
        self.streams += 1
        return Stream(f"stream {self.streams} of {device}", self.noted)

    def current(self, device=None):
        return getattr(self.now, "stream", None) or Stream(f"usual stream of {device or 'cuda:0'}", self.noted)

    @contextmanager
    def on(self, stream):
        before, self.now.stream = getattr(self.now, "stream", None), stream
        yield
        self.now.stream = before


class Stream:
    def __init__(self, name, noted):
        self.name, self.noted = name, noted

    def __eq__(self, other):
        return isinstance(other, Stream) and self.name == other.name

    def __hash__(self):
        return hash(self.name)

    def record_event(self):
        return f"what {self.name} has"

    def wait_event(self, event):
        self.noted.append(f"{self.name} waits for {event}")

    def synchronize(self):
        self.noted.append(f"{self.name} is done")


@pytest.fixture
def gpu(monkeypatch, own_engine):
    made = Gpu([])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_stream", made.current)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: Stream(f"usual stream of cuda:{device}", []))
    monkeypatch.setattr(torch.cuda, "stream", made.on)
    monkeypatch.setattr(torch.cuda, "Stream", made.make)
    return made


def test_work_placed_on_a_gpu_has_a_stream_of_its_own_there_and_is_done_when_it_is_waited_for(gpu):
    def work(x):
        gpu.noted.append(f"computes on {torch.cuda.current_stream().name}")
        return x + 1

    with weft.on("cuda:1"):
        assert weft.wait(weft.spawn(work, torch.ones(3))).tolist() == [2, 2, 2]
    assert gpu.noted == [
        "stream 1 of cuda:1 waits for what usual stream of cuda:1 has",
        "computes on stream 1 of cuda:1",
        "stream 1 of cuda:1 is done",
    ]


def test_two_pieces_of_work_on_one_gpu_run_at_once_on_two_streams(gpu):
    both = threading.Barrier(2, timeout=20)

    def work():
        both.wait()
        return torch.cuda.current_stream().name

    with weft.on("cuda:0"):
        found = weft.wait([weft.spawn(work), weft.spawn(work)])
    assert sorted(found) == ["stream 1 of cuda:0", "stream 2 of cuda:0"]


def test_work_on_a_gpu_that_fails_is_over_before_it_is_told(gpu):
    with weft.on("cuda:0"):
        lost = weft.spawn(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        weft.wait(lost)
    assert gpu.noted[-1] == "stream 1 of cuda:0 is done"


def test_spawned_work_queues_on_the_stream_of_the_call(gpu):
    with torch.cuda.stream(Stream("mine", gpu.noted)):
        assert weft.wait(weft.spawn(lambda: torch.cuda.current_stream().name)) == "mine"
    assert weft.wait(weft.spawn(lambda: torch.cuda.current_stream().name)) == "usual stream of cuda:0"


def test_a_placed_task_computes_on_one_core():
    before = torch.get_num_threads()
    with weft.on("cpu:1"):
        assert weft.wait(weft.spawn(torch.get_num_threads)) == 1
    assert torch.get_num_threads() == before


def test_writing_what_was_only_read_before_is_an_error():
    def maybe(x, write):
        return x.add_(1) if write else x + 1

    x = torch.zeros(3)
    weft.wait(weft.spawn(maybe, x, False))
    with pytest.raises(ExecutionError, match="wrote a tensor"):
        weft.wait(weft.spawn(maybe, x, True))


def test_what_is_waited_for_stays_what_it_is() -> None:
    size = torch.Size([2, 3])
    assert weft.wait(size) is size
    with weft.lazy():
        assert type(weft.wait(torch.broadcast_shapes((2, 1), (3,)))) is torch.Size


def test_sparse_tensors_are_computed_in_order_with_others() -> None:
    x = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    with weft.lazy():
        y = x * 2
        sparse = y.to_sparse()
        result = torch.sparse.mm(sparse, y + 1)
        weft.wait([sparse, result])
    assert torch.equal(weft.wait(result), (x * 2) @ (x * 2 + 1))
    assert torch.equal(weft.wait(weft.spawn(torch.Tensor.to_dense, sparse)), x * 2)


def test_named_results_are_waited_for_and_keep_their_names() -> None:
    x = torch.tensor([[1.0, 5.0], [4.0, 2.0]])
    with weft.lazy():
        found = weft.wait((x + 1).max(dim=1))
    assert type(found) is torch.return_types.max
    assert found.values.tolist() == [6.0, 5.0]
    assert type(found.values) is torch.Tensor


def test_a_spawned_function_may_give_back_what_it_wrote_or_was_given() -> None:
    x, y = torch.zeros(4), torch.ones(4)
    for turn in range(1, 3):
        found = weft.wait(weft.spawn(lambda t, u: (t.add_(u), u, t[1:]), x, y))
        assert found[0] is x
        assert found[1] is y
        assert found[2].tolist() == [turn] * 3


def test_spawned_work_runs_under_the_modes_of_the_call():
    x = torch.ones(4, 4, requires_grad=True)

    def kinds(tensor):
        y = tensor @ tensor
        return y.requires_grad, y.is_inference(), y.dtype

    with torch.no_grad():
        without = weft.spawn(kinds, x)
    with torch.inference_mode():
        inference = weft.spawn(kinds, x)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = weft.spawn(kinds, x)
    usual = weft.spawn(kinds, x)
    assert without.result() == (False, False, torch.float32)
    assert inference.result() == (False, True, torch.float32)
    assert mixed.result() == (True, False, torch.bfloat16)
    assert usual.result() == (True, False, torch.float32)


def test_a_setting_changes_when_spawned_work_is_done():
    x = torch.arange(4)
    go = threading.Event()

    def third(tensor):
        go.wait(20)
        return tensor / 3

    found = weft.spawn(third, x)
    threading.Timer(0, go.set).start()
    torch.set_default_dtype(torch.float64)
    torch.set_default_dtype(torch.float32)
    assert weft.ready(found)
    assert found.result().dtype == torch.float32


def test_what_one_call_writes_says_nothing_of_others_that_look_alike():
    def timed(function):
        def wrapper(*given):
            return function(*given)

        return wrapper

    def run(module, x):
        return module(x)

    class Named:
        """Objects of one name are equal."""

        def __init__(self, module):
            self.module = module

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 0

        def __call__(self, given):
            return self.module(given)

    x, norm = torch.randn(5, 4), nn.BatchNorm1d(4)
    pairs = [
        (nn.Sequential(nn.Linear(4, 4)), nn.Sequential(norm)),
        (partial(torch.mul, x), partial(norm)),
        (timed(torch.relu), timed(norm)),
        (partial(run, nn.Linear(4, 4)), partial(run, norm)),
        (nn.Linear(4, 4).forward, norm.forward),
        (Named(nn.Linear(4, 4)), Named(norm)),
    ]
    for reads, writes in pairs:
        weft.wait(weft.spawn(reads, x))
        weft.wait(weft.spawn(writes, x))
    assert norm.num_batches_tracked == len(pairs)


def test_a_loop_that_waits_for_the_step_before_the_last_overlaps_two_and_no_more():
    gates = [threading.Event() for _ in range(6)]

    def step(x, number):
        assert gates[number].wait(20)
        return x + number

    losses, unfinished = [], []
    for number in range(len(gates)):
        losses.append(weft.spawn(step, torch.ones(2), number))
        unfinished.append(sum(not weft.ready(loss) for loss in losses))
        if number:
            gates[number - 1].set()
            weft.wait(losses[-2])
    gates[-1].set()
    assert [float(loss[0]) for loss in weft.wait(losses)] == [1, 2, 3, 4, 5, 6]
    assert unfinished == [1, 2, 2, 2, 2, 2]


@pytest.mark.parametrize("given", [3, [torch.ones(2)], None])
def test_what_is_no_tensor_is_not_asked_whether_it_is_ready(given):
    with pytest.raises(weft.UsageError, match=r"weft.ready was given a (int|list|NoneType)"):
        weft.ready(given)


def test_what_is_no_function_is_refused_at_once():
    with pytest.raises(weft.UsageError, match="given a int"):
        weft.spawn(5)


@pytest.mark.parametrize(
    "make", [lambda x: [x + 1, x + 2], lambda x: ([x + 1], {"two": (x + 2,)})], ids=["flat", "nested"]
)
def test_who_waits_for_results_that_are_new_asks_nothing_of_each(make):
    x = torch.ones(3)
    found = [weft.wait(weft.spawn(weft.hybridize(make), x)) for _ in range(3)]
    for results in found:
        tensors, _ = tree_flatten(results)
        assert native_strangers()(tensors)
        assert [tensor.tolist() for tensor in tensors] == [[2] * 3, [3] * 3]


def test_a_result_that_others_still_write_is_waited_for():
    kept, go = [torch.zeros(3), torch.zeros(3)], threading.Event()

    def late(y):
        go.wait(20)
        return y.add_(1)

    weft.spawn(late, kept[0])
    shown = weft.spawn(lambda: list(kept))
    threading.Timer(0.05, go.set).start()
    assert [tensor.tolist() for tensor in weft.wait(shown)] == [[1] * 3, [0] * 3]


def test_functions_with_generators_of_their_own_draw_the_same_numbers_in_every_run() -> None:
    def draw(generator: torch.Generator, pause: float) -> torch.Tensor:
        time.sleep(pause)
        return torch.randn(40, generator=generator).sum() + torch.rand(3, generator=generator).sum()

    def run(pauses: list[float]) -> list[torch.Tensor]:
        torch.manual_seed(1)
        with weft.lazy():
            seeds = torch.randint(1 << 30, (3,)).tolist()
            own = [torch.Generator().manual_seed(seed) for seed in seeds]
            drawn = [weft.spawn(draw, generator, pause) for generator, pause in zip(own, pauses, strict=True)]
            between = torch.randn(20)
            return [between, *weft.wait(drawn), torch.randn(20)]

    expected = run([0.0, 0.0, 0.0])
    for pauses in ([0.02, 0.0, 0.01], [0.0, 0.02, 0.0]):
        assert all(map(torch.equal, run(pauses), expected))
