"""Count words, number them, and give them vectors: `mx.contrib.text`."""

from weft.mx.contrib.text import embedding, vocab
from weft.mx.contrib.text import vocab as utils  # a module of one function in MXNet

__all__ = ["embedding", "utils", "vocab"]
