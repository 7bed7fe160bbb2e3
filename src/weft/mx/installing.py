"""Let `import mxnet` and `import d2lzh` mean `weft.mx` in this process, where somebody asks for it."""

from __future__ import annotations

import sys
from typing import Any

from weft import mx
from weft.errors import UsageError
from weft.mx import base, contrib, d2l, gluon, libinfo, log, numpy, profiler, runtime, test_utils, visualization
from weft.mx.arrays import autograd, custom, nd, ndarray, queue
from weft.mx.base import context, numpy_mode
from weft.mx.gluon import (
    block,
    data,
    estimator,
    loss,
    nn,
    parameter,
    rnn,
    splitting,
    trainer,
    vision_data,
    vision_models,
)
from weft.mx.numpy.extension import npx
from weft.mx.symbols import executor, names, sym, symbol
from weft.mx.training import (
    image,
    initializer,
    io,
    kvstore,
    legacy_rnn,
    lr_scheduler,
    metric,
    model,
    module,
    monitor,
    optimizer,
    recordio,
)

MODULES: dict[str, Any] = {
    "mxnet": mx,
    "mxnet.attribute": names,
    "mxnet.autograd": autograd,
    "mxnet.base": base,
    "mxnet.context": context,
    "mxnet.contrib": contrib,
    "mxnet.contrib.autograd": contrib.autograd,
    "mxnet.contrib.io": contrib.io,
    "mxnet.contrib.ndarray": contrib.nd,
    "mxnet.contrib.symbol": contrib.sym,
    "mxnet.contrib.text": contrib.text,
    "mxnet.contrib.text.embedding": contrib.text.embedding,
    "mxnet.contrib.text.utils": contrib.text.utils,
    "mxnet.contrib.text.vocab": contrib.text.vocab,
    "mxnet.engine": queue,
    "mxnet.executor": executor,
    "mxnet.gluon": gluon,
    "mxnet.gluon.block": block,
    "mxnet.gluon.data": data,
    "mxnet.gluon.data.vision": vision_data,
    "mxnet.gluon.data.vision.transforms": vision_data.transforms,
    "mxnet.gluon.loss": loss,
    "mxnet.gluon.contrib": gluon.contrib,
    "mxnet.gluon.contrib.cnn": gluon.contrib_cnn,
    "mxnet.gluon.contrib.data": data,
    "mxnet.gluon.contrib.estimator": estimator,
    "mxnet.gluon.contrib.nn": gluon.contrib_nn,
    "mxnet.gluon.contrib.rnn": gluon.contrib_rnn,
    "mxnet.gluon.model_zoo": gluon.model_zoo,
    "mxnet.gluon.model_zoo.vision": vision_models,
    "mxnet.gluon.nn": nn,
    "mxnet.gluon.parameter": parameter,
    "mxnet.gluon.rnn": rnn,
    "mxnet.gluon.trainer": trainer,
    "mxnet.gluon.utils": splitting,
    "mxnet.image": image,
    "mxnet.img": image,
    "mxnet.init": initializer,
    "mxnet.initializer": initializer,
    "mxnet.nd": nd,
    "mxnet.nd.contrib": nd.contrib,
    "mxnet.nd.image": nd.image,
    "mxnet.nd.linalg": nd.linalg,
    "mxnet.nd.random": nd.random,
    "mxnet.ndarray": nd,
    "mxnet.ndarray.contrib": nd.contrib,
    "mxnet.ndarray.linalg": nd.linalg,
    "mxnet.ndarray.ndarray": ndarray,
    "mxnet.ndarray.random": nd.random,
    "mxnet.operator": custom,
    "mxnet.profiler": profiler,
    "mxnet.np": numpy,
    "mxnet.npx": npx,
    "mxnet.numpy": numpy,
    "mxnet.numpy.linalg": numpy.linalg,
    "mxnet.numpy.random": numpy.random,
    "mxnet.numpy_extension": npx,
    "mxnet.optimizer": optimizer,
    "mxnet.optimizer.optimizer": optimizer,
    "mxnet.callback": model,
    "mxnet.io": io,
    "mxnet.kv": kvstore,
    "mxnet.kvstore": kvstore,
    "mxnet.libinfo": libinfo,
    "mxnet.log": log,
    "mxnet.lr_scheduler": lr_scheduler,
    "mxnet.metric": metric,
    "mxnet.mod": module,
    "mxnet.model": model,
    "mxnet.module": module,
    "mxnet.mon": monitor,
    "mxnet.monitor": monitor,
    "mxnet.name": names,
    "mxnet.random": nd.random,
    "mxnet.recordio": recordio,
    "mxnet.rnn": legacy_rnn,
    "mxnet.runtime": runtime,
    "mxnet.sym": sym,
    "mxnet.symbol": sym,
    "mxnet.symbol.contrib": sym.contrib,
    "mxnet.symbol.symbol": symbol,
    "mxnet.test_utils": test_utils,
    "mxnet.util": numpy_mode,
    "mxnet.visualization": visualization,
    "mxnet.viz": visualization,
    "d2lzh": d2l,
}


def install() -> None:
    """Let `import mxnet`, `from mxnet import nd, gluon` and `import d2lzh` mean `weft.mx` from now on.

    A real mxnet that this process has imported already stays what it is: that is an error.
    """
    found = sys.modules.get("mxnet")
    if found is not None and found is not mx:
        raise UsageError(
            "weft.mx.install() was called after the real mxnet was imported",
            why="arrays of one are not arrays of the other",
            fix="call it before the first `import mxnet`",
        )
    sys.modules.update(MODULES)
