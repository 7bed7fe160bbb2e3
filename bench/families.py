"""Time public models by Weft and its peers, in turn, one process a model, with the answers compared first.

`python -m bench.families [--only NAME ...] [--threads 1] [--seconds 6] [--page PATH]` prints a row a model. It wants
timm, torchvision and transformers beside the peers; what is not installed is named and left out.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import weft
from bench.models.public import MODELS, Made
from bench.models.subject import Subject
from bench.onnx_contestants import onnx_bytes, without_fused_encoder

Work = Callable[[], Any]
WARM_UP, MOST_ROUNDS, BATCH_SECONDS = 30, 60, 2e-3
SLACK = 2e-6  # relative to the largest element, beside twice eager's own error
SEED = 7


def eager(made: Made) -> Work:
    """Run plain PyTorch."""
    module, inputs = made
    return lambda: module(*inputs)


def channels_last(made: Made) -> Work:
    """Run plain PyTorch with images and weights laid out channels last."""
    module, inputs = made
    if inputs[0].dim() != 4:
        raise ValueError("no images")
    changed = module.to(memory_format=torch.channels_last)
    given = tuple(each.to(memory_format=torch.channels_last) for each in inputs)
    return lambda: changed(*given)


def onnx_runtime(made: Made) -> Work:
    """Run ONNX Runtime with all optimisations."""
    import onnxruntime  # noqa: PLC0415 - an optional peer

    module, inputs = made
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    model = onnx_bytes(Subject(module, inputs), newer=False)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feed = {each.name: given.numpy() for each, given in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: session.run(None, feed)


def openvino(made: Made) -> Work:
    """Run OpenVINO set for latency, in float32."""
    import openvino as vino  # noqa: PLC0415 - an optional peer

    module, inputs = made
    with without_fused_encoder():
        model = vino.convert_model(module, example_input=inputs)
    for given, tensor in zip(model.inputs, inputs, strict=True):
        model.reshape({given.any_name: list(tensor.shape)})
    hints = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
    request = vino.Core().compile_model(model, "CPU", hints).create_infer_request()
    arrays = [given.numpy() for given in inputs]
    return lambda: next(iter(request.infer(arrays, share_inputs=True, share_outputs=True).values()))


def ours(made: Made) -> Work:
    """Run Weft."""
    module, inputs = made
    compiled = weft.hybridize(module)
    return lambda: compiled(*inputs)


CONTESTANTS: dict[str, Callable[[Made], Work]] = {
    "weft": ours,
    "eager": eager,
    "channels_last": channels_last,
    "onnxruntime": onnx_runtime,
    "openvino": openvino,
}


def made_from_seed(name: str) -> Made:
    """Make a model in the same state each time; its norms have statistics as trained ones might."""
    torch.manual_seed(SEED)
    module, inputs = MODELS[name]()
    for each in module.modules():
        if isinstance(each, torch.nn.modules.batchnorm._BatchNorm):
            torch.nn.init.uniform_(each.running_var, 0.5, 1.5)
            torch.nn.init.normal_(each.running_mean, std=0.1)
    return module.eval(), inputs


def error_of(found: Any, true: torch.Tensor) -> float:
    """Give the largest difference relative to the largest element; infinite where shapes differ."""
    given = torch.as_tensor(found).double()
    if given.shape != true.shape or not bool(given.isfinite().all()):
        return math.inf
    size = float(true.abs().max())
    return float((given - true).abs().max()) / (size or 1.0)


def first_answer(found: Any) -> Any:
    """Give the first result of several."""
    return first_answer(found[0]) if isinstance(found, (list, tuple)) else found


def measure(name: str, names: list[str], seconds: float) -> dict[str, Any]:
    """Compare and time one model in this process."""
    warnings.simplefilter("ignore")
    torch.set_grad_enabled(mode=False)
    module, inputs = made_from_seed(name)
    true = first_answer(module.double()(*(each.double() if each.is_floating_point() else each for each in inputs)))
    works: dict[str, Work] = {}
    row: dict[str, Any] = {"model": name, "skipped": {}, "errors": {}}
    for contestant in names:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                made = made_from_seed(name)
                start = time.perf_counter()
                work = CONTESTANTS[contestant](made)
                answer = first_answer(work())
                took = time.perf_counter() - start
        except Exception as error:  # noqa: BLE001 - the page says it
            row["skipped"][contestant] = (
                f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
            )
            continue
        row["errors"][contestant] = error_of(answer, true)
        if contestant == "weft":
            row["first_call"] = took
            row["memory_mb"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        works[contestant] = work
    row["times"] = in_turn(works, seconds)
    return row


def in_turn(works: dict[str, Work], seconds: float) -> dict[str, float]:
    """Give each one's shortest seconds a call, of many short rounds."""
    for work in works.values():
        end = time.perf_counter() + seconds / 4
        for _ in range(WARM_UP):
            work()
            if time.perf_counter() > end:
                break
    counts = {name: max(1, round(BATCH_SECONDS / batch(work, 1))) for name, work in works.items()}
    best = dict.fromkeys(works, math.inf)
    end = time.perf_counter() + seconds
    for _ in range(MOST_ROUNDS):
        for name, work in works.items():
            best[name] = min(best[name], batch(work, counts[name]))
        if time.perf_counter() > end:
            break
    return best


