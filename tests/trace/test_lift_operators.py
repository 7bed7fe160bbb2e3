"""Samples of PyTorch's operator database are lifted to programs that compute what eager computes."""

import pytest
import torch
from tests.trace.lift_sweep import sweep

NAMES = (
    *("add", "sub", "mul", "div.no_rounding_mode", "div.floor_rounding", "pow", "clamp", "where", "lerp", "addcmul"),
    *("nn.functional.gelu", "nn.functional.silu", "nn.functional.elu", "nn.functional.softplus", "sum", "mean", "amax"),
    *("max.reduction_with_dim", "argmin", "prod", "var", "std", "logsumexp", "softmax", "log_softmax", "all", "any"),
    *("linalg.vector_norm", "reshape", "permute", "expand", "slice", "cat", "stack", "split", "unbind", "roll", "flip"),
    *("nn.functional.pad.constant", "nn.functional.pad.reflect", "unfold", "diagonal", "tril", "mm", "addmm"),
    *("baddbmm", "mv", "dot", "nn.functional.conv2d", "nn.functional.conv_transpose2d", "nn.functional.max_pool2d"),
    *("nn.functional.conv1d", "nn.functional.conv_transpose1d"),
    *("nn.functional.conv3d", "nn.functional.conv_transpose3d"),
    *("nn.functional.avg_pool2d", "nn.functional.adaptive_avg_pool2d", "nn.functional.interpolate.nearest"),
    *("nn.functional.interpolate.bilinear", "nn.functional.layer_norm", "nn.functional.group_norm"),
    *("nn.functional.batch_norm", "nn.functional.nll_loss", "nn.functional.cross_entropy", "nn.functional.mse_loss"),
    *("nn.functional.huber_loss", "nn.functional.embedding", "nn.functional.embedding_bag", "gather"),
    *("topk", "scatter_reduce.amax", "scatter_reduce.mean", "scatter_reduce.prod", "index_reduce.amin"),
    *("index_select", "scatter_add", "index_add", "index_put", "take", "masked_fill"),
    *("nn.functional.scaled_dot_product_attention", "nn.functional.rms_norm", "nn.functional.pixel_shuffle"),
)
NOT_LIFTED = {
    "nn.functional.conv_transpose2d": 1,  # a padding of the output that no convolution has
    "nn.functional.conv_transpose3d": 1,  # the same
    "nn.functional.scaled_dot_product_attention": 1,  # dropout
    "index_put": 1,  # a mask for several values
}


@pytest.mark.parametrize("name", NAMES)
def test_an_operator_is_lifted(name: str) -> None:
    for entry in sweep([name], torch.float32, 3):
        assert entry.problems == []
        assert entry.lifted >= entry.traced - NOT_LIFTED.get(name, 0)


@pytest.mark.parametrize("name", NAMES)
def test_an_operator_in_half_precision_is_as_exact_as_eager(name: str) -> None:
    for entry in sweep([name], torch.bfloat16, 2):
        assert entry.problems == []


@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_is_lifted(name: str) -> None:
    for entry in sweep([name], torch.float64, 2, backward=True):
        assert entry.problems == []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_integers_and_truth_values_agree_exactly(dtype: torch.dtype) -> None:
    for entry in sweep(list(NAMES), dtype, 2):
        assert entry.problems == []
