"""Draw random arrays, each context from its own generator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from weft.mx.base.errors import MXNetError
from weft.mx.operators.table import computes, type_of

Generator = torch.Generator | None


def _check(x: Tensor, holds: bool, sentence: str) -> None:
    """Wrong parameters are an error of the kernel: not yet when only sizes are asked for."""
    if not holds and x.device.type != "meta":
        raise MXNetError(sentence)


def _normal(x: Tensor, p: Any, generator: Generator) -> Tensor:
    _check(
        x,
        p.scale > 0,
        f"Check failed: param.scale > 0 ({p.scale:g} vs. 0) : scale parameter in gaussian has to be positive",
    )
    return x.normal_(p.loc, abs(p.scale), generator=generator)


def _uniform(x: Tensor, p: Any, generator: Generator) -> Tensor:
    _check(
        x,
        p.high >= p.low,
        "Check failed: param.high >= param.low : low must be less or equal to high in uniform distribution",
    )
    return x.uniform_(p.low, max(p.low, p.high), generator=generator)


def _exponential(x: Tensor, p: Any, generator: Generator) -> Tensor:
    _check(
        x, p.lam > 0, "Check failed: param.lam > 0 : lambda parameter in exponential distribution has to be positive"
    )
    return x.exponential_(abs(p.lam) or 1, generator=generator)


def _gamma_like(shape: Tensor, generator: Generator) -> Tensor:
    """Gamma variates of these shapes, by Marsaglia and Tsang's rejection, 24 tries each."""
    boosted = torch.where(shape < 1, shape + 1, shape)
    d = boosted - 1 / 3
    c = 1 / torch.sqrt(9 * d)
    found, done = torch.zeros_like(shape), torch.zeros_like(shape, dtype=torch.bool)
    for _ in range(24):
        normal = torch.empty_like(shape).normal_(generator=generator)
        uniform = torch.empty_like(shape).uniform_(generator=generator)
        v = (1 + c * normal) ** 3
        good = (v > 0) & (torch.log(uniform) < 0.5 * normal**2 + d - d * v + d * torch.log(v.clamp(min=1e-30)))
        found = torch.where(good & ~done, d * v, found)
        done = done | good
    last = torch.empty_like(shape).uniform_(generator=generator) ** (1 / shape)
    return torch.where(shape < 1, found * last, found)


def _gamma(x: Tensor, p: Any, generator: Generator) -> Any:
    _check(
        x,
        p.alpha > 0 and p.beta > 0,
        "Check failed: alpha and beta parameters in gamma distribution have to be positive",
    )
    return _gamma_like(torch.full_like(x, abs(p.alpha) or 1), generator) * p.beta


def _poisson(x: Tensor, p: Any, generator: Generator) -> Tensor:
    _check(
        x, p.lam >= 0, "Check failed: param.lam >= 0 : lambda parameter in poisson distribution has to be non-negative"
    )
    return torch.poisson(torch.full_like(x, abs(p.lam)), generator=generator)


def _negative_binomial(x: Tensor, p: Any, generator: Generator) -> Tensor:
    _check(x, p.k >= 0 and 0 < p.p <= 1, "Check failed: k >= 0 and 0 < p <= 1 in negative binomial distribution")
    rate = _gamma_like(torch.full_like(x, float(p.k) or 1), generator) * (1 - p.p) / (p.p or 1)
    return torch.poisson(rate, generator=generator)


def _generalized(x: Tensor, p: Any, generator: Generator) -> Tensor:
    _check(
        x, p.mu >= 0 and p.alpha >= 0, "Check failed: mu and alpha are non-negative in generalized negative binomial"
    )
    if not p.alpha:
        return torch.poisson(torch.full_like(x, abs(p.mu)), generator=generator)
    rate = _gamma_like(torch.full_like(x, 1 / abs(p.alpha)), generator) * abs(p.alpha) * abs(p.mu)
    return torch.poisson(rate, generator=generator)


DRAWS: dict[str, Callable[[Tensor, Any, Generator], Tensor]] = {
    "normal": _normal,
    "uniform": _uniform,
    "exponential": _exponential,
    "gamma": _gamma,
    "poisson": _poisson,
    "negative_binomial": _negative_binomial,
    "generalized_negative_binomial": _generalized,
}


