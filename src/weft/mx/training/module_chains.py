"""Train modules one after the other, and modules that are Python code: `mx.mod.SequentialModule`, `PythonModule`."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from weft.mx.arrays import nd
from weft.mx.arrays.ndarray import NDArray
from weft.mx.training.base_module import BaseModule, ModuleBinding, ParameterFilling

__all__ = ["PythonLossModule", "PythonModule", "SequentialModule"]


class SequentialModule(BaseModule):
    """Modules of which each takes the outputs of the one before."""

    META_TAKE_LABELS: ClassVar[str] = "take_labels"  # a module that is given the labels
    META_AUTO_WIRING: ClassVar[str] = "auto_wiring"  # one whose data have other names than the outputs before it
    symbol = None

    def __init__(self, logger: Any = logging) -> None:
        super().__init__(logger)
        self._parts: list[tuple[Any, dict[str, Any]]] = []
        self.label_shapes: Any = None

    def add(self, module: Any, **kwargs: Any) -> SequentialModule:
        """Put a module at the end."""
        for key in kwargs:
            if key not in (self.META_TAKE_LABELS, self.META_AUTO_WIRING):
                raise AssertionError(f'Unknown meta "{key}", a typo?')
        self._parts.append((module, kwargs))
        self.binded = self.params_initialized = self.optimizer_initialized = False
        return self

    @property
    def _modules(self) -> list[Any]:
        return [module for module, _ in self._parts]

    @property
    def data_names(self) -> list[str]:
        """The names of the inputs."""
        return list(self._modules[0].data_names) if self._parts else []

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs."""
        return list(self._modules[-1].output_names) if self._parts else []

    @property
    def data_shapes(self) -> Any:
        """The inputs with their sizes."""
        return self._modules[0].data_shapes

    @property
    def output_shapes(self) -> Any:
        """The outputs with their sizes."""
        return self._modules[-1].output_shapes

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """The parameters of all modules, and their auxiliary states."""
        found: tuple[dict[str, NDArray], dict[str, NDArray]] = ({}, {})
        for module in self._modules:
            for all_of_them, own in zip(found, module.get_params(), strict=True):
                all_of_them.update(own)
        return found

    def _fill(self, filling: ParameterFilling) -> None:
        owners: dict[str, int] = {}
        for place, module in enumerate(self._modules):
            filling.given_to(module)
            for part in module.get_params():
                for name in part:
                    if owners.setdefault(name, place) != place:
                        raise AssertionError(
                            f'Duplicated parameter names: name "{name}" in layer {place} ({type(module)}) is already '
                            f"used in layer {owners[name]} ({type(self._modules[owners[name]])})."
                        )

    def _bind(self, binding: ModuleBinding) -> None:
        if binding.shared_module is not None:
            raise AssertionError("Shared module is not supported")
        if not self._parts:
            raise AssertionError("Attempting to bind an empty SequentialModule")
        shapes, labels = binding.data_shapes, binding.label_shapes
        self.label_shapes = labels if any(meta.get(self.META_TAKE_LABELS) for _, meta in self._parts) else None
        for place, (module, meta) in enumerate(self._parts):
            if meta.get(self.META_AUTO_WIRING):
                shapes = [(name, each[1]) for name, each in zip(module.data_names, shapes, strict=True)]
            own = replace(
                binding,
                data_shapes=shapes,
                label_shapes=labels if meta.get(self.META_TAKE_LABELS) else None,
                inputs_need_grad=binding.inputs_need_grad or (binding.for_training and place > 0),
            )
            module.bind(**vars(own))
            shapes = module.output_shapes

    def _choose_optimizer(self, optimizer: Any, optimizer_params: Any) -> None:
        for module in self._modules:
            module.init_optimizer(None, optimizer, optimizer_params, force_init=True)

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Compute the outputs of one module after the other."""
        batch = copy.copy(data_batch)
        for module in self._modules:
            module.forward(batch, is_train)
            batch.data = module.get_outputs()

    def backward(self, out_grads: Any = None) -> None:
        """Compute the gradients, from the last module to the first."""
        for place, module in reversed(list(enumerate(self._modules))):
            module.backward(out_grads)
            out_grads = module.get_input_grads() if place else None

    def update(self) -> None:
        """Change the parameters of all modules."""
        for module in self._modules:
            module.update()

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """The outputs of the last module."""
        found: list[Any] = self._modules[-1].get_outputs(merge_multi_context)
        return found

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """The gradients of the inputs of the first module."""
        found: list[Any] = self._modules[0].get_input_grads(merge_multi_context)
        return found

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Let a metric see the outputs of the modules that take labels."""
        for module, meta in self._parts:
            if meta.get(self.META_TAKE_LABELS):
                module.update_metric(eval_metric, labels, pre_sliced)

    def install_monitor(self, mon: Any) -> None:
        """Let a monitor watch all modules."""
        for module in self._modules:
            module.install_monitor(mon)


