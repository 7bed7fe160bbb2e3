"""What of training may be chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from weft.errors import UsageError
from weft.train.callbacks import Callback
from weft.train.checkpoint_folder import Checkpoints
from weft.train.peers import PATIENCE
from weft.train.split import Shares

CHOICES = {"batches": ("global", "local"), "schedule": ("update", "epoch")}


@dataclass(frozen=True)
class TrainerOptions:
    """What of training may be chosen; docs/many-devices.md explains each.

    `batches="local"` says that each process of `torchrun` is given its own part of a batch, not the whole of it.
    """

    shares: Shares = "equal"
    memory: Mapping[str, float] = field(default_factory=dict)
    accumulate: int = 1
    clip_norm: float | None = None
    scheduler: Any = None
    schedule: str = "update"
    scaler: Any = None
    autocast: torch.dtype | None = None
    checkpoints: Checkpoints | None = None
    callbacks: Sequence[Callback] = ()
    hybridize: bool = False
    prefetch: int | None = None
    overlap: bool = True
    sync_batchnorm: bool = False
    deterministic: bool = False
    batches: str = "global"
    patience: float = PATIENCE

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise UsageError(f"accumulate is {self.accumulate}")
        if self.deterministic:
            self._check_deterministic()
        if self.sync_batchnorm and self.hybridize:
            raise UsageError(
                "sync_batchnorm and hybridize together",
                why="devices would have to meet inside their programs",
                fix="one of them; whole steps on virtual CPU devices see the whole batch anyway",
            )
        if self.memory and (self.hybridize or self.deterministic):
            raise UsageError(
                f"memory and {'hybridize' if self.hybridize else 'deterministic'} together",
                why="what a sample takes is measured on the modules as they are, and parts are of any size",
                fix="one of them",
            )
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise UsageError(f"{name}={getattr(self, name)!r}", fix=" or ".join(map(repr, choices)))

    def _check_deterministic(self) -> None:
        excluded = {
            "sync_batchnorm": self.sync_batchnorm,
            "hybridize": self.hybridize,
            "scaler": self.scaler is not None,
            'batches="local"': self.batches == "local",
        }
        for name, wanted in excluded.items():
            if wanted:
                raise UsageError(
                    f"deterministic and {name} together",
                    why="a deterministic step computes fixed shards of the global batch, each by itself",
                    fix="one of them",
                )
