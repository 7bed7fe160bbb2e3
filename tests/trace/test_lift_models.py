"""Whole models, forward and backward, are lifted completely and compute what eager PyTorch computes."""

from typing import Any

import pytest
import torch
from tests.trace.lift_checks import fresh, inputs_of, remaining, traced_call
from tests.trace.lift_models import MODELS
from torch import nn

from weft.ir.interpreter import interpret
from weft.ir.verifier import verify
from weft.trace.lift.lift import lift


def loss_of(net: nn.Module) -> Any:
    def loss(*arguments: torch.Tensor) -> torch.Tensor:
        *inputs, target = arguments
        result = net(*inputs)
        flat = result.reshape(-1, result.shape[-1]) if result.dim() < 4 else result
        return nn.functional.cross_entropy(flat, target)

    return loss


def target_for(result: torch.Tensor) -> torch.Tensor:
    """Classes that a loss of this result can be taken of."""
    shape = (result.numel() // result.shape[-1],) if result.dim() < 4 else (result.shape[0], *result.shape[2:])
    classes = result.shape[-1] if result.dim() < 4 else result.shape[1]
    return torch.randint(0, classes, shape)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_in_evaluation_is_lifted_completely(name: str) -> None:
    net, inputs = MODELS[name]()
    net.eval()
    with torch.no_grad():
        traced = traced_call(net, *inputs)
        graph = lift(traced.graph)
        verify(graph)
        assert remaining(graph) == ()
        torch.testing.assert_close(interpret(graph, inputs_of(traced))[0], net(*inputs))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_in_training_and_its_backward_are_lifted_completely(name: str) -> None:
    net, inputs = MODELS[name]()
    net.train()
    arguments = (*inputs, target_for(net(*inputs)))
    traced = traced_call(loss_of(net), *arguments)
    gradient = traced.gradient
    assert gradient is not None
    backward = gradient.backward(tuple(root.type for root in gradient.roots))
    forward_graph, backward_graph = lift(gradient.graph), lift(backward.graph)
    for graph in (forward_graph, backward_graph):
        verify(graph)
        assert remaining(graph) == ()

    given = fresh(inputs_of(traced))
    results = interpret(forward_graph, given)
    saved = results[len(traced.graph.results) :]
    tangent = torch.tensor(0.7)
    found = interpret(backward_graph, [*(saved[at] for at in gradient.saved_positions(backward)), tangent])

    expected = loss_of(net)(*arguments)
    expected.backward(tangent)
    torch.testing.assert_close(results[0], expected.detach())
    state = {id(tensor): tensor for tensor in (*net.parameters(), *net.buffers())}
    for entry, after in zip(traced.inputs, given, strict=False):
        if id(entry.tensor) in state:
            torch.testing.assert_close(after, state[id(entry.tensor)].detach())
    for position, index in zip(gradient.wanted, backward.gradients, strict=True):
        parameter = traced.inputs[position].tensor
        if index is None:
            assert parameter.grad is None
        else:
            torch.testing.assert_close(found[index], parameter.grad, rtol=1e-4, atol=1e-6)
