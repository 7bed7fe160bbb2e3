"""Define what every kind of kernel must say about itself: the facets that planning, printing and memory ask for.

A kind is a frozen dataclass derived from `Kernel`, in a file of its own in this room, and an emitter of machine code in
the room `codegen/kernels`. No facet has a default: a kernel of a kind that lacks one cannot be made. What a new kind
takes is told in docs/how-to-add-a-kernel-kind.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.plan.kernels.box import Box
from weft.target import Target

Boxes = tuple[Box | None, ...]
Sizes = Sequence[int]

KINDS: dict[str, type[Kernel]] = {}
"""All kinds by name, as their classes are defined; the text of a plan names them so."""


class Kernel(ABC):
    """One native function, `void name(writes*..., reads*..., begin, end)`, which runs the tiles [begin, end).

    Any split of the tiles over calls, in any order, gives the same bits: lanes share them out. Arguments do not overlap
    except as `written_over` says. Buffers begin as the plan places them: a kernel may rely on its views' offsets alone.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """Name the native function."""

    def __init_subclass__(cls) -> None:
        KINDS[cls.__name__] = cls

    @property
    @abstractmethod
    def tile_count(self) -> int:
        """Count the tiles; a kernel with nothing to do has none."""

    @property
    @abstractmethod
    def tile_sizes(self) -> tuple[Sizes, Sizes] | None:
        """Give the heights of tiles above each other and the widths of those side by side; None: all count alike.

        They are those of one matrix where there are several, one after the other.
        """

    @property
    @abstractmethod
    def cycles(self) -> float:
        """Estimate the cycles of all tiles on one core, with the data always at hand."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """Say the sizes in a few words, for people."""

    @abstractmethod
    def boxes(self, begin: int, end: int) -> Boxes:
        """Give a box for each argument, in their order, that tiles [begin, end) touch: never less than they touch.

        None is anywhere in the argument. There is at least one tile.
        """

    @abstractmethod
    def renamed(self, name: str) -> Kernel:
        """Give the same kernel under another name; names made from it, of kernels inside, change alike."""

    @abstractmethod
    def written_over(self, output: int, read: int, target: Target) -> Kernel | None:
        """Give the kernel that may write an output in the place of what it reads, both by number; None if none may.

        It reads an element of that argument only where it writes the same one, and nothing of it after the write.
        """


def by(*sizes: int) -> str:
    """Spell sizes: 2x3x4."""
    return "x".join(map(str, sizes))
