"""Try public models that nobody chose: `python -m bench.unseen [--every 5] [--offset 0] [--only NAME ...]`.

Each runs in a process of its own, as eager PyTorch and hybridized without options: evaluation without gradients and
with them, other sizes afterwards, and training by `weft.step` with SGD, and with Adam and dropout. Answers are compared
with float64's, and steady times with eager's. `--page PATH` writes what was found, of `--records PATH` too. It wants
timm, transformers and torch_geometric.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import math
import multiprocessing
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import weft
from bench.models.unseen import Inputs, Made, make, names

SLACK = 4e-6  # of the largest element, beside twice eager's own error
NOTHING = 1e-4  # of the largest of all results: what is smaller than that may be nothing but rounding
STEPS_DIFFER = 2e-4  # of losses of steps, where there is no float64 with the same random numbers
SEED, WARM_UP, ROUNDS = 11, 60, 40
STAGES = ("evaluate", "sizes", "gradients", "sgd", "adam")
UNTRAINED = ("evaluate", "sizes")  # what is tried of a model without parameters
Net = Callable[..., Any]


def leaves(found: Any, path: str = "", depth: int = 6) -> Iterator[tuple[str, Any]]:
    """Give each tensor and number of a result by where it is, and the type of what is around them."""
    yield path, type(found).__name__
    if isinstance(found, torch.Tensor):
        yield path, found
    elif isinstance(found, dict):
        for name, each in found.items():
            yield from leaves(each, f"{path}[{name!r}]", depth)
    elif isinstance(found, (list, tuple)):
        for place, each in enumerate(found):
            yield from leaves(each, f"{path}[{place}]", depth)
    elif isinstance(found, (int, float, str, bool)):
        yield path, found
    elif depth and hasattr(found, "__dict__") and not isinstance(found, (type, nn.Module)):
        for name, each in vars(found).items():
            if name != "config":
                yield from leaves(each, f"{path}.{name}", depth - 1)


def differences(eager: Any, ours: Any, true: Any) -> Iterator[str]:
    """Say in which facts, and by how much, Weft's result differs from eager's more than roundings do."""
    left, right = list(leaves(eager)), list(leaves(ours))
    if [path for path, _ in left] != [path for path, _ in right]:
        yield f"another structure: {sorted({path for path, _ in left} ^ {path for path, _ in right})[:4]}"
        return
    exact = {path: each for path, each in leaves(true) if isinstance(each, torch.Tensor)}
    known = exact or {path: each for path, each in left if isinstance(each, torch.Tensor)}
    sizes = [float(each.detach().abs().max()) for each in known.values() if each.is_floating_point() and each.numel()]
    floor = NOTHING * max((size for size in sizes if math.isfinite(size)), default=0.0)
    for (path, a), (_, b) in zip(left, right, strict=True):
        if not isinstance(a, torch.Tensor):
            if a != b:
                yield f"{path} is {b!r}, eager's {a!r}"
            continue
        for fact in ("dtype", "shape", "requires_grad", "is_leaf"):
            if getattr(a, fact) != getattr(b, fact):
                yield f"{path}.{fact} is {getattr(b, fact)}, eager's {getattr(a, fact)}"
                return
        if a.stride() != b.stride():
            yield f"{path}.stride() is {b.stride()}, eager's {a.stride()}"
        yield from _values(path, a.detach(), b.detach(), exact.get(path), floor)


def _values(path: str, a: torch.Tensor, b: torch.Tensor, true: torch.Tensor | None, floor: float) -> Iterator[str]:
    if not a.is_floating_point():
        if not torch.equal(a, b):
            yield f"{path} differs in {int((a != b).sum())} of {a.numel()} whole numbers"
        return
    known = true is not None and true.shape == a.shape
    against = true.detach().double() if known else a.double()
    if not torch.equal(a.isfinite(), b.isfinite()):
        yield f"{path} is not finite elsewhere than eager's"
        return
    valid = a.isfinite() & against.isfinite()
    if not bool(valid.any()):
        return
    size = max(float(against[valid].abs().max()), floor)
    errors = [float((each.double() - against)[valid].abs().max()) / (size or 1.0) if size else 0.0 for each in (a, b)]
    allowed = 2 * errors[0] + SLACK if known else 1e-4
    if errors[1] > allowed:
        yield f"{path} differs by {errors[1]:.2g} of the largest element, eager by {errors[0]:.2g}"


def doubled(found: Any) -> Any:
    """Give inputs with floating tensors in float64."""
    if isinstance(found, dict):
        return {name: doubled(each) for name, each in found.items()}
    return found.double() if isinstance(found, torch.Tensor) and found.is_floating_point() else found


def true_answer(work: Callable[[nn.Module, Inputs], Any], net: nn.Module, given: Inputs) -> Any:
    """Compute in float64; None where a model does not run so."""
    try:
        return work(copy.deepcopy(net).double(), doubled(given))
    except Exception:  # noqa: BLE001 - models make float32 inside
        return None


def called(net: Net, given: Inputs) -> Any:
    """Call with the same random numbers each time."""
    torch.manual_seed(SEED)
    return net(**given)


def loss_of(found: Any) -> torch.Tensor:
    """Sum all that has a gradient, each element with a weight of its own: a norm's squares have the same sum always."""
    found = [each for _, each in leaves(found) if isinstance(each, torch.Tensor)]
    parts = [each for each in found if each.is_floating_point() and each.requires_grad]
    weights = [torch.arange(each.numel()).view(each.shape).cos().to(each.dtype) for each in parts]
    return torch.stack([(each * weight).mean() for each, weight in zip(parts, weights, strict=True)]).sum()


