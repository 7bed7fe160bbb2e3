"""Train on this machine's devices, in one process or several: `weft train`."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from weft.console.outcome import Outcome
from weft.console.progress import Progress
from weft.train.history import line_of
from weft.train.launch import train
from weft.train.processes.peers import PATIENCE
from weft.train.training_run import parsed_devices, parsed_values


def train_call(given: Namespace) -> str:
    """Give the Python call that does the same."""
    words = "".join(f", {name}={value!r}" for name, value in _order(given).items())
    return f"from weft.train.launch import train\n\nprint(train({given.TARGET!r}{words}))"


def train_run(given: Namespace, progress: Progress) -> Outcome:
    """Train, and show the history."""
    progress.end()  # training tells how it goes by itself
    history = train(given.TARGET, **_order(given))
    return Outcome(history.document(), {"history": list(history), "last": line_of(history[-1]) if history else None})


def _order(given: Namespace) -> dict[str, Any]:
    """What is not as usual."""
    found = {
        "devices": parsed_devices(given.devices),
        "epochs": given.epochs,
        "resume": given.resume,
        "checkpoints": given.checkpoints,
        "processes": given.processes,
        "patience": given.patience,
        "values": parsed_values([*given.set, *(["synthetic=true"] if given.synthetic else [])]),
    }
    usual = {"devices": "all", "epochs": 1, "processes": 1, "patience": PATIENCE, "values": {}}
    return {name: value for name, value in found.items() if value != usual.get(name)}
