"""An error shows the user's frames, and Weft's own one its four lines; WEFT_LOG=debug keeps all frames."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft.config import overrides
from weft.errors import InternalError
from weft.owners import Owner, owner_of
from weft.tracebacks import shows_less


def leaves(x: torch.Tensor) -> torch.Tensor:
    return x + len((x.numpy() * 2).tolist())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(leaves(x))


class Sized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def loss(scores: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return leaves(scores.detach()).sum() + scores.sum()


def step() -> Any:
    net = nn.Linear(2, 2)
    return weft.step(net, loss, torch.optim.SGD(net.parameters()))


CALLS: dict[str, Callable[[], Any]] = {
    "module": lambda: weft.hybridize(Net())(torch.ones(2, 2)),
    "function": lambda: weft.hybridize(leaves)(torch.ones(2)),
    "step": lambda: step()(torch.ones(2, 2), torch.ones(2)),
    "program": lambda: weft.program(weft.hybridize(leaves), torch.ones(2)),
}


def optimizer_of_another() -> torch.optim.Optimizer:
    return torch.optim.SGD(nn.Linear(2, 2).parameters())


def of_other_sizes() -> Any:
    program = weft.program(nn.Linear(2, 2), torch.ones(1, 2))
    program.save("net.weft")
    return weft.load_program("net.weft")(torch.ones(3, 4))


MISTAKES: dict[str, Callable[[], Any]] = {
    "on": lambda: weft.on("gpu"),
    "loaded program": of_other_sizes,
    "load": lambda: weft.load("no-such-file.pt", nn.Linear(2, 2)),
    "save": lambda: weft.save("no-such-folder/net.safetensors", nn.Linear(2, 2)),
    "checkpoints": lambda: weft.Checkpoints("no-such-folder").load(nn.Linear(2, 2)),
    "load_program": lambda: weft.load_program("no-such-file.weft"),
    "program.save": lambda: weft.program(nn.Linear(2, 2), torch.ones(2)).save("no-such-folder/net.weft"),
    "Trainer": lambda: weft.Trainer(nn.Linear(2, 2), optimizer_of_another(), nn.MSELoss()),
    "step": lambda: weft.step(nn.Linear(2, 2), nn.MSELoss(), optimizer_of_another()),
    "hybridize": lambda: weft.hybridize(nn.Linear),
    "sizes": lambda: weft.hybridize(nn.Linear(2, 2), sizes={"x": {0: "batch"}})(torch.ones(2, 2)),
    "explain": lambda: weft.explain(3),  # type: ignore[arg-type]  # which is the mistake
    "prepare": lambda: weft.prepare(nn.Linear(2, 2), torch.ones(2)),
    "DataParallel": lambda: weft.DataParallel(nn.Linear(2, 2), ["cuda:99"]),
    "split_and_load": lambda: weft.split_and_load(torch.ones(2), ["cuda:99"]),
    "limit": lambda: weft.limit(tasks=-1),
    "waitall": lambda: (weft.spawn(leaves, "text"), weft.waitall()),
}


def refused(call: Callable[[], Any]) -> weft.UnsupportedError:
    with pytest.raises(weft.UnsupportedError, match="hands a tensor to NumPy") as caught:
        call()
    return caught.value


@pytest.mark.parametrize("name", CALLS)
def test_a_refusal_shows_the_users_frames_alone(name: str) -> None:
    error = refused(CALLS[name])
    frames = traceback.extract_tb(error.__traceback__)
    assert not [frame for frame in frames if owner_of(frame.filename) is Owner.WEFT]
    assert frames[-1].name == "leaves"
    assert "direct cause" not in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("name", CALLS)
def test_a_refusal_shows_them_alone_also_once_lazy_code_has_run(name: str) -> None:
    with weft.lazy():  # from now on lazy code stands around calls of programs
        torch.ones(2) + 1
    test_a_refusal_shows_the_users_frames_alone(name)


@pytest.mark.parametrize("name", CALLS)
def test_all_frames_are_kept_to_debug(name: str) -> None:
    with overrides(log="debug"):
        frames = traceback.extract_tb(refused(CALLS[name]).__traceback__)
    assert [frame for frame in frames if owner_of(frame.filename) is Owner.WEFT]


@pytest.mark.parametrize("name", MISTAKES)
def test_what_is_wrong_with_a_call_is_shown_without_our_frames(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(weft.WeftError) as caught:
        MISTAKES[name]()
    shown = "".join(traceback.format_exception(caught.value))
    assert str(Path(weft.__file__).parent) not in shown
    assert __file__ in shown


def test_an_error_of_pytorch_in_the_users_code_is_shown_as_without_weft() -> None:
    net, x = Sized(), torch.ones(2, 3)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as imperative:
        net(x)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as hybrid:
        weft.hybridize(net)(x)
    lines = [
        [(frame.filename, frame.lineno) for frame in traceback.extract_tb(caught.value.__traceback__)][1:]
        for caught in (imperative, hybrid)
    ]
    assert lines[0] == lines[1]


@pytest.mark.parametrize("again", [False, True], ids=["first call", "later call"])
@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (TypeError, ()),
        (TypeError, (torch.ones(2, 4), 3)),
        (TypeError, ("text",)),
        (RuntimeError, (torch.ones(2, 5),)),
        (RuntimeError, (torch.ones(2, 4, dtype=torch.int64),)),
    ],
    ids=["none", "too many", "text", "sizes", "type"],
)
def test_a_wrong_call_of_a_module_of_pytorchs_is_shown_as_without_weft(kind: Any, arguments: Any, again: bool) -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    with pytest.raises(kind) as imperative:
        net(*arguments)
    weft.hybridize(net)
    if again:
        net(torch.ones(2, 4))
    with pytest.raises(kind) as hybrid:
        net(*arguments)
    assert str(hybrid.value) == str(imperative.value)
    frames = traceback.extract_tb(hybrid.value.__traceback__)
    assert not [frame for frame in frames if owner_of(frame.filename) is Owner.WEFT]
    assert frames[-1].name == traceback.extract_tb(imperative.value.__traceback__)[-1].name


def test_what_a_loss_does_not_take_is_shown_without_our_frames() -> None:
    net = nn.Linear(4, 3)
    step = weft.step(net, nn.functional.cross_entropy, torch.optim.SGD(net.parameters(), 0.1))
    for target in (torch.zeros(5, dtype=torch.int64), torch.zeros(2)):
        with pytest.raises((ValueError, RuntimeError)) as caught:
            step(torch.ones(2, 4), target)
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert not [frame for frame in frames if owner_of(frame.filename) is Owner.WEFT]
        assert frames[-1].name == "cross_entropy"


NEARLY: dict[str, tuple[Callable[[], Any], str]] = {
    "step": (lambda: weft.step(nn.Linear(2, 2), nn.MSELoss(), None, clipnorm=1), "clip_norm"),  # type: ignore[call-arg, arg-type]
    "prepare": (lambda: weft.prepare(nn.Linear(2, 2), torch.ones(2), size={}), "sizes"),  # type: ignore[call-arg]
    "limit": (lambda: weft.limit(task=1), "tasks"),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("name", NEARLY)
def test_a_parameter_that_is_nearly_one_is_told_which(name: str) -> None:
    call, meant = NEARLY[name]
    with pytest.raises(TypeError, match=rf"unexpected keyword argument '\w+'\. Did you mean '{meant}'\?$"):
        call()


def test_a_mistake_inside_of_a_call_is_told_as_it_is() -> None:
    @shows_less
    def outer(tasks: int = 1) -> Any:
        return dict.fromkeys(task=tasks)  # type: ignore[call-arg]

    with pytest.raises(TypeError) as caught:
        outer()
    assert "mean" not in str(caught.value)


@pytest.mark.parametrize("kind", [InternalError, RuntimeError])
def test_an_error_that_may_be_our_mistake_keeps_all_frames(kind: type[Exception]) -> None:
    names: dict[str, Any] = {"kind": kind}
    ours = str(Path(weft.__file__).with_name("mistaken.py"))
    exec(compile("def mistaken(): raise kind('a mistake')", ours, "exec"), names)
    with pytest.raises(kind) as caught:
        shows_less(names["mistaken"])()
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [frame.name for frame in frames[1:]] == ["call", "mistaken"]