def _draw(name: str, draw: Callable[[Tensor, Any, Generator], Tensor]) -> None:
    @computes(f"_random_{name}", random=True, creates=True)
    def drawn(p: Any, generator: Generator) -> Tensor:
        return draw(torch.empty(p.shape or (1,), dtype=type_of(p.dtype, torch.float32)), p, generator)

    @computes(f"_random_{name}_like", random=True)
    def drawn_like(p: Any, generator: Generator, x: Tensor) -> Tensor:
        return draw(torch.empty_like(x), p, generator)


for _name, _row in DRAWS.items():
    _draw(_name, _row)


@computes("_random_randint", random=True, creates=True)
def randint(p: Any, generator: Generator) -> Tensor:
    """Whole numbers from a range."""
    return torch.empty(p.shape or (1,), dtype=type_of(p.dtype, torch.int32)).random_(p.low, p.high, generator=generator)


def _spread(p: Any, parameters: Tensor) -> tuple[Tensor, int]:
    """Each parameter repeated for as many draws as are wanted of it, and how many that are."""
    wanted = type_of(p.dtype, parameters.dtype)
    sizes = (*parameters.shape, *p.shape)
    return parameters.reshape(*parameters.shape, *[1] * len(p.shape)).expand(sizes).to(wanted), len(p.shape)


@computes("_sample_uniform", random=True)
def sample_uniform(p: Any, generator: Generator, low: Tensor, high: Tensor) -> Tensor:
    """Uniform numbers, each element of the bounds for itself."""
    bottom, top = _spread(p, low)[0], _spread(p, high)[0]
    return bottom + (top - bottom) * torch.empty_like(bottom, memory_format=torch.contiguous_format).uniform_(
        generator=generator
    )


@computes("_sample_normal", random=True)
def sample_normal(p: Any, generator: Generator, mu: Tensor, sigma: Tensor) -> Tensor:
    """Normal numbers, each element of the parameters for itself."""
    mean = _spread(p, mu)[0]
    return mean + _spread(p, sigma)[0] * torch.empty_like(mean, memory_format=torch.contiguous_format).normal_(
        generator=generator
    )


@computes("_sample_exponential", random=True)
def sample_exponential(p: Any, generator: Generator, lam: Tensor) -> Tensor:
    """Exponential numbers, each element of the rate for itself."""
    rate = _spread(p, lam)[0]
    return torch.empty_like(rate, memory_format=torch.contiguous_format).exponential_(generator=generator) / rate


@computes("_sample_poisson", random=True)
def sample_poisson(p: Any, generator: Generator, lam: Tensor) -> Tensor:
    """Poisson numbers, each element of the rate for itself."""
    return torch.poisson(_spread(p, lam)[0].contiguous(), generator=generator)


@computes("_sample_gamma", random=True)
def sample_gamma(p: Any, generator: Generator, alpha: Tensor, beta: Tensor) -> Tensor:
    """Gamma numbers, each element of the parameters for itself."""
    return _gamma_like(_spread(p, alpha)[0].contiguous(), generator) * _spread(p, beta)[0]


def _poisson_of_gamma(k: Tensor, scale: Tensor, generator: Generator) -> Tensor:
    """Negative binomial numbers: Poisson's, of a rate that is drawn."""
    return torch.poisson(_gamma_like(k.contiguous(), generator) * scale, generator=generator)


@computes("_sample_negative_binomial", random=True)
def sample_negative_binomial(p: Any, generator: Generator, k: Tensor, chance: Tensor) -> Tensor:
    """Failures before so many successes, each element of the parameters for itself."""
    count, chance = _spread(p, k)[0], _spread(p, chance)[0]
    return _poisson_of_gamma(count, (1 - chance) / chance, generator)


@computes("_sample_generalized_negative_binomial", random=True)
def sample_generalized(p: Any, generator: Generator, mu: Tensor, alpha: Tensor) -> Tensor:
    """The same by mean and dispersion."""
    mean, spread = _spread(p, mu)[0], _spread(p, alpha)[0]
    drawn = _poisson_of_gamma(1 / spread.clamp(min=1e-30), spread * mean, generator)
    return torch.where(spread > 0, drawn, torch.poisson(mean.contiguous(), generator=generator))