def gradients(net: nn.Module, given: Inputs) -> dict[str, Any]:
    """Run forward and backward, and give what they leave."""
    net.zero_grad()
    found = called(net, given)
    loss_of(found).backward()
    return {"result": found, **{f"{name}.grad": each.grad for name, each in net.named_parameters()}}


class Loss(nn.Module):
    """A model that gives its loss itself."""

    def __init__(self, model: nn.Module) -> None:
        """Keep the model."""
        super().__init__()
        self.model = model

    def forward(self, **given: Any) -> torch.Tensor:
        """Give the loss."""
        return loss_of(self.model(**given))


def in_turn(eager: Callable[[], Any], ours: Callable[[], Any], seconds: float) -> float:
    """Give eager's shortest time over Weft's, of the processor."""
    end = time.process_time() + seconds
    for _ in range(WARM_UP):
        ours()
        if time.process_time() > end:
            break
    best = [math.inf, math.inf]
    end = time.process_time() + seconds
    for _ in range(ROUNDS):
        for place, work in enumerate((eager, ours)):
            start = time.process_time()
            work()
            count = 1
            while (took := time.process_time() - start) < 1e-3:
                work()
                count += 1
            best[place] = min(best[place], took / count)
        if time.process_time() > end:
            break
    return best[0] / best[1]


