"""Modules predict from checkpoints, take batches of other sizes, and keep what their optimizer keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from weft import mx
from weft.mx import nd, sym
from weft.mx.base import MXNetError


def network() -> sym.Symbol:
    return sym.SoftmaxOutput(sym.FullyConnected(sym.var("data"), num_hidden=2, name="fc"), name="softmax")


def test_a_batch_may_have_another_size_than_the_one_bound_for(tmp_path: Path) -> None:
    weights = {"fc_weight": nd.array([[1, 0, 0], [0, 1, 0]]), "fc_bias": nd.zeros(2)}
    mx.model.save_checkpoint(str(tmp_path / "net"), 7, network(), weights, {})
    module = mx.mod.Module.load(str(tmp_path / "net"), 7)
    module.bind([("data", (2, 3))], for_training=False)
    for count in (2, 5, 1):
        module.forward(mx.io.DataBatch([nd.ones((count, 3))]), is_train=False)
        assert module.get_outputs()[0].asnumpy().tolist() == [[0.5, 0.5]] * count
    assert module.predict(mx.io.NDArrayIter(np.ones((5, 3)), None, 2)).shape == (5, 2)


@pytest.mark.filterwarnings("ignore:Parameters already initialized")
def test_training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    chance = np.random.RandomState(0)
    batches = mx.io.NDArrayIter(chance.standard_normal((8, 3)), chance.randint(0, 2, 8), 4)
    options = {"optimizer": "sgd", "optimizer_params": {"learning_rate": 0.5, "momentum": 0.9}}

    def trained(epochs: int, prefix: str = "", **given) -> list[float]:
        module = mx.mod.Module(network()) if not prefix else mx.mod.Module.load(prefix, 1, load_optimizer_states=True)
        module.fit(batches, num_epoch=epochs, initializer=mx.init.Constant(0.1), **options, **given)
        if epochs == 1 and not prefix:
            module.save_checkpoint(str(tmp_path / "net"), 1, save_optimizer_states=True)
        return module.get_params()[0]["fc_weight"].asnumpy().ravel().tolist()

    whole = trained(3)
    trained(1)
    np.testing.assert_allclose(trained(3, str(tmp_path / "net"), begin_epoch=1), whole, rtol=1e-5)


def test_a_damaged_checkpoint_is_one_clear_error(tmp_path: Path) -> None:
    nd.save(str(tmp_path / "net-0001.params"), {"weight": nd.ones(2)})
    with pytest.raises(MXNetError, match=r"is no checkpoint: 'weight' is neither arg:\.\.\. nor aux:"):
        mx.model.load_params(str(tmp_path / "net"), 1)


def test_what_modules_do_not_do_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="group2ctxs"):
        mx.mod.Module(network(), group2ctxs={"a": mx.cpu(1)})
    on_many = mx.mod.Module(network(), context=[mx.cpu(place) for place in range(4)])
    with pytest.raises(ValueError, match="Too many slices"):
        on_many.bind([("data", (2, 3))])
    with pytest.raises(AssertionError, match="call bind and init_params"):
        mx.mod.Module(network()).forward(mx.io.DataBatch([nd.ones((1, 3))]))
    with pytest.raises(AssertionError, match="others have"):
        mx.io.NDArrayIter(np.ones(3), np.ones(4))
