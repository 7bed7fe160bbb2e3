"""Emit one native function for each kernel of a plan that differs from the others in more than its name."""

from collections.abc import Callable
from typing import Any

from weft.codegen.kernels.attention import emit_attention
from weft.codegen.kernels.attention_gradient import emit_attention_gradient
from weft.codegen.kernels.check import emit_check
from weft.codegen.kernels.conv import emit_conv
from weft.codegen.kernels.conv_weight import emit_depthwise_weight, emit_weight_gradient
from weft.codegen.kernels.gemm import emit_gemm
from weft.codegen.kernels.loop import emit_loop
from weft.codegen.kernels.pack import emit_pack
from weft.codegen.kernels.pool import emit_pool, emit_pool_gradient
from weft.codegen.kernels.reduce import emit_reduce
from weft.codegen.kernels.scatter import emit_scatter
from weft.codegen.kernels.top import emit_top
from weft.codegen.kernels.winograd import emit_winograd, emit_winograd_stage, emit_winograd_weights
from weft.codegen.llvm.module import FunctionWriter, Module
from weft.errors import InternalError
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.attention_gradient import AttentionGradientKernel
from weft.plan.kernels.check import CheckKernel
from weft.plan.kernels.conv import ConvKernel
from weft.plan.kernels.conv_weight import DepthwiseWeightKernel, WeightGradientKernel
from weft.plan.kernels.gemm import GemmKernel
from weft.plan.kernels.kernel import Kernel
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.pack import PackKernel
from weft.plan.kernels.pool import PoolGradientKernel, PoolKernel
from weft.plan.kernels.reduce import RowKernel
from weft.plan.kernels.scatter import ScatterKernel
from weft.plan.kernels.top import TopKernel
from weft.plan.kernels.winograd import WinogradKernel, WinogradStage, WinogradWeightKernel

# Each row's emitter takes kernels of its own kind.
EMIT: dict[type[Kernel], Callable[[Module, Any], None]] = {
    LoopKernel: emit_loop,
    RowKernel: emit_reduce,
    GemmKernel: emit_gemm,
    PackKernel: emit_pack,
    ConvKernel: emit_conv,
    WeightGradientKernel: emit_weight_gradient,
    DepthwiseWeightKernel: emit_depthwise_weight,
    PoolKernel: emit_pool,
    PoolGradientKernel: emit_pool_gradient,
    ScatterKernel: emit_scatter,
    TopKernel: emit_top,
    CheckKernel: emit_check,
    AttentionKernel: emit_attention,
    AttentionGradientKernel: emit_attention_gradient,
    WinogradKernel: emit_winograd,
    WinogradStage: emit_winograd_stage,
    WinogradWeightKernel: emit_winograd_weights,
}


class KernelFunctions:
    """The functions of kernels in one module, each emitted when it is first asked for."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.groups: list[list[FunctionWriter]] = []
        """The functions of each kernel: they call one another, and nothing else of the module."""
        self._names: dict[str, str] = {}
        self._known: dict[int, tuple[Kernel, str]] = {}  # by identity; each keeps its kernel, so that no other gets its

    def name(self, kernel: Kernel) -> str:
        """Give the name of a kernel's function."""
        if id(kernel) not in self._known:
            self._known[id(kernel)] = kernel, self._find(kernel)
        return self._known[id(kernel)][1]

    def _find(self, kernel: Kernel) -> str:
        key = text_of(kernel)
        if key not in self._names:
            emit = EMIT.get(type(kernel))
            if emit is None:
                raise InternalError(f"no code is generated for kernels of the class {type(kernel).__name__}")
            name = f"{kernel.name}.{len(self._names)}"
            before = len(self.module.functions)
            emit(self.module, kernel.renamed(name))
            self.groups.append(self.module.functions[before:])
            self._names[key] = name
        return self._names[key]


def text_of(kernel: Kernel) -> str:
    """Describe all of a kernel but its name: kernels with equal texts have the same function."""
    # The text tells 0.0 from -0.0 and 1 from 1.0, which equality does not.
    return repr(kernel.renamed(""))
