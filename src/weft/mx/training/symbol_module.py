"""Give a symbol its parameters on one device or several, and run it forwards and backwards: `mx.mod.Module`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from weft.mx.arrays import nd
from weft.mx.arrays.ndarray import NDArray
from weft.mx.base.context import Context, current_context
from weft.mx.symbols.executor import Executor, simple_bind
from weft.mx.symbols.symbol import Symbol
from weft.mx.training.base_module import BaseModule, ModuleBinding, ParameterFilling
from weft.mx.training.data_iter import DataDesc
from weft.mx.training.initializer import InitDesc
from weft.mx.training.optimizer import Optimizer, Updater, create
from weft.mx.training.saved_models import load_checkpoint, save_checkpoint


def _described(given: Any) -> list[DataDesc]:
    return [each if isinstance(each, DataDesc) else DataDesc(*each) for each in given or ()]


class SymbolModule(BaseModule):
    """A symbol with its parameters: `bind`, `init_params` or `set_params`, then `forward`, or `fit`.

    On several devices each computes a part of a batch; gradients are added, and the first one's weights are changed.
    """

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
        super().__init__(logger)
        chosen: Any = context or current_context()
        self._contexts: list[Context] = list(chosen) if isinstance(chosen, (list, tuple)) else [chosen]
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
        self._executors: list[Executor] = []  # one on each device: the first has the parameters that are changed
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

    def _bind(self, binding: ModuleBinding) -> None:
        self._binding = binding
        self._shape(binding.data_shapes, binding.label_shapes)
        if binding.shared_module is not None:
            self._share(binding.shared_module)
        elif self.params_initialized:
            self._give(*self._params, allow_extra=True)

    def reshape(self, data_shapes: Any, label_shapes: Any = None) -> None:
        """Go over to inputs of other sizes; parameters stay."""
        if not self.binded:
            raise AssertionError("call bind before reshape")
        self._shape(data_shapes, label_shapes)

    def _shape(self, data_shapes: Any, label_shapes: Any) -> None:
        """Have executors for inputs of these sizes, of which each device gets a part; parameters stay."""
        self.data_shapes, self.label_shapes = _described(data_shapes), _described(label_shapes)
        grad_req = self._binding.grad_req
        learns = self.for_training and grad_req != "null"
        requests = {name: "null" if name in self._fixed or not learns else grad_req for name in self._param_names}
        if self.inputs_need_grad:
            requests |= dict.fromkeys(self.data_names, grad_req)
        labels = [each for each in self.label_shapes if each.name in self.label_names]
        self._check_sizes()
        inputs = [*self.data_shapes, *labels]
        types = {each.name: each.dtype for each in inputs}
        before, self._executors = self._executors, []
        for place, context in enumerate(self._contexts):
            shapes = {each.name: self._part_sizes(each, place) for each in inputs}
            executor = simple_bind(self.symbol, context, requests, types, **shapes)
            self._executors.append(executor)
            if before:
                _keep_arrays(executor, before[place], shapes)

    def _part_sizes(self, described: DataDesc, place: int) -> tuple[int, ...]:
        """The sizes of the part of an input that a device gets."""
        axis = described.get_batch_axis(described.layout)
        if len(self._contexts) == 1 or not 0 <= axis < len(described.shape):
            return tuple(described.shape)
        begin, end = parts_of_batch(described.shape[axis], len(self._contexts))[place]
        return (*described.shape[:axis], end - begin, *described.shape[axis + 1 :])

    def _parts(self, described: DataDesc, array: Any) -> list[Any]:
        """An array, or the part of it that each device gets."""
        axis = described.get_batch_axis(described.layout)
        if len(self._contexts) == 1 or not 0 <= axis < len(described.shape):
            return [array] * len(self._contexts)
        ranges = parts_of_batch(array.shape[axis], len(self._contexts))
        return [array[(*[slice(None)] * axis, slice(*each))] for each in ranges]

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
        for ours, theirs in zip(self._executors, other._executors, strict=True):
            shared = {*self._param_names, *ours.aux_dict}
            for part in ("arg_dict", "grad_dict", "aux_dict"):
                own, others = getattr(ours, part), getattr(theirs, part)
                own.update({name: others[name] for name in own if name in shared and name in others})
        self.params_initialized = other.params_initialized
        if other.optimizer_initialized:
            self.borrow_optimizer(other)

    @property
    def _first(self) -> Executor:
        if not self._executors:
            raise AssertionError("call bind before this")
        return self._executors[0]

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

    def _are_filled(self) -> None:
        warnings.warn("Parameters already initialized and force_init=False. init_params call ignored.", stacklevel=3)

    def _fill(self, filling: ParameterFilling) -> None:
        executor = self._first
        notes = self.symbol.attr_dict()
        own = {name: executor.arg_dict[name] for name in self._param_names}
        for arrays, given in ((own, filling.arg_params), (executor.aux_dict, filling.aux_params)):
            for name, array in arrays.items():
                if given is not None and name in given:
                    given[name].astype(array.dtype).copyto(array)
                elif given is not None and not filling.allow_missing:
                    raise RuntimeError(f"{name} is not presented")
                elif filling.initializer is not None:
                    filling.initializer(InitDesc(name, notes.get(name), filling.initializer), array)
        for other in self._executors[1:]:
            other.copy_params_from(own, executor.aux_dict)

    def _give(self, arg_params: Any, aux_params: Any, *, allow_extra: bool) -> None:
        for executor in self._executors:
            executor.copy_params_from(arg_params, aux_params, allow_extra_params=allow_extra)

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Copies of the parameters, and of the auxiliary states, of which each device has its own: their means."""
        if not self.binded:
            return self._params
        executor = self._first
        return (
            {name: executor.arg_dict[name].copy() for name in self._param_names},
            {name: _mean([each.aux_dict[name] for each in self._executors]) for name in executor.aux_dict},
        )

    # Runs.

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Compute the outputs of a batch, which may have another size than before."""
        if not (self.binded and self.params_initialized):
            raise AssertionError("call bind and init_params before forward")
        data = list(data_batch.data)
        labels = getattr(data_batch, "label", None) or ()  # programs make batches of their own, of data alone
        if [x.shape for x in data] != [each.shape for each in self.data_shapes]:
            self._shape(_resized(self.data_shapes, data), _resized(self.label_shapes, labels) or self.label_shapes)
        given = list(zip(self.data_shapes, data, strict=True))
        known = self.label_shapes or list(map(DataDesc, self.label_names, (x.shape for x in labels)))
        given += [pair for pair in zip(known, labels, strict=False) if pair[0].name in self.label_names]
        parts = {described.name: self._parts(described, x) for described, x in given}
        is_train = self.for_training if is_train is None else is_train
        for place, executor in enumerate(self._executors):
            executor.forward(is_train, **{name: each[place] for name, each in parts.items()})

    def backward(self, out_grads: Any = None) -> None:
        """Compute the gradients of the last forward."""
        listed = [out_grads] if isinstance(out_grads, NDArray) else out_grads
        for place, executor in enumerate(self._executors):
            if listed is None or len(self._executors) == 1:
                executor.backward(listed)
                continue
            ranges = [parts_of_batch(len(grad), len(self._executors))[place] for grad in listed]
            executor.backward([grad[begin:end].as_in_context(self._contexts[place])
                               for grad, (begin, end) in zip(listed, ranges, strict=True)])  # fmt: skip

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """The outputs of the last forward."""
        return _merged([executor.outputs for executor in self._executors], merge_multi_context)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """The gradients of the inputs."""
        if not self.inputs_need_grad:
            raise AssertionError("bind with inputs_need_grad=True before this")
        grads = [[executor.grad_dict[name] for name in self.data_names] for executor in self._executors]
        return _merged(grads, merge_multi_context)

    def _choose_optimizer(self, optimizer: Any, optimizer_params: Any) -> None:
        if not isinstance(optimizer, Optimizer):
            given = {"rescale_grad": 1.0 / self.data_shapes[0].shape[0], **dict(optimizer_params)}
            names = dict(enumerate(self._param_names))
            optimizer = create(optimizer, sym=self.symbol, param_idx2name=names, **given)
        self._updater = Updater(optimizer)
        self._places = {name: place for place, name in enumerate(self._param_names)}
        if self._states_file is not None:
            self._updater.set_states(Path(self._states_file).read_bytes())

    def install_monitor(self, mon: Any) -> None:
        """Let a monitor watch the arrays."""
        for executor in self._executors:
            mon.install(executor)

    def borrow_optimizer(self, shared_module: SymbolModule) -> None:
        """Have the optimizer of another module, and what it keeps of each parameter."""
        self._updater, self._places = shared_module._updater, shared_module._places
        self.optimizer_initialized = True

    def update(self) -> None:
        """Change the parameters by the gradients of the last backward."""
        if not self.optimizer_initialized:
            raise AssertionError("call init_optimizer before update")
        first, *others = self._executors
        for name in self._param_names:
            if name not in first.grad_dict:
                continue
            weight, grad = first.arg_dict[name], first.grad_dict[name]
            for other in others:
                grad = grad + other.grad_dict[name].as_in_context(weight.context)
            self._updater(self._places.setdefault(name, len(self._places)), grad, weight)
            for other in others:
                weight.copyto(other.arg_dict[name])

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Let a metric see the outputs of the last forward."""
        _ = pre_sliced
        names = [each.name for each in self.label_shapes] or self.label_names
        found = dict(zip(names, labels or (), strict=False))
        eval_metric.update_dict(found, dict(zip(self.output_names, self.get_outputs(), strict=True)))


