"""The layers of Gluon: `gluon.nn`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.mx.arrays import nd
from weft.mx.gluon.block import Block, HybridBlock, SymbolBlock, shown_block
from weft.mx.gluon.parameter import shown_size
from weft.mx.symbols import sym

__all__ = ["Block", "HybridBlock", "SymbolBlock"]


class _Chain:
    """What chains of blocks share: they are indexed by their places."""

    if TYPE_CHECKING:
        _children: Any

    def add(self, *blocks: Block) -> None:
        """Put blocks at the end."""
        for block in blocks:
            self.register_child(block)  # type: ignore[attr-defined]

    def __getitem__(self, key: Any) -> Any:
        layers = list(self._children.values())[key]
        if isinstance(layers, list):
            made = type(self)(prefix=self._prefix)  # type: ignore[call-arg, attr-defined]
            made.add(*layers)
            return made
        return layers

    def __repr__(self) -> str:
        return shown_block(self, self._children)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._children)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._children.values())


class Sequential(_Chain, Block):
    """Blocks one after the other."""

    def forward(self, x: Any) -> Any:
        """Run them."""
        for block in self._children.values():
            x = block(x)
        return x


class HybridSequential(_Chain, HybridBlock):
    """Hybrid blocks one after the other."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: ARG002
        """Run them."""
        for block in self._children.values():
            x = block(x)
        return x


class Activation(HybridBlock):
    """Bend each element."""

    def __init__(self, activation: str, **given: Any) -> None:
        self._act_type = activation
        super().__init__(**given)

    def _alias(self) -> str:
        return self._act_type

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Compute it."""
        return F.Activation(x, act_type=self._act_type, name="fwd")

    def __repr__(self) -> str:
        return f"Activation({self._act_type})"


def _activation(name: str | None) -> Activation | None:
    return None if name is None else Activation(name, prefix=name + "_")


class Dense(HybridBlock):
    """A layer of which every output depends on every input."""

    def __init__(
        self,
        units: int,
        activation: str | None = None,
        use_bias: bool = True,
        flatten: bool = True,
        dtype: Any = "float32",
        weight_initializer: Any = None,
        bias_initializer: Any = "zeros",
        in_units: int = 0,
        **given: Any,
    ) -> None:
        super().__init__(**given)
        self._units, self._flatten = units, flatten
        with self.name_scope():
            self.weight = self.params.get(
                "weight", shape=(units, in_units), init=weight_initializer, dtype=dtype, allow_deferred_init=True
            )
            self.bias = None
            if use_bias:
                self.bias = self.params.get(
                    "bias", shape=(units,), init=bias_initializer, dtype=dtype, allow_deferred_init=True
                )
            self.act = _activation(activation)

    def hybrid_forward(self, F: Any, x: Any, weight: Any, bias: Any = None) -> Any:
        """Compute it."""
        out = F.FullyConnected(
            x, weight, bias, no_bias=bias is None, num_hidden=self._units, flatten=self._flatten, name="fwd"
        )
        return out if self.act is None else self.act(out)

    def __repr__(self) -> str:
        units, width = self.weight.shape or (0, 0)
        return f"Dense({shown_size(width)} -> {units}, {self.act or 'linear'})"


class Dropout(HybridBlock):
    """While training, 0 in the place of a share of the elements."""

    def __init__(self, rate: float, axes: Any = (), **given: Any) -> None:
        super().__init__(**given)
        self._rate, self._axes = rate, axes

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Compute it."""
        return F.Dropout(x, p=self._rate, axes=self._axes, name="fwd") if self._rate > 0 else F.identity(x)

    def __repr__(self) -> str:
        return f"Dropout(p = {self._rate}, axes={self._axes})"


def _norm_parameters(block: HybridBlock, width: int, inits: tuple[Any, Any], learned: tuple[bool, bool]) -> None:
    for name, init, learns in zip(("gamma", "beta"), inits, learned, strict=True):
        request = "write" if learns else "null"
        made = block.params.get(
            name, grad_req=request, shape=(width,), init=init, allow_deferred_init=True, differentiable=learns
        )
        setattr(block, name, made)


