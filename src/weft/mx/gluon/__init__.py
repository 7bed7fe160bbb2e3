"""Build and train networks as Gluon does."""

from weft.mx.gluon import block, loss, nn, parameter
from weft.mx.gluon import splitting as utils
from weft.mx.gluon.block import Block, HybridBlock, SymbolBlock
from weft.mx.gluon.parameter import Constant, Parameter, ParameterDict
from weft.mx.gluon.trainer import Trainer

__all__ = [
    "Block",
    "Constant",
    "HybridBlock",
    "Parameter",
    "ParameterDict",
    "SymbolBlock",
    "Trainer",
    "block",
    "loss",
    "nn",
    "parameter",
    "utils",
]
