"""Read images and their labels from files, and change them: `gluon.data.vision` and its transforms."""

from __future__ import annotations

import gzip
import math
import random
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from weft.errors import UsageError
from weft.mx.arrays import nd
from weft.mx.arrays.ndarray import NDArray, array
from weft.mx.gluon.block import Block, HybridBlock
from weft.mx.gluon.datasets import Dataset, RecordFileDataset
from weft.mx.gluon.nn import HybridSequential, Sequential
from weft.mx.training import image, recordio

FILES = {
    True: ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    False: ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def read_idx(folder: Path, name: str, dims: int) -> Any:
    """The elements of an IDX file, which may be compressed."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            try:
                content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            except (OSError, EOFError) as error:
                raise UsageError(f"{path} is damaged: {error}") from error
            if len(content) < 4 + 4 * dims:
                raise UsageError(f"{path} is damaged: it has {len(content)} bytes")
            sizes = np.frombuffer(content, ">i4", dims, 4)
            if len(content) != 4 + 4 * dims + math.prod(map(int, sizes)):
                raise UsageError(f"{path} is damaged: its sizes are {sizes.tolist()}, but it has {len(content)} bytes")
            return np.frombuffer(content, np.uint8, offset=4 + 4 * dims).reshape(sizes)
    raise UsageError(f"there is no {name} in {folder}", why="weft.mx downloads nothing", fix=f"put {name}.gz there")


class _Labelled(Dataset):
    """Images with their labels."""

    home = ""

    def __init__(
        self, root: str | None = None, train: bool = True, transform: Callable[..., Any] | None = None, **given: Any
    ) -> None:
        self._folder = Path(root or f"~/.mxnet/datasets/{self.home}").expanduser()
        self._transform = transform
        images, labels = self._read(train, **given)
        self._data, self._label = array(images, dtype="uint8"), labels.astype(np.int32)

    def _read(self, train: bool) -> tuple[Any, Any]:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._label)

    def __getitem__(self, index: Any) -> Any:
        if self._transform is not None:
            return self._transform(self._data[index], self._label[index])
        return self._data[index], self._label[index]


class MNIST(_Labelled):
    """Digits of 28 x 28 pixels, from their IDX files."""

    home = "mnist"

    def _read(self, train: bool) -> tuple[Any, Any]:
        images, labels = (read_idx(self._folder, name, dims) for name, dims in zip(FILES[train], (3, 1), strict=True))
        return images[..., None], labels


class FashionMNIST(MNIST):
    """Clothes of 28 x 28 pixels, from their IDX files."""

    home = "fashion-mnist"


class CIFAR10(_Labelled):
    """Images of 32 x 32 pixels, from their binary files."""

    home = "cifar10"
    parts: ClassVar[dict[bool, Sequence[str]]] = {
        True: [f"data_batch_{number}.bin" for number in range(1, 6)],
        False: ["test_batch.bin"],
    }
    labels = 1  # bytes before an image
    label = 0  # which of them is meant

    def _read(self, train: bool) -> tuple[Any, Any]:
        rows = []
        for name in self.parts[train]:
            path = self._folder / name
            if not path.exists():
                raise UsageError(f"there is no {name} in {self._folder}", why="weft.mx downloads nothing")
            content = np.frombuffer(path.read_bytes(), np.uint8)
            if content.size % (3072 + self.labels):
                raise UsageError(f"{path} is damaged: {content.size} bytes are no whole number of images")
            rows.append(content.reshape(-1, 3072 + self.labels))
        joined = np.concatenate(rows)
        images = joined[:, self.labels :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return images, joined[:, self.label]


class CIFAR100(CIFAR10):
    """Images of 32 x 32 pixels of 20 coarse, or 100 fine, classes."""

    home = "cifar100"
    parts: ClassVar[dict[bool, Sequence[str]]] = {True: ["train.bin"], False: ["test.bin"]}
    labels = 2

    def _read(self, train: bool, fine_label: bool = False) -> tuple[Any, Any]:
        self.label = int(fine_label)
        return super()._read(train)


# Transforms.


class ImageRecordDataset(RecordFileDataset):
    """The images of a file of records, with their labels."""

    def __init__(self, filename: str, flag: int = 1, transform: Callable[..., Any] | None = None) -> None:
        super().__init__(filename)
        self._flag, self._transform = flag, transform

    def __getitem__(self, index: Any) -> Any:
        header, data = recordio.unpack(super().__getitem__(index))
        found = image.imdecode(data, self._flag), header.label
        return found if self._transform is None else self._transform(*found)


IMAGES = (".jpg", ".jpeg", ".png")


class ImageFolderDataset(Dataset):
    """The images of folders, of which each is a class."""

    def __init__(self, root: str, flag: int = 1, transform: Callable[..., Any] | None = None) -> None:
        self._root, self._flag, self._transform = Path(root).expanduser(), flag, transform
        self.synsets: list[str] = []
        self.items: list[tuple[str, int]] = []
        for folder in sorted(self._root.iterdir()):
            if not folder.is_dir():
                warnings.warn(f"Ignoring {folder}, which is not a directory.", stacklevel=2)
                continue
            for path in sorted(folder.iterdir()):
                if path.suffix.lower() in IMAGES:
                    self.items.append((str(path), len(self.synsets)))
                else:
                    shown = f"Ignoring {path} of type {path.suffix}. Only support {', '.join(IMAGES)}"
                    warnings.warn(shown, stacklevel=2)
            self.synsets.append(folder.name)

    def __getitem__(self, index: Any) -> Any:
        name, label = self.items[index]
        found = image.imread(name, self._flag), label
        return found if self._transform is None else self._transform(*found)

    def __len__(self) -> int:
        return len(self.items)


class Compose(Sequential):
    """Transforms one after the other; neighbours that can be are one program."""

    def __init__(self, transforms: Sequence[Block]) -> None:
        super().__init__()
        waiting: list[Block] = []
        for transform in [*transforms, None]:
            if isinstance(transform, HybridBlock):
                waiting.append(transform)
                continue
            if len(waiting) == 1:
                self.add(waiting[0])
            elif waiting:
                chain = HybridSequential()
                chain.add(*waiting)
                self.add(chain)
            waiting = []
            if transform is not None:
                self.add(transform)


class _ByFunction(HybridBlock):
    """A transform that is one function of `F.image`."""

    function = ""

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self._given = given

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Compute it."""
        return getattr(F.image, self.function)(x, **self._given)


class ToTensor(_ByFunction):
    """Channels first, elements between 0 and 1."""

    function = "to_tensor"


def _numbers(given: Any) -> tuple[float, ...]:
    return tuple(given) if isinstance(given, (list, tuple)) else (given,)


class Normalize(_ByFunction):
    """Take means from channels, and divide by deviations."""

    function = "normalize"

    def __init__(self, mean: Any = 0.0, std: Any = 1.0) -> None:
        super().__init__(mean=_numbers(mean), std=_numbers(std))


class RandomFlipLeftRight(_ByFunction):
    """Turn left to right, by chance."""

    function = "random_flip_left_right"


class RandomFlipTopBottom(_ByFunction):
    """Turn top to bottom, by chance."""

    function = "random_flip_top_bottom"


class _Factor(_ByFunction):
    """A change by a random factor around 1."""

    argument = ""  # its name

    def __init__(self, *places: float, **given: float) -> None:
        if len(places) + len(given) != 1 or set(given) - {self.argument}:
            raise TypeError(f"{type(self).__name__} takes one argument: {self.argument}")
        (amount,) = (*places, *given.values())
        super().__init__(min_factor=max(0, 1 - amount), max_factor=1 + amount)


class RandomBrightness(_Factor):
    """Brighten or darken, by chance."""

    function, argument = "random_brightness", "brightness"


class RandomContrast(_Factor):
    """Raise or lower the contrast, by chance."""

    function, argument = "random_contrast", "contrast"


class RandomSaturation(_Factor):
    """Raise or lower the saturation, by chance."""

    function, argument = "random_saturation", "saturation"


class RandomHue(_Factor):
    """Turn the colours, by chance."""

    function = "random_hue"


class RandomColorJitter(_ByFunction):
    """Change brightness, contrast, saturation and hue, by chance and in a random order."""

    function = "random_color_jitter"

    def __init__(self, brightness: float = 0, contrast: float = 0, saturation: float = 0, hue: float = 0) -> None:
        super().__init__(brightness=brightness, contrast=contrast, saturation=saturation, hue=hue)


class RandomLighting(_ByFunction):
    """Add light of three principal colours, by chance."""

    function = "random_lighting"

    def __init__(self, alpha: float) -> None:
        super().__init__(alpha_std=alpha)


class Rotate(Block):
    """Turn images, whose channels come first, around the middle."""

    def __init__(self, rotation_degrees: float, zoom_in: bool = False, zoom_out: bool = False) -> None:
        super().__init__()
        self._given = rotation_degrees, zoom_in, zoom_out

    def forward(self, x: Any) -> Any:
        """Compute it."""
        return image.imrotate(x, *self._given)


class RandomRotation(Block):
    """Turn images by a random angle."""

    def __init__(
        self,
        angle_limits: tuple[float, float],
        zoom_in: bool = False,
        zoom_out: bool = False,
        rotate_with_proba: float = 1.0,
    ) -> None:
        super().__init__()
        if not angle_limits[0] < angle_limits[1]:
            raise ValueError("`angle_limits` must be an ordered tuple")
        if not 0 <= rotate_with_proba <= 1:
            raise ValueError("Probability of rotating the image should be between 0 and 1")
        self._given, self._share = (angle_limits, zoom_in, zoom_out), rotate_with_proba

    def forward(self, x: Any) -> Any:
        """Compute it."""
        return x if np.random.random() > self._share else image.random_rotate(x, *self._given)


class Cast(HybridBlock):
    """Change the element type."""

    def __init__(self, dtype: Any = "float32") -> None:
        super().__init__()
        self._dtype = dtype

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Compute it."""
        return F.cast(x, dtype=self._dtype)


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)


class Resize(HybridBlock):
    """Give images other sizes."""

    def __init__(self, size: Any, keep_ratio: bool = False, interpolation: int = 1) -> None:
        super().__init__()
        sizes = (size,) if isinstance(size, int) else tuple(size)
        self._given = {"size": sizes, "keep_ratio": keep_ratio, "interp": interpolation}

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Compute it."""
        return F.image.resize(x, **self._given)


def _cropped(x: NDArray, box: tuple[int, int, int, int], size: tuple[int, int], interpolation: int) -> NDArray:
    left, top, width, height = box
    part = nd.image.crop(x, x=left, y=top, width=width, height=height)
    found: NDArray = part if (width, height) == size else nd.image.resize(part, size=size, interp=interpolation)
    return found


class CenterCrop(Block):
    """Cut the middle out; what is too small is enlarged."""

    def __init__(self, size: Any, interpolation: int = 1) -> None:
        super().__init__()
        self._size, self._interpolation = _pair(size), interpolation

    def forward(self, x: Any) -> Any:
        """Compute it."""
        height, width = x.shape[-3], x.shape[-2]
        wanted = min(self._size[0], width), min(self._size[1], height)
        box = (width - wanted[0]) // 2, (height - wanted[1]) // 2, *wanted
        return _cropped(x, box, self._size, self._interpolation)


class CropResize(Block):
    """Cut a box out, and give it another size."""

    def __init__(
        self, x: int, y: int, width: int, height: int, size: Any = None, interpolation: int | None = None
    ) -> None:
        super().__init__()
        self._box, self._interpolation = (x, y, width, height), 1 if interpolation is None else interpolation
        self._size = (width, height) if size is None else _pair(size)

    def forward(self, x: Any) -> Any:
        """Compute it."""
        return _cropped(x, self._box, self._size, self._interpolation)


class RandomResizedCrop(Block):
    """Cut a random box out, and give it a size."""

    def __init__(
        self,
        size: Any,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        interpolation: int = 1,
    ) -> None:
        super().__init__()
        self._size, self._scale, self._ratio, self._interpolation = _pair(size), scale, ratio, interpolation

    def forward(self, x: Any) -> Any:
        """Compute it."""
        height, width = x.shape[-3], x.shape[-2]
        for _ in range(10):
            area = random.uniform(*self._scale) * height * width
            ratio = math.exp(random.uniform(*map(math.log, self._ratio)))
            across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < across <= width and 0 < down <= height:
                box = random.randint(0, width - across), random.randint(0, height - down), across, down
                return _cropped(x, box, self._size, self._interpolation)
        side = min(width, height)
        return _cropped(x, ((width - side) // 2, (height - side) // 2, side, side), self._size, self._interpolation)


class RandomApply(Sequential):
    """Run a transform, by chance."""

    def __init__(self, transforms: Block, p: float = 0.5) -> None:
        super().__init__()
        self.transforms, self._share = transforms, p

    def forward(self, x: Any, *args: Any) -> Any:
        """Compute it."""
        _ = args
        return x if self._share < random.random() else self.transforms(x)


transforms = SimpleNamespace(
    **{
        name: thing
        for name, thing in list(globals().items())
        if isinstance(thing, type) and issubclass(thing, Block) and not name.startswith("_")
    }
)