class BatchNorm(HybridBlock):
    """Bring each channel to mean 0 and variance 1."""

    gamma: Any

    def __init__(
        self,
        axis: int = 1,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        use_global_stats: bool = False,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        running_mean_initializer: Any = "zeros",
        running_variance_initializer: Any = "ones",
        in_channels: int = 0,
        **given: Any,
    ) -> None:
        super().__init__(**given)
        self._given: dict[str, Any] = {
            "axis": axis, "eps": epsilon, "momentum": momentum,
            "fix_gamma": not scale, "use_global_stats": use_global_stats,
        }  # fmt: skip
        _norm_parameters(self, in_channels, (gamma_initializer, beta_initializer), (scale, center))
        for name, init in (("running_mean", running_mean_initializer), ("running_var", running_variance_initializer)):
            made = self.params.get(
                name, grad_req="null", shape=(in_channels,), init=init, allow_deferred_init=True, differentiable=False
            )
            setattr(self, name, made)

    def cast(self, dtype: Any) -> None:
        """Change the element type; that of figures of a batch stays float32 where elements are float16."""
        super().cast("float32" if np.dtype(dtype).name == "float16" else dtype)

    def hybrid_forward(self, F: Any, x: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any) -> Any:
        """Compute it."""
        return F.BatchNorm(x, gamma, beta, running_mean, running_var, name="fwd", **self._given)

    def __repr__(self) -> str:
        content = ", ".join(f"{key}={value}" for key, value in self._given.items())
        return f"{type(self).__name__}({content}, in_channels={shown_size(self.gamma.shape[0])})"


class _Norm(HybridBlock):
    """What norms without moving averages share."""

    gamma: Any

    def __init__(
        self,
        axis: int = -1,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        in_channels: int = 0,
        **given: Any,
    ) -> None:
        super().__init__(**given)
        self._given: dict[str, Any] = {"eps": epsilon, "axis": axis, "center": center, "scale": scale}
        _norm_parameters(self, in_channels, (gamma_initializer, beta_initializer), (scale, center))

    def __repr__(self) -> str:
        content = ", ".join(f"{key}={value}" for key, value in self._given.items())
        return f"{type(self).__name__}({content}, in_channels={shown_size(self.gamma.shape[0]) or 0})"


class LayerNorm(_Norm):
    """Bring each line along an axis to mean 0 and variance 1."""

    def hybrid_forward(self, F: Any, x: Any, gamma: Any, beta: Any) -> Any:
        """Compute it."""
        return F.LayerNorm(x, gamma=gamma, beta=beta, axis=self._given["axis"], eps=self._given["eps"])


class InstanceNorm(_Norm):
    """Bring each channel of each example to mean 0 and variance 1."""

    def __init__(
        self, axis: int = 1, epsilon: float = 1e-5, center: bool = True, scale: bool = False, **given: Any
    ) -> None:
        super().__init__(axis, epsilon, center, scale, **given)

    def hybrid_forward(self, F: Any, x: Any, gamma: Any, beta: Any) -> Any:
        """Compute it."""
        axis, eps = self._given["axis"], self._given["eps"]
        if axis == 1:
            return F.InstanceNorm(x, gamma, beta, name="fwd", eps=eps)
        return F.InstanceNorm(x.swapaxes(1, axis), gamma, beta, name="fwd", eps=eps).swapaxes(1, axis)


class BatchNormReLU(BatchNorm):
    """Batch norm, then relu."""

    def hybrid_forward(self, F: Any, x: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any) -> Any:
        """Compute it."""
        return F.contrib.BatchNormWithReLU(x, gamma, beta, running_mean, running_var, name="fwd", **self._given)


class GroupNorm(HybridBlock):
    """Bring each group of channels of each example to mean 0 and variance 1."""

    def __init__(
        self,
        num_groups: int = 1,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        **given: Any,
    ) -> None:
        super().__init__(**given)
        self._num_groups, self._epsilon = num_groups, epsilon
        self._shown = {"eps": epsilon, "num_groups": num_groups, "center": center, "scale": scale}
        _norm_parameters(self, num_groups, (gamma_initializer, beta_initializer), (scale, center))

    def hybrid_forward(self, F: Any, x: Any, gamma: Any, beta: Any) -> Any:
        """Compute it."""
        return F.GroupNorm(x, gamma=gamma, beta=beta, num_groups=self._num_groups, eps=self._epsilon)

    def __repr__(self) -> str:
        return f"GroupNorm({', '.join(f'{key}={value}' for key, value in self._shown.items())})"


