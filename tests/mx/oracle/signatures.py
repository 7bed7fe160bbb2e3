"""Write what every operator of the real MXNet takes, a line each: run by the oracle's Python, `make mxnet-operators`.

A line is `name | other names | inputs | parameters | parameter that counts the inputs`.
"""

from __future__ import annotations

import ctypes
import re

from mxnet.base import _LIB, OpHandle, c_str, check_call

# Of NumPy's interface, of gradients and of graph rewriting: nobody calls them by name, and only their names are kept.
INSIDE = ("_np", "_backward", "_sg_", "_broadcast_backward", "_split_v2_backward", "_contrib_backward")
CALLED = {"_np_cumsum"}  # that are called by another name all the same
TYPES = {
    "Shape(tuple)": "shape",
    "Shape or None": "shape?",
    "boolean": "bool",
    "boolean or None": "bool?",
    "int or None": "int?",
    "int (non-negative)": "int",
    "long (non-negative)": "int",
    "long": "int",
    "double": "float",
    "double or None": "float?",
    "float or None": "float?",
    "real_t": "float",
    "tuple of <float>": "floats",
    "tuple of <double>": "floats",
    "tuple of <long>": "shape",
    "": "floats",
}
# What MXNet says wrongly of its own operators: the inputs, and the parameters, that it takes.
CORRECTED = {
    # The graphs that are their bodies, which come first among MXNet's inputs, are a parameter here: JSON.
    "_cond": (
        "*data",
        (
            "num_args:int num_outputs:int cond_input_locs:shape then_input_locs:shape else_input_locs:shape "
            "subgraphs:string"
        ),
    ),
    "_foreach": (
        "*data",
        (
            "num_args:int num_outputs:int num_out_data:int in_state_locs:shape in_data_locs:shape remain_locs:shape "
            "subgraphs:string"
        ),
    ),
    "_while_loop": (
        "*data",
        (
            "num_args:int num_outputs:int num_out_data:int max_iterations:int cond_input_locs:shape "
            "func_input_locs:shape func_var_locs:shape subgraphs:string"
        ),
    ),
    # What its operators take is theirs to say: it is one parameter here, JSON.
    "Custom": ("*data", "op_type:string others:string={}"),
    "IdentityAttachKLSparseReg": ("data moving_avg", None),
    "_CrossDeviceCopy": ("data", None),
    "_linspace": (
        None,
        (
            "start:float stop:float num:int endpoint:bool=1 ctx:string= "
            "dtype:{bfloat16,float16,float32,float64,int32,int64,int8,uint8}=float32"
        ),
    ),
}
Strings = ctypes.POINTER(ctypes.c_char_p)


def names() -> list[str]:
    """Every name that MXNet registers."""
    found, count = Strings(), ctypes.c_uint()
    check_call(_LIB.MXListAllOpNames(ctypes.byref(count), ctypes.byref(found)))
    return [found[index].decode() for index in range(count.value)]


def described(name: str) -> tuple[str, list[tuple[str, str]], str]:
    """Give the main name of an operator, its arguments with their types, and what counts its inputs."""
    handle = OpHandle()
    check_call(_LIB.NNGetOpHandle(c_str(name), ctypes.byref(handle)))
    texts = [ctypes.c_char_p() for _ in range(4)]
    main, about, counter, returned = texts
    count, arguments, types, abouts = ctypes.c_uint(), Strings(), Strings(), Strings()
    places = map(ctypes.byref, (main, about, count, arguments, types, abouts, counter, returned))
    check_call(_LIB.MXSymbolGetAtomicSymbolInfo(handle, *places))
    pairs = [(arguments[index].decode(), types[index].decode()) for index in range(count.value)]
    return main.value.decode(), pairs, counter.value.decode()


def parameter(name: str, text: str) -> str:
    """Shorten `float, optional, default=0.5` to `name:float=0.5`."""
    choices = re.match(r"\{(.*?)\}", text)
    if choices is not None:
        kind = "{" + choices[1].replace("'", "").replace(" ", "") + "}"
    else:
        kind = TYPES.get(text.partition(",")[0], text.partition(",")[0])
    default = re.search(r"default=(.*)$", text)
    return f"{name}:{kind}" + ("" if default is None else "=" + default[1].strip("'"))


def main() -> None:
    """Print the table."""
    rows: dict[str, list[str]] = {}
    inside = []
    for name in names():
        real = described(name)[0]
        if real not in CALLED and (name.startswith(INSIDE) or real.startswith(INSIDE)):
            inside.append(name)
        else:
            rows.setdefault(real, []).append(name)
    for real, known in sorted(rows.items()):
        _, pairs, counter = described(real)
        inputs = [
            f"*{name}" if "[]" in kind else name for name, kind in pairs if kind.startswith(("NDArray", "Symbol"))
        ]
        parameters = [parameter(name, kind) for name, kind in pairs if not kind.startswith(("NDArray", "Symbol"))]
        others = sorted(set(known) - {real})
        right_inputs, right_parameters = CORRECTED.get(real, (None, None))
        taken, given = right_inputs or " ".join(inputs), right_parameters or " ".join(parameters)
        print(" | ".join((real, " ".join(others), taken, given, counter)).rstrip())
    print("inside: " + " ".join(sorted(inside)))


if __name__ == "__main__":
    main()
