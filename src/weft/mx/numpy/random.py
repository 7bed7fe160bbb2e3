"""Random numbers as arrays of `mx.np`: `mx.np.random`, drawn by the generator that `mx.random.seed` seeds."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.mx.arrays import nd
from weft.mx.arrays.ndarray import NDArray
from weft.mx.base.context import Context
from weft.mx.numpy import linalg
from weft.mx.numpy.array import array, as_numpy, taken
from weft.mx.numpy.functions import dot

seed = nd.random.seed


def _sizes(size: Any, *parameters: Any) -> tuple[int, ...]:
    if size is not None:
        return (int(size),) if isinstance(size, (int, np.integer)) else tuple(size)
    return np.broadcast_shapes(*(each.shape if isinstance(each, NDArray) else np.shape(each) for each in parameters))


def _drawn(name: str, sizes: tuple[int, ...], ctx: Context | None, dtype: Any = None, **given: Any) -> Any:
    """Numbers of a standard distribution; without axes, one."""
    draw = getattr(nd.random, name)
    kind = "float32" if dtype is None else np.dtype(dtype).name
    if 0 in sizes:
        return as_numpy(nd.zeros(sizes, ctx, kind))
    found = draw(shape=sizes or (1,), ctx=ctx, dtype=kind, **given)
    return as_numpy(found).reshape(sizes)


def uniform(
    low: Any = 0.0, high: Any = 1.0, size: Any = None, dtype: Any = None, ctx: Context | None = None, out: Any = None
) -> Any:
    """Numbers of a range, all alike likely."""
    found = _drawn("uniform", _sizes(size, low, high), ctx, dtype) * _spread(low, high) + low
    return _into(out, found)


def _spread(low: Any, high: Any) -> Any:
    return high - low if isinstance(low, NDArray) or isinstance(high, NDArray) else float(high) - float(low)


def normal(
    loc: Any = 0.0, scale: Any = 1.0, size: Any = None, dtype: Any = None, ctx: Context | None = None, out: Any = None
) -> Any:
    """Numbers of a normal distribution."""
    return _into(out, _drawn("normal", _sizes(size, loc, scale), ctx, dtype) * scale + loc)


def _into(out: Any, found: Any) -> Any:
    if out is None:
        return found
    out[:] = found
    return out


def randn(*size: int, **given: Any) -> Any:
    """Numbers of the standard normal distribution."""
    return normal(size=size, **given)


def rand(*size: int, **given: Any) -> Any:
    """Numbers from 0 to 1."""
    return uniform(size=size, **given)


def exponential(scale: Any = 1.0, size: Any = None, ctx: Context | None = None, out: Any = None) -> Any:
    """Numbers of an exponential distribution."""
    return _into(out, _drawn("exponential", _sizes(size, scale), ctx) * scale)


def gamma(shape: float, scale: Any = 1.0, size: Any = None, dtype: Any = None, ctx: Context | None = None) -> Any:
    """Numbers of a gamma distribution."""
    return _drawn("gamma", _sizes(size, scale), ctx, dtype, alpha=float(shape)) * scale


def beta(a: float, b: float, size: Any = None, dtype: Any = None, ctx: Context | None = None) -> Any:
    """Numbers of a beta distribution."""
    one, other = gamma(a, size=size, dtype=dtype, ctx=ctx), gamma(b, size=size, dtype=dtype, ctx=ctx)
    return one / (one + other)


def chisquare(df: float, size: Any = None, dtype: Any = None, ctx: Context | None = None) -> Any:
    """Sums of squares of normal numbers."""
    return gamma(df / 2, 2.0, size, dtype, ctx)


def randint(
    low: int, high: int | None = None, size: Any = None, dtype: Any = None, ctx: Context | None = None, out: Any = None
) -> Any:
    """Whole numbers from the first to below the second, or from 0 to below the first."""
    begin, end = (0, low) if high is None else (low, high)
    sizes = _sizes(size)
    found = as_numpy(nd.random.randint(int(begin), int(end), shape=sizes or (1,), ctx=ctx, dtype="int64"))
    return _into(out, found.reshape(sizes).astype("int64" if dtype is None else dtype))


def _order(count: int, ctx: Context | None = None) -> Any:
    return as_numpy(nd.random.uniform(shape=(count,), ctx=ctx)).argsort()


def shuffle(x: Any) -> None:
    """Let the parts along the first axis stand in another order."""
    x[:] = x[_order(len(x), x.context)]


def choice(
    a: Any, size: Any = None, replace: bool = True, p: Any = None, ctx: Context | None = None, out: Any = None
) -> Any:
    """Some of the elements, or of the numbers below one."""
    count = int(a) if isinstance(a, (int, np.integer)) else len(a)
    sizes = _sizes(size)
    wanted = int(np.prod(sizes))
    if not replace and wanted > count:
        raise ValueError("Cannot take a larger sample than population when 'replace=False'")
    if p is None and replace:
        places = randint(0, count, (wanted,), ctx=ctx)
    else:
        chances = array(np.full(count, 1.0 / count) if p is None else p, dtype=np.float64)
        if replace:
            bounds = chances.cumsum(0)
            drawn = uniform(size=(wanted, 1), ctx=ctx, dtype=np.float64) * bounds[-1]
            places = (drawn >= bounds[:-1].reshape(1, -1)).sum(1)
        else:  # the largest of the logarithms with Gumbel's noise are a sample without those taken before
            noise = -(-(uniform(size=(count,), ctx=ctx, dtype=np.float64).log())).log()
            places = (-(chances.log() + noise)).argsort()[:wanted]
    found = places.reshape(sizes)
    return _into(out, found if isinstance(a, (int, np.integer)) else taken(a)[found])


def multinomial(n: int, pvals: Any, size: Any = None) -> Any:
    """How often each of some outcomes comes in so many trials."""
    chances = pvals.asnumpy() if isinstance(pvals, NDArray) else np.asarray(pvals)
    sizes = _sizes(size)
    drawn = choice(len(chances), size=(*sizes, int(n)), p=chances)
    outcomes = array(np.arange(len(chances)), dtype=np.int64)
    return (drawn.reshape(*sizes, int(n), 1) == outcomes).sum(len(sizes))


def lognormal(mean: Any = 0.0, sigma: Any = 1.0, size: Any = None, ctx: Context | None = None) -> Any:
    """Numbers whose logarithms are of a normal distribution."""
    return normal(mean, sigma, size, ctx=ctx).exp()


def _inverse(size: Any, ctx: Context | None, *parameters: Any) -> Any:
    """Numbers between 0 and 1, neither of them among them, to be put into the inverse of a distribution's function."""
    return uniform(1e-7, 1 - 1e-7, _sizes(size, *parameters), ctx=ctx)