class Embedding(HybridBlock):
    """Rows of a table."""

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        dtype: Any = "float32",
        weight_initializer: Any = None,
        sparse_grad: bool = False,
        **given: Any,
    ) -> None:
        super().__init__(**given)
        self._given = {"input_dim": input_dim, "output_dim": output_dim, "dtype": dtype, "sparse_grad": sparse_grad}
        self.weight = self.params.get(
            "weight", shape=(input_dim, output_dim), init=weight_initializer, dtype=dtype, allow_deferred_init=True,
            grad_stype="row_sparse" if sparse_grad else "default",
        )  # fmt: skip

    def hybrid_forward(self, F: Any, x: Any, weight: Any) -> Any:
        """Compute it."""
        return F.Embedding(x, weight, name="fwd", **self._given)

    def __repr__(self) -> str:
        return f"Embedding({self._given['input_dim']} -> {self._given['output_dim']}, {self._given['dtype']})"


class Flatten(HybridBlock):
    """Keep the first axis, and make one of the others."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Compute it."""
        return F.Flatten(x)

    def __repr__(self) -> str:
        return "Flatten"


class Lambda(Block):
    """A function, or one of `nd` by its name, as a block."""

    def __init__(self, function: str | Callable[..., Any], prefix: str | None = None) -> None:
        super().__init__(prefix)
        if isinstance(function, str) and not hasattr(nd, function):
            raise AssertionError(f"Function name {function} is not found in ndarray.")
        if not isinstance(function, str) and not callable(function):
            raise ValueError(f"Unrecognized function in lambda: {function} of type {type(function)}")  # noqa: TRY004  # MXNet's
        self._function: Any = getattr(nd, function) if isinstance(function, str) else function

    def forward(self, *args: Any) -> Any:
        """Call it."""
        return self._function(*args)

    def __repr__(self) -> str:
        return f"Lambda({self._function.__name__})"


class HybridLambda(HybridBlock):
    """A function of F, or one of `nd` and `sym` by its name, as a block."""

    def __init__(self, function: str | Callable[..., Any], prefix: str | None = None) -> None:
        super().__init__(prefix)
        self._function = function
        if isinstance(function, str):
            _ = getattr(nd, function), getattr(sym, function)

    def hybrid_forward(self, F: Any, x: Any, *args: Any) -> Any:
        """Call it."""
        return getattr(F, self._function)(x, *args) if isinstance(self._function, str) else self._function(F, x, *args)

    def __repr__(self) -> str:
        return f"HybridLambda({self._function if isinstance(self._function, str) else self._function.__name__})"


class LeakyReLU(HybridBlock):
    """Flatten what is negative."""

    def __init__(self, alpha: float, **given: Any) -> None:
        super().__init__(**given)
        self._alpha = alpha

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Compute it."""
        return F.LeakyReLU(x, act_type="leaky", slope=self._alpha, name="fwd")

    def __repr__(self) -> str:
        return f"LeakyReLU({self._alpha})"


class PReLU(HybridBlock):
    """Flatten what is negative, by slopes that are learned."""

    def __init__(self, alpha_initializer: Any = 0.25, in_channels: int = 1, **given: Any) -> None:
        super().__init__(**given)
        from_number = isinstance(alpha_initializer, (int, float))
        self._start = alpha_initializer
        with self.name_scope():
            init = _Constant(alpha_initializer) if from_number else alpha_initializer
            self.alpha = self.params.get("alpha", shape=(in_channels,), init=init)

    def hybrid_forward(self, F: Any, x: Any, alpha: Any) -> Any:
        """Compute it."""
        return F.LeakyReLU(x, gamma=alpha, act_type="prelu", name="fwd")


class ELU(HybridBlock):
    """Bend what is negative towards a bound."""

    def __init__(self, alpha: float = 1.0, **given: Any) -> None:
        super().__init__(**given)
        self._alpha = alpha

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Compute it."""
        return F.LeakyReLU(x, act_type="elu", slope=self._alpha)


