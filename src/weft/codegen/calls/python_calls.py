"""The text of one module with the functions that Python calls at every call of a program.

Together they take LLVM, and the loader, half as long as one by one. Most of a call's time is that of functions of
Python and PyTorch: it is as fast where LLVM leaves the bodies as they are written, for which it takes half as long.
"""

from weft.codegen.calls.fast_call import ObjectLayout, write_fast_call
from weft.codegen.calls.new_tensors import new_tensors_function
from weft.codegen.calls.watching import watch_function
from weft.codegen.calls.whole_call import write_whole_call
from weft.codegen.llvm.module import Module
from weft.target import Target


def python_calls_module(layout: ObjectLayout | None, target: Target) -> str:
    """Write the module; where nobody knows how tensors lie in memory, it has only what compares words."""
    module, functions = Module(target), [watch_function()]
    if layout is not None:
        functions += [write_whole_call(module, layout), write_fast_call(module, layout), new_tensors_function(layout)]
    for function in module.functions:
        function.leave_as_written()
    return "".join([str(module), *functions])
