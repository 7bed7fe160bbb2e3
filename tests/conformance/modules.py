"""PyTorch's module database -> the section over modules."""

import functools
import warnings
from typing import Any

import torch
from tests.conformance.cases import Contestant, Outcome, Player, Rule, Section, Start, Trial
from tests.conformance.fresh import fresh, moved_by_a_bit
from tests.conformance.operators import in_dtype, seed_everything
from tests.conformance.play import SEED, Call, play
from torch.testing._internal.common_modules import ModuleErrorEnum, ModuleInfo, ModuleInput, module_db

DTYPES = {"float32": torch.float32, "float64": torch.float64}
MODES = {"train": True, "eval": False}


@functools.cache
def modules() -> dict[str, ModuleInfo]:
    """Map names to entries, in the order of names."""
    return {info.name: info for info in sorted(module_db, key=lambda info: info.name)}


def entries() -> list[str]:
    """Name every module in training and in evaluation, with float32 values and with float64 gradients."""
    return [
        f"{name} {dtype} {mode}"
        for name, info in modules().items()
        for dtype in DTYPES
        if DTYPES[dtype] in info.supported_dtypes("cpu")
        for mode in MODES
    ]


def trials(entry: str) -> list[Trial]:
    """Make the trials of one module in one dtype and mode; float64 runs backward too."""
    name, dtype, mode = entry.rsplit(" ", 2)
    info = modules()[name]
    backward = dtype == "float64"
    seed_everything(entry)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = info.module_inputs_func(
            info, device="cpu", dtype=DTYPES[dtype], requires_grad=backward, training=MODES[mode]
        )
        found = [given for given in inputs if given.forward_input is not None]
    return [module_trial(info, given, dtype, mode) for given in found]


def module_trial(info: ModuleInfo, given: ModuleInput, dtype: str, mode: str) -> Trial:
    """Make the trial of one module: built from the fixed seed, called twice, its buffers watched."""
    backward = dtype == "float64"

    operands = (tuple(given.forward_input.args), given.forward_input.kwargs)

    def start(contestant: Contestant, kind: str = dtype, given_operands: Any = operands) -> Player:
        module = build(info, given, DTYPES[kind], training=MODES[mode])
        wrapped = contestant(module)

        def player(_number: int) -> Outcome:
            module.zero_grad()
            args, kwargs = fresh(given_operands if kind == dtype else in_dtype(given_operands, DTYPES[kind]))
            state = (*module.parameters(), *module.buffers())
            return play(Call(wrapped, args, kwargs, state=state, backward=backward))

        return player

    if backward:
        return Trial(start, Rule.CLOSE, narrow_start=functools.partial(start, kind="float32"))

    def neighbour(seed: int) -> tuple[Start, Start]:
        moved = moved_by_a_bit(operands, seed)
        return (
            functools.partial(start, given_operands=moved),
            functools.partial(start, kind="float64", given_operands=moved),
        )

    exact = functools.partial(start, kind="float64")
    return Trial(start, Rule.BOUND, exact_start=exact, neighbour=neighbour, whole_model=True)


def build(info: ModuleInfo, given: ModuleInput, dtype: torch.dtype, *, training: bool) -> torch.nn.Module:
    """Build a module from the fixed seed."""
    torch.manual_seed(SEED)
    args, kwargs = fresh((tuple(given.constructor_input.args), given.constructor_input.kwargs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module: torch.nn.Module = info.module_cls(*args, **kwargs)
    return module.to(dtype=dtype).train(training)


def error_entries() -> list[str]:
    """Name the modules that declare errors."""
    return [name for name, info in modules().items() if info.module_error_inputs_func is not None]


def error_trials(name: str) -> list[Trial]:
    """Make the trials of the errors a module declares for its call."""
    info = modules()[name]
    seed_everything(name)
    found = info.module_error_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=False)
    declared: list[Any] = [error for error in found if error.error_on is ModuleErrorEnum.FORWARD_ERROR]
    return [module_trial(info, error.module_error_input, "float32", "eval") for error in declared]


def sections() -> tuple[Section, ...]:
    """List the sections over modules."""
    return (
        Section(
            "modules",
            "modules in training and evaluation, float32 and float64 with gradients",
            entries,
            trials,
            codegens=("library", "native"),
        ),
        Section("module-errors", "the declared errors of module calls", error_entries, error_trials),
    )
