"""Cut a length into blocks as even as possible, so that none at the edge is much smaller than the others."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Blocks:
    """A length cut in order: `large` blocks of `size`, then `small` blocks of `size - 1`."""

    size: int
    large: int
    small: int

    @property
    def count(self) -> int:
        """Count the blocks."""
        return self.large + self.small

    @property
    def total(self) -> int:
        """Give the length that was cut."""
        return self.large * self.size + self.small * (self.size - 1)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Give the distinct block sizes that occur, largest first."""
        return tuple(size for size, count in ((self.size, self.large), (self.size - 1, self.small)) if count)

    @property
    def kinds(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Give both sizes, each with how many blocks there are of it."""
        return (self.size, self.large), (self.size - 1, self.small)

    def grouped(self, times: int, group: int) -> list[int]:
        """Give the length of each group of so many blocks, of a length that is cut so many times."""
        sizes = ([self.size] * self.large + [self.size - 1] * self.small) * times
        return [sum(sizes[first : first + group]) for first in range(0, len(sizes), group)]

    def start(self, index: int) -> int:
        """Give where a block starts; `start(count)` is the total."""
        return index * self.size - max(0, index - self.large)


def cut(total: int, most: int) -> Blocks:
    """Cut a length into as few blocks of at most `most` as possible: `cut(17, 8)` is 6 + 6 + 5."""
    if total == 0:
        return Blocks(size=most, large=0, small=0)
    count = -(-total // most)
    size = -(-total // count)
    small = size * count - total
    return Blocks(size=size, large=count - small, small=small)


def whole_cut(total: int, most: int) -> list[int]:
    """Cut a length into pieces of `most` and a rest: `whole_cut(17, 8)` is 8 + 8 + 1."""
    whole, rest = divmod(total, most)
    return [most] * whole + [rest] * bool(rest)
