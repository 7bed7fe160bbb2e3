"""Time streams of requests whose sizes differ, by each contestant from nothing and once more.

    python -m bench.streams [name ...] [--requests 1000] [--contestant weft ...] [--threads 2]

Each contestant runs in a process of its own with empty caches, on the same weights and the same seeded stream, once
from nothing, what it makes included (but for an export to ONNX, which is left out), and once more. Answers of some
requests are compared with eager PyTorch's before the second time. Memory is what the process has gained at its peak,
beside what it gains where all requests are as large as the largest one.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import weft
from bench.general import Texts

SEED = 20
CHECKED = 5  # requests whose answers are compared
TOLERANCE = 1e-3  # of the largest number of an answer
KILOBYTE = 1024
PATIENCE = 1800  # seconds for a contestant
Request = tuple[torch.Tensor, ...]
Answer = Callable[..., Any]


class Memory(nn.Module):
    """Texts read word after word."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.steps, self.head = (
            nn.Embedding(1000, 64),
            nn.LSTM(64, 128, batch_first=True),
            nn.Linear(128, 8),
        )

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores by what is remembered last."""
        found: torch.Tensor = self.head(self.steps(self.words(words))[0][:, -1])
        return found


class Factors(nn.Module):
    """DeepFM: products of each two features' factors, and layers on all of them."""

    def __init__(self, fields: int = 20, width: int = 16) -> None:
        super().__init__()
        self.alone, self.factors = nn.Embedding(5000, 1), nn.Embedding(5000, width)
        self.deep = nn.Sequential(
            nn.Linear(fields * width, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """The chance of each row."""
        found = self.factors(features)
        pairs = 0.5 * (found.sum(1).square() - found.square().sum(1)).sum(1, keepdim=True)
        return (self.alone(features).sum(1) + pairs + self.deep(found.flatten(1))).sigmoid()


class Neighbours(nn.Module):
    """GraphSAGE: each node with the mean of those that lead to it, twice."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.others = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, nodes: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """What each node has become."""
        count = torch.zeros(nodes.shape[0], 1).index_add(0, target, torch.ones(target.shape[0], 1)).clamp(min=1)
        for own, others in zip(self.own, self.others, strict=True):
            total = torch.zeros_like(nodes).index_add(0, target, nodes[source])
            nodes = F.relu(own(nodes) + others(total / count))
        return nodes


def convolutions() -> nn.Module:
    """A small network of convolutions."""

    def layer(given: int, out: int) -> list[nn.Module]:
        return [nn.Conv2d(given, out, 3, 2, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]

    return nn.Sequential(
        *layer(3, 16), *layer(16, 32), *layer(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    )


def lognormal(drawn: random.Random, middle: float, most: int) -> int:
    """A size of which half are below the middle, and a few very large."""
    return max(1, min(most, round(drawn.lognormvariate(math.log(middle), 0.8))))


def texts(drawn: random.Random) -> Request:
    """A batch of texts."""
    return (torch.randint(1000, (lognormal(drawn, 3, 32), lognormal(drawn, 48, 512))),)


def image(drawn: random.Random) -> Request:
    """An image."""
    return (torch.randn(1, 3, drawn.randint(96, 320), drawn.randint(96, 320)),)


def rows(drawn: random.Random) -> Request:
    """A batch of rows of features."""
    return (torch.randint(5000, (lognormal(drawn, 40, 512), 20)),)


def graph(drawn: random.Random) -> Request:
    """A graph with four edges a node."""
    count = min(5000, 50 + lognormal(drawn, 500, 5000))
    return torch.randn(count, 64), *torch.randint(count, (2, 4 * count)).unbind()


def labelled_texts(drawn: random.Random) -> Request:
    """A batch of texts and their classes."""
    return torch.randint(1000, (16, drawn.randint(5, 120))), torch.randint(128, (16,))


def labelled_images(drawn: random.Random) -> Request:
    """A batch of images and their classes."""
    count = drawn.randint(2, 32)
    return torch.randn(count, 3, 64, 64), torch.randint(10, (count,))


@dataclass(frozen=True)
class Stream:
    """What makes a network, what draws a request, and whether each is a step of training."""

    make: Callable[[], nn.Module]
    request: Callable[[random.Random], Request]
    trains: bool = False


class Pooled(nn.Module):
    """The mean of what a network of texts gives."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = Texts(128, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """A vector a text."""
        found: torch.Tensor = self.inside(words).mean(1)
        return found


STREAMS = {
    "encoder": Stream(lambda: Texts(256, 4), texts),
    "decoder": Stream(lambda: Texts(256, 4, causal=True), texts),
    "images": Stream(convolutions, image),
    "lstm": Stream(Memory, texts),
    "deepfm": Stream(Factors, rows),
    "graphsage": Stream(Neighbours, graph),
    "training an encoder": Stream(Pooled, labelled_texts, trains=True),
    "training on images": Stream(convolutions, labelled_images, trains=True),
}


def requests_of(stream: Stream, count: int) -> list[Request]:
    """The seeded stream."""
    drawn = random.Random(SEED)
    torch.manual_seed(SEED)
    return [stream.request(drawn) for _ in range(count)]


def network_of(stream: Stream) -> nn.Module:
    """The seeded network."""
    torch.manual_seed(SEED + 1)
    return stream.make().train(stream.trains)


def usual_step(net: nn.Module, given: Callable[..., Any] | None = None) -> Answer:
    """A step of training by PyTorch's loop."""
    optimizer, forward = torch.optim.AdamW(net.parameters(), 1e-4), given or net

    def step(*request: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(*request[:-1]), request[-1])
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def eager(stream: Stream, net: nn.Module, request: Request) -> Answer:
    """PyTorch itself."""
    del request
    return usual_step(net) if stream.trains else net


def ours(stream: Stream, net: nn.Module, request: Request) -> Answer:
    """Weft."""
    del request
    if stream.trains:
        return weft.step(net, nn.CrossEntropyLoss(), torch.optim.AdamW(net.parameters(), 1e-4))
    return weft.hybridize(net)


def compiled(dynamic: bool | None) -> Callable[[Stream, nn.Module, Request], Answer]:
    """torch.compile."""

    def make(stream: Stream, net: nn.Module, request: Request) -> Answer:
        del request
        found = torch.compile(net, dynamic=dynamic)
        return usual_step(net, found) if stream.trains else found

    return make


def exported(stream: Stream, net: nn.Module, request: Request) -> bytes:
    """A network in ONNX, of which every size varies but those of features."""
    if stream.trains:
        raise NotImplementedError("it does not train")
    memory = io.BytesIO()
    names = [f"input{place}" for place in range(len(request))]
    axes = {
        name: {
            at: f"{name}_{at}" for at in range(1 if tensor.is_floating_point() and tensor.ndim == 2 else tensor.ndim)
        }
        for name, tensor in zip(names, request, strict=True)
    }
    if stream is STREAMS["images"]:
        axes = {names[0]: {2: "height", 3: "width"}}
    if stream is STREAMS["deepfm"]:
        axes = {names[0]: {0: "batch"}}
    torch.onnx.export(net, request, memory, input_names=names, dynamic_axes=axes, dynamo=False)
    return memory.getvalue()


def onnx_runtime(stream: Stream, net: nn.Module, request: Request) -> Answer:
    """ONNX Runtime."""
    import onnxruntime  # noqa: PLC0415 - a peer that may not be installed

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(exported(stream, net, request), options)
    names = [entry.name for entry in session.get_inputs()]

    def run(*given: torch.Tensor) -> torch.Tensor:
        feed = {name: tensor.numpy() for name, tensor in zip(names, given, strict=True)}
        return torch.from_numpy(session.run(None, feed)[0])

    return run


def openvino(stream: Stream, net: nn.Module, request: Request) -> Answer:
    """OpenVINO."""
    import openvino as peer  # noqa: PLC0415 - a peer that may not be installed

    core = peer.Core()
    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY"}
    settings["INFERENCE_PRECISION_HINT"] = "f32"  # else in bfloat16, where the processor has it
    model = core.compile_model(core.read_model(io.BytesIO(exported(stream, net, request))), "CPU", settings)
    return lambda *given: torch.from_numpy(model([tensor.numpy() for tensor in given])[0])


CONTESTANTS: dict[str, Callable[[Stream, nn.Module, Request], Answer]] = {
    "eager": eager,
    "weft": ours,
    "torch.compile": compiled(None),
    "torch.compile dynamic": compiled(True),
    "onnxruntime": onnx_runtime,
    "openvino": openvino,
}


def seconds_of(run: Answer, requests: Sequence[Request]) -> float:
    """How long all requests take."""
    begin = perf_counter()
    for request in requests:
        run(*request)
    return perf_counter() - begin


def peak() -> int:
    """The most bytes that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KILOBYTE


def difference(run: Answer, stream: Stream, requests: Sequence[Request], net: nn.Module) -> float:
    """How far answers are from eager's, of their largest number: of a step the losses of some more."""
    other = usual_step(copy.deepcopy(net)) if stream.trains else network_of(stream)
    worst = 0.0
    for request in requests[:CHECKED]:
        right, found = other(*request), run(*request)
        worst = max(worst, float((found - right).abs().max() / right.abs().max().clamp(min=1e-6)))
    return worst


def measured(name: str, contestant: str, count: int, *, largest: bool) -> dict[str, float | str]:
    """Run a stream by one contestant in this process."""
    stream = STREAMS[name]
    requests, net = requests_of(stream, count), network_of(stream)
    biggest = max(requests, key=lambda request: sum(tensor.numel() for tensor in request))
    with torch.set_grad_enabled(stream.trains):
        run = CONTESTANTS[contestant](stream, net, requests[0])
        before = peak()
        if largest:
            seconds_of(run, [biggest] * 4)
            return {"bytes": peak() - before}
        first = seconds_of(run, requests)
        found = {"first": first, "bytes": peak() - before}
        kept = copy.deepcopy(net) if stream.trains else net
        wrong = 0.0 if stream.trains and contestant == "eager" else difference(run, stream, requests, kept)
        return {**found, "wrong": wrong, "again": seconds_of(run, requests)}


def in_process(*words: str) -> dict[str, Any]:
    """What another process with empty caches finds."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {"WEFT_CACHE_DIR": f"{folder}/weft", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        command = [sys.executable, "-m", "bench.streams", "--process", *words]
        try:
            ended = subprocess.run(
                command, env={**os.environ, **caches}, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
        except subprocess.TimeoutExpired:
            return {"error": f"no answer in {PATIENCE} s"}
    lines = ended.stdout.strip().splitlines()
    if ended.returncode or not lines:
        return {"error": (ended.stderr.strip().splitlines() or ["nothing"])[-1][:100]}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def report(name: str, contestants: Sequence[str], options: Sequence[str]) -> bool:
    """Print a row for each contestant; tells whether Weft is right, and not slower than eager."""
    rows_found: dict[str, dict[str, Any]] = {}
    for contestant in contestants:
        found = rows_found[contestant] = in_process(name, contestant, *options)
        if "error" in found:
            print(f"  {contestant:<22} {found['error']}", flush=True)
            continue
        alone = in_process(name, contestant, "--largest", *options).get("bytes", 0)
        times = f"from nothing {found['first']:8.2f} s, again {found['again']:8.2f} s"
        memory = f"{found['bytes'] / 2**20:6.0f} MB, the largest alone {alone / 2**20:6.0f} MB"
        print(f"  {contestant:<22} {times}, {memory}, off by {found['wrong']:.1e}", flush=True)
    weft_found, others = rows_found.get("weft", {}), [row for key, row in rows_found.items() if key != "weft"]
    if "first" not in weft_found:
        return "weft" not in rows_found
    valid = [row for row in others if row.get("wrong", 1.0) <= TOLERANCE]
    for part, words in (("first", "from nothing"), ("again", "in steady state")):
        if valid:
            best = min(row[part] for row in valid)
            print(f"  {words}: best of the others / weft {best / weft_found[part]:.2f}", flush=True)
    own = rows_found.get("eager", weft_found)
    return bool(weft_found["wrong"] <= TOLERANCE) and weft_found["again"] <= own["again"] * 1.03


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description="Time streams of requests whose sizes differ.")
    parser.add_argument("names", nargs="*", help=", ".join(STREAMS))
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--contestant", action="append", choices=[*CONTESTANTS])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--process", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--largest", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.process:
        name, contestant = given.names
        print(json.dumps(measured(name, contestant, given.requests, largest=given.largest)))
        return
    options = ["--requests", str(given.requests), "--threads", str(given.threads)]
    right = True
    for name in given.names or STREAMS:
        print(f"{name}, {given.requests} requests", flush=True)
        right = report(name, given.contestant or [*CONTESTANTS], options) and right
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
