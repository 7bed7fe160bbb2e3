"""List what is replayed: the models of the benchmarks and of the tests, random programs, backward passes, steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from bench.models.subject import TrainingSubject
from bench.workloads import COMPILE, WORKLOADS, Workload
from tests.conformance.play import Call, play
from tests.random_programs.dimensions import program_of_dimensions
from tests.random_programs.generator import PYTHON_ARGUMENTS, RandomProgram, random_program
from tests.trace.lift_models import MODELS
from torch import nn

import weft

Run = Callable[[], object]
SEED = 0
PROGRAMS, GRADIENTS, DIMENSIONS, LAZY = 60, 30, 40, 20
LONGEST = 500  # operators, of the graphs that show how compile time grows
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "adam": partial(torch.optim.Adam, amsgrad=True),
    "adamw": torch.optim.AdamW,
    "rmsprop": partial(torch.optim.RMSprop, momentum=0.9, centered=True),
    "adagrad": torch.optim.Adagrad,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adadelta": torch.optim.Adadelta,
}


def subjects() -> Iterator[tuple[str, Run]]:
    """Give each subject's name, and what compiles and runs its programs."""
    for workload in WORKLOADS:
        if workload.group != COMPILE or workload.size <= LONGEST:
            yield f"bench {workload.name}", partial(_workload, workload)
    for name in MODELS:
        yield f"model {name}", partial(_model, name, backward=False)
        yield f"model {name} backward", partial(_model, name, backward=True)
    for name in OPTIMIZERS:
        yield f"step {name}", partial(_step, name)
    for seed in range(PROGRAMS):
        yield f"program {seed}", lambda seed=seed: _program(random_program(seed), backward=False)
    for seed in range(GRADIENTS):
        yield f"program {seed} backward", lambda seed=seed: _program(random_program(seed), backward=True)
    for seed in range(DIMENSIONS):
        yield f"dimensions {seed}", lambda seed=seed: _program(program_of_dimensions(seed), backward=False)
    for seed in range(LAZY):
        yield f"lazy {seed}", lambda seed=seed: _lazily(program_of_dimensions(seed))


def _workload(workload: Workload) -> None:
    subject = workload.subject()
    if isinstance(subject, TrainingSubject):
        step = weft.step(subject.thing, subject.loss, subject.optimizer(subject.thing.parameters()))
        step(*subject.inputs, subject.target)
        return
    with torch.no_grad():
        weft.hybridize(subject.thing)(*subject.inputs)


def _model(name: str, *, backward: bool) -> None:
    torch.manual_seed(SEED)
    module, inputs = MODELS[name]()
    hybrid = weft.hybridize(module)
    with torch.set_grad_enabled(backward):
        result = hybrid(*inputs)
        if backward:
            result.sum().backward()


def _step(name: str) -> None:
    torch.manual_seed(SEED)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    step = weft.step(net, nn.functional.cross_entropy, OPTIMIZERS[name](net.parameters()))
    for _ in range(2):
        step(torch.randn(3, 2, 6, 6), torch.randint(0, 5, (3,)))


def _program(program: RandomProgram, *, backward: bool) -> None:
    """Run a random program as conformance does; what it may be refused for is none of the replay's business."""
    inner = program.function()

    def on_copies(*leaves: torch.Tensor, **values: Any) -> Any:
        return inner(*(leaf.clone() for leaf in leaves), **values)  # leaves that carry gradients cannot be written

    hybrid, arguments = weft.hybridize(on_copies if backward else inner), program.arguments()
    if backward:
        arguments = tuple(leaf.detach().requires_grad_(leaf.is_floating_point()) for leaf in arguments)
    with torch.set_grad_enabled(backward):
        play(Call(hybrid, arguments, dict(PYTHON_ARGUMENTS[0]), backward=backward))


def _lazily(program: RandomProgram) -> None:
    function, arguments = program.function(), program.arguments()
    for _ in range(3):
        torch.manual_seed(SEED)
        with torch.no_grad(), weft.lazy():
            weft.wait(function(*arguments, **PYTHON_ARGUMENTS[0]))
