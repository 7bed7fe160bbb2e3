"""Code that no program can be made of, as it looks at values, say, is run by Python at each call, as eager has it."""

from __future__ import annotations

import copy
import pickle
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft.config import overrides

LOSS = nn.MSELoss()


@pytest.fixture(autouse=True)
def python_runs() -> Iterator[None]:
    """What users have who say nothing."""
    with overrides(whole="off"):
        yield


def branches(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum() > 0 else -x


class Halting(nn.Module):
    """Goes on until it is sure enough; counts in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("rounds", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = torch.tanh(self.layer(x))
            self.rounds += 1
            if x.abs().mean().item() < 0.4:
                break
        return x


def numbered(x: torch.Tensor) -> list[torch.Tensor]:
    return [x * float(number) for number in x.tolist()]


def with_numpy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.from_numpy(x.detach().numpy() * 2)


def masked(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].mean()


def draws(x: torch.Tensor) -> torch.Tensor:
    return x * random.random() + torch.rand(()) if x.sum() > 0 else x * torch.randn(())


FUNCTIONS = [branches, numbered, with_numpy, masked, draws]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("grad", [False, True])
def test_code_that_looks_at_values_does_what_eager_does(function: Callable[..., Any], *, grad: bool) -> None:
    ours = weft.hybridize(function)
    for seed in range(6):
        torch.manual_seed(seed)
        random.seed(seed)
        given = torch.randn(5)
        found = []
        for one in (function, ours):
            torch.manual_seed(seed)
            random.seed(seed)
            x = given.clone().requires_grad_(grad)
            result = one(x)
            parts = result if isinstance(result, list) else [result]
            if grad:
                sum(part.sum() for part in parts).backward()
            found.append(([part.detach() for part in parts], x.grad, torch.rand(1), random.random()))
        assert str(found[0]) == str(found[1])


def test_a_module_that_looks_trains_as_in_eager_and_counts_in_its_buffer() -> None:
    nets = [Halting(), Halting()]
    nets[1].load_state_dict(nets[0].state_dict())
    weft.hybridize(nets[1])
    for _ in range(5):
        x = torch.randn(3, 4)
        for net in nets:
            net(x).square().sum().backward()
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-4)
    assert torch.equal(nets[0].rounds, nets[1].rounds)


def test_a_step_of_a_module_that_looks_is_that_of_the_loop() -> None:
    nets = [Halting(), Halting()]
    nets[1].load_state_dict(nets[0].state_dict())
    optimizers = [torch.optim.Adam(net.parameters(), lr=0.1) for net in nets]
    step = weft.step(nets[1], LOSS, optimizers[1])
    for _ in range(4):
        x, y = torch.randn(3, 4), torch.randn(3, 4)
        optimizers[0].zero_grad()
        loss = LOSS(nets[0](x), y)
        loss.backward()
        optimizers[0].step()
        assert torch.allclose(step(x, y), loss.detach(), atol=1e-6)
    for one, other in zip(nets[0].state_dict().values(), nets[1].state_dict().values(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_whole_programs_may_be_asked_for() -> None:
    with pytest.raises(weft.UnsupportedError, match="branches on the value"):
        weft.hybridize(branches, whole=True)(torch.ones(2))
    with overrides(whole="on"), pytest.raises(weft.UnsupportedError, match="branches on the value"):
        weft.hybridize(branches)(torch.ones(2))
    with overrides(whole="on"):
        weft.hybridize(branches, whole=False)(torch.ones(2))


def test_whoever_asks_for_a_program_gets_the_error_with_the_line() -> None:
    ours = weft.hybridize(branches)
    ours(torch.ones(2))
    for _ in range(2):
        with pytest.raises(weft.UnsupportedError, match=r"test_values.py:\d+   return x \* 2 if x.sum\(\) > 0"):
            weft.program(ours, torch.ones(2))


@pytest.mark.parametrize(
    "options",
    [{"whole": 1}, {"python": "never"}, {"whole": True, "fallback": "eager"}, {"whole": True, "python": "run"}],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(weft.UsageError):
        weft.hybridize(branches, **options)


def test_options_go_along_with_copies_and_pickles() -> None:
    net = weft.hybridize(Halting(), whole=True)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        with pytest.raises(weft.UnsupportedError):
            other(torch.ones(2, 4))


def test_other_signatures_have_programs() -> None:
    @weft.hybridize
    def works(x: torch.Tensor, *, looks: bool) -> torch.Tensor:
        return branches(x) if looks else x * 3

    for _ in range(40):
        assert works(torch.ones(2), looks=True).tolist() == [2.0, 2.0]
    for _ in range(300):
        works(torch.ones(2), looks=False)
    assert works.traces >= 1
    assert works(-torch.ones(2), looks=True).tolist() == [1.0, 1.0]


def test_a_module_that_looks_while_it_trains_has_a_program_for_evaluation() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return branches(x) if self.training else x * 3

    net = weft.hybridize(Net())
    for _ in range(20):
        net(torch.ones(2))
    net.eval()
    assert net(torch.ones(2)).tolist() == [3.0, 3.0]
    assert "1 program, 1 traced" in str(weft.explain(net)) or net.forward.traces == 2


def test_nothing_is_said_unless_it_is_asked_for(caplog: Any) -> None:
    ours = weft.hybridize(branches)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours(torch.ones(2))
    assert not [record for record in caplog.records if record.levelname != "INFO"]
    assert "decided: True" in str(weft.explain(ours))
    ours = weft.hybridize(with_numpy)
    ours(torch.ones(2))
    assert "hands a tensor to NumPy" in str(weft.explain(ours))


def test_what_is_printed_where_values_are_looked_at_is_printed_at_each_call(capsys: Any) -> None:
    @weft.hybridize
    def shows(x: torch.Tensor) -> torch.Tensor:
        print(x)
        return x * 2

    @weft.hybridize
    def tells(x: torch.Tensor) -> torch.Tensor:
        print("told")
        return branches(x)

    for number in range(3):
        shows(torch.full((1,), float(number)))
        tells(torch.ones(1))
    assert capsys.readouterr().out == "".join(f"tensor([{number}.])\ntold\n" for number in range(3))


def test_what_whole_programs_print_they_print_once_or_at_each_run(capsys: Any) -> None:
    def tells(x: torch.Tensor) -> torch.Tensor:
        print(x.shape)
        return x * 2

    for options, times in (({}, 1), ({"python": "run"}, 3)):
        ours = weft.hybridize(tells, **options)
        for _ in range(3):
            ours(torch.ones(1))
        assert capsys.readouterr().out == "torch.Size([1])\n" * times


def test_exceptions_are_eagers_own_with_the_users_frames() -> None:
    def fails(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            try:
                return x[index]
            except IndexError:
                return x * 7
        return x[index]

    ours, index = weft.hybridize(fails), torch.tensor([9])
    assert ours(torch.ones(2), index).tolist() == [7.0, 7.0]
    with pytest.raises(IndexError) as caught:
        ours(-torch.ones(2), index)
    assert caught.traceback[-1].name == "fails"


def test_threads_may_call_it() -> None:
    net = weft.hybridize(Halting())
    eager = Halting()
    eager.load_state_dict(net.state_dict())
    wrong: list[int] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(20):
            x = torch.randn(2, 4, generator=generator)
            if not torch.allclose(net(x), eager(x), atol=1e-6):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