class Try:
    """The stages of one model."""

    def __init__(self, made: Made, seconds: float) -> None:
        """Keep the model, what gives its inputs, and how long to time it."""
        self.net, self.inputs = made
        self.seconds = seconds

    def given(self, turn: int) -> Inputs:
        """Give the inputs of a turn, the same each time."""
        torch.manual_seed(SEED + turn)
        return self.inputs(turn)

    def evaluate(self) -> dict[str, Any]:
        """Call without gradients, three times."""
        net, ours, given = self.net.eval(), weft.hybridize(copy.deepcopy(self.net.eval())), self.given(0)
        with torch.no_grad():
            expected, true = called(net, given), true_answer(called, net, given)
            start = time.perf_counter()
            found = [list(differences(expected, called(ours, given), true))]
            first = time.perf_counter() - start
            found += [list(differences(expected, called(ours, given), true)) for _ in range(2)]
            ratio = in_turn(lambda: net(**given), lambda: ours(**given), self.seconds)
            found.append(list(differences(expected, called(ours, given), true)))
        return {
            "first": first,
            "ratio": ratio,
            "wrong": [each for part in found for each in part],
            "explain": weft.explain(ours),
        }

    def sizes(self) -> dict[str, Any]:
        """Call with other sizes after each other."""
        net, ours = self.net.eval(), weft.hybridize(copy.deepcopy(self.net.eval()))
        wrong = []
        start = time.perf_counter()
        with torch.no_grad():
            for turn in (0, 1, 2, 0, 2, 1):
                given = self.given(turn)
                expected = called(net, given)
                true = true_answer(called, net, given)
                wrong += [f"sizes {turn}: {each}" for each in differences(expected, called(ours, given), true)]
        return {"first": time.perf_counter() - start, "wrong": wrong, "explain": weft.explain(ours)}

    def gradients(self) -> dict[str, Any]:
        """Call with gradients, and go backward."""
        net, given = copy.deepcopy(self.net.eval()), self.given(0)
        try:
            gradients(net, given)
            gradients(net, given)  # some keep tensors with a graph from one call to the next
        except RuntimeError as error:
            return {"eager": str(error)[:120]}
        ours = weft.hybridize(copy.deepcopy(self.net.eval()))
        expected, true = gradients(net, given), true_answer(gradients, net, given)
        start = time.perf_counter()
        wrong = list(differences(expected, gradients(ours, given), true))
        first = time.perf_counter() - start
        wrong += list(differences(expected, gradients(ours, given), true))
        ratio = in_turn(lambda: gradients(net, given), lambda: gradients(ours, given), self.seconds)
        return {"first": first, "ratio": ratio, "wrong": wrong, "explain": weft.explain(ours)}

    def sgd(self) -> dict[str, Any]:
        """Train by whole steps, as in evaluation."""
        return self._train(lambda net: torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9), training=False)

    def adam(self) -> dict[str, Any]:
        """Train by whole steps with dropout and statistics of batches."""
        return self._train(lambda net: torch.optim.Adam(net.parameters(), lr=1e-4), training=True)

    def _train(self, optimizer: Callable[[nn.Module], torch.optim.Optimizer], *, training: bool) -> dict[str, Any]:
        nets = [Loss(copy.deepcopy(self.net)).train(training) for _ in range(2)]
        optimizers = [optimizer(net) for net in nets]
        step, given = weft.step(nets[1], None, optimizers[1]), self.given(0)

        def eager(**given: Any) -> torch.Tensor:
            optimizers[0].zero_grad()
            loss = nets[0](**given)
            loss.backward()
            optimizers[0].step()
            return loss.detach()

        wrong, start = [], time.perf_counter()
        for turn in range(5):
            expected, found = float(called(eager, given)), float(called(step, given))
            if not abs(expected - found) <= STEPS_DIFFER * max(abs(expected), 1e-3):
                wrong.append(f"loss {turn} is {found:.7g}, eager's {expected:.7g}")
        first = time.perf_counter() - start
        ratio = in_turn(lambda: called(eager, given), lambda: called(step, given), self.seconds)
        return {"first": first, "ratio": ratio, "wrong": wrong, "explain": weft.explain(step)}


def measure(name: str, options: argparse.Namespace, tell: Callable[[dict[str, Any]], None]) -> None:
    """Tell of each stage of one model."""
    try:
        made = make(name)
        with torch.no_grad():
            made[0].eval()(**made[1](0))
    except Exception as error:  # noqa: BLE001 - the page says it
        tell({"model": name, "not_made": f"{type(error).__name__}: {str(error)[:200]}"})
        return
    learns = any(each.requires_grad for each in made[0].parameters())
    for stage in options.stages if learns else [each for each in options.stages if each in UNTRAINED]:
        row: dict[str, Any] = {"model": name, "stage": stage}
        with warnings.catch_warnings(record=True) as noted, contextlib.redirect_stderr(io.StringIO()) as said:
            warnings.simplefilter("always")
            try:
                row |= getattr(Try(made, options.seconds), stage)()
            except Exception:  # noqa: BLE001 - the page says it
                row["failed"] = traceback.format_exc()
        row["warnings"] = sorted({str(each.message)[:200] for each in noted})
        row["stderr"] = said.getvalue()[-500:]
        tell(row)


