"""Decode and encode images in files' formats by Pillow, which is there where somebody has installed it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.mx.base.errors import MXNetError
from weft.mx.operators.table import computes

FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".bmp": "BMP", ".webp": "WEBP"}


def _pillow() -> Any:
    try:
        import PIL.Image  # noqa: PLC0415  # optional: whoever reads no images needs none
        import PIL.ImageOps  # noqa: PLC0415
    except ImportError as error:
        raise MXNetError("images are decoded by Pillow, which is not here: pip install pillow") from error
    return PIL


def decoded(data: bytes, flag: int = 1, to_rgb: bool = True) -> Tensor:
    """The pixels of an image, (rows, columns, channels); `flag` 0 is for grey, `to_rgb` else blue comes first."""
    pillow = _pillow()
    if not data:
        raise MXNetError("Decoding failed. Invalid image file: it is empty")
    try:
        with pillow.Image.open(io.BytesIO(data)) as opened:
            if flag == 0:
                opened.draft("L", opened.size)
            image = pillow.ImageOps.exif_transpose(opened)
            image = image if flag == 0 and image.mode == "L" else image.convert("RGB")
    except (OSError, SyntaxError, ValueError, pillow.Image.DecompressionBombError) as error:
        raise MXNetError(f"Decoding failed. Invalid image file: {error}") from error
    pixels = np.array(image)
    if flag == 0:
        pixels = _brightness(pixels) if pixels.ndim == 3 else pixels
        return torch.from_numpy(pixels[..., None])
    return torch.from_numpy(pixels if to_rgb else pixels[..., ::-1].copy())


def _brightness(pixels: Any) -> Any:
    """Grey as libpng has it: in steps of 1 / 32768, and what is grey stays."""
    red, green, blue = (pixels[..., channel].astype(np.int64) for channel in range(3))
    found = (red * 9797 + green * 19234 + blue * 3737) >> 15
    return np.where((red == green) & (green == blue), red, found).astype(np.uint8)


def encoded(pixels: Any, form: str, quality: int) -> bytes:
    """The file of an image whose channels are blue, green and red, or of a grey one."""
    pillow = _pillow()
    kind = FORMATS.get(form.lower())
    if kind is None:
        raise ValueError(f"failed to encode image: {form} is none of {', '.join(FORMATS)}")
    array = np.asarray(pixels)
    array = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
    image = pillow.Image.fromarray(array[..., ::-1] if array.ndim == 3 else array)
    written = io.BytesIO()
    options = {"compress_level": min(quality, 9)} if kind == "PNG" else {"quality": quality}
    image.save(written, kind, **options)
    return written.getvalue()


@computes("_cvimdecode", by_value=True)
def decode_image(p: Any, data: Tensor) -> Tensor:
    """An image of the bytes of its file."""
    return decoded(data.numpy().tobytes(), p.flag, p.to_rgb)


@computes("_cvimread", by_value=True, creates=True)
def read_image(p: Any) -> Tensor:
    """An image of a file."""
    return decoded(file_bytes(p.filename), p.flag, p.to_rgb)


def file_bytes(name: Any) -> bytes:
    """The bytes of a file."""
    try:
        with open(name, "rb") as file:  # noqa: PTH123  # as it was given
            return file.read()
    except OSError as error:
        raise MXNetError(f"Open {name}: {error}") from error
