"""Check the options of a trainer, and what it is given to train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from numbers import Real
from typing import Any

import torch
from torch import nn

from weft.api.loss_and_optimizer import refuse_no_loss, refuse_no_optimizer
from weft.errors import UnsupportedError, UsageError, named
from weft.train.callbacks import Callback
from weft.train.checkpoints.checkpoint import Checkpoints
from weft.train.devices.shares import Shares
from weft.train.evaluate import Measure
from weft.train.processes.peers import PATIENCE
from weft.train.summed_loss import reduction_of

CHOICES = {"batches": ("global", "local"), "scheduler_every": ("epoch", "step")}
# What an option may be, and how that is written: a wrong one is told before anything is trained, not hours later.
KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "memory": (lambda given: isinstance(given, Mapping), 'memory={"cuda:0": 2e9}'),
    "accumulate": (lambda given: isinstance(given, int) and given >= 1, "accumulate=4, a whole number, at least 1"),
    "clip_norm": (lambda given: given is None or isinstance(given, Real), "clip_norm=1.0"),
    "scheduler": (lambda given: given is None or hasattr(given, "step"), "one of torch.optim.lr_scheduler"),
    "scaler": (lambda given: given is None or hasattr(given, "scale"), 'scaler=torch.amp.GradScaler("cuda")'),
    "autocast": (lambda given: given is None or isinstance(given, torch.dtype), "autocast=torch.bfloat16"),
    "checkpoints": (lambda given: given is None or isinstance(given, Checkpoints), 'weft.Checkpoints("runs", keep=3)'),
    "callbacks": (lambda given: isinstance(given, Sequence), "callbacks=[weft.EarlyStop(...)]"),
    "metrics": (lambda given: given is None or isinstance(given, Mapping), 'metrics={"accuracy": function}'),
    "prefetch": (
        lambda given: given is None or (isinstance(given, int) and given >= 0),
        "prefetch=2, a whole number, at least 0",
    ),
}


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
    scheduler_every: str = "epoch"
    scaler: Any = None
    autocast: torch.dtype | None = None
    checkpoints: Checkpoints | None = None
    callbacks: Sequence[Callback] = ()
    metrics: Mapping[str, Measure] | None = None
    hybridize: bool | None = None
    prefetch: int | None = None
    overlap: bool = True
    sync_batchnorm: bool = False
    deterministic: bool = False
    batches: str = "global"
    patience: float = PATIENCE

    def __post_init__(self) -> None:
        for name, (fits, written) in KINDS.items():
            if not fits(getattr(self, name)):
                raise UsageError(f"{name} is {getattr(self, name)!r}", fix=written)
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
        self._check_schedule()
        for one in self.callbacks:
            if not hasattr(one, "after_step") or not hasattr(one, "after_epoch"):
                raise UsageError(f"a {type(one).__name__} is no callback", fix="make a class of weft.Callback")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise UsageError(f"{name}={getattr(self, name)!r}", fix=" or ".join(map(repr, choices)))

    def _check_schedule(self) -> None:
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) and self.scheduler_every == "step":
            raise UsageError(
                "ReduceLROnPlateau looks at the loss of an epoch, and would be stepped once for each update",
                fix='scheduler_every="epoch", which is the default',
            )

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


# What other trainers are given when they are made.
ELSEWHERE = {
    "epochs": "trainer.fit(train, epochs=3)",
    "max_epochs": "trainer.fit(train, epochs=3)",
    "num_train_epochs": "trainer.fit(train, epochs=3)",
    "max_steps": "trainer.fit(train, max_steps=1000)",
    "train_dataset": "trainer.fit(train)",
    "eval_dataset": "trainer.fit(train, test)",
    "resume_from_checkpoint": 'trainer.fit(train, resume="auto")',
}


def options_of(given: Mapping[str, Any]) -> TrainerOptions:
    """Take options by name; an unknown one is told with the one that was meant."""
    known = [each.name for each in fields(TrainerOptions)]
    for name in given:
        if name not in known:
            close = get_close_matches(name, [*known, "devices"], n=1, cutoff=0.5)
            guess = f"did you mean {close[0]}?" if close else None
            guess = f"trainer.fit takes it: {ELSEWHERE[name]}" if name in ELSEWHERE else guess
            raise UsageError(f"a trainer has no option {name!r}", why="its options are " + ", ".join(known), fix=guess)
    return TrainerOptions(**given)


def check_trainable(net: Any, optimizer: Any, loss_fn: Any) -> None:
    """Refuse what is none, an optimizer that would train nothing, or one that asks for the loss again in a step."""
    order = "weft.Trainer(net, optimizer, loss_fn)"
    if not isinstance(net, nn.Module):
        raise UsageError(f"a trainer takes a module, not {named(net)}", fix=order)
    refuse_no_optimizer(optimizer, order)
    refuse_no_loss(loss_fn, order)
    if reduction_of(loss_fn) == "none":
        raise UsageError(
            "the loss gives a number for each sample: its reduction is 'none'",
            why="a step minimises one number",
            fix='reduction="mean", or reduction="sum"',
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UnsupportedError(
            "LBFGS computes the loss several times in a step",
            why="a trainer computes it once for each batch, on all devices",
            fix="call optimizer.step(closure) in a loop of your own, around a weft.DataParallel",
        )
    own = {id(parameter) for parameter in net.parameters()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if own and not any(id(parameter) in own for parameter in held):
        raise UsageError(
            "the optimizer has none of the module's parameters",
            why="it was made for another module, or for a copy of this one",
            fix="make it of net.parameters(), after net.to(...)",
        )
