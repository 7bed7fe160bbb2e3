"""Name calls of operators that the real MXNet and weft.mx must answer alike; imports neither, so that both can read it.

A case is an operator, its inputs and its parameters. An input is a letter, see `_drawn`, and sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

FIXTURE = "operators.npz"
Case = tuple[str, str, dict[str, object]]

UNARY = """
abs:n arccos:u arccosh:q arcsin:u arcsinh:n arctan:n arctanh:u cbrt:p ceil:n cos:n cosh:n degrees:n erf:n
erfinv:u exp:n expm1:n fix:n floor:n gamma:p gammaln:p log:p log10:p log1p:p log2:p logical_not:b negative:n
radians:n rcbrt:p reciprocal:p relu:n rint:n round:n rsqrt:p sigmoid:n sign:n sin:n sinh:n softsign:n sqrt:p
square:n tan:u tanh:n trunc:n ones_like:n zeros_like:n _copy:n BlockGrad:n make_loss:n Flatten:n shape_array:n
size_array:n softmax_activation:n
""".split()  # noqa: SIM905  # words in lines read better than a column of them
WHOLE = [
    "abs",
    "ceil",
    "floor",
    "negative",
    "relu",
    "sign",
    "square",
    "sqrt",
    "exp",
    "ones_like",
    "zeros_like",
    "round",
    "trunc",
]
BINARY = """
add:n sub:n mul:n div:p mod:p power:p maximum:n minimum:n hypot:n equal:w not_equal:w greater:w
greater_equal:w lesser:w lesser_equal:w logical_and:b logical_or:b logical_xor:b
""".split()  # noqa: SIM905  # words in lines read better than a column of them
SCALARS = """
_plus_scalar _minus_scalar _rminus_scalar _mul_scalar _div_scalar _rdiv_scalar _mod_scalar _rmod_scalar
_power_scalar _rpower_scalar _maximum_scalar _minimum_scalar _hypot_scalar _equal_scalar _not_equal_scalar
_greater_scalar _greater_equal_scalar _lesser_scalar _lesser_equal_scalar _logical_and_scalar
_logical_or_scalar _logical_xor_scalar
""".split()  # noqa: SIM905  # words in lines read better than a column of them
REDUCTIONS = ["sum", "mean", "prod", "max", "min", "nansum", "nanprod"]

BY_HAND: list[Case] = [
    ("norm", "n2,3,4", {}),
    ("norm", "n2,3,4", {"ord": 1, "axis": 1}),
    ("norm", "n2,3,4", {"ord": 2, "axis": (0, 2), "keepdims": True}),
    ("moments", "n2,3,4", {"axes": (0, 2)}),
    ("argmax", "n3,4", {}),
    ("argmax", "n3,4", {"axis": 1, "keepdims": True}),
    ("argmin", "n3,4", {"axis": 0}),
    ("argmax_channel", "n3,4", {}),
    ("sort", "n3,4", {}),
    ("sort", "n3,4", {"axis": 0, "is_ascend": False}),
    ("sort", "n3,4", {"axis": None}),
    ("argsort", "n3,4", {"is_ascend": False}),
    ("topk", "n3,5", {"k": 2}),
    ("topk", "n3,5", {"k": 2, "ret_typ": "both", "axis": 0}),
    ("topk", "n3,5", {"k": 3, "ret_typ": "mask"}),
    ("topk", "n3,5", {"k": 2, "ret_typ": "value", "is_ascend": True}),
    ("topk", "n3,5", {"k": 2, "axis": None, "ret_typ": "value"}),
    ("topk", "n3,5", {"k": 2, "dtype": "int32"}),
    ("softmax_cross_entropy", "n3,4 w3", {}),
    ("Reshape", "n2,3,4", {"shape": (4, 0, 2)}),
    ("Reshape", "n2,3,4", {"shape": (-1, 0), "reverse": True}),
    ("Reshape", "n2,3,4", {"shape": (-4, 1, 2, -2)}),
    ("Reshape", "n2,3,4", {"shape": (0, -4, -1, 1, -2)}),
    ("Reshape", "n2,3,4", {"shape": (-3, -2)}),
    ("reshape_like", "n2,6 n3,4", {}),
    ("reshape_like", "n6,4 n2,3,5", {"lhs_begin": 0, "lhs_end": 1, "rhs_begin": 0, "rhs_end": 2}),
    ("transpose", "n2,3,4", {}),
    ("transpose", "n2,3,4", {"axes": (1, 0, 2)}),
    ("SwapAxis", "n2,3,4", {"dim1": 0, "dim2": 2}),
    ("expand_dims", "n2,3", {"axis": 1}),
    ("expand_dims", "n2,3", {"axis": -1}),
    ("squeeze", "n2,1,3,1", {}),
    ("squeeze", "n2,1,3,1", {"axis": 1}),
    ("squeeze", "n2,1,3,1", {"axis": 0}),
    ("broadcast_to", "n1,3", {"shape": (4, 0)}),
    ("broadcast_axis", "n1,3,1", {"axis": (0, 2), "size": (2, 4)}),
    ("broadcast_like", "n1,3 n4,3", {}),
    ("slice", "n4,5", {"begin": (1, None), "end": (3, 4)}),
    ("slice", "n4,5", {"begin": (None, 4), "end": (None, None), "step": (2, -2)}),
    ("_slice_assign", "n4,5 n2,3", {"begin": (1, 1), "end": (3, 4)}),
    ("_slice_assign_scalar", "n4,5", {"scalar": 2.0, "begin": (1, None), "end": (3, None)}),
    ("slice_axis", "n4,5", {"axis": 1, "begin": -3, "end": None}),
    ("slice_axis", "n4,5", {"axis": 0, "begin": 1, "end": -1}),
    ("slice_like", "n4,5 n2,3", {}),
    ("slice_like", "n4,5 n2,3", {"axes": (1,)}),
    ("Concat", "n2,3 n2,4", {"dim": 1}),
    ("Concat", "n2,3 n1,3 n2,3", {"dim": 0}),
    ("Concat", "n2,3 n3,4", {"dim": 1}),
    ("stack", "n2,3 n2,3", {"axis": 1}),
    ("SliceChannel", "n2,4", {"num_outputs": 2}),
    ("SliceChannel", "n3,2", {"num_outputs": 3, "axis": 0, "squeeze_axis": True}),
    ("SliceChannel", "n3,5", {"num_outputs": 2}),
    ("_split_v2", "n6,2", {"indices": (0, 2, 5), "axis": 0}),
    ("tile", "n2,3", {"reps": (2, 2)}),
    ("tile", "n2,3", {"reps": (2, 1, 2)}),
    ("repeat", "n2,3", {"repeats": 2}),
    ("repeat", "n2,3", {"repeats": 2, "axis": 1}),
    ("reverse", "n2,3", {"axis": 1}),
    ("Pad", "n1,2,3,3", {"mode": "constant", "pad_width": (0, 0, 0, 0, 1, 2, 2, 1), "constant_value": 3}),
    ("Pad", "n1,2,3,3", {"mode": "edge", "pad_width": (0, 0, 0, 0, 1, 2, 2, 1)}),
    ("Pad", "n1,2,4,4", {"mode": "reflect", "pad_width": (0, 0, 0, 0, 1, 2, 2, 1)}),
    ("depth_to_space", "n1,8,2,3", {"block_size": 2}),
    ("space_to_depth", "n1,2,4,6", {"block_size": 2}),
    ("diag", "n3,4", {}),
    ("diag", "n3,4", {"k": 1}),
    ("diag", "n3", {"k": -1}),
    ("_zeros", "", {"shape": (2, 3)}),
    ("_ones", "", {"shape": (2,), "dtype": "int32"}),
    ("_full", "", {"shape": (2,), "value": 2.5, "dtype": "float64"}),
    ("_eye", "", {"N": 3, "M": 4, "k": -1}),
    ("_arange", "", {"start": 1, "stop": 8, "step": 2.5}),
    ("_arange", "", {"start": 3, "repeat": 2}),
    ("_contrib_arange_like", "n2,3", {"start": 1, "step": 2}),
    ("_contrib_arange_like", "n2,3", {"axis": 1}),
    ("take", "n4,3 w2,2", {}),
    ("take", "n4,3 w2", {"axis": 1, "mode": "wrap"}),
    ("Embedding", "w2,3 n4,5", {"input_dim": 4, "output_dim": 5}),
    ("pick", "n3,4 w3", {}),
    ("pick", "n3,4 w4", {"axis": 0, "keepdims": True}),
    ("batch_take", "n3,4 i3", {}),
    ("one_hot", "w2,3", {"depth": 3}),
    ("one_hot", "w3", {"depth": 5, "on_value": 2, "off_value": -1, "dtype": "int32"}),
    ("gather_nd", "n4,4 w2,3", {}),
    ("scatter_nd", "n3 w2,3", {"shape": (4, 4)}),
    ("_contrib_index_copy", "n4,3 j2 n2,3", {}),
    ("_contrib_index_array", "n2,3", {}),
    ("_contrib_boolean_mask", "n4,3 b4", {}),
    ("_ravel_multi_index", "w2,3", {"shape": (4, 5)}),
    ("_unravel_index", "w3", {"shape": (2, 3)}),
    ("SequenceMask", "n3,2,2 l2", {"use_sequence_length": True, "value": -1}),
    ("SequenceMask", "n3,2", {}),
    ("SequenceMask", "n2,3,2 l2", {"use_sequence_length": True, "axis": 1}),
    ("SequenceLast", "n3,2,2 l2", {"use_sequence_length": True}),
    ("SequenceLast", "n3,2,2", {}),
    ("SequenceReverse", "n3,2,2 l2", {"use_sequence_length": True}),
    ("where", "b3,4 n3,4 n3,4", {}),
    ("where", "b3 n3,4 n3,4", {}),
    ("dot", "n2,3 n3,4", {}),
    ("dot", "n3,2 n4,3", {"transpose_a": True, "transpose_b": True}),
    ("dot", "n3 n3", {}),
    ("dot", "n2,3,4 n4,5,2", {}),
    ("dot", "n2,3 n4,5", {}),
    ("batch_dot", "n2,3,4 n2,4,5", {}),
    ("batch_dot", "n2,4,3 n2,5,4", {"transpose_a": True, "transpose_b": True}),
    ("khatri_rao", "n2,3 n4,3", {}),
    ("_linalg_gemm", "n2,3 n3,4 n2,4", {"alpha": 2, "beta": 0.5}),
    ("_linalg_gemm2", "n2,3,4 n2,5,4", {"transpose_b": True}),
    ("_linalg_syrk", "n2,3", {"transpose": True}),
    ("_linalg_trmm", "s3,3 n3,2", {}),
    ("_linalg_trmm", "s3,3 n2,3", {"rightside": True, "transpose": True}),
    ("_linalg_trsm", "s3,3 n3,2", {}),
    ("_linalg_trsm", "s3,3 n2,3", {"rightside": True, "lower": False}),
    ("_linalg_potrf", "s3,3", {}),
    ("_linalg_potri", "s3,3", {}),
    ("_linalg_inverse", "s3,3", {}),
    ("_linalg_det", "s3,3", {}),
    ("_linalg_slogdet", "s3,3", {}),
    ("_linalg_sumlogdiag", "s3,3", {}),
    ("_linalg_extractdiag", "n3,3", {"offset": 1}),
    ("_linalg_makediag", "n3", {"offset": -1}),
    ("_linalg_extracttrian", "n3,3", {}),
    ("_linalg_maketrian", "n6", {}),
    ("_contrib_interleaved_matmul_selfatt_qk", "n3,2,12", {"heads": 2}),
    ("_contrib_interleaved_matmul_selfatt_valatt", "n3,2,12 n4,3,3", {"heads": 2}),
    ("_contrib_interleaved_matmul_encdec_qk", "n3,2,4 n3,2,8", {"heads": 2}),
    ("_contrib_interleaved_matmul_encdec_valatt", "n3,2,8 n4,3,3", {"heads": 2}),
    ("FullyConnected", "n2,3,4 n5,12 n5", {"num_hidden": 5}),
    ("FullyConnected", "n2,3,4 n5,4", {"num_hidden": 5, "no_bias": True, "flatten": False}),
    ("FullyConnected", "n2,3 n5,4 n5", {"num_hidden": 5}),
    ("Convolution", "n2,3,5,5 n4,3,3,3 n4", {"kernel": (3, 3), "num_filter": 4}),
    ("Convolution", "n2,4,6 n4,2,3", {"kernel": (3,), "num_filter": 4, "num_group": 2, "no_bias": True, "pad": (1,)}),
    (
        "Convolution",
        "n1,2,6,6 n3,2,2,3 n3",
        {"kernel": (2, 3), "num_filter": 3, "stride": (2, 1), "pad": (1, 0), "dilate": (1, 2)},
    ),
    ("Convolution", "n1,2,3,4,4 n2,2,2,2,2 n2", {"kernel": (2, 2, 2), "num_filter": 2}),
    ("Convolution", "n2,3,5 n4,3,3,3 n4", {"kernel": (3, 3), "num_filter": 4}),
    (
        "Deconvolution",
        "n2,3,4,4 n3,2,3,3",
        {"kernel": (3, 3), "num_filter": 2, "stride": (2, 2), "pad": (1, 1), "adj": (1, 1)},
    ),
    ("Deconvolution", "n1,2,4 n2,2,3 n2", {"kernel": (3,), "num_filter": 2, "no_bias": False}),
    (
        "Deconvolution",
        "n1,2,4,4 n2,2,4,4",
        {"kernel": (4, 4), "num_filter": 2, "stride": (2, 2), "target_shape": (8, 8)},
    ),
    ("Pooling", "n1,2,5,5", {"kernel": (2, 2), "stride": (2, 2)}),
    (
        "Pooling",
        "n1,2,5,5",
        {"kernel": (3, 3), "stride": (2, 2), "pool_type": "avg", "pad": (1, 1), "pooling_convention": "full"},
    ),
    (
        "Pooling",
        "n1,2,5,5",
        {"kernel": (3, 3), "stride": (2, 2), "pool_type": "avg", "pad": (1, 1), "count_include_pad": False},
    ),
    ("Pooling", "n1,2,5,5", {"kernel": (2, 2), "pool_type": "sum"}),
    ("Pooling", "p1,2,5,5", {"kernel": (2, 2), "pool_type": "lp", "p_value": 2}),
    ("Pooling", "n1,2,6", {"kernel": (3,), "stride": (2,), "pooling_convention": "full"}),
    ("Pooling", "n1,2,6", {"kernel": (2,), "pool_type": "avg"}),
    ("Pooling", "n1,2,4,4,4", {"kernel": (2, 2, 2), "stride": (2, 2, 2)}),
    ("Pooling", "n1,2,5,4", {"global_pool": True, "pool_type": "avg", "kernel": (1, 1)}),
    ("Pooling", "n1,2,5,4", {"global_pool": True, "kernel": (1, 1)}),
    ("Pooling", "n1,2,3,3", {"kernel": (5, 5)}),
    ("_contrib_AdaptiveAvgPooling2D", "n1,2,5,7", {"output_size": (2, 3)}),
    ("_contrib_BilinearResize2D", "n1,2,3,4", {"height": 5, "width": 7}),
    ("UpSampling", "n1,2,3,3", {"scale": 2, "sample_type": "nearest"}),
    ("Activation", "n3,4", {"act_type": "relu"}),
    ("Activation", "n3,4", {"act_type": "softrelu"}),
    ("Activation", "n3,4", {"act_type": "softsign"}),
    ("Activation", "n3,4", {"act_type": "foo"}),
    ("LeakyReLU", "n3,4", {}),
    ("LeakyReLU", "n3,4", {"act_type": "elu", "slope": 0.7}),
    ("LeakyReLU", "n3,4", {"act_type": "selu"}),
    ("LeakyReLU", "n3,4", {"act_type": "gelu"}),
    ("LeakyReLU", "n3,4,2 n4", {"act_type": "prelu"}),
    ("softmax", "n3,4", {}),
    ("softmax", "n3,4", {"axis": 0, "temperature": 2.0}),
    ("softmax", "n2,4 v2", {"use_length": True}),
    ("softmax", "i3,4", {}),
    ("log_softmax", "n3,4", {"axis": 1}),
    ("softmin", "n3,4", {}),
    ("SoftmaxActivation", "n2,3,4", {"mode": "channel"}),
    ("BatchNorm", "n4,3,2 n3 n3 n3 p3", {"fix_gamma": False}),
    ("BatchNorm", "n4,3 n3 n3 n3 p3", {"use_global_stats": True}),
    ("BatchNorm", "n4,2,3 n3 n3 n3 p3", {"axis": 2, "fix_gamma": True}),
    ("LayerNorm", "n4,3,2 n2 n2", {}),
    ("LayerNorm", "n4,3,2 n3 n3", {"axis": 1}),
    ("InstanceNorm", "n2,3,4 n3 n3", {}),
    ("GroupNorm", "n2,4,3 n4 n4", {"num_groups": 2}),
    ("L2Normalization", "n2,3,4", {}),
    ("L2Normalization", "n2,3,4", {"mode": "channel"}),
    ("L2Normalization", "n2,3,4", {"mode": "spatial"}),
    ("LRN", "n2,5,2,2", {"nsize": 3}),
    ("im2col", "n1,2,4,4", {"kernel": (2, 2)}),
    ("col2im", "n1,8,9", {"output_size": (4, 4), "kernel": (2, 2)}),
    ("BilinearSampler", "n1,2,4,4 m1,2,3,3", {}),
    ("GridGenerator", "n1,6", {"transform_type": "affine", "target_shape": (3, 4)}),
    ("GridGenerator", "n1,2,3,4", {"transform_type": "warp"}),
    (
        "SpatialTransformer",
        "n1,2,4,4 m1,6",
        {"target_shape": (3, 3), "transform_type": "affine", "sampler_type": "bilinear"},
    ),
    ("SoftmaxOutput", "n3,4 w3", {}),
    ("SoftmaxOutput", "n3,4 w3", {"grad_scale": 2, "normalization": "batch"}),
    ("SoftmaxOutput", "n3,4 w3", {"use_ignore": True, "ignore_label": 1, "normalization": "valid"}),
    ("SoftmaxOutput", "n3,4,2 w3,2", {"multi_output": True}),
    ("SoftmaxOutput", "n3,4 w3", {"out_grad": True}),
    ("SoftmaxOutput", "n3,4 w3", {"smooth_alpha": 0.1}),
    ("LinearRegressionOutput", "n3,4 n3,4", {"grad_scale": 2}),
    ("LogisticRegressionOutput", "n3,4 b3,4", {}),
    ("MAERegressionOutput", "n3,4 n3,4", {}),
    ("SVMOutput", "n3,4 w3", {"use_linear": True}),
    ("SVMOutput", "n3,4 w3", {"margin": 0.5}),
    ("MakeLoss", "p3,4", {"grad_scale": 2, "normalization": "batch"}),
    ("CTCLoss", "n5,2,4 y2,2", {}),
    ("clip", "n3,4", {"a_min": -0.5, "a_max": 0.7}),
    ("clip", "i3,4", {"a_min": 1.5, "a_max": 2.5}),
    ("smooth_l1", "n3,4", {"scalar": 2.0}),
    ("hard_sigmoid", "n3,4", {}),
    ("Cast", "n3,4", {"dtype": "float64"}),
    ("Cast", "n3,4", {"dtype": "int32"}),
    ("Cast", "i3,4", {"dtype": "float16"}),
    ("add_n", "n3,4 n3,4 n3,4", {}),
    ("_contrib_quadratic", "n3", {"a": 1, "b": 2, "c": 3}),
    ("_contrib_div_sqrt_dim", "n3,4", {}),
    ("_contrib_gradientmultiplier", "n3", {"scalar": 0.5}),
    ("all_finite", "n3", {}),
    ("sgd_update", "n3 n3", {"lr": 0.1, "wd": 0.01, "rescale_grad": 0.5}),
    ("sgd_update", "n3 n3", {"lr": 0.1, "clip_gradient": 0.3}),
    ("sgd_mom_update", "n3 n3 n3", {"lr": 0.1, "momentum": 0.9, "wd": 0.01}),
    ("nag_mom_update", "n3 n3 n3", {"lr": 0.1, "momentum": 0.9, "wd": 0.01}),
    ("signsgd_update", "n3 n3", {"lr": 0.1, "wd": 0.01}),
    ("signum_update", "n3 n3 n3", {"lr": 0.1, "momentum": 0.9, "wd": 0.01, "wd_lh": 0.1}),
    ("adam_update", "n3 n3 n3 p3", {"lr": 0.1, "wd": 0.01}),
    ("rmsprop_update", "n3 n3 p3", {"lr": 0.1, "wd": 0.01}),
    ("rmspropalex_update", "n3 n3 P3 u3 n3", {"lr": 0.1}),
    ("ftrl_update", "n3 n3 n3 p3", {"lr": 0.1, "wd": 0.01}),
    ("ftml_update", "n3 n3 p3 p3 n3", {"lr": 0.1, "t": 2}),
    ("lamb_update_phase1", "n3 n3 n3 p3", {"t": 2, "wd": 0.01}),
    ("lamb_update_phase2", "n3 n3 p1 p1", {"lr": 0.1}),
    ("elemwise_add", "n2,3 n1,3", {}),
    ("broadcast_add", "n2,3 n4,5", {}),
    ("broadcast_add", "n3 i3", {}),
    ("one_hot", "w2", {"depth": "a"}),
    ("FullyConnected", "n2,3 n5,3 n5", {}),
    ("multi_sum_sq", "n3 n2,2", {"num_arrays": 2}),
    ("_contrib_round_ste", "n3,4", {}),
    ("_contrib_sign_ste", "n3,4", {}),
    ("_scatter_elemwise_div", "n3 p3", {}),
    ("_random_pdf_uniform", "u2,3 m2 P2", {}),
    ("_random_pdf_normal", "n2,3 n2 p2", {}),
    ("_random_pdf_normal", "n2,3 n2 p2", {"is_log": True}),
    ("_random_pdf_exponential", "p2,3 p2", {}),
    ("_random_pdf_gamma", "p2,3 p2 p2", {}),
    ("_random_pdf_poisson", "w2,3 p2", {}),
    ("_contrib_box_iou", "p3,4 p2,4", {"format": "center"}),
    ("_contrib_MultiBoxPrior", "n1,3,4,5", {"sizes": (0.5, 0.25), "ratios": (1.0, 2.0, 0.5)}),
    ("_contrib_MultiBoxPrior", "n1,3,2,2", {"sizes": (0.9,), "ratios": (2.0, 1.0), "clip": True, "steps": (0.4, 0.6)}),
]

# Operators that came later: after all others, whose inputs are drawn by their numbers.
DETECTION: list[Case] = [
    ("ROIPooling", "n2,3,8,8 r4,5", {"pooled_size": (3, 2), "spatial_scale": 0.5}),
    ("ROIPooling", "n2,2,6,7 r3,5", {"pooled_size": (2, 2), "spatial_scale": 0.25}),
    ("_contrib_ROIAlign", "n2,3,8,8 r4,5", {"pooled_size": (3, 2), "spatial_scale": 0.5, "sample_ratio": 2}),
    ("_contrib_ROIAlign", "n2,2,8,8 r3,5", {"pooled_size": (2, 2), "spatial_scale": 0.5}),
    ("_contrib_ROIAlign", "n2,2,8,8 r3,5", {"pooled_size": (2, 2), "spatial_scale": 0.4, "aligned": True}),
    ("_contrib_box_nms", "B2,9,6", {"overlap_thresh": 0.2, "id_index": 0}),
    ("_contrib_box_nms", "B2,9,6", {"overlap_thresh": 0.1, "id_index": 0, "force_suppress": True, "topk": 5}),
    ("_contrib_box_nms", "B7,6", {"overlap_thresh": 0.3, "valid_thresh": 0.4, "id_index": 0, "background_id": 0}),
    ("_contrib_box_nms", "B1,8,6", {"overlap_thresh": 0.3, "out_format": "center"}),
    ("_contrib_MultiBoxDetection", "S2,3,6 m2,24 C1,6,4", {"nms_threshold": 0.3}),
    ("_contrib_MultiBoxDetection", "S1,4,8 m1,32 C1,8,4", {"force_suppress": True, "threshold": 0.4}),
    ("_contrib_MultiBoxDetection", "S1,3,6 m1,24 C1,6,4", {"clip": False, "nms_topk": 3}),
    ("_contrib_box_decode", "m1,5,4 C1,5,4", {"format": "corner", "std0": 0.1, "std1": 0.1, "std2": 0.2, "std3": 0.2}),
    ("_contrib_box_decode", "m2,5,4 C1,5,4", {"clip": 0.5}),
]


QUANTIZED = "_contrib_quantized_"
# Operators that came later still. `out` says which inputs are also where results go.
LATER: list[Case] = [
    ("_contrib_quantize", "n3,4 L1 P1", {"out_type": "uint8"}),
    ("_contrib_quantize", "n3,4 L1 q1", {"out_type": "int8"}),
    ("_contrib_quantize_v2", "p3,4", {}),
    ("_contrib_quantize_v2", "p3,4", {"out_type": "uint8"}),
    ("_contrib_quantize_v2", "n3,4", {"out_type": "auto", "min_calib_range": -1.0, "max_calib_range": 2.0}),
    ("_contrib_quantize_v2", "p3,4", {"out_type": "auto", "min_calib_range": 0.0, "max_calib_range": 2.0}),
    ("_contrib_dequantize", "g3,4 L1 q1", {}),
    ("_contrib_dequantize", "U3,4 L1 P1", {}),
    ("_contrib_dequantize", "I3,4 L1 P1", {}),
    ("_contrib_requantize", "I3,4 L1 P1", {}),
    ("_contrib_requantize", "I3,4 L1 P1", {"min_calib_range": -0.01, "max_calib_range": 0.02}),
    (QUANTIZED + "flatten", "g2,3,4 L1 P1", {}),
    (QUANTIZED + "act", "g2,3,4,4 L1 P1", {"act_type": "relu"}),
    (QUANTIZED + "pooling", "g2,3,4,4 L1 P1", {"kernel": (2, 2), "stride": (2, 2), "pool_type": "avg"}),
    (QUANTIZED + "fully_connected", "g2,6 g4,6 L1 q1 L1 q1", {"num_hidden": 4, "no_bias": True}),
    (QUANTIZED + "fully_connected", "U2,6 g4,6 L1 q1 L1 q1", {"num_hidden": 4, "no_bias": True}),
    (QUANTIZED + "fully_connected", "g2,6 g4,6 g4 L1 q1 L1 q1 L1 p1", {"num_hidden": 4}),
    (QUANTIZED + "fully_connected", "U2,6 g4,6 g4 L1 q1 L1 q1 L1 p1", {"num_hidden": 4}),
    (QUANTIZED + "conv", "U1,4,5,5 g4,4,3,3 L1 q1 L1 q1", {"kernel": (3, 3), "num_filter": 4, "no_bias": True}),
    (QUANTIZED + "conv", "U1,4,5,5 g4,4,3,3 g4 L1 q1 L1 q1 L1 p1", {"kernel": (3, 3), "num_filter": 4, "pad": (1, 1)}),
    (QUANTIZED + "concat", "g2,3 g2,4 L1 q1 L1 P1", {"num_args": 2, "dim": 1}),
    (QUANTIZED + "elemwise_add", "g2,3 g2,3 L1 q1 L1 P1", {}),
    (QUANTIZED + "embedding", "w3 g4,5 L1 q1", {"input_dim": 4, "output_dim": 5}),
    ("_mp_adamw_update", "h3 h3 n3 p3 n3 P1", {"lr": 0.1, "eta": 0.5, "wd": 0.01}),
    (
        "_multi_adamw_update",
        "n3 n3 n3 p3 n2,2 n2,2 n2,2 p2,2 P1",
        {"lrs": (0.1, 0.2), "etas": (0.5, 1.0), "wds": (0.01, 0.0), "num_weights": 2, "out": (0, 4)},
    ),
    (
        "_multi_mp_adamw_update",
        "h3 h3 n3 p3 n3 P1",
        {"lrs": (0.1,), "etas": (0.5,), "wds": (0.01,), "num_weights": 1, "out": (0,)},
    ),
    ("multi_lars", "p3 w3 w3 p3", {"eta": 0.1, "eps": 1e-5, "rescale_grad": 0.5}),
    ("mp_lamb_update_phase1", "h3 h3 n3 p3 n3", {"t": 2, "wd": 0.01}),
    ("mp_lamb_update_phase2", "h3 n3 p1 p1 n3", {"lr": 0.1}),
    (
        "_multi_lamb_update",
        "n3 n3 n3 p3 n2,2 n2,2 n2,2 p2,2",
        {"learning_rates": (0.1, 0.2), "wds": (0.01, 0.0), "step_count": (2, 3), "num_tensors": 2, "out": (0, 4)},
    ),
    (
        "_multi_lamb_update",
        "n3 n3 n3 p3",
        {"learning_rates": (0.1,), "wds": (0.01,), "step_count": (2,), "lower_bound": 0.5, "upper_bound": 1.0}
        | {"bias_correction": False, "clip_gradient": 0.5, "out": (0,)},
    ),
    (
        "_multi_mp_lamb_update",
        "h3 h3 n3 p3 n3",
        {"learning_rates": (0.1,), "wds": (0.01,), "step_count": (2,), "num_tensors": 1, "out": (0,)},
    ),
    ("preloaded_multi_sgd_update", "n3 n3 n2 n2 p2 p2", {"num_weights": 2, "out": (0, 2)}),
    (
        "preloaded_multi_sgd_mom_update",
        "n3 n3 n3 n2 n2 n2 p2 p2",
        {"num_weights": 2, "momentum": 0.9, "out": (0, 3)},
    ),
    ("preloaded_multi_mp_sgd_update", "h3 h3 n3 p1 p1", {"num_weights": 1, "out": (0,)}),
    ("preloaded_multi_mp_sgd_mom_update", "h3 h3 n3 n3 p1 p1", {"num_weights": 1, "momentum": 0.9, "out": (0,)}),
    ("multi_sgd_update", "n3 n3 n2 n2", {"num_weights": 2, "lrs": (0.1, 0.2), "wds": (0.0, 0.1), "out": (0, 2)}),
    ("_random_pdf_negative_binomial", "w2,3 p2 u2", {}),
    ("_random_pdf_generalized_negative_binomial", "w2,3 p2 p2", {"is_log": True}),
    ("_random_pdf_dirichlet", "S2,4 p2,4", {}),
    ("fill_element_0index", "n3,4 n3 w3", {}),
    ("_onehot_encode", "w3 n3,4", {}),
    ("_histogram", "n3,4", {"bin_cnt": 5, "range": (-2.0, 2.0)}),
    ("_histogram", "n3,4 j5", {}),
    ("cast_storage", "n3,4", {"stype": "default"}),
    ("_image_adjust_lighting", "n4,5,3", {"alpha": (0.1, -0.2, 0.3)}),
    ("_image_adjust_lighting", "U4,5,3", {"alpha": (0.1, -0.2, 0.3)}),
    ("_contrib_box_encode", "b2,5 w2,5 C2,5,4 C2,4,4 n4 p4", {}),
    ("_contrib_bipartite_matching", "p4,3", {"threshold": 0.6}),
    ("_contrib_bipartite_matching", "p5,5", {"threshold": 0.1, "topk": 1}),
    ("_contrib_bipartite_matching", "p2,3,5", {"threshold": 1.2, "is_ascend": True, "topk": 2}),
    ("_contrib_MultiBoxTarget", "C1,8,4 T2,3,5 n2,4,8", {}),
    ("_contrib_MultiBoxTarget", "C1,8,4 T2,3,5 n2,4,8", {"negative_mining_ratio": 2.0, "overlap_threshold": 0.3}),
    (
        "_contrib_MultiBoxTarget",
        "C1,12,4 T2,3,5 n2,4,12",
        {"negative_mining_ratio": 1.0, "overlap_threshold": 0.2, "minimum_negative_samples": 3},
    ),
    ("Correlation", "n1,3,6,6 n1,3,6,6", {"max_displacement": 2, "pad_size": 2}),
    (
        "Correlation",
        "n2,3,7,8 n2,3,7,8",
        {"kernel_size": 3, "max_displacement": 2, "pad_size": 3, "stride1": 2, "stride2": 2, "is_multiply": False},
    ),
    ("_contrib_DeformableConvolution", "n2,4,6,6 n2,18,4,4 n3,4,3,3 n3", {"kernel": (3, 3), "num_filter": 3}),
    (
        "_contrib_DeformableConvolution",
        "n2,4,6,6 n2,36,3,3 n4,2,3,3",
        {"kernel": (3, 3), "num_filter": 4, "num_group": 2, "num_deformable_group": 2}
        | {"stride": (2, 2), "pad": (1, 1), "no_bias": True},
    ),
    (
        "_contrib_ModulatedDeformableConvolution",
        "n2,4,6,6 m2,18,4,4 p2,9,4,4 n3,4,3,3 n3",
        {"kernel": (3, 3), "num_filter": 3},
    ),
    ("_contrib_PSROIPooling", "n2,8,8,8 r3,5", {"spatial_scale": 0.5, "output_dim": 2, "pooled_size": 2}),
    (
        "_contrib_PSROIPooling",
        "n2,12,8,8 r3,5",
        {"spatial_scale": 0.5, "output_dim": 3, "pooled_size": 4, "group_size": 2},
    ),
]


# Of networks that look for objects, of images, of events in time: after the others, for the same reason.
NEWEST: list[Case] = [
    ("_contrib_hawkesll", "p2,4 u4 p4 p2,4 p2,5 i2,5 w2 Q2", {}),
    ("_contrib_quantized_batch_norm", "g2,3,2,2 n3 n3 m3 p3 L1 P1", {"min_calib_range": -4.0, "max_calib_range": 4.0}),
    (
        "_contrib_quantized_batch_norm",
        "g2,3,2,2 n3 n3 m3 p3 L1 q1",
        {"fix_gamma": False, "min_calib_range": -3.0, "max_calib_range": 2.0},
    ),
    ("_contrib_quantized_batch_norm", "g2,3,2,2 n3 n3 m3 p3 L1 q1", {}),
    ("_contrib_calibrate_entropy", "w81 j82", {"num_quantized_bins": 15}),
    ("_contrib_calibrate_entropy", "e401 j402", {"num_quantized_bins": 31}),
    ("_contrib_RROIAlign", "n2,3,8,8 R3,6", {"pooled_size": (2, 3), "spatial_scale": 0.5}),
    ("_contrib_RROIAlign", "n2,3,8,8 R3,6", {"pooled_size": (3, 2), "spatial_scale": 0.5, "sampling_ratio": 2}),
    (
        "_contrib_DeformablePSROIPooling",
        "n2,8,8,8 r3,5 m3,2,2,2",
        {"spatial_scale": 0.5, "output_dim": 2, "group_size": 2, "pooled_size": 2, "trans_std": 0.1},
    ),
    (
        "_contrib_DeformablePSROIPooling",
        "n2,16,8,8 r3,5 m3,4,3,3",
        {"spatial_scale": 0.5, "output_dim": 4, "group_size": 2, "pooled_size": 3, "part_size": 3, "trans_std": 0.2}
        | {"sample_per_part": 2},
    ),
    (
        "_contrib_DeformablePSROIPooling",
        "n2,8,8,8 r3,5",
        {"spatial_scale": 0.5, "output_dim": 2, "group_size": 2, "pooled_size": 2, "no_trans": True},
    ),
    (
        "_contrib_Proposal",
        "p1,24,6,7 m1,48,6,7 V1,3",
        {"rpn_pre_nms_top_n": 60, "rpn_post_nms_top_n": 12, "output_score": True},
    ),
    (
        "_contrib_Proposal",
        "p1,12,6,7 m1,24,6,7 V1,3",
        {"rpn_pre_nms_top_n": 60, "rpn_post_nms_top_n": 20, "scales": (2.0, 4.0), "threshold": 0.4, "rpn_min_size": 40},
    ),
    (
        "_contrib_MultiProposal",
        "p2,12,6,7 m2,24,6,7 V2,3",
        {"rpn_pre_nms_top_n": 90, "rpn_post_nms_top_n": 8, "ratios": (1.0,), "scales": (2.0, 4.0, 5.0, 1.0, 3.0, 6.0)}
        | {"output_score": True},
    ),
    ("_image_random_hue", "U3,4,3", {"min_factor": 0.3, "max_factor": 0.3}),
    ("_image_random_hue", "U3,4,3", {"min_factor": 0.8, "max_factor": 0.8}),
    ("_linspace", "", {"start": 1, "stop": 3, "num": 7}),
    ("_linspace", "", {"start": 3, "stop": -1, "num": 4, "endpoint": False, "dtype": "float64"}),
    ("_linspace", "", {"start": 3, "stop": -1, "num": 1}),
    *(("_cvimresize", "U6,8,3", {"w": 11, "h": 9, "interp": way}) for way in (0, 1, 2, 3, 4)),
    *(("_cvimresize", "U9,11,3", {"w": 5, "h": 7, "interp": way}) for way in (0, 1, 2, 3, 4)),
    *(("_cvimresize", "U8,12,1", {"w": 6, "h": 4, "interp": way}) for way in (1, 3)),
    ("_cvimresize", "U8,12,3", {"w": 4, "h": 4, "interp": 3}),
    ("_cvimresize", "U8,12,3", {"w": 16, "h": 4, "interp": 3}),
    *(("_image_resize", "n6,8,3", {"size": (11, 4), "interp": way}) for way in (0, 1, 2, 3, 4)),
    ("_image_resize", "U2,6,8,3", {"size": (5,), "keep_ratio": True}),
    *(
        ("_cvcopyMakeBorder", "U3,4,3", {"top": 1, "bot": 2, "left": 3, "right": 4, "type": kind, "value": 7.0})
        for kind in (0, 1, 2, 3, 4)
    ),
    ("_cvcopyMakeBorder", "U3,4,3", {"top": 1, "bot": 2, "left": 3, "right": 4, "values": (1.0, 2.0, 3.0)}),
]


def cases() -> Iterator[Case]:
    """Every case."""
    for entry in UNARY:
        name, _, kind = entry.partition(":")
        if name != "softmax_activation":
            yield name, f"{kind}2,3", {}
    for name in WHOLE:
        yield name, "i2,3", {}
    for entry in BINARY:
        name, _, kind = entry.partition(":")
        yield f"broadcast_{name}", f"{kind}2,3 {kind}2,3", {}
        yield f"broadcast_{name}", f"{kind}2,1,3 {kind}4,1", {}
        yield f"broadcast_{name}", "i2,3 k2,3", {}
    for name in SCALARS:
        yield name, "p2,3", {"scalar": 2.0}
        yield name, "k2,3", {"scalar": 2.5}
    for name in REDUCTIONS:
        for given in ({}, {"axis": 1}, {"axis": (0, -1), "keepdims": True}, {"axis": 1, "exclude": True}):
            yield name, "n2,3,4", dict(given)
    for name in ("sum", "mean", "prod", "max", "min"):
        yield name, "k2,3", {"axis": 1}
    yield from BY_HAND
    yield from DETECTION
    yield from LATER
    yield from NEWEST


def _boxes(shape: tuple[int, ...], random: np.random.RandomState) -> np.ndarray:
    """Corners of boxes within the unit square."""
    low = random.random_sample((*shape[:-1], 2)) * 0.6
    return np.concatenate([low, low + 0.1 + random.random_sample(low.shape) * 0.3], -1)


def _labels(shape: tuple[int, ...], whole: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    """Classes and boxes of images, of which the last has one."""
    found = np.concatenate([whole[..., :1] % 3, _boxes(shape, random)], -1).astype("float32")
    found[-1, 1:] = -1
    return found


def with_results(given: dict[str, object], arrays: list[Any]) -> dict[str, object]:
    """The parameters of a case, with the arrays in the place of their numbers."""
    places = given.get("out")
    return given if not isinstance(places, tuple) else {**given, "out": [arrays[place] for place in places]}


def _drawn(kind: str, shape: tuple[int, ...], random: np.random.RandomState) -> np.ndarray:
    normal = random.standard_normal(shape)
    uniform = random.random_sample(shape)
    whole = random.randint(0, 4, shape)
    kinds = {
        "n": lambda: normal.astype("float32"),
        "p": lambda: (uniform + 0.5).astype("float32"),
        "P": lambda: (uniform + 5).astype("float32"),
        "q": lambda: (uniform + 1.5).astype("float32"),
        "u": lambda: (uniform * 0.8 + 0.1).astype("float32"),
        "m": lambda: (normal * 0.3).astype("float32"),
        "b": lambda: (whole % 2).astype("float32"),
        "w": lambda: whole.astype("float32"),
        "i": lambda: whole.astype("int32"),
        "k": lambda: (whole + 1).astype("int32"),
        "v": lambda: (whole % 3 + 1).astype("int32"),
        "l": lambda: (whole % 2 + 1).astype("float32"),
        "j": lambda: np.arange(shape[0]).astype("int64"),
        "y": lambda: (whole % 3 + 1).astype("float32"),
        "s": lambda: (normal @ normal.T + 3 * np.eye(shape[-1])).astype("float32"),
    }
    kinds |= {
        "C": lambda: _boxes(shape, random).astype("float32"),
        "r": lambda: np.concatenate([whole[:, :1] % 2, _boxes(shape, random) * 14], -1).astype("float32"),
        "B": lambda: np.concatenate([whole[..., :1], uniform[..., 1:2], _boxes(shape, random)], -1).astype("float32"),
        "T": lambda: _labels(shape, whole, random),
        "h": lambda: normal.astype("float16"),
        "L": lambda: (-uniform - 1).astype("float32"),
        "g": lambda: (uniform * 255 - 127).astype("int8"),
        "U": lambda: (uniform * 256).astype("uint8"),
        "I": lambda: ((uniform - 0.5) * 2**25).astype("int32"),
        "Q": lambda: (uniform + 20).astype("float32"),
        "e": lambda: np.floor(200 * np.exp(-(((np.arange(shape[0]) - shape[0] / 2) / 40) ** 2)) * uniform).astype(
            "float32"
        ),
        "R": lambda: np.concatenate(
            [whole[:, :1] % 2, uniform[:, 1:3] * 12 + 2, uniform[:, 3:5] * 8, normal[:, 5:] * 60], -1
        ).astype("float32"),
        "V": lambda: np.tile(np.array([90.0, 110, 1.0], "float32"), (shape[0], 1)),
        "S": lambda: (uniform / uniform.sum(1, keepdims=True)).astype("float32"),
    }
    return kinds[kind]()


def inputs_of(case: Case, number: int) -> list[np.ndarray]:
    """The inputs of the case with this number."""
    random = np.random.RandomState(number)
    return [_drawn(text[0], tuple(map(int, text[1:].split(","))), random) for text in case[1].split()]


def head_gradient(shape: tuple[int, ...]) -> np.ndarray:
    """What gradients of outputs begin with."""
    size = int(np.prod(shape))
    return (0.5 + np.arange(size) / max(size, 1)).reshape(shape)