def rows(models: list[str], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Try each model in a process of its own, forked from this one, which has imported all and run nothing."""
    fork = multiprocessing.get_context("fork")
    for name in models:
        ours, theirs = fork.Pipe(duplex=False)
        process = fork.Process(target=measure, args=(name, options, theirs.send))
        process.start()
        theirs.close()
        end, ended = time.monotonic() + options.patience, ""
        with contextlib.suppress(EOFError):
            while True:
                if not ours.poll(max(0.0, end - time.monotonic())):
                    ended = f"took longer than {options.patience} s"
                    process.kill()
                    break
                yield ours.recv()
        process.join()
        if ended or process.exitcode:
            yield {"model": name, "stage": "process", "failed": ended or f"exit code {process.exitcode}"}


def verdict(row: dict[str, Any]) -> str:
    """Say in a few words what a stage found."""
    if "eager" in row:
        return "-"  # PyTorch itself raises
    if "failed" in row:
        return "failed: " + row["failed"].strip().splitlines()[-1][:160]
    if row["wrong"]:
        return "WRONG " + "; ".join(row["wrong"][:2])[:160]
    by_python = ("by Python at each call", "runs imperatively, because")
    asked = " by Python" if any(words in row["explain"] for words in by_python) else ""
    ratio = f"{row['ratio']:.2f}" if "ratio" in row else "right"
    return f"{ratio}{asked} ({row['first']:.1f} s)"


def page(found: list[dict[str, Any]], options: argparse.Namespace) -> str:
    """Write the page: a row a model."""
    models = list(dict.fromkeys(row["model"] for row in found if "not_made" not in row))
    stages = [*STAGES, "process"]
    lines = ["# Public models that nobody chose", ""]
    lines += [
        f"Every {options.every}th from the {options.offset}th on of timm's families, of AutoModel's configurations in",
        "transformers, and of torch_geometric's layers and models, made small by a rule (`bench/models/unseen.py`):",
        "`python -m bench.unseen`. Eager's steady time over Weft's on one thread, and the first calls in seconds.",
        "",
        f"| model | {' | '.join(stages)} |",
        f"|{' --- |' * (len(stages) + 1)}",
    ]
    for name in models:
        cells = {row["stage"]: verdict(row) for row in found if row["model"] == name}
        lines.append(f"| {name} | {' | '.join(cells.get(stage, '') for stage in stages)} |")
    ratios = [row["ratio"] for row in found if "ratio" in row]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
    least = min(ratios, default=0.0)
    lines += ["", f"{len(models)} models. Geometric mean of {len(ratios)} ratios: {mean:.2f}; least {least:.2f}."]
    lines += ["", "Not made by the rule:", ""]
    lines += [f"- {row['model']}: {row['not_made'].splitlines()[0]}" for row in found if "not_made" in row]
    return "\n".join([*lines, ""])


def main() -> None:
    """Try, print, and write the page if asked."""
    parser = argparse.ArgumentParser(prog="bench.unseen", description=__doc__)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--stages", nargs="*", default=list(STAGES), choices=STAGES)
    parser.add_argument("--seconds", type=float, default=2.0, help="of timing a stage")
    parser.add_argument("--patience", type=float, default=300.0)
    parser.add_argument("--records", type=Path, help="add records there, and try no model that has some")
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    listed = names(options.every, options.offset)  # which imports the libraries, also where names are given
    known = options.records.read_text(encoding="utf-8") if options.records and options.records.exists() else ""
    found = [json.loads(line) for line in known.splitlines()]
    done = {row["model"] for row in found}
    for row in rows([name for name in options.only or listed if name not in done], options):
        found.append(row)
        print(row["model"], row.get("not_made") or f"{row['stage']}: {verdict(row)}", flush=True)
        if options.records:
            with options.records.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    if options.page:
        options.page.write_text(page(found, options), encoding="utf-8")


if __name__ == "__main__":
    main()
