"""Give batches of images with boxes of objects, which follow where images are cut, padded and mirrored.

An image's label is a line of numbers: how many head the line, how many each object has, what else heads it, then the
objects: a class and the corners of a box as parts of the image's width and height, left, top, right, bottom.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.mx.arrays.ndarray import NDArray, array
from weft.mx.training.image_augmenters import (
    Augmenter,
    CastAug,
    ForceResizeAug,
    HorizontalFlipAug,
    RandomGrayAug,
    ResizeAug,
    color_augmenters,
)
from weft.mx.training.image_functions import copyMakeBorder, fixed_crop
from weft.mx.training.image_iter import ImageIter

FEWEST = 7  # numbers of a label with one object
Boxes = np.ndarray[Any, Any]


class DetAugmenter(Augmenter):
    """A change of an image and of the boxes in it."""

    def __call__(self, src: NDArray, label: Boxes) -> tuple[NDArray, Boxes]:  # type: ignore[override]
        """Change an image and its boxes."""
        raise NotImplementedError("Must override implementation.")


class DetBorrowAug(DetAugmenter):
    """A change of an image that leaves boxes where they are."""

    def __init__(self, augmenter: Augmenter) -> None:
        if not isinstance(augmenter, Augmenter):
            raise TypeError("Borrowing from invalid Augmenter")
        super().__init__(augmenter=augmenter.dumps())
        self.augmenter = augmenter

    def dumps(self) -> Any:
        """Its name, and what the change writes."""
        return [type(self).__name__.lower(), self.augmenter.dumps()]

    def __call__(self, src: NDArray, label: Boxes) -> tuple[NDArray, Boxes]:  # type: ignore[override]
        """Change an image."""
        return self.augmenter(src), label


class DetRandomSelectAug(DetAugmenter):
    """One change of several by chance, or none."""

    def __init__(self, aug_list: Any, skip_prob: float = 0) -> None:
        super().__init__(skip_prob=skip_prob)
        self.aug_list = list(aug_list) if isinstance(aug_list, (list, tuple)) else [aug_list]
        if any(not isinstance(each, DetAugmenter) for each in self.aug_list):
            raise ValueError("Allow DetAugmenter in list only")
        self.skip_prob = skip_prob if self.aug_list else 1

    def dumps(self) -> Any:
        """Its name, and what its parts write."""
        return [type(self).__name__.lower(), [each.dumps() for each in self.aug_list]]

    def __call__(self, src: NDArray, label: Boxes) -> tuple[NDArray, Boxes]:  # type: ignore[override]
        """Change an image and its boxes."""
        if random.random() < self.skip_prob:
            return src, label
        found: tuple[NDArray, Boxes] = random.choice(self.aug_list)(src, label)
        return found


class DetHorizontalFlipAug(DetAugmenter):
    """Turn left to right, by chance."""

    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p

    def __call__(self, src: NDArray, label: Boxes) -> tuple[NDArray, Boxes]:  # type: ignore[override]
        """Change an image and its boxes."""
        if random.random() >= self.p:
            return src, label
        turned = label.copy()
        turned[:, 1], turned[:, 3] = 1.0 - label[:, 3], 1.0 - label[:, 1]
        return HorizontalFlipAug(1)(src), turned


class DetRandomCropAug(DetAugmenter):
    """Cut out a part that has enough of the objects in it; those of which it has too little are left out."""

    def __init__(
        self,
        min_object_covered: float = 0.1,
        aspect_ratio_range: tuple[float, float] = (0.75, 1.33),
        area_range: tuple[float, float] = (0.05, 1.0),
        min_eject_coverage: float = 0.3,
        max_attempts: int = 50,
    ) -> None:
        ratios, areas = _pair(aspect_ratio_range, 1.0), _pair(area_range, 1.0)
        super().__init__(
            min_object_covered=min_object_covered, aspect_ratio_range=ratios, area_range=areas,
            min_eject_coverage=min_eject_coverage, max_attempts=max_attempts,
        )  # fmt: skip
        self.enabled = areas[1] > 0 and areas[0] <= areas[1] and 0 < ratios[0] <= ratios[1]
        self._ratios, self._areas, self._attempts = ratios, (areas[0], min(areas[1], 1.0)), max_attempts
        self._covered, self._kept = min_object_covered, min_eject_coverage

    def __call__(self, src: NDArray, label: Boxes) -> tuple[NDArray, Boxes]:  # type: ignore[override]
        """Change an image and its boxes; neither, if no part was found."""
        height, width = src.shape[:2]
        for _ in range(self._attempts if self.enabled else 0):
            sizes = _drawn_sizes(width, height, self._areas, self._ratios)
            if sizes is None or sizes[0] > width or sizes[1] > height or sizes[0] * sizes[1] < 2:
                continue
            left, top = random.randint(0, width - sizes[0]), random.randint(0, height - sizes[1])
            boxes = self._boxes_in((left / width, top / height, sizes[0] / width, sizes[1] / height), label)
            if boxes is not None:
                return fixed_crop(src, left, top, *sizes), boxes
        return src, label

    def _boxes_in(self, part: tuple[float, float, float, float], label: Boxes) -> Boxes | None:
        """The boxes as parts of a part of the image; None if it has too little of them."""
        left, top, width, height = part
        found = label.copy()
        for low, high, begin, size in ((1, 3, left, width), (2, 4, top, height)):
            found[:, [low, high]] = ((label[:, [low, high]] - begin) / size).clip(0, 1)
        covered = _areas(found) * width * height / np.maximum(_areas(label), 1e-12)
        seen = covered[covered > 0]
        kept = covered > self._kept
        return found[kept] if seen.size and seen.min() > self._covered and kept.any() else None


class DetRandomPadAug(DetAugmenter):
    """Put the image somewhere into a larger one of one colour."""

    def __init__(
        self,
        aspect_ratio_range: tuple[float, float] = (0.75, 1.33),
        area_range: tuple[float, float] = (1.0, 3.0),
        max_attempts: int = 50,
        pad_val: Any = (128, 128, 128),
    ) -> None:
        ratios, areas = _pair(aspect_ratio_range, 1.0), _pair(area_range, 1.0)
        colour = tuple(pad_val) if isinstance(pad_val, (list, tuple)) else (pad_val,)
        super().__init__(aspect_ratio_range=ratios, area_range=areas, max_attempts=max_attempts, pad_val=colour)
        self.enabled = areas[1] > 1.0 and areas[0] <= areas[1] and 0 < ratios[0] <= ratios[1]
        self._ratios, self._areas, self._attempts, self._colour = ratios, areas, max_attempts, colour

    def __call__(self, src: NDArray, label: Boxes) -> tuple[NDArray, Boxes]:  # type: ignore[override]
        """Change an image and its boxes."""
        height, width = src.shape[:2]
        for _ in range(self._attempts if self.enabled else 0):
            sizes = _drawn_sizes(width, height, self._areas, self._ratios)
            if sizes is None or sizes[0] < width or sizes[1] < height:
                continue
            left, top = random.randint(0, sizes[0] - width), random.randint(0, sizes[1] - height)
            found = label.copy()
            for places, begin, old, new in (([1, 3], left, width, sizes[0]), ([2, 4], top, height, sizes[1])):
                found[:, places] = (label[:, places] * old + begin) / new
            edges = top, sizes[1] - height - top, left, sizes[0] - width - left
            return copyMakeBorder(src, *edges, 0, values=self._colour), found
        return src, label


def _pair(given: Any, otherwise: float) -> tuple[float, float]:
    return (given, otherwise) if isinstance(given, (int, float)) else tuple(given)


def _areas(boxes: Boxes) -> Boxes:
    found: Boxes = np.maximum(boxes[:, 3] - boxes[:, 1], 0) * np.maximum(boxes[:, 4] - boxes[:, 2], 0)
    return found


def _drawn_sizes(
    width: int, height: int, areas: tuple[float, float], ratios: tuple[float, float]
) -> tuple[int, int] | None:
    """A width and a height by chance, of an area that is such a part of the image's."""
    area, ratio = random.uniform(*areas) * width * height, random.uniform(*ratios)
    found = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
    return found if min(found) > 0 else None


