"""Tell what this installation can do, under the names of MXNet's compile-time features: `mx.runtime`."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch

NAMES = """
CUDA CUDNN NCCL CUDA_RTC TENSORRT CPU_SSE CPU_SSE2 CPU_SSE3 CPU_SSE4_1 CPU_SSE4_2 CPU_SSE4A CPU_AVX CPU_AVX2 OPENMP SSE
F16C JEMALLOC BLAS_OPEN BLAS_ATLAS BLAS_MKL BLAS_APPLE LAPACK MKLDNN OPENCV CAFFE PROFILER DIST_KVSTORE CXX14
INT64_TENSOR_SIZE SIGNAL_HANDLER DEBUG TVM_OP
""".split()  # noqa: SIM905  # words in lines read better than a column of them


@dataclass(frozen=True, repr=False)
class Feature:
    """A feature, and whether it is there."""

    name: str
    enabled: bool

    def __repr__(self) -> str:
        return f"{'✔' if self.enabled else '✖'} {self.name}"


def feature_list() -> list[Feature]:
    """All features."""
    has_cuda = torch.cuda.is_available()
    there = {
        "CUDA": has_cuda,
        "CUDNN": has_cuda and torch.backends.cudnn.is_available(),
        "NCCL": has_cuda and torch.distributed.is_available() and torch.distributed.is_nccl_available(),
        "OPENMP": torch.backends.openmp.is_available(),
        "BLAS_MKL": torch.backends.mkl.is_available(),
        "LAPACK": True,
        "MKLDNN": torch.backends.mkldnn.is_available(),
        "PROFILER": True,
        "INT64_TENSOR_SIZE": True,
    }
    return [Feature(name, there.get(name, False)) for name in NAMES]


class Features(OrderedDict[str, Feature]):
    """The features by their names."""

    def __init__(self) -> None:
        super().__init__((feature.name, feature) for feature in feature_list())

    def __repr__(self) -> str:
        return str(list(self.values()))

    def is_enabled(self, feature_name: str) -> bool:
        """Whether a feature is there; a RuntimeError if there is none of this name."""
        found = self.get(feature_name.upper())
        if found is None:
            raise RuntimeError(f"Feature '{feature_name}' is unknown, known features are: {list(self)}")
        return found.enabled
