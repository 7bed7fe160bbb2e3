"""How long each device took for its part of a batch -> the shares with which all would end at the same time."""

from __future__ import annotations

import torch

from weft.devices import Device

WARM_UP = 2  # steps in which programs are compiled and memory is found: they say nothing of the speed
MEMORY = 0.7  # of the former estimate in the next one: a step that was disturbed changes little
LEAST = 0.02  # of the fastest device's share: so little is tried from time to time on a device that was slow
TRIED = 16  # steps between two trials


class MeasuredShares:
    """The shares of devices by their speed on the user's own model, adjusted while training goes on."""

    def __init__(self, count: int) -> None:
        self._speeds: list[float | None] = [None] * count
        self._seen = 0

    def shares(self) -> list[float]:
        """Give a number for each device: equal until all were measured."""
        known = [speed for speed in self._speeds if speed is not None]
        if len(known) < len(self._speeds):
            return [1.0] * len(self._speeds)
        return [max(speed, LEAST * max(known)) if self._seen % TRIED == 0 else speed for speed in known]

    def note(self, index: int, samples: int, seconds: float) -> None:
        """Take in how long a device took for so many samples."""
        if self._seen < WARM_UP or not samples or seconds <= 0:
            return
        speed, before = samples / seconds, self._speeds[index]
        self._speeds[index] = speed if before is None else MEMORY * before + (1 - MEMORY) * speed

    def end_of_step(self) -> None:
        """Count a step."""
        self._seen += 1


def finish(place: Device) -> None:
    """Wait for what a device was given; on the CPU it is done when the call returns."""
    if place.kind == "cuda":
        torch.cuda.synchronize(place.torch_device)
