"""Measure how much of a GPU's work runs at once with copies, the CPU's work and other work of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

import weft
from bench.rounds import compare, in_turn, ratio_text

NO_GPU = "no figure, as no GPU is at hand"


def copies() -> str:
    """Items 52 and 53: products on a GPU and copies of them, one after the other and at once."""
    if not torch.cuda.is_available():
        return f"copies beside computing: {NO_GPU}; between lanes nothing moves"
    x = torch.randn(4000, 4000, device="cuda") / 64

    def sequence() -> list[torch.Tensor]:
        made = [x @ x for _ in range(10)]
        torch.cuda.synchronize()
        return [y.to("cpu") for y in made]

    def lazily() -> object:
        with weft.lazy():
            return weft.wait([(x @ x).to("cpu") for _ in range(10)])

    times = in_turn({"sequence": sequence, "lazily": lazily}, 10)
    return (
        f"10 products of 4000 x 4000 copied to the CPU: {', '.join(map(times.show, times.rounds))}; sequence over "
        f"lazily {ratio_text(times.ratio('sequence', 'lazily'))} (bar 1.25)"
    )


def squares(x: torch.Tensor, count: int) -> list[torch.Tensor]:
    """So many products of a matrix with itself, all kept."""
    return [torch.mm(x, x) for _ in range(count)]


def small_products(x: torch.Tensor) -> list[torch.Tensor]:
    """Two hundred of them."""
    return squares(x, 200)


def spawned(*work: tuple[str, Callable[..., object], torch.Tensor]) -> object:
    """Spawn functions of matrices, each on its device, and wait for all of them."""
    results = []
    for place, function, x in work:
        with weft.on(place):
            results.append(weft.spawn(function, x))
    return weft.wait(results)


def cpu_and_gpu() -> str:
    """Item 49: ten products on the CPU and ten larger ones on the GPU, alone and together."""
    if not torch.cuda.is_available():
        return f"CPU and GPU at once: {NO_GPU}"
    near = "cpu:0", partial(squares, count=10), torch.randn(2000, 2000)
    far = "cuda:0", partial(squares, count=10), torch.randn(6000, 6000, device="cuda")
    for place in (near, far):
        compare(spawned(place), [squares(place[2], 10)], f"products on {place[0]}")
    work = {"CPU": partial(spawned, near), "GPU": partial(spawned, far), "together": partial(spawned, far, near)}
    times = in_turn(work, 10, alike=False)
    slower = max(("CPU", "GPU"), key=times.median)
    return (
        f"10 products, 2000 x 2000 on the CPU, 6000 x 6000 on the GPU: {', '.join(map(times.show, times.rounds))}; "
        f"together over the slower {ratio_text(times.ratio('together', slower))} (bar 1.05)"
    )


def streams() -> str:
    """Item 58 on a GPU: two programs of small products, one after the other and at once on two streams."""
    if not torch.cuda.is_available():
        return f"two streams of one GPU: {NO_GPU}"
    matrices = [torch.randn(100, 100, device="cuda") / 10 for _ in range(2)]
    programs = [weft.hybridize(small_products) for _ in matrices]
    work = [("cuda:0", program, x) for program, x in zip(programs, matrices, strict=True)]
    for place in work:
        compare(spawned(place), [small_products(place[2])], "small products on a GPU")
    both = {"in sequence": lambda: [spawned(place) for place in work], "at once": partial(spawned, *work)}
    times = in_turn(both, 20, alike=False)
    return (
        f"2 x 200 products of 100 x 100 on a GPU: {', '.join(map(times.show, times.rounds))}; in sequence over at once "
        f"{ratio_text(times.ratio('in sequence', 'at once'))} (bar 1.5)"
    )
