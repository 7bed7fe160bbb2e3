"""Compare and draw arrays as tests of MXNet's do: `mx.test_utils`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from weft.config import changed_environment
from weft.mx.arrays import autograd
from weft.mx.arrays.ndarray import NDArray, array, as_stored
from weft.mx.base.context import Context, current_context
from weft.mx.symbols.symbol import Symbol

MOST_SHOWN = 10
RTOL, ATOL = 1e-5, 1e-20


def default_context() -> Context:
    """The context that tests use."""
    return current_context()


def set_default_context(ctx: Context) -> None:
    """Let tests use another context."""
    Context.default_ctx = ctx


def default_dtype() -> Any:
    """The element type that tests use."""
    return np.float32


def _numbers(given: Any) -> Any:
    return given.asnumpy() if isinstance(given, NDArray) else np.asarray(given)


def same(a: Any, b: Any) -> bool:
    """Whether all elements are equal."""
    return bool(np.array_equal(_numbers(a), _numbers(b)))


def almost_equal(a: Any, b: Any, rtol: float | None = None, atol: float | None = None, equal_nan: bool = False) -> bool:
    """Whether all elements are nearly equal."""
    return bool(np.allclose(_numbers(a), _numbers(b), RTOL if rtol is None else rtol, _or(atol), equal_nan))


def _or(atol: float | None) -> float:
    return ATOL if atol is None else atol


def same_array(array1: NDArray, array2: NDArray) -> bool:
    """Whether a write to one is seen in the other."""
    array1[:] += 1
    seen = same(array1, array2)
    array1[:] -= 1
    return seen and same(array1, array2)


def assert_almost_equal(
    a: Any,
    b: Any,
    rtol: float | None = None,
    atol: float | None = None,
    names: Sequence[str] = ("a", "b"),
    equal_nan: bool = False,
    **_options: Any,
) -> None:
    """Raise, with the worst elements, unless all are nearly equal."""
    one, other = _numbers(a), _numbers(b)
    relative, absolute = RTOL if rtol is None else rtol, _or(atol)
    if one.shape == other.shape and almost_equal(one, other, relative, absolute, equal_nan):
        return
    if one.shape != other.shape:
        raise AssertionError(f"shapes differ: {names[0]} {one.shape}, {names[1]} {other.shape}")
    wide, wide_other = one.astype(np.float64), other.astype(np.float64)
    with np.errstate(all="ignore"):
        errors = np.abs(wide - wide_other) / (absolute + relative * np.abs(wide_other))
    worst = np.argsort(-np.nan_to_num(errors, nan=np.inf).reshape(-1))[:MOST_SHOWN]
    most = errors.reshape(-1)[worst[0]]
    lines = ["Items are not equal:", f"Error {most:f} exceeds tolerance rtol={relative:e}, atol={absolute:e}"]
    for place in worst:
        where = tuple(int(number) for number in np.unravel_index(place, one.shape))
        lines.append(f"{names[0]}{where} = {wide[where]:.8f}, {names[1]}{where} = {wide_other[where]:.8f}")
    raise AssertionError("\n".join(lines))


assert_almost_equal_with_err = assert_almost_equal


def assert_allclose(a: Any, b: Any, rtol: float = 1e-07, atol: float = 0, equal_nan: bool = True) -> None:
    """Raise unless all elements are nearly equal."""
    assert_almost_equal(a, b, rtol, atol, equal_nan=equal_nan)


def assert_exception(f: Callable[..., Any], exception_type: type[BaseException], *args: Any, **kwargs: Any) -> None:
    """Raise unless a call raises, or what it queues does."""
    try:
        found = f(*args, **kwargs)
        for each in found if isinstance(found, (list, tuple)) else [found]:
            if isinstance(each, NDArray):
                each.wait_to_read()
    except exception_type:
        return
    raise AssertionError(f"Did not raise {exception_type.__name__}")


assertRaises = assert_exception


def rand_shape_nd(num_dim: int, dim: int = 10, allow_zero_size: bool = False) -> tuple[int, ...]:
    """Random sizes."""
    return tuple(int(size) for size in np.random.randint(0 if allow_zero_size else 1, dim + 1, size=num_dim))


def rand_shape_2d(dim0: int = 10, dim1: int = 10) -> tuple[int, int]:
    """Two random sizes."""
    return int(np.random.randint(1, dim0 + 1)), int(np.random.randint(1, dim1 + 1))


def rand_shape_3d(dim0: int = 10, dim1: int = 10, dim2: int = 10) -> tuple[int, int, int]:
    """Three random sizes."""
    return (*rand_shape_2d(dim0, dim1), int(np.random.randint(1, dim2 + 1)))


def rand_ndarray(
    shape: Sequence[int], stype: str = "default", density: float | None = None, dtype: Any = None, **options: Any
) -> NDArray:
    """An array of random numbers between -1 and 1; of a sparse one, so many are stored."""
    if stype != "default":
        made: NDArray = rand_sparse_ndarray(shape, stype, density, dtype)[0]
        return made
    drawn = np.random.uniform(-1, 1, tuple(shape)) * options.get("scale", 1)
    return array(drawn, options.get("ctx"), dtype or default_dtype())


def rand_sparse_ndarray(
    shape: Sequence[int], stype: str, density: float | None = None, dtype: Any = None, **_options: Any
) -> tuple[Any, tuple[Any, ...]]:
    """A sparse array of random numbers, and its parts: the elements and the indices, of `csr` where rows begin too."""
    density = float(np.random.rand()) if density is None else density
    drawn = np.random.uniform(-1, 1, tuple(shape)).astype(dtype or default_dtype())
    kept = np.random.rand(*(shape if stype == "csr" else (shape[0], *[1] * (len(shape) - 1)))) < density
    made: Any = as_stored(array(drawn * kept, dtype=drawn.dtype), stype)
    if stype == "csr":
        return made, (made.indptr, made.indices, made.data)
    return made, (made.data.asnumpy(), made.indices.asnumpy())


def random_arrays(*shapes: Any) -> Any:
    """NumPy arrays of random numbers: one, or a list."""
    made = [np.random.randn(*shape).astype(default_dtype()) if shape else np.float32(np.random.randn())
            for shape in shapes]  # fmt: skip
    return made[0] if len(made) == 1 else made


@contextmanager
def environment(*settings: Any) -> Iterator[None]:
    """A block in which variables of the environment are others."""
    with changed_environment(dict([settings]) if len(settings) == 2 else settings[0]):
        yield


def check_symbolic_forward(
    sym: Symbol, location: Any, expected: Sequence[Any], rtol: float = 1e-4, atol: float | None = None, **options: Any
) -> list[Any]:
    """Raise unless a symbol computes what is expected; gives what it computes."""
    executor = _bound(sym, location, options, "null")
    found = [output.asnumpy() for output in executor.forward(is_train=False)]
    for place, (mine, wanted) in enumerate(zip(found, expected, strict=True)):
        assert_almost_equal(wanted, mine, rtol, atol, (f"EXPECTED_{sym.list_outputs()[place]}", "FORWARD"))
    return found


def check_symbolic_backward(
    sym: Symbol,
    location: Any,
    out_grads: Any,
    expected: Any,
    rtol: float = 1e-5,
    atol: float | None = None,
    **options: Any,
) -> list[Any]:
    """Raise unless a symbol has the gradients that are expected; gives those it has."""
    executor = _bound(sym, location, options, options.get("grad_req", "write"))
    executor.forward(is_train=True)
    executor.backward([array(_numbers(head)) for head in (out_grads or ())] or None)
    wanted = expected if isinstance(expected, Mapping) else dict(zip(sym.list_arguments(), expected, strict=True))
    found = {name: grad.asnumpy() for name, grad in executor.grad_dict.items() if grad is not None}
    for name, gradient in wanted.items():
        assert_almost_equal(gradient, found[name], rtol, atol, (f"EXPECTED_{name}", f"BACKWARD_{name}"))
    return list(found.values())


def check_numeric_gradient(
    sym: Any,
    location: Any,
    aux_states: Any = None,
    numeric_eps: float = 1e-3,
    rtol: float = 1e-2,
    atol: float | None = None,
    **options: Any,
) -> None:
    """Raise unless the gradients of a symbol, or of a function of arrays, are those that small steps show."""
    if isinstance(sym, Symbol):
        executor = _bound(sym, location, {**options, "aux_states": aux_states}, "write")
        names, arrays = list(executor.arg_dict), executor.arg_arrays

        def total() -> Any:
            return executor.forward(is_train=True)[0]

        total()
        executor.backward(array(np.ones(executor.outputs[0].shape)))
        gradients = [executor.grad_dict[name].asnumpy() for name in names]
    else:
        arrays = [array(_numbers(each)) for each in location]
        names = [f"argument {place}" for place in range(len(arrays))]

        def total() -> Any:
            return sym(*arrays)

        for each in arrays:
            each.attach_grad()
        with autograd.record():
            found = total()
        found.backward()
        gradients = [each.grad.asnumpy() for each in arrays]
    for name, each, gradient in zip(names, arrays, gradients, strict=True):
        assert_almost_equal(_by_steps(total, each, numeric_eps), gradient, rtol, atol or 1e-3, ("NUMERIC", name))


def _by_steps(total: Callable[[], Any], variable: NDArray, step: float) -> Any:
    start = variable.asnumpy()
    found = np.zeros(start.shape)
    for place in np.ndindex(start.shape):
        sums = []
        for side in (1, -1):
            moved = start.copy()
            moved[place] += side * step
            variable[:] = moved
            sums.append(float(total().asnumpy().astype(np.float64).sum()))
        found[place] = (sums[0] - sums[1]) / (2 * step)
    variable[:] = start
    return found


def _bound(sym: Symbol, location: Any, options: Mapping[str, Any], request: Any) -> Any:
    given = location if isinstance(location, Mapping) else dict(zip(sym.list_arguments(), location, strict=True))
    arrays = {name: array(_numbers(each), dtype=_numbers(each).dtype) for name, each in given.items()}
    executor = sym.simple_bind(
        options.get("ctx") or current_context(), request, **{name: each.shape for name, each in arrays.items()}
    )
    executor.copy_params_from(arrays, {k: array(_numbers(v)) for k, v in (options.get("aux_states") or {}).items()})
    return executor