class SELU(HybridBlock):
    """An ELU that keeps mean and variance."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Compute it."""
        return F.LeakyReLU(x, act_type="selu", name="fwd")


class GELU(HybridBlock):
    """Each element times the probability that a normal number is below it."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Compute it."""
        return F.LeakyReLU(x, act_type="gelu", name="fwd")


class Swish(HybridBlock):
    """Each element times its sigmoid."""

    def __init__(self, beta: float = 1.0, **given: Any) -> None:
        super().__init__(**given)
        self._beta = beta

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Compute it."""
        return x * F.sigmoid(self._beta * x, name="fwd")


def _tuple(given: Any, count: int) -> tuple[int, ...]:
    return (given,) * count if isinstance(given, int) else tuple(given)


class _Conv(HybridBlock):
    """What convolutions and their transposes share."""

    dims = 0
    transposed = False

    def _alias(self) -> str:
        return "conv"

    def __init__(
        self,
        channels: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: Any = 0,
        *places: Any,
        **given: Any,
    ) -> None:
        names = [*(["output_padding"] if self.transposed else []), *CONV_OPTIONS]
        options = {**dict(zip(names, places, strict=False)), **given}
        own = {name: options.pop(name, default) for name, default in CONV_OPTIONS.items()}
        adjust = options.pop("output_padding", 0)
        super().__init__(**options)
        count, layout = self.dims, own["layout"] or LAYOUTS[self.dims]
        kernel = _tuple(kernel_size, count)
        if len(kernel) != count:
            raise AssertionError(f"kernel_size must be a number or a list of {count} ints")
        self._channels, self._in_channels = channels, own["in_channels"]
        self._given: dict[str, Any] = {
            "kernel": kernel, "stride": _tuple(strides, count), "dilate": _tuple(own["dilation"], count),
            "pad": _tuple(padding, count), "num_filter": channels, "num_group": own["groups"],
            "no_bias": not own["use_bias"], "layout": layout,
        }  # fmt: skip
        if self.transposed:
            self._given["adj"] = _tuple(adjust, count)
        width, groups = own["in_channels"], own["groups"]
        if self.transposed:
            shape = (width, channels // groups, *kernel)
        else:
            shape = (
                (channels, *kernel, width // groups) if layout.endswith("C") else (channels, width // groups, *kernel)
            )
        with self.name_scope():
            self.weight = self.params.get(
                "weight", shape=shape, init=own["weight_initializer"], allow_deferred_init=True
            )
            self.bias = None
            if own["use_bias"]:
                self.bias = self.params.get(
                    "bias", shape=(channels,), init=own["bias_initializer"], allow_deferred_init=True
                )
            self.act = _activation(own["activation"])

    def hybrid_forward(self, F: Any, x: Any, weight: Any, bias: Any = None) -> Any:
        """Compute it."""
        function = F.Deconvolution if self.transposed else F.Convolution
        arrays = (x, weight) if bias is None else (x, weight, bias)
        out = function(*arrays, name="fwd", **self._given)
        return out if self.act is None else self.act(out)

    def __repr__(self) -> str:
        shape = self.weight.shape or (0, 0)  # of what is transposed, MXNet shows the two channels the other way round
        given = self._given
        text = f"{type(self).__name__}({shown_size(shape[1])} -> {shown_size(shape[0])}, kernel_size={given['kernel']}"
        text += f", stride={given['stride']}"
        count = self.dims
        text += f", padding={given['pad']}" if given["pad"] != (0,) * count else ""
        text += f", dilation={given['dilate']}" if given["dilate"] != (1,) * count else ""
        text += f", groups={given['num_group']}" if given["num_group"] != 1 else ""
        text += ", bias=False" if self.bias is None else ""
        return text + (f", {self.act}" if self.act else "") + ")"


LAYOUTS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
CONV_OPTIONS: dict[str, Any] = {
    "dilation": 1, "groups": 1, "layout": None, "activation": None, "use_bias": True, "weight_initializer": None,
    "bias_initializer": "zeros", "in_channels": 0,
}  # fmt: skip


class _Pool(HybridBlock):
    """What poolings share."""

    dims = 0
    kind = "max"
    whole = False
    order = "pool_size", "strides", "padding", "layout", "ceil_mode", "count_include_pad"  # of arguments by place

    def _alias(self) -> str:
        return "pool"

    def __init__(self, *places: Any, prefix: str | None = None, params: Any = None, **given: Any) -> None:
        super().__init__(prefix, params)
        if len(places) > len(self.order):
            raise TypeError(f"{type(self).__name__} takes at most {len(self.order)} arguments by place")
        self._set(**dict(zip(self.order, places, strict=False)), **given)

    def _set(
        self,
        pool_size: Any = 2,
        strides: Any = None,
        padding: Any = 0,
        layout: str | None = None,
        ceil_mode: bool = False,
        count_include_pad: bool | None = None,
    ) -> None:
        count = self.dims
        self._given: dict[str, Any] = {
            "kernel": _tuple(1 if self.whole else pool_size, count),
            "stride": _tuple(1 if self.whole else pool_size if strides is None else strides, count),
            "pad": _tuple(padding, count), "global_pool": self.whole, "pool_type": self.kind,
            "pooling_convention": "full" if ceil_mode or self.whole else "valid", "layout": layout or LAYOUTS[count],
        }  # fmt: skip
        if count_include_pad is not None or (self.kind == "avg" and not self.whole):
            self._given["count_include_pad"] = count_include_pad is not False

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Compute it."""
        return F.Pooling(x, name="fwd", **self._given)

    def __repr__(self) -> str:
        given = self._given
        return (
            f"{type(self).__name__}(size={given['kernel']}, stride={given['stride']}, padding={given['pad']}, "
            f"ceil_mode={given['pooling_convention'] == 'full'}, global_pool={given['global_pool']}, "
            f"pool_type={given['pool_type']}, layout={given['layout']})"
        )


