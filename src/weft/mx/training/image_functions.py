"""Read images, and cut, turn and normalize them: the functions of `mx.image`."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.mx.arrays import nd
from weft.mx.arrays.invoke import invoke_one
from weft.mx.arrays.ndarray import NDArray
from weft.mx.base.errors import MXNetError
from weft.mx.operators.codecs import decoded, file_bytes

Size = tuple[int, int]


def _given_to(out: NDArray | None, made: NDArray) -> NDArray:
    return made if out is None else made.copyto(out)


def imdecode(buf: Any, flag: int = 1, to_rgb: bool | int = True, out: NDArray | None = None) -> NDArray:
    """The image of a file's bytes: rows, columns, and red, green and blue."""
    if not isinstance(buf, NDArray) and len(buf) == 0:
        raise MXNetError("Decoding failed. Invalid image file: it is empty")
    data = buf.asnumpy().tobytes() if isinstance(buf, NDArray) else bytes(buf)
    return _given_to(out, nd.from_torch(decoded(data, flag, bool(to_rgb))))


def imread(filename: str, flag: int = 1, to_rgb: bool | int = True, out: NDArray | None = None) -> NDArray:
    """The image of a file."""
    return imdecode(file_bytes(filename), flag, to_rgb, out)


def imresize(src: NDArray, w: int, h: int, interp: int = 1, out: NDArray | None = None) -> NDArray:
    """An image in another size."""
    way = _interp_method(interp, (src.shape[0], src.shape[1], h, w))
    return invoke_one("_cvimresize", src, w=int(w), h=int(h), interp=way, out=out)


def copyMakeBorder(src: NDArray, top: int, bot: int, left: int, right: int, *args: Any, **given: Any) -> NDArray:
    """An image with a border around it."""
    given = {**dict(zip(("type", "value", "values"), args, strict=False)), **given}
    found: NDArray = nd.FRONTEND.function("_cvcopyMakeBorder")(src, top=top, bot=bot, left=left, right=right, **given)
    return found


def _interp_method(interp: int, sizes: Sequence[int] = ()) -> int:
    """The way of resampling that a number means: 9 chooses by (old height, old width, height, width), 10 by chance."""
    if interp == 9:
        if not sizes:
            return 2
        if len(sizes) != 4:
            raise AssertionError("old height, old width, new height and new width are four")
        old_height, old_width, height, width = sizes
        if height > old_height and width > old_width:
            return 2
        return 3 if height < old_height and width < old_width else 1
    if interp == 10:
        return random.randint(0, 4)
    if interp not in (0, 1, 2, 3, 4):
        raise ValueError(f"Unknown interp method {interp}")
    return interp


def scale_down(src_size: Size, size: Size) -> Size:
    """A size of the same shape that fits into an image."""
    (width, height), (most_width, most_height) = size, src_size
    wide, high = float(width), float(height)
    if most_height < high:
        wide, high = wide * most_height / high, float(most_height)
    if most_width < wide:
        wide, high = float(most_width), high * most_width / wide
    return int(wide), int(high)


def resize_short(src: NDArray, size: int, interp: int = 2) -> NDArray:
    """An image whose shorter side has a size."""
    height, width = src.shape[:2]
    if height > width:
        new_height, new_width = size * height // width, size
    else:
        new_height, new_width = size, size * width // height
    return imresize(src, new_width, new_height, interp=_interp_method(interp, (height, width, new_height, new_width)))


def fixed_crop(src: NDArray, x0: int, y0: int, w: int, h: int, size: Size | None = None, interp: int = 2) -> NDArray:
    """A box of an image, perhaps in another size."""
    found: NDArray = nd.FRONTEND.function("slice")(src, begin=(y0, x0, 0), end=(y0 + h, x0 + w, int(src.shape[2])))
    if size is None or (w, h) == size:
        return found
    return imresize(found, *size, interp=_interp_method(interp, (h, w, size[1], size[0])))


def random_crop(src: NDArray, size: Size, interp: int = 2) -> tuple[NDArray, tuple[int, int, int, int]]:
    """A random box of an image, in a size, and where it lies."""
    height, width = src.shape[:2]
    wide, high = scale_down((width, height), size)
    x0, y0 = random.randint(0, width - wide), random.randint(0, height - high)
    return fixed_crop(src, x0, y0, wide, high, size, interp), (x0, y0, wide, high)


