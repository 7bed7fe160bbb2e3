"""Run `python -m weft.train TARGET ...`, which is also what `torchrun -m weft.train TARGET ...` starts."""

from __future__ import annotations

import argparse
import sys

from weft.errors import WeftError
from weft.train.launch import train
from weft.train.processes.peers import PATIENCE
from weft.train.training_run import parsed_devices, parsed_values

FAILED = 4


def main() -> int:
    """Read the command line, and train."""
    parser = argparse.ArgumentParser(prog="python -m weft.train", description=__doc__)
    parser.add_argument("target", help="file.py:name, or examples.lenet, examples.resnet18, examples.mlp")
    parser.add_argument("--devices", default="all", help='"all", or names with commas: cpu:0,cpu:1')
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--resume", choices=["auto"])
    parser.add_argument("--checkpoints", metavar="FOLDER")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds to wait for a rank")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the run")
    given = vars(parser.parse_args())
    values = parsed_values(given.pop("set"))
    try:
        train(given.pop("target"), **{**given, "devices": parsed_devices(given["devices"]), "values": values})
    except WeftError as error:
        print(f"weft: {error}", file=sys.stderr)  # noqa: T201 - a command line
        return FAILED
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