class PythonModule(BaseModule):
    """A module without parameters whose `forward` and `backward` are Python code."""

    symbol = None

    def __init__(
        self, data_names: Sequence[str], label_names: Sequence[str] | None, output_names: Any, logger: Any = logging
    ) -> None:
        super().__init__(logger)
        self.data_names, self.output_names = list(data_names), output_names
        self.label_names = None if label_names is None else list(label_names)
        self.data_shapes: Any = None
        self.label_shapes: Any = None
        self.output_shapes: Any = None

    def get_params(self) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """It has none."""
        return {}, {}

    def init_params(self, *_places: Any, **_given: Any) -> None:
        """Nothing is to be filled."""

    def init_optimizer(self, *_places: Any, **_given: Any) -> None:
        """Nothing is to be learned."""

    def update(self) -> None:
        """Nothing changes."""

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        """Let a metric see the outputs, if there are labels."""
        if self.label_shapes is None:
            return
        if pre_sliced:
            raise RuntimeError("PythonModule does not support presliced labels")
        eval_metric.update(labels, self.get_outputs())

    def _bind(self, binding: ModuleBinding) -> None:
        """Note the sizes."""
        if binding.grad_req != "write":
            raise AssertionError("Python module only support write gradient")
        data_shapes, label_shapes = binding.data_shapes, binding.label_shapes
        for names, shapes in ((self.data_names, data_shapes), (self.label_names, label_shapes)):
            if shapes is not None and [each[0] for each in shapes] != names:
                raise AssertionError(f"{names} are the names of this module, not {[each[0] for each in shapes]}")
        self.data_shapes, self.label_shapes = data_shapes, label_shapes
        self.output_shapes = self._compute_output_shapes()

    def _compute_output_shapes(self) -> Any:
        raise NotImplementedError


class PythonLossModule(PythonModule):
    """Scores go through; their gradients are what a function says."""

    def __init__(
        self,
        name: str = "pyloss",
        data_names: Sequence[str] = ("data",),
        label_names: Sequence[str] = ("softmax_label",),
        logger: Any = logging,
        grad_func: Callable[[NDArray, NDArray], Any] | None = None,
    ) -> None:
        super().__init__(data_names, label_names, [f"{name}_output"], logger)
        if len(data_names) != 1 or len(label_names) != 1:
            raise AssertionError("a loss has one input and one label")
        self._grad_func = grad_func
        self._scores: Any = None
        self._labels: Any = None
        self._scores_grad: Any = None

    def _compute_output_shapes(self) -> Any:
        return [(self.output_names[0], self.data_shapes[0][1])]

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Keep the scores, and the labels if they are needed."""
        self._scores = data_batch.data[0]
        if self.for_training if is_train is None else is_train:
            self._labels = data_batch.label[0]

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """The scores."""
        _ = merge_multi_context
        return [self._scores]

    def backward(self, out_grads: Any = None) -> None:
        """Compute the gradients of the scores."""
        if out_grads is not None:
            raise AssertionError("For a loss module, out_grads should be None")
        self._backward_impl()

    def _backward_impl(self) -> None:
        if self._grad_func is None:
            raise NotImplementedError
        found = self._grad_func(self._scores, self._labels)
        self._scores_grad = found if isinstance(found, NDArray) else nd.array(found)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """The gradients of the scores."""
        _ = merge_multi_context
        return [self._scores_grad]

    def install_monitor(self, mon: Any) -> None:
        """Refuse: there is no graph to watch."""
        raise NotImplementedError
