"""Programs of tensors with named dimensions: those that look like what a kernel computes, and may be something else."""

import pytest
import torch
from tests.random_programs.dimensions import ARGUMENTS, program_of_dimensions
from tests.random_programs.generator import RandomProgram

import weft

SEEDS, SHARDS = 120, 4
ROUNDING, AS_EAGER = 1e-4, 20  # what is wrong is wrong by far: how exact products are is asked elsewhere


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Give the error of a tensor as a whole, of what is finite; infinite where something else is."""
    finite = exact.isfinite()
    if not torch.equal(finite, found.isfinite()) or not torch.equal(exact.isnan(), found.isnan()):
        return float("inf")
    scale = exact[finite].square().mean().sqrt().clamp(min=1e-6)
    return float((found.double() - exact)[finite].square().mean().sqrt() / scale) if finite.any() else 0.0


def wrong(program: RandomProgram) -> list[str]:
    """Say where a program's answers are not eager's, at its first call and a later one."""
    run, inputs = weft.hybridize(program.function()), program.arguments()
    found = []
    for call, given in enumerate((inputs, tuple(0.5 - tensor for tensor in inputs))):
        mine, its = run(*given, **ARGUMENTS), program.function()(*given, **ARGUMENTS)
        exact = program.function()(*(tensor.double() for tensor in given), **ARGUMENTS)
        for place, (one, other, best) in enumerate(zip(mine, its, exact, strict=True)):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            ours, theirs = error(one, best), error(other, best)
            if ours > max(AS_EAGER * theirs, ROUNDING):
                found.append(f"call {call}, result {place}: error {ours}, eager's {theirs}\n{program.source}")
    return found


@pytest.mark.parametrize("shard", range(SHARDS))
def test_what_looks_like_a_kernel_is_as_eager_computes_it(shard: int) -> None:
    found = [text for seed in range(shard, SEEDS, SHARDS) for text in wrong(program_of_dimensions(seed))]
    assert not found, "\n".join(found)


def test_a_seed_always_gives_the_same_program() -> None:
    assert [program_of_dimensions(seed) for seed in range(9)] == [program_of_dimensions(seed) for seed in range(9)]
