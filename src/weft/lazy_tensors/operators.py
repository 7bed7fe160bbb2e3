"""List the functions of PyTorch whose calls may be queued, and what is known of each without running it.

A function may be queued if the metadata of its tensors and its other arguments decide the metadata of its results, and
it changes nothing but its arguments. What is not listed runs at once, when all that was queued is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional


def words(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


def getter(name: str) -> Callable[..., Any]:
    """The function that reads a property of a tensor, as PyTorch hands it to who intercepts it."""
    found: Callable[..., Any] = getattr(torch.Tensor, name).__get__
    return found


def setter(name: str) -> Callable[..., Any]:
    """The function that sets a property of a tensor."""
    found: Callable[..., Any] = getattr(torch.Tensor, name).__set__
    return found


POINTWISE = words("""
    abs absolute acos acosh add addcdiv addcmul angle asin asinh atan atan2 atanh arccos arcsin arctan bitwise_and
    bitwise_not bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift ceil clamp clamp_max clamp_min clip
    copysign cos cosh deg2rad digamma div divide eq erf erfc erfinv exp exp2 expm1 fix float_power floor floor_divide
    fmax fmin fmod frac ge greater greater_equal gt heaviside hypot isclose isfinite isinf isnan isneginf isposinf
    isreal ldexp le lerp less less_equal lgamma log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not
    logical_or logical_xor logit lt masked_fill maximum minimum mul multiply mvlgamma nan_to_num ne neg negative
    nextafter not_equal polygamma positive pow rad2deg real reciprocal relu remainder round rsqrt rsub sgn sigmoid sign
    signbit sin sinc sinh sqrt square sub subtract tan tanh true_divide trunc xlogy where
""")
REDUCING = words("""
    all amax amin aminmax any argmax argmin argsort count_nonzero cummax cummin cumprod cumsum diff dist dot inner
    kthvalue logcumsumexp logsumexp max mean median min mode nanmean nansum norm prod quantile softmax log_softmax sort
    std std_mean sum topk trace var var_mean vdot msort cross
""")
PRODUCTS = words("""
    addbmm addmm addmv addr baddbmm bmm chain_matmul einsum ger kron matmul mm mv outer tensordot linear bilinear
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution
    scaled_dot_product_attention multi_head_attention_forward cdist
""")
SHAPING = words("""
    atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to cat chunk clone concat concatenate contiguous
    column_stack detach diag diag_embed diagonal dsplit dstack expand expand_as fill fill_diagonal flatten flip fliplr
    flipud gather hsplit hstack index_add index_copy index_fill index_select masked_scatter meshgrid moveaxis movedim
    narrow permute pixel_shuffle pixel_unshuffle ravel repeat reshape reshape_as roll rot90 row_stack scatter
    scatter_add scatter_reduce select select_scatter slice_scatter split squeeze stack swapaxes swapdims t
    take take_along_dim tile transpose tril triu type_as unbind unflatten unfold unsqueeze view view_as
    view_as_complex view_as_real vsplit vstack zero to type float double half bfloat16 int long short bool byte char
    copy zeros_like ones_like full_like new_zeros new_ones new_full adjoint pad constant_pad_nd
""")
NETWORKS = words("""
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    avg_pool1d avg_pool2d avg_pool3d batch_norm binary_cross_entropy binary_cross_entropy_with_logits celu
    cosine_embedding_loss cosine_similarity cross_entropy elu embedding gaussian_nll_loss gelu glu group_norm
    hardshrink hardsigmoid hardswish hardtanh hinge_embedding_loss huber_loss instance_norm interpolate kl_div l1_loss
    layer_norm leaky_relu local_response_norm logsigmoid lp_pool1d lp_pool2d margin_ranking_loss max_pool1d max_pool2d
    max_pool3d mish mse_loss multi_margin_loss multilabel_margin_loss nll_loss normalize pairwise_distance
    poisson_nll_loss prelu relu6 rms_norm selu silu smooth_l1_loss soft_margin_loss softmin softplus softshrink
    softsign tanhshrink threshold triplet_margin_loss upsample
    lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
""")
OPERATORS = words("""
    add radd iadd sub rsub isub mul rmul imul truediv rtruediv itruediv div rdiv idiv floordiv rfloordiv mod rmod
    pow rpow ipow matmul rmatmul neg pos abs eq ne lt le gt ge and rand iand or ror ior xor rxor ixor invert
    getitem setitem
