"""Functions of PyTorch that make numbers of sizes, written with functions that do not.

Where no size among their arguments varies, PyTorch's own run. So they do for arguments that these do not cover, and for
those that PyTorch refuses: its own say why. The names of parameters are PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves

NUMBERS = (int, float, torch.SymInt, torch.SymFloat)
SMALLEST_ENVELOPE = 1e-11  # of overlapping windows, as PyTorch has it
Own = Callable[..., Any]


def _varies(thing: Any) -> bool:
    """Whether something is a number that is made of sizes, or a tensor that has such sizes."""
    if isinstance(thing, Tensor):
        return any(isinstance(size, torch.SymInt) for size in thing.shape)
    return isinstance(thing, (torch.SymInt, torch.SymFloat))


def _linspace(own: Own, start: Any, end: Any, steps: Any = None, **named: Any) -> Any:
    dtype = named.get("dtype") or torch.get_default_dtype()
    is_covered = isinstance(start, NUMBERS) and isinstance(end, NUMBERS) and dtype.is_floating_point
    if not is_covered or named.keys() - {"dtype", "device", "requires_grad"} or steps < 2:
        return own(start, end, steps, **named)
    device = named.get("device")
    numbers = torch.arange(steps, dtype=dtype, device=device)
    first, last = (torch.full((), number, dtype=dtype, device=device) for number in (start, end))
    step = (last - first) / (steps - 1)
    # PyTorch counts from both ends.
    found = torch.where(numbers < steps // 2, first + step * numbers, last - step * ((steps - 1) - numbers))
    return found.requires_grad_() if named.get("requires_grad") else found


def _vander(own: Own, x: Tensor, N: int | None = None, increasing: bool = False) -> Any:  # noqa: N803 - PyTorch's name
    if x.dim() != 1 or N is None or N < 2:
        return own(x, N, increasing)
    whole = x if x.is_floating_point() or x.is_complex() else x.long()
    column = whole.unsqueeze(-1)
    found = torch.cat([torch.ones_like(column), column.expand(-1, N - 1).cumprod(-1)], -1)
    return found if increasing else found.flip(-1)


def _kron(_: Own, input: Tensor, other: Tensor) -> Any:
    rank = max(input.dim(), other.dim())
    one, two = ([1] * (rank - tensor.dim()) + [*tensor.shape] for tensor in (input, other))
    outer = input.reshape([size for pair in zip(one, [1] * rank, strict=True) for size in pair])
    inner = other.reshape([size for pair in zip([1] * rank, two, strict=True) for size in pair])
    return (outer * inner).reshape([size * times for size, times in zip(one, two, strict=True)])


def _chunk(own: Own, input: Tensor, chunks: int, dim: int = 0) -> Any:
    if chunks < 2 or not -input.dim() <= dim < input.dim():
        return own(input, chunks, dim)
    size = input.shape[dim]
    step = (size + chunks - 1) // chunks
    if step * (chunks - 1) >= size:  # so few that there are fewer pieces
        return own(input, chunks, dim)
    pieces = [input.narrow(dim, number * step, step) for number in range(chunks - 1)]
    return (*pieces, input.narrow(dim, step * (chunks - 1), size - step * (chunks - 1)))


def _made(data: Any, dtype: torch.dtype, device: Any) -> Tensor:
    if isinstance(data, (list, tuple)):
        return torch.stack([_made(item, dtype, device) for item in data])
    return torch.full((), data, dtype=dtype, device=device)


def _tensor(own: Own, data: Any, **named: Any) -> Any:
    leaves = tree_leaves(data)
    is_covered = bool(leaves) and all(type(leaf) in NUMBERS for leaf in leaves) and _is_even(data)
    if not is_covered or named.keys() - {"dtype", "device", "requires_grad"}:
        return own(data, **named)
    has_fraction = any(isinstance(leaf, (float, torch.SymFloat)) for leaf in leaves)
    dtype = named.get("dtype") or (torch.get_default_dtype() if has_fraction else torch.int64)
    found = _made(data, dtype, named.get("device"))
    return found.requires_grad_() if named.get("requires_grad") else found


def _new_tensor(own: Own, tensor: Tensor, data: Any, **named: Any) -> Any:
    def owns(data: Any, **_: Any) -> Any:
        return own(tensor, data, **named)

    return _tensor(owns, data, **{"dtype": tensor.dtype, "device": tensor.device, **named})


def _is_even(data: Any) -> bool:
    """Whether nested lists have as many items at each level, and some."""
    if not isinstance(data, (list, tuple)):
        return True
    lengths = {len(item) if isinstance(item, (list, tuple)) else None for item in data}
    return len(lengths) == 1 and all(map(_is_even, data))


def _affine_grid(own: Own, theta: Tensor, size: Sequence[Any], align_corners: bool | None = None) -> Any:
    if len(size) != 4 or theta.dim() != 3 or align_corners is None:
        return own(theta, size, align_corners)
    if not theta.is_floating_point() or theta.shape[-2:] != (2, 3):
        return own(theta, size, align_corners)
    count, _, height, width = size

    def line(steps: Any) -> Tensor:
        found: Tensor = torch.linspace(-1, 1, steps, dtype=theta.dtype, device=theta.device)
        return found if align_corners else found * (steps - 1) / steps

    rows = [line(width).expand(height, width), line(height).unsqueeze(-1).expand(height, width)]
    base = torch.stack([*rows, torch.ones(height, width, dtype=theta.dtype, device=theta.device)], -1)
    flat = base.reshape(1, height * width, 3).expand(count, -1, -1)
    return flat.bmm(theta.transpose(1, 2)).reshape(count, height, width, 2)


def _one_hot(own: Own, tensor: Tensor, num_classes: Any = -1) -> Any:
    if num_classes < 1 or tensor.dtype != torch.int64:
        return own(tensor, num_classes)
    # Scattering refuses classes that there are not, and PyTorch's own says so.
    return torch.zeros(*tensor.shape, num_classes, dtype=torch.int64, device=tensor.device).scatter(
        -1, tensor.unsqueeze(-1), 1
    )


def _window_of(window: Tensor | None, length: int, size: int, like: Tensor) -> Tensor:
    """The window of a frame, with nothing on both sides where it is shorter."""
    dtype = like.dtype if not like.is_complex() else like.real.dtype
    found = torch.ones(length, dtype=dtype, device=like.device) if window is None else window
    left = (size - length) // 2
    return found if length == size else functional.pad(found, (left, size - length - left))


def _stft(
    own: Own,
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:
    given = (n_fft, hop_length, win_length, window, center, pad_mode, normalized, onesided)
    hop, length = n_fft // 4 if hop_length is None else hop_length, n_fft if win_length is None else win_length
    is_real = input.is_floating_point() and (window is None or window.is_floating_point())
    is_covered = is_real and input.dim() in (1, 2) and align_to_window is None
    is_right = hop > 0 and 0 < length <= n_fft and (window is None or window.shape == (length,))
    pad = n_fft // 2 if center else 0
    if (
        not (is_covered and is_right)
        or return_complex is None
        or input.shape[-1] <= pad
        or input.shape[-1] < n_fft - 2 * pad
    ):
        return own(input, *given, return_complex=return_complex, align_to_window=align_to_window)
    rows = input if input.dim() == 2 else input.unsqueeze(0)
    if center:
        rows = functional.pad(rows.unsqueeze(0), (pad, pad), mode=pad_mode).squeeze(0)
    frames = rows.unfold(1, n_fft, hop)
    if window is not None or length < n_fft:
        frames = frames * _window_of(window, length, n_fft, input)
    transform = torch.fft.rfft if onesided is None or onesided else torch.fft.fft
    found = transform(frames, norm="ortho" if normalized else "backward").transpose(1, 2)
    found = found if input.dim() == 2 else found.squeeze(0)
    return found if return_complex else torch.view_as_real(found)


def _istft(
    own: Own,
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Any:
    hop, reach = n_fft // 4 if hop_length is None else hop_length, n_fft if win_length is None else win_length
    given = (n_fft, hop_length, win_length, window, center, normalized, onesided, length, return_complex)
    is_half = onesided is None or onesided
    is_covered = input.is_complex() and input.dim() in (2, 3) and length is None
    is_right = 0 < hop <= reach <= n_fft and (window is None or window.shape == (reach,)) and not return_complex
    if not (is_covered and is_right) or input.shape[-2] != (n_fft // 2 + 1 if is_half else n_fft):
        return own(input, *given)
    rows = (input if input.dim() == 3 else input.unsqueeze(0)).transpose(1, 2)
    norm = "ortho" if normalized else "backward"
    if not is_half:
        rows = rows.narrow(-1, 0, n_fft // 2 + 1)
    weights = _window_of(window, reach, n_fft, input)
    frames = torch.fft.irfft(rows, n_fft, norm=norm) * weights
    count = rows.shape[1]
    whole = n_fft + hop * (count - 1)

    def overlapped(frames: Tensor) -> Tensor:
        back: Tensor = torch.ops.aten.unfold_backward(frames, [frames.shape[0], whole], 1, n_fft, hop)
        pad = n_fft // 2 if center else 0
        return back.narrow(1, pad, whole - 2 * pad)

    envelope = overlapped((weights * weights).expand(1, count, n_fft))
    if envelope.abs().min() < SMALLEST_ENVELOPE:
        return own(input, *given)
    found = overlapped(frames) / envelope
    return found if input.dim() == 3 else found.squeeze(0)


WRITTEN: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        torch.linspace: _linspace,
        torch.vander: _vander,
        torch.kron: _kron,
        Tensor.nbytes.__get__: lambda _, tensor: tensor.numel() * tensor.element_size(),  # type: ignore[attr-defined]
        Tensor.kron: _kron,
        torch.chunk: _chunk,
        Tensor.chunk: _chunk,
        torch.tensor: _tensor,
        torch.as_tensor: _tensor,
        Tensor.new_tensor: _new_tensor,
        functional.affine_grid: _affine_grid,
        functional.one_hot: _one_hot,
        torch.stft: _stft,
        Tensor.stft: _stft,
        torch.istft: _istft,
        Tensor.istft: _istft,
    }
)


class OpenFunction:
    """A function that is written with others, which are heard as if the code called them."""

    def __init__(self, written: Callable[..., Any], function: Own, sized: SizedFunctions) -> None:
        self._written, self._function, self._sized = written, function, sized

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Run it; PyTorch's own where it does not cover the arguments."""
        return self._written(self._own, *given, **named)

    def _own(self, *given: Any, **named: Any) -> Any:
        with self._sized.left_alone():
            return self._function(*given, **named)