def parts_of_batch(size: int, count: int) -> list[tuple[int, int]]:
    """Where the part of each device begins and ends: as equal as can be, the last one has what is left."""
    share = round(size / count)
    found = [(place * share, size if place == count - 1 else (place + 1) * share) for place in range(count)]
    if any(begin >= end for begin, end in found):
        raise ValueError("Too many slices. Some splits are empty.")
    return found


def _keep_arrays(executor: Executor, before: Executor, inputs: Collection[str]) -> None:
    """Let what is no input be the arrays that it was."""
    for ours, theirs in ((executor.arg_dict, before.arg_dict), (executor.aux_dict, before.aux_dict)):
        for name, array in theirs.items():
            if name in ours and ours[name].shape == array.shape and name not in inputs:
                ours[name] = array


def _resized(described: Sequence[DataDesc], arrays: Sequence[Any]) -> list[DataDesc]:
    return [DataDesc(old.name, x.shape, old.dtype, old.layout) for old, x in zip(described, arrays, strict=False)]


def _mean(arrays: Sequence[NDArray]) -> NDArray:
    total = arrays[0].copy()
    for other in arrays[1:]:
        total = total + other.as_in_context(total.context)
    return total if len(arrays) == 1 else total / len(arrays)


def _merged(arrays: Sequence[Sequence[NDArray]], merge: bool) -> list[Any]:
    """Arrays of each device, joined where they are to be one."""
    columns = [list(column) for column in zip(*arrays, strict=True)]
    if not merge:
        return columns
    first = [column[0].context for column in columns]
    return [
        column[0] if len(column) == 1 else nd.concatenate([each.as_in_context(context) for each in column])
        for column, context in zip(columns, first, strict=True)
    ]


Module = SymbolModule  # its name in MXNet