def CreateMultiRandCropAugmenter(
    min_object_covered: Any = 0.1,
    aspect_ratio_range: Any = (0.75, 1.33),
    area_range: Any = (0.05, 1.0),
    min_eject_coverage: Any = 0.3,
    max_attempts: Any = 50,
    skip_prob: float = 0,
) -> DetRandomSelectAug:
    """A choice among ways to cut: lists have a value a way, what is no list is the same for all."""
    given = (min_object_covered, aspect_ratio_range, area_range, min_eject_coverage, max_attempts)
    count = max(len(each) for each in given if isinstance(each, list)) if any(isinstance(x, list) for x in given) else 1
    columns = [each if isinstance(each, list) else [each] * count for each in given]
    if any(len(column) not in (1, count) for column in columns):
        raise AssertionError("lists of a value for each way to cut must be of one length")
    columns = [column * count if len(column) == 1 else column for column in columns]
    return DetRandomSelectAug([DetRandomCropAug(*way) for way in zip(*columns, strict=True)], skip_prob=skip_prob)


def CreateDetAugmenter(
    data_shape: tuple[int, int, int],
    resize: int = 0,
    rand_crop: float = 0,
    rand_pad: float = 0,
    rand_gray: float = 0,
    rand_mirror: bool = False,
    mean: Any = None,
    std: Any = None,
    brightness: float = 0,
    contrast: float = 0,
    saturation: float = 0,
    pca_noise: float = 0,
    hue: float = 0,
    inter_method: int = 2,
    min_object_covered: Any = 0.1,
    aspect_ratio_range: Any = (0.75, 1.33),
    area_range: Any = (0.05, 3.0),
    min_eject_coverage: Any = 0.3,
    max_attempts: Any = 50,
    pad_val: Any = (127, 127, 127),
) -> list[DetAugmenter]:
    """The usual list of changes: size, part, mirror, border, colours, means."""
    found: list[DetAugmenter] = [DetBorrowAug(ResizeAug(resize, inter_method))] if resize > 0 else []
    if rand_crop > 0:
        given = (min_object_covered, aspect_ratio_range, area_range, min_eject_coverage, max_attempts)
        found.append(CreateMultiRandCropAugmenter(*given, skip_prob=1 - rand_crop))
    found += [DetHorizontalFlipAug(0.5)] if rand_mirror else []
    if rand_pad > 0:
        padding = DetRandomPadAug(aspect_ratio_range, (1.0, area_range[1]), max_attempts, pad_val)
        found.append(DetRandomSelectAug([padding], 1 - rand_pad))
    changes: list[Augmenter] = [ForceResizeAug((data_shape[2], data_shape[1]), inter_method), CastAug()]
    changes += color_augmenters(brightness, contrast, saturation, hue, pca_noise)
    changes += [RandomGrayAug(rand_gray)] if rand_gray > 0 else []
    changes += color_augmenters(mean=mean, std=std)
    return found + [DetBorrowAug(each) for each in changes]


