"""Keep the parameters of blocks, on one device or several, some of sizes that the first call tells."""

from __future__ import annotations

import os
import re
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.mx.arrays.array_file import load, save
from weft.mx.arrays.ndarray import NDArray, zeros
from weft.mx.arrays.sparse import retain
from weft.mx.arrays.tape import modes
from weft.mx.base.context import Context, cpu, current_context
from weft.mx.base.element_types import type_name
from weft.mx.base.errors import MXNetError
from weft.mx.base.numpy_mode import is_np_array
from weft.mx.operators.table import Shape
from weft.mx.symbols.symbol import Symbol, var
from weft.mx.training import initializer


class DeferredInitializationError(MXNetError):
    """A parameter whose sizes are not yet known was asked for its elements."""


GENERATION = [0]  # counts how often arrays of any parameter were made anew: who keeps some compares it


def shape_is_known(shape: Sequence[int] | None) -> bool:
    """Whether all sizes are."""
    return shape is not None and all(size > 0 for size in shape)


def shown_size(size: int) -> int | None:
    """A size as blocks show it, one that is not known as well."""
    return size or (-1 if is_np_array() else None)


@dataclass(frozen=True)
class Loading:
    """How parameters are read from a file: onto which devices, and what may differ from those that are there."""

    ctx: Any = None
    allow_missing: bool = False
    ignore_extra: bool = False
    cast_dtype: bool = False
    dtype_source: str = "current"  # the element type after a cast: of the parameters, or as it was saved

    def __post_init__(self) -> None:
        if self.cast_dtype and self.dtype_source not in ("current", "saved"):
            raise AssertionError(f"dtype_source must be 'current' or 'saved', got {self.dtype_source}")


