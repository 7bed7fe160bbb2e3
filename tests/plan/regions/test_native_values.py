"""Regions as single values: what only a region reads is not left outside of it."""

import torch

import weft


def test_a_constant_that_only_a_region_reads_is_not_left_outside() -> None:
    program = weft.program(lambda x: x * 2, torch.ones(3))
    assert program._execute._alone == (0,)


def test_a_weight_that_several_products_read_alike_is_packed_once() -> None:
    weight = torch.randn(8, 8)
    layer = torch.nn.Linear(8, 8, bias=False)
    layer.weight = torch.nn.Parameter(weight)
    with torch.no_grad():
        net = torch.nn.Sequential(layer, torch.nn.Tanh(), layer, torch.nn.Tanh(), layer)
        program = weft.program(net, torch.randn(4, 8))
    assert len(program._execute.regions[0].plan.packing) == 1


def test_a_program_of_library_calls_that_ends_in_a_check_has_an_order() -> None:
    matrix = torch.eye(3) * 2
    for function in (torch.linalg.inv, torch.linalg.cholesky, torch.linalg.lu_factor):
        torch.testing.assert_close(weft.hybridize(function)(matrix), function(matrix))
