"""Train symbols of several lengths that share their parameters: `mx.mod.BucketingModule`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.mx.arrays import nd
from weft.mx.arrays.ndarray import NDArray, array
from weft.mx.base.context import Context
from weft.mx.symbols import sym
from weft.mx.symbols.names import NameManager
from weft.mx.symbols.symbol import Symbol
from weft.mx.training.base_module import BaseModule, ModuleBinding, ParameterFilling
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
        self._binding = ModuleBinding(None)
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
    def data_names(self) -> Sequence[str]:
        """The names of the data."""
        found: Sequence[str] = self._now.data_names if self.binded else self._symbols(self._default)[1]
        return found

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs."""
        return self._now.output_names if self.binded else self._symbols(self._default)[0].list_outputs()

    def _bind(self, binding: ModuleBinding) -> None:
        if binding.shared_module is not None:
            raise AssertionError("shared_module for BucketingModule is not supported")
        kept = self.get_params() if self.params_initialized else None
        self._binding = binding
        module = self._buckets.get(self._default) or self._made(self._default)
        module.bind(**vars(binding))
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
            own = replace(self._binding, data_shapes=data_shapes, label_shapes=label_shapes, shared_module=shared)
            module.bind(**vars(own))
        self._current = module

    def _fill(self, filling: ParameterFilling) -> None:
        filling.given_to(self._now)
        for each in self._buckets.values():
            each.params_initialized = True

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Copies of the parameters, and of the auxiliary states: of all buckets."""
        if not self.params_initialized:
            raise AssertionError("call init_params before this")
        return self._buckets[self._default].get_params()

    def _choose_optimizer(self, optimizer: Any, optimizer_params: Any) -> None:
        first = self._now
        first.init_optimizer(None, optimizer, optimizer_params, force_init=True)
        for module in self._buckets.values():
            if module is not first:
                module.borrow_optimizer(first)

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

    def update(self) -> None:
        """Change the parameters by the gradients of the last backward."""
        if not self.optimizer_initialized:
            raise AssertionError("call init_optimizer before update")
        self._now.update()

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


def _of_current(name: str) -> property:
    return property(lambda self: getattr(self._now, name), doc=f"`{name}` of the module that ran last.")


OF_CURRENT = (
    *("symbol", "data_shapes", "label_shapes", "output_shapes"),
    *("backward", "get_outputs", "get_input_grads", "update_metric"),
)
for _name in OF_CURRENT:
    setattr(BucketingModule, _name, _of_current(_name))
