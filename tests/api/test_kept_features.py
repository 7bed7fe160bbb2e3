"""Hooks and code that keep tensors in dictionaries, lists, objects and names find there what eager puts there."""

from __future__ import annotations

import copy
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.api.agreement import gradients
from torch import nn

import weft
from weft.compile.pipeline import rarely_changing

pytestmark = pytest.mark.usefixtures("by_library")
Run = Callable[[torch.Tensor], list[torch.Tensor]]
Case = tuple[Any, Run]  # what is hybridized, and a call of it that gives the result and everything that was kept
Wrap = Callable[[Any], Any]
last: Any = None


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))


def hooked(net: nn.Sequential, keep: Callable[[str, torch.Tensor], Any]) -> nn.Sequential:
    def hook_of(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            keep(name, output)

        return hook

    for name, module in net.named_children():
        module.register_forward_hook(hook_of(name))
    return net


def by_name(wrap: Wrap) -> Case:
    features: dict[str, torch.Tensor] = {}
    net = wrap(hooked(layers(), features.__setitem__))
    return net, lambda x: [net(x), *features.values()]


def detached(wrap: Wrap) -> Case:
    features: dict[str, torch.Tensor] = {"old": torch.ones(1)}

    def keep(name: str, output: torch.Tensor) -> None:
        features[name] = output.detach()

    net = wrap(hooked(layers(), keep))
    return net, lambda x: [net(x), *features.values()]


def in_pairs(wrap: Wrap) -> Case:
    features: dict[str, Any] = {}

    def keep(name: str, output: torch.Tensor) -> None:
        features[name] = (output, {"twice": output * 2, "name": name})

    net = wrap(hooked(layers(), keep))
    return net, lambda x: [net(x), *(one for pair in features.values() for one in (pair[0], pair[1]["twice"]))]


def cleared_list(wrap: Wrap) -> Case:
    found: list[torch.Tensor] = []

    def keep(name: str, output: torch.Tensor) -> None:
        found.append(output)

    net = wrap(hooked(layers(), keep))

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        found.clear()
        return [net(x), *found]

    return net, run


def growing_list(wrap: Wrap) -> Case:
    found: list[torch.Tensor] = []

    def keep(name: str, output: torch.Tensor) -> None:
        found.append(output.detach())

    net = wrap(hooked(layers(), keep))
    return net, lambda x: [net(x), *found]


def lists_by_name(wrap: Wrap) -> Case:
    found: dict[str, list[torch.Tensor]] = defaultdict(list)

    def keep(name: str, output: torch.Tensor) -> None:
        found[name].append(output.detach())

    net = wrap(hooked(layers(), keep))
    return net, lambda x: [net(x), *(one for row in found.values() for one in row)]


class Watcher:
    def __init__(self) -> None:
        self.all: list[torch.Tensor] = []
        self.seen: dict[str, torch.Tensor] = {}

    def __call__(self, _module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        self.output = output
        self.seen["input"] = inputs[0]
        self.all.append(output)


def in_an_object(wrap: Wrap) -> Case:
    """What the user replaces between calls is filled where it is now."""
    net, watcher = layers(), Watcher()
    net[0].register_forward_hook(watcher)
    net = wrap(net)

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        watcher.all, watcher.seen = [], {}
        return [net(x), watcher.output, watcher.seen["input"], *watcher.all]

    return net, run


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.features = layers(), {}
        self.net[0].register_forward_hook(self.keep)

    def keep(self, _module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        self.features["first"] = output

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.net(x)
        return self.features["first"] * 2


def read_back(wrap: Wrap) -> Case:
    net = wrap(Reads())
    return net, lambda x: [net(x), net.features["first"]]


def in_a_global_name(wrap: Wrap) -> Case:
    net = layers()

    def function(x: torch.Tensor) -> torch.Tensor:
        global last  # noqa: PLW0603
        last = net(x)
        return last * 2

    found = wrap(function)
    return net, lambda x: [found(x), last]


def in_a_closure(wrap: Wrap) -> Case:
    net, before = nn.Linear(4, 4), None

    def function(x: torch.Tensor) -> torch.Tensor:
        nonlocal before
        before = net(x) if before is None else net(x) + before.detach()
        return before

    found = wrap(function)
    return net, lambda x: [found(x), before]


@dataclass
class Both:
    h: torch.Tensor
    c: torch.Tensor


class Keeps(nn.Module):
    def __init__(self, start: Any, forward: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.cell, self.kept, self.own = nn.Linear(4, 4), nn.LSTMCell(4, 4), start, forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.own(self, x)


def inside(thing: Any) -> list[torch.Tensor]:
    parts = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, (list, tuple, deque)) else None
    if parts is None:
        parts = [] if thing is None else [thing] if isinstance(thing, torch.Tensor) else vars(thing).values()
    return [thing] if isinstance(thing, torch.Tensor) else [one for part in parts for one in inside(part)]


def module(start: Callable[[], Any], forward: Callable[[Any, torch.Tensor], torch.Tensor]) -> Callable[[Wrap], Case]:
    def case(wrap: Wrap) -> Case:
        net = wrap(Keeps(start(), forward))
        return net, lambda x: [net(x), *inside(net.kept)]

    return case


def state_in_a_tuple(net: Any, x: torch.Tensor) -> torch.Tensor:
    state = net.cell(x, net.kept)
    net.kept = tuple(part.detach() for part in state)
    return state[0]


def state_in_an_object(net: Any, x: torch.Tensor) -> torch.Tensor:
    h, c = net.cell(x) if net.kept is None else net.cell(x, (net.kept.h, net.kept.c))
    net.kept = Both(h.detach(), c.detach())
    return h


def states_in_a_list(net: Any, x: torch.Tensor) -> torch.Tensor:
    for place, state in enumerate(net.kept):
        h, c = net.cell(x, state)
        net.kept[place] = (h.detach(), c.detach())
        x = h
    return x


def attribute_of_an_object(net: Any, x: torch.Tensor) -> torch.Tensor:
    before = getattr(net.kept, "keys", None)
    net.kept.keys = net.layer(x).detach() + (0 if before is None else before)
    return net.layer(x) + net.kept.keys


def two_before(net: Any, x: torch.Tensor) -> torch.Tensor:
    """Tensors that were there before move on."""
    found = net.layer(x) + net.kept["old"] * net.kept["new"]
    net.kept["old"], net.kept["new"] = net.kept["new"], found.detach()
    return found


def last_few(net: Any, x: torch.Tensor) -> torch.Tensor:
    found = net.layer(x) + sum(net.kept)
    net.kept.pop(0)
    net.kept.append(found.detach())
    return found


def queue(net: Any, x: torch.Tensor) -> torch.Tensor:
    found = net.layer(x) + (torch.stack(list(net.kept)).mean(0) if net.kept else 0)
    net.kept.append(found.detach())
    return found


def filled_again(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.kept.clear()
    for _ in range(3):
        x = net.layer(x)
        net.kept.append(x)
    return sum(net.kept)


def all_so_far(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.kept.append(net.layer(x).detach())
    return torch.stack(net.kept).sum(0) + net.layer(x)


def until_there_are_four(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.kept.append(net.layer(x).detach())
    if len(net.kept) == 4:
        net.kept.clear()
        x = x * 2
    return net.layer(x)


def taken_out(net: Any, x: torch.Tensor) -> torch.Tensor:
    if "state" not in net.kept:
        net.kept["state"] = net.layer(x).detach()
        return net.layer(x)
    return net.layer(x) + net.kept.pop("state")


CASES = {
    **{case.__name__: case for case in (by_name, detached, in_pairs, cleared_list, growing_list, lists_by_name)},
    **{case.__name__: case for case in (in_an_object, read_back, in_a_global_name, in_a_closure)},
    "state in a tuple": module(lambda: None, state_in_a_tuple),
    "one tensor for both states": module(lambda: (torch.zeros(5, 4),) * 2, state_in_a_tuple),
    "state in an object": module(lambda: None, state_in_an_object),
    "states in a list": module(lambda: [(torch.zeros(5, 4),) * 2] * 2, states_in_a_list),
    "attribute of an object": module(SimpleNamespace, attribute_of_an_object),
    "two before": module(lambda: {"old": torch.ones(4), "new": torch.ones(5, 4)}, two_before),
    "last few": module(lambda: [torch.full((5, 4), float(number)) for number in range(3)], last_few),
    "queue": module(lambda: deque(maxlen=3), queue),
    "filled again": module(list, filled_again),
    "all so far": module(list, all_so_far),
    "until there are four": module(list, until_there_are_four),
    "taken out": module(dict, taken_out),
}


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    global last  # noqa: PLW0603
    last = None
    yield
    last = None


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_kept_is_what_eager_keeps_call_after_call(case: Callable[[Wrap], Case]) -> None:
    global last  # noqa: PLW0603
    everything = []
    for wrap in (lambda thing: thing, weft.hybridize):
        last = None
        torch.manual_seed(3)
        net, run = case(wrap)
        everything.append([])
        for _ in range(7):
            found = run(torch.randn(5, 4))
            carrying = [one for one in found if one.requires_grad]
            slopes = gradients(torch.stack([one.sum() for one in carrying]).sum(), list(net.parameters()))
            everything[-1].append(
                ([one.detach().clone() for one in found], [one.requires_grad for one in found], slopes)
            )
    for theirs, ours in zip(*everything, strict=True):
        torch.testing.assert_close(ours[0], theirs[0])
        assert ours[1] == theirs[1]
        torch.testing.assert_close(ours[2], theirs[2])


@pytest.mark.parametrize("case", [growing_list, lists_by_name, in_an_object])
def test_a_list_that_is_only_appended_to_needs_no_program_a_length(case: Callable[[Wrap], Case]) -> None:
    net, run = case(weft.hybridize)
    for _ in range(6):
        run(torch.randn(5, 4))
    assert net.forward.traces <= 2


@pytest.mark.parametrize("start", [[], [torch.ones(5, 4)]])
def test_the_list_itself_is_there_after_it_was_watched(start: list[Any]) -> None:
    net = weft.hybridize(Keeps(start, all_so_far))
    net(torch.randn(5, 4))
    assert net.kept is start
    assert type(net.kept) is list


def test_programs_that_read_a_list_see_what_others_append() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        if net.training:
            net.kept.append(x * 2)
            return x
        return torch.stack(net.kept).sum(0)

    net = weft.hybridize(Keeps([], forward))
    for number in range(1, 4):
        net.train()(torch.full((2,), float(number)))
        assert net.eval()(torch.ones(2)).tolist() == [number * (number + 1.0)] * 2


def test_an_attribute_that_two_names_shared_is_read_anew_once_they_differ() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        found = x + net.kept * 2 + net.other
        net.kept, net.other = x, x
        return found

    net = weft.hybridize(Keeps(None, forward))
    net.kept = net.other = torch.zeros(2)
    net(torch.ones(2))
    assert net(torch.ones(2)).tolist() == [4.0, 4.0]
    net.kept = torch.zeros(2)
    assert net(torch.ones(2)).tolist() == [2.0, 2.0]


def test_weights_that_were_tied_are_read_anew_once_they_are_untied() -> None:
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    net[1].weight = net[0].weight
    weft.hybridize(net)
    for _ in range(3):
        net(torch.eye(3))
    net[1].weight = nn.Parameter(torch.zeros(3, 3))
    assert not net(torch.eye(3)).any()


class Slopes:
    """Keeps activations and their gradients, as code that explains predictions does."""

    def __init__(self, layer: nn.Module, keep: Callable[[Slopes, torch.Tensor], None]) -> None:
        self.activations: list[torch.Tensor] = []
        self.slopes: list[torch.Tensor] = []
        self.latest: dict[str, torch.Tensor] = {}
        self.keep = keep
        layer.register_forward_hook(lambda _module, _inputs, output: self.activations.append(output))
        layer.register_full_backward_hook(lambda _module, _inputs, slopes: keep(self, slopes[0]))


KEEPING: list[Callable[[Slopes, torch.Tensor], Any]] = [
    lambda own, slope: own.slopes.append(slope),
    lambda own, slope: own.latest.update(slope=slope * 2),
    lambda own, slope: setattr(own, "slopes", [slope]),
]


@pytest.mark.parametrize("keep", KEEPING, ids=["list", "dictionary", "attribute"])
def test_gradients_that_hooks_keep_are_those_of_each_backward(keep: Callable[[Slopes, torch.Tensor], None]) -> None:
    def played(wrap: Wrap) -> list[torch.Tensor]:
        torch.manual_seed(1)
        net = layers()
        own = Slopes(net[0], keep)
        net = wrap(net)
        found = []
        for _ in range(4):
            net(torch.randn(5, 4, requires_grad=True))[:, 0].sum().backward()
            found += [*own.slopes, *own.latest.values()]
        return [one.detach().clone() for one in (*found, *own.activations)]

    torch.testing.assert_close(played(weft.hybridize), played(lambda net: net))


def test_a_gradient_that_a_hook_of_a_tensor_keeps_is_a_real_one() -> None:
    kept: list[torch.Tensor] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        hidden = x * 2
        hidden.register_hook(kept.append)
        return hidden.tanh()

    hybrid, x = weft.hybridize(function), torch.ones(3, requires_grad=True)
    for number in range(1, 4):
        hybrid(x).sum().backward()
        assert len(kept) == number
        torch.testing.assert_close(kept[-1], 1 - torch.full((3,), 2.0).tanh().square())


def test_a_step_leaves_what_hooks_keep() -> None:
    found = []
    for compiled in (False, True):
        torch.manual_seed(5)
        features: dict[str, torch.Tensor] = {}
        net = hooked(layers(), features.__setitem__)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        step = weft.step(net, nn.functional.mse_loss, optimizer)
        for _ in range(5):
            x, y = torch.randn(5, 4), torch.randn(5, 3)
            if compiled:
                step(x, y)
            else:
                optimizer.zero_grad()
                nn.functional.mse_loss(net(x), y).backward()
                optimizer.step()
            found.append([one.detach().clone() for one in (*features.values(), *net.parameters())])
    torch.testing.assert_close(found[5:], found[:5])


def test_a_copy_keeps_in_a_dictionary_of_its_own() -> None:
    net = weft.hybridize(Reads())
    with torch.no_grad():
        net(torch.randn(5, 4))
    other = copy.deepcopy(net)
    before = net.features["first"]
    other.net[0].weight.data.zero_()
    other(torch.randn(5, 4))
    assert net.features["first"] is before


def test_what_a_failed_trace_left_is_taken_back() -> None:
    kept: dict[str, Any] = {"old": 1}
    rows: list[Any] = [1]

    def function(x: torch.Tensor) -> torch.Tensor:
        kept["new"] = x * 2
        rows.append(x)
        return x * x.sum().item()

    with pytest.raises(weft.UnsupportedError):
        weft.hybridize(function)(torch.ones(2))
    assert kept == {"old": 1}
    assert rows == [1]


class Cache(nn.Module):
    """Writes keys into tensors that are no buffers: plain attributes, in lists, of an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.keys, self.rows = nn.Linear(4, 4), torch.zeros(8, 4), [torch.zeros(4), torch.zeros(8, 4)]

    def forward(self, x: torch.Tensor, place: torch.Tensor, other: Any) -> torch.Tensor:
        self.keys.index_copy_(0, place, self.layer(x).detach())
        self.rows[1][:2] += x
        other.total.add_(x.sum())
        return self.keys.sum() + self.layer(x) + self.rows[1].sum() + other.total


def test_tensors_that_are_no_buffers_can_be_written_into() -> None:
    eager = Cache()
    net = weft.hybridize(copy.deepcopy(eager))
    others = [SimpleNamespace(total=torch.zeros(())) for _ in range(2)]
    for number in range(6):
        x, place = torch.randn(2, 4), torch.tensor([number, number + 1])
        torch.testing.assert_close(net(x, place, others[0]), eager(x, place, others[1]))
        torch.testing.assert_close([net.keys, *net.rows], [eager.keys, *eager.rows])
        torch.testing.assert_close(others[0].total, others[1].total)
        if number == 3:
            for one in (net, eager):
                one.keys = torch.ones(8, 4)
    assert net.forward.traces <= 2


def test_memory_that_comes_to_be_shared_is_seen_by_a_program_that_writes() -> None:
    rows = {"a": torch.zeros(3), "b": torch.zeros(3)}

    def function(x: torch.Tensor) -> torch.Tensor:
        rows["a"].add_(x)
        return rows["b"] * 2

    hybrid = weft.hybridize(function)
    for _ in range(3):
        assert not hybrid(torch.ones(3)).any()
    rows["b"] = rows["a"]
    assert hybrid(torch.ones(3)).tolist() == [8.0] * 3
    rows["b"].data = torch.zeros(3)
    assert hybrid(torch.ones(3)).tolist() == [2.0] * 3


def test_a_state_that_each_run_replaces_is_no_weight() -> None:
    net = weft.hybridize(Keeps(None, state_in_a_tuple))
    with torch.no_grad():
        for _ in range(3):
            net(torch.randn(5, 4))
    first, second = (one.program._traced for group in net.forward.programs.values() for one in group)
    assert not first.moving
    states = {entry.value for entry in second.inputs if entry.value.name.startswith("kept")}
    assert len(states) == 2
    assert second.moving == states
    assert not rarely_changing(second) & states


class Conditioned(nn.Module):
    """Reads what others give it between calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.context, self.batch = nn.Linear(4, 4), None, {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.layer(x) + self.context[0] * self.batch["scale"]
        return found + self.batch["shift"] if self.batch["shifts"] else found


def test_tensors_that_are_given_between_calls_need_no_program_each() -> None:
    net, held = weft.hybridize(Conditioned()), SimpleNamespace(rows=[])

    @weft.hybridize
    def loss(x: torch.Tensor) -> torch.Tensor:
        return (x * held.rows[0]).sum()

    for number in range(8):
        net.context = (torch.randn(4), None)
        net.batch = {"scale": torch.randn(()), "shift": torch.randn(4), "shifts": number > 5}
        held.rows = [torch.randn(5, 4)]
        x = torch.randn(5, 4)
        with torch.no_grad():
            found = net(x)
        expected = net.layer(x) + net.context[0] * net.batch["scale"] + (net.batch["shift"] if number > 5 else 0)
        torch.testing.assert_close(found, expected.detach())
        torch.testing.assert_close(loss(found), (found * held.rows[0]).sum())
    assert net.forward.traces == 3
    assert loss.traces == 2


def test_features_of_another_module_need_no_program_each() -> None:
    features: dict[str, torch.Tensor] = {}
    net = weft.hybridize(hooked(layers(), features.__setitem__))
    penalty = weft.hybridize(lambda: features["1"].square().mean())
    for _ in range(5):
        net(torch.randn(5, 4))
        torch.testing.assert_close(penalty(), features["1"].square().mean())
    assert penalty.traces == 2


def test_an_argument_that_is_put_in_a_list_is_that_of_each_call() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = [torch.zeros(2), torch.ones(2)]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last[1] = x
            return x + self.last[0]

    net = weft.hybridize(Last())
    for number in range(3):
        given = torch.full((2,), float(number))
        net(given)
        assert net.last[1] is given


@pytest.mark.parametrize("place", ["attribute", "item"])
def test_what_is_put_where_it_is_already_is_put_there_again_once_it_is_not(place: str) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.now, self.before = torch.zeros(2), torch.ones(2)
            self.kept = {"before": self.before}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if place == "attribute":
                self.before = self.now
            else:
                self.kept["before"] = self.now
            return x * 2

    net = weft.hybridize(Twice())
    holder = net.__dict__ if place == "attribute" else net.kept
    net(torch.ones(2))
    net(torch.ones(3))  # traced while both are the same
    for size in (3, 2, 3):
        holder["before"] = torch.ones(2)
        net(torch.ones(size))
        assert holder["before"] is net.now
