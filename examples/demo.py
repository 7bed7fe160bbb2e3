"""Two networks of the chapter, imperatively and as programs: the same answers, the program's text, the time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import weft

REPEATS = 15
CALLS = 100


def mlp() -> nn.Module:
    """Make the multilayer perceptron of the chapter's hybridize section."""
    return nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 2))


class LeNet(nn.Module):
    """The convolutional network of the chapter's multi-GPU section, written as any PyTorch module."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 20, 3)
        self.second = nn.Conv2d(20, 50, 5)
        self.hidden = nn.Linear(800, 128)
        self.output = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify images."""
        x = nn.functional.avg_pool2d(self.first(x).relu(), 2)
        x = nn.functional.avg_pool2d(self.second(x).relu(), 2)
        return self.output(self.hidden(x.flatten(1)).relu())


def seconds(function: Callable[[], object]) -> float:
    """Give the time of one call, measured over many."""
    start = time.perf_counter()
    for _ in range(CALLS):
        function()
    return (time.perf_counter() - start) / CALLS


def compare(name: str, net: nn.Module, x: torch.Tensor) -> None:
    """Show that a network hybridized gives the same answers and gradients, what it runs, and how long it takes."""
    print(f"\n=== {name}, input {tuple(x.shape)} " + "=" * 40)
    imperative = net.forward
    expected = net(x)
    expected.sum().backward()
    gradients = [parameter.grad for parameter in net.parameters()]
    net.zero_grad()

    weft.hybridize(net)
    start = time.perf_counter()
    found = net(x)
    first = time.perf_counter() - start
    found.sum().backward()
    worst = (found - expected).abs().max().item()
    worst_gradient = max(
        (parameter.grad - gradient).abs().max().item()
        for parameter, gradient in zip(net.parameters(), gradients, strict=True)
    )
    print(f"answers agree: largest difference {worst:.1e}; gradients: {worst_gradient:.1e}")
    torch.testing.assert_close(found, expected)

    with torch.no_grad():
        program = weft.program(net, x)
        print(f"\nthe program, with the lines of your code:\n{program}")
    print(f"traced and compiled in {first * 1e3:.0f} ms; medians of {REPEATS} runs in turn of {CALLS} calls:")

    def backward(forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
        forward(x).sum().backward()
        net.zero_grad()

    with torch.no_grad():
        show_times("without gradients", lambda: imperative(x), lambda: net(x))
    show_times("with gradients on", lambda: imperative(x), lambda: net(x))
    show_times("forward and backward", lambda: backward(imperative), lambda: backward(net))


def show_times(name: str, before: Callable[[], object], after: Callable[[], object]) -> None:
    """Show how long a call takes imperatively and hybridized, and the quotient of both."""
    before(), after()
    pairs = [(seconds(before), seconds(after)) for _ in range(REPEATS)]
    eager, hybrid = (statistics.median(times) * 1e6 for times in zip(*pairs, strict=True))
    print(f"  {name:<21} imperative {eager:7.1f} us, hybridized {hybrid:7.1f} us, {eager / hybrid:.2f} times as fast")


def main() -> None:
    """Run the demonstration."""
    torch.manual_seed(0)
    print(f"weft {weft.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    compare("MLP", mlp(), torch.randn(1, 512))
    compare("LeNet", LeNet(), torch.randn(1, 1, 28, 28))
    print("\nEverything else is in README.md.")


if __name__ == "__main__":
    main()
