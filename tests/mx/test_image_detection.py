"""Boxes stay where the pixels are that they were around, however images are cut, padded and mirrored."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from weft import mx
from weft.mx import nd

HEIGHT, WIDTH = 40, 60


def image_with_boxes() -> tuple[Any, Any]:
    """An image in which each box is filled by a number of its own."""
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.float32)
    boxes = [(7, 6, 4, 30, 24), (9, 36, 20, 54, 36)]  # value, then left, top, right, bottom in pixels
    for value, left, top, right, bottom in boxes:
        pixels[top:bottom, left:right] = value
    scale = np.array([1, WIDTH, HEIGHT, WIDTH, HEIGHT])
    return nd.array(pixels), np.array(boxes, np.float32) / scale


def assert_boxes_are_around_their_pixels(image: Any, boxes: Any) -> None:
    pixels = image.asnumpy()[:, :, 0]
    height, width = pixels.shape
    for value, left, top, right, bottom in boxes:
        rows, columns = np.nonzero(pixels == value)
        found = (columns.min() / width, rows.min() / height, (columns.max() + 1) / width, (rows.max() + 1) / height)
        np.testing.assert_allclose(found, (left, top, right, bottom), atol=1e-5)


CHANGES = [
    mx.image.DetHorizontalFlipAug(1),
    mx.image.DetRandomCropAug(min_object_covered=0.2, area_range=(0.2, 0.9)),
    mx.image.DetRandomPadAug(area_range=(1.2, 3.0)),
    mx.image.CreateMultiRandCropAugmenter(min_object_covered=[0.1, 0.9]),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
def test_boxes_follow_the_pixels(change: Any) -> None:
    image, boxes = image_with_boxes()
    random.seed(1)
    changed = 0
    for _ in range(30):
        found, around = change(image, boxes.copy())
        assert_boxes_are_around_their_pixels(found, around)
        changed += found.shape != image.shape
    assert changed > 20 or isinstance(change, mx.image.DetHorizontalFlipAug)


def test_objects_of_which_a_part_has_too_little_are_left_out() -> None:
    image, boxes = image_with_boxes()
    random.seed(2)
    cut = mx.image.DetRandomCropAug(min_object_covered=0.0, area_range=(0.05, 0.3), min_eject_coverage=0.5)
    counts = set()
    for _ in range(30):
        found, around = cut(image, boxes.copy())
        counts.add(len(around))
        for value, *_ in around:
            whole = (image.asnumpy()[:, :, 0] == value).sum()
            assert (found.asnumpy()[:, :, 0] == value).sum() > 0.5 * whole
    assert 1 in counts


def test_where_no_part_will_do_the_image_stays_as_it_is() -> None:
    image, boxes = image_with_boxes()
    for change in (mx.image.DetRandomCropAug(min_object_covered=2.0), mx.image.DetRandomPadAug(area_range=(0.1, 0.9))):
        found, around = change(image, boxes)
        assert found is image
        assert around is boxes


def test_what_is_no_choice_of_changes_is_told() -> None:
    with pytest.raises(TypeError, match="Borrowing from invalid"):
        mx.image.DetBorrowAug(3)
    with pytest.raises(ValueError, match="Allow DetAugmenter"):
        mx.image.DetRandomSelectAug([mx.image.CastAug()])
    with pytest.raises(AssertionError, match="of one length"):
        mx.image.CreateMultiRandCropAugmenter([0.1, 0.2], max_attempts=[1, 2, 3])
    image, boxes = image_with_boxes()
    assert mx.image.DetRandomSelectAug([mx.image.DetHorizontalFlipAug(1)], 1)(image, boxes)[0] is image


def test_an_iterator_fills_labels_and_goes_over_images_without_boxes(tmp_path: Any) -> None:
    class Iterator(mx.image.ImageDetIter):
        def imdecode(self, s: bytes) -> Any:
            return image_with_boxes()[0]

    (tmp_path / "a.img").write_bytes(b"a")
    lines = [[[2, 5, *image_with_boxes()[1].reshape(-1)], "a.img"], [[2, 5, 1, 0.5, 0.5, 0.9, 0.9], "a.img"]]
    found = Iterator(3, (3, 20, 30), imglist=lines, path_root=tmp_path, rand_crop=1, rand_pad=1, rand_mirror=True)
    assert found.provide_label == [("label", (3, 2, 5))]
    (batch,) = found
    assert (batch.data[0].shape, batch.pad) == ((3, 3, 20, 30), 1)
    assert (batch.label[0].asnumpy()[1, 1] == -1).all()
    found.imglist["2"] = (nd.array([2, 5, 1, 0.5, 0.5, 0.2, 0.9]), "a.img")  # a box without pixels
    found.reset()
    (batch,) = found
    assert batch.pad == 2
