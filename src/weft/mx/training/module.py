"""Train symbols, and predict with them: `mx.mod`."""

from weft.mx.training.base_module import BaseModule
from weft.mx.training.bucketing import BucketingModule
from weft.mx.training.module_chains import PythonLossModule, PythonModule, SequentialModule
from weft.mx.training.symbol_module import Module

__all__ = ["BaseModule", "BucketingModule", "Module", "PythonLossModule", "PythonModule", "SequentialModule"]
