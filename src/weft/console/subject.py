"""Load the model, function or training step that the words `file.py:name` and sizes of inputs name."""

from __future__ import annotations

import difflib
import importlib
import re
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from weft.api.hybrid_function import HybridFunction
from weft.api.hybridize import hybridize
from weft.api.step import Step
from weft.api.step_training import losses_of
from weft.api.user_file import one_line, place_in, run_file
from weft.errors import UsageError
from weft.underway import underway

EAGER, HYBRID, STEP = "eager", "hybrid", "step"  # rivals by name
EXAMPLES = "example_inputs"
SEED = 0
DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "i32": torch.int32,
    "i64": torch.int64,
    "bool": torch.bool,
}
SIZES = re.compile(r"(\d+(?:,\d+)*|scalar)(?::(\w+))?", re.ASCII)
# Files of models that are no Python: their endings, and who opens them (`open_module`), imported only for such a file.
FORMATS = {".json": "weft.mx.symbols.exported"}


@dataclass(frozen=True, slots=True)
class Subject:
    """What was named: a module in evaluation mode, a function or a training step, and what to call it with.

    `caller(function, *arguments)` calls a function from the line of the file that defines the name, so that a trace has
    a line of the user's also where all of the model's code is PyTorch's.
    """

    name: str
    thing: Callable[..., Any]
    inputs: tuple[Any, ...]
    caller: Callable[..., Any]
    input_names: tuple[str, ...] = ()  # where a file of a model says them

    @property
    def trains(self) -> bool:
        """Tell whether it is a step that `weft.step` made."""
        return isinstance(self.thing, Step)

    @property
    def ours(self) -> str:
        """Name the rival that is always among them."""
        return STEP if self.trains else HYBRID

    @property
    def module(self) -> nn.Module | None:
        """Give the module whose tensors it uses, where it is one."""
        thing = self.thing.task.net if isinstance(self.thing, Step) else self.thing
        return thing if isinstance(thing, nn.Module) else None


def load_subject(target: str, sizes: Sequence[str] = ()) -> Subject:
    """Run a Python file and take a module or function out of it, with inputs of these sizes, else its own examples.

    What the file has hybridized is imperative again: comparisons are with that, and programs are made when asked for.
    Random numbers start from one seed before the file runs and before inputs are made, so that it is the same model
    with the same inputs each time.
    """
    if is_model_file(target):
        return _opened(target, sizes)
    path, _, name = target.rpartition(":")
    if target.endswith(".weft"):
        raise UsageError(
            f"{target} is a saved program",
            why="what is asked for here is the model that it was made of",
            fix=f"file.py:name of the model; weft run {target} times the program alone",
        )
    if not path or not name:
        raise UsageError(f"{target!r} is no target", why="a target is a file and a name in it", fix="net.py:net")
    torch.manual_seed(SEED)
    underway(f"running {path}")
    names = run_file(Path(path))
    thing = _thing(names, name, path)
    torch.manual_seed(SEED)
    inputs = tuple(map(random_input, sizes)) if sizes else _examples(names, thing, target)
    return Subject(name, thing, inputs, _caller(path, name))


def is_model_file(target: str) -> bool:
    """Tell whether a target is a file that holds a model itself, such as MXNet's `net-symbol.json`."""
    return Path(target).suffix in FORMATS


def _opened(target: str, sizes: Sequence[str]) -> Subject:
    """Open the model of a file, with inputs of given sizes, else of those that the file says."""
    underway(f"reading {target}")
    module, noted = importlib.import_module(FORMATS[Path(target).suffix]).open_module(target)
    if not sizes and None in noted:
        missing = [name for name, known in zip(module.input_names, noted, strict=True) if known is None]
        raise UsageError(
            f"{target} does not say the sizes of {', '.join(missing)}",
            fix="give --input with sizes, such as --input 1,3,224,224",
        )
    texts = sizes or [",".join(map(str, known)) or "scalar" for known in noted]
    torch.manual_seed(SEED)
    name = re.sub(r"\W", "_", Path(target).name.removesuffix(".json").removesuffix("-symbol"))
    return Subject(name, module.eval(), tuple(map(random_input, texts)), _call, tuple(module.input_names))


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function from nobody's file: the model has none."""
    return function(*arguments)


