"""Gradients of lazy code where a backward is more than one pass over plain leaves: again, cast, sparse, many."""

import pytest
import torch
from tests.api.agreement import assert_lazily_same
from torch import nn

import weft
from weft.lazy_tensors.tensor import LazyTensor

pytestmark = pytest.mark.usefixtures("own_engine", "by_library")


@pytest.mark.parametrize("looks", [False, True], ids=["in one segment", "after a look"])
def test_a_gradient_of_a_compiled_segment_can_be_differentiated_again(looks: bool) -> None:
    def work() -> list[torch.Tensor]:
        weight, x = nn.Parameter(torch.randn(8, 8)), torch.randn(5, 8)
        total = ((x @ weight).tanh() @ weight * 1.5).sum()
        if looks:
            assert total.item() != 0
        (gradient,) = torch.autograd.grad(total, weight, create_graph=True)
        gradient.square().sum().backward()
        assert weight.grad is not None
        return [gradient.detach(), weight.grad]

    assert_lazily_same(work)


def test_a_gradient_may_have_any_strides_where_there_is_one_element() -> None:
    def work() -> list[torch.Tensor]:
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1))
        for _ in range(3):
            x = torch.rand(8, 1).requires_grad_()
            y = net(x)
            (slope,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
            net.zero_grad()
            (slope + y).square().mean().backward()
        return [parameter.grad.clone() for parameter in net.parameters()]

    expected = work()
    with weft.lazy():
        found = work()
        torch.testing.assert_close([weft.wait(one) for one in found], expected)


def test_a_backward_under_autocast_computes_as_eager_does() -> None:
    def work() -> list[torch.Tensor]:
        weight, x = nn.Parameter(torch.randn(32, 32)), torch.randn(32, 32)
        total = ((x @ weight).tanh() @ weight).sum()
        assert total.item() != 0
        with torch.autocast("cpu", dtype=torch.bfloat16):
            total.backward()
        assert weight.grad is not None
        return [weight.grad]

    assert_lazily_same(work)


def test_inputs_that_were_changed_since_are_not_computed_with_again() -> None:
    weight = nn.Parameter(torch.randn(8, 8))

    def work() -> list[torch.Tensor]:
        with torch.no_grad():
            weight.copy_(torch.linspace(-1, 1, 64).view(8, 8))
        total = (torch.ones(5, 8) @ weight).tanh().sum()
        assert total.item() != 0
        with torch.no_grad():
            weight.add_(1)
        once = torch.autograd.grad(total, weight, create_graph=True)[0]
        return [once, *torch.autograd.grad(once.sum(), weight)]

    assert_lazily_same(work)


def test_sparse_gradients_of_embeddings_stay_sparse() -> None:
    table, bag = nn.Embedding(30, 8, sparse=True), nn.EmbeddingBag(30, 8, sparse=True)
    index = torch.arange(24).view(4, 6)
    with weft.lazy():
        for _ in range(4):
            table.weight.grad = bag.weight.grad = None
            table(index).square().sum().backward()
            bag(index).square().sum().backward()
            assert table.weight.grad.is_sparse
            assert bag.weight.grad.is_sparse


def test_an_embedding_that_shortens_its_rows_does_so_for_rows_it_meets_later() -> None:
    def work() -> list[torch.Tensor]:
        table = nn.Embedding(30, 8, max_norm=1.0)
        with torch.no_grad():
            table.weight[:20] *= 0.01
        found = [table(torch.arange(start, start + 6).repeat(4)).detach() for start in (0, 5, 10, 20)]
        return [*found, table.weight.detach()]

    assert_lazily_same(work)


def test_an_orthogonal_start_can_be_made_lazily() -> None:
    def work() -> list[torch.Tensor]:
        return [nn.init.orthogonal_(nn.Linear(8, 8).weight).detach()]

    assert_lazily_same(work)


@pytest.mark.parametrize("name", ["SGD", "Adam", "NAdam", "Adagrad"])
@pytest.mark.parametrize("foreach", [False, True])
def test_a_loop_that_clips_gradients_looks_at_nothing(name: str, foreach: bool) -> None:
    """Norms and what is done to lists of tensors are queued like all else."""

    def trained() -> tuple[list[torch.Tensor], list[type]]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 1))
        optimizer = getattr(torch.optim, name)(net.parameters(), lr=0.01, foreach=foreach)
        for _ in range(3):
            loss = net(torch.randn(20, 40)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
        return [norm, *net.parameters()], [type(loss), type(norm)]

    expected, _ = trained()
    with weft.lazy():
        found, kinds = trained()
    torch.testing.assert_close([x.detach() for x in found], [x.detach() for x in expected], rtol=1e-4, atol=1e-6)
    assert kinds == [LazyTensor, LazyTensor]
