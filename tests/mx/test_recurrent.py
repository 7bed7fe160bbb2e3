"""Recurrent layers over sequences that end early, with clipped states and with projections."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from weft.mx import autograd, gluon, nd
from weft.mx.base.errors import MXNetError

rng = np.random.default_rng(0)
X = rng.standard_normal((5, 3, 4)).astype("float32")
LENGTHS = [2, 5, 1]
LAYERS = {
    "lstm": (gluon.rnn.LSTM, nn.LSTM, {}, {}),
    "gru": (gluon.rnn.GRU, nn.GRU, {}, {}),
    "relu": (gluon.rnn.RNN, nn.RNN, {"activation": "relu"}, {"nonlinearity": "relu"}),
    "tanh": (gluon.rnn.RNN, nn.RNN, {"activation": "tanh"}, {"nonlinearity": "tanh"}),
    "projected": (gluon.rnn.LSTM, nn.LSTM, {"projection_size": 2}, {"proj_size": 2}),
}
PARTS = {"i2h_weight": "weight_ih", "h2h_weight": "weight_hh", "i2h_bias": "bias_ih", "h2h_bias": "bias_hh"}
PARTS["h2r_weight"] = "weight_hr"


def pair(name: str, **given: Any) -> tuple[Any, nn.Module]:
    """A layer of gluon, and one of torch with the same weights."""
    kind, torchs, options, torchs_options = LAYERS[name]
    torch.manual_seed(0)
    its = torchs(4, 3, 2, bidirectional=True, **torchs_options)
    layer = kind(3, num_layers=2, bidirectional=True, input_size=4, **options, **given)
    layer.initialize()
    for label, parameter in layer.collect_params().items():
        place, part = label.removeprefix(layer.prefix).split("_", 1)
        weight = getattr(its, f"{PARTS[part]}_l{place[1:]}{'_reverse' if place[0] == 'r' else ''}")
        parameter.set_data(nd.array(weight.detach().numpy()))
    return layer, its


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_sequences_that_end_early_are_computed_to_their_ends(name: str, hybrid: bool) -> None:
    layer, its = pair(name, use_sequence_length=True)
    if hybrid:
        layer.hybridize()
    given = torch.tensor(X, requires_grad=True)
    packed = pack_padded_sequence(given, torch.tensor(LENGTHS), enforce_sorted=False)
    outputs, last = its(packed)
    expected, _ = pad_packed_sequence(outputs)
    expected.square().sum().backward()
    x = nd.array(X)
    x.attach_grad()
    for _ in range(2):
        with autograd.record():
            found, states = layer(x, layer.begin_state(3), sequence_length=nd.array(LENGTHS))
            loss = found.square().sum()
        loss.backward()
        np.testing.assert_allclose(found.asnumpy(), expected.detach().numpy(), atol=1e-5)
        for mine, theirs in zip(states, last if isinstance(last, tuple) else (last,), strict=True):
            np.testing.assert_allclose(mine.asnumpy(), theirs.detach().numpy(), atol=1e-5)
        assert given.grad is not None
        np.testing.assert_allclose(x.grad.asnumpy(), given.grad.numpy(), atol=1e-4)


def test_lengths_are_asked_for_where_they_are_used() -> None:
    layer, _ = pair("gru", use_sequence_length=True)
    with pytest.raises(ValueError, match="sequence_length"):
        layer(nd.array(X))
    plain, _ = pair("gru")
    assert (plain(nd.array(X), sequence_length=nd.array(LENGTHS)) == plain(nd.array(X))).asnumpy().all()  # as in MXNet


def test_states_stay_between_the_numbers_that_clip_them() -> None:
    bounds = {"state_clip_min": -0.1, "state_clip_max": 0.1}
    layer, its = pair("lstm", **bounds)
    _, (_, cells) = layer(nd.array(X), layer.begin_state(3))
    assert float(np.abs(cells.asnumpy()).max()) == pytest.approx(0.1)
    wide, _ = pair("lstm", state_clip_min=-1e3, state_clip_max=1e3)
    expected, _ = its(torch.tensor(X))
    np.testing.assert_allclose(wide(nd.array(X)).asnumpy(), expected.detach().numpy(), atol=1e-5)
    spoilt = X.copy()
    spoilt[0, 0, 0] = np.nan
    assert np.isnan(layer(nd.array(spoilt)).asnumpy()).any()
    stopping, _ = pair("lstm", state_clip_nan=True, **bounds)
    assert not np.isnan(stopping(nd.array(spoilt), stopping.begin_state(3))[1][1].asnumpy()).any()


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")  # of torch's own layer
def test_a_projection_is_trained() -> None:
    layer, its = pair("projected")
    expected, _ = its(torch.tensor(X))
    expected.square().sum().backward()
    with autograd.record():
        loss = layer(nd.array(X)).square().sum()
    loss.backward()
    for label, parameter in layer.collect_params().items():
        place, part = label.removeprefix(layer.prefix).split("_", 1)
        weight = getattr(its, f"{PARTS[part]}_l{place[1:]}{'_reverse' if place[0] == 'r' else ''}")
        np.testing.assert_allclose(parameter.grad().asnumpy(), weight.grad.numpy(), atol=1e-4)
    with pytest.raises(TypeError):
        gluon.rnn.GRU(3, projection_size=2)
    with pytest.raises(MXNetError, match="mode='lstm' alone"):
        nd.RNN(nd.array(X), nd.ones(9), nd.ones((1, 3, 3)), state_size=3, num_layers=1, mode="gru", projection_size=2)