def random_input(text: str) -> torch.Tensor:
    """Make an input from its sizes: `1,3,224,224` of normal numbers, `8,128:i64` of zeros and ones."""
    match = SIZES.fullmatch(text)
    dtype = DTYPES.get(match[2] or "f32") if match else None
    if match is None or dtype is None:
        raise UsageError(
            f"{text!r} is not the size of an input",
            why=f"sizes are numbers, then maybe an element type: {', '.join(DTYPES)}",
            fix="write 1,3,224,224 or 8,128:i64, or scalar for a tensor of no dimension",
        )
    shape = () if match[1] == "scalar" else tuple(map(int, match[1].split(",")))
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.randint(0, 2, shape).to(dtype)


def call(subject: Subject) -> Any:
    """Call a subject as the user wrote it; an exception of its own is the user's to see, with the line."""
    underway(f"running {subject.name} imperatively")
    function = losses_function(subject.thing) if isinstance(subject.thing, Step) else subject.thing
    try:
        return function(*subject.inputs)
    except Exception as error:
        sizes = ", ".join(map(describe_input, subject.inputs))
        raise UsageError(
            f"{subject.name} does not run imperatively on ({sizes}): {one_line(error)}",
            where=place_in(error),
            fix="check the sizes given by --input, or example_inputs in the file",
        ) from error


def losses_function(trained: Step) -> Callable[..., Any]:
    """Give forward and loss as a function of the batch."""
    return lambda *arguments: losses_of(trained.task, arguments, {})


def describe_input(value: Any) -> str:
    """Say what an argument is: the sizes of a tensor, else its value."""
    if isinstance(value, torch.Tensor):
        names = {dtype: name for name, dtype in DTYPES.items()}
        return f"{names.get(value.dtype, str(value.dtype))}[{','.join(map(str, value.shape))}]"
    return repr(value) if len(repr(value)) < 40 else type(value).__name__


def _caller(path: str, name: str) -> Callable[..., Any]:
    """Make a function that stands where the name is defined."""
    definition = re.compile(rf"(class|def)?\s*{re.escape(name)}\b")
    lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    line = next((number for number, text in enumerate(lines) if definition.match(text)), 0)
    names: dict[str, Any] = {}
    text = "\n" * line + f"def {name}(function, *arguments): return function(*arguments)"
    exec(compile(text, path, "exec", dont_inherit=True), names)
    caller: Callable[..., Any] = names[name]
    return caller


def _thing(names: dict[str, Any], name: str, path: str) -> Callable[..., Any]:
    own = {each: value for each, value in names.items() if not each.startswith("_") and _is_candidate(value, names)}
    if name not in names:
        listed = ", ".join(sorted(own)) or "none"
        close = difflib.get_close_matches(name, own, n=1)
        raise UsageError(
            f"{path} has no {name}",
            why=f"its modules and functions: {listed}",
            fix=f"did you mean {path}:{close[0]}?" if close else None,
        )
    thing = names[name]
    if isinstance(thing, type) and issubclass(thing, nn.Module):
        torch.manual_seed(SEED)
        try:
            thing = thing()
        except TypeError as error:
            raise UsageError(
                f"{name} is a class that cannot be made without arguments",
                why=str(error),
                fix=f"make one in {path}, `net = {name}(...)`, and name it: {path}:net",
            ) from error
    if not callable(thing) or isinstance(thing, type):
        kind = f"the class {name}" if isinstance(thing, type) else f"of type {type(thing).__name__}"
        raise UsageError(f"{path}:{name} is {kind}", why="a target is a module or a function")
    return _imperative(thing)


def _imperative(thing: Callable[..., Any]) -> Callable[..., Any]:
    """Take back what the file has hybridized."""
    net = thing.task.net if isinstance(thing, Step) else thing
    if isinstance(net, nn.Module):
        for module in net.modules():
            hybridize(module, False)
    if isinstance(thing, nn.Module):
        return thing.eval()
    return hybridize(thing, False) if isinstance(thing, HybridFunction) else thing


def _is_candidate(value: Any, names: dict[str, Any]) -> bool:
    if isinstance(value, nn.Module | Step | HybridFunction):
        return True
    is_made = isinstance(value, types.FunctionType) or (isinstance(value, type) and issubclass(value, nn.Module))
    return is_made and value.__module__ == names["__name__"]


def _examples(names: dict[str, Any], thing: Any, target: str) -> tuple[Any, ...]:
    found = getattr(thing, EXAMPLES, names.get(EXAMPLES))
    if callable(found) and not isinstance(found, torch.Tensor):
        found = found()
    if found is None:
        raise UsageError(
            f"nothing says what {target} is called with",
            fix=f"give --input with sizes, such as --input 1,512, or put `{EXAMPLES} = (...)` into the file",
        )
    return tuple(found) if isinstance(found, tuple | list) else (found,)
