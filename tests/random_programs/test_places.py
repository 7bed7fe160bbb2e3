"""Random programs that take from and write to places give what eager gives at every size."""

from random import Random

import pytest
import torch
from tests.random_programs.places import SHAPES, arguments, outcome, places_program

import weft


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
def test_places_are_those_of_the_call_at_every_size(seed: int) -> None:
    random = Random(seed)
    steps, program = places_program(random)
    hybrid, grad = weft.hybridize(program), random.random() < 0.6
    for rows, count in SHAPES:
        x, i = arguments(random, rows, count)
        ours, eagers = outcome(hybrid, x, i, grad=grad), outcome(program, x, i, grad=grad)
        if isinstance(ours, type) or isinstance(eagers, type):
            assert ours is eagers, steps
        else:
            torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-5, msg=lambda told: f"{steps}: {told}")
