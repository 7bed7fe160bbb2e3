"""One tensor given for several arguments, or an argument that is a parameter too."""

import torch

import weft


def test_a_program_traced_with_one_tensor_twice_takes_two_tensors_next() -> None:
    function = weft.hybridize(lambda first, second: first * 2 + second)
    x, y = torch.randn(3), torch.randn(3)
    assert torch.equal(function(x, x), x * 2 + x)
    assert torch.equal(function(x, y), x * 2 + y)


def test_one_tensor_given_twice_gets_both_gradients() -> None:
    x = torch.randn(3, requires_grad=True)
    weft.hybridize(lambda first, second: first * 2 + second)(x, x).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((3,), 3.0))


def test_a_write_through_one_argument_is_seen_through_the_other() -> None:
    def step(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return first.add_(1) + second

    x, y = torch.zeros(3), torch.zeros(3)
    hybrid = weft.hybridize(step)
    assert torch.equal(hybrid(x, x), step(y, y))
    assert torch.equal(x, y)
    assert torch.equal(hybrid(x, torch.ones(3)), step(y, torch.ones(3)))


def test_a_parameter_may_be_an_argument_of_its_own_module() -> None:
    net = torch.nn.Linear(3, 3)
    net(net.weight).sum().backward()
    expected = [parameter.grad for parameter in net.parameters()]
    net.zero_grad()
    weft.hybridize(net)
    net(net.weight).sum().backward()
    for parameter, gradient in zip(net.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert gradient is not None
        assert torch.equal(parameter.grad, gradient)