class Parameter:
    """A named array that is learned, with a copy on each of its devices."""

    def __init__(
        self,
        name: str,
        grad_req: str = "write",
        shape: Any = None,
        dtype: Any = np.float32,
        lr_mult: float = 1.0,
        wd_mult: float = 1.0,
        init: Any = None,
        allow_deferred_init: bool = False,
        differentiable: bool = True,
        stype: str = "default",
        grad_stype: str = "default",
    ) -> None:
        self.name = name
        self.lr_mult, self.wd_mult, self.init = lr_mult, wd_mult, init
        self.dtype = dtype
        self._shape = (shape,) if isinstance(shape, int) else None if shape is None else tuple(shape)
        self._differentiable = differentiable
        self._stype, self._grad_stype = stype, grad_stype
        self._allow_deferred_init = allow_deferred_init
        self._data: OrderedDict[Context, NDArray] | None = None
        self.grad_req = grad_req
        self._deferred: tuple[Any, list[Context], NDArray | None] | None = None
        self._var: Symbol | None = None

    def __repr__(self) -> str:
        shape = self.shape
        if shape is not None and is_np_array():
            shape = tuple(size or -1 for size in shape)
        return f"Parameter {self.name} (shape={shape}, dtype={self.dtype})"

    @property
    def shape(self) -> Shape | None:
        """The sizes; 0 for one that is not known."""
        return self._shape

    @shape.setter
    def shape(self, new: Shape) -> None:
        if self._shape is not None and (
            len(self._shape) != len(new)
            or any(old not in (0, size) for old, size in zip(self._shape, new, strict=True))
        ):
            raise AssertionError(f"Expected shape {new} is incompatible with given shape {self._shape}.")
        self._shape = tuple(new)

    @property
    def grad_req(self) -> str:
        """What a backward does with its gradient: write, add or null."""
        return self._grad_req

    @grad_req.setter
    def grad_req(self, request: str) -> None:
        if request not in ("write", "add", "null"):
            raise AssertionError(f"grad_req must be one of 'write', 'add', or 'null', but got '{request}'")
        self._grad_req = request if self._differentiable else "null"
        for array in self._data.values() if self._data is not None else ():
            self._attach(array) if self._grad_req != "null" else setattr(array, "variable", None)

    def _attach(self, array: NDArray) -> None:
        array.attach_grad(self._grad_req, self._grad_stype)

    def initialize(
        self, init: Any = None, ctx: Any = None, default_init: Any = None, force_reinit: bool = False
    ) -> None:
        """Make its arrays, or note what is to be done once its sizes are known."""
        if self._data is not None and not force_reinit:
            warnings.warn(
                f"Parameter '{self.name}' is already initialized, ignoring. Set force_reinit=True to re-initialize.",
                stacklevel=2,
            )
            return
        self._data = None
        GENERATION[0] += 1
        contexts = [current_context()] if ctx is None else [ctx] if isinstance(ctx, Context) else list(ctx)
        own = init if init is not None else self.init
        chosen = own if own is not None else default_init if default_init is not None else initializer.Uniform()
        self._deferred = (initializer.create(chosen), contexts, None)
        if shape_is_known(self._shape):
            self._finish_deferred_init()
        elif not self._allow_deferred_init:
            self._deferred = None
            raise ValueError(f"Cannot initialize Parameter '{self.name}' because it has invalid shape: {self._shape}.")

    def _finish_deferred_init(self) -> None:
        """Make the arrays, now that all sizes are known."""
        if self._deferred is None:
            return
        chosen, contexts, elements = self._deferred
        self._deferred = None
        if not shape_is_known(self._shape):
            raise AssertionError(
                f"Cannot initialize Parameter '{self.name}' because it has invalid shape: {self._shape}."
            )
        if elements is None:
            elements = zeros(self._shape, contexts[0], self.dtype)
            fill_weight = getattr(chosen, "_init_weight", chosen)  # whatever its name: only symbols go by that
            fill_weight(initializer.InitDesc(self.name), elements)
        self._make(elements, contexts)

    def _make(self, elements: NDArray, contexts: Iterable[Context]) -> None:
        # What is known already may be the elements themselves: each device has a copy of its own.
        self._data = OrderedDict((context, elements.copyto(context).tostype(self._stype)) for context in contexts)
        if is_np_array():
            self._data = OrderedDict((context, each.as_np_ndarray()) for context, each in self._data.items())
        GENERATION[0] += 1
        if self._grad_req != "null":
            for array in self._data.values():
                self._attach(array)

    def _get(self, ctx: Context | None) -> NDArray:
        if self._data is not None:
            if ctx is None:
                if len(self._data) == 1:
                    return next(iter(self._data.values()))
                ctx = current_context()
            found = self._data.get(ctx)
            if found is not None:
                return found
            raise RuntimeError(
                f"Parameter '{self.name}' was not initialized on context {ctx}. "
                f"It was only initialized on {list(self._data)}."
            )
        self._refuse()
        raise AssertionError("unreachable")

    def _refuse(self) -> None:
        if self._deferred is not None:
            raise DeferredInitializationError(
                f"Parameter '{self.name}' has not been initialized yet because initialization was deferred. Actual "
                "initialization happens during the first forward pass. Please pass one batch of data "
                "through the network "
                "before accessing Parameters. You can also avoid deferred initialization by specifying in_units, "
                "num_features, etc., for network layers."
            )
        raise RuntimeError(
            f"Parameter '{self.name}' has not been initialized. Note that you should initialize parameters and create "
            "Trainer with Block.collect_params() instead of Block.params because the later does not include Parameters "
            "of nested child Blocks"
        )

    def data(self, ctx: Context | None = None) -> NDArray:
        """Its array on a device."""
        if self._stype != "default":
            raise RuntimeError(
                f"Cannot return a copy of Parameter '{self.name}' on ctx {ctx} via data() because its storage type "
                f"is {self._stype}. Please use row_sparse_data() instead."
            )
        found = self._data.get(ctx) if self._data is not None and ctx is not None else None
        return self._get(ctx) if found is None else found

    def row_sparse_data(self, row_id: NDArray) -> NDArray:
        """Rows of its array on the device of their numbers; where it is recorded, all of it, which gradients reach."""
        found = self._get(row_id.context)
        return found if modes.recording else retain(found.tostype("row_sparse"), row_id)

    def list_row_sparse_data(self, row_id: NDArray) -> list[NDArray]:
        """Rows of its arrays on all its devices."""
        return [retain(each.tostype("row_sparse"), row_id) for each in self.list_data()]

    def list_data(self) -> list[NDArray]:
        """Its arrays on all its devices."""
        if self._data is None:
            self._refuse()
        assert self._data is not None
        return list(self._data.values())

    def grad(self, ctx: Context | None = None) -> NDArray:
        """Its gradient on a device."""
        if self._data is not None and self._grad_req == "null":
            raise RuntimeError(f"Cannot get gradient array for Parameter '{self.name}' because grad_req='null'")
        found = self._get(ctx).grad
        assert isinstance(found, NDArray)
        return found

    def list_grad(self) -> list[NDArray]:
        """Its gradients on all its devices."""
        return [self.grad(array.context) for array in self.list_data()]

    def list_ctx(self) -> list[Context]:
        """Its devices."""
        if self._data is None:
            if self._deferred is not None:
                return self._deferred[1]
            raise RuntimeError(f"Parameter '{self.name}' has not been initialized")
        return list(self._data)

    def zero_grad(self) -> None:
        """Let its gradients be 0."""
        for array in self._data.values() if self._data is not None else ():
            if array.grad is not None:
                array.grad[:] = 0

    def set_data(self, data: NDArray) -> None:
        """Let its elements be others, on all its devices."""
        self.shape = data.shape
        if self._data is None:
            if self._deferred is None:
                raise AssertionError(f"Parameter '{self.name}' has not been initialized")
            self._deferred = (*self._deferred[:2], data)
            return
        for array in self._data.values():
            data.copyto(array)

    def reset_ctx(self, ctx: Any) -> None:
        """Move it to other devices."""
        contexts = [ctx] if isinstance(ctx, Context) else list(ctx)
        if self._data is not None:
            self._make(self._reduce(), contexts)
        elif self._deferred is not None:
            self._deferred = (self._deferred[0], contexts, *self._deferred[2:])
        else:
            raise ValueError(f"Cannot reset context for Parameter '{self.name}' because it has not been initialized.")

    def _reduce(self) -> NDArray:
        """The mean of its arrays, on `cpu(0)`."""
        arrays = [array.copyto(cpu()) for array in self.list_data()]
        total = arrays[0]
        for array in arrays[1:]:
            total = total + array
        return total / len(arrays) if len(arrays) > 1 else total

    def cast(self, dtype: Any) -> None:
        """Change its element type."""
        self.dtype = dtype
        self._var = None
        if self._data is not None:
            contexts = list(self._data)
            self._make(next(iter(self._data.values())).astype(dtype), contexts)

    def var(self) -> Symbol:
        """The symbol that stands for it."""
        if self._var is None:
            self._var = var(
                self.name, None, self._shape, self.lr_mult, self.wd_mult, self.dtype, self.init, self._stype
            )
        return self._var

    def _load_init(self, data: NDArray, how: Loading) -> None:
        """Take elements from a file."""
        failed = f"Failed loading Parameter '{self.name}' from saved params:"
        if self._shape is not None and not (
            len(self._shape) == len(data.shape)
            and all(own in (0, size) for own, size in zip(self._shape, data.shape, strict=True))
        ):
            raise AssertionError(f"{failed} shape incompatible expected {self._shape} vs saved {data.shape}")
        if type_name(self.dtype) != type_name(data.dtype):
            if not how.cast_dtype:
                raise AssertionError(
                    f"{failed} dtype incompatible expected {self.dtype} vs saved {data.dtype}. Set cast_dtype=True to "
                    "cast the dtype of saved params."
                )
            if how.dtype_source == "saved":
                self.cast(data.dtype)
            data = data.astype(self.dtype)
        self._shape = data.shape
        known = None if self._data is None and self._deferred is None else self.list_ctx()
        contexts = [how.ctx] if isinstance(how.ctx, Context) else how.ctx
        if known is not None and contexts is not None and set(contexts) != set(known):
            raise AssertionError(
                f"Failed to load Parameter '{self.name}' on {contexts} because it was previous initialized on {known}."
            )
        if self._data is None:
            self._deferred = None
            self._make(data, known or contexts or [cpu()])
        else:
            self.set_data(data)