""")
LINEAR = words("cross diagonal matmul matrix_norm multi_dot norm vecdot vector_norm")
FOREACH = [name for name in dir(torch) if name.startswith("_foreach_")]  # what optimizers and clipping call on lists
PROPERTIES = words("T mT H mH real imag data")
NAMES = frozenset((*POINTWISE, *REDUCING, *PRODUCTS, *SHAPING, *NETWORKS))
# Where a number is only multiplied with, added or compared, another number gives results of the same metadata.
ARITHMETIC_OPERATORS = frozenset(f"__{name}__" for name in OPERATORS if name not in ("getitem", "setitem"))
WITH_NUMBERS = frozenset((*POINTWISE, *ARITHMETIC_OPERATORS, "fill", "addmm"))
# Homes whose arithmetic is counted when deciding how much work a recording holds.
PRODUCT_NAMES = frozenset((*PRODUCTS, "__matmul__", "__rmatmul__"))
SPACES: tuple[Any, ...] = (torch, torch.Tensor, functional, torch.special)


def _functions(names: frozenset[str]) -> Iterator[Callable[..., Any]]:
    for name in names:
        dunder = name.startswith("__")
        for space in SPACES[1:2] if dunder else SPACES:
            for full in (name,) if dunder else (name, name + "_"):
                found = getattr(space, full, None)
                if callable(found):
                    yield found


def _property_gets() -> Iterator[Callable[..., Any]]:
    for name in PROPERTIES:
        yield getter(name)


QUEUED: frozenset[Callable[..., Any]] = frozenset(
    (
        *_functions(NAMES | {f"__{name}__" for name in OPERATORS}),
        *_property_gets(),
        *(getattr(torch.linalg, name) for name in LINEAR),
        *(getattr(torch, name) for name in FOREACH),
    )
)
# Of these, the ones that write nothing, unless into an `out`.
_PURE_NAMES = frozenset((*POINTWISE, *REDUCING, *PRODUCTS, *SHAPING))
_PURE_OPERATORS = (f"__{name}__" for name in OPERATORS if name != "setitem" and not name.startswith("i"))
_PURE: frozenset[Callable[..., Any]] = frozenset(
    (
        *(getattr(space, name) for space in SPACES[:2] for name in _PURE_NAMES if hasattr(space, name)),
        *(getattr(functional, name) for name in PRODUCTS if hasattr(functional, name)),
        *(getattr(torch.Tensor, name) for name in _PURE_OPERATORS),
        *_property_gets(),
    )
)
NUMBERS_FREE: frozenset[Callable[..., Any]] = frozenset(_functions(WITH_NUMBERS))
ARITHMETIC: frozenset[Callable[..., Any]] = frozenset(_functions(PRODUCT_NAMES))
INDEXING: frozenset[Callable[..., Any]] = frozenset((torch.Tensor.__getitem__, torch.Tensor.__setitem__))
# They leave nothing of what was in their first tensor.
OVERWRITING: frozenset[Callable[..., Any]] = frozenset(
    (torch.Tensor.copy_, torch.Tensor.fill_, torch.Tensor.zero_, torch.zero_)
)
# Boolean or byte tensors among their arguments decide how large the result is.
MASKED_SIZES = frozenset((*INDEXING, torch.where, torch.Tensor.where))
# Arguments with which a function does more, or gives gradients of another kind, than one run of it tells: their places
# and names.
MORE_WITH: dict[Callable[..., Any], tuple[tuple[int, str], ...]] = {
    functional.embedding: ((3, "max_norm"), (6, "sparse")),
    torch.gather: ((3, "sparse_grad"),),
    torch.Tensor.gather: ((3, "sparse_grad"),),
}


def does_more(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call comes with such an argument."""
    return any(args[place] if place < len(args) else kwargs.get(name) for place, name in MORE_WITH.get(function, ()))


def without_writes(function: Callable[..., Any], kwargs: Any) -> bool:
    """Whether a call surely writes none of its tensors."""
    return function in _PURE and "out" not in kwargs


# Questions that need no elements, with the field of the metadata that answers them; "" asks the placeholder itself.
METADATA_QUERIES: dict[Callable[..., Any], str] = {
    getter("shape"): "shape",
    getter("dtype"): "dtype",
    getter("requires_grad"): "requires_grad",
    getter("is_leaf"): "leaf",
    **dict.fromkeys(
        (
            *(
                getter(name)
                for name in (
                    "device", "ndim", "layout", "is_cuda", "is_cpu", "is_sparse", "is_sparse_csr", "is_mkldnn",
                    "is_quantized", "is_meta", "is_nested", "is_mps", "is_xpu", "is_vulkan", "is_ipu", "is_maia",
                    "is_xla", "is_mtia", "itemsize", "nbytes", "names", "_is_view",
                )
                if hasattr(torch.Tensor, name) and hasattr(getattr(torch.Tensor, name), "__get__")
                and not callable(getattr(torch.Tensor, name))
            ),
            torch.Tensor.size, torch.Tensor.dim, torch.Tensor.ndimension, torch.Tensor.numel, torch.Tensor.nelement,
            torch.Tensor.stride, torch.Tensor.is_contiguous, torch.Tensor.__len__, torch.Tensor.element_size,
            torch.Tensor.is_floating_point, torch.Tensor.is_complex, torch.Tensor.is_signed, torch.Tensor.get_device,
            torch.is_floating_point, torch.is_complex, torch.is_tensor, torch.numel, torch.is_signed,
        ),
        "",
    ),
}  # fmt: skip
# Functions that only read what they are given, though what they give depends on elements.
READING: frozenset[Callable[..., Any]] = frozenset(
    (
        torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__bool__, torch.Tensor.__float__, torch.Tensor.__int__,
        torch.Tensor.__index__, torch.Tensor.__complex__, torch.Tensor.__repr__, torch.Tensor.__format__,
        torch.Tensor.__contains__, torch.equal, torch.Tensor.equal, torch.allclose, torch.Tensor.allclose,
        torch.Tensor.cpu, torch.Tensor.__deepcopy__, torch.Tensor.__reduce_ex__, torch.nonzero, torch.Tensor.nonzero,
        torch.masked_select, torch.Tensor.masked_select, torch.unique, torch.Tensor.unique, torch.bincount,
        torch.Tensor.bincount, getter("grad_fn"), torch.tensor, torch.as_tensor, torch.histc,
    )
)  # fmt: skip
# Functions after which code that PyTorch knows nothing of may read and write the memory.
EXPORTING: frozenset[Callable[..., Any]] = frozenset(
    (
        torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.data_ptr, torch.Tensor.untyped_storage,
        torch.Tensor.storage, torch.Tensor.__dlpack__, torch.Tensor.share_memory_, torch.Tensor.__dlpack_device__,
    )
)  # fmt: skip
