"""Regions as single values: what only a region reads is not left outside of it."""

import torch

import weft


def test_a_constant_that_only_a_region_reads_is_not_left_outside() -> None:
    program = weft.program(lambda x: x * 2, torch.ones(3))
    assert program._execute._alone == (0,)
