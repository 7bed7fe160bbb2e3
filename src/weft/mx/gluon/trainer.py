"""Update the parameters of a network on all its devices: `gluon.Trainer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft.mx.base.context import Context
from weft.mx.gluon.parameter import Parameter, ParameterDict
from weft.mx.training.kvstore import KVStore
from weft.mx.training.kvstore import create as create_store
from weft.mx.training.optimizer import Optimizer, create, read_states, states_content


class GluonTrainer:
    """An optimizer for some parameters; gradients of several devices are added first."""

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        kvstore: Any = "device",
        compression_params: Any = None,
        update_on_kvstore: bool | None = None,
    ) -> None:
        _ = update_on_kvstore  # where the sums and the updates are made is no difference within a process
        if compression_params:
            raise NotImplementedError("Trainer(compression_params=...) is not in weft.mx")
        by_name = isinstance(params, (dict, ParameterDict))
        found = [params[name] for name in sorted(params)] if by_name else params
        if not isinstance(found, (list, tuple)) or any(not isinstance(parameter, Parameter) for parameter in found):
            is_list = isinstance(found, (list, tuple))
            wrong = next((each for each in found if not isinstance(each, Parameter)), None) if is_list else params
            raise ValueError(
                "First argument must be a list or dict of Parameters, got "
                f"{'list of ' if is_list else ''}{type(wrong)}."
            )
        if isinstance(kvstore, str):
            kvstore = create_store(kvstore)  # an error, if there is no such store
        self._kvstore: KVStore | None = kvstore
        given = dict(optimizer_params or {})
        self._params: list[Parameter] = list(found)
        for parameter in self._params:
            parameter.list_ctx()  # an error, if one is not initialized
        if isinstance(optimizer, Optimizer) and optimizer_params:
            raise AssertionError(
                "optimizer_params must be None if optimizer is an instance of Optimizer instead of str"
            )
        self._scale = float(given.get("rescale_grad", 1.0))
        self._optimizer = create(optimizer, **given)
        self._optimizer.param_dict = dict(enumerate(self._params))
        self._states: dict[tuple[int, Context], Any] = {}

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer."""
        return self._optimizer

    @property
    def learning_rate(self) -> float:
        """The rate now."""
        return self._optimizer.learning_rate

    def set_learning_rate(self, lr: float) -> None:
        """Change the rate."""
        self._optimizer.set_learning_rate(lr)

    def step(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """Add the gradients of all devices, divide by the size of the batch, and change the parameters."""
        self._optimizer.rescale_grad = self._scale / batch_size
        self.allreduce_grads()
        self._update(ignore_stale_grad)

    def update(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """Change the parameters, whose gradients were added before."""
        self._optimizer.rescale_grad = self._scale / batch_size
        self._update(ignore_stale_grad)

    def allreduce_grads(self) -> None:
        """Let the gradient on each device be the sum of all."""
        for parameter in self._params:
            if parameter.grad_req == "null":
                continue
            grads = parameter.list_grad()
            if len(grads) > 1:
                total = grads[0]
                for other in grads[1:]:
                    total = total + other.as_in_context(grads[0].context)
                for grad in grads:
                    total.copyto(grad)

    def save_states(self, fname: str) -> None:
        """Write what the optimizer keeps between updates: waits for it."""
        devices: dict[int, Any] = {}
        for (place, _), state in self._states.items():
            devices.setdefault(place, state)  # alike on all devices
        Path(fname).write_bytes(states_content(devices, self._optimizer))

    def load_states(self, fname: str) -> None:
        """Read what an optimizer kept."""
        states = read_states(Path(fname).read_bytes(), self._optimizer)
        self._states = {}
        for place, state in states.items():
            for context in self._params[place].list_ctx():
                copies = tuple(array.copyto(context) for array in (state if isinstance(state, tuple) else (state,)))
                self._states[place, context] = copies if isinstance(state, tuple) else copies[0]

    def _update(self, ignore_stale_grad: bool) -> None:
        for place, parameter in enumerate(self._params):
            if parameter.grad_req == "null":
                continue
            for data in parameter.list_data():
                variable = data.variable
                assert variable is not None
                if not variable.fresh and not ignore_stale_grad:
                    raise UserWarning(  # MXNet raises it
                        f"Gradient of Parameter `{parameter.name}` on context {data.context} has not been updated by "
                        "backward since last `step`. This could mean a bug in your model that made "
                        "it only use a subset "
                        "of the Parameters (Blocks) for this iteration. If you are intentionally only using a subset, "
                        "call step with ignore_stale_grad=True to suppress this warning and skip "
                        "updating of Parameters "
                        "with stale gradient"
                    )
            counted = self._optimizer._counts.get(place, 0)
            for data in parameter.list_data():
                variable = data.variable
                assert variable is not None
                if ignore_stale_grad and not variable.fresh:
                    continue
                variable.fresh = False
                key = place, data.context
                if key not in self._states:
                    self._states[key] = self._optimizer.create_state_multi_precision(place, data)
                self._optimizer._counts[place] = counted  # devices of one parameter are one update
                self._optimizer.update_multi_precision(place, data, parameter.grad(data.context), self._states[key])


Trainer = GluonTrainer  # its name in MXNet
