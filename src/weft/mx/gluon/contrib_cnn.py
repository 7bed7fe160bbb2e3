"""Convolutions whose windows are bent by what they see: `gluon.contrib.cnn`."""

from __future__ import annotations

from typing import Any

from weft.mx.gluon.block import HybridBlock
from weft.mx.gluon.nn import Activation
from weft.mx.gluon.parameter import shown_size

__all__ = ["DeformableConvolution", "ModulatedDeformableConvolution"]


def _pair(given: Any) -> tuple[int, int]:
    return (given, given) if isinstance(given, int) else tuple(given)


class DeformableConvolution(HybridBlock):
    """A convolution, and one that computes where the elements of its windows are looked for."""

    kind = "deformable_conv"
    facts = 2  # of each element of a window: how far down, and how far to the right

    def __init__(
        self,
        channels: int,
        kernel_size: Any = 1,
        strides: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        num_deformable_group: int = 1,
        layout: str = "NCHW",
        use_bias: bool = True,
        in_channels: int = 0,
        activation: str | None = None,
        weight_initializer: Any = None,
        bias_initializer: Any = "zeros",
        offset_weight_initializer: Any = "zeros",
        offset_bias_initializer: Any = "zeros",
        offset_use_bias: bool = True,
        op_name: str | None = None,
        adj: Any = None,
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        super().__init__(prefix, params)
        _ = op_name, adj
        if layout != "NCHW":
            raise AssertionError("Only supports the layout 'NCHW'")
        kernel = _pair(kernel_size)
        shared = {
            "kernel": kernel, "stride": _pair(strides), "dilate": _pair(dilation), "pad": _pair(padding),
            "num_group": groups, "layout": layout,
        }  # fmt: skip
        self._count = num_deformable_group * kernel[0] * kernel[1]
        self._offset_given = {**shared, "num_filter": self.facts * self._count, "no_bias": not offset_use_bias}
        self._given: dict[str, Any] = {
            **shared, "num_filter": channels, "num_deformable_group": num_deformable_group, "no_bias": not use_bias,
        }  # fmt: skip
        width = in_channels // groups
        with self.name_scope():
            parts = (
                ("offset", self.facts * self._count, width, offset_weight_initializer, offset_bias_initializer),
                ("deformable_conv", channels, 0, weight_initializer, bias_initializer),
            )
            for part, has_bias in zip(parts, (offset_use_bias, use_bias), strict=True):
                name, rows, columns, init, bias_init = part
                shape = (rows, columns, *kernel)
                weight = self.params.get(f"{name}_weight", shape=shape, init=init, allow_deferred_init=True)
                setattr(self, f"{name}_weight", weight)
                bias = None
                if has_bias:
                    bias = self.params.get(f"{name}_bias", shape=(rows,), init=bias_init, allow_deferred_init=True)
                setattr(self, f"{name}_bias", bias)
            self.act = Activation(activation, prefix=activation + "_") if activation else None

    def _alias(self) -> str:
        return self.kind

    def hybrid_forward(
        self,
        F: Any,
        x: Any,
        offset_weight: Any,
        deformable_conv_weight: Any,
        offset_bias: Any = None,
        deformable_conv_bias: Any = None,
    ) -> Any:
        """Compute it."""
        places = (x, offset_weight) if offset_bias is None else (x, offset_weight, offset_bias)
        bent = self._places(F, F.Convolution(*places, cudnn_off=True, **self._offset_given))
        weights = {"weight": deformable_conv_weight}
        if deformable_conv_bias is not None:
            weights["bias"] = deformable_conv_bias
        function = getattr(F.contrib, type(self).__name__)
        out = function(data=x, **bent, **weights, name="fwd", **self._given)
        return out if self.act is None else self.act(out)

    def _places(self, F: Any, found: Any) -> dict[str, Any]:  # noqa: ARG002
        return {"offset": found}

    def __repr__(self) -> str:
        given, shape = self._given, self.deformable_conv_weight.shape  # type: ignore[attr-defined]
        text = f"{type(self).__name__}({shown_size(shape[1])} -> {shape[0]}, kernel_size={given['kernel']}"
        text += f", stride={given['stride']}"
        text += f", padding={given['pad']}" if given["pad"] != (0, 0) else ""
        text += f", dilation={given['dilate']}" if given["dilate"] != (1, 1) else ""
        text += f", groups={given['num_group']}" if given["num_group"] != 1 else ""
        text += ", bias=False" if given["no_bias"] else ""
        return text + (f", {self.act}" if self.act else "") + ")"


class ModulatedDeformableConvolution(DeformableConvolution):
    """A deformable convolution that computes how much each element of its windows counts, too."""

    kind = "modulated_deformable_conv"
    facts = 3

    def _places(self, F: Any, found: Any) -> dict[str, Any]:
        border = 2 * self._count
        mask = F.sigmoid(F.slice_axis(found, axis=1, begin=border, end=None)) * 2
        return {"offset": F.slice_axis(found, axis=1, begin=0, end=border), "mask": mask}
