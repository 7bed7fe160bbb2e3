"""Build and train networks as Gluon does."""

from types import SimpleNamespace

from weft.mx.gluon import (
    block,
    contrib_cnn,
    contrib_nn,
    contrib_rnn,
    data,
    estimator,
    loss,
    nn,
    parameter,
    rnn,
    vision_models,
)
from weft.mx.gluon import splitting as utils
from weft.mx.gluon.block import Block, HybridBlock, SymbolBlock
from weft.mx.gluon.parameter import Constant, Parameter, ParameterDict
from weft.mx.gluon.trainer import Trainer

contrib = SimpleNamespace(cnn=contrib_cnn, data=data, estimator=estimator, nn=contrib_nn, rnn=contrib_rnn)
model_zoo = SimpleNamespace(vision=vision_models, get_model=vision_models.get_model)

__all__ = [
    "Block",
    "Constant",
    "HybridBlock",
    "Parameter",
    "ParameterDict",
    "SymbolBlock",
    "Trainer",
    "block",
    "contrib",
    "data",
    "loss",
    "model_zoo",
    "nn",
    "parameter",
    "rnn",
    "utils",
]