def batch(work: Work, count: int) -> float:
    """Give the seconds a call: with one thread the processor's, which other processes do not lengthen by waiting."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    for _ in range(count):
        work()
    return max(1e-9, (clock() - start) / count)


def rows(models: list[str], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure each model in a process of its own."""
    environment = {**os.environ, "WEFT_THREADS": str(options.threads), "OMP_NUM_THREADS": str(options.threads)}
    for name in models:
        command = [sys.executable, "-m", "bench.families", "--child", name, "--seconds", str(options.seconds)]
        command += ["--threads", str(options.threads), "--contestants", *options.contestants]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        found = [line for line in done.stdout.splitlines() if line.startswith('{"model"')]
        yield json.loads(found[-1]) if found else {"model": name, "failed": done.stderr.strip().splitlines()[-1:]}


def ratio(row: dict[str, Any]) -> float | None:
    """Give the best peer's time over Weft's."""
    peers = [seconds for name, seconds in row.get("times", {}).items() if name != "weft"]
    return min(peers) / row["times"]["weft"] if peers and "weft" in row["times"] else None


def right(row: dict[str, Any]) -> bool:
    """Tell whether Weft's answer is about as near to float64's as eager's."""
    errors = row.get("errors", {})
    return "weft" in errors and errors["weft"] <= 2 * errors.get("eager", 0.0) + SLACK


def line_of(row: dict[str, Any]) -> str:
    """Write a row of the page."""
    if "times" not in row:
        return f"| {row['model']} | failed: {' '.join(row['failed'])} |"
    times = [f"{1e3 * row['times'][name]:.3g}" if name in row["times"] else "-" for name in CONTESTANTS]
    found = ratio(row)
    last = "right" if right(row) else f"WRONG {row['errors'].get('weft')}"
    cells = [row["model"], *times, f"{found:.2f}" if found else "-"]
    return f"| {' | '.join([*cells, format(row.get('first_call', math.nan), '.2f'), last])} |"


def page(found: list[dict[str, Any]], threads: int) -> str:
    """Write the page: a row a model, and the geometric mean."""
    ratios = [value for value in map(ratio, found) if value]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
    header = ["model", *CONTESTANTS, "best peer / Weft", "first call, s", "answer"]
    lines = ["# Public models", ""]
    lines += [f"Milliseconds a call, the shortest of interleaved rounds, {threads} thread(s) each, float32.", ""]
    lines += [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}", *map(line_of, found), ""]
    lines += [
        f"Geometric mean of best peer / Weft over {len(ratios)} models: {mean:.2f}; least {min(ratios, default=0):.2f}."
    ]
    skipped = [
        f"- {row['model']}: {name} left out: {why}" for row in found for name, why in row.get("skipped", {}).items()
    ]
    return "\n".join([*lines, "", *skipped, ""])


def main() -> None:
    """Measure, print, and write the page if asked."""
    parser = argparse.ArgumentParser(prog="bench.families", description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--contestants", nargs="*", default=list(CONTESTANTS), choices=list(CONTESTANTS))
    parser.add_argument("--page", type=Path)
    parser.add_argument("--child")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.child:
        print(json.dumps(measure(options.child, options.contestants, options.seconds)))
        return
    models = [name for name in MODELS if not options.only or name in options.only]
    found = []
    for row in rows(models, options):
        found.append(row)
        print(line_of(row), flush=True)
    if options.page:
        options.page.parent.mkdir(parents=True, exist_ok=True)
        options.page.write_text(page(found, options.threads), encoding="utf-8")
        options.page.with_suffix(".json").write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