class _Constant:
    """Fill an array with one number."""

    def __init__(self, value: float) -> None:
        self.value = value

    def dumps(self) -> str:
        """As JSON."""
        return f'["constant", {{"value": {self.value}}}]'

    def _init_weight(self, name: str, array: Any) -> None:  # noqa: ARG002
        array[:] = self.value


if TYPE_CHECKING:  # the classes that are made in a loop

    def __getattr__(name: str) -> Any: ...


def _make(name: str, base: type, **facts: Any) -> None:
    made = type(
        name, (base,), {"__doc__": (base.__doc__ or "").replace("What", name + ":"), "__module__": __name__, **facts}
    )
    globals()[name] = made
    __all__.extend([name])  # noqa: PYI056  # the names are made in a loop


for _dims in (1, 2, 3):
    _make(f"Conv{_dims}D", _Conv, dims=_dims)
    _make(f"Conv{_dims}DTranspose", _Conv, dims=_dims, transposed=True)
    for _word, _kind in (("Max", "max"), ("Avg", "avg")):
        _order = _Pool.order[:5] if _kind == "max" else _Pool.order
        if _dims == 3 or (_dims, _kind) == (2, "avg"):  # MXNet's two orders
            _order = (*_order[:3], "ceil_mode", "layout", *_order[5:])
        _make(f"{_word}Pool{_dims}D", _Pool, dims=_dims, kind=_kind, order=_order)
        _make(f"Global{_word}Pool{_dims}D", _Pool, dims=_dims, kind=_kind, whole=True, order=("layout",))


class ReflectionPad2D(HybridBlock):
    """Surround images with what lies near their edges."""

    def __init__(self, padding: Any = 0, **given: Any) -> None:
        super().__init__(**given)
        self._padding = (0, 0, 0, 0, *(padding,) * 4) if isinstance(padding, int) else tuple(padding)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Compute it."""
        return F.pad(x, mode="reflect", pad_width=self._padding)


__all__ += [
    name
    for name, thing in list(globals().items())
    if inspect.isclass(thing) and issubclass(thing, Block) and not name.startswith("_") and name not in __all__
]