class SizedFunctions:
    """Says in traces of one program which calls of such functions are those that make a number of a size.

    A trace whose sizes are symbols tells by the arguments. One that it is compared with, whose sizes are numbers, has
    the same calls in the same order.
    """

    def __init__(self) -> None:
        self._known: tuple[bool, ...] | None = None
        self._asked: list[bool] = []  # in this trace
        self._seen: list[bool] = []  # in one that told
        self._is_off = False

    def begin(self) -> None:
        """Begin a trace."""
        self._seen = self._asked if any(self._asked) else self._seen
        self._asked = []

    def learns(self) -> bool:
        """Whether traces have shown what those before them did not know."""
        self.begin()
        if self._known is not None or not self._seen:
            return False
        self._known = tuple(self._seen)
        return True

    def taken(self, functions: tuple[Own, Own], arguments: Any, keywords: Any) -> tuple[Own, Any, Any]:
        """What to call in the place of a function, with its arguments: it, and itself checked."""
        given, function = functions
        try:
            written = None if self._is_off else WRITTEN.get(given)
        except TypeError:  # one that cannot be told from others
            written = None
        if written is None:
            return function, arguments, keywords
        number = len(self._asked)
        if self._known is None:
            self._asked.append(any(map(_varies, tree_leaves((arguments, keywords)))))
        else:
            self._asked.append(number < len(self._known) and self._known[number])
        return OpenFunction(written, function, self) if self._asked[-1] else function, arguments, keywords

    @contextmanager
    def left_alone(self) -> Iterator[None]:
        """Let PyTorch's own functions run."""
        self._is_off = True
        try:
            yield
        finally:
            self._is_off = False
