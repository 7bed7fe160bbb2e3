"""Train symbols of several lengths that share their parameters: `mx.mod.BucketingModule`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.mx.arrays import nd
from weft.mx.arrays.ndarray import NDArray, array
from weft.mx.base.context import Context
from weft.mx.symbols import sym
from weft.mx.symbols.names import NameManager
from weft.mx.symbols.symbol import Symbol
from weft.mx.training import initializer
from weft.mx.training.base_module import BaseModule
from weft.mx.training.saved_models import load_params
from weft.mx.training.symbol_module import SymbolModule

Made = tuple[Symbol, Any, Any]


class BucketingModule(BaseModule):
    """A module for each key of batches: `sym_gen(key)` gives its symbol, and the names of its data and labels."""

    def __init__(
        self,
        sym_gen: Callable[[Any], Made],
        default_bucket_key: Any = None,
        logger: Any = logging,
        context: Context | Sequence[Context] | None = None,
        **given: Any,
    ) -> None:
        super().__init__(logger)
        if default_bucket_key is None:
            raise AssertionError("default_bucket_key says which bucket has all parameters")
        self._sym_gen, self._default, self._given = sym_gen, default_bucket_key, {**given, "context": context}
        self._buckets: dict[Any, SymbolModule] = {}
        self._current: SymbolModule | None = None
        self._bound_with: dict[str, Any] = {}
        self._made(default_bucket_key)  # what is wrong is told now

    def _symbols(self, key: Any) -> Made:
        with NameManager():  # names are those of a new graph
            return self._sym_gen(key)

    def _made(self, key: Any) -> SymbolModule:
        symbol, data_names, label_names = self._symbols(key)
        return SymbolModule(symbol, data_names, label_names, logger=self.logger, **self._given)

    @property
    def _now(self) -> SymbolModule:
        if self._current is None:
            raise AssertionError("call bind before this")
        return self._current

    @property
    def symbol(self) -> Symbol:
        """The symbol of the bucket that ran last."""
        found: Symbol = self._now.symbol
        return found

    @property
    def data_names(self) -> Sequence[str]:
        """The names of the data."""
        found: Sequence[str] = self._now.data_names if self.binded else self._symbols(self._default)[1]
        return found

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs."""
        return self._now.output_names if self.binded else self._symbols(self._default)[0].list_outputs()

    @property
    def data_shapes(self) -> list[Any]:
        """What data of the bucket that ran last is."""
        return self._now.data_shapes

    @property
    def label_shapes(self) -> list[Any]:
        """What labels of the bucket that ran last are."""
        return self._now.label_shapes

    @property
    def output_shapes(self) -> list[Any]:
        """The names and the sizes of the outputs of the bucket that ran last."""
        return self._now.output_shapes

    def bind(
        self,
        data_shapes: Any,
        label_shapes: Any = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        shared_module: Any = None,
        grad_req: str = "write",
    ) -> None:
        """Make the arrays of the default bucket, which has all parameters."""
        if shared_module is not None:
            raise AssertionError("shared_module for BucketingModule is not supported")
        kept = self.get_params() if self.params_initialized else None
        if self.binded and not force_rebind:
            self.logger.warning("Already bound, ignoring bind()")
            return
        self.for_training = for_training
        self._bound_with = {"for_training": for_training, "inputs_need_grad": inputs_need_grad, "grad_req": grad_req}
        module = self._buckets.get(self._default) or self._made(self._default)
        module.bind(data_shapes, label_shapes, force_rebind=force_rebind, **self._bound_with)
        self._buckets, self._current, self.binded = {self._default: module}, module, True
        if kept is not None:
            self.set_params(*kept)

    def switch_bucket(self, bucket_key: Any, data_shapes: Any, label_shapes: Any = None) -> None:
        """Go on with the module of a key, which has the parameters of the default one."""
        if not self.binded:
            raise AssertionError("call bind before switching bucket")
        module = self._buckets.get(bucket_key)
        if module is None:
            module = self._buckets[bucket_key] = self._made(bucket_key)
        if not module.binded:
            shared = self._buckets[self._default]
            module.bind(data_shapes, label_shapes, shared_module=shared, **self._bound_with)
        self._current = module

    def init_params(
        self,
        initializer: Any = initializer.Uniform(0.01),  # noqa: B008  # it keeps nothing
        arg_params: Mapping[str, NDArray] | None = None,
        aux_params: Mapping[str, NDArray] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Fill the parameters: from arrays where they are given, else by the initializer."""
        if self.params_initialized and not force_init:
            return
        module = self._now
        module.init_params(initializer, arg_params, aux_params, allow_missing, force_init, allow_extra)
        self.params_initialized = True
        for each in self._buckets.values():
            each.params_initialized = True

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Copies of the parameters, and of the auxiliary states: of all buckets."""
        if not self.params_initialized:
            raise AssertionError("call init_params before this")
        return self._buckets[self._default].get_params()

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Choose how `update` changes parameters, in all buckets."""
        if self.optimizer_initialized and not force_init:
            self.logger.warning("optimizer already initialized, ignoring.")
            return
        first = self._now
        first.init_optimizer(kvstore, optimizer, optimizer_params, force_init)
        for module in self._buckets.values():
            if module is not first:
                module.borrow_optimizer(first)
        self.optimizer_initialized = True

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """Make the module of a batch, and stay with the one that is current."""
        _ = sparse_row_id_fn
        before = self._now
        self.switch_bucket(data_batch.bucket_key, data_batch.provide_data, data_batch.provide_label)
        self._current = before

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Compute the outputs of a batch by the module of its key."""
        self.switch_bucket(data_batch.bucket_key, data_batch.provide_data, data_batch.provide_label)
        self._now.forward(data_batch, is_train)

    def backward(self, out_grads: Any = None) -> None:
        """Compute the gradients of the last forward."""
        self._now.backward(out_grads)

    def update(self) -> None:
        """Change the parameters by the gradients of the last backward."""
        if not self.optimizer_initialized:
            raise AssertionError("call init_optimizer before update")
        self._now.update()

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """The outputs of the last forward."""
        return self._now.get_outputs(merge_multi_context)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """The gradients of the inputs."""
        return self._now.get_input_grads(merge_multi_context)

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Let a metric see the outputs of the last forward."""
        self._now.update_metric(eval_metric, labels, pre_sliced)

    def install_monitor(self, mon: Any) -> None:
        """Let a monitor watch the arrays of all buckets that are there."""
        for module in self._buckets.values():
            module.install_monitor(mon)

    def save_checkpoint(self, prefix: str, epoch: int, remove_amp_cast: bool = False) -> None:
        """Write the parameters, a symbol for each key, and the keys."""
        _ = remove_amp_cast
        if not self._buckets:
            raise AssertionError("Empty BucketingModule cannot be saved")
        self.save_params(f"{prefix}-{epoch:04d}.params")
        for key in self._buckets:
            self._symbols(key)[0].save(f"{prefix}-{key}-symbol.json")
        nd.save(f"{prefix}.buckets", array(list(self._buckets), dtype=np.int32))

    @staticmethod
    def load(
        prefix: str, epoch: int, sym_gen: Any = None, default_bucket_key: Any = None, **given: Any
    ) -> BucketingModule:
        """A module of a checkpoint."""
        keys = nd.load(f"{prefix}.buckets")[0].asnumpy().tolist()
        symbols = {key: sym.load(f"{prefix}-{key}-symbol.json") for key in keys}
        return BucketingModule.load_dict(symbols, sym_gen, default_bucket_key, *load_params(prefix, epoch), **given)

    @staticmethod
    def load_dict(
        sym_dict: Mapping[Any, Symbol] | None = None,
        sym_gen: Any = None,
        default_bucket_key: Any = None,
        arg_params: Any = None,
        aux_params: Any = None,
        **given: Any,
    ) -> BucketingModule:
        """A module of symbols by their keys, and of parameters."""
        for name, value in (
            ("sym_dict", sym_dict),
            ("sym_gen", sym_gen),
            ("arg_params", arg_params),
            ("aux_params", aux_params),
        ):
            if value is None:
                raise AssertionError(f"{name} is required for loading BucketingModule")
        made = BucketingModule(sym_gen, default_bucket_key, **given)
        for key, symbol in (sym_dict or {}).items():
            _, data_names, label_names = made._symbols(key)
            made._buckets[key] = SymbolModule(symbol, data_names, label_names, logger=made.logger, **made._given)
        made._current = made._buckets[default_bucket_key]
        made._current._params = arg_params, aux_params
        made._current.params_initialized = made.params_initialized = True
        return made