def gumbel(loc: Any = 0.0, scale: Any = 1.0, size: Any = None, ctx: Context | None = None) -> Any:
    """Numbers of Gumbel's distribution."""
    return -(-(_inverse(size, ctx, loc, scale).log())).log() * scale + loc


def logistic(loc: Any = 0.0, scale: Any = 1.0, size: Any = None, ctx: Context | None = None) -> Any:
    """Numbers of a logistic distribution."""
    drawn = _inverse(size, ctx, loc, scale)
    return (drawn / (1 - drawn)).log() * scale + loc


def rayleigh(scale: Any = 1.0, size: Any = None, ctx: Context | None = None) -> Any:
    """Numbers of Rayleigh's distribution."""
    return (_inverse(size, ctx, scale).log() * -2).sqrt() * scale


def weibull(a: Any, size: Any = None, ctx: Context | None = None) -> Any:
    """Numbers of Weibull's distribution."""
    return (-(_inverse(size, ctx, a).log())) ** (1 / a)


def pareto(a: Any, size: Any = None, ctx: Context | None = None) -> Any:
    """Numbers of a Pareto distribution that begins at 0."""
    return _inverse(size, ctx, a) ** (-1 / a) - 1


def power(a: Any, size: Any = None, ctx: Context | None = None) -> Any:
    """Numbers from 0 to 1, large ones more often."""
    return _inverse(size, ctx, a) ** (1 / a)


def multivariate_normal(mean: Any, cov: Any, size: Any = None, ctx: Context | None = None) -> Any:
    """Lines of numbers of a normal distribution with these means and covariances."""
    centre = taken(mean)
    sizes = _sizes(size) if size is not None else ()
    drawn = normal(size=(*sizes, len(centre)), ctx=ctx)
    return dot(drawn, linalg.cholesky(cov).T) + centre
