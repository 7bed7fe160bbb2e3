"""Change images by chance: the augmenters of `mx.image`, each a call that takes an image and gives one."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.mx.arrays import nd
from weft.mx.arrays.ndarray import NDArray
from weft.mx.training.image_functions import (
    Size,
    center_crop,
    color_normalize,
    imresize,
    random_crop,
    random_size_crop,
    resize_short,
)

GRAY = ((0.299, 0.587, 0.114),)
TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])
FROM_YIQ = np.array([[1.0, 0.956, 0.621], [1.0, -0.272, -0.647], [1.0, -1.107, 1.705]])
MEAN, STD = (123.68, 116.28, 103.53), (58.395, 57.12, 57.375)  # of ImageNet
# How light of three principal colours changes red, green and blue.
EIGENVALUES = np.array([55.46, 4.794, 1.148])
EIGENVECTORS = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])


def _plain(given: Any) -> Any:
    return (
        given.asnumpy().tolist()
        if isinstance(given, NDArray)
        else given.tolist()
        if isinstance(given, np.ndarray)
        else given
    )


class Augmenter:
    """A change of images, which may be written as JSON."""

    def __init__(self, **given: Any) -> None:
        self._kwargs = {name: _plain(value) for name, value in given.items()}

    def dumps(self) -> Any:
        """Its name and parameters as JSON."""
        return json.dumps([type(self).__name__.lower(), self._kwargs])

    def __call__(self, src: NDArray) -> NDArray:
        """Change an image."""
        raise NotImplementedError("Must override implementation.")


class SequentialAug(Augmenter):
    """Some changes, one after the other."""

    def __init__(self, ts: Sequence[Augmenter]) -> None:
        super().__init__()
        self.ts = ts

    def dumps(self) -> Any:
        """Its name, and what its parts write."""
        return [type(self).__name__.lower(), [each.dumps() for each in self.ts]]

    def __call__(self, src: NDArray) -> NDArray:
        """Change an image."""
        for each in self.ts:
            src = each(src)
        return src


class RandomOrderAug(SequentialAug):
    """Some changes in a random order."""

    def __call__(self, src: NDArray) -> NDArray:
        """Change an image."""
        random.shuffle(self.ts)  # type: ignore[arg-type]  # it is a list
        return super().__call__(src)


class ResizeAug(Augmenter):
    """Give the shorter side a size."""

    def __init__(self, size: int, interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size, self.interp = size, interp

    def __call__(self, src: NDArray) -> NDArray:
        """Change an image."""
        return resize_short(src, self.size, self.interp)


class ForceResizeAug(Augmenter):
    """Give both sides a size."""

    def __init__(self, size: Size, interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size, self.interp = size, interp

    def __call__(self, src: NDArray) -> NDArray:
        """Change an image."""
        return imresize(src, *self.size, interp=self.interp)


class RandomCropAug(Augmenter):
    """Cut out a random box."""

    def __init__(self, size: Size, interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size, self.interp = size, interp

    def __call__(self, src: NDArray) -> NDArray:
        """Change an image."""
        return random_crop(src, self.size, self.interp)[0]


class RandomSizedCropAug(Augmenter):
    """Cut out a box of random area and shape."""

    def __init__(self, size: Size, area: Any, ratio: tuple[float, float], interp: int = 2, **given: Any) -> None:
        area = given.pop("min_area", area)
        super().__init__(size=size, area=area, ratio=ratio, interp=interp)
        self.size, self.area, self.ratio, self.interp = size, area, ratio, interp
        if given:
            raise AssertionError("unexpected keyword arguments for `RandomSizedCropAug`.")

    def __call__(self, src: NDArray) -> NDArray:
        """Change an image."""
        return random_size_crop(src, self.size, self.area, self.ratio, self.interp)[0]


class CenterCropAug(Augmenter):
    """Cut out the middle."""

    def __init__(self, size: Size, interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size, self.interp = size, interp

    def __call__(self, src: NDArray) -> NDArray:
        """Change an image."""
        return center_crop(src, self.size, self.interp)[0]


class BrightnessJitterAug(Augmenter):
    """Make brighter or darker, in place."""

    def __init__(self, brightness: float) -> None:
        super().__init__(brightness=brightness)
        self.brightness = brightness

    def __call__(self, src: NDArray) -> NDArray:
        """Change an image."""
        src *= 1.0 + random.uniform(-self.brightness, self.brightness)
        return src


class ContrastJitterAug(Augmenter):
    """Bring nearer to the mean brightness, or further from it, in place."""

    def __init__(self, contrast: float) -> None:
        super().__init__(contrast=contrast)
        self.contrast = contrast

    def __call__(self, src: NDArray) -> NDArray:
        """Change an image."""
        share = 1.0 + random.uniform(-self.contrast, self.contrast)
        bright = src * nd.array((GRAY,))
        bright = (3.0 * (1.0 - share) / bright.size) * bright.sum()
        src *= share
        src += bright
        return src


class SaturationJitterAug(Augmenter):
    """Bring nearer to grey, or further from it, in place."""

    def __init__(self, saturation: float) -> None:
        super().__init__(saturation=saturation)
        self.saturation = saturation

    def __call__(self, src: NDArray) -> NDArray:
        """Change an image."""
        share = 1.0 + random.uniform(-self.saturation, self.saturation)
        bright = (src * nd.array((GRAY,))).sum(axis=2, keepdims=True)
        src *= share
        src += bright * (1.0 - share)
        return src


class HueJitterAug(Augmenter):
    """Turn the colours."""

    def __init__(self, hue: float) -> None:
        super().__init__(hue=hue)
        self.hue = hue

    def __call__(self, src: NDArray) -> NDArray:
        """Change an image."""
        angle = random.uniform(-self.hue, self.hue) * np.pi
        turn = np.array([[1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, np.sin(angle), np.cos(angle)]])
        found: NDArray = nd.FRONTEND.function("dot")(src, nd.array((FROM_YIQ @ turn @ TO_YIQ).T))
        return found


class ColorJitterAug(RandomOrderAug):
    """Change brightness, contrast and saturation in a random order."""

    def __init__(self, brightness: float, contrast: float, saturation: float) -> None:
        kinds = (BrightnessJitterAug, ContrastJitterAug, SaturationJitterAug)
        reaches = (brightness, contrast, saturation)
        super().__init__([kind(reach) for kind, reach in zip(kinds, reaches, strict=True) if reach > 0])


class LightingAug(Augmenter):
    """Add random light of three principal colours, in place."""

    def __init__(self, alphastd: float, eigval: Any, eigvec: Any) -> None:
        super().__init__(alphastd=alphastd, eigval=eigval, eigvec=eigvec)
        self.alphastd, self.eigval, self.eigvec = alphastd, eigval, eigvec

    def __call__(self, src: NDArray) -> NDArray:
        """Change an image."""
        amounts = np.random.normal(0, self.alphastd, size=(3,))
        src += nd.array(np.dot(np.asarray(self.eigvec) * amounts, self.eigval))
        return src


class ColorNormalizeAug(Augmenter):
    """Take means away and divide by deviations, in place."""

    def __init__(self, mean: Any, std: Any) -> None:
        super().__init__(mean=mean, std=std)
        self.mean, self.std = (
            each if each is None or isinstance(each, NDArray) else nd.array(each) for each in (mean, std)
        )

    def __call__(self, src: NDArray) -> NDArray:
        """Change an image."""
        return color_normalize(src, self.mean, self.std)


class RandomGrayAug(Augmenter):
    """Make grey, by chance."""

    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p

    def __call__(self, src: NDArray) -> NDArray:
        """Change an image."""
        if random.random() >= self.p:
            return src
        found: NDArray = nd.FRONTEND.function("dot")(src, nd.array([[0.21] * 3, [0.72] * 3, [0.07] * 3]))
        return found


class HorizontalFlipAug(Augmenter):
    """Turn left to right, by chance."""

    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p

    def __call__(self, src: NDArray) -> NDArray:
        """Change an image."""
        return src.flip(axis=1) if random.random() < self.p else src


class CastAug(Augmenter):
    """Give another element type."""

    def __init__(self, typ: str = "float32") -> None:
        super().__init__(type=typ)
        self.typ = typ

    def __call__(self, src: NDArray) -> NDArray:
        """Change an image."""
        return src.astype(self.typ)


def _of_channels(given: Any, standard: Sequence[float]) -> Any:
    if given is True:
        return nd.array(standard)
    if given is not None and (not isinstance(given, (np.ndarray, NDArray)) or given.shape[0] not in (1, 3)):
        raise AssertionError("mean and std are arrays of 1 or 3 numbers, or True")
    return given


def color_augmenters(
    brightness: float = 0,
    contrast: float = 0,
    saturation: float = 0,
    hue: float = 0,
    pca_noise: float = 0,
    mean: Any = None,
    std: Any = None,
) -> list[Augmenter]:
    """Those changes of colours that are asked for."""
    found: list[Augmenter] = []
    if brightness or contrast or saturation:
        found.append(ColorJitterAug(brightness, contrast, saturation))
    found += [HueJitterAug(hue)] if hue else []
    found += [LightingAug(pca_noise, EIGENVALUES, EIGENVECTORS)] if pca_noise > 0 else []
    mean, std = _of_channels(mean, MEAN), _of_channels(std, STD)
    return found + ([ColorNormalizeAug(mean, std)] if mean is not None or std is not None else [])


def CreateAugmenter(
    data_shape: tuple[int, int, int],
    resize: int = 0,
    rand_crop: bool = False,
    rand_resize: bool = False,
    rand_mirror: bool = False,
    mean: Any = None,
    std: Any = None,
    brightness: float = 0,
    contrast: float = 0,
    saturation: float = 0,
    hue: float = 0,
    pca_noise: float = 0,
    rand_gray: float = 0,
    inter_method: int = 2,
) -> list[Augmenter]:
    """The usual list of changes: size, box, mirror, colours, means."""
    size = data_shape[2], data_shape[1]
    found: list[Augmenter] = [ResizeAug(resize, inter_method)] if resize > 0 else []
    if rand_resize:
        if not rand_crop:
            raise AssertionError("rand_resize is of random boxes: give rand_crop too")
        found.append(RandomSizedCropAug(size, 0.08, (3.0 / 4.0, 4.0 / 3.0), inter_method))
    else:
        found.append((RandomCropAug if rand_crop else CenterCropAug)(size, inter_method))
    found += [HorizontalFlipAug(0.5)] if rand_mirror else []
    found.append(CastAug())
    found += color_augmenters(brightness, contrast, saturation, hue, pca_noise)
    found += [RandomGrayAug(rand_gray)] if rand_gray > 0 else []
    return found + color_augmenters(mean=mean, std=std)