def center_crop(src: NDArray, size: Size, interp: int = 2) -> tuple[NDArray, tuple[int, int, int, int]]:
    """The middle of an image, in a size, and where it lies."""
    height, width = src.shape[:2]
    wide, high = scale_down((width, height), size)
    x0, y0 = int((width - wide) / 2), int((height - high) / 2)
    return fixed_crop(src, x0, y0, wide, high, size, interp), (x0, y0, wide, high)


def random_size_crop(
    src: NDArray,
    size: Size,
    area: float | tuple[float, float],
    ratio: tuple[float, float],
    interp: int = 2,
    **given: Any,
) -> tuple[NDArray, tuple[int, int, int, int]]:
    """A box of random area and shape, in a size, and where it lies; the middle, if ten tries do not fit."""
    area = given.pop("min_area", area)
    if given:
        raise AssertionError("unexpected keyword arguments for `random_size_crop`.")
    height, width = src.shape[:2]
    reach = (area, 1.0) if isinstance(area, (int, float)) else area
    for _ in range(10):
        wanted = random.uniform(*reach) * height * width
        shape = math.exp(random.uniform(math.log(ratio[0]), math.log(ratio[1])))
        wide, high = round(math.sqrt(wanted * shape)), round(math.sqrt(wanted / shape))
        if wide <= width and high <= height:
            x0, y0 = random.randint(0, width - wide), random.randint(0, height - high)
            return fixed_crop(src, x0, y0, wide, high, size, interp), (x0, y0, wide, high)
    return center_crop(src, size, interp)


def color_normalize(src: NDArray, mean: Any, std: Any = None) -> NDArray:
    """Take means away, in place, and divide by deviations."""
    if mean is not None:
        src -= mean
    if std is not None:
        src /= std
    return src


def imrotate(src: NDArray, rotation_degrees: Any, zoom_in: bool = False, zoom_out: bool = False) -> NDArray:
    """Turn an image, or several, whose channels come first, around the middle."""
    if zoom_in and zoom_out:
        raise ValueError("`zoom_in` and `zoom_out` cannot be both True")
    if src.dtype is not np.float32:
        raise TypeError("Only `float32` images are supported by this function")
    alone = src.ndim == 3
    if alone and not isinstance(rotation_degrees, (int, float, np.number)):
        raise TypeError("When a single image is passed the rotation angle is required to be a scalar.")
    if src.ndim not in (3, 4):
        raise ValueError("Only 3D and 4D are supported by this function")
    images = src.expand_dims(0) if alone else src
    count, _, height, width = images.shape
    given = rotation_degrees.asnumpy() if isinstance(rotation_degrees, NDArray) else np.asarray(rotation_degrees)
    degrees = np.broadcast_to(given, (count,)) if given.ndim == 0 else given
    if len(degrees) != count:
        raise ValueError("The number of images must be equal to the number of rotation angles")
    angle = (np.pi * degrees.astype(np.float32) / 180).reshape(-1, 1, 1)
    down = np.arange(height, dtype=np.float32).reshape(1, -1, 1) - (height - 1) / 2
    across = np.arange(width, dtype=np.float32).reshape(1, 1, -1) - (width - 1) / 2
    turned_across = (across * np.cos(angle) - down * np.sin(angle)) / ((width - 1) / 2)
    turned_down = (across * np.sin(angle) + down * np.cos(angle)) / ((height - 1) / 2)
    grid = np.stack(np.broadcast_arrays(turned_across, turned_down), 1)
    if zoom_in or zoom_out:
        corner, beside = math.hypot(height, width), math.atan2(height, width)
        angles = beside + np.abs(angle), beside - np.abs(angle)
        wide = np.maximum(*(np.abs(corner * np.cos(each)) for each in angles)) / width
        high = np.maximum(*(np.abs(corner * np.sin(each)) for each in angles)) / height
        grid = grid * (np.maximum(wide, high) if zoom_out else np.minimum(1 / wide, 1 / high))[..., None]
    found = invoke_one("BilinearSampler", images, nd.array(grid, images.context))
    return found[0] if alone else found


def random_rotate(
    src: NDArray, angle_limits: tuple[float, float], zoom_in: bool = False, zoom_out: bool = False
) -> NDArray:
    """Turn an image, or each of several, by a random angle."""
    count = None if src.ndim == 3 else src.shape[0]
    degrees = np.random.uniform(*angle_limits, size=count)
    return imrotate(src, float(degrees) if count is None else nd.array(degrees), zoom_in, zoom_out)
