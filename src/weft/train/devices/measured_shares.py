"""How long each device took for its part of a batch -> the shares with which all would end at the same time."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence

import torch

from weft.devices import Device

WARM_UP = 2  # steps in which programs are compiled and memory is found: they say nothing of the speed
MEMORY = 0.7  # of the former estimate in the next one: a step that was disturbed changes little
LEAST = 0.02  # of the fastest device's share: so little is tried from time to time on a device that was slow
TRIED = 16  # steps between two trials
SUSPICIOUS = 0.35  # of the fastest device's speed: one slower than that has to show that it brings something
SUSPECTED_AT = 6  # steps after which the speeds are known well enough to suspect a device
COMPARED = 5  # steps with it and as many without it, in turn
RETRIED = 64  # steps after which a device that was left out is compared again; then after twice as many each time
WORTH = 0.99  # a device stays if steps with it take less than this part of those without it
PARTS = 32  # of a batch: in so many the sizes of programs are counted, as each size is a program to be compiled
PAYS = 0.9  # programs get other sizes if steps then take less than this part of the time

logger = logging.getLogger("weft")


class MeasuredShares:
    """The shares of devices by their speed on the user's own model, adjusted while training goes on.

    `steady` shares are those of devices that run programs: they change only where that pays, and a step with a size
    that is new says nothing of the speed, as it is compiled for.
    """

    def __init__(self, count: int, names: Sequence[str] = (), *, steady: bool = False) -> None:
        self._steady = steady
        self._held = [1.0] * count  # the steady shares
        self._compiled: set[tuple[int, int]] = set()  # devices with sizes that they had
        self._speeds: list[float | None] = [None] * count
        self._seen = 0
        self._names = list(names) or [f"device {index}" for index in range(count)]
        self.dropped: dict[int, str] = {}  # devices that are left out, and the sentence that says why
        self._retries: dict[int, int] = {}  # steps after which each is compared again
        self._due: dict[int, int] = {}  # the step in which that is
        self._suspect: int | None = None  # the device that is left out of every other step, to see what it brings
        self._times: tuple[list[float], list[float]] = ([], [])  # seconds a sample: with it, without it

    def shares(self) -> list[float]:
        """Give a number for each device: equal until all were measured."""
        known = [speed for speed in self._speeds if speed is not None]
        if len(known) < len(self._speeds):
            return [1.0] * len(self._speeds)
        if self._steady:
            shares = self._steadily(known)
        else:
            shares = [max(speed, LEAST * max(known)) if self._seen % TRIED == 0 else speed for speed in known]
        without = {*self.dropped} - {self._suspect}
        if self._suspect is not None and self._seen % 2:
            without.add(self._suspect)
        return [0.0 if index in without else share for index, share in enumerate(shares)]

    def _steadily(self, speeds: Sequence[float]) -> list[float]:
        """Give the shares of before unless others are so much better that compiling for them pays."""

        def seconds(shares: Sequence[float]) -> float:
            return max(share / speed for share, speed in zip(shares, speeds, strict=True)) / sum(shares)

        if seconds(speeds) < PAYS * seconds(self._held):
            exact = [PARTS * speed / sum(speeds) for speed in speeds]
            less = [float(int(share)) for share in exact]
            less[exact.index(max(exact))] += PARTS - sum(less)
            self._held = min([float(round(share)) for share in exact], less, key=seconds)
        return self._held

    def note(self, index: int, samples: int, seconds: float) -> None:
        """Take in how long a device took for so many samples."""
        if self._steady and (index, samples) not in self._compiled:
            self._compiled.add((index, samples))
            return
        if self._seen < WARM_UP or not samples or seconds <= 0:
            return
        speed, before = samples / seconds, self._speeds[index]
        self._speeds[index] = speed if before is None else MEMORY * before + (1 - MEMORY) * speed

    def end_of_step(self, samples: int = 0, seconds: float = 0.0) -> None:
        """Count a step, and how long all devices together took for it."""
        if self._suspect is not None and samples:
            self._times[self._seen % 2].append(seconds / samples)
            if min(map(len, self._times)) >= COMPARED:
                self._decide(self._suspect, samples)
        self._seen += 1
        if self._seen == SUSPECTED_AT and seconds:
            self._suspect = self._slow_one()
        if self._suspect is None:
            self._suspect = next((index for index, step in self._due.items() if self._seen >= step), None)

    def _slow_one(self) -> int | None:
        """The slowest device, if it is so slow that it may cost more than it brings."""
        known = [(speed, index) for index, speed in enumerate(self._speeds) if speed and index not in self.dropped]
        if len(known) < 2 or min(known)[0] > SUSPICIOUS * max(known)[0]:
            return None
        return min(known)[1]

    def _decide(self, suspect: int, samples: int) -> None:
        """Leave a device out while it does not pay; others may have disturbed it, so it is compared again."""
        with_it, without_it = (statistics.median(times) * samples * 1e3 for times in self._times)
        self._suspect, self._times = None, ([], [])
        was_out, numbers = suspect in self.dropped, f"{with_it:.1f} ms with it, {without_it:.1f} ms without it"
        if with_it > WORTH * without_it:
            self._retries[suspect] = 2 * self._retries.get(suspect, RETRIED // 2)
            self._due[suspect] = self._seen + self._retries[suspect]
            self.dropped[suspect] = f"{self._names[suspect]} is left out: {samples} samples took {numbers}"
            logger.log(logging.INFO if was_out else logging.WARNING, "weft: %s", self.dropped[suspect])
            self._suspect = self._slow_one()
        elif was_out:
            del self.dropped[suspect], self._due[suspect]
            logger.warning("weft: %s is used again: %s samples took %s", self._names[suspect], samples, numbers)


def finish(place: Device) -> None:
    """Wait for what a device was given; on the CPU it is done when the call returns."""
    if place.kind == "cuda":
        torch.cuda.synchronize(place.torch_device)