class ConstantParameter(Parameter):
    """A parameter that is not learned."""

    def __init__(self, name: str, value: Any) -> None:
        from_list = value if isinstance(value, NDArray) else np.asarray(value, dtype=np.float32)
        self.value = from_list
        kind = from_list.dtype if isinstance(value, NDArray) else from_list.dtype.type
        super().__init__(name, "null", from_list.shape, kind, init=initializer.Constant(from_list))

    def __repr__(self) -> str:
        return f"Constant {self.name} (shape={self.shape}, dtype={self.dtype})"


Constant = ConstantParameter  # its name in MXNet, where `init.Constant` is another


class ParameterDict:
    """Parameters by their names, which begin with a prefix."""

    def __init__(self, prefix: str = "", shared: ParameterDict | None = None) -> None:
        self._prefix = prefix
        self._params: OrderedDict[str, Parameter] = OrderedDict()
        self._shared = shared

    def __repr__(self) -> str:
        lines = "\n".join("  " + repr(parameter) for parameter in self.values())
        return f"{self._prefix + ' ' if self._prefix else ''}(\n{lines}\n)"

    def __getitem__(self, key: str) -> Parameter:
        return self._params[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def __contains__(self, key: object) -> bool:
        return key in self._params

    def __len__(self) -> int:
        return len(self._params)

    def items(self) -> Any:
        """Names and parameters."""
        return self._params.items()

    def keys(self) -> Any:
        """Names."""
        return self._params.keys()

    def values(self) -> Any:
        """Parameters."""
        return self._params.values()

    @property
    def prefix(self) -> str:
        """What all names begin with."""
        return self._prefix

    def _known(self, name: str) -> Parameter | None:
        if name in self._params:
            return self._params[name]
        if self._shared is not None and name in self._shared._params:
            self._params[name] = self._shared._params[name]
            return self._params[name]
        return None

    def get(self, name: str, **given: Any) -> Parameter:
        """The parameter of this name, made if there is none."""
        name = self._prefix + name
        found = self._known(name)
        if found is None:
            found = self._params[name] = Parameter(name, **given)
            return found
        for key, value in given.items():
            if key == "shape" and value is not None and found.shape is not None:
                sizes = (value,) if isinstance(value, int) else tuple(value)
                if len(sizes) == len(found.shape) and all(
                    0 in pair or pair[0] == pair[1] for pair in zip(sizes, found.shape, strict=True)
                ):
                    found._shape = tuple(new or old for new, old in zip(sizes, found.shape, strict=True))
                    continue
                raise AssertionError(
                    f"Cannot retrieve Parameter '{name}' because desired attribute does not match "
                    f"with stored for attribute "
                    f"'shape': desired '{sizes}' vs stored '{found.shape}'."
                )
            if value is not None and getattr(found, key, None) is None:
                setattr(found, key, value)
        return found

    def get_constant(self, name: str, value: Any = None) -> ConstantParameter:
        """The constant of this name, made if there is none."""
        name = self._prefix + name
        found = self._known(name)
        if found is None:
            if value is None:
                raise KeyError(
                    f"No constant named '{name}'. Please specify value if you want to create a new constant."
                )
            found = self._params[name] = ConstantParameter(name, value)
        assert isinstance(found, ConstantParameter)
        return found

    def update(self, other: ParameterDict) -> None:
        """Take in other parameters."""
        for name, parameter in other.items():
            if self._params.get(name, parameter) is not parameter:
                raise AssertionError(
                    f"Cannot update self with other because they have different Parameters with the same name '{name}'"
                )
            self._params[name] = parameter

    def initialize(self, init: Any = None, ctx: Any = None, verbose: bool = False, force_reinit: bool = False) -> None:
        """Initialize all parameters."""
        _ = verbose
        default = init or initializer.Uniform()
        for parameter in self.values():
            parameter.initialize(None, ctx, default, force_reinit)

    def zero_grad(self) -> None:
        """Let all gradients be 0."""
        for parameter in self.values():
            parameter.zero_grad()

    def list_ctx(self) -> list[Context]:
        """All devices that parameters are on."""
        return list({context: None for parameter in self.values() for context in parameter.list_ctx()})

    def reset_ctx(self, ctx: Any) -> None:
        """Move all parameters to other devices."""
        for parameter in self.values():
            parameter.reset_ctx(ctx)

    def setattr(self, name: str, value: Any) -> None:
        """Set an attribute of all parameters."""
        for parameter in self.values():
            setattr(parameter, name, value)

    def save(self, filename: str | os.PathLike[str], strip_prefix: str = "") -> None:
        """Write all parameters to a file."""
        for name in self:
            if not name.startswith(strip_prefix):
                raise ValueError(
                    f"Prefix '{strip_prefix}' is to be striped before saving, but Parameter's name "
                    f"'{name}' does not start with '{strip_prefix}'. this may be due to your Block shares "
                    "parameters from other Blocks or you forgot to use 'with name_scope()' when creating child blocks. "
                    "For more info on naming, please see "
                    "https://mxnet.io/api/python/docs/tutorials/packages/gluon/blocks/naming.html"
                )
        save(filename, {name[len(strip_prefix) :]: parameter._reduce() for name, parameter in self.items()})

    def load(
        self,
        filename: str | os.PathLike[str],
        ctx: Any = None,
        allow_missing: bool = False,
        ignore_extra: bool = False,
        restore_prefix: str = "",
        cast_dtype: bool = False,
        dtype_source: str = "current",
    ) -> None:
        """Read parameters from a file."""
        how = Loading(ctx, allow_missing, ignore_extra, cast_dtype, dtype_source)
        self._take(load(filename), restore_prefix, f"file: {filename}", how)

    def load_dict(
        self,
        param_dict: Mapping[str, NDArray],
        ctx: Any = None,
        allow_missing: bool = False,
        ignore_extra: bool = False,
        restore_prefix: str = "",
        filename: str | None = None,
        cast_dtype: bool = False,
        dtype_source: str = "current",
    ) -> None:
        """Have the elements of arrays by their names."""
        how = Loading(ctx, allow_missing, ignore_extra, cast_dtype, dtype_source)
        self._take(param_dict, restore_prefix, f"file: {filename}" if filename else "param_dict", how)

    def _take(self, found: Mapping[str, NDArray], restore_prefix: str, source: str, how: Loading) -> None:
        loaded = {restore_prefix + re.sub("^(arg|aux):", "", name): array for name, array in found.items()}
        advice = (
            "Please make sure source and target networks have the same prefix.For more info on naming, please see "
            "https://mxnet.io/api/python/docs/tutorials/packages/gluon/blocks/naming.html"
        )
        for name in () if how.allow_missing else self._params:
            if name not in loaded:
                raise AssertionError(
                    f"Parameter '{name[len(restore_prefix) :]}' is missing in {source}, which contains parameters: "
                    f"{brief_names(loaded)}. {advice}"
                )
        for name, array in loaded.items():
            if name in self._params:
                self._params[name]._load_init(array, how)
            elif not how.ignore_extra:
                raise AssertionError(
                    f"Parameter '{name[len(restore_prefix) :]}' loaded from {source} is not present in ParameterDict, "
                    f"choices are: {brief_names(self._params)}. Set ignore_extra to True to ignore. {advice}"
                )


def brief_names(names: Iterable[str], most: int = 7) -> str:
    """Names in quotes; of many, the first and the last."""
    listed = [f"'{name}'" for name in names]
    if len(listed) > most:
        listed = [*listed[: most // 2], "...", *listed[-most // 2 :]]
    return ", ".join(listed)