@computes("_sample_multinomial", random=True, outputs=lambda p: 2 if p.get_prob else 1)
def sample_multinomial(p: Any, generator: Generator, x: Tensor) -> Any:
    """Places drawn by their probabilities."""
    count = 1
    for size in p.shape or ():
        count *= size
    rows = x.reshape(-1, x.shape[-1])
    if x.device.type == "meta":
        drawn = torch.empty(rows.shape[0], count, dtype=torch.int64, device="meta")
    else:
        drawn = torch.multinomial(rows, count, replacement=True, generator=generator)
    sizes = (*x.shape[:-1], *(p.shape or ())) or (1,)
    places = drawn.reshape(sizes).to(type_of(p.dtype, torch.int32))
    return (places, torch.log(rows.gather(1, drawn)).reshape(sizes)) if p.get_prob else places


@computes("_sample_unique_zipfian", random=True, creates=True, outputs=2)
def sample_unique_zipfian(p: Any, generator: Generator) -> tuple[Tensor, Tensor]:
    """Different whole numbers, small ones more often, and how many were drawn until they were different."""
    rows, count = p.shape if len(p.shape) == 2 else (1, *p.shape)
    found, tries = torch.empty(rows, count, dtype=torch.int64), torch.empty(rows, dtype=torch.int64)
    if found.device.type == "meta":
        return found, tries
    _check(found, count <= p.range_max, f"Check failed: {count} different numbers of {p.range_max} were asked for")
    for row in range(rows):
        drawn: dict[int, None] = {}
        number = 0
        while len(drawn) < count:
            number += 1
            share = float(torch.rand((), generator=generator))
            drawn[(round(math.exp(share * math.log(p.range_max))) - 1) % p.range_max] = None
        found[row], tries[row] = torch.tensor(list(drawn)), number
    return found, tries


@computes("_shuffle", random=True)
def shuffle(_p: Any, generator: Generator, x: Tensor) -> Tensor:
    """The slices of the first axis in a random order."""
    if x.device.type == "meta":
        return x.clone()
    return x[torch.randperm(x.shape[0], generator=generator, device=x.device)]


def _log_gamma_density(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    return alpha * torch.log(beta) + (alpha - 1) * torch.log(x) - beta * x - torch.lgamma(alpha)


def _log_failures(x: Tensor, k: Tensor, chance: Tensor) -> Tensor:
    x = x.detach()
    ways = torch.lgamma(x + k) - torch.lgamma(x + 1) - torch.lgamma(k)
    return ways + k * torch.log(chance) + x * torch.log1p(-chance)


# The logarithm of the density of each distribution, at samples and parameters.
DENSITIES: dict[str, Callable[..., Tensor]] = {
    "uniform": lambda x, low, high: -torch.log(high - low) + 0 * x,
    "normal": lambda x, mu, sigma: -0.5 * ((x - mu) / sigma) ** 2 - torch.log(sigma * (2 * math.pi) ** 0.5),
    "exponential": lambda x, lam: torch.log(lam) - lam * x,
    "gamma": _log_gamma_density,
    "negative_binomial": _log_failures,
    "generalized_negative_binomial": lambda x, mu, alpha: _log_failures(x, 1 / alpha, 1 / (mu * alpha + 1)),
    "poisson": lambda x, lam: (x := x.detach()) * torch.log(lam) - torch.lgamma(x + 1) - lam,
}


def _density(name: str, log_density: Callable[..., Tensor]) -> None:
    @computes(f"_random_pdf_{name}")
    def density(p: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        spread = [each.reshape(*each.shape, *[1] * (x.dim() - each.dim())) for each in parameters]
        found = log_density(x, *spread)
        return found if p.is_log else torch.exp(found)


for _name, _row in DENSITIES.items():
    _density(_name, _row)


@computes("_random_pdf_dirichlet")
def dirichlet_density(p: Any, x: Tensor, alpha: Tensor) -> Tensor:
    """The density of shares that add up to 1."""
    alpha = alpha.reshape(*alpha.shape[:-1], *[1] * (x.dim() - alpha.dim()), alpha.shape[-1])
    found = ((alpha - 1) * torch.log(x)).sum(-1) + torch.lgamma(alpha.sum(-1)) - torch.lgamma(alpha).sum(-1)
    return found if p.is_log else torch.exp(found)
