"""Give a symbol its parameters on a device, and run it forwards and backwards: `mx.mod.Module`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.mx.arrays.ndarray import NDArray
from weft.mx.base.context import Context, current_context
from weft.mx.symbols.executor import Executor, simple_bind
from weft.mx.symbols.symbol import Symbol
from weft.mx.training import initializer
from weft.mx.training.base_module import BaseModule
from weft.mx.training.data_iter import DataDesc
from weft.mx.training.initializer import InitDesc
from weft.mx.training.optimizer import Optimizer, Updater, create
from weft.mx.training.saved_models import load_checkpoint, save_checkpoint


def _described(given: Any) -> list[DataDesc]:
    return [each if isinstance(each, DataDesc) else DataDesc(*each) for each in given or ()]


class SymbolModule(BaseModule):
    """A symbol with its parameters on a device: `bind`, `init_params` or `set_params`, then `forward`, or `fit`."""

    def __init__(
        self,
        symbol: Symbol,
        data_names: Sequence[str] | None = ("data",),
        label_names: Sequence[str] | None = ("softmax_label",),
        logger: Any = logging,
        context: Context | Sequence[Context] | None = None,
        work_load_list: Any = None,
        fixed_param_names: Sequence[str] | None = None,
        **given: Any,
    ) -> None:
        _ = work_load_list
        for name, value in given.items():
            if value is not None:
                raise NotImplementedError(f"Module({name}=...) is not in weft.mx")
        contexts: list[Any] = list(context) if isinstance(context, (list, tuple)) else [context or current_context()]
        if len(contexts) != 1:
            raise NotImplementedError("Module on several devices is not in weft.mx: use gluon.Trainer")
        super().__init__(logger)
        self._context = contexts[0]
        self.symbol = symbol
        arguments = symbol.list_arguments()
        self.data_names = list(data_names or ())
        self.label_names = [name for name in label_names or () if name in arguments]
        for name in self.data_names:
            if name not in arguments:
                parameters = ("_weight", "_bias", "_gamma", "_beta")
                candidates = "\n\t".join(each for each in arguments if not each.endswith(parameters))
                raise ValueError(
                    f"You created Module with Module(..., data_names={self.data_names}) but input with name '{name}' "
                    f"is not found in symbol.list_arguments(). Did you mean one of:\n\t{candidates}"
                )
        inputs = {*self.data_names, *self.label_names}
        self._param_names = [name for name in arguments if name not in inputs]
        self._fixed = set(fixed_param_names or ())
        self._executor: Executor | None = None
        self._params: tuple[dict[str, NDArray], dict[str, NDArray]] = ({}, {})

    @staticmethod
    def load(prefix: str, epoch: int, load_optimizer_states: bool = False, **given: Any) -> Module:
        """A module of a checkpoint."""
        symbol, arg_params, aux_params = load_checkpoint(prefix, epoch)
        made = Module(symbol, **given)
        made._params = arg_params, aux_params
        made.params_initialized = True
        made._states_file = f"{prefix}-{epoch:04d}.states" if load_optimizer_states else None
        return made

    _states_file: str | None = None

    def save_checkpoint(self, prefix: str, epoch: int, save_optimizer_states: bool = False, **_given: Any) -> None:
        """Write the symbol and the parameters, perhaps what the optimizer keeps too."""
        save_checkpoint(prefix, epoch, self.symbol, *self.get_params())
        if save_optimizer_states:
            self.save_optimizer_states(f"{prefix}-{epoch:04d}.states")

    def save_optimizer_states(self, fname: str) -> None:
        """Write what the optimizer keeps."""
        if not self.optimizer_initialized:
            raise AssertionError("call init_optimizer before this")
        Path(fname).write_bytes(self._updater.get_states())
        logging.info('Saved optimizer state to "%s"', fname)  # noqa: LOG015  # where programs of MXNet look for it

    def load_optimizer_states(self, fname: str) -> None:
        """Read what an optimizer kept."""
        if not self.optimizer_initialized:
            raise AssertionError("call init_optimizer before this")
        self._updater.set_states(Path(fname).read_bytes())

    def prepare(self, data_batch: Any, sparse_row_id_fn: Any = None) -> None:
        """Nothing is to be done before a batch: parameters are whole."""

    # Sizes.

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
        """Make the arrays for inputs of these sizes."""
        if self.binded and not force_rebind:
            self.logger.warning("Already bound, ignoring bind()")
            return
        self.for_training, self._inputs_need_grad, self._grad_req = for_training, inputs_need_grad, grad_req
        self.data_shapes, self.label_shapes = _described(data_shapes), _described(label_shapes)
        self._bind()
        self.binded = True
        if shared_module is not None:
            self._share(shared_module)
        elif self.params_initialized:
            self._give(*self._params, allow_extra=True)

    def reshape(self, data_shapes: Any, label_shapes: Any = None) -> None:
        """Go over to inputs of other sizes; parameters stay."""
        if not self.binded:
            raise AssertionError("call bind before reshape")
        self.data_shapes, self.label_shapes = _described(data_shapes), _described(label_shapes)
        self._bind()

    def _bind(self) -> None:
        learns = self.for_training and self._grad_req != "null"
        requests = {name: "null" if name in self._fixed or not learns else self._grad_req for name in self._param_names}
        if self._inputs_need_grad:
            requests |= dict.fromkeys(self.data_names, self._grad_req)
        labels = [each for each in self.label_shapes if each.name in self.label_names]
        self._check_sizes()
        shapes = {each.name: each.shape for each in (*self.data_shapes, *labels)}
        types = {each.name: each.dtype for each in (*self.data_shapes, *labels)}
        before = self._executor
        self._executor = simple_bind(self.symbol, self._context, requests, types, **shapes)
        if before is not None:
            for ours, theirs in (
                (self._executor.arg_dict, before.arg_dict),
                (self._executor.aux_dict, before.aux_dict),
            ):
                for name, array in theirs.items():
                    if name in ours and ours[name].shape == array.shape and name not in shapes:
                        ours[name] = array

    def _check_sizes(self) -> None:
        """Refuse data and labels of different numbers of examples."""
        count: int | None = None
        for each in (*self.data_shapes, *self.label_shapes):
            axis = each.get_batch_axis(each.layout)
            size = each.shape[axis] if 0 <= axis < len(each.shape) else None
            count = size if count is None else count
            if size not in (None, count):
                raise AssertionError(
                    f"all data must have the same batch size: batch_size = {count}, but {each.name} has shape "
                    f"{each.shape}"
                )

    def _share(self, other: SymbolModule) -> None:
        """Have the arrays of parameters of another module, and its optimizer."""
        ours, theirs = self._bound, other._bound
        shared = {*self._param_names, *ours.aux_dict}
        for part in ("arg_dict", "grad_dict", "aux_dict"):
            own, others = getattr(ours, part), getattr(theirs, part)
            own.update({name: others[name] for name in own if name in shared and name in others})
        self.params_initialized = other.params_initialized
        if other.optimizer_initialized:
            self.borrow_optimizer(other)

    @property
    def _bound(self) -> Executor:
        if self._executor is None:
            raise AssertionError("call bind before this")
        return self._executor

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs."""
        found: list[str] = self.symbol.list_outputs()
        return found

    @property
    def output_shapes(self) -> list[tuple[str, Any]]:
        """The names and the sizes of the outputs."""
        found = self.symbol.infer_shape(**{each.name: each.shape for each in self.data_shapes})[1]
        return list(zip(self.output_names, found, strict=True))

    # Parameters.

    def init_params(
        self,
        initializer: Any = initializer.Uniform(0.01),  # noqa: B008  # it keeps nothing
        arg_params: Mapping[str, NDArray] | None = None,
        aux_params: Mapping[str, NDArray] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,  # noqa: ARG002  # MXNet takes no notice of it either
    ) -> None:
        """Fill the parameters: from arrays where they are given, else by the initializer."""
        if self.params_initialized and not force_init:
            warnings.warn(
                "Parameters already initialized and force_init=False. init_params call ignored.", stacklevel=2
            )
            return
        if not self.binded:
            raise AssertionError("call bind before initializing the parameters")
        executor = self._bound
        notes = self.symbol.attr_dict()
        own = {name: executor.arg_dict[name] for name in self._param_names}
        for arrays, given in ((own, arg_params), (executor.aux_dict, aux_params)):
            for name, array in arrays.items():
                if given is not None and name in given:
                    given[name].astype(array.dtype).copyto(array)
                elif given is not None and not allow_missing:
                    raise RuntimeError(f"{name} is not presented")
                elif initializer is not None:
                    initializer(InitDesc(name, notes.get(name), initializer), array)
        self.params_initialized = True

    def _give(self, arg_params: Any, aux_params: Any, *, allow_extra: bool) -> None:
        self._bound.copy_params_from(arg_params, aux_params, allow_extra_params=allow_extra)

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Copies of the parameters, and of the auxiliary states."""
        if not self.binded:
            return self._params
        executor = self._bound
        return (
            {name: executor.arg_dict[name].copy() for name in self._param_names},
            {name: array.copy() for name, array in executor.aux_dict.items()},
        )

    # Runs.

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Compute the outputs of a batch, which may have another size than before."""
        if not (self.binded and self.params_initialized):
            raise AssertionError("call bind and init_params before forward")
        data = list(data_batch.data)
        if [x.shape for x in data] != [each.shape for each in self.data_shapes]:
            self.data_shapes = [
                DataDesc(old.name, x.shape, old.dtype) for old, x in zip(self.data_shapes, data, strict=True)
            ]
            labels = getattr(data_batch, "label", None) or ()
            self.label_shapes = [
                DataDesc(old.name, x.shape, old.dtype) for old, x in zip(self.label_shapes, labels, strict=False)
            ]
            self._bind()
        given = dict(zip((each.name for each in self.data_shapes), data, strict=True))
        if getattr(data_batch, "label", None):  # programs make batches of their own, of data alone
            names = [each.name for each in self.label_shapes] or self.label_names
            given |= {name: x for name, x in zip(names, data_batch.label, strict=False) if name in self.label_names}
        self._bound.forward(self.for_training if is_train is None else is_train, **given)

    def backward(self, out_grads: Any = None) -> None:
        """Compute the gradients of the last forward."""
        self._bound.backward(out_grads)

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """The outputs of the last forward."""
        outputs: list[Any] = list(self._bound.outputs)
        return outputs if merge_multi_context else [[output] for output in outputs]

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """The gradients of the inputs."""
        if not self._inputs_need_grad:
            raise AssertionError("bind with inputs_need_grad=True before this")
        grads: list[Any] = [self._bound.grad_dict[name] for name in self.data_names]
        return grads if merge_multi_context else [[grad] for grad in grads]

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Choose how `update` changes parameters; gradients are divided by the size of the batch."""
        _ = kvstore
        if self.optimizer_initialized and not force_init:
            self.logger.warning("optimizer already initialized, ignoring...")
            return
        if not isinstance(optimizer, Optimizer):
            given = {"rescale_grad": 1.0 / self.data_shapes[0].shape[0], **dict(optimizer_params)}
            names = dict(enumerate(self._param_names))
            optimizer = create(optimizer, sym=self.symbol, param_idx2name=names, **given)
        self._updater = Updater(optimizer)
        self._places = {name: place for place, name in enumerate(self._param_names)}
        if self._states_file is not None:
            self._updater.set_states(Path(self._states_file).read_bytes())
        self.optimizer_initialized = True

    def install_monitor(self, mon: Any) -> None:
        """Let a monitor watch the arrays."""
        mon.install(self._bound)

    def borrow_optimizer(self, shared_module: SymbolModule) -> None:
        """Have the optimizer of another module, and what it keeps of each parameter."""
        self._updater, self._places = shared_module._updater, shared_module._places
        self.optimizer_initialized = True

    def update(self) -> None:
        """Change the parameters by the gradients of the last backward."""
        if not self.optimizer_initialized:
            raise AssertionError("call init_optimizer before update")
        executor = self._bound
        for name in self._param_names:
            if name in executor.grad_dict:
                place = self._places.setdefault(name, len(self._places))
                self._updater(place, executor.grad_dict[name], executor.arg_dict[name])

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Let a metric see the outputs of the last forward."""
        _ = pre_sliced
        names = [each.name for each in self.label_shapes] or self.label_names
        found = dict(zip(names, labels or (), strict=False))
        eval_metric.update_dict(found, dict(zip(self.output_names, self.get_outputs(), strict=True)))


Module = SymbolModule  # its name in MXNet
