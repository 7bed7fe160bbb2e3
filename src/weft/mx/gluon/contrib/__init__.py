"""Layers and training loops that MXNet keeps apart as not yet settled: `gluon.contrib`."""

from weft.mx.gluon import nn
from weft.mx.gluon.contrib import cnn, data, rnn

__all__ = ["cnn", "data", "nn", "rnn"]