class ImageDetIter(ImageIter):
    """Batches of images and of the boxes in them: as many for each as the image with most has, -1 in their place."""

    def __init__(
        self,
        batch_size: int,
        data_shape: tuple[int, int, int],
        path_imgrec: str | None = None,
        path_imglist: str | None = None,
        path_root: str | None = None,
        path_imgidx: str | None = None,
        shuffle: bool = False,
        part_index: int = 0,
        num_parts: int = 1,
        aug_list: list[Any] | None = None,
        imglist: list[Any] | None = None,
        data_name: str = "data",
        label_name: str = "label",
        last_batch_handle: str = "pad",
        **given: Any,
    ) -> None:
        changes: list[Any] = CreateDetAugmenter(data_shape, **given) if aug_list is None else aug_list
        super().__init__(
            batch_size, data_shape, 1, path_imgrec, path_imglist, path_root, path_imgidx, shuffle, part_index,
            num_parts, changes, imglist, data_name, label_name,
            last_batch_handle=last_batch_handle,
        )  # fmt: skip
        self._label_name = label_name
        self.label_shape = self._largest_label()
        self._describe()

    def _describe(self) -> None:
        self.provide_data = [(self.provide_data[0][0], (self.batch_size, *self.data_shape))]
        self.provide_label = [(self._label_name, (self.batch_size, *self.label_shape))]

    def _largest_label(self) -> tuple[int, int]:
        """The most objects of an image, and the most numbers of one, over all images."""
        sizes = []
        self.reset()
        try:
            while True:
                sizes.append(self.parse_label(self.next_sample()[0]).shape)
        except StopIteration:
            self.hard_reset()
        if not sizes:
            raise RuntimeError("there are no images")
        return max(size[0] for size in sizes), max(size[1] for size in sizes)

    @staticmethod
    def parse_label(label: Any) -> Boxes:
        """The objects of a label, a line each, without those whose box is empty."""
        flat = (label.asnumpy() if isinstance(label, NDArray) else np.asarray(label)).ravel()
        if flat.size < FEWEST:
            raise RuntimeError(f"Label shape is invalid: {flat.shape}")
        head, width = int(flat[0]), int(flat[1])
        if head < 2 or width < 5 or (flat.size - head) % width:
            raise RuntimeError(f"Label shape {flat.shape} inconsistent with annotation width {width}.")
        found: Boxes = flat[head:].reshape(-1, width)
        found = found[(found[:, 3] > found[:, 1]) & (found[:, 4] > found[:, 2])]
        if not len(found):
            raise RuntimeError("Encounter sample with no valid label.")
        return found

    def _changed(self, image: NDArray, label: Any) -> tuple[NDArray, Any]:
        image, boxes = self.augmentation_transform(image, self.parse_label(label))
        padded = np.full(self.label_shape, -1, np.float32)
        padded[: len(boxes), : boxes.shape[1]] = boxes[: len(padded)]
        return image, array(padded)

    def augmentation_transform(  # type: ignore[override]
        self, data: NDArray, label: Boxes
    ) -> tuple[NDArray, Boxes]:
        """Change an image and its boxes."""
        changes: Sequence[Any] = self.auglist
        for each in changes:
            data, label = each(data, label)
        return data, label

    def check_label_shape(self, label_shape: Sequence[int]) -> None:
        """Refuse sizes of labels that are smaller than those of an image."""
        if len(label_shape) != 2:
            raise ValueError("label_shape should have length 2")
        if label_shape[0] < self.label_shape[0]:
            raise ValueError(
                f"Attempts to reduce label count from {self.label_shape[0]} to {label_shape[0]}, not allowed."
            )
        if label_shape[1] != self.label_shape[1]:
            raise ValueError(f"label_shape object width inconsistent: {self.label_shape[1]} vs {label_shape[1]}.")

    def reshape(self, data_shape: Any = None, label_shape: Any = None) -> None:
        """Give images, or labels, of other sizes from now on."""
        if data_shape is not None:
            self.check_data_shape(data_shape)
            self.data_shape = data_shape
        if label_shape is not None:
            self.check_label_shape(label_shape)
            self.label_shape = tuple(label_shape)
        self._describe()

    def sync_label_shape(self, it: ImageDetIter, verbose: bool = False) -> ImageDetIter:
        """Let this iterator and another one, of other images, give labels of one size; gives the other one."""
        _ = verbose
        if not isinstance(it, ImageDetIter):
            raise AssertionError("Synchronize with invalid iterator.")  # noqa: TRY004  # MXNet's
        most = max(self.label_shape[0], it.label_shape[0]), max(self.label_shape[1], it.label_shape[1])
        for each in (self, it):
            each.label_shape = most
            each._describe()
        return it
