"""Random programs that look at values do as in eager: bits, gradients, writes and exceptions, from threads too."""

import pytest
from tests.random_programs.values import values_program
from tests.random_programs.values_runs import THREADS, difference

from weft.config import overrides

SEEDS = 24
FOUND_ONCE = (11, 142, 149)  # what went wrong: written copies, numbers of several ways, sizes of gradients


@pytest.mark.parametrize("codegen", ["library", "native"])
@pytest.mark.parametrize("seed", [*range(0, SEEDS, 6), *FOUND_ONCE])
def test_values_decide_as_in_eager(seed: int, codegen: str) -> None:
    with overrides(codegen=codegen):
        for grad in (False, True):
            found = difference(values_program(seed), grad=grad)
            assert found is None, f"{values_program(seed).source}\n{found}"


@pytest.mark.parametrize("seed", range(3, SEEDS, 12))
def test_threads_decide_each_for_itself(seed: int) -> None:
    found = difference(values_program(seed), grad=seed % 2 == 1, threads=THREADS)
    assert found is None, f"{values_program(seed).source}\n{found}"


def test_a_seed_always_gives_the_same_program() -> None:
    assert [values_program(seed).source for seed in range(9)] == [values_program(seed).source for seed in range(9)]
